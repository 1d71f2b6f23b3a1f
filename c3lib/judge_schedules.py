"""How well the model predicts schedules of finer-grain overlap: predicted against measured times of table ``ficco``.

Two ways, as :mod:`c3lib.judge` has them for strategies:

``isolated``
    The times of each lane alone, all kernels of the schedule in a row and all its exchanges in a row, are **inputs**,
    as measured; what is judged is how the lanes interleave and slow each other down.
``constants``
    The node's constants are the only inputs.

The naive rules ``max`` (perfect overlap) and ``sum`` (none) start from the same lanes as the model. No physics here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from c3lib.errors import C3Error
from c3lib.ficco.schedules import build
from c3lib.hardware import load_node
from c3lib.judge import PREDICTORS, WAYS
from c3lib.measured import FOLDER, TRANSPORTS, read_measured, table_path
from c3lib.model.pieces import lanes
from c3lib.model.pipeline import Lanes, simulate
from c3lib.schedule_table import TRANSPORT_OF, problem_of, require_comparable

TABLE = "ficco"
TARGET = 0.10
"""Mean absolute error that the project aims at, isolated times given."""

_PROBLEM = ["problem", "collective", "m", "n", "k", "dtype", "ranks", "pieces", "piece_bytes"]
_WHICH = [*_PROBLEM, "schedule"]


def cases(node: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Measured configurations, a row each: problem, schedule, transport, and medians over repetitions.

    ``measured_s`` is both lanes together; ``kernels_s`` all kernels in a row with as many SMs withheld, ``exchanges_s``
    all exchanges in a row, each alone.

    Raises:
        C3Error: nothing measured, a row that failed its check, a lane that was not measured alone, or as
            :func:`c3lib.schedule_table.require_comparable`.
    """
    rows, _ = read_measured(node, TABLE, folder)
    path = table_path(node, TABLE, folder)
    if not rows["verified"].all():
        bad = rows[~rows["verified"]].iloc[0]
        raise C3Error(f"{path}: {bad['problem']} under {bad['schedule']} failed its check, so it judges nothing")
    rows = rows.assign(
        kernels_s=rows["gemm_end_s"] - rows["gemm_start_s"],
        exchanges_s=rows["exchange_end_s"] - rows["exchange_start_s"],
    )
    parts = dict(list(rows.groupby("lanes")))
    both = require_comparable(rows, path).groupby([*_WHICH, "transport", "blocks", "sms_withheld"], sort=False)[
        "time_s"
    ]
    table = both.agg(measured_s="median", low_s="min", high_s="max", repetitions="size").reset_index()
    for lane, key in (("kernels", "sms_withheld"), ("exchanges", "transport")):
        if lane in parts:
            alone = parts[lane].groupby(["problem", "schedule", key])[f"{lane}_s"].median()
            table = table.join(alone, on=["problem", "schedule", key])
        lacks = table if lane not in parts else table[~(table[f"{lane}_s"] > 0)]
        if len(lacks):
            first = f"{lacks.iloc[0]['problem']} under {lacks.iloc[0]['schedule']}"
            raise C3Error(f"{path}: {first}: column lanes: its {lane} were not measured alone, or took no time")
    return table.assign(node=node, evidence="measured")


def modelled_lanes(rows: pd.DataFrame, node: str) -> list[Lanes]:
    """The lanes of each row's schedule as the model has them from the node's constants."""
    there, found = load_node(node), pd.Series(index=range(len(rows)), dtype=object)
    for transport, places in rows.reset_index(drop=True).groupby("transport").indices.items():
        programs = [
            build(row.schedule, problem_of(row))
            for row in rows.iloc[places].itertuples()  # its rank 0, as was measured
        ]
        for place, lane in zip(places, lanes(programs, there, TRANSPORT_OF[str(transport)]), strict=True):
            found[place] = lane
    return found.tolist()


def alone_s(lane: Lanes) -> tuple[float, float]:
    """Seconds of all kernels in a row and of all exchanges in a row, each alone."""
    return sum(lane.kernel_s), sum(lane.exchange_s) + sum(lane.start_s)


def given(lane: Lanes, kernels_s: float, exchanges_s: float) -> Lanes:
    """The lanes with every operation stretched alike, so that each lane alone takes the given time."""
    kernels, exchanges = alone_s(lane)
    more, longer = kernels_s / kernels, exchanges_s / exchanges
    return replace(
        lane,
        kernel_s=tuple(time_s * more for time_s in lane.kernel_s),
        beside_s=tuple(time_s * more for time_s in lane.beside_s),
        exchange_s=tuple(time_s * longer for time_s in lane.exchange_s),
        start_s=tuple(time_s * longer for time_s in lane.start_s),
    )


def judge(node: str, folder: Path = FOLDER) -> pd.DataFrame:
    """:func:`cases` times ways times predictors: columns ``way, predictor, predicted_s, error`` (signed, relative)."""
    measured = cases(node, folder)
    frames = []
    for way in WAYS:
        each = modelled_lanes(measured, node)
        if way == "isolated":
            each = [
                given(lane, kernels_s, exchanges_s)
                for lane, kernels_s, exchanges_s in zip(
                    each, measured["kernels_s"], measured["exchanges_s"], strict=True
                )
            ]
        times = {
            "model": [simulate(lane).time_s for lane in each],
            "max": [max(alone_s(lane)) for lane in each],
            "sum": [sum(alone_s(lane)) for lane in each],
        }
        frames += [measured.assign(way=way, predictor=name, predicted_s=times[name]) for name in PREDICTORS]
    table = pd.concat(frames, ignore_index=True)
    return table.assign(error=table["predicted_s"] / table["measured_s"] - 1)


def scorecard(judged: pd.DataFrame) -> pd.DataFrame:
    """Absolute errors: one row a way, group and predictor.

    Groups: ``all``; ``overlapped`` (all but ``serial``, which anything predicts); each transport, schedule and problem
    of what is overlapped. Columns ``configurations, mean, median, p90, worst, worst_case, bias``.
    """
    overlapped = judged[judged["schedule"] != "serial"]
    parts = [("over", "all", judged), ("over", "overlapped", overlapped)]
    parts += [("transport", TRANSPORTS[str(name)], part) for name, part in overlapped.groupby("transport")]
    parts += [(by, name, part) for by in ("schedule", "problem") for name, part in overlapped.groupby(by, sort=False)]
    return pd.DataFrame(
        {"way": way, "by": by, "group": group, "predictor": predictor, **_score(rows)}
        for by, group, part in parts
        for (way, predictor), rows in part.groupby(["way", "predictor"], sort=False)
    )


def _score(rows: pd.DataFrame) -> dict:
    errors = rows["error"].abs()
    worst = rows.loc[errors.idxmax()]
    return {
        "configurations": len(rows),
        "mean": errors.mean(),
        "median": errors.median(),
        "p90": errors.quantile(0.9),
        "bias": rows["error"].mean(),
        "worst": errors.max(),
        "worst_case": f"{worst['problem']} {worst['schedule']} by {TRANSPORTS[worst['transport']]}",
    }


def verdict(scores: pd.DataFrame) -> dict:
    """The project's target beside what the model reaches over all that overlaps, isolated times given."""
    mine = scores[(scores["way"] == "isolated") & (scores["predictor"] == "model") & (scores["group"] == "overlapped")]
    if mine.empty:
        raise C3Error("scores: expected those of the model over all that overlaps, lanes given, got none")
    mean = float(mine["mean"].iloc[0])
    return {"group": "overlapped", "target": TARGET, "mean": mean, "met": mean <= TARGET}
