"""L2: ``c3 doctor`` on AMD's real runtime over the model: engines proved, and none of it taken for hardware."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_real import Real
from topology import Topology

from c3lib.doctor import ask as asking
from c3lib.doctor import diagnose
from c3lib.doctor.machine import Machine

THERE = Machine({"amd": 2}, {"amd": True}, {"amd": ()}, {"amd": False})


@pytest.fixture
def over_the_model(real_runtime: Real, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Probes start on the real runtime's loader, over a model of two GPUs."""
    monkeypatch.setattr(asking, "PYTHON", tuple(real_runtime.command()))
    for name, value in real_runtime.environment(tmp_path, Topology(gpus=2)).items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_real_runtime_is_told_and_its_engines_are_proved(over_the_model: pytest.MonkeyPatch) -> None:
    content, text = diagnose(THERE, {})
    said = {topic: [] for topic in ("runtime", "SDMA path", "peer engines")}
    for line in content["found"]:
        said.get(line["topic"], []).append((line["state"], line["says"]))
    assert len(content["gpus"]) == 2
    assert [state for state, _ in said["runtime"]] == ["ok"]
    assert [words.split(":")[0] for state, words in said["SDMA path"] if state == "ok"] == [
        "engines 0-1 of 2 GPUs to the host",
        "engines 2-15 of 2 GPUs to the peer",
    ]
    assert content["hardware"] is False
    assert "model" in content["stand_in"]
    assert text.startswith("Not a measurement: ")
    assert "c3 measure" not in text


def test_engines_switched_off_are_found_out(over_the_model: pytest.MonkeyPatch) -> None:
    over_the_model.setenv("HSA_ENABLE_PEER_SDMA", "0")
    content, _ = diagnose(THERE, {"HSA_ENABLE_PEER_SDMA": "0"})
    peers = [line["says"] for line in content["found"] if line["topic"] == "SDMA path" and "peer" in line["says"]]
    assert len(peers) == 1
    assert "a kernel on compute units did the copy" in peers[0]
    assert "HSA_ENABLE_PEER_SDMA=0" in content["first"]
