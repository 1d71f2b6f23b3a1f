"""Advice on one GEMM beside one collective: overlap or not, how, from which size on, the gain and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from c3lib.advisor import page
from c3lib.advisor.margin import Margin, margin
from c3lib.advisor.options import SERIAL, Options, best, break_even, fastest, offered, options, total
from c3lib.errors import C3Error
from c3lib.explain import EVIDENCE, MATTERS, NOTHING
from c3lib.hardware import Node, load_node
from c3lib.model.blame import BLAME_TITLES, blame_s
from c3lib.model.kernels import batch
from c3lib.strategy import STRATEGIES
from c3lib.workload import Collective, Gemm, Scenario

NO_BYTES = "The collective sends no bytes, so there is nothing to overlap."

_HOW = {
    "c3_base": "no order and no set of CUs does better than a plain second stream",
    "c3_sp": "dispatched first, the library's kernels get their CUs before the GEMM fills them",
    "c3_rp": "CUs set aside for the library's kernels cost the GEMM less than waiting costs the collective",
    "c3_sp_rp": "dispatched first and on CUs of their own, the library's kernels disturb the GEMM least",
    "conccl": "DMA engines move the bytes and the GEMM keeps every CU",
    "conccl_rp": "DMA engines move the bytes, and the memory-bound GEMM runs as well on fewer CUs",
}
"""Why a strategy is the best, by how it works."""


@dataclass(frozen=True)
class Advice:
    """What to do with a GEMM and a collective that do not depend on each other; ``print`` it.

    Times in seconds, sizes in bytes (totals, as :class:`c3lib.Collective` has them). The interval of the speedup is
    the model's error as it was measured, ``uncertainty`` says on what. Serial advice has the speedup 1 by definition;
    what it rests on, and may be wrong about, are the fields ``unadvised_*``: the fastest way to overlap and what that
    would give. They are None where overlap is advised, or no bytes are sent.
    """

    node: str
    gemm: Gemm
    collective: Collective
    strategy: str  # a name of c3lib.STRATEGIES, or "serial": do not overlap
    dma: bool  # move the bytes by DMA engines
    cus_reserved: int  # CUs to withhold from the GEMM
    gemm_alone_s: float
    collective_alone_s: float  # by the library
    time_s: float  # both, as advised
    speedup: float  # expected, over serial
    speedup_low: float
    speedup_high: float
    overlap_from_nbytes: int | None  # run one after the other below this size; None: at every size
    dma_from_nbytes: int | None  # keep off DMA engines below this size; None: at every size
    reason: str
    uncertainty: str
    unadvised_strategy: str | None = None
    unadvised_speedup: float | None = None  # expected, over serial
    unadvised_speedup_low: float | None = None
    unadvised_speedup_high: float | None = None
    evidence: str = EVIDENCE

    @property
    def serial_s(self) -> float:
        """Both, one after the other."""
        return self.gemm_alone_s + self.collective_alone_s

    @property
    def overlap(self) -> bool:
        """Whether to overlap at all."""
        return self.strategy != SERIAL

    @property
    def sure(self) -> bool:
        """Whether even the low end of the interval gains over serial."""
        return self.overlap and self.speedup_low > 1

    @property
    def fall_back_nbytes(self) -> int | None:
        """Below this size what is advised no longer holds; None where nothing is to fall back from."""
        if not self.overlap:
            return None
        return self.dma_from_nbytes if self.dma else self.overlap_from_nbytes

    @property
    def fall_back(self) -> str:
        """From which sizes on overlap and DMA engines pay, in words."""
        return page.fall_back(self)

    @property
    def unadvised(self) -> str:
        """What overlap would give where it is not advised, in words."""
        if self.unadvised_strategy is None:
            return ""
        gains = self.unadvised_speedup, self.unadvised_speedup_low, self.unadvised_speedup_high
        return page.against(self.unadvised_strategy, *(gain for gain in gains if gain is not None))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        more = {name: getattr(self, name) for name in ("overlap", "sure", "serial_s", "fall_back_nbytes")}
        return asdict(self) | more

    def __str__(self) -> str:
        return page.pair_text(self)


class _Found(NamedTuple):
    """What was found for a pair, row ``row`` of the options."""

    row: int
    fastest: int  # column of the fastest way to overlap
    overlap: bool  # whether that gains
    limits: list[str]  # what the fastest loses most to, in words
    overlap_from_nbytes: int | None
    dma_from_nbytes: int | None


def advise(
    gemm: Gemm, collective: Collective, node: Node | str = "mi300x_8", strategies: Sequence[str] | None = None
) -> Advice:
    """What to do with ``gemm`` and ``collective`` on one GPU of ``node``, by the model and its measured error.

    ``strategies``: those that your program can run (default: all), such as ``["c3_base", "c3_sp"]`` where nothing
    drives DMA engines.

    Raises:
        C3Error: unknown node or strategy, or a collective among more ranks than the node has.
    """
    return advise_all([Scenario("advised", gemm, collective)], node, strategies)[0]


def advise_all(
    scenarios: Sequence[Scenario],
    node: Node | str = "mi300x_8",
    strategies: Sequence[str] | None = None,
    *,
    groups: Sequence[int] | None = None,
) -> list[Advice]:
    """:func:`advise` for many pairs at once, in the order given.

    ``groups`` numbers from 0 the pairs that are pieces of one collective beside one GEMM after another: it is run one
    way, so they get one strategy, and the fall-back sizes are those of the whole.
    """
    there = load_node(node) if isinstance(node, str) else node
    for scenario in scenarios:
        there.check_ranks(scenario.collective.ranks)
    if not scenarios:
        return []
    names = offered(strategies)
    if not names:
        raise C3Error("strategies: name at least one")
    member = np.arange(len(scenarios)) if groups is None else np.asarray(groups, int)
    found = options(scenarios, there, names)
    pays = best(found, member)[member] >= 0
    # Why not: what the fastest of them loses. So the reason of serial is told of a strategy too.
    nearest = fastest(found, member)[member]
    sizes = np.array([scenario.collective.nbytes for scenario in scenarios], float)
    whole = total(sizes, member)[member]
    shares = np.divide(sizes, whole, out=np.ones_like(sizes), where=whole > 0)
    from_overlap, from_dma = (part[member] for part in break_even(scenarios, there, names, shares, member))
    limits = _limits(scenarios, there, found, nearest)
    of = margin(there)
    rows = zip(scenarios, nearest, pays, limits, from_overlap, from_dma, strict=True)
    return [
        _advice(pair, there, found, of, _Found(row, int(near), bool(gains), lost, int(every) or None, int(dma) or None))
        for row, (pair, near, gains, lost, every, dma) in enumerate(rows)
    ]


def _advice(scenario: Scenario, node: Node, every: Options, of: Margin, found: _Found) -> Advice:
    row, overlap, sends = found.row, found.overlap, scenario.collective.sent_bytes > 0
    fastest = every.strategies[found.fastest]
    name = fastest if overlap else SERIAL
    gemm_s, collective_s = float(every.gemm_alone_s[row]), float(every.collective_alone_s[row])
    serial_s, fastest_s = gemm_s + collective_s, float(every.time_s[row, found.fastest])
    time_s = fastest_s if overlap else serial_s
    longer_s = max(gemm_s, collective_s)
    lost = found.limits if fastest_s - longer_s > NOTHING * longer_s else []
    # Of what is advised, or is advised against.
    low, high, source = of.factors(fastest, longer_s)
    unadvised: dict[str, Any] = {}
    if sends and not overlap:
        gain = serial_s / fastest_s
        unadvised = {"unadvised_strategy": fastest, "unadvised_speedup": gain}
        unadvised |= {"unadvised_speedup_low": gain * low, "unadvised_speedup_high": gain * high}
    return Advice(
        node=node.name,
        gemm=scenario.gemm,
        collective=scenario.collective,
        strategy=name,
        dma=overlap and STRATEGIES[name].transport == "dma",
        cus_reserved=int(every.cus[row, found.fastest]) if overlap else 0,
        gemm_alone_s=gemm_s,
        collective_alone_s=collective_s,
        time_s=time_s,
        speedup=serial_s / time_s,
        speedup_low=serial_s / time_s * low if overlap else 1.0,
        speedup_high=serial_s / time_s * high if overlap else 1.0,
        overlap_from_nbytes=found.overlap_from_nbytes,
        dma_from_nbytes=found.dma_from_nbytes,
        reason=_reason(name, fastest, lost) if sends else NO_BYTES,
        uncertainty=source if overlap or unadvised else "",
        **unadvised,
    )


def _reason(name: str, fastest: str, lost: Sequence[str]) -> str:
    """Why a strategy, or serial, of pairs that send bytes; ``lost``: what the fastest loses time to."""
    if name == SERIAL:
        why = f"it loses to {lost[0]}" if lost else "the shorter of the two is too short to matter"
        return f"Even the fastest way to overlap, {fastest}, gains nothing by the model: {why}."
    rest = f"what is lost goes to {' and '.join(lost[:2])}" if lost else "next to nothing is lost"
    return f"{_HOW[name][0].upper()}{_HOW[name][1:]}; {rest}."


def _limits(scenarios: Sequence[Scenario], node: Node, found: Options, columns: NDArray) -> list[list[str]]:
    """Mechanisms that the lost time of each pair under its strategy is due to, in words, largest first."""
    limits: list[list[str]] = [[] for _ in scenarios]
    titles = list(BLAME_TITLES.values())
    for column in np.unique(columns):
        rows = np.flatnonzero(columns == column)
        how = STRATEGIES[found.strategies[column]]
        cus = found.cus[rows, column] if how.partition != "none" else None
        blame = np.stack(
            list(blame_s(*batch([scenarios[int(row)] for row in rows], node), node, how, cus=cus).values())
        )
        lost = blame.sum(axis=0)
        for row, parts, whole in zip(rows, blame.T, lost, strict=True):
            if whole > 0:
                limits[row] = [titles[index] for index in np.argsort(-parts) if parts[index] >= MATTERS * whole]
    return limits
