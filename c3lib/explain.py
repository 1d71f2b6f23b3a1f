"""One scenario under every strategy: how long it takes, which resource the lost time is due to, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from c3lib import metrics
from c3lib.hardware import Node, load_node
from c3lib.model.blame import BLAME_TITLES, blame_s
from c3lib.model.contention import predict, split_sweep
from c3lib.model.kernels import batch
from c3lib.strategy import STRATEGIES, Strategy
from c3lib.terminal import number, paragraph, table
from c3lib.workload import Collective, Gemm, Scenario, format_size, length_class

if TYPE_CHECKING:
    import pandas

EVIDENCE = "modelled"

SHORT_TITLES = {
    "cu": "CUs taken",
    "hbm": "bandwidth shared",
    "queueing": "memory latency",
    "cache": "evicted tiles",
    "link": "link rate",
    "launch": "start-up",
    "dispatch": "dispatch order",
}
"""Mechanisms in a table's few words; in full: :data:`c3lib.model.blame.BLAME_TITLES`."""

MATTERS = 0.1
"""Share of the lost time below which the text leaves a mechanism out."""

NOTHING = 0.005
"""Lost time as a share of the longer kernel below which the text calls it nothing; also the smallest gain worth it."""


@dataclass(frozen=True)
class Outcome:
    """One strategy: times in seconds, CU counts, slowdowns (concurrent end over time alone), lost time by mechanism."""

    strategy: str
    oracle: bool
    time_s: float
    speedup: float
    fraction_of_ideal: float  # NaN where overlap has nothing to gain
    gemm_slowdown: float
    collective_slowdown: float  # NaN for a collective that sends nothing
    cus_taken: float
    lost_s: float  # time_s - max(gemm_alone_s, collective_alone_s); negative: faster than the longer one alone
    blame_s: Mapping[str, float]  # by mechanism, sums to lost_s

    def blame_shares(self) -> dict[str, float]:
        """Mechanisms that matter, as shares of the lost time, largest first; none where nothing to speak of is lost."""
        shares = {name: value / self.lost_s for name, value in self.blame_s.items()} if self.lost_s > 0 else {}
        return dict(sorted(((n, s) for n, s in shares.items() if abs(s) >= MATTERS), key=lambda item: -item[1]))


@dataclass(frozen=True)
class Explanation:
    """A GEMM beside a collective on a node, by the contention model; ``print`` it for the table and the advice."""

    node: str
    gemm: Gemm
    collective: Collective
    bound: str  # of the GEMM: "compute" or "memory"
    length_class: str
    gemm_alone_s: float
    collective_alone_s: float
    ideal: float  # speedup over serial if neither slowed the other
    outcomes: tuple[Outcome, ...]
    evidence: str = EVIDENCE

    @property
    def serial_s(self) -> float:
        """Both, one after the other, in seconds."""
        return self.gemm_alone_s + self.collective_alone_s

    @property
    def best(self) -> Outcome:
        """The fastest strategy that a program can choose beforehand (no oracle); of equals the simplest."""
        return min((row for row in self.outcomes if not row.oracle), key=lambda row: row.time_s)

    @property
    def table(self) -> pandas.DataFrame:
        """One row a strategy: the fields of :class:`Outcome`, the blame as columns ``blame_<mechanism>_s``."""
        import pandas

        return pandas.DataFrame([self._flat(row) for row in self.outcomes])

    @property
    def advice(self) -> str:
        """One sentence: which strategy, what it gains over serial, what limits it; or not to overlap at all."""
        best = self.best
        if self.collective_alone_s == 0:
            return "Nothing to overlap: the collective sends no bytes."
        limits = [BLAME_TITLES[name] for name, share in best.blame_shares().items() if share > 0]
        if best.speedup < 1 + NOTHING:
            change = f"takes {best.time_s / self.serial_s:.2f}x as long" if best.speedup < 1 else "gains nothing"
            because = "the shorter one is too short to matter" if self._lost_little(best) or not limits else limits[0]
            return f"Do not overlap, run one after the other: even the fastest, {best.strategy}, {change} ({because})."
        share = f"{best.fraction_of_ideal * 100:.0f} % of what overlap could gain"
        if best.fraction_of_ideal > 1 + NOTHING:  # ideal is the library's own time; another transport can beat it
            share = "more than overlap alone could gain, as the DMA engines move the bytes faster than the library"
        text = f"Use {best.strategy}: {best.speedup:.2f}x over serial, {share}"
        if self._lost_little(best) or not limits:
            return f"{text}; next to nothing is lost."
        return f"{text}; the rest is lost to {' and '.join(limits[:2])}."

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON; NaN stands where a ratio does not exist."""
        content = {
            name: getattr(self, name)
            for name in ("evidence", "node", "bound", "length_class", "gemm_alone_s", "collective_alone_s")
        }
        return {
            **content,
            "gemm": asdict(self.gemm),
            "collective": asdict(self.collective),
            "serial_s": self.serial_s,
            "ideal": self.ideal,
            "strategies": [self._flat(row) for row in self.outcomes],
            "best": self.best.strategy,
            "advice": self.advice,
        }

    def __str__(self) -> str:
        title = (
            f"{self.gemm} {self.gemm.dtype} beside {self.collective.kind} of {format_size(self.collective.nbytes)} "
            f"over {self.collective.ranks} ranks on {self.node} ({self.evidence})"
        )
        alone = (
            f"alone: GEMM {self.gemm_alone_s * 1e3:.3f} ms ({self.bound}-bound), collective "
            f"{self.collective_alone_s * 1e3:.3f} ms ({self.length_class}); serial {self.serial_s * 1e3:.3f} ms, "
            f"ideal {self.serial_s / self.ideal * 1e3:.3f} ms"
        )
        head = ("strategy", "time ms", "of ideal", "GEMM", "coll.", "CUs", "lost ms", "lost to, % of lost time")
        serial = ("serial", f"{self.serial_s * 1e3:.3f}", "0.00", "1.00x", "1.00x", None, None, "")
        rows = [serial, *(self._shown(row) for row in self.outcomes)]
        notes = ["GEMM, coll.: times as long as alone. CUs: taken from the GEMM while the collective runs."]
        if any(row.oracle for row in self.outcomes):
            notes.append("* oracle: the best CU split of a sweep, known only afterwards.")
        if any(share < 0 for row in self.outcomes for share in row.blame_shares().values()):
            notes.append("A negative share is a gain.")
        return "\n".join(
            [paragraph(title), paragraph(alone), "", table(head, rows), *notes, "", paragraph(self.advice)]
        )

    def _lost_little(self, row: Outcome) -> bool:
        return row.lost_s < NOTHING * max(self.gemm_alone_s, self.collective_alone_s)

    def _shown(self, row: Outcome) -> tuple[str | None, ...]:
        shares = [f"{SHORT_TITLES[name]} {share * 100:.0f}" for name, share in row.blame_shares().items()]
        slowed = number(row.collective_slowdown, ".2f")
        return (
            row.strategy + (" *" if row.oracle else ""),
            f"{row.time_s * 1e3:.3f}",
            number(row.fraction_of_ideal, ".2f"),
            f"{row.gemm_slowdown:.2f}x",
            slowed and f"{slowed}x",
            f"{row.cus_taken:.0f}",
            f"{round(row.lost_s * 1e3, 3) + 0:.3f}",  # + 0: no "-0.000"
            ", ".join(shares) if not self._lost_little(row) else "next to nothing" if row.lost_s > -1e-9 else "a gain",
        )

    @staticmethod
    def _flat(row: Outcome) -> dict[str, Any]:
        content = {name: value for name, value in vars(row).items() if name != "blame_s"}
        return content | {f"blame_{name}_s": value for name, value in row.blame_s.items()}


def explain(gemm: Gemm, collective: Collective, node: Node | str = "mi300x_8") -> Explanation:
    """What happens when ``gemm`` and ``collective`` run beside each other on one GPU of ``node``, by the model.

    Raises:
        C3Error: unknown node, or a collective among more ranks than the node has.
    """
    node = load_node(node) if isinstance(node, str) else node
    node.check_ranks(collective.ranks)
    scenario = Scenario("explained", gemm, collective)
    alone = predict(*batch([scenario], node), node, STRATEGIES["c3_base"])
    times = float(alone.gemm_alone_s[0]), float(alone.collective_alone_s[0])
    return Explanation(
        node=node.name,
        gemm=gemm,
        collective=collective,
        bound=gemm.bound(node.gpu),
        length_class=length_class(*times),
        gemm_alone_s=times[0],
        collective_alone_s=times[1],
        ideal=float(metrics.ideal_speedup(*times)),
        outcomes=tuple(_outcome(scenario, node, how) for how in STRATEGIES.values()),
    )


def _outcome(scenario: Scenario, node: Node, how: Strategy) -> Outcome:
    one, cus = batch([scenario], node), None
    if how.partition == "sweep":
        # The whole sweep as one batch: many times faster than split after split.
        splits = np.array(split_sweep(node))
        cus = splits[predict(*batch([scenario] * len(splits), node), node, how, cus=splits).time_s.argmin()]
    result = predict(*one, node, how, cus=cus)
    alone = result.gemm_alone_s[0], result.collective_alone_s[0]
    speedup = metrics.realised_speedup(*alone, result.time_s[0])
    return Outcome(
        strategy=how.name,
        oracle=how.oracle,
        time_s=float(result.time_s[0]),
        speedup=float(speedup),
        fraction_of_ideal=float(metrics.fraction_of_ideal(speedup, metrics.ideal_speedup(*alone))),
        gemm_slowdown=float(result.gemm_end_s[0] / alone[0]),
        collective_slowdown=float(result.collective_end_s[0] / alone[1]) if alone[1] > 0 else float("nan"),
        cus_taken=float(result.cus_taken[0]),
        lost_s=float(metrics.lost_time(*alone, result.time_s[0])),
        blame_s={name: float(value[0]) for name, value in blame_s(*one, node, how, cus=cus).items()},
    )


class _CallableModule(ModuleType):
    """Once a module is loaded, Python binds its name in the package: ``c3lib.explain`` must stay callable then."""

    def __call__(self, gemm: Gemm, collective: Collective, node: Node | str = "mi300x_8") -> Explanation:
        return explain(gemm, collective, node)


sys.modules[__name__].__class__ = _CallableModule
