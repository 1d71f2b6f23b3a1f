"""Judges the contention model by what was measured: predicted against measured concurrent times, beside naive rules.

Every configuration that was measured (a scenario under a strategy, or one of the configurations that a partition sweep
tried) is predicted as it was run: its transport, thread blocks, launch order and withheld SMs. There are two ways:

``isolated``
    The times of each kernel alone are **inputs**, as measured for that scenario; what is judged is contention only.
``constants``
    The node's constants are the only inputs; the isolated times are the model's own.

The naive rules ``max`` (perfect overlap) and ``sum`` (serial) start from the same isolated times as the model.
No physics here: :func:`predict_rows` hands rows to :mod:`c3lib.model`.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Iterable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from c3lib import metrics
from c3lib.errors import C3Error
from c3lib.files import names_in
from c3lib.hardware import COLLECTIVES, Node, load_node
from c3lib.measured import (
    ENGINE_DRIVEN,
    EXPERIMENTS,
    FOLDER,
    TRANSPORTS,
    UNCLUSTERED,
    measured_nodes,
    read_measured,
    table_path,
)
from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.model.stretch import stretched
from c3lib.strategy import STRATEGIES, Strategy
from c3lib.suites import require_sized
from c3lib.workload import Collective, Gemm, Scenario, length_class

PREDICTORS = ("model", "max", "sum")
WAYS = {"isolated": "isolated times given", "constants": "from constants alone"}
TARGETS = {"all": 0.08, "copy engine": 0.04}
"""Mean absolute error that the project aims at, isolated times given."""

PARTITIONS = {
    "none": "no SMs withheld",
    "sm target": "SM target",
    "green context": "green contexts",
    "cu mask": "CU mask",
}
SETTING = ["transport", "batched", "blocks", "first", "high_priority", "sms_granted", "partition"]
_SCENARIO = ["gemm", "dtype", "bound", "collective", "ranks", "total_bytes"]


def measured_suite(node: str, folder: Path = FOLDER) -> str:
    """The suite that was measured on a node. Raises :class:`C3Error` for an unknown node, and where it is not one."""
    load_node(node)
    there = measured_suites(node, folder)
    if not there:
        others = ", ".join(name for name in measured_nodes(folder) if measured_suites(name, folder)) or "no node"
        raise C3Error(f"judge: no suite was measured on {node}, but on {others}; say --node")
    if len(there) > 1:
        raise C3Error(f"judge: several suites were measured on {node}; say --suite and one of {', '.join(there)}")
    return there[0]


def measured_suites(node: str, folder: Path = FOLDER) -> list[str]:
    """All suites that were measured on a node."""
    return [name for name in names_in(folder / node, ".csv") if name not in EXPERIMENTS]


def cases(node: str, suite: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Measured configurations, one row each, every time the median over its repetitions.

    Columns: ``table`` ("suite" or "sweep"), scenario and strategy, what they are, the setting, ``gemm_alone_s``,
    ``own_alone_s`` (the row's own transport alone), ``measured_s`` (both at once), ``length_class`` (of the medians).
    A configuration of the sweep that the suite did not run has no isolated time of its own transport: it gets the
    time of its bytes at the rate of as many thread blocks in the table ``isolated``.

    Raises:
        C3Error: nothing measured, a suite sized for other links or a table of other ranks than the node's, or a row
            that failed its byte check.
    """
    there = load_node(node)
    require_sized(suite, there)
    rows, _ = read_measured(node, suite, folder)
    if suite in EXPERIMENTS:
        raise C3Error(f"judge: {suite} is a table of another kind; name a suite, such as conccl30_host")
    if not (ranks := rows["ranks"]).eq(there.ranks).all():
        other = ranks[ranks != there.ranks].iloc[0]
        path = table_path(node, suite, folder)
        raise C3Error(f"{path}: column ranks must be {there.ranks}, as node {node} has them, not {other}")
    table = _medians(rows, ["gemm_alone_s", "collective_alone_s", "own_alone_s"]).assign(table="suite")
    alone = rows.groupby("scenario", sort=False)[["gemm_alone_s", "collective_alone_s"]].median()
    if table_path(node, "sweep", folder).is_file():
        swept, _ = read_measured(node, "sweep", folder)
        swept = swept[(swept["suite"] == suite) & swept["scenario"].isin(alone.index)]
        more = _medians(swept, []).join(alone, on="scenario")
        more = more.join(rows.drop_duplicates("scenario").set_index("scenario")[_SCENARIO], on="scenario")
        more["own_alone_s"] = _own_alone_s(more, table, node, folder)
        table = pd.concat([table, more.assign(table="sweep")], ignore_index=True)
    classes = {name: length_class(*alone.loc[name]) for name in alone.index}
    table = table.assign(
        length_class=table["scenario"].map(classes), held_out=~table["gemm"].isin(_seen(node, folder, table["gemm"]))
    )
    return table.assign(node=node, evidence="measured", verified=True)


def _seen(node: str, folder: Path, gemms: Iterable[str]) -> set[str]:
    """GEMMs of the table ``order``, which a node's interference coefficients were read from; others are held out."""
    if not table_path(node, "order", folder).is_file():
        return set(gemms)  # nothing says which, so none is called held out
    rows, _ = read_measured(node, "order", folder)
    return set(rows["gemm"])


def _medians(rows: pd.DataFrame, times: list[str]) -> pd.DataFrame:
    if not rows["verified"].all():
        bad = rows[~rows["verified"]].iloc[0]
        raise C3Error(f"judge: {bad['scenario']} under {bad['strategy']} failed its byte check, so it judges nothing")
    what = [name for name in _SCENARIO if name in rows]
    groups = rows.groupby(["scenario", "strategy", *what, *SETTING], sort=False)
    found = groups[[*times, "concurrent_s"]].median().rename(columns={"concurrent_s": "measured_s"})
    return found.assign(repetitions=groups.size()).reset_index()


def _own_alone_s(swept: pd.DataFrame, suite: pd.DataFrame, node: str, folder: Path) -> pd.Series:
    """Isolated times of the sweep's kernels: of the suite where it ran as many blocks, else by their rate alone.

    That is the rate of so many blocks in the table ``isolated``, at the size for which it has most numbers of them; an
    all-gather's where the collective was not measured.
    """
    how = ["scenario", "transport", "blocks"]
    known = suite.groupby(how)["own_alone_s"].median().rename("own_alone_s")
    found = swept[how].join(known, on=how)["own_alone_s"]
    if found.notna().all():
        return found
    rows, _ = read_measured(node, "isolated", folder)
    if not rows["verified"].all():
        raise C3Error(
            f"{table_path(node, 'isolated', folder)}: holds rows that failed their check, so it judges nothing"
        )
    rows = rows[rows["gemm_s"].isna() & (rows["direction"] == "both") & (rows["blocks"] > 0)]
    size = rows.groupby("total_bytes")["blocks"].nunique().idxmax() if len(rows) else 0
    time_s = rows[rows["total_bytes"] == size].groupby(["collective", "transport", "blocks"])["transfer_s"].median()
    own = pd.MultiIndex.from_frame(swept[["collective", "transport", "blocks"]])
    of_gather = own.set_levels(["all-gather"] * len(own.levels[0]), level=0, verify_integrity=False)
    alone_s = time_s.reindex(own).fillna(time_s.reindex(of_gather).set_axis(own))
    for row in swept[alone_s.isna().to_numpy()].head(1).itertuples():
        path = table_path(node, "isolated", folder)
        raise C3Error(f"{path}: has no transfer alone by {row.blocks} thread blocks of {TRANSPORTS[row.transport]}")
    return found.fillna(swept["total_bytes"] / size * alone_s.to_numpy())


def predict_rows(rows: pd.DataFrame, node: Node) -> NDArray:
    """Predicted concurrent seconds of configurations, ``(rows,)``: the seam to the model.

    Inputs are the columns ``gemm, dtype, collective, ranks, total_bytes`` (what runs), ``transport, blocks, first,
    sms_granted`` (how), and ``gemm_alone_s, own_alone_s``, to which the model's isolated curves are scaled.
    """
    found = np.full(len(rows), np.nan)
    for (transport, first), there, place, gemm, collective, blocks in _batches(rows, node):
        how = Strategy(f"{transport}, {first} first", transport, first, "sweep", "as measured")
        part = rows.iloc[place]
        alone = (part["gemm_alone_s"].to_numpy(), part["own_alone_s"].to_numpy())
        scaled = stretched(gemm, collective, there, *alone, transport, blocks)
        found[place] = predict(*scaled, there, how, cus=part["sms_granted"].to_numpy(), blocks=blocks).time_s
    return found


def isolated_rows(rows: pd.DataFrame, node: Node) -> pd.DataFrame:
    """The rows with ``gemm_alone_s`` and ``own_alone_s`` as the model has them from the node's constants."""
    gemm_s, own_s = np.full((2, len(rows)), np.nan)
    for (transport, _), there, place, gemm, collective, blocks in _batches(rows, node):
        gemm_s[place] = kernels.gemm_time_s(gemm, there.gpu.cus, there)
        own_s[place] = kernels.own_time_s(collective, there, transport, blocks)
    return rows.assign(gemm_alone_s=gemm_s, own_alone_s=own_s)


def _batches(rows: pd.DataFrame, node: Node) -> Iterator[tuple]:
    """Rows that the model can take at once: ``((transport, first), node, places, gemm, collective, blocks)``.

    Kernels that are launched block by block (:data:`UNCLUSTERED`) run on a node whose library does so too.
    """
    orders = {"gemm": "gemm", "transfer": "collective"}
    engine = rows["transport"].isin(ENGINE_DRIVEN) & (rows["blocks"] == 0)
    for row in rows[~engine & (rows["blocks"] < 1)].head(1).itertuples():
        raise C3Error(f"judge: {row.scenario} under {row.strategy} by {row.transport} needs the blocks that ran, not 0")
    singly = functools.reduce(lambda there, kind: there.with_constant(f"{kind}.cluster_cus", 1), COLLECTIVES, node)
    keys = pd.DataFrame(
        {
            "transport": np.where(engine, "dma", "cu"),
            "first": rows["first"].map(orders),
            "singly": rows["transport"].isin(UNCLUSTERED),
        }
    )
    for (transport, first, alone), place in keys.reset_index(drop=True).groupby([*keys]).indices.items():
        part = rows.iloc[place]
        scenarios = [
            Scenario(
                row.scenario, Gemm.parse(row.gemm, row.dtype), Collective(row.collective, row.total_bytes, row.ranks)
            )
            for row in part.itertuples()
        ]
        blocks = part["blocks"].to_numpy() if transport == "cu" else None
        yield (transport, first), singly if alone else node, place, *kernels.batch(scenarios, node), blocks


def judge(node: str, suite: str, folder: Path = FOLDER) -> pd.DataFrame:
    """:func:`cases` times ways times predictors: columns ``way, predictor, predicted_s, error`` (signed, relative)."""
    measured, there = cases(node, suite, folder), load_node(node)
    frames = []
    for way in WAYS:
        rows = measured if way == "isolated" else isolated_rows(measured, there)
        alone = rows[["gemm_alone_s", "own_alone_s"]]
        for name, time_s in zip(
            PREDICTORS, (predict_rows(rows, there), alone.max(axis=1), alone.sum(axis=1)), strict=True
        ):
            frames.append(measured.assign(way=way, predictor=name, predicted_s=np.asarray(time_s)))
    table = pd.concat(frames, ignore_index=True)
    return table.assign(error=table["predicted_s"] / table["measured_s"] - 1, suite=suite)


def scorecard(judged: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Absolute errors by group: one row a way, group and predictor.

    Groups (``by``, ``group``): over ``all``, the ``suite``, the ``sweep`` and what is ``held out`` (GEMMs that are not
    in the table ``order``, which the interference coefficients were read from); of the suite's rows each transport,
    strategy and class (bound and length); of the sweep's each way to withhold SMs. ``mean`` is over scenarios, of each
    one's mean over its configurations, so that none counts more for having been run in more ways; ``low`` and ``high``
    its bootstrap 95 % interval over scenarios. ``median``, ``p90`` and ``worst`` (``worst_case``) are over
    configurations; ``bias`` is the mean signed error.
    """
    suite = judged[judged["table"] == "suite"]
    bound_class = suite["bound"] + "-bound, " + suite["length_class"]
    swept = judged[judged["table"] == "sweep"]
    parts = [("over", "all", judged), *(("over", name, part) for name, part in judged.groupby("table"))]
    parts += [("over", "held out", judged[judged["held_out"]])] if judged["held_out"].any() else []
    parts += [("transport", TRANSPORTS[str(name)], part) for name, part in suite.groupby("transport")]
    parts += [("strategy", name, suite[suite["strategy"] == name]) for name in STRATEGIES]
    parts += [("class", name, part) for name, part in suite.groupby(bound_class)]
    parts += [("sweep", f"sweep, {PARTITIONS[str(name)]}", part) for name, part in swept.groupby("partition")]
    return pd.DataFrame(
        {"way": way, "by": by, "group": group, "predictor": predictor, **_score(rows, seed)}
        for by, group, part in parts
        for (way, predictor), rows in part.groupby(["way", "predictor"], sort=False)  # none of an empty part
    )


def by_scenario(rows: pd.DataFrame) -> pd.Series:
    """Mean absolute error of each scenario over its configurations."""
    return rows["error"].abs().groupby(rows["scenario"]).mean()


def _score(rows: pd.DataFrame, seed: int) -> dict:
    errors, means = rows["error"].abs(), by_scenario(rows)
    low, high = metrics.bootstrap_interval(means, seed=seed)
    worst = rows.loc[errors.idxmax()]
    return {
        "configurations": len(rows),
        "scenarios": len(means),
        "mean": means.mean(),
        "low": low,
        "high": high,
        "median": errors.median(),
        "p90": errors.quantile(0.9),
        "bias": rows["error"].groupby(rows["scenario"]).mean().mean(),
        "worst": errors.max(),
        "worst_case": describe(worst),
    }


def describe(row: pd.Series) -> str:
    """A configuration in words."""
    parts = [f"{row['blocks']} blocks"] if row["blocks"] else []
    parts += [f"{row['sms_granted']} SMs withheld"] if row["sms_granted"] else []
    return f"{row['scenario']} {row['strategy']}" + (f" ({', '.join(parts)})" if parts else "")


def verdicts(scores: pd.DataFrame) -> list[dict]:
    """The project's targets beside what the model reaches, isolated times given."""
    rows = scores[(scores["way"] == "isolated") & (scores["predictor"] == "model")].set_index("group")
    return [
        {
            "group": group,
            "target": target,
            "mean": rows.loc[group, "mean"],
            "met": bool(rows.loc[group, "mean"] <= target),
        }
        for group, target in TARGETS.items()
        if group in rows.index
    ]
