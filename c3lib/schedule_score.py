"""How good the choice of a schedule is: against exhaustive search on the model, and against what a device measured.

Beside the rule stand what anybody can do without one: always ``serial``, always the one schedule that is best over the
scored problems (picked in hindsight, so a high bar), and three tests of sizes (:func:`by_shape`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from c3lib.errors import C3Error
from c3lib.ficco import SCHEDULES, build
from c3lib.ficco.problem import Problem
from c3lib.ficco.sets import Row
from c3lib.hardware import Node
from c3lib.metrics import mean_interval, median_interval, share_interval
from c3lib.model.pieces import lanes
from c3lib.model.pipeline import simulate
from c3lib.schedule_choice import choose, thresholds
from c3lib.schedule_table import TRANSPORT_OF, problem_of, require_comparable

SAME = 1e-9
"""Rounding: two times that differ by less are the same."""

NEAR = 0.01
"""Behind the best by less than this share: nobody would notice."""

RIGHT_TARGET = 0.81
"""Share of unseen scenarios in which arXiv 2512.10236 reports its heuristic to pick the best schedule (abstract)."""

LOSS_TARGET = 0.14
"""Loss of that heuristic where it is wrong (a public survey's reading; low confidence)."""

COLUMNS = (
    "node", "evidence", "transport", "problem", "collective", "m", "n", "k", "ranks", "pieces", "policy", "chosen",
    "best", "right", "near", "time_s", "best_s", "serial_s", "loss",
)  # fmt: skip
"""One row a problem and policy. ``right``: no schedule is faster than ``chosen``; ``near``: none by more than
:data:`NEAR`. ``loss``: ``time_s / best_s - 1``."""


def by_shape(problem: Problem, node: Node, transport: str, among: Sequence[str] = tuple(SCHEDULES)) -> str:
    """Three tests of sizes alone, without any cost: what the reported inputs say before waves of tiles are looked at.

    K > 2M: in each of P steps a cut along M reads B once more (K N) and a cut along K reads and writes the result
    (2 M N), so cut along K. Else, where one peer gives as much as all do, a shard at a time. Else pieces, the own shard
    first.
    """
    m = max(problem.m)
    order = ["uniform_fused_2d"] if problem.k > 2 * m else []
    if thresholds(problem, node, transport).peer_penalty <= 1:
        order.append("shard_p2p")
    order += ["hetero_fused_1d", *among]
    return next(name for name in order if name in among)


def model_times(
    node: Node, rows: Sequence[Row], transport: str, among: Sequence[str] = tuple(SCHEDULES)
) -> pd.DataFrame:
    """Seconds of each problem (index: name) under each schedule (columns), simulated: of the slowest rank."""
    ranks = [[row.problem.busiest] if row.problem.even else range(row.problem.ranks) for row in rows]
    programs = (
        build(name, row.problem, rank)
        for row, those in zip(rows, ranks, strict=True)
        for name in among
        for rank in those
    )
    times = (simulate(both).time_s for both in lanes(programs, node, transport))
    table = [[max(next(times) for _ in those) for _ in among] for those in ranks]
    return pd.DataFrame(table, index=[row.name for row in rows], columns=list(among))


def score(
    node: Node,
    rows: Sequence[Row],
    transport: str = "dma",
    among: Sequence[str] = tuple(SCHEDULES),
    truth: Node | None = None,
) -> pd.DataFrame:
    """Every policy's choice for each problem against exhaustive search on the model, columns :data:`COLUMNS`.

    ``truth``: the node that the model simulates when it is another than the one that the rule knows, to see how much
    of the score survives wrong constants.

    Raises:
        C3Error: no problem, two of one name, or as :func:`c3lib.schedule_choice.choose`.
    """
    if not rows:
        raise C3Error("rows: no problem to score")
    if twice := [name for name, count in Counter(row.name for row in rows).items() if count > 1]:
        raise C3Error(f"rows: each problem needs a name of its own, {twice[0]!r} is there more than once")
    for row in rows:
        choose(row.problem, node, transport, among)  # so that what is wrong is said before anything is simulated
    every = tuple(dict.fromkeys(("serial", *among)))
    times = model_times(truth or node, rows, transport, every)
    return _scored(node, rows, transport, among, times, "modelled")


def score_measured(node: Node, table: pd.DataFrame) -> pd.DataFrame:
    """The same against measured times, one row a repetition: ``problem, transport, schedule, time_s`` and what the
    problem is, ``collective, m, n, k, dtype, ranks, pieces`` (the GEMM of a rank). Rows of a lane alone do not count.

    Medians decide, among the schedules that were measured for a problem. A further column, ``undecided``, is true where
    the intervals of the medians of ``chosen`` and ``best`` overlap.

    Raises:
        C3Error: as :func:`require_comparable`, or a row whose bytes were not verified.
    """
    table = require_comparable(table, "measured table")
    if "verified" in table and not table["verified"].all():
        raise C3Error("measured table: holds rows whose results were not verified")
    found = []
    for path, part in table.groupby("transport", sort=False):
        samples = {key: group["time_s"].to_numpy() for key, group in part.groupby(["problem", "schedule"])}
        firsts = part.drop_duplicates("problem").itertuples(index=False)
        rows = [Row(str(first.problem), problem_of(first), "measured") for first in firsts]
        medians = pd.Series({key: np.median(values) for key, values in samples.items()}).unstack()
        scored = _scored(node, rows, TRANSPORT_OF[str(path)], list(SCHEDULES), medians, "measured")
        spans = {key: median_interval(values) for key, values in samples.items()}
        scored["undecided"] = [
            spans[name, chosen][0] <= spans[name, best][1]
            for name, chosen, best in zip(scored["problem"], scored["chosen"], scored["best"], strict=True)
        ]
        found.append(scored)
    return pd.concat(found, ignore_index=True)


def _scored(
    node: Node, rows: Sequence[Row], transport: str, among: Sequence[str], times: pd.DataFrame, evidence: str
) -> pd.DataFrame:
    """``times``: seconds, a row a problem, a column a schedule; NaN where a problem does not have it."""
    allowed = times[[name for name in among if name in times]]
    best = allowed.idxmin(axis=1)
    single = allowed.dropna(axis=1).div(allowed.min(axis=1), axis=0).mean().idxmin()
    found = []
    for row in rows:
        problem, mine = row.problem, times.loc[row.name].dropna()
        here = [name for name in among if name in mine]
        picks = {
            "rule": choose(problem, node, transport, here).schedule,
            "by_shape": by_shape(problem, node, transport, here),
            "single": single,
            "serial": "serial",
            "exhaustive": best[row.name],
        }
        gemm, best_s = problem.gemm(problem.busiest), mine[best[row.name]]
        about = (node.name, evidence, transport, row.name, problem.kind, gemm.m, gemm.n, gemm.k, problem.ranks)
        for policy, chosen in picks.items():
            if chosen in mine:
                loss = mine[chosen] / best_s - 1
                judged = (policy, chosen, best[row.name], loss <= SAME, loss <= NEAR)
                seconds = (mine[chosen], best_s, mine.get("serial", np.nan), loss)
                found.append((*about, problem.pieces, *judged, *seconds))
    return pd.DataFrame(found, columns=list(COLUMNS))


def summary(scored: pd.DataFrame) -> pd.DataFrame:
    """One row a node, evidence, transport and policy, with 95 % intervals (``_low``, ``_high``).

    ``right``, ``near``: shares of problems (Wilson's interval); ``loss``: mean over all problems, ``loss_when_wrong``
    over those that are not right, ``loss_most`` the largest (bootstrap intervals of means); ``speedup`` over serial,
    mean. ``meets``: at least :data:`RIGHT_TARGET` right and at most :data:`LOSS_TARGET` lost on average when wrong.
    """
    if scored.empty:
        raise C3Error("scored: no row to summarise")
    found = []
    keys = ["node", "evidence", "transport", "policy"]
    for names, part in scored.groupby(keys, sort=False):
        count, wrong = len(part), part.loc[~part["right"], "loss"]
        row: dict[str, object] = dict(zip(keys, names, strict=True)) | {"problems": count}
        for column in ("right", "near"):
            row[column] = part[column].mean()
            row[f"{column}_low"], row[f"{column}_high"] = share_interval(int(part[column].sum()), count)
        for column, values in (("loss", part["loss"]), ("loss_when_wrong", wrong)):
            row[column] = values.mean() if len(values) else 0.0
            row[f"{column}_low"], row[f"{column}_high"] = mean_interval(values) if len(values) else (0.0, 0.0)
        row["loss_most"] = part["loss"].max()
        row["speedup"] = (part["serial_s"] / part["time_s"]).mean()
        missed = wrong.mean() if len(wrong) else 0.0
        row["meets"] = bool(part["right"].mean() >= RIGHT_TARGET and missed <= LOSS_TARGET)
        found.append(row)
    return pd.DataFrame(found)


GUESSED = (
    "gpu.matrix_efficiency", "gpu.hbm_efficiency", "gpu.launch_us", "link.dma_gbs", "link.cu_gbs", "dma.copy_us",
    "dma.command_us", "dma.engine_us", "all-gather.cu_gbs", "all-gather.latency_us", "all-to-all.cu_gbs",
    "all-to-all.latency_us", "interference.memory_queueing", "interference.copy_queueing",
)  # fmt: skip
"""Constants of a node that a program may not know well: rates that are reached, costs of a start, interference."""


def misjudged(node: Node, spread: float, seed: int) -> Node:
    """The node as it might really be: each constant of :data:`GUESSED` a random factor within ``1 +- spread`` off.

    A link's rate one way is off by the factor of that both ways; no rate exceeds its peak.

    Raises:
        C3Error: ``spread`` is not in 0 to 0.9.
    """
    if not 0 <= spread <= 0.9:
        raise C3Error(f"spread must lie in 0 to 0.9, not {spread}")
    rng = np.random.default_rng(seed)
    factors = {key: rng.uniform(1 - spread, 1 + spread) for key in GUESSED}
    factors |= {f"link.{name}_one_way_gbs": factors[f"link.{name}_gbs"] for name in ("dma", "cu")}
    most = {key: 1.0 for key in factors if key.endswith("_efficiency")}
    most |= {key: node.link.peak_gbs for key in factors if key.startswith("link.")}
    values = {key: node.constants[key].value * factor for key, factor in factors.items()}
    return node.with_constants({key: min(value, most.get(key, value)) for key, value in values.items()})
