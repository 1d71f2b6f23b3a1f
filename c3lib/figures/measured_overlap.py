"""A GEMM beside a transfer as a device ran them: break-even size, order and priority, energy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import DIRECTION, DIRECTION_TEXT, TRANSPORT, beside, blocks_text, medians, stamp
from c3lib.workload import format_size

# --- from which size on overlap pays ---


def gain_by_size(rows: pd.DataFrame) -> pd.DataFrame:
    """Share of the serial time that overlap saves, by GEMM, transport and size, with its interval."""
    pairs = beside(rows)
    kept = pairs["sms_granted"].map(lambda count: f", {count} SMs withheld" if count else "")
    pairs = pairs.assign(
        line=pairs["transport"].map({"copy_engine": "copy engine", "sm_kernel": "SM kernel"})
        + pairs["blocks"].map(blocks_text)
        + kept
    )
    table = medians(pairs, ["gemm", "bound", "line", "transport", "sms_granted", "total_bytes"], "saved")
    alone = pairs.groupby("gemm")["gemm_alone_s"].median().rename("gemm_alone_s")
    return table.join(alone, on="gemm")


def break_even(rows: pd.DataFrame) -> pd.DataFrame:
    """Per GEMM and transport the smallest size from which on overlap gains at every larger size, beyond its interval.

    ``break_even_bytes`` is inf where the largest size does not gain; of ``sizes`` the interval lies wholly above 0 at
    ``sure``, wholly below at ``loses``.
    """
    found = []
    for (gemm, line), part in gain_by_size(rows).groupby(["gemm", "line"]):
        part = part.sort_values("total_bytes")
        unsure = part.loc[part["low"] <= 0, "total_bytes"]
        gains = part.loc[part["total_bytes"] > (unsure.max() if len(unsure) else 0), "total_bytes"]
        found.append(
            {
                "gemm": gemm,
                "line": line,
                "break_even_bytes": float(gains.min()) if len(gains) else np.inf,
                "loses": int((part["high"] < 0).sum()),
                "sure": int((part["low"] > 0).sum()),
                "sizes": len(part),
                "least_bytes": int(part["total_bytes"].min()),
                "gemm_alone_s": part["gemm_alone_s"].iloc[0],
            }
        )
    return pd.DataFrame(found)


@style.styled
def gain(rows: pd.DataFrame) -> Figure:
    """Share of serial time saved against transfer size, with the break-even size of each transport marked."""
    table, marks = gain_by_size(rows), break_even(rows).set_index(["gemm", "line"])["break_even_bytes"]
    gemms = table.drop_duplicates("gemm").sort_values("gemm_alone_s")
    figure, axes = style.canvas(1, len(gemms), sharey=True, height_in=3.9, squeeze=False)
    for axis, gemm in zip(axes[0], gemms.itertuples(), strict=True):
        for name, part in table[table["gemm"] == gemm.gemm].groupby("line"):
            look = {"color": _colour(part), "ls": "--" if part["sms_granted"].iloc[0] else "-"}
            axis.fill_between(
                part["total_bytes"], part["low"] * 100, part["high"] * 100, color=look["color"], alpha=0.2, lw=0
            )
            axis.plot(part["total_bytes"], part["median"] * 100, marker="o", ms=3, label=name, **look)
            mark = marks[gemm.gemm, name]
            if np.isfinite(mark):
                value = part.loc[part["total_bytes"] == mark, "median"].iloc[0] * 100
                axis.plot([mark], [value], marker="o", ms=10, mfc="none", mec=look["color"], mew=1.5)
        axis.axhline(0, color="#444444", lw=0.9)
        style.size_axis(axis, table["total_bytes"], "total bytes of the all-gather")
        axis.set_xlim(table["total_bytes"].min() / 1.6, table["total_bytes"].max() * 1.6)
        axis.set_title(f"{gemm.gemm}, {gemm.gemm_alone_s * 1e3:.2g} ms", fontsize=9)
    axes[0][0].set_ylabel("% of serial time saved by overlap")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=3,
        title="circled: break-even, gains from here on",
        title_fontsize=8.5,
    )
    stamp(figure, rows, f"{table['total_bytes'].nunique()} sizes")
    return figure


def _colour(part: pd.DataFrame) -> str:
    if part["transport"].iloc[0] == "copy_engine":
        return TRANSPORT["copy engine"]
    return style.STRATEGY["c3_rp"] if part["sms_granted"].iloc[0] else style.STRATEGY["c3_base"]


def finding_break_even(rows: pd.DataFrame) -> style.Finding:
    """The break-even size of each transport beside each GEMM."""
    parts = []
    for row in break_even(rows).itertuples():
        beyond = np.isfinite(row.break_even_bytes)
        size = f"gains from {format_size(int(row.break_even_bytes))} on" if beyond else "**gains at no size for sure**"
        size = f"gains at every size, {format_size(row.least_bytes)} and more" if row.sure == row.sizes else size
        loses = f", loses for sure at {row.loses} of {row.sizes} sizes" if row.loses else ""
        parts.append(f"{row.line} beside {row.gemm} ({row.gemm_alone_s * 1e3:.2g} ms): {size}{loses}")
    return style.Finding(".  \n".join(parts) + ".")


# --- order and priority ---

WAITING_BLOCKS = (8, 32)
"""Blocks for which waiting is told: enough to drive the link, and the library's default."""

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
            best.min(), best.max(), color=TRANSPORT["copy engine"], alpha=0.3, lw=0, label="copy engine, all four"
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
        means = part.groupby(["first", "blocks"])["median"].mean().unstack("first")
        each = ", ".join(f"{row.Index} → {row.gemm:.2f} and {row.transfer:.2f}" for row in means.itertuples())
        worse = means.index[means["transfer"] < means["gemm"] - SAME]
        better = means.index[means["transfer"] > means["gemm"] + SAME]
        arms = part.pivot(index=["first", "blocks"], columns="high_priority", values="median")
        change = (arms[True] - arms[False]).abs()
        parts.append(
            f"{bound}-bound {gemm}, blocks → fraction with the GEMM first and with the transfer first: {each}. "
            f"Transfer first is better with {_listed(better)}, worse with {_listed(worse)}; priority changes at most "
            f"{change.max():.2f} (with {change.idxmax()[1]})"
        )
    return style.Finding(".  \n".join(parts) + ".")


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
    """How much of the second kernel runs only after the first has ended."""
    table = waiting(rows)
    parts = []
    for blocks in [count for count in WAITING_BLOCKS if count in table["blocks"].values]:
        each = [
            f"{row.bound}-bound, {'GEMM' if row.first == 'gemm' else 'transfer'} first: {row.median:.0%} of the "
            f"{'transfer' if row.first == 'gemm' else 'GEMM'}"
            for row in table[table["blocks"] == blocks].itertuples()
        ]
        parts.append(f"with {blocks} blocks, " + "; ".join(each))
    return style.Finding("What runs only after the kernel launched first has ended, " + ".  \n".join(parts) + ".")


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
