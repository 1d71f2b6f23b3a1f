"""L2: AMD's library and our double of it answer every odd or wrong argument alike, status by status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cases import Case
from layers import Layer

SCRIPT = Path(__file__).with_name("arguments.py")


def said(layer: Layer, folder: Path, what: str = "all") -> dict[str, Any]:
    command, environment = layer.start(Case("arguments", "arguments"), folder)
    done = subprocess.run(
        [*command, str(SCRIPT), str(layer.library), what], env={**environment}, cwd=folder, capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_double_answers_as_amd_s_library_does(l1: Layer, l2: Layer, tmp_path: Path) -> None:
    theirs, ours = said(l2, tmp_path)["facts"], said(l1, tmp_path)["facts"]
    assert {name: (ours.get(name), told) for name, told in theirs.items() if ours.get(name) != told} == {}
    assert len(theirs) > 60
    assert {"refused", "ends", "never ends"} <= {told[1] for told in theirs.values() if isinstance(told, list)}


@pytest.mark.parametrize(("how", "kernels"), [("forced", 0), ("not forced", 1)])
def test_within_a_gpu_an_engine_copies_only_when_it_is_forced(l2: Layer, tmp_path: Path, how, kernels) -> None:
    found = said(l2, tmp_path, how)
    assert found == {"facts": {"copy": [0, "ends"]}, "kernels": kernels}
