"""Finer-grain schedules as one GPU ran them: speedup over serial, beside the ideal and what the model gives.

Where nothing was measured, functions here give a sentence that says what to run, and pass one on that they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.ficco import FINER
from c3lib.figures import style
from c3lib.figures.ficco_speedups import COMPARED, SHARD_LEVEL
from c3lib.files import names_in
from c3lib.finer_measured import best, reduced
from c3lib.hardware import load_node
from c3lib.measured import FOLDER, TRANSPORTS, read_measured
from c3lib.schedule_table import TRANSPORT_OF
from c3lib.workload import format_size

LARGE = 8 * 2**20
"""Pieces of at least so many bytes should reach :data:`NEAR_IDEAL` of the ideal speedup under the best schedule (the
project's target)."""

NEAR_IDEAL = 0.9

HOLLOW: dict[str, Any] = {"marker": "s", "ls": "none", "mfc": "white", "mew": 1.0, "ms": 6}


def passes_on(function: Callable) -> Callable:
    """Decorates a function of a table, so that it returns the sentence that stands for a table that there is not."""

    @wraps(function)
    def passed(rows: Any, *args: Any, **more: Any) -> Any:
        return rows if isinstance(rows, style.Finding) else function(rows, *args, **more)

    return passed


def read(machine: str, experiment: str, folder: Path = FOLDER) -> pd.DataFrame | style.Finding:
    """A measured table, or the sentence that says how to measure it."""
    if experiment in names_in(folder / machine, ".csv"):
        return read_measured(machine, experiment, folder)[0]
    load_node(machine)  # a wrong name is said
    return style.Finding(
        f"Nothing of this was measured on {machine} yet. `c3 measure --node {machine} --experiment {experiment}` does "
        "it there, and this notebook then shows it."
    )


@passes_on
def publish(rows: pd.DataFrame, name: str, out: Path | str, draw: Callable[..., Figure] | None = None) -> Any:
    """Save a figure of a table, by default :func:`speedups`; the sentence where there is none."""
    return style.save((draw or speedups)(rows), name, out)


@passes_on
def publish_table(rows: pd.DataFrame, name: str, out: Path | str) -> Any:
    """Save a reduced table and return its best finer-grain schedules; the sentence where there is none."""
    style.save_table(rows, name, out)
    columns = ["problem", "transport", "schedule", "pieces", "speedup", "low", "high", "ideal", "of_ideal", "loss_free"]
    return best(rows)[[*columns, "model_speedup", "evidence"]].round(3)


def table(machine: str, folder: Path = FOLDER) -> pd.DataFrame | style.Finding:
    """Table ``ficco`` of a machine, reduced (:func:`c3lib.finer_measured.reduced`), or what to run to have one."""
    rows = read(machine, "ficco", folder)
    return rows if isinstance(rows, style.Finding) else reduced(rows)


def _panels(rows: pd.DataFrame) -> list[str]:
    return [name for name in TRANSPORT_OF if name in rows["transport"].values]


@style.styled
def speedups(rows: pd.DataFrame) -> Figure:
    """Speedup of every problem under every schedule, measured with its interval and modelled, beside the ideal."""
    evidence = style.shown(rows)
    about = rows.drop_duplicates("problem").sort_values(["piece_bytes", "ideal"], ascending=False, kind="stable")
    order, panels = list(about["problem"]), _panels(rows)
    place = {name: len(order) - 1 - index for index, name in enumerate(order)}
    height = 1.4 + 0.36 * len(order)
    figure, axes = style.canvas(1, len(panels), sharex=True, sharey=True, height_in=height, squeeze=False)
    offsets = dict(zip(COMPARED, np.linspace(0.32, -0.32, len(COMPARED)), strict=True))
    for axis, transport in zip(axes[0], panels, strict=True):
        part = rows[rows["transport"] == transport]
        places = part["problem"].map(place)
        for name in COMPARED:
            own, colour = part[part["schedule"] == name], style.SCHEDULE[name]
            y = places[own.index] + offsets[name]
            axis.hlines(y, own["low"], own["high"], color=colour, lw=1.6)
            axis.plot(own["model_speedup"], y, mec=colour, zorder=1, **HOLLOW)
            look = {**style.MODELLED, "marker": style.SCHEDULE_MARKER[name], "ms": 4.5}
            axis.plot(own["speedup"], y, color=colour, **look)
        ideal = part.drop_duplicates("problem")
        axis.vlines(ideal["ideal"], places[ideal.index] - 0.4, places[ideal.index] + 0.4, color="#444444", lw=1.6)
        axis.hlines(np.arange(len(order)) - 0.5, 0, 1, color=style.FAINT, lw=0.6, zorder=0,
                    transform=axis.get_yaxis_transform())  # fmt: skip
        axis.axvspan(0, 1, color=style.FAINT, alpha=0.45, lw=0, zorder=0)
        axis.set_title(TRANSPORTS[transport])
        axis.set_xlabel("speedup over serial")
    sizes = about.set_index("problem")["piece_bytes"]
    labels = [f"{name}\n{format_size(int(sizes[name]))} pieces" for name in order]
    axes[0, 0].set_yticks(range(len(order)), labels[::-1], fontsize=7.5)
    low = min(0.9, rows[["low", "model_speedup"]].min().min())
    high = rows[["high", "model_speedup", "ideal"]].max().max()
    axes[0, 0].set(xlim=(low - 0.04, high + 0.06), ylim=(-0.6, len(order) - 0.4))
    for name in COMPARED:
        look = {**style.MODELLED, "marker": style.SCHEDULE_MARKER[name]}
        axes[0, 0].plot([], [], color=style.SCHEDULE[name], label=name, **look)
    axes[0, 0].plot([], [], mec=style.GREY, label="modelled", **HOLLOW)
    axes[0, 0].plot([], [], ls="none", marker="|", ms=9, mew=1.6, color="#444444", label="ideal")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=4, handletextpad=0.1)
    n = f"{len(order)} problems, {rows['repetitions'].max()} repetitions"
    style.stamp(figure, f"{evidence} beside modelled (from constants)", rows["node"].iloc[0], n, "")
    return figure


@passes_on
def finding(rows: pd.DataFrame) -> style.Finding:
    """Best speedups by transport, the target, where overlap loses, and copy engine against SM kernel."""
    style.shown(rows)
    parts = []
    for transport in _panels(rows):
        part = rows[rows["transport"] == transport]
        winner = best(part).set_index("problem")
        if winner.empty:
            parts.append(f"{TRANSPORTS[transport]}: no finer-grain schedule was measured")
            continue
        top = winner.loc[winner["speedup"].idxmax()]
        large = winner[winner["piece_bytes"] >= LARGE]
        text = (
            f"**{TRANSPORTS[transport]}: up to {top['speedup']:.2f}x** over serial [{top['low']:.2f}, "
            f"{top['high']:.2f}] ({winner['speedup'].idxmax()}, {top['schedule']}; ideal {top['ideal']:.2f}x, without "
            f"losses {top['loss_free']:.2f}x)"
        )
        if top["speedup"] > top["loss_free"]:
            text += ", which counts on whole steps: here each kernel waits for its own piece alone"
        if len(large):
            reached, lacks = large[large["of_ideal"] >= NEAR_IDEAL], large.index[large["of_ideal"] < NEAR_IDEAL]
            text += (
                f". Of {len(large)} problems with pieces of at least {format_size(LARGE)} the best finer-grain "
                f"schedule reaches {NEAR_IDEAL:g} of the ideal speedup on {len(reached)} (median "
                f"{large['of_ideal'].median():.2f} of it; by (S - 1) / (I - 1) "
                f"{large['fraction_of_ideal'].median():.2f})"
            )
            text += f"; **not on {', '.join(lacks)}**" if len(lacks) else ""
        parts.append(text + _losing(part, winner))
    return style.Finding("(measured) " + ".  \n".join([*parts, *_versus(rows)]) + ".")


def _losing(part: pd.DataFrame, winner: pd.DataFrame) -> str:
    """A sentence on where finer-grain overlap loses, to serial and to shard level; intervals decide."""
    text = ""
    lost = winner.index[winner["high"] < 1]
    if len(lost):
        text += f". **No finer-grain schedule beats serial on {', '.join(lost)}**"
    shard = part[part["schedule"] == SHARD_LEVEL].set_index("problem").reindex(winner.index)
    behind = winner.index[winner["high"] < shard["low"]]
    if len(behind):
        text += f". Shard level beats them all on {', '.join(behind)}"
    gains = winner[winner["low"] > 1].sort_values("piece_bytes")
    if len(gains) and winner["piece_bytes"].nunique() > 1:
        text += f". Smallest piece that paid: {format_size(int(gains['piece_bytes'].iloc[0]))}"
    every = part[part["schedule"].isin(FINER)]
    worst = every.loc[every["speedup"].idxmin()]
    return text + f". Worst choice: {worst['schedule']} on {worst['problem']}, {worst['speedup']:.2f}x"


def _versus(rows: pd.DataFrame) -> list[str]:
    if len(_panels(rows)) < 2:
        return []
    times = rows[rows["schedule"].isin(COMPARED)].pivot(
        index=["problem", "schedule"], columns="transport", values="time_s"
    )
    ratio = (times["sm_kernel"] / times["copy_engine"]).dropna()
    return [
        f"The SM kernel takes {ratio.median():.3f} times as long as the copy engine in the median over problems and "
        f"schedules, {ratio.min():.2f} to {ratio.max():.2f}; the copy engine is faster on {(ratio > 1).mean():.0%}"
    ]
