"""Transfers alone between GPUs, by size: rates of each transport, and the share of what the links give."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.figures.measured import TRANSPORT, as_library_chose, medians, percent, stamp
from c3lib.hardware import load_node
from c3lib.measured import TRANSPORTS
from c3lib.workload import format_size

BARE = "bare_copy"
"""Copies that nobody waits for: what the links give, so the whole that the others are shares of."""

ALL_OF_IT = 0.99
"""A transport uses the links when it reaches this share of them at the largest size: the project's target."""

LAST_SIZES = 4
"""Sizes, the largest, whose shares are told."""

COLOUR = {
    "bare_copy": "#222222",
    "copy_engine": TRANSPORT["copy engine"],
    "sm_kernel": TRANSPORT["SM kernel"],
    "nccl": TRANSPORT["NCCL"],
}


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """All-gathers alone by transport and size, from the table ``isolated`` of a node of several GPUs.

    One row a transport and size: ``gbs`` (both ways added) and ``use`` (its share of the rate of bare copies in the
    same repetition), each with ``..._low`` and ``..._high``, and ``blocks``. Of an SM kernel the number of blocks whose
    size was swept, of a library the blocks it takes by itself; of copies the batched ones, as the suite has them.

    Raises:
        C3Error: rows that no figure may show, or no bare copies to compare with.
    """
    style.shown(rows)
    whole = (rows["collective"] == "all-gather") & (rows["direction"] == "both") & (rows["gemm"] == "none")
    moved = rows[whole & _usual(rows, whole)]
    keys = ["total_bytes", "repetition"]
    bare = moved[moved["transport"] == BARE].set_index(keys)["transfer_s"].rename("bare_s")
    if bare.empty:
        raise C3Error("figure: needs bare copies, which only nodes of several GPUs have")
    moved = moved.join(bare, on=keys)
    moved = moved.assign(gbs=moved["link_bytes"] / moved["transfer_s"] / 1e9, use=moved["bare_s"] / moved["transfer_s"])
    by = ["transport", "total_bytes", "blocks"]
    table, use = (_renamed(medians(moved, by, value), by, value) for value in ("gbs", "use"))
    table = table.merge(use, on=by)
    order = {name: place for place, name in enumerate(TRANSPORTS)}
    return table.sort_values(["transport", "total_bytes"], key=lambda c: c.map(order) if c.name == "transport" else c)


def _renamed(table: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    names = {"median": value, "low": f"{value}_low", "high": f"{value}_high"}
    return table.rename(columns=names)[[*by, *names.values()]]


def _usual(rows: pd.DataFrame, whole: pd.Series) -> pd.Series:
    """Which rows are of a transport as it is mostly run, where one size also swept its blocks."""
    kernel = rows[whole & (rows["transport"] == "sm_kernel")]
    swept = kernel.groupby("blocks")["total_bytes"].nunique()
    usual = (rows["transport"] == "bare_copy") | ((rows["transport"] == "copy_engine") & rows["batched"])
    usual |= (rows["transport"] == "sm_kernel") & (rows["blocks"] == (swept.idxmax() if len(swept) else 0))
    return usual | as_library_chose(rows)


@style.styled
def by_size(rows: pd.DataFrame) -> Figure:
    """Rate of each transport against size, and its share of the rate of bare copies."""
    table = rates(rows)
    figure, axes = style.canvas(1, 2, height_in=3.5)
    for axis, value in zip(axes, ("gbs", "use"), strict=True):
        ends = []
        for name, part in table.groupby("transport", sort=False):
            colour = COLOUR.get(name, style.GREY)
            axis.fill_between(
                part["total_bytes"], part[f"{value}_low"], part[f"{value}_high"], color=colour, alpha=0.2, lw=0
            )
            axis.plot(
                part["total_bytes"], part[value], color=colour, marker="o", ms=3, ls="--" if name == BARE else "-"
            )
            last = part.iloc[-1]
            ends.append((f"{last[value]:.0f}" if value == "gbs" else f"{last[value]:.3f}", last[value], colour))
        top = table[f"{value}_high"].max() * 1.08
        for (text, _, colour), y in zip(ends, style.spread([end[1] for end in ends], 0.06 * top), strict=True):
            where = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8, "weight": "bold"}
            axis.annotate(text, (1.02, y), color=colour, **where)
        style.size_axis(axis, table["total_bytes"], "total bytes of the all-gather")
        axis.set(ylim=(0, top))
    axes[0].set_title("GB/s, both ways added", fontsize=9)
    axes[1].set_title("share of what the links give", fontsize=9)
    for height, name in enumerate(table["transport"].unique()):
        look = {"transform": axes[0].transAxes, "va": "top", "fontsize": 8, "weight": "bold"}
        axes[0].text(0.03, 0.97 - 0.075 * height, _named(table, name), color=COLOUR.get(name, style.GREY), **look)
    stamp(figure, rows, f"{table['total_bytes'].nunique()} sizes")
    return figure


def _named(table: pd.DataFrame, name: str) -> str:
    blocks = int(table.loc[table["transport"] == name, "blocks"].iloc[-1])
    return "bare copies" if name == BARE else TRANSPORTS[name] + (f", {blocks} blocks" if blocks else "")


def _reached(part: pd.DataFrame) -> str:
    """At which sizes a transport reaches the target, and its shares at the largest sizes; four digits tell 0.9898."""
    reached = part.loc[part["use"] >= ALL_OF_IT, "total_bytes"]
    where = ", ".join(format_size(int(size)) for size in reached) or "no size tried"
    last = part.nlargest(LAST_SIZES, "total_bytes").sort_values("total_bytes")
    each = ", ".join(f"{row.use:.4f} at {format_size(int(row.total_bytes))}" for row in last.itertuples())
    return f"of {part['total_bytes'].nunique()} sizes it is reached at {where} ({each})"


def finding(rows: pd.DataFrame) -> style.Finding:
    """Share of the links at the largest size by transport, whether copies meet the target, and at which sizes."""
    table = rates(rows)
    parts, target = [], ""
    for name, part in table[table["transport"] != BARE].groupby("transport", sort=False):
        last = part.iloc[-1]
        parts.append(
            f"{_named(table, name)} {last['gbs']:.0f} GB/s, {last['use']:.3f} "
            f"[{last['use_low']:.3f}, {last['use_high']:.3f}]"
        )
        if name == "copy_engine":
            met = "met" if last["use"] >= ALL_OF_IT else "**missed**"
            target = f" Target of the copy engine, {ALL_OF_IT:g} at the largest size: {met}; {_reached(part)}."
    bare, link = table[table["transport"] == BARE].iloc[-1], load_node(rows["node"].iloc[0]).link
    nominal = 2 * link.count * link.peak_gbs
    return style.Finding(
        f"At {format_size(int(bare['total_bytes']))} bare copies move {bare['gbs']:.0f} GB/s, "
        f"{percent(bare['gbs'] / nominal, 0, '')} of the {nominal:g} GB/s that the link is reported to have. Of what "
        f"bare copies move in the same run: {'; '.join(parts)}.{target} "
        "Bare copies differ from those of the plan in that no rank waits for another."
    )
