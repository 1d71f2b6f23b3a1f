"""Measured tables of finer-grain schedules: what their rows are about, and whether they can be compared.

Reduced in :mod:`c3lib.finer_measured`, scored in :mod:`c3lib.schedule_score`, judged in :mod:`c3lib.judge_schedules`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from c3lib.errors import C3Error, unknown
from c3lib.ficco import SCHEDULES
from c3lib.ficco.problem import Problem
from c3lib.hardware import COLLECTIVES

TRANSPORT_OF = {"copy_engine": "dma", "sm_kernel": "cu"}
"""The model's transport of each measured one."""

SHAPE = ("collective", "m", "n", "k", "dtype", "ranks", "pieces")
"""Columns of a measured table that say what a problem is."""


def require_comparable(table: pd.DataFrame, where: object) -> pd.DataFrame:
    """The rows of ``table`` with both lanes, if each can be compared with ``serial`` by the same transport in the same
    repetition; ``where`` names the table. Columns ``repetition``, ``lanes`` and ``sms_withheld`` count where there are.

    Raises:
        C3Error: a column is missing, no such row, two shapes under one problem's name, an unknown schedule, collective
            or transport, a time that is not above 0, a run that is there twice, one without its ``serial``, or nothing
            else than that. Table, problem and column are named.
    """
    if missing := [name for name in ("problem", "transport", "schedule", "time_s", *SHAPE) if name not in table]:
        raise C3Error(f"{where}: missing column {', '.join(missing)}")

    def refuse(rows: pd.DataFrame, bad: pd.Series, column: str, must: str) -> None:
        if bad.any():
            row = rows[bad].iloc[0]
            value = getattr(row[column], "tolist", lambda: row[column])()
            run = f"{row['problem']} under {row['schedule']} by {row['transport']}"
            raise C3Error(f"{where}: {run}: {column} must {must}, not {value!r}")

    lanes = table.get("lanes", pd.Series("both", table.index))
    both = table[lanes == "both"]
    if both.empty:
        raise C3Error(f"{where}: column lanes: holds no schedule with both lanes")
    refuse(table, ~table["schedule"].isin(SCHEDULES), "schedule", f"be one of {', '.join(SCHEDULES)}")
    refuse(table, ~table["collective"].isin(COLLECTIVES), "collective", f"be one of {', '.join(COLLECTIVES)}")
    refuse(both, ~both["transport"].isin(TRANSPORT_OF), "transport", f"be one of {', '.join(TRANSPORT_OF)}")
    refuse(table, ~((table["time_s"] > 0) & np.isfinite(table["time_s"])), "time_s", "be above 0")
    for column in SHAPE:
        one = table.groupby("problem")[column].transform("first")
        refuse(table, table[column] != one, column, "be the same in all rows of a problem")
    turn = ["problem", "transport", *(["repetition"] if "repetition" in table else [])]
    if "repetition" in table:
        held = table["sms_withheld"].where(lanes == "kernels", 0) if "sms_withheld" in table else 0
        runs = table[[*turn, "schedule"]].assign(lanes=lanes, held=held)
        refuse(table, runs.duplicated(), "repetition", "name each run once")
    serial = both["schedule"] == "serial"
    partner = pd.MultiIndex.from_frame(both[turn]).isin(pd.MultiIndex.from_frame(both.loc[serial, turn]))
    refuse(both, pd.Series(~partner, both.index), turn[-1], "be one in which serial ran too")
    others = pd.MultiIndex.from_frame(both.loc[~serial, turn[:2]])
    alone = ~pd.MultiIndex.from_frame(both[turn[:2]]).isin(others)
    if alone.any():
        raise C3Error(
            f"{where}: {both[alone]['problem'].iloc[0]}: column schedule: nothing but serial by some transport"
        )
    for row in both.drop_duplicates("problem").itertuples():
        try:
            problem_of(row)
        except (C3Error, TypeError, ValueError) as error:
            raise C3Error(f"{where}: {row.problem}: columns {', '.join(SHAPE)}: {error}") from None
    return both


def problem_of(about: Any) -> Problem:
    """The problem of a row of a measured table: every rank gives as many rows as any other.

    Raises:
        C3Error: an unknown collective, or as :class:`c3lib.ficco.Problem`.
    """
    if about.collective not in COLLECTIVES:
        raise unknown("collective", about.collective, COLLECTIVES)
    make = Problem.all_gather if about.collective == "all-gather" else Problem.all_to_all
    return make(int(about.m), int(about.n), int(about.k), int(about.ranks), about.dtype, int(about.pieces))
