"""Kernels alone as a device ran them: GEMMs on fewer SMs, transfers by direction, transport and blocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import DIRECTION, DIRECTION_TEXT, NOTHING, TRANSPORT, medians, stamp, way
from c3lib.hardware import load_node
from c3lib.workload import format_size

SHARE = 0.95
"""A transport drives the link when it reaches this share of it."""

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
    """Rate (GB/s over the link, both directions added) and time of each transfer alone: medians with intervals.

    Columns ``way``, ``direction``, ``blocks``, ``total_bytes``, ``link_bytes``, ``copies``, then those of
    :func:`c3lib.figures.measured.medians` for the rate.
    """
    moved = rows[rows["gemm"] == NOTHING]
    moved = moved.assign(way=way(moved), rate_gbs=moved["link_bytes"] / moved["transfer_s"] / 1e9)
    return medians(moved, ["way", "direction", "blocks", "total_bytes", "link_bytes", "copies"], "rate_gbs")


def by_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Of :func:`transfer_rates` the one size at which the number of blocks was swept."""
    table = transfer_rates(rows)
    swept = table[table["way"] == "SM kernel"].groupby("total_bytes")["blocks"].nunique()
    return table[table["total_bytes"] == swept.idxmax()].reset_index(drop=True)


def blocks_needed(rows: pd.DataFrame, share: float = SHARE) -> pd.DataFrame:
    """Per direction the fewest blocks at which the SM kernel reaches ``share`` of the link, and of its own plateau.

    The link is what the faster kind of copy-engine transfer of the same size and direction reaches. ``of_link`` and
    ``of_own`` are NaN where no number of blocks tried gets there; ``link_gbs`` and ``best_gbs`` are the two rates,
    ``best_share`` their ratio, ``blocks_at_best`` where it is reached.
    """
    table, found = by_blocks(rows), []
    for direction in [name for name in DIRECTION if name in table["direction"].values]:
        part = table[table["direction"] == direction]
        link = part.loc[part["way"] != "SM kernel", "median"].max()
        kernel = part[part["way"] == "SM kernel"].set_index("blocks")["median"]
        enough = [kernel.index[kernel >= share * wanted].min() for wanted in (link, kernel.max())]
        found.append([direction, *enough, link, kernel.max(), kernel.max() / link, kernel.idxmax()])
    columns = ["direction", "of_link", "of_own", "link_gbs", "best_gbs", "best_share", "blocks_at_best"]
    return pd.DataFrame(found, columns=columns)


@style.styled
def rate_by_blocks(rows: pd.DataFrame) -> Figure:
    """Transfer rate of the SM kernel against its blocks, beside the copy engine's, by direction."""
    table, needed = by_blocks(rows), blocks_needed(rows).set_index("direction")
    figure, axes = style.canvas(1, len(needed), sharey=True, height_in=3.2, squeeze=False)
    for axis, direction in zip(axes[0], needed.index, strict=True):
        part = table[table["direction"] == direction]
        kernel = part[part["way"] == "SM kernel"]
        colour, link = TRANSPORT["SM kernel"], needed.loc[direction, "link_gbs"]
        engine = part[part["way"] != "SM kernel"].sort_values("median").iloc[-1]
        axis.axhspan(engine["low"], engine["high"], color=TRANSPORT["copy engine"], alpha=0.3, lw=0)
        axis.axhline(link, color=TRANSPORT["copy engine"], lw=1.6)
        axis.axhline(SHARE * link, color=style.GREY, lw=0.9, ls=(0, (3, 2)))
        axis.errorbar(kernel["blocks"], kernel["median"], _errors(kernel), color=colour, marker="o", ms=4.5, lw=1.6)
        axis.text(
            1, link, f"copy engine {link:.0f}", color=TRANSPORT["copy engine"], va="bottom", weight="bold", fontsize=8.5
        )
        axis.set_xscale("log", base=2)
        axis.set_xticks(
            kernel["blocks"], [f"{blocks}" if blocks & (blocks - 1) == 0 else "" for blocks in kernel["blocks"]]
        )
        axis.minorticks_off()
        axis.set(title=DIRECTION_TEXT[direction], ylim=(0, table["high"].max() * 1.12))
        axis.text(
            kernel["blocks"].max(), kernel["median"].iloc[-1] * 0.94, f"SM kernel {kernel['median'].max():.0f}",
            color=colour, va="top", ha="right", weight="bold", fontsize=8.5,
        )  # fmt: skip
    axes[0][0].text(
        1, SHARE * needed["link_gbs"].iloc[0] * 0.985, f"{SHARE:.0%}", color=style.GREY, va="top", fontsize=8
    )
    axes[0][0].set_ylabel("GB/s over the link")
    axes[0][len(needed) // 2].set_xlabel("thread blocks of the SM kernel, an SM each")
    stamp(figure, rows, f"{format_size(table['total_bytes'].iloc[0])} all-gather")
    return figure


def finding_blocks(rows: pd.DataFrame) -> style.Finding:
    """Blocks that drive the link, per direction; a copy engine needs none."""
    parts = []
    for row in blocks_needed(rows).itertuples():
        never = np.isnan(row.of_link)
        reached = (
            f"never reaches {SHARE:.0%} of that"
            if never
            else f"reaches {SHARE:.0%} of that with {row.of_link:.0f} blocks"
        )
        parts.append(
            f"{DIRECTION_TEXT[row.direction]}: copy engine {row.link_gbs:.1f} GB/s on no SM; the SM kernel {reached} "
            f"(at most {row.best_share:.0%}, {row.best_gbs:.1f} GB/s, "
            f"{row.blocks_at_best} blocks), {SHARE:.0%} of its own best with {row.of_own:.0f}"
        )
    return style.Finding(".  \n".join(parts) + ".")
