"""What crosses the wire: bytes on NVLink over payload bytes, by transport, alone and beside a GEMM."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import stamp
from c3lib.hardware import COLLECTIVES
from c3lib.overlap import WAY, name_of, wire
from c3lib.workload import format_size

ALONE, BESIDE = "#4C4C4C", style.STRATEGY["c3_rp"]


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """:func:`c3lib.overlap.wire` with ``way``, the way's name, and ``beside``: whether a GEMM ran.

    Raises:
        C3Error: rows that no figure may show.
    """
    style.shown(rows)
    table = wire(rows)
    names = [name_of(*key) for key in table[WAY[1:]].itertuples(index=False)]
    return table.assign(way=names, beside=table["gemm"] != "none")


@style.styled
def wire_bytes(rows: pd.DataFrame) -> Figure:
    """Bytes on the wire over payload bytes of each way to move them: alone (hollow) and beside a GEMM (filled)."""
    table = named(rows)
    names = list(dict.fromkeys(table["way"]))[::-1]
    place = {name: index for index, name in enumerate(names)}
    figure, axes = style.canvas(1, 2, sharey=True, sharex=True, height_in=1.3 + 0.25 * len(names))
    for axis, kind in zip(axes, COLLECTIVES, strict=True):
        part = table[table["collective"] == kind]
        for _, pair in part.groupby("way"):
            axis.plot(pair["ratio"], pair["way"].map(place), color=style.FAINT, lw=4, zorder=0)
        for beside, colour, face, size in ((True, BESIDE, BESIDE, 5), (False, ALONE, "none", 8)):
            own = part[part["beside"] == beside]
            y = own["way"].map(place)
            axis.hlines(y, own["low"], own["high"], color=colour, lw=1.4)
            label = "beside a GEMM" if beside else "alone"
            axis.plot(own["ratio"], y, ls="none", marker="o", ms=size, mec=colour, mfc=face, mew=1.3, label=label)
        axis.set_title(f"{kind} of {format_size(int(rows['total_bytes'].iloc[0]))}", fontsize=9)
        axis.set_xlabel("bytes on NVLink over payload")
        axis.grid(axis="y", color=style.FAINT, lw=0.5)
    axes[0].set(xlim=(1, table["high"].max() + 0.05), ylim=(-0.6, len(names) - 0.4))
    axes[0].set_yticks(range(len(names)), names, fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, handletextpad=0.1)
    stamp(figure, rows, f"NVLink counters over {int(rows['runs'].max())} runs")
    return figure


def finding(rows: pd.DataFrame) -> style.Finding:
    """Extremes of the ratio by family, alone and beside a GEMM, where a GEMM raises it, and that nobody knows why."""
    table = named(rows)
    parts = []
    for text, chosen in (
        ("Copies by engine only", table["transport"].eq("copy_engine")),
        ("our SM kernel", table["transport"].eq("sm_kernel")),
        ("NCCL by thread blocks", table["blocks"].gt(0) & table["transport"].str.startswith("nccl")),
        ("NCCL with zero CTAs", table["transport"].eq("nccl_zero_cta")),
    ):
        own = table[chosen]
        each = [f"{_range(own.loc[own['beside'] == beside, 'ratio'])}{after}" for beside, after in _AFTER.items()]
        parts += [f"{text} {', '.join(each)}"] if len(own) else []
    off = (table["payload"] - 1).abs().max()
    return style.Finding(
        f"Bytes on the wire over payload bytes: {'; '.join(parts)}. The payload that the counters saw is what the plan "
        f"sends, within {off:.2%}. {_raised(table)} **Why is not established**: the counters do not tell headers from "
        "anything else, nor who asked for the bytes."
    )


def raised(table: pd.DataFrame) -> pd.DataFrame:
    """One row a collective and way of a table by :func:`named`: whether a GEMM raises the ratio beyond its extremes.

    Columns ``collective``, ``way``, ``engines_only`` (:func:`c3lib.overlap.engines_only`), ``raised``.
    """
    keys = ["collective", "way"]
    alone = table[~table["beside"]].set_index(keys)[["engines_only", "high"]]
    least = table[table["beside"]].groupby(keys)["low"].min()
    both = alone.join(least, how="inner").reset_index()
    return both.assign(raised=both["low"] > both["high"])[[*keys, "engines_only", "raised"]]


def _raised(table: pd.DataFrame) -> str:
    found = raised(table)
    took, rest = (found.loc[found["engines_only"] == free, "raised"] for free in (False, True))
    return (
        f"A GEMM raises it, beyond the repetitions' extremes, for {took.sum()} of {len(took)} transfers that took SMs "
        f"or waited for them, and for {rest.sum()} of {len(rest)} that did neither."
    )


_AFTER = {False: " alone", True: " beside a GEMM"}


def _range(values: pd.Series) -> str:
    low, high = f"{values.min():.2f}", f"{values.max():.2f}"
    return low if low == high else f"{low} to {high}"
