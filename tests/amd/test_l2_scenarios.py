"""L2: AMD's own user-space runtime over the model. Every scenario, and what the model itself saw meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import CASES, SAME, Case
from layers import Layer


@pytest.mark.parametrize("case", CASES, ids=str)
def test_real_runtime_does_as_expected(l2: Layer, case: Case, tmp_path: Path) -> None:
    found = l2.run(case, tmp_path)
    assert case.differences(found["facts"]) == []
    assert (found["witness"]["kernels"] > 0) == case.kernels, found["witness"]


@pytest.mark.parametrize("case", SAME, ids=str)
def test_both_layers_say_the_same_of_engines_that_are_lost(l1: Layer, l2: Layer, case: Case, tmp_path: Path) -> None:
    real, double = (layer.run(case, tmp_path / layer.name)["facts"] for layer in (l2, l1))
    assert real == double
    assert ("refused" in real) == bool(case.variables or case.sdma_queues == 0), real
