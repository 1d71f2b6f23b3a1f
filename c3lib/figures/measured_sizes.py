"""Transfers alone as a device ran them, by size: rates, start-up times, plain and batched copies."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import TRANSPORT, as_library_chose, blocks_text, stamp
from c3lib.figures.measured_curves import transfer_rates
from c3lib.overlap import is_library
from c3lib.workload import format_size


def by_size(rows: pd.DataFrame, copies: str = "plan") -> pd.DataFrame:
    """Of :func:`transfer_rates` those whose size was swept: whole plans (``"plan"``) or single copies (``"one"``).

    ``line`` names transport and blocks; sizes at which only the number of blocks was swept are left out. A library is
    one line, as it takes other blocks for each size. Empty where no such size was swept.
    """
    library = rows["transport"].map(is_library).astype(bool)
    rows = rows[~library | as_library_chose(rows)]
    table = transfer_rates(rows.assign(blocks=rows["blocks"].mask(rows["transport"].map(is_library), 0)))
    table = table[(table["copies"] == 1) == (copies == "one")]
    # Text by text: an empty table has no column of texts to add.
    names = [way + blocks_text(blocks) for way, blocks in zip(table["way"], table["blocks"], strict=True)]
    table = table.assign(line=names)
    swept = table.groupby(["line", "direction"])["total_bytes"].transform("nunique")
    table = table[swept == swept.max()]
    common = table.groupby("total_bytes")["line"].nunique()
    return (
        table[table["total_bytes"].map(common) == common.max()]
        .sort_values(["line", "link_bytes"])
        .reset_index(drop=True)
    )


def _lines(table: pd.DataFrame) -> dict[str, dict]:
    looks = {}
    for name, part in table.groupby("line"):
        kind = part["way"].iloc[0]
        fewer = kind == "SM kernel" and part["blocks"].iloc[0] != table["blocks"].max()
        looks[name] = {"color": style.STRATEGY["c3_rp"] if fewer else TRANSPORT[kind], "ls": "--" if fewer else "-"}
    return looks


@style.styled
def rate_by_size(rows: pd.DataFrame) -> Figure:
    """Rate of a collective's transfers against its size, by transport, copies plain or batched."""
    table = by_size(rows)
    figure, axis = style.canvas(height_in=3.6)
    ends = []
    for name, look in _lines(table).items():
        part = table[table["line"] == name]
        axis.fill_between(part["total_bytes"], part["low"], part["high"], color=look["color"], alpha=0.2, lw=0)
        axis.plot(part["total_bytes"], part["median"], marker="o", ms=3.5, **look)
        ends.append((name, part["median"].iloc[-1], look["color"]))
    top = table["high"].max() * 1.08
    for (name, _, colour), y in zip(ends, style.spread([end[1] for end in ends], 0.065 * top), strict=True):
        axis.annotate(
            name, (1.01, y / top), xycoords="axes fraction", color=colour, va="center", weight="bold", fontsize=8.5
        )
    style.size_axis(axis, table["total_bytes"], "total bytes of the all-gather")
    axis.set(ylim=(0, top), ylabel="GB/s over the link, both ways added")
    stamp(figure, rows, f"{table['total_bytes'].nunique()} sizes, {table['copies'].max()} copies each")
    return figure


@style.styled
def latency(rows: pd.DataFrame) -> Figure:
    """Time of one copy-engine copy, and of a whole plan of copies, against size."""
    tables = [table for table in (by_size(rows, "one"), by_size(rows)) if len(table)]
    figure, axes = style.canvas(1, len(tables), sharey=True, height_in=3.4, squeeze=False)
    axes = axes[0]
    for axis, table in zip(axes, tables, strict=True):
        ends = []
        for name, look in _lines(table).items():
            part = table[table["line"] == name]
            micro = part["link_bytes"].to_numpy() / part[["median", "high", "low"]].to_numpy().T / 1e3
            axis.fill_between(part["link_bytes"], micro[1], micro[2], color=look["color"], alpha=0.25, lw=0)
            axis.plot(part["link_bytes"], micro[0], marker="o", ms=3.5, **look)
            ends.append((name, float(micro[0][0]), look["color"]))
        style.size_axis(axis, table["link_bytes"], "bytes over the link")
        axis.set_yscale("log")
        for place, (name, value, colour) in enumerate(sorted(ends, key=lambda end: -end[1])):
            text = f"{name}: {value:.1f} µs"
            axis.text(
                0.04,
                0.97 - 0.075 * place,
                text,
                transform=axis.transAxes,
                va="top",
                color=colour,
                weight="bold",
                fontsize=8,
            )
        copies = table["copies"].max()
        axis.set_title("one copy" if copies == 1 else f"a plan of {copies} copies")
    axes[0].set_ylabel("time (µs)")
    stamp(figure, rows, "transfers alone")
    return figure


def latency_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Start-up time and rate of each transport: ``t = start_us + bytes / rate_gbs``.

    ``start_us`` is the time at the smallest size, ``rate_gbs`` the rate at the largest, ``half_bytes`` the bytes over
    the link at which half that rate is first reached, interpolated between sizes (by their logarithms).
    """
    found = []
    for which in ("one", "plan"):
        for name, part in by_size(rows, which).groupby("line"):
            first, last = part.iloc[0], part.iloc[-1]
            start_us = first["link_bytes"] / first["median"] / 1e3
            rates = np.maximum.accumulate(part["median"])
            half_bytes = 2 ** np.interp(last["median"] / 2, rates, np.log2(part["link_bytes"]))
            found.append([name, int(last["copies"]), start_us, last["median"], half_bytes])
    return pd.DataFrame(found, columns=["line", "copies", "start_us", "rate_gbs", "half_bytes"])


def finding_latency(rows: pd.DataFrame) -> style.Finding:
    """Start-up times, rates, and what batching saves a copy."""
    table = latency_table(rows)
    parts = [
        f"{row.line}, {row.copies} cop{'y' if row.copies == 1 else 'ies'}: {row.start_us:.1f} µs at the smallest size, "
        f"{row.rate_gbs:.1f} GB/s at the largest, half of that from about "
        f"{row.half_bytes / 2**20:.2g} MiB over the link"
        for row in table.itertuples()
    ]
    plain, batched = (
        table[(table["line"] == name) & (table["copies"] > 1)] for name in ("copy engine", "copy engine, batched")
    )
    text = ".  \n".join(parts) + "."
    if len(plain) and len(batched):
        saved = (plain["start_us"].iloc[0] - batched["start_us"].iloc[0]) / plain["copies"].iloc[0]
        text += (
            f"  \nBatching saves {saved:.2f} µs a copy."
            if saved > 0
            else f"  \nBatching **costs** {-saved:.2f} µs a copy."
        )
    return style.Finding(text + "".join(f"  \n{sentence}" for sentence in _of_dips(rows)))


def dips(rows: pd.DataFrame) -> pd.DataFrame:
    """Sizes of plans at which a transport's rate lies below that of both neighbouring sizes, beyond the intervals.

    ``share`` is the rate over the mean of the two neighbours'.
    """
    table = by_size(rows)
    lines = table.groupby("line")
    before, after = lines[["median", "low"]].shift(1), lines[["median", "low"]].shift(-1)
    share = 2 * table["median"] / (before["median"] + after["median"])
    below = table["high"] < np.minimum(before["low"], after["low"])
    return table.assign(share=share)[below]


def _of_dips(rows: pd.DataFrame) -> list[str]:
    """A sentence a size at which rates dip."""
    count = by_size(rows)["line"].nunique()
    return [
        f"At {format_size(int(size))} in total the rate dips with {len(part)} of {count} transports, to "
        f"{part['share'].min():.0%} to {part['share'].max():.0%} of that at the neighbouring sizes; why is not known."
        for size, part in dips(rows).groupby("total_bytes")
    ]
