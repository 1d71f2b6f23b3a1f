"""Advice on one GEMM beside one collective: overlap or not, how, from which size on, the gain and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c3lib.advisor.margin import Margin, margin
from c3lib.advisor.options import SIZES, Options, best, break_even, fastest, offered, options, total
from c3lib.errors import C3Error
from c3lib.explain import EVIDENCE, MATTERS, NOTHING
from c3lib.hardware import Node, load_node
from c3lib.model.blame import BLAME_TITLES, blame_s
from c3lib.model.kernels import batch
from c3lib.strategy import STRATEGIES
from c3lib.terminal import WIDTH, paragraph
from c3lib.workload import Collective, Gemm, Scenario, format_size

SERIAL = "serial"
"""The strategy of not overlapping: the GEMM, then the library's collective."""

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
        parts = {"overlap gains something": self.overlap_from_nbytes}
        if self.overlap and self.dma_from_nbytes is not None:
            parts["DMA engines are the better way"] = self.dma_from_nbytes
        return "; ".join(f"{what} {self._from(size)}" for what, size in parts.items())

    @property
    def unadvised(self) -> str:
        """What overlap would give where it is not advised, in words."""
        if self.unadvised_strategy is None:
            return ""
        gains = self.unadvised_speedup, self.unadvised_speedup_low, self.unadvised_speedup_high
        return against(self.unadvised_strategy, *(gain for gain in gains if gain is not None))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        more = {name: getattr(self, name) for name in ("overlap", "sure", "serial_s", "fall_back_nbytes")}
        return asdict(self) | more

    def __str__(self) -> str:
        title = (
            f"{self.gemm} {self.gemm.dtype} beside {self.collective.kind} of {format_size(self.collective.nbytes)} "
            f"over {self.collective.ranks} ranks on {self.node} ({self.evidence})"
        )
        lines = {"advice": self._what(), "gain": self._gain(), "else": self.unadvised}
        lines |= {"fall back": self.fall_back, "why": self.reason}
        wide = max(map(len, lines)) + 2
        body = [
            paragraph(text, WIDTH - wide).replace("\n", "\n" + " " * wide).join([f"{name:<{wide}}", ""])
            for name, text in (lines | {"interval": self.uncertainty}).items()
            if text
        ]
        return "\n".join([paragraph(title), "", *body])

    def _what(self) -> str:
        if not self.overlap:
            return "do not overlap: run one after the other"
        moved = "by DMA engines" if self.dma else "by the library's kernels"
        kept = f"{self.cus_reserved} CUs withheld from the GEMM" if self.cus_reserved else "no CUs set aside"
        return f"overlap by {self.strategy}: the collective {moved}, {kept}"

    def _gain(self) -> str:
        if not self.overlap:
            return f"none; both take {self.serial_s * 1e3:.3f} ms"
        unsure = "" if self.sure else "; it may be none, so measure before you rely on it"
        return (
            f"{self.speedup:.2f}x over serial ({self.speedup_low:.2f}x to {self.speedup_high:.2f}x): "
            f"{self.time_s * 1e3:.3f} ms in place of {self.serial_s * 1e3:.3f} ms{unsure}"
        )

    @staticmethod
    def _from(size: int | None) -> str:
        if size is None:
            return "at no size"
        return f"from {format_size(size)} on" if size > SIZES[0] else f"from {format_size(size)} or less on"


def against(strategy: str, speedup: float, low: float, high: float) -> str:
    """What overlap would give where it is not advised, in words."""
    more = "; it may gain after all, so measure it where it matters" if high > 1 else ""
    return f"overlapped all the same, by {strategy}: {speedup:.2f}x over serial ({low:.2f}x to {high:.2f}x){more}"


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
    chosen = best(found, member)[member]
    # Why not: what the fastest of them loses. So the reason of serial is told of a strategy too.
    nearest = fastest(found, member)[member]
    sizes = np.array([scenario.collective.nbytes for scenario in scenarios], float)
    whole = total(sizes, member)[member]
    shares = np.divide(sizes, whole, out=np.ones_like(sizes), where=whole > 0)
    from_overlap, from_dma = (part[member] for part in break_even(scenarios, there, names, shares, member))
    limits = _limits(scenarios, there, found, nearest)
    of = margin(there)
    return [
        _advice(
            scenario,
            there,
            found,
            row,
            (int(chosen[row]), int(nearest[row])),
            of,
            limits[row],
            (int(from_overlap[row]) or None, int(from_dma[row]) or None),
        )
        for row, scenario in enumerate(scenarios)
    ]


def _advice(
    scenario: Scenario,
    node: Node,
    found: Options,
    row: int,
    columns: tuple[int, int],
    of: Margin,
    limits: list[str],
    sizes: tuple[int | None, int | None],
) -> Advice:
    chosen, nearest = columns
    name = SERIAL if chosen < 0 else found.strategies[chosen]
    gemm_s, collective_s = float(found.gemm_alone_s[row]), float(found.collective_alone_s[row])
    serial_s = gemm_s + collective_s
    time_s = serial_s if chosen < 0 else float(found.time_s[row, chosen])
    speedup = serial_s / time_s
    longer_s = max(gemm_s, collective_s)
    lost = float(found.time_s[row, nearest]) - longer_s > NOTHING * longer_s
    # Of what is advised, or is advised against.
    low, high, source = of.factors(found.strategies[nearest], longer_s)
    unadvised: dict[str, Any] = {}
    if chosen < 0 and scenario.collective.sent_bytes > 0:
        gain = serial_s / float(found.time_s[row, nearest])
        unadvised = {"unadvised_strategy": found.strategies[nearest], "unadvised_speedup": gain}
        unadvised |= {"unadvised_speedup_low": gain * low, "unadvised_speedup_high": gain * high}
    if chosen < 0:
        low, high, source = 1.0, 1.0, source if unadvised else ""
    if scenario.collective.sent_bytes == 0:
        reason = "The collective sends no bytes, so there is nothing to overlap."
    elif chosen < 0:
        why = f"it loses to {limits[0]}" if lost and limits else "the shorter of the two is too short to matter"
        reason = f"Even the fastest way to overlap, {found.strategies[nearest]}, gains nothing: {why}."
    else:
        rest = f"what is lost goes to {' and '.join(limits[:2])}" if lost and limits else "next to nothing is lost"
        reason = f"{_HOW[name][0].upper()}{_HOW[name][1:]}; {rest}."
    return Advice(
        node=node.name,
        gemm=scenario.gemm,
        collective=scenario.collective,
        strategy=name,
        dma=chosen >= 0 and STRATEGIES[name].transport == "dma",
        cus_reserved=0 if chosen < 0 else int(found.cus[row, chosen]),
        gemm_alone_s=gemm_s,
        collective_alone_s=collective_s,
        time_s=time_s,
        speedup=speedup,
        speedup_low=speedup * low,
        speedup_high=speedup * high,
        overlap_from_nbytes=sizes[0],
        dma_from_nbytes=sizes[1],
        reason=reason,
        uncertainty=source,
        **unadvised,
    )


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
