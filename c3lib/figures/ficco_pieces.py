"""How finely to cut: speedup against the size of a piece, and against the number of pieces of a shard."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.cutting import PAYS, SIZES, balanced_n, sized
from c3lib.ficco import FINER
from c3lib.ficco.sets import Row
from c3lib.figures import style
from c3lib.figures.ficco_speedups import COMPARED, TRANSPORT
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node
from c3lib.workload import format_size

COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Pieces of a shard."""


def size_rows(node: str, kind: str = "all-gather", pieces: int = 0) -> pd.DataFrame:
    """Problems whose pieces grow from :data:`c3lib.cutting.SIZES` first to last, under every schedule and transport.

    K and the rank's columns stay, M grows; large pieces take a GEMM as long as their exchange, where overlap could gain
    most. ``pieces`` of a shard: 0 for as many as ranks.
    """
    machine = load_node(node)
    width = balanced_n(machine, kind, pieces)
    return schedule_rows(machine, [sized(machine, size, width, kind, pieces) for size in SIZES])


def count_rows(node: str, row: Row) -> pd.DataFrame:
    """One problem cut into :data:`COUNTS` pieces a shard, under every schedule and transport."""
    problem = row.problem
    several = [Row(row.name, replace(problem, pieces=count), row.origin) for count in COUNTS]
    return schedule_rows(load_node(node), several)


def smallest(rows: pd.DataFrame, transport: str, schedules: tuple[str, ...] = FINER) -> float:
    """Bytes of a piece from which the best of the schedules pays at every larger size; inf if at none."""
    part = rows[(rows["transport"] == transport) & rows["schedule"].isin(schedules)]
    best = part.groupby("piece_bytes")["speedup"].max().sort_index()
    short = best.index[best <= 1 + PAYS]
    longer = best.index[best.index > (short.max() if len(short) else 0)]
    return float(longer.min()) if len(longer) else np.inf


def _lines(axis: Any, part: pd.DataFrame, x: str) -> None:
    for name in COMPARED:
        own = part[part["schedule"] == name].sort_values(x)
        look = {"marker": style.SCHEDULE_MARKER[name], "ms": 4.2, "mew": 0, "lw": 1.5}
        axis.plot(own[x], own["speedup"], color=style.SCHEDULE[name], label=name, **look)
    ideal = part[part["schedule"] == COMPARED[0]].sort_values(x)
    axis.plot(ideal[x], ideal["ideal"], color="#444444", lw=1, ls=(0, (4, 2)), label="ideal")


def _finish(figure: Figure, axes: Any, rows: pd.DataFrame) -> None:
    low, high = min(0.9, rows["speedup"].min()), rows["ideal"].max()
    for axis in axes:
        axis.axhspan(0, 1, color=style.FAINT, alpha=0.45, lw=0, zorder=0)
    axes[0].set(ylabel="speedup over serial", ylim=(max(0, low - 0.12), high * 1.16))
    axes[0].text(0.98, 0.01, "loses", transform=axes[0].transAxes, color=style.GREY, ha="right", va="bottom")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, handlelength=1.4, columnspacing=1.4)


@style.styled
def by_size(rows: pd.DataFrame) -> Figure:
    """Speedup over serial against the size of a piece; the dotted line is the smallest from which cutting pays."""
    evidence = style.shown(rows)
    transports = [name for name in TRANSPORT if name in rows["transport"].values]
    figure, axes = style.canvas(1, len(transports), sharey=True, height_in=3.9, squeeze=False)
    for axis, transport in zip(axes[0], transports, strict=True):
        _lines(axis, rows[rows["transport"] == transport], "piece_bytes")
        style.size_axis(axis, rows["piece_bytes"], "bytes of a piece")
        border = smallest(rows, transport)
        if np.isfinite(border):
            axis.axvline(border, color="#444444", lw=0.9, ls=":")
            text = {"transform": axis.get_xaxis_transform(), "va": "top", "color": "#333333", "fontsize": 8.5}
            axis.text(border, 0.99, f" pays from\n {format_size(int(border))}", **text)
        axis.set_title(TRANSPORT[transport])
    _finish(figure, axes[0], rows)
    about = rows.iloc[0]
    note = f"{about['collective']}, K {about['k']}, N of a rank {about['n']}, {about['pieces']} pieces a shard"
    style.stamp(figure, evidence, about["node"], f"{rows['piece_bytes'].nunique()} sizes", note)
    return figure


@style.styled
def by_count(rows: pd.DataFrame) -> Figure:
    """Speedup over serial against the number of pieces that a shard is cut into, for one problem."""
    evidence = style.shown(rows)
    transports = [name for name in TRANSPORT if name in rows["transport"].values]
    figure, axes = style.canvas(1, len(transports), sharey=True, height_in=3.9, squeeze=False)
    counts = sorted(rows["pieces"].unique())
    for axis, transport in zip(axes[0], transports, strict=True):
        _lines(axis, rows[rows["transport"] == transport], "pieces")
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, map(str, counts))
        axis.minorticks_off()
        axis.set(xlabel="pieces that a shard is cut into")
        axis.set_title(TRANSPORT[transport])
    _finish(figure, axes[0], rows)
    about = rows.iloc[0]
    sizes = [format_size(int(size)) for size in (rows["piece_bytes"].max(), rows["piece_bytes"].min())]
    note = f"{about['problem']}, pieces of {sizes[0]} to {sizes[1]}"
    style.stamp(figure, evidence, about["node"], f"{len(counts)} cuts", note)
    return figure


def finding_size(rows: pd.DataFrame) -> style.Finding:
    """From which size of a piece each schedule pays, by transport."""
    style.shown(rows)
    parts = []
    for transport in [name for name in TRANSPORT if name in rows["transport"].values]:
        groups: dict[str, list[str]] = {}
        for name in COMPARED:
            border = smallest(rows, transport, (name,))
            when = f"from {format_size(int(border))}" if np.isfinite(border) else "at no size"
            when = "at every size" if border == rows["piece_bytes"].min() else when
            groups.setdefault(when, []).append(name)
        listed = "; ".join(f"{' and '.join(names)} {when}" for when, names in groups.items())
        parts.append(f"{TRANSPORT[transport]}: {listed}")
    return style.Finding(
        f"({rows['evidence'].iloc[0]}) **Overlap gains more than {PAYS:.0%} of the serial time, by bytes of a piece**: "
        + ".  \n".join(parts)
        + ". Below that, do not cut."
    )


def finding_count(rows: pd.DataFrame) -> style.Finding:
    """The number of pieces at which each schedule is fastest, and what the finest cut costs against it."""
    style.shown(rows)
    parts = []
    for transport in [name for name in TRANSPORT if name in rows["transport"].values]:
        part = rows[(rows["transport"] == transport) & rows["schedule"].isin(FINER)]
        texts = []
        for name, own in part.groupby("schedule", sort=False):
            top, finest = own.loc[own["speedup"].idxmax()], own.loc[own["pieces"].idxmax()]
            text = f"{name} {top['speedup']:.2f}x with {top['pieces']}"
            texts.append(text + f" ({finest['speedup']:.2f}x with {finest['pieces']})")
        parts.append(f"{TRANSPORT[transport]}: {', '.join(texts)}")
    head = f"({rows['evidence'].iloc[0]}) Best number of pieces a shard for {rows['problem'].iloc[0]}. "
    return style.Finding(head + ".  \n".join(parts) + ".")
