"""What claims about finer-grain overlap are evaluated on: the paper's rows on the model, and choices of a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from c3lib.hardware import Node

UNSEEN = 300
"""Random problems that the choice is scored on, none of them one of the paper's rows."""


@dataclass(frozen=True)
class Finer:
    """A node; communication on DMA engines throughout, as the paper has it."""

    node: Node

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The paper's rows under every schedule, by the model (:func:`c3lib.finer.schedule_rows`)."""
        from c3lib.ficco.sets import PAPER_SET, load_problems
        from c3lib.finer import schedule_rows

        return schedule_rows(self.node, load_problems(PAPER_SET, self.node.ranks), ("dma",))

    def largest_ideal(self) -> float:
        """Largest ``(Tg + Tc) / max(Tg, Tc)`` over the rows."""
        return float(self.rows["ideal"].max())

    def largest_chosen(self) -> float:
        """Largest speedup over ``serial`` of the schedule that the heuristic chooses among the four."""
        from c3lib.ficco import FINER
        from c3lib.ficco.sets import PAPER_SET, load_problems
        from c3lib.schedule_choice import choose

        found = self.rows.set_index(["problem", "schedule"])["speedup"]
        problems = load_problems(PAPER_SET, self.node.ranks)
        return max(found[row.name, choose(row.problem, self.node, "dma", FINER).schedule] for row in problems)

    def largest_penalty(self) -> float:
        """Largest ratio over the rows: bytes from one peer at a time over the same bytes from all at once."""
        from c3lib.ficco import build
        from c3lib.ficco.sets import PAPER_SET, load_problems
        from c3lib.model.pieces import lanes

        problems = [row.problem for row in load_problems(PAPER_SET, self.node.ranks)]
        single, whole = (
            [
                sum(both.start_s) + sum(both.exchange_s)
                for both in lanes([build(name, item) for item in problems], self.node, "dma")
            ]
            for name in ("shard_p2p", "serial")
        )
        return max(one / every for one, every in zip(single, whole, strict=True))

    @cached_property
    def choices(self) -> pd.DataFrame:
        """The heuristic's choices among the four on unseen problems, against exhaustive search on the model."""
        from c3lib.ficco import FINER
        from c3lib.ficco.sets import random_problems
        from c3lib.schedule_score import score

        scored = score(self.node, random_problems(UNSEEN, self.node), "dma", FINER)
        return scored[scored["policy"] == "rule"]

    def hit_fraction(self) -> float:
        """Share of unseen problems in which the choice is the best."""
        return float(self.choices["right"].mean())

    def loss_when_wrong(self) -> float:
        """Mean loss of time where it is not."""
        return float(self.choices.loc[~self.choices["right"], "loss"].mean())

    def schedules(self) -> float:
        """Schedules that the choice is made among."""
        from c3lib.ficco import FINER

        return float(len(FINER))

    def piece_over_shard(self) -> float:
        """Bytes of the largest piece that a finer schedule moves over what ``serial`` moves from a peer."""
        from c3lib.ficco import FINER, build
        from c3lib.ficco.graph import COPY
        from c3lib.ficco.sets import PAPER_SET, load_problems

        problem = load_problems(PAPER_SET, self.node.ranks)[0].problem
        shard = max(task.a.elements for task in build("serial", problem).of(COPY))
        return max(task.a.elements for task in build(FINER[0], problem).of(COPY)) / shard

    def gemm_rows(self) -> float:
        """GEMM rows of the paper's set."""
        return float(self.rows["problem"].nunique())
