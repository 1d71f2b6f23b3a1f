"""A GEMM that needs what a collective brings: nothing runs beside it unless both are cut finer (FiCCO)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from c3lib.advisor.layers import Work
from c3lib.advisor.options import SERIAL
from c3lib.explain import NOTHING
from c3lib.ficco.problem import Problem
from c3lib.ficco.sets import Row
from c3lib.finer import schedule_rows
from c3lib.hardware import Node
from c3lib.strategy import STRATEGIES


@dataclass(frozen=True)
class Finer:
    """A finer-grain schedule: what moves its pieces (``"dma"`` or ``"cu"``), and both kernels' time under it."""

    schedule: str
    transport: str
    time_s: float


def finer(work: Work, node: Node, names: Iterable[str], serial_s: float) -> Finer | None:
    """The schedule that is the fastest by the model, of all with each transport on offer.

    None where that gains nothing over ``serial_s``, the library's collective and then the GEMM.
    """
    (_, gemm), ranks = work.gemms[0], work.collective.ranks
    problem = Problem.all_gather(gemm.m, gemm.n, gemm.k, ranks, gemm.dtype)
    transports = list(dict.fromkeys(STRATEGIES[name].transport for name in names))
    rows = schedule_rows(node, [Row(work.name, problem, "advised")], transports)
    rows = rows[rows["fits"] & (rows["schedule"] != SERIAL)]
    if rows.empty or serial_s < rows["time_s"].min() * (1 + NOTHING):
        return None
    best = rows.loc[rows["time_s"].idxmin()]
    return Finer(best["schedule"], best["transport"], float(best["time_s"]))
