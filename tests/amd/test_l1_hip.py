"""L1: backend hip on our double of AMD's library, from the shell and from notebooks; nothing is a measurement."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from run_real import clean_environment

from c3lib.book import run as run_notebook
from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.files import ROOT
from c3lib.strategy import STRATEGIES

pytestmark = pytest.mark.skipif(
    torch.version.hip is not None,
    reason="torch is built for ROCm: its own copy of AMD's runtime is used, not the double",
)

LIMIT_S = 120
ALONE = {"OMP_NUM_THREADS": "1"}  # threads that spin for one another do badly on cores that others use too
Done = subprocess.CompletedProcess

C3 = Callable[..., Done]


@pytest.fixture
def c3(double: Path) -> C3:
    """``c3(*arguments, NAME=value)``: a command in a process of its own, which finds the double."""

    def run(*arguments: str, **variables: str) -> Done:
        environment = {**clean_environment(), **ALONE, "LD_LIBRARY_PATH": str(double.parent), **variables}
        return subprocess.run(
            [sys.executable, "-m", "c3lib", *arguments], env=environment, cwd=ROOT, capture_output=True, text=True,
            timeout=LIMIT_S,
        )  # fmt: skip

    return run


def of_suite(*more: str) -> tuple[str, ...]:
    return ("run", "--backend", "hip", "--suite", "no_gpu", "--repeats", "1", *more)


def test_all_strategies_run_with_every_byte_compared_and_none_of_it_is_a_measurement(c3: C3) -> None:
    done = c3(*of_suite("--json"))
    assert done.returncode == 0, done.stderr
    rows = pd.DataFrame(json.loads(done.stdout)["rows"])
    assert len(rows) == 4 * len(STRATEGIES)
    assert set(rows["evidence"]) == {NOT_A_MEASUREMENT}
    assert rows["verified"].all()
    assert rows["path"].str.startswith("not a measurement (the library is the tests' double of AMD's").all()
    assert {name: set(part["transport"]) for name, part in rows.groupby("strategy")} == {
        name: {"sdma" if how.transport == "dma" else "rccl"} for name, how in STRATEGIES.items()
    }
    engines = rows.loc[rows["transport"] == "sdma", "path"]
    assert engines.str.contains(
        "each left the mask of idle ones (0xfffc) while a copy was held on it", regex=False
    ).all()
    assert rows.loc[rows["transport"] == "rccl", "path"].str.contains("stand-in for rccl", regex=False).all()
    times = rows[["gemm_alone_s", "collective_alone_s", "gemm_end_s", "collective_end_s", "concurrent_s"]]
    assert (times > 0).all(axis=None)
    assert (rows["concurrent_s"] == rows[["gemm_end_s", "collective_end_s"]].max(axis=1)).all()


def test_nothing_is_stored(c3: C3, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    done = c3(*of_suite("--strategy", "conccl", "--out", str(out)))
    assert done.returncode != 0
    assert "not written: rows that are not a measurement are shown but never stored" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"HSA_ENABLE_SDMA": "0"}, "HSA_ENABLE_SDMA=0 has all copies done by kernels"),
        ({"HSA_ENABLE_PEER_SDMA": "0"}, "HSA_ENABLE_PEER_SDMA=0 has copies between GPUs done by kernels"),
        ({"C3_DOUBLE_GPUS": "4"}, "backend hip: needs 8 GPUs, AMD's runtime lists 4"),
        ({"C3_DOUBLE_FAULT": "no-memory -1 -1 115"}, "bytes on GPU"),  # 112 are for the proofs of 56 engines
        ({"LD_LIBRARY_PATH": ""}, "no usable libhsa-runtime64.so.1"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(c3: C3, variables: dict[str, str], words: str) -> None:
    done = c3(*of_suite("--strategy", "conccl"), **variables)
    assert done.returncode != 0
    assert words in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_dropped_copy_ends_in_one_sentence_and_no_means(c3: C3, more: list[str]) -> None:
    """Engine 4 copies one shard for each GPU in a run; its proofs, three copies for each GPU, come first."""
    done = c3(*of_suite("--strategy", "conccl", *more), C3_DOUBLE_FAULT="drop -1 4 36")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(
        r"c3: results: 1 not a measurement rows failed the byte check, first \S+ under conccl\n", done.stderr
    )


def test_measuring_is_refused_before_anything_is_written(c3: C3, tmp_path: Path) -> None:
    done = c3("measure", "--node", "mi300x_8", "--out", str(tmp_path / "out"))
    assert done.returncode != 0
    assert "the library is the tests' double of AMD's" in done.stderr
    assert "what runs here is not a measurement, so nothing is written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_suite_too_large_for_a_cpu_is_refused(c3: C3) -> None:
    done = c3("run", "--backend", "hip", "--strategy", "conccl")
    assert "with no AMD GPU, GEMMs run on the CPU" in done.stderr
    assert "use a small suite, such as no_gpu" in done.stderr


@pytest.mark.parametrize("name", ["01_taxonomy", "06_conccl"])
def test_a_notebook_runs_from_end_to_end_and_says_that_it_is_not_a_measurement(
    name: str, double: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in {**ALONE, "LD_LIBRARY_PATH": str(double.parent)}.items():
        monkeypatch.setenv(variable, value)
    parameters = {"backend": "hip", "suite": "no_gpu", "repeats": 2}
    result = run_notebook(ROOT / "notebooks" / f"{name}.ipynb", tmp_path / "out", tmp_path / "build", parameters)
    assert result.published
    cells = json.loads((tmp_path / "build" / f"{name}.ipynb").read_text())["cells"]
    said = ["".join(o["data"].get("text/markdown", "")) for c in cells for o in c.get("outputs", []) if "data" in o]
    of_rows = [text for text in said if text and not text.startswith("(modelled) ")]
    assert of_rows
    assert all(text.startswith("**This is not a measurement: no GPU ran it.**") for text in of_rows), of_rows
    assert "measured" not in "".join(said)
    assert not any(word in "".join(of_rows) for word in ("redicted", "alibrated", "missed"))
