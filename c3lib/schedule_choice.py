"""Which schedule a GEMM and the collective that feeds it should take, from sizes and a node's constants alone.

What a program could decide while it compiles: nothing is simulated and nothing measured, in well under 100 us. The
inputs are those reported of arXiv 2512.10236: operations per byte and memory traffic (a GEMM takes the longer of its
waves of tiles and its traffic), M against K (what a cut along either costs), bytes exchanged and size of a piece. How
they decide is the project's own: a closed-form cost for each schedule (:mod:`c3lib.schedule_costs`), whose every
threshold follows from constants of the node. None is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from c3lib.errors import C3Error, unknown
from c3lib.ficco.problem import Problem
from c3lib.ficco.schedules import SCHEDULES
from c3lib.hardware import Node
from c3lib.schedule_costs import RULES, Case, Cost, serial
from c3lib.workload import format_size

TRANSPORTS = ("cu", "dma")


class Thresholds(NamedTuple):
    """Where the decision turns, by formula from a node's constants.

    ``ridge``: flop/B below which a GEMM waits for memory. ``balance``: flop per byte received at which GEMM and
    exchange take equally long. ``piece_nbytes``: a piece whose bytes take as long as its exchange's own cost; far
    smaller ones should not be cut. ``peer_penalty``: how much longer the same bytes take from one peer at a time.
    ``held_cus``: CUs that a GEMM loses to the exchanges beside it.
    """

    ridge: float
    balance: float
    piece_nbytes: float
    peer_penalty: float
    held_cus: int


def thresholds(problem: Problem, node: Node, transport: str = "dma") -> Thresholds:
    """:class:`Thresholds` for one kind of collective and number of peers.

    Raises:
        C3Error: as :func:`choose`.
    """
    return _thresholds(case_of(problem, node, transport))


def _thresholds(case: Case) -> Thresholds:
    here, peers = case.machine, max(case.peers, 1)
    flops, rate = here.cu_flops * here.gpu.cus, here.rate(peers, here.default_cus)
    together, single = here.rate(peers, here.copying_cus), here.rate(1, here.copying_cus)
    start_nbytes = here.start_s(peers) * together / peers
    return Thresholds(flops / here.hbm_bytes_s, flops / rate, start_nbytes, together / single, here.held_cus)


@dataclass(frozen=True)
class Choice:
    """The schedule to take. ``costs``: estimates of all that were considered, the chosen one's first, in the order of
    their times; ``case`` what they were made from."""

    schedule: str
    costs: tuple[Cost, ...]
    case: Case

    @property
    def reason(self) -> str:
        """Why, in words: what the sizes are against the node's thresholds, and what the next best schedule lacks."""
        case, limits, best = self.case, _thresholds(self.case), self.costs[0] if self.costs else None
        if best is None:
            return f"{self.schedule}: no bytes arrive over links, so there is nothing to overlap."
        size, here = case.machine.size, case.machine
        flops, nbytes = 2 * case.m * case.n * case.k, size * (case.m * case.k + case.k * case.n + case.m * case.n)
        received, piece = case.far_rows * case.k * size, round(case.most / case.steps * case.k * size)
        held = f", which hold {limits.held_cus} of {here.gpu.cus} CUs" if here.by_cu else ""
        single = f" From one peer at a time they take {limits.peer_penalty:.2g} times as long." if here.mesh else ""
        return (
            f"{self.schedule}: {_ms(best.time_s)}, of which {best.waits_for} sets the pace. "
            f"GEMM: {flops / nbytes:.0f} flop/B (ridge {limits.ridge:.0f}), {format_size(nbytes)} of memory traffic, "
            f"M {case.m} and K {case.k}. Exchanges{held}: {format_size(received)}, {flops / received:.0f} flop for "
            f"each byte received (GEMM and exchanges take equally long at {limits.balance:.0f}), in pieces of "
            f"{format_size(piece)} (an exchange costs as much time as {format_size(round(limits.piece_nbytes))})."
            f"{single} {self._against()}"
        )

    def _against(self) -> str:
        if len(self.costs) == 1:
            return "No other schedule was allowed."
        best, other = self.costs[:2]
        parts = _PARTS[other.waits_for]
        part = max(parts, key=lambda name: getattr(other, name) - getattr(best, name))
        ours, theirs = getattr(best, part), getattr(other, part)
        return f"Next is {other.schedule}, {_ms(other.time_s)}: {parts[part]} {_ms(theirs)} against {_ms(ours)}."

    def __str__(self) -> str:
        return self.reason


_PARTS = {
    "the exchange": {
        "exchange_s": "its exchanges end after",
        "last_s": "its kernels behind the last exchange take",
    },
    "the GEMM": {
        "kernel_s": "its kernels take",
        "begin_s": "its first kernel waits",
    },
}
"""What a schedule's time is made of, in words, by what sets its pace."""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def case_of(problem: Problem, node: Node, transport: str) -> Case:
    """The problem as the rank sees it that the others wait for. Raises as :func:`choose`."""
    if transport not in TRANSPORTS:
        raise unknown("transport", transport, TRANSPORTS)
    node.check_ranks(problem.ranks, "problem")
    if problem.even:
        return Case(problem, node, transport, problem.busiest)
    return max(
        (Case(problem, node, transport, rank) for rank in range(problem.ranks)), key=lambda case: serial(case).time_s
    )


def choose(problem: Problem, node: Node, transport: str = "dma", among: Sequence[str] = tuple(SCHEDULES)) -> Choice:
    """The schedule that the closed-form costs put first; ``among`` restricts it (:data:`c3lib.ficco.FINER`: the four).

    Uneven problems are judged by the rank that would end last under ``serial``, their steps by what is moved in one on
    average. Of equal costs the first in ``among`` is taken.

    Raises:
        C3Error: an unknown transport or schedule, none to choose from, more ranks than the node has.
    """
    case = case_of(problem, node, transport)
    if isinstance(among, str) or not among:
        raise C3Error("among: expected the names of one or more schedules")
    for name in among:
        if name not in RULES:
            raise unknown("schedule", name, RULES)
    if not case.far_rows:
        return Choice("serial" if "serial" in among else among[0], (), case)
    costs = tuple(sorted((RULES[name](case) for name in among), key=lambda cost: cost.time_s))
    return Choice(costs[0].schedule, costs, case)
