"""What was measured as a backend: rows of ``data/measured/<node>/<suite>.csv`` given back, on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

import numpy as np

from c3lib.backends.base import AD_HOC, Timings
from c3lib.errors import C3Error
from c3lib.hardware import Node
from c3lib.measured import FOLDER, read_measured, table_path
from c3lib.strategy import Strategy
from c3lib.workload import Scenario

_KEYS = ("scenario", "strategy", "repetition")


class Replay:
    """Gives each scenario, strategy and repetition back as it was measured: no device, no chance, no model.

    Raises:
        C3Error: scenarios of no suite, or a suite that was not measured on the node.
    """

    name = "replay"
    evidence = "measured"
    deterministic = True

    def __init__(self, node: Node, suite: str = AD_HOC, folder: Path = FOLDER) -> None:
        if suite == AD_HOC:
            raise C3Error("backend replay: needs a suite by its name, as measured rows are stored by suite")
        frame, _ = read_measured(node.name, suite, folder)
        self._table = table_path(node.name, suite, folder)
        if not {*_KEYS, *Timings.MAIN} <= set(frame):
            raise C3Error(f"{self._table}: is no table of a suite under strategies, so it cannot be replayed")
        records = frame.to_dict(orient="records")
        self._rows: dict[tuple, dict[str, Any]] = {tuple(row[key] for key in _KEYS): row for row in records}
        if len(self._rows) < len(records):
            raise C3Error(f"{self._table}: a scenario, strategy and repetition stands there twice")

    def run(self, scenarios: Sequence[Scenario], strategy: Strategy, repetition: int) -> Timings:
        """Timings as measured.

        Raises:
            C3Error: a scenario, strategy or repetition that was not measured, or a scenario that the suite now
                describes otherwise than it did then.
        """
        rows = [self._row(scenario, strategy.name, repetition) for scenario in scenarios]
        arrays: Any = {name: np.array([row[name] for row in rows]) for name in Timings.MAIN}
        return Timings(**arrays, path=[row["path"] for row in rows])

    def _row(self, scenario: Scenario, strategy: str, repetition: int) -> dict[str, Any]:
        row = self._rows.get((scenario.name, strategy, repetition))
        if row is None:
            raise C3Error(f"{self._table}: {self._lacks(scenario.name, strategy)}")
        gemm, collective = scenario.gemm, scenario.collective
        now = (str(gemm), gemm.dtype, collective.kind, collective.nbytes, collective.ranks)
        then = tuple(row[name] for name in ("gemm", "dtype", "collective", "total_bytes", "ranks"))
        if now != then:
            was, is_now = (" ".join(map(str, what)) for what in (then, now))
            raise C3Error(f"{self._table}: {scenario.name!r} was measured as {was}, the suite now says {is_now}")
        return row

    def _lacks(self, scenario: str, strategy: str) -> str:
        """Why a row is not there."""
        strategies = {how for name, how, _ in self._rows if name == scenario}
        if not strategies:
            return f"scenario {scenario!r} was not measured"
        if strategy not in strategies:
            return f"{scenario!r} was not measured under {strategy}; there is {', '.join(sorted(strategies))}"
        times = sum((name, how) == (scenario, strategy) for name, how, _ in self._rows)
        return f"{scenario!r} under {strategy} was measured {times} times, so repeats must be at most {times}"
