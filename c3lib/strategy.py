"""The six strategies of arXiv 2412.14335 as rows of data; a new strategy is one row."""

from __future__ import annotations

from dataclasses import dataclass

from c3lib.errors import unknown


@dataclass(frozen=True)
class Strategy:
    """How the collective is run beside the GEMM.

    ``transport``: ``"cu"`` (the vendor library's kernels) or ``"dma"``. ``first``: which kernel is launched first.
    ``partition``: ``"none"``; ``"sweep"``, the best split out of powers of two, chosen after the fact and therefore an
    **oracle**; ``"memory-bound"``, a fixed number of CUs withheld from memory-bound GEMMs.
    """

    name: str
    transport: str
    first: str
    partition: str
    does: str

    @property
    def oracle(self) -> bool:
        """True when the strategy needs to know the outcome: no program could have chosen it beforehand."""
        return self.partition == "sweep"


_ROWS = (
    Strategy("c3_base", "cu", "gemm", "none", "library kernel on a second stream beside the GEMM, default order"),
    Strategy("c3_sp", "cu", "collective", "none", "collective dispatched before the GEMM"),
    Strategy("c3_rp", "cu", "gemm", "sweep", "best CU split out of a sweep (oracle)"),
    Strategy("c3_sp_rp", "cu", "collective", "sweep", "best CU split, collective dispatched first (oracle)"),
    Strategy("conccl", "dma", "collective", "none", "collective on DMA engines, GEMM keeps every CU"),
    Strategy("conccl_rp", "dma", "collective", "memory-bound", "conccl, and memory-bound GEMMs give up a few CUs"),
)

STRATEGIES = {row.name: row for row in _ROWS}


def strategy(name: str) -> Strategy:
    """The strategy of that name; raises :class:`C3Error` for an unknown one."""
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    return STRATEGIES[name]
