"""Finer-grain schedules as one GPU ran them, reduced: speedup over serial beside the ideal and what the model gives."""

from __future__ import annotations

import numpy as np
import pandas as pd

from c3lib.errors import C3Error
from c3lib.ficco import FINER, SCHEDULES, build
from c3lib.ficco.sets import Row
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node
from c3lib.metrics import fraction_of_ideal, ideal_speedup, median_interval
from c3lib.model.order import loss_free
from c3lib.model.pipeline import simulate
from c3lib.results import publishable
from c3lib.schedule_table import TRANSPORT_OF, problem_of, require_comparable

BASELINE = "serial"


def reduced(rows: pd.DataFrame) -> pd.DataFrame:
    """Repetitions reduced: one row a problem, transport and schedule, beside what the model gives for it.

    ``speedup`` with its interval ``low`` to ``high``: median over repetitions of serial time over this schedule's, by
    the same transport in the same repetition. ``gemm_s``, ``exchange_s``: the whole GEMM and all bytes, each alone;
    ``ideal``: their sum over the longer one; ``of_ideal``: speedup over it; ``fraction_of_ideal``: ``(S - 1) /
    (I - 1)``; ``loss_free``: the speedup if pieces took their share of those times and no more. ``model_time_s``,
    ``model_speedup``: from the node's constants alone.

    Raises:
        C3Error: no rows, some whose result was not checked, as :func:`c3lib.schedule_table.require_comparable`, or a
            problem whose GEMM or exchange was not measured alone under ``serial``.
    """
    publishable(rows.assign(scenario=rows["problem"], strategy=rows["schedule"]))
    node = load_node(rows["node"].iloc[0])
    where = f"measured table of {node.name}"
    keys = ("problem", "transport", "schedule")
    both = require_comparable(rows, where).sort_values("repetition")
    serial = both[both["schedule"] == BASELINE].set_index(["problem", "transport", "repetition"])["time_s"]
    alone = rows[(rows["schedule"] == BASELINE) & (rows["sms_withheld"] == 0)].groupby(
        ["problem", "lanes", "transport"]
    )
    alone_s = alone["time_s"].median()
    for name, transport in both[["problem", "transport"]].drop_duplicates().itertuples(index=False):
        for lane, by in (("kernels", "none"), ("exchanges", transport)):
            if (name, lane, by) not in alone_s.index:
                raise C3Error(f"{where}: {name}: column lanes: no {lane} alone under serial, by transport {by}")
    about = both.drop_duplicates("problem").set_index("problem")
    problems = {name: problem_of(row) for name, row in zip(about.index, about.itertuples(), strict=True)}
    named = [Row(str(name), problem, "measured") for name, problem in problems.items()]
    model = schedule_rows(node, named).set_index(list(keys))
    found = []
    for (name, transport, schedule), part in both.groupby(list(keys), sort=False):
        before = serial.loc[[(name, transport, turn) for turn in part["repetition"]]].to_numpy()
        gains = before / part["time_s"].to_numpy()
        low, high = median_interval(gains)
        gemm_s, exchange_s = alone_s[name, "kernels", "none"], alone_s[name, "exchanges", transport]
        ideal, speedup = float(ideal_speedup(gemm_s, exchange_s)), float(np.median(gains))
        by = TRANSPORT_OF[str(transport)]
        free = simulate(loss_free(build(str(schedule), problems[name]), gemm_s, exchange_s, node, by)).time_s
        told = model.loc[(name, by, schedule)]
        found.append(
            {
                "problem": name,
                "transport": transport,
                "schedule": schedule,
                **{key: about.loc[name, key] for key in ("collective", "m", "n", "k", "dtype", "ranks", "pieces")},
                "piece_bytes": about.loc[name, "piece_bytes"],
                "repetitions": len(part),
                "time_s": part["time_s"].median(),
                "speedup": speedup,
                "low": low,
                "high": high,
                "gemm_s": gemm_s,
                "exchange_s": exchange_s,
                "ideal": ideal,
                "of_ideal": speedup / ideal,
                "fraction_of_ideal": float(fraction_of_ideal(speedup, ideal)),
                "loss_free": (gemm_s + exchange_s) / free,
                "model_time_s": told["time_s"],
                "model_speedup": told["speedup"],
            }
        )
    order = ["piece_bytes", "problem", "transport", "place"]
    table = pd.DataFrame(found).assign(place=lambda rows: rows["schedule"].map(list(SCHEDULES).index))
    table = table.sort_values(order, ascending=[False, True, True, True], kind="stable", ignore_index=True)
    return table.drop(columns="place").assign(node=node.name, evidence=rows["evidence"].iloc[0], verified=True)


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each problem and transport the fastest finer-grain schedule."""
    finer = rows[rows["schedule"].isin(FINER)]
    return finer.loc[finer.groupby(["problem", "transport"], sort=False)["time_s"].idxmin()]
