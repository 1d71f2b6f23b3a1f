"""How far the model's speedups were from the measured ones: the interval around what the advisor expects.

A point is a measured configuration (:func:`c3lib.judge.cases`): its measured speedup over serial, over the one that the
model gives from the node's constants alone, which is all that the advisor knows. The interval of a strategy spans its
ratios, less as many of the extreme GEMMs as :data:`LEVEL` leaves (as in split conformal prediction; points of one GEMM
are not independent of each other), or a little beyond the span where there are too few GEMMs to leave any.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from c3lib import metrics
from c3lib.errors import C3Error
from c3lib.hardware import Node, load_node, node_names
from c3lib.judge import cases, isolated_rows, measured_suites, predict_rows
from c3lib.measured import FOLDER, measured_nodes, read_measured
from c3lib.model import kernels
from c3lib.predicted import FOLDER as PREDICTED
from c3lib.predicted import read_predicted
from c3lib.strategy import STRATEGIES, Strategy
from c3lib.workload import Collective, Gemm, Scenario

LEVEL = 0.90
"""Share of further GEMMs that an interval is to cover."""

WIDER = 1.5
"""Exponent on a carried factor (ours): two nodes of one maker say less of a third than of themselves."""

REACH = 4
"""Pairs that are this many times shorter than the shortest measured one, or longer than the longest, are beyond it."""


@dataclass(frozen=True)
class Margin:
    """Factors on a modelled speedup, by strategy; ``carried``: from other nodes, as this one was not measured.

    ``reach_s``: how short and how long a pair's longer kernel may take alone; beyond it the factors are too narrow.
    """

    low: Mapping[str, float]
    high: Mapping[str, float]
    reach_s: tuple[float, float]
    nodes: tuple[str, ...]  # that were measured
    scenarios: int
    carried: bool

    def factors(self, strategy: str, longer_s: float) -> tuple[float, float, str]:
        """Low and high for a pair whose longer kernel takes ``longer_s`` alone, and where they come from, in words."""
        where = " and ".join(self.nodes)
        source = f"from the model's error on {self.scenarios} scenarios measured on {where}"
        if self.carried:
            source = (
                f"nothing was measured on this node: carried over from {where}, wider than the model's errors there "
                "and before those were measured"
            )
        low, high = self.low[strategy], self.high[strategy]
        if self.reach_s[0] <= longer_s <= self.reach_s[1]:
            return low, high, source
        beyond = f"{'shorter' if longer_s < self.reach_s[0] else 'longer'} than anything measured, so widened"
        return *_wider(low, high), f"{source}; this pair is much {beyond}"


def margin(node: Node) -> Margin:
    """The interval for a node: from its own measured suite, or carried over from the nodes that have one.

    A node whose constants were changed is no longer the one that was measured.
    """
    own = node.name in node_names() and node.constants == load_node(node.name).constants
    return _margin(node.name if own and node.name in suites() else "")


@functools.cache
def _margin(name: str) -> Margin:
    return own_margin(points(name), name) if name else carried_margin(suites())


def own_margin(rows: pd.DataFrame, name: str) -> Margin:
    """From the points of one node."""
    found = {str(how): interval(part) for how, part in rows.groupby("strategy")}
    wide = interval(rows)
    found |= {how: wide for how in STRATEGIES if how not in found}  # not measured: as wide as any
    return _of(found, rows, (name,), carried=False)


def carried_margin(names: Iterable[str]) -> Margin:
    """For a node without measurements, from those of ``names``: wider than any of theirs.

    Which strategies the model misjudges differs from node to node, so strategies that are alike (one transport, with
    CUs set aside or not) share one interval. It spans every node's own, and how far the model was from a suite before
    that node had been measured, which is how far it is from a new one, and is widened by :data:`WIDER`.
    """
    names = tuple(names)
    if not names:
        raise C3Error("advise: no suite was measured on any node, so the model's error is not known")
    kept = [rows for name in names for rows in (points(name), points_before(name)) if len(rows)]
    found = {}
    for how, row in STRATEGIES.items():
        alike = [name for name, other in STRATEGIES.items() if _kind(other) == _kind(row)]
        spans = [interval(rows[rows["strategy"].isin(alike)]) for rows in kept]
        found[how] = _wider(min(low for low, _ in spans), max(high for _, high in spans))
    return _of(found, pd.concat(kept), names, carried=True)


def _wider(low: float, high: float) -> tuple[float, float]:
    """Factors further from 1, which lies between them then."""
    return min(low, 1.0) ** WIDER, max(high, 1.0) ** WIDER


def _kind(how: Strategy) -> tuple[str, bool]:
    """By what moves the bytes, and whether some CUs are set aside for that."""
    return how.transport, how.partition == "sweep"


def _of(found: Mapping[str, tuple[float, float]], rows: pd.DataFrame, names: tuple[str, ...], carried: bool) -> Margin:
    low, high = ({how: pair[side] for how, pair in found.items()} for side in (0, 1))
    reach = float(rows["longer_s"].min()) / REACH, float(rows["longer_s"].max()) * REACH
    count = rows.groupby("node")["scenario"].nunique().sum()
    return Margin(MappingProxyType(low), MappingProxyType(high), reach, names, int(count), carried)


def interval(rows: pd.DataFrame) -> tuple[float, float]:
    """The span of ``ratio`` over GEMMs, of each one's lowest and highest, that covers :data:`LEVEL` of further GEMMs.

    The extremes of ``n`` draws cover ``(n - 1) / (n + 1)`` of further draws on average. Where that is too little, the
    span is widened as if draws were spread evenly over it; where it is too much, extremes are left out.
    """
    ends = rows.groupby("gemm")["ratio"].agg(["min", "max"])
    count = len(ends)
    rank = max(1, int((count + 1) * (1 - LEVEL) / 2))
    low, high = np.log(np.sort(ends["min"])[rank - 1]), np.log(np.sort(ends["max"])[-rank])
    more = max(0.0, LEVEL * (count + 1) / max(1, count - 1) - 1) / 2 * (high - low)
    return float(np.exp(low - more)), float(np.exp(high + more))


@functools.cache
def suites(folder: Path = FOLDER) -> tuple[str, ...]:
    """Nodes on which a suite was measured."""
    return tuple(name for name in measured_nodes(folder) if name in node_names() and measured_suites(name, folder))


@functools.cache
def points(name: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Every measured configuration of a node's suites and their sweeps.

    Columns: ``node, scenario, gemm, strategy, table``, ``longer_s`` (the longer kernel alone), ``measured`` and
    ``modelled`` (speedups over serial), and ``ratio``, the first over the second.
    """
    node = load_node(name)
    rows = pd.concat([cases(name, suite, folder) for suite in measured_suites(name, folder)], ignore_index=True)
    pairs = [
        Scenario(row.scenario, Gemm.parse(row.gemm, row.dtype), Collective(row.collective, row.total_bytes, row.ranks))
        for row in rows.itertuples()
    ]
    gemm, collective = kernels.batch(pairs, node)
    serial_s = kernels.gemm_time_s(gemm, node.gpu.cus, node) + kernels.library_time_s(collective, node)
    modelled = serial_s / predict_rows(isolated_rows(rows, node), node)
    found = rows[["node", "scenario", "gemm", "strategy", "table"]]
    return _ratios(found, rows["gemm_alone_s"], rows["collective_alone_s"], rows["measured_s"], modelled)


@functools.cache
def points_before(name: str, folder: Path = FOLDER, predicted: Path = PREDICTED) -> pd.DataFrame:
    """As :func:`points`, of suites alone, with what the model said before the node was measured; else no rows."""
    there = [suite for suite in measured_suites(name, folder) if (predicted / name / f"{suite}.csv").is_file()]
    parts = [_before(name, suite, folder, predicted) for suite in there]
    return pd.concat(parts, ignore_index=True) if parts else points(name, folder).head(0)


def _before(name: str, suite: str, folder: Path, predicted: Path) -> pd.DataFrame:
    keys = ["node", "scenario", "gemm", "strategy"]
    modelled = read_predicted(name, suite, predicted)[0].set_index(keys)["speedup"].rename("modelled")
    times = ["gemm_alone_s", "collective_alone_s", "concurrent_s"]
    medians = read_measured(name, suite, folder)[0].groupby(keys)[times].median()
    rows = medians.join(modelled, how="inner").reset_index()
    return _ratios(rows[keys].assign(table="suite"), *(rows[name] for name in (*times, "modelled")))


def _ratios(rows: pd.DataFrame, gemm_s: Any, collective_s: Any, both_s: Any, modelled: Any) -> pd.DataFrame:
    measured = metrics.realised_speedup(gemm_s, collective_s, both_s)
    longer = np.maximum(gemm_s, collective_s)
    return rows.assign(longer_s=longer, measured=measured, modelled=modelled, ratio=measured / modelled)


def covered(rows: pd.DataFrame, name: str) -> pd.Series:
    """Whether each point lies inside the interval that the points of all other GEMMs give."""
    inside = pd.Series(False, index=rows.index)
    for _, part in rows.groupby("gemm"):
        inside[part.index] = within(part, own_margin(rows.drop(part.index), name))
    return inside


def within(rows: pd.DataFrame, of: Margin) -> pd.Series:
    """Whether each point's ratio lies inside a margin."""
    return rows["ratio"].between(rows["strategy"].map(dict(of.low)), rows["strategy"].map(dict(of.high)))
