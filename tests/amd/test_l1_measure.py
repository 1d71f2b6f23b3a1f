"""L1: the experiments of AMD nodes over the double, as far as the table that would be written on real hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from c3lib.amd.runtime import open_runtime
from c3lib.backends.hip import HipBackend
from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.errors import C3Error
from c3lib.measure import amd, run
from c3lib.measured import schemas
from c3lib.schema import check
from c3lib.workload import Gemm

Tables = dict[str, tuple[pd.DataFrame, dict[str, Any]]]


@pytest.fixture
def measured(double: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``measured(experiment)``: the tables that it would write, by name, with their provenance."""
    open_runtime(double)
    tables: Tables = {}

    def note(frame: pd.DataFrame, path: Path, **about: Any) -> Path:
        tables[path.stem] = frame, about
        return path

    monkeypatch.setattr(run, "write_table", note)
    monkeypatch.setattr(amd, "open_backend", HipBackend)
    monkeypatch.setattr(amd, "COMPUTE_BOUND", (Gemm(64, 64, 64, "fp32"),))
    monkeypatch.setattr(amd, "MEMORY_BOUND", ())
    monkeypatch.setattr(amd, "SIZES", (4096,))
    monkeypatch.setattr(amd, "LARGE_NBYTES", 2**20)

    def measure(experiment: str) -> Tables:
        run.measure("mi300x_8", "no_gpu", tmp_path / "out", [experiment], repeats=2, quiet=True)
        return tables

    return measure


def sound(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame, which the table's schema takes but for its evidence."""
    assert set(frame["evidence"]) == {NOT_A_MEASUREMENT}
    with pytest.raises(C3Error, match="column evidence must satisfy"):
        check(frame, schemas()[name], name)
    return check(frame.assign(evidence="measured"), schemas()[name], name)


def test_the_suite_and_its_sweeps_fit_their_tables(measured) -> None:
    tables = measured("suite")
    rows, about = tables["no_gpu"]
    assert len(sound("suite", rows)) == 4 * 6 * 2
    sweep = sound("sweep", tables["sweep"][0])
    assert len(sweep) == 4 * 2 * 6 * 3
    assert set(sweep["sms_granted"]) == {0, 8, 16, 32, 64, 128}
    assert set(sweep.loc[sweep["sms_granted"] > 0, "partition"]) == {"cu mask"}
    assert about["stand_ins"][0] == "the library is the tests' double of AMD's"
    assert [(row["engine"], row["how"]) for row in about["engines"][:2]] == [(2, "preferred"), (4, "preferred")]
    assert set(about["negative_control"]) == {"sdma", "rccl"}


def test_each_kernel_alone_fits_its_table(measured) -> None:
    rows = sound("isolated", measured("isolated")["isolated"][0])
    gemms, moves = rows[rows["transport"] == "none"], rows[rows["transport"] != "none"]
    assert sorted(gemms["sms_asked"]) == sorted([0, 8, 16, 32, 64, 128] * 2)
    assert moves.groupby("transport")["total_bytes"].unique().map(sorted).to_dict() == {
        "rccl": [8 * 4096, 2**20],
        "sdma": [8 * 4096, 2**20],
    }
    assert (moves["transfer_s"] > 0).all()
    assert set(moves["collective"]) == {"all-gather", "all-to-all"}
