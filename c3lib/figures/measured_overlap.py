"""A GEMM beside a transfer as a device ran them: who is launched first, with what priority, and who waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import DIRECTION, DIRECTION_TEXT, TRANSPORT, beside, medians, stamp

WAITING_BLOCKS = (8, 32, 64)
"""Blocks for which waiting is told: enough to drive the link, the library's default, and twice that."""

SAME = 0.05
"""Orders whose fractions of ideal differ by less are called equal (ours)."""

ARMS = {
    ("gemm", False): ("GEMM first", style.STRATEGY["c3_base"], "-"),
    ("gemm", True): ("GEMM first, transfer prioritised", style.STRATEGY["c3_base"], ":"),
    ("transfer", False): ("transfer first", style.STRATEGY["c3_sp_rp"], "-"),
    ("transfer", True): ("transfer first and prioritised", style.STRATEGY["c3_sp_rp"], ":"),
}
"""Label, colour and line of each arm, by what is launched first and whether the transfer has priority (hollow)."""


def by_order(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """``"fraction"`` or ``"gemm_slowdown"`` by GEMM, transport, blocks, who is first, priority and SMs withheld.

    Transfers of both directions at once only.
    """
    pairs = beside(rows)
    pairs = pairs[pairs["direction"] == "both"]
    return medians(pairs, ["bound", "gemm", "transport", "blocks", "first", "high_priority", "sms_asked"], value)


@style.styled
def order(rows: pd.DataFrame, value: str = "fraction") -> Figure:
    """Fraction of ideal, or GEMM slowdown, against the SM kernel's blocks, by who is launched first and priority."""
    table = by_order(rows, value)
    kernel = table[(table["transport"] == "sm_kernel") & (table["sms_asked"] == 0)]
    apart = table[(table["transport"] == "sm_kernel") & (table["sms_asked"] > 0)]
    engine = table[(table["transport"] == "copy_engine") & (table["sms_asked"] == 0)]
    figure, axes = style.canvas(1, table["gemm"].nunique(), sharey=True, height_in=3.8, squeeze=False)
    for axis, ((_, gemm), part) in zip(axes[0], kernel.groupby(["bound", "gemm"]), strict=True):
        for (first, high), (label, colour, dash) in ARMS.items():
            line = part[(part["first"] == first) & (part["high_priority"] == high)]
            axis.fill_between(line["blocks"], line["low"], line["high"], color=colour, alpha=0.2, lw=0)
            marks = {"marker": "o", "ms": 7 if high else 4, "mfc": "none" if high else colour}
            axis.plot(line["blocks"], line["median"], color=colour, ls=dash, label=label, **marks)
        line = apart[apart["gemm"] == gemm]
        axis.plot(
            line["blocks"],
            line["median"],
            color=style.GREY,
            ls=":",
            marker="s",
            ms=3.5,
            label="transfer first, SMs left free",
        )
        best = engine[engine["gemm"] == gemm]["median"]
        for level in (best.min(), best.max()):
            axis.axhline(level, color=TRANSPORT["copy engine"], lw=1.2)
        axis.axhspan(
            best.min(), best.max(), color=TRANSPORT["copy engine"], alpha=0.3, lw=0, label="copy engine, any order"
        )
        axis.axhline(0 if value == "fraction" else 1, color="#444444", lw=0.8)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(part["blocks"].unique()), sorted(part["blocks"].unique()))
        axis.minorticks_off()
        axis.set_xlabel("thread blocks of the SM kernel")
        axis.set_title(f"{part['bound'].iloc[0]}-bound, {gemm}", color=style.BOUND[part["bound"].iloc[0]], fontsize=9)
    names = {"fraction": "fraction of ideal, own transport's time", "gemm_slowdown": "GEMM time over its time alone"}
    axes[0][0].set_ylabel(names[value])
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    stamp(figure, rows, "transfer about as long as the GEMM")
    return figure


def finding_order(rows: pd.DataFrame) -> style.Finding:
    """Fraction of ideal by blocks with either first, the number of blocks where the better order changes, priority."""
    table, parts = by_order(rows, "fraction"), []
    kernel = table[(table["transport"] == "sm_kernel") & (table["sms_asked"] == 0)]
    for (bound, gemm), part in kernel.groupby(["bound", "gemm"]):
        values = part[~part["high_priority"]].pivot(index="blocks", columns="first", values="median")
        each = ", ".join(f"{row.Index} → {row.gemm:.2f} and {row.transfer:.2f}" for row in values.itertuples())
        worse = values.index[values["transfer"] < values["gemm"] - SAME]
        better = values.index[values["transfer"] > values["gemm"] + SAME]
        parts.append(
            f"{bound}-bound {gemm}, blocks → fraction with the GEMM first and with the transfer first, default "
            f"priority: {each}. Transfer first is better with {_listed(better)}, worse with {_listed(worse)}; "
            + _of_priority(part)
        )
    text = ".  \n".join(parts + [_told_apart(row) for row in two_groups(rows).itertuples()])
    return style.Finding(text + ".")


def _of_priority(part: pd.DataFrame) -> str:
    """What priority changes where the intervals with and without it do not overlap."""
    arms = part.set_index(["first", "blocks", "high_priority"])[["median", "low", "high"]].unstack()
    lower, upper = arms["low"].max(axis=1), arms["high"].min(axis=1)
    change = (arms["median"][True] - arms["median"][False])[lower > upper]
    if change.empty:
        return "priority changes nothing beyond its interval"
    first, blocks = change.abs().idxmax()
    told = f"{change[first, blocks]:+.2f} ({blocks} blocks, {ARMS[first, False][0]})"
    return f"priority changes {len(change)} of {len(arms)} beyond their intervals, at most by {told}"


def two_groups(rows: pd.DataFrame) -> pd.DataFrame:
    """Arms (SM kernel, no SMs left free, default priority) whose repetitions fall into two groups far apart.

    That is: a gap of more than :data:`SAME` in the fraction of ideal that is over twice as wide as either group, of at
    least two repetitions each. ``lower`` and ``upper`` are the groups' medians, ``lower_count`` their sizes.
    """
    pairs, found = beside(rows), []
    kept = (pairs["transport"] == "sm_kernel") & (pairs["sms_asked"] == 0) & ~pairs["high_priority"]
    pairs = pairs[kept & (pairs["direction"] == "both")]
    for key, values in pairs.groupby(["bound", "first", "blocks"])["fraction"]:
        values = np.sort(values)
        if len(values) < 4:
            continue
        count = 2 + int(np.argmax(np.diff(values)[1:-1]))
        lower, upper = values[:count], values[count:]
        gap = upper[0] - lower[-1]
        if gap > max(SAME, 2 * np.ptp(lower), 2 * np.ptp(upper)):
            found.append([*key, np.median(lower), np.median(upper), len(lower), len(upper)])
    names = ["lower", "upper", "lower_count", "upper_count"]
    return pd.DataFrame(found, columns=["bound", "first", "blocks", *names])


def _told_apart(row: Any) -> str:
    return (
        f"{row.bound}-bound, {ARMS[row.first, False][0]}, {row.blocks} blocks: repetitions fall into two groups, "
        f"{row.lower:.2f} ({row.lower_count}) and {row.upper:.2f} ({row.upper_count})"
        + (", as if both blocks were on one SM or on two" if row.blocks == 2 and row.first == "gemm" else "")
    )


def _listed(blocks: pd.Index) -> str:
    return f"{', '.join(map(str, blocks))} blocks" if len(blocks) else "no number of blocks"


def waiting(rows: pd.DataFrame) -> pd.DataFrame:
    """Who waits: the time from the end of the first kernel to the end of the second, over the second's time alone.

    1 means that the second ran wholly after the first, so the two were serial; 0 that it was done by then. SM kernel,
    no SMs left free, default priority.
    """
    pairs = beside(rows)
    pairs = pairs[(pairs["transport"] == "sm_kernel") & (pairs["sms_asked"] == 0) & ~pairs["high_priority"]]
    gemm_first = pairs["first"] == "gemm"
    first_s = pairs["gemm_s"].where(gemm_first, pairs["transfer_s"])
    second_alone_s = pairs["transfer_alone_s"].where(gemm_first, pairs["gemm_alone_s"])
    late = ((pairs["region_s"] - first_s) / second_alone_s).clip(lower=0)
    return medians(pairs.assign(late=late), ["gemm", "bound", "first", "blocks"], "late")


def finding_waiting(rows: pd.DataFrame) -> style.Finding:
    """How long the second kernel goes on after the first has ended."""
    table, parts = waiting(rows), []
    for blocks in [count for count in WAITING_BLOCKS if count in table["blocks"].values]:
        each = []
        for row in table[table["blocks"] == blocks].sort_values(["bound", "first"]).itertuples():
            first, second = ("GEMM", "transfer") if row.first == "gemm" else ("transfer", "GEMM")
            each.append(
                f"{row.bound}-bound, {first} first: the {second} goes on, after the {first} has ended, for "
                f"{row.median:.0%} of its time alone"
            )
        parts.append(f"With {blocks} blocks, " + "; ".join(each))
    return style.Finding(".  \n".join(parts) + ".")


def finding_directions(rows: pd.DataFrame) -> style.Finding:
    """What the GEMM pays beside a copy engine, by direction: incoming bytes are written to memory, outgoing read."""
    pairs = beside(rows)
    pairs = pairs[(pairs["transport"] == "copy_engine") & (pairs["sms_asked"] == 0)]
    table = medians(pairs, ["bound", "gemm", "direction"], "gemm_slowdown")
    parts = []
    for (bound, gemm), part in table.groupby(["bound", "gemm"]):
        each = part.set_index("direction").loc[[name for name in DIRECTION if name in part["direction"].values]]
        told = ", ".join(f"{DIRECTION_TEXT[row.Index]} {row.median:.3f}x" for row in each.itertuples())
        parts.append(f"{bound}-bound {gemm}: {told}")
    return style.Finding("GEMM time beside a copy engine over its time alone. " + ".  \n".join(parts) + ".")
