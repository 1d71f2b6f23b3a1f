"""L1: ``c3 doctor`` on our double of AMD's library: engines proved, each fault one sentence, nothing measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from build_model import compiled
from topology import Topology

from c3lib.doctor import amd, diagnose
from c3lib.doctor.amd_probe import by_files
from c3lib.doctor.ask import ask
from c3lib.doctor.finding import Answer
from c3lib.doctor.machine import Machine
from c3lib.doctor.verdict import EXPLAIN

THERE = Machine({"amd": 8}, {"amd": True}, {"amd": ()}, {"amd": False})
"""A machine whose driver's device file is there."""

Page = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def page(double: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """``page(NAME=value, ...)``: the page of the double with these environment variables."""

    def page(**variables: str) -> tuple[dict[str, Any], str]:
        for name, value in {"LD_LIBRARY_PATH": str(double.parent), "C3_DOUBLE_GPUS": "3", **variables}.items():
            monkeypatch.setenv(name, value)
        return diagnose(THERE, variables)

    return page


def says(content: dict[str, Any], topic: str) -> list[tuple[str, str]]:
    return [(line["state"], line["says"]) for line in content["found"] if line["topic"] == topic]


def test_every_engine_is_proved_and_nothing_is_a_measurement(page: Page) -> None:
    content, text = page()
    assert [gpu["cus"] for gpu in content["gpus"]] == [304] * 3
    assert says(content, "SDMA path") == [
        ("ok", "engines 0-1 of 3 GPUs to the host: busy while a copy was held, idle after it"),
        ("ok", "engines 2-15 of 3 GPUs to the peer: busy while a copy was held, idle after it"),
    ]
    assert content["hardware"] is False
    assert "double" in content["stand_in"]
    assert [ability["can"] for ability in content["abilities"]] == [True] + [False] * (len(content["abilities"]) - 1)
    assert content["next"] == EXPLAIN
    assert content["nodes"] == []
    assert text.startswith("Not a measurement: the library is the tests' double")


@pytest.mark.parametrize(
    ("variables", "state", "words"),
    [
        ({"C3_DOUBLE_FAULT": "hang 0 4 0"}, "no", "to the peer, engine 4 of GPU 0: a copy of 64 bytes on it did not"),
        ({"C3_DOUBLE_FAULT": "engine-error 1 5 0"}, "no", "engine 5 of GPU 1: a copy of 64 bytes on it failed"),
        ({"C3_DOUBLE_FAULT": "busy 2 6 0"}, "no", "engine 6 of GPU 2: "),
        ({"C3_DOUBLE_FAULT": "submit-error 0 7 0"}, "no", "engine 7 of GPU 0: submitting"),
        ({"HSA_ENABLE_PEER_SDMA": "0"}, "no", "the engine stayed idle while it was held back"),
        ({"HSA_ENABLE_SDMA": "0"}, "no", "to the host, engine 0 of GPU 0, engine 1 of GPU 0"),
        ({"C3_DOUBLE_SDMA_QUEUES": "4"}, "no", "the engine never became idle again"),
        ({"C3_DOUBLE_PEER_ENGINES": "0"}, "ok", "engines 0-1 of 3 GPUs to the peer"),  # as in CPX
    ],
    ids=str,
)
def test_each_fault_is_one_line_and_the_other_engines_stand(
    page: Page, variables: dict[str, str], state: str, words: str
) -> None:
    content, _ = page(**variables)
    found = [said for how, said in says(content, "SDMA path") if how == state and words in said]
    assert len(found) == 1, says(content, "SDMA path")
    if "C3_DOUBLE_FAULT" in variables:
        assert any("to the peer" in said for how, said in says(content, "SDMA path") if how == "ok")


def test_no_driver_below_the_library_is_one_line(page: Page) -> None:
    content, _ = page(C3_DOUBLE_DRIVER="0")
    assert [state for state, _ in says(content, "runtime")] == ["no"]
    assert content["gpus"] == []
    assert content["next"] == EXPLAIN


def test_a_variable_that_turns_engines_off_forbids_measuring(page: Page) -> None:
    content, text = page(HSA_ENABLE_SDMA="0")
    assert "HSA_ENABLE_SDMA=0: copies would run on compute units" in content["first"]
    assert "c3 measure" not in text


def test_a_runtime_that_is_too_old_is_one_line(hsa_include: Path, page: Page) -> None:
    flags = ["-fvisibility=hidden", "-DRELEASE=5", "-Wno-unused-function"]
    old = compiled("libhsa-runtime64.so.1", Path(__file__).with_name("double"), [hsa_include], flags)
    content, _ = page(LD_LIBRARY_PATH=str(old.parent))
    ((state, words),) = says(content, "runtime")
    assert state == "no"
    assert "is too old or not AMD's library: it has no hsa_amd_memory_async_copy_on_engine" in words
    assert content["next"] == EXPLAIN


def test_no_library_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    answer = ask(f"{amd.PROBES}:by_runtime", limit_s=20)
    assert answer.facts == ()
    assert answer.failure.startswith("amd: no usable libhsa-runtime64.so.1")


def test_the_drivers_topology_is_read(tmp_path: Path) -> None:
    Topology(gpus=4).write(tmp_path / "sys/class/kfd/kfd/topology")
    card = tmp_path / "sys/class/drm/card1/device"
    card.mkdir(parents=True)
    (card / "current_compute_partition").write_text("SPX\n")
    (card / "current_memory_partition").write_text("NPS1\n")
    (tmp_path / "opt/rocm/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm/.info/version").write_text("7.2.0-43\n")
    found = Answer(tuple(fact for fact in by_files(str(tmp_path)) if isinstance(fact, dict)))
    assert found.one("versions")["rocm"] == "7.2.0-43"
    assert found.one("partition") == {"kind": "partition", "card": "card1", "compute": "SPX", "memory": "NPS1"}
    assert [(node["cus"], node["xccs"], node["peer_links"], node["recommended"]) for node in found.of("node")] == [
        (304, 8, 3, 3)
    ] * 4
