"""L1: our double of AMD's library has to give the same facts as the real one does in L2."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import CASES, Case
from layers import Layer


@pytest.mark.parametrize("case", CASES, ids=str)
def test_double_does_as_the_real_runtime(l1: Layer, case: Case, tmp_path: Path) -> None:
    assert case.differences(l1.run(case, tmp_path)["facts"]) == []
