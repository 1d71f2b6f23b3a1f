"""L2: AMD's own user-space runtime over the model. Every scenario, and what the model itself saw meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import CASES, Case
from layers import Layer


@pytest.mark.parametrize("case", CASES, ids=str)
def test_real_runtime_does_as_expected(l2: Layer, case: Case, tmp_path: Path) -> None:
    found = l2.run(case, tmp_path)
    assert case.differences(found["facts"]) == []
    assert (found["witness"]["kernels"] > 0) == case.kernels, found["witness"]
