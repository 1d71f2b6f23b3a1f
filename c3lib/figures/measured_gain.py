"""From which size on overlap pays, as a device ran a GEMM beside transfers of many sizes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import TRANSPORT, beside, blocks_text, medians, stamp
from c3lib.measured import TRANSPORTS
from c3lib.overlap import is_library
from c3lib.workload import format_size

FLOOR = -0.25
"""Share of the serial time below which an interval is cut, with an arrow (ours)."""

APART = 2
"""Panels whose values span ranges this many times as large as another's have each its own scale (ours)."""

SP = "transfer first at high priority"
"""What ``sp`` means in a strategy's name."""


def gain_by_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of the serial time that overlap saves, by GEMM, transport and size, with its interval."""
    pairs = beside(rows)
    kept = pairs["sms_granted"].map(lambda count: f", {count} SMs withheld" if count else "")
    blocks = pairs["blocks"].mask(pairs["transport"].map(is_library), 0)  # a library takes other ones for each size
    pairs = pairs.assign(line=pairs["transport"].map(TRANSPORTS) + blocks.map(blocks_text) + kept)
    table = medians(pairs, ["gemm", "bound", "line", "transport", "sms_granted", "total_bytes"], "saved")
    alone = pairs.groupby("gemm")["gemm_alone_s"].median().rename("gemm_alone_s")
    return table.join(alone, on="gemm")


def break_even(rows: pd.DataFrame) -> pd.DataFrame:
    """Per GEMM and transport the smallest size from which on overlap gains at every larger size, beyond its interval.

    ``break_even_bytes`` is inf where the largest size does not gain; of the total bytes ``sizes`` the interval lies
    wholly above 0 at those of ``gains``, wholly below at those of ``losses``.
    """
    found = []
    for (gemm, line), part in gain_by_size(rows).groupby(["gemm", "line"]):
        part = part.sort_values("total_bytes")
        unsure = part.loc[part["low"] <= 0, "total_bytes"]
        beyond = part.loc[part["total_bytes"] > (unsure.max() if len(unsure) else 0), "total_bytes"]
        found.append(
            {
                "gemm": gemm,
                "line": line,
                "break_even_bytes": float(beyond.min()) if len(beyond) else np.inf,
                "gains": tuple(part.loc[part["low"] > 0, "total_bytes"]),
                "losses": tuple(part.loc[part["high"] < 0, "total_bytes"]),
                "sizes": tuple(part["total_bytes"]),
                "gemm_alone_s": part["gemm_alone_s"].iloc[0],
            }
        )
    return pd.DataFrame(found)


@style.styled
def gain(rows: pd.DataFrame) -> Figure:
    """Share of serial time saved against transfer size, with the break-even size of each transport marked.

    Where none lies among the sizes tried, each panel says instead at how many sizes a transport gains or loses.
    """
    table, even = gain_by_size(rows), break_even(rows)
    marks = even.set_index(["gemm", "line"])["break_even_bytes"]
    found = bool((np.isfinite(marks) & (marks > table["total_bytes"].min())).any())
    gemms = table.drop_duplicates("gemm").sort_values("gemm_alone_s")
    ends = table.assign(low=table["low"].clip(lower=FLOOR)).groupby("gemm").agg({"low": "min", "high": "max"})
    reach = ends.max(axis=1) - ends.min(axis=1)
    share = bool(reach.max() <= APART * reach.min())
    figure, axes = style.canvas(1, len(gemms), sharey=share, height_in=3.9, squeeze=False)
    for axis, gemm in zip(axes[0], gemms.itertuples(), strict=True):
        for name, part in table[table["gemm"] == gemm.gemm].groupby("line"):
            look = {"color": _colour(part), "ls": "--" if part["sms_granted"].iloc[0] else "-"}
            axis.fill_between(
                part["total_bytes"], part["low"] * 100, part["high"] * 100, color=look["color"], alpha=0.2, lw=0
            )
            axis.plot(part["total_bytes"], part["median"] * 100, marker="o", ms=3, label=name, **look)
            _cut(axis, part, look["color"])
            mark = marks[gemm.gemm, name]
            if found and np.isfinite(mark):
                value = part.loc[part["total_bytes"] == mark, "median"].iloc[0] * 100
                axis.plot([mark], [value], marker="o", ms=10, mfc="none", mec=look["color"], mew=1.5)
        axis.axhline(0, color="#444444", lw=0.9)
        style.size_axis(axis, table["total_bytes"], "total bytes of the all-gather")
        axis.set_xlim(table["total_bytes"].min() / 1.6, table["total_bytes"].max() * 1.6)
        axis.set_title(f"{gemm.gemm}, {gemm.gemm_alone_s * 1e3:.2g} ms", fontsize=9)
        if not share:
            low, high = ends.loc[gemm.gemm] * 100
            axis.set_ylim(low - 0.04 * (high - low), high + 0.05 * (high - low))
        if not found:
            _told(axis, even[even["gemm"] == gemm.gemm], table)
    axes[0][0].set_ylabel("% of serial time saved by overlap")
    handles, labels = axes[0][0].get_legend_handles_labels()
    title = "circled: gains for certain here and at every larger size"
    title = title if found else "counted: gains and losses beyond the interval"
    title += "; arrow: the interval goes on below" if (table["low"] < FLOOR).any() else ""
    figure.legend(handles, labels, loc="outside upper center", ncols=3, title=title, title_fontsize=8.5)
    stamp(figure, rows, f"{table['total_bytes'].nunique()} sizes, {_launch(rows)}")
    return figure


def _cut(axis: Any, part: pd.DataFrame, colour: str) -> None:
    """Arrows at the sizes whose interval goes on below :data:`FLOOR`."""
    below = part[part["low"] < FLOOR]
    if len(below):
        axis.plot(below["total_bytes"], [FLOOR * 100] * len(below), color=colour, ls="none", marker=7, ms=6, mew=0)


def _told(axis: Any, even: pd.DataFrame, table: pd.DataFrame) -> None:
    """At how many sizes each transport gains and loses beyond its interval, above the points."""
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.09 * (high - low) * len(even))
    for place, row in enumerate(even.itertuples()):
        count, gains, losses = len(row.sizes), len(row.gains), len(row.losses)
        text = f"{losses} of {count} sizes tried lose{'s' * (losses == 1)}" if losses else "no size tried loses"
        text += ", all gain" if gains == count else f", {gains or 'none'} gain{'s' * (gains <= 1)}"
        look = {"va": "top", "fontsize": 7.5, "weight": "bold", "color": _colour(table[table["line"] == row.line])}
        axis.text(0.02, 0.99 - 0.065 * place, f"{row.line}: {text}", transform=axis.transAxes, **look)


def _colour(part: pd.DataFrame) -> str:
    if part["transport"].iloc[0] == "copy_engine":
        return TRANSPORT["copy engine"]
    return style.STRATEGY["c3_sp_rp" if part["sms_granted"].iloc[0] else "c3_sp"]


def _launch(rows: pd.DataFrame) -> str:
    """Who is launched first and with what priority; the strategy's name where it is :data:`SP` throughout."""
    pairs = rows[(rows["transport"] != "none") & (rows["gemm"] != "none")]
    arms = pairs.drop_duplicates(["first", "high_priority"])[["first", "high_priority"]]
    told = {
        f"{'GEMM' if first == 'gemm' else first} first{' at high priority' * high}" for first, high in arms.to_numpy()
    }
    return " or ".join(sorted(told)) + (" (c3_sp)" if told == {SP} else "")


def ranges(chosen: Collection[int], sizes: Collection[int]) -> str:
    """Sizes as text, neighbours among ``sizes`` joined: ``"16 KiB to 4 MiB, 64 MiB"``."""
    runs: list[list[int]] = []
    neighbour = False
    for size in sorted(sizes):
        if size in chosen:
            runs = runs if neighbour else [*runs, []]
            runs[-1].append(size)
        neighbour = size in chosen
    return ", ".join(" to ".join(dict.fromkeys(format_size(int(run[end])) for end in (0, -1))) for run in runs)


def finding_break_even(rows: pd.DataFrame) -> style.Finding:
    """The sizes at which each transport gains, and loses, for certain beside each GEMM."""
    parts = []
    for row in break_even(rows).itertuples():
        gains = (
            f"gains for certain at {ranges(row.gains, row.sizes)}" if row.gains else "**gains at no size for certain**"
        )
        if row.gains == row.sizes:
            gains = f"gains for certain at every size, {ranges(row.sizes, row.sizes)}"
        losses = f", **loses** for certain at {ranges(row.losses, row.sizes)}" if row.losses else ""
        parts.append(f"{row.line} beside {row.gemm} ({row.gemm_alone_s * 1e3:.2g} ms): {gains}{losses}")
    return style.Finding(f"Launched: {_launch(rows)}.  \n" + ".  \n".join(parts) + ".")
