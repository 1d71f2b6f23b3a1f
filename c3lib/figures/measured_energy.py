"""Energy of a scenario by strategy as a device ran it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import medians, stamp
from c3lib.measured import TRANSPORTS
from c3lib.strategy import STRATEGIES

SERIAL, SERIAL_ENGINE = "serial_sm_kernel", "serial_copy_engine"
"""GEMM, then transfer, on one stream: by the library's blocks, which is the unit, and by copy engines."""

WORDS = {SERIAL_ENGINE: "serial, copy engine"}
"""What stands for a name that is not a strategy's."""


def relative_energy(rows: pd.DataFrame) -> pd.DataFrame:
    """Joules of a scenario under each strategy over its median when run serially, with intervals; same for time."""
    style.shown(rows)
    serial = rows[rows["strategy"] == SERIAL].groupby("scenario")[["joules_per_run", "seconds_per_run"]].median()
    base = rows[["scenario"]].join(serial, on="scenario")
    rows = rows.assign(
        joules=rows["joules_per_run"] / base["joules_per_run"],
        seconds=rows["seconds_per_run"] / base["seconds_per_run"],
    )
    keys = ["scenario", "bound", "strategy"]
    seconds = medians(rows, keys, "seconds").set_index(keys)["median"].rename("seconds")
    return medians(rows, keys, "joules").join(seconds, on=keys)


@style.styled
def energy(rows: pd.DataFrame) -> Figure:
    """Energy of each scenario by strategy, relative to running its two kernels one after the other."""
    table = relative_energy(rows)
    names = [name for name in STRATEGIES if name in table["strategy"].values]
    places = {name: place for place, name in enumerate(reversed(table["scenario"].unique()))}
    figure, axis = style.canvas(height_in=max(2.6, 1.4 + 0.5 * len(places)))
    for name, offset in zip(names, np.linspace(0.3, -0.3, len(names)), strict=True):
        part = table[table["strategy"] == name]
        y, marker = part["scenario"].map(places) + offset, "s" if STRATEGIES[name].transport == "dma" else "o"
        axis.hlines(y, part["low"], part["high"], color=style.STRATEGY[name], lw=1.6)
        axis.plot(part["median"], y, color=style.STRATEGY[name], label=name, **{**style.MODELLED, "marker": marker})
    other = table[table["strategy"] == SERIAL_ENGINE]
    look = {"ls": "none", "marker": "|", "ms": 15, "mew": 1.4, "color": style.GREY}
    axis.plot(other["median"], other["scenario"].map(places), label=WORDS[SERIAL_ENGINE], **look)
    axis.axvline(1, color="#444444", lw=0.9)
    axis.set_yticks(list(places.values()), list(places), fontsize=8)
    mover = TRANSPORTS[rows.loc[rows["strategy"] == SERIAL, "transport"].iloc[0]].replace("SM kernel", "the SM kernel")
    axis.set(ylim=(-0.6, len(places) - 0.4), xlabel=f"energy over that of running serially with {mover}")
    figure.legend(
        *axis.get_legend_handles_labels(), loc="outside upper center", ncols=7, handletextpad=0.1, columnspacing=1
    )
    stamp(figure, rows, f"{len(places)} scenarios")
    return figure


def finding_energy(rows: pd.DataFrame, suite: pd.DataFrame | None = None) -> style.Finding:
    """Mean energy and time of each strategy relative to serial, the least first.

    Given the rows of the suite, strategies that it ran by another transport in the same scenarios are named.
    """
    table = relative_energy(rows)
    means = table[table["strategy"] != SERIAL].groupby("strategy")[["median", "seconds"]].mean().sort_values("median")
    parts = [
        f"{WORDS.get(row.Index, row.Index)} {row.median:.3f} of the energy in {row.seconds:.3f} of the time"
        for row in means.itertuples()
    ]
    text = "Mean over scenarios, relative to serial: " + "; ".join(parts) + "."
    return style.Finding(text + ("" if suite is None else _unlike(rows, suite)))


def unlike(rows: pd.DataFrame, suite: pd.DataFrame) -> pd.DataFrame:
    """Scenarios and strategies whose bytes something else moved than in the suite: ``transport``, ``of_suite``."""
    keys = ["scenario", "strategy"]
    here, there = (table.groupby(keys)["transport"].first() for table in (rows, suite))
    both = pd.concat({"transport": here, "of_suite": there}, axis=1, join="inner").reset_index()
    return both[both["transport"] != both["of_suite"]]


def _unlike(rows: pd.DataFrame, suite: pd.DataFrame) -> str:
    count = rows.groupby("strategy")["scenario"].nunique()
    parts = [
        f"{strategy} by {TRANSPORTS[transport]} in {len(part)} of {count[strategy]} scenarios (in the suite by "
        f"{TRANSPORTS[of_suite]})"
        for (strategy, transport, of_suite), part in unlike(rows, suite).groupby(["strategy", "transport", "of_suite"])
    ]
    return f"  \n**Not what the suite ran**: {'; '.join(parts)}." if parts else ""
