"""The GEMM that is timed: torch on random normal operands, several sets of them in turn so that no cache is warm."""

from __future__ import annotations

from typing import Any

from c3lib.errors import C3Error
from c3lib.workload import Gemm

SETS = 3
"""Operand sets that repetitions take in turn; between two runs of one set lie more bytes than the L2 holds."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class Operands:
    """Operands of one GEMM on torch's device ``where``, ``SETS`` of them.

    A ``(m, k)``, B ``(n, k)`` used transposed, C ``(m, n)``; ``torch`` is the module.

    Raises:
        C3Error: a dtype that torch's mm does not take. Too little memory is torch's own error.
    """

    def __init__(self, torch: Any, where: str, gemm: Gemm, seed: int = 0):
        if gemm.dtype not in _DTYPES:
            raise C3Error(f"gemm {gemm}: dtype {gemm.dtype} cannot be measured here; known: {', '.join(_DTYPES)}")
        self.torch, self.gemm = torch, gemm
        generator = torch.Generator(device=where).manual_seed(seed)
        kind = getattr(torch, _DTYPES[gemm.dtype])

        def normal(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, dtype=kind, device=where, generator=generator)

        self._sets = [(normal(gemm.m, gemm.k), normal(gemm.n, gemm.k), normal(gemm.m, gemm.n)) for _ in range(SETS)]
        self.reference: list[Any] = [(a @ b.t()).clone() for a, b, _ in self._sets]

    def poison(self, turn: int) -> None:
        """Fill C with NaN, so that a GEMM that did not run is noticed."""
        self._sets[turn % SETS][2].fill_(float("nan"))

    def multiply(self, turn: int) -> None:
        """One GEMM with the operands whose turn it is, on torch's current stream."""
        a, b, c = self._sets[turn % SETS]
        self.torch.mm(a, b.t(), out=c)

    def right(self, turn: int) -> bool:
        """Whether C is what the GEMM alone gave: equal, or (another kernel on fewer CUs) within rounding."""
        got, wanted = self._sets[turn % SETS][2], self.reference[turn % SETS]
        if self.torch.equal(got, wanted):
            return True
        scale = float(self.gemm.k) ** 0.5  # standard deviation of an element
        return bool(self.torch.isfinite(got).all()) and float((got - wanted).abs().max()) <= 0.05 * scale

    def is_random(self) -> bool:
        """Whether the operands look standard normal: power, and so clocks, depend on the data."""
        a = self._sets[0][0].float()
        return abs(float(a.mean())) < 0.05 and abs(float(a.std()) - 1) < 0.05
