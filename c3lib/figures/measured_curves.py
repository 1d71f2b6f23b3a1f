"""Kernels alone as a device ran them: GEMMs on fewer SMs, transfers by direction, transport and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import DIRECTION, DIRECTION_TEXT, NOTHING, TRANSPORT, medians, stamp, way
from c3lib.hardware import load_node
from c3lib.workload import format_size

SHARE = 0.95
"""A transport drives the link when it reaches this share of it."""

COPY_ENGINES = ("copy engine", "copy engine, batched")
NO_BLOCKS = (*COPY_ENGINES, "bare copies")
"""Names of what a plan is copied by without thread blocks, and also of copies that no rank waits for."""

WITHHELD = (8, 32, 64)
"""SMs withheld at which slowdowns are told."""


# --- GEMMs by SMs ---


def gemm_curve(rows: pd.DataFrame) -> pd.DataFrame:
    """GEMM time over its time with every SM, by GEMM, way of withholding and SMs withheld (as granted).

    Each repetition is divided by the same repetition with every SM. Columns as :func:`c3lib.figures.measured.medians`.
    """
    style.shown(rows)
    rows = rows[rows["gemm"] != NOTHING]
    whole = rows[rows["sms_asked"] == 0].groupby(["gemm", "repetition"])["gemm_s"].median().rename("whole_s")
    rows = rows.join(whole, on=["gemm", "repetition"])
    rows = rows.assign(slowdown=rows["gemm_s"] / rows["whole_s"])
    return medians(rows, ["bound", "gemm", "partition", "sms_granted"], "slowdown")


@style.styled
def gemm_by_sms(rows: pd.DataFrame) -> Figure:
    """GEMM time against SMs withheld: cuBLAS told to use fewer (lines), or a green context (hollow)."""
    table, sms = gemm_curve(rows), load_node(rows["node"].iloc[0]).gpu.cus
    figure, axes = style.canvas(1, 2, sharey=True, height_in=3.3)
    for axis, bound in zip(axes, style.BOUND, strict=True):
        part = table[table["bound"] == bound]
        lost = np.linspace(0, part["sms_granted"].max(), 200)
        axis.plot(lost, sms / (sms - lost), color=style.GREY, lw=1, ls=":")
        for (gemm, dash), look in zip(_gemms(part), ("o", "s", "D", "v"), strict=False):
            told = part[(part["gemm"] == gemm) & (part["partition"] != "green context")]
            green = part[(part["gemm"] == gemm) & (part["partition"] == "green context")]
            colour = style.BOUND[bound]
            axis.fill_between(told["sms_granted"], told["low"], told["high"], color=colour, alpha=0.2, lw=0)
            axis.plot(told["sms_granted"], told["median"], color=colour, ls=dash, marker=look, ms=3.5, label=gemm)
            axis.errorbar(
                green["sms_granted"], green["median"], _errors(green), fmt=look, color=colour, mfc="white", ms=6, lw=1
            )
        axis.set_yscale("log", base=2)
        ticks = [tick for tick in (1, 2, 4, 8, 16) if tick <= max(2, table["high"].max() * 1.1)]
        axis.set_yticks(ticks, [f"{tick}x" for tick in ticks])
        axis.minorticks_off()
        axis.set_xticks([tick for tick in (0, 32, 64, 96, 128) if tick <= sms])
        axis.set_title(f"{bound}-bound", color=style.BOUND[bound])
        axis.set_xlabel(f"SMs withheld, of {sms}")
        axis.legend(loc="upper left", handlelength=2.6)
    axes[0].set_ylabel("GEMM time over time with all SMs")
    axes[0].annotate(
        "linear share",
        (lost[130], sms / (sms - lost[130])),
        (8, -14),
        color=style.GREY,
        textcoords="offset points",
        fontsize=8,
    )
    axes[1].text(0.03, 0.78, "hollow: green context", transform=axes[1].transAxes, color=style.GREY, fontsize=8)
    stamp(figure, rows, f"{table['gemm'].nunique()} GEMMs")
    return figure


def _gemms(part: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(part["gemm"].unique(), ("-", "--", "-.", ":"), strict=False))


def _errors(table: pd.DataFrame) -> np.ndarray:
    return np.array([table["median"] - table["low"], table["high"] - table["median"]])


def finding_gemm(rows: pd.DataFrame) -> style.Finding:
    """Slowdowns with some SMs withheld, by bound, and the most that can be withheld at a cost below 1 %."""
    table = gemm_curve(rows)
    table, parts = table[table["partition"] != "green context"], []
    for bound, part in table.groupby("bound"):
        means = part.groupby("sms_granted")["median"].mean()
        told = ", ".join(f"{sms} withheld {means[sms]:.3f}x" for sms in WITHHELD if sms in means)
        least = part.groupby("sms_granted")["median"].max()
        free = least.index[least.gt(1.01).cumsum() == 0].max()
        parts.append(f"{bound}-bound: {told}; up to {free} SMs cost less than a hundredth")
    return style.Finding("GEMM alone, mean of the shapes. " + ".  \n".join(parts) + ".")


# --- transfers by blocks ---


def transfer_rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Rate (GB/s over the link, both directions added) and time of each all-gather alone: medians with intervals.

    Columns ``way``, ``direction``, ``blocks``, ``total_bytes``, ``link_bytes``, ``copies``, then those of
    :func:`c3lib.figures.measured.medians` for the rate.
    """
    moved = rows[(rows["gemm"] == NOTHING) & (rows["collective"] == "all-gather")]
    moved = moved.assign(way=way(moved), rate_gbs=moved["link_bytes"] / moved["transfer_s"] / 1e9)
    return medians(moved, ["way", "direction", "blocks", "total_bytes", "link_bytes", "copies"], "rate_gbs")


def by_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Of :func:`transfer_rates` the one size at which the number of blocks was swept."""
    table = transfer_rates(rows)
    swept = table[table["way"] == "SM kernel"].groupby("total_bytes")["blocks"].nunique()
    return table[table["total_bytes"] == swept.idxmax()].reset_index(drop=True)


def ways_by_blocks(table: pd.DataFrame) -> list[str]:
    """What moved bytes with thread blocks, of :func:`by_blocks`: the project's SM kernel first, then a library."""
    return sorted(set(table["way"]) - set(NO_BLOCKS), key=lambda name: (name != "SM kernel", name))


def blocks_needed(rows: pd.DataFrame, share: float = SHARE, name: str = "SM kernel") -> pd.DataFrame:
    """Per direction the fewest blocks at which a kernel reaches ``share`` of the link, and of its own plateau.

    The link is what the faster kind of copy-engine transfer of the same size and direction reaches. ``of_link`` and
    ``of_own`` are NaN where no number of blocks tried gets there; ``link_gbs`` and ``best_gbs`` are the two rates,
    ``best_share`` their ratio, ``blocks_at_best`` where it is reached.
    """
    table, found = by_blocks(rows), []
    for direction in [each for each in DIRECTION if each in table["direction"].values]:
        part = table[table["direction"] == direction]
        link = part.loc[part["way"].isin(COPY_ENGINES), "median"].max()
        kernel = part[part["way"] == name].set_index("blocks")["median"]
        enough = [kernel.index[kernel >= share * wanted].min() for wanted in (link, kernel.max())]
        found.append([direction, *enough, link, kernel.max(), kernel.max() / link, kernel.idxmax()])
    columns = ["direction", "of_link", "of_own", "link_gbs", "best_gbs", "best_share", "blocks_at_best"]
    return pd.DataFrame(found, columns=columns)


@style.styled
def rate_by_blocks(rows: pd.DataFrame) -> Figure:
    """Transfer rate of each SM-driven transport against its blocks, beside the copy engine's, by direction."""
    table, needed = by_blocks(rows), blocks_needed(rows).set_index("direction")
    ways = ways_by_blocks(table)
    figure, axes = style.canvas(1, len(needed), sharey=True, height_in=3.2, squeeze=False)
    for axis, direction in zip(axes[0], needed.index, strict=True):
        part = table[table["direction"] == direction]
        kernels = {name: part[part["way"] == name] for name in ways}
        link = needed.loc[direction, "link_gbs"]
        engine = part[part["way"].isin(COPY_ENGINES)].sort_values("median").iloc[-1]
        axis.axhspan(engine["low"], engine["high"], color=TRANSPORT["copy engine"], alpha=0.3, lw=0)
        axis.axhline(link, color=TRANSPORT["copy engine"], lw=1.6)
        axis.axhline(SHARE * link, color=style.GREY, lw=0.9, ls=(0, (3, 2)))
        for name, kernel in kernels.items():
            look = {"color": TRANSPORT[name], "marker": "o", "ms": 4.5, "lw": 1.6}
            axis.errorbar(kernel["blocks"], kernel["median"], _errors(kernel), **look)
        text = f"copy engine {link:.0f}" + ", on 0 SMs" * (len(needed) == 1)
        axis.text(1, link, text, color=TRANSPORT["copy engine"], va="bottom", weight="bold", fontsize=8.5)
        axis.set_xscale("log", base=2)
        tried = sorted(set(part.loc[part["way"].isin(ways), "blocks"]))
        axis.set_xticks(tried, [f"{blocks}" if blocks & (blocks - 1) == 0 else "" for blocks in tried])
        axis.minorticks_off()
        axis.set(title=DIRECTION_TEXT[direction], ylim=(0, table["high"].max() * 1.12))
        for name, kernel in kernels.items():
            _name(axis, f"{name} {kernel['median'].max():.0f}", kernel, TRANSPORT[name], max(tried))
    axes[0][0].text(
        1, SHARE * needed["link_gbs"].iloc[0] * 0.985, f"{SHARE:.0%}", color=style.GREY, va="top", fontsize=8
    )
    axes[0][0].set_ylabel("GB/s over the link")
    axes[0][len(needed) // 2].set_xlabel(
        "thread blocks of the SM kernel, an SM each" if len(ways) == 1 else "thread blocks, an SM each"
    )
    stamp(figure, rows, f"{format_size(table['total_bytes'].iloc[0])} all-gather")
    return figure


def _name(axis: Any, text: str, kernel: pd.DataFrame, colour: str, most: int) -> None:
    """A curve's name: right of its last point where there is room, else below it."""
    last = kernel.iloc[-1]
    look = {"color": colour, "weight": "bold", "fontsize": 8.5}
    if last["blocks"] < most:
        axis.text(last["blocks"] * 1.08, last["median"], text, va="center", ha="left", **look)
    else:
        axis.text(last["blocks"], last["median"] * 0.94, text, va="top", ha="right", **look)


def finding_blocks(rows: pd.DataFrame) -> style.Finding:
    """Blocks that drive the link, per direction; a copy engine needs none."""
    told: dict[str, str] = {}
    for name in ways_by_blocks(by_blocks(rows)):
        for row in blocks_needed(rows, name=name).itertuples():
            reached = (
                f"never reaches {SHARE:.0%} of that"
                if np.isnan(row.of_link)
                else f"reaches {SHARE:.0%} of that with {row.of_link:.0f} blocks"
            )
            engine = f"{DIRECTION_TEXT[row.direction]}: copy engine {row.link_gbs:.1f} GB/s on no SM"
            told[row.direction] = told.get(row.direction, engine) + (
                f"; {'the SM kernel' if name == 'SM kernel' else name} {reached} (at most {row.best_share:.0%}, "
                f"{row.best_gbs:.1f} GB/s, {row.blocks_at_best} blocks), {SHARE:.0%} of its own best with "
                f"{row.of_own:.0f}"
            )
    return style.Finding(".  \n".join(told.values()) + ".")
