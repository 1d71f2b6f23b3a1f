"""Runs a suite under strategies on a backend and returns tidy rows (:data:`c3lib.schema.RESULTS`)."""

from __future__ import annotations

import random
from collections import Counter
from typing import Iterable, Sequence

import numpy as np
import pandas as pd

from c3lib import metrics
from c3lib.backends.base import AD_HOC, Backend, Timings, open_backend
from c3lib.errors import C3Error
from c3lib.hardware import Node, load_node
from c3lib.results import require_compared
from c3lib.strategy import STRATEGIES, Strategy, strategy
from c3lib.suites import load_suite, require_sized
from c3lib.workload import Scenario, length_class, whole


def run_suite(
    node: str | Node = "mi300x_8",
    suite: str | Sequence[Scenario] = "conccl30",
    strategies: Iterable[str] = tuple(STRATEGIES),
    backend: str = "model",
    repeats: int = 1,
    seed: int = 0,
) -> pd.DataFrame:
    """One row a scenario, strategy and repetition.

    A model is run once whatever ``repeats`` says: repeating it would only look like evidence. A backend on which
    chance has a say runs all arms interleaved, in an order shuffled by ``seed``.

    Raises:
        C3Error: unknown node, suite, strategy or backend; ``repeats`` below 1; an empty suite; a scenario name or a
            strategy given twice; a collective of more ranks than the node has; on a device a suite sized for other
            links.
    """
    repeats = whole("repeats", repeats, least=1)
    node = load_node(node) if isinstance(node, str) else node
    label = suite if isinstance(suite, str) else AD_HOC
    scenarios = load_suite(suite, node.ranks) if isinstance(suite, str) else list(suite)
    chosen = [strategy(name) for name in strategies]
    if not scenarios or not chosen:
        raise C3Error("run: needs at least one scenario and one strategy")
    _refuse_twice("scenario", [scenario.name for scenario in scenarios])
    _refuse_twice("strategy", [how.name for how in chosen])
    for scenario in scenarios:
        node.check_ranks(scenario.collective.ranks, f"run: scenario {scenario.name!r}")
    if backend != "model":  # a model can be asked about any sizes; what is measured stands for a suite on a node
        require_sized(label, node)
    runner = open_backend(backend, node, label)
    frames = [
        rows_of(node, label, runner, part, how, repetition, runner.run(part, how, repetition))
        for part, how, repetition in _arms(runner, scenarios, chosen, repeats, seed)
    ]
    order = {scenario.name: index for index, scenario in enumerate(scenarios)}
    rank = {how.name: index for index, how in enumerate(chosen)}
    frame = pd.concat(frames, ignore_index=True)
    keys = pd.DataFrame({"a": frame["scenario"].map(order), "b": frame["strategy"].map(rank), "c": frame["repetition"]})
    return frame.loc[keys.sort_values(["a", "b", "c"]).index].reset_index(drop=True)


def _refuse_twice(what: str, names: list[str]) -> None:
    """Rows are known by these names: two arms of one name would be merged into one mean."""
    for name, times in Counter(names).items():
        if times > 1:
            raise C3Error(f"run: {what} {name!r} is given {times} times")


def _arms(
    backend: Backend, scenarios: list[Scenario], strategies: list[Strategy], repeats: int, seed: int
) -> list[tuple[list[Scenario], Strategy, int]]:
    if backend.deterministic:
        turns = repeats if backend.evidence == "measured" else 1
        return [(scenarios, how, turn) for how in strategies for turn in range(turns)]
    # Scenario by scenario, because setting one up moves gigabytes; inside, every repetition is a shuffled round.
    rng = random.Random(seed)
    arms = []
    for scenario in rng.sample(scenarios, len(scenarios)):
        for turn in range(repeats):
            arms += [([scenario], how, turn) for how in rng.sample(strategies, len(strategies))]
    return arms


def rows_of(
    node: Node, suite: str, backend: Backend, scenarios: list[Scenario], how: Strategy, repetition: int, times: Timings
) -> pd.DataFrame:
    """What a backend gave for one arm as tidy rows, with the metrics worked out."""
    ideal = metrics.ideal_speedup(times.gemm_alone_s, times.collective_alone_s)
    speedup = metrics.realised_speedup(times.gemm_alone_s, times.collective_alone_s, times.concurrent_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowed = np.where(times.collective_alone_s > 0, times.collective_end_s / times.collective_alone_s, np.nan)
    return pd.DataFrame(
        {
            "node": node.name,
            "suite": suite,
            "backend": backend.name,
            "evidence": backend.evidence,
            "scenario": [scenario.name for scenario in scenarios],
            "gemm": [str(scenario.gemm) for scenario in scenarios],
            "dtype": [scenario.gemm.dtype for scenario in scenarios],
            "bound": [scenario.gemm.bound(node.gpu) for scenario in scenarios],
            "collective": [scenario.collective.kind for scenario in scenarios],
            "ranks": [scenario.collective.ranks for scenario in scenarios],
            "total_bytes": [scenario.collective.nbytes for scenario in scenarios],
            "rank_bytes": [scenario.collective.rank_bytes for scenario in scenarios],
            "length_class": [
                length_class(*pair) for pair in zip(times.gemm_alone_s, times.collective_alone_s, strict=True)
            ],
            "strategy": how.name,
            "oracle": how.oracle,
            "repetition": repetition,
            "cus_taken": times.cus_taken,
            "gemm_alone_s": times.gemm_alone_s,
            "collective_alone_s": times.collective_alone_s,
            "gemm_end_s": times.gemm_end_s,
            "collective_end_s": times.collective_end_s,
            "concurrent_s": times.concurrent_s,
            "ideal": ideal,
            "speedup": speedup,
            "fraction_of_ideal": metrics.fraction_of_ideal(speedup, ideal),
            "gemm_slowdown": times.gemm_end_s / times.gemm_alone_s,
            "collective_slowdown": slowed,
            "unstable_ideal": ideal < metrics.UNSTABLE_IDEAL,
            "verified": times.verified,
            "path": times.path,
            **times.more,
        }
    )


def summarise(rows: pd.DataFrame, by: Sequence[str] = ("strategy",), seed: int = 0) -> pd.DataFrame:
    """Means over scenarios with a bootstrap 95 % interval, one row a group, in order of first appearance.

    Repetitions are first reduced to their median. Columns: ``by``, ``scenarios``, ``fraction_of_ideal`` (mean F),
    ``low``, ``high`` (interval of the mean), ``fraction_of_means``, ``speedup`` (mean S), ``speedup_max``, ``ideal``
    (mean I), ``oracle``, ``evidence``.

    Raises:
        C3Error: rows of two nodes, suites, backends or kinds of evidence that ``by`` does not keep apart; rows that a
            device ran and that failed their byte check.
    """
    apart = ["node", "suite", "backend", "evidence"]
    for name in apart:
        if name not in by and rows[name].nunique() > 1:
            raise C3Error(f"results: a mean over more than one {name}: {', '.join(sorted(rows[name].unique()))}")
    require_compared(rows)
    arms = [*apart, "scenario", "strategy"]
    numbers = ["fraction_of_ideal", "speedup", "ideal"]
    keep = [name for name in dict.fromkeys([*by, "oracle"]) if name not in arms]
    per_scenario = rows.groupby(arms, sort=False).agg(
        {**dict.fromkeys(numbers, "median"), **dict.fromkeys(keep, "first")}
    )
    table = []
    for key, group in per_scenario.reset_index().groupby(list(by), sort=False):
        fractions = group["fraction_of_ideal"].dropna()
        low, high = metrics.bootstrap_interval(fractions, seed=seed) if len(fractions) else (np.nan, np.nan)
        table.append(
            {
                **dict(zip(by, key, strict=True)),
                "scenarios": len(group),
                "fraction_of_ideal": fractions.mean(),
                "low": low,
                "high": high,
                "fraction_of_means": metrics.fraction_of_mean_ideal(group["speedup"], group["ideal"]),
                "speedup": group["speedup"].mean(),
                "speedup_max": group["speedup"].max(),
                "ideal": group["ideal"].mean(),
                "oracle": bool(group["oracle"].any()),
                "evidence": group["evidence"].iloc[0],
            }
        )
    return pd.DataFrame(table)
