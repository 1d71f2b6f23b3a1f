"""Who overlaps with what between GPUs: each way to move bytes beside each GEMM, and what one local copy changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.figures.measured import stamp
from c3lib.overlap import WAY, by_way, name_of, summary
from c3lib.workload import format_size

ENGINES, BLOCKS, LOCAL = style.STRATEGY["conccl_rp"], style.STRATEGY["c3_sp"], "#882255"
"""Colours of ways that take no SM, of those that run thread blocks, and of copies of which one runs on SMs."""

FIRST = {"gemm": ("o", "GEMM launched first"), "transfer": ("s", "transfer launched first, at high priority")}


LOST = 0.2
"""Below this fraction of ideal a transfer that was launched first is told to have come second (ours)."""


def ways(table: pd.DataFrame) -> pd.DataFrame:
    """:func:`c3lib.overlap.by_way` of a summary, with the ``colour`` of each way."""
    found = by_way(table)
    by_blocks = np.where(found["blocks"] == "0", LOCAL, BLOCKS)
    return found.assign(colour=np.where(found["engines_only"], ENGINES, by_blocks))


def _below(way: Any) -> str:
    """The small second line of a label: what ran, and on how many thread blocks; a copy engine needs none."""
    took = "0 SMs" if way.engines_only else "waits for SMs" if way.blocks == "0" else f"{way.blocks} blocks"
    return f"{took}: {way.ran}" if way.ran not in way.name else took if way.engines_only else "on SMs"


@style.styled
def who(rows: pd.DataFrame, collective: str) -> Figure:
    """Fraction of ideal of every way to move a collective's bytes, by bound of the GEMM and who is launched first.

    Raises:
        C3Error: rows that no figure may show, or none of the collective.
    """
    style.shown(rows)
    table = summary(rows)
    table = table[table["collective"] == collective]
    if table.empty:
        raise C3Error(f"figure: no row of the collective {collective!r}")
    names = ways(table).iloc[::-1].reset_index(drop=True)
    figure, axes = style.canvas(1, 2, sharey=True, sharex=True, height_in=1.3 + 0.36 * len(names))
    left = max(-0.5, min(0, table["low"].min() - 0.04))
    for axis, bound in zip(axes, style.BOUND, strict=True):
        for way in names.itertuples():
            own = table[(table["bound"] == bound) & (table[WAY] == [getattr(way, name) for name in WAY]).all(axis=1)]
            _dots(axis, own, way.Index, way.colour, left)
        for value, look in ((0, {"color": "#999999", "lw": 0.8}), (1, {"color": "#444444", "lw": 0.9, "ls": "--"})):
            axis.axvline(value, zorder=0, **look)
        axis.set_title(f"{bound}-bound GEMM", color=style.BOUND[bound])
        axis.set_xlabel("fraction of ideal, own time")
        axis.grid(axis="y", color=style.FAINT, lw=0.5)
    axes[0].set(xlim=(left, 1.04), ylim=(-0.6, len(names) - 0.4))
    axes[0].set_yticks(range(len(names)), [""] * len(names))
    for way in names.itertuples():
        where = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        axes[0].annotate(way.name, (0, way.Index), (-7, 1), color=way.colour, weight="bold", fontsize=8, **where)
        axes[0].annotate(_below(way), (0, way.Index), (-7, -8), color=style.GREY, fontsize=6.5, **where)
    for marker, label in FIRST.values():
        axes[0].plot([], [], marker=marker, color=style.GREY, ls="none", label=label, mfc=_face(marker, style.GREY))
    figure.legend(loc="outside upper right", ncols=2, handletextpad=0.1)
    size = f"{format_size(int(table['total_bytes'].min()))} to {format_size(int(table['total_bytes'].max()))}"
    stamp(figure, rows, f"{table['gemm'].nunique()} GEMMs, {collective} of {size}")
    return figure


def _face(marker: str, colour: str) -> str:
    return colour if marker == "o" else "white"


def _dots(axis: Any, own: pd.DataFrame, height: float, colour: str, left: float) -> None:
    """A dot and its interval for each GEMM and launch order; an arrow where it lies beyond the axis."""
    steps = np.linspace(0.24, -0.24, max(2, len(own)))
    for step, row in zip(steps, own.sort_values(["first", "gemm"]).itertuples(), strict=False):
        marker, _ = FIRST[row.first]
        axis.plot(np.clip([row.low, row.high], left, None), [height + step] * 2, color=colour, lw=1.2, alpha=0.7)
        look = {"marker": marker, "ms": 4.5, "mec": colour, "mfc": _face(marker, colour), "mew": 1, "clip_on": False}
        axis.plot([max(row.fraction, left)], [height + step], **look)


def paths(rows: pd.DataFrame) -> pd.DataFrame:
    """How each way ran, and how that is known: what the profiler recorded, and what it did while every SM was held."""
    style.shown(rows)
    table = by_way(summary(rows)).rename(columns={"engines_only": "ended_while_every_sm_was_held"})
    return table.drop(columns=[name for name in WAY if name != "collective"])


def finding_who(rows: pd.DataFrame) -> style.Finding:
    """Which ways need no SM and what they reach, and the best that thread blocks reach, by bound of the GEMM."""
    style.shown(rows)
    table = summary(rows)
    parts = []
    for bound, part in table.groupby("bound"):
        free = part[part["engines_only"]]
        best = part[~part["engines_only"]].groupby([*WAY, "first"])["fraction"].agg(["mean", "min", "max"])
        kernel = best["mean"].idxmax()
        way, first = dict(zip(WAY, kernel, strict=False)), kernel[-1]
        name = name_of(way["transport"], way["batched"], way["in_place"], way["asked"])
        parts.append(
            f"{bound}-bound: without an SM {_spread(free['fraction'])} of ideal, whoever is first ({len(free)} cases); "
            f"the best with SMs is {name} ({way['collective']}, {first} launched first), "
            f"{_spread(best.loc[kernel, ['min', 'max']])}"
        )
    text = "**What needs no SM overlaps in any order.** " + ".  \n".join(parts) + "."
    library = table[table["transport"].eq("nccl")]
    for bound, part in library.groupby("bound"):
        each = {first: own["fraction"] for first, own in part.groupby("first")}
        text += (
            f"  \nNCCL's default beside a {bound}-bound GEMM: {_spread(each['gemm'])} behind it, "
            f"{_spread(each['transfer'])} launched before it, where the GEMM then takes "
            f"{_spread(part.loc[part['first'] == 'transfer', 'gemm_slowdown'])} times its time alone."
        )
    second = table[table["first"] == "transfer"]
    lost = second[(second["low"] < LOST) & (second["fraction"] > 2 * LOST)]
    if len(lost):
        text += (
            f"  \nLaunched first is not always first: in {len(lost)} of {len(second)} cases with the transfer first "
            f"the median's interval reaches below {LOST:g}, as if the GEMM had taken the SMs before it."
        )
    return style.Finding(text)


def _spread(values: Any) -> str:
    """``"0.64 to 0.70"``; one number where both ends read the same."""
    low, high = f"{np.min(values):.2f}", f"{np.max(values):.2f}"
    return low if low == high else f"{low} to {high}"
