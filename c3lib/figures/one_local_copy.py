"""What one copy inside the GPU costs a library that uses copy engines: out of place against in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.figures.measured import stamp
from c3lib.figures.who_overlaps import ENGINES, LOCAL
from c3lib.measured import TRANSPORTS
from c3lib.overlap import summary
from c3lib.workload import format_size

ZERO = "nccl_zero_cta"
PLACE = {True: ("in place", ENGINES), False: ("out of place", LOCAL)}
GEMM_COLOUR = "#9A9A9A"


def cases(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a summary of zero CTAs and of our batched plan, launched behind the GEMM; ``way`` names them.

    Raises:
        C3Error: rows that no figure may show, or none of that transport.
    """
    style.shown(rows)
    table = summary(rows)
    table = table[(table["first"] == "gemm") & ((table["transport"] == ZERO) | table["batched"])]
    if not table["transport"].eq(ZERO).any():
        raise C3Error(f"figure: no row of the transport {ZERO} ({TRANSPORTS[ZERO]})")
    return table.assign(way=np.where(table["batched"], "plan", table["in_place"].map(lambda there: PLACE[there][0])))


def example(table: pd.DataFrame) -> str:
    """The GEMM whose order in time is drawn: compute-bound, the longest of those."""
    part = table[table["bound"] == "compute"] if table["bound"].eq("compute").any() else table
    return str(part.loc[part["gemm_alone_s"].idxmax(), "gemm"])


@style.styled
def one_local_copy(rows: pd.DataFrame) -> Figure:
    """Left: fraction of ideal with zero CTAs in place and out of place. Right: for one GEMM, what ends when."""
    table = cases(rows)
    figure, (left, right) = style.canvas(1, 2, height_in=3.5, width_ratios=(1, 1.15))
    lines = table[["collective", "bound", "gemm"]].drop_duplicates()
    lines = lines.sort_values(["collective", "bound", "gemm"], ascending=[False, False, True]).reset_index(drop=True)
    for line in lines.itertuples():
        own = table[(table["gemm"] == line.gemm) & (table["collective"] == line.collective)].set_index("way")
        ends = own.loc[[way for way in ("in place", "out of place") if way in own.index], "fraction"]
        left.plot(ends, [line.Index] * len(ends), color=style.FAINT, lw=4, zorder=0, solid_capstyle="round")
        for there, (way, colour) in PLACE.items():
            if way in own.index:
                row = own.loc[way]
                left.plot([row["low"], row["high"]], [line.Index] * 2, color=colour, lw=1.4)
                left.plot([row["fraction"]], [line.Index], color=colour, **{**style.MODELLED, "ms": 7 - 0.5 * there})
        if "plan" in own.index:
            left.plot(
                [own.loc["plan", "fraction"]], [line.Index], ls="none", marker="|", ms=13, mew=1.5, color="#222222"
            )
    left.set_yticks(
        range(len(lines)), [f"{style.SHORT[row.collective]} {row.gemm}" for row in lines.itertuples()], fontsize=7.5
    )
    for label, bound in zip(left.get_yticklabels(), lines["bound"], strict=True):
        label.set_color(style.BOUND[bound])
    lacking = [line.Index for line in lines.itertuples() if line.collective == "all-to-all"]
    if lacking:
        left.text(0.24, np.median(lacking), "no all-to-all\nin place", color=style.GREY, va="center", fontsize=7.5)
    left.axvline(0, color="#999999", lw=0.8, zorder=0)
    left.axvline(1, color="#444444", lw=0.9, ls="--", zorder=0)
    left.set(xlim=(-0.08, 1.04), ylim=(-0.6, len(lines) + 0.5), xlabel="fraction of ideal\n| our plan of copies")
    left.set_title("zero CTAs beside a GEMM", fontsize=8.5)
    top = len(lines) - 0.25
    left.text(0.0, top, "out of place", color=LOCAL, weight="bold", fontsize=8.5)
    left.text(0.99, top, "in place", color=ENGINES, weight="bold", fontsize=8.5, ha="right")
    _times(right, table[(table["gemm"] == example(table)) & (table["collective"] == "all-gather")])
    stamp(figure, rows, f"{TRANSPORTS[ZERO]}, behind {table['gemm'].nunique()} GEMMs")
    return figure


def _times(axis: Any, table: pd.DataFrame) -> None:
    """Bars from the common start to each end; the transfer's own length alone is hatched up to its end."""
    own = table.set_index("way")
    for place, (way, colour) in enumerate(reversed(PLACE.values())):
        if way not in own.index:
            continue
        row = own.loc[way]
        gemm, move, alone = (row[name] * 1e3 for name in ("gemm_s", "transfer_s", "transfer_alone_s"))
        axis.barh(3 * place + 1, gemm, height=0.7, color=GEMM_COLOUR, lw=0)
        axis.text(0.02, 3 * place + 1, "GEMM", va="center", color="white", weight="bold", fontsize=8)
        axis.barh(3 * place, move, height=0.7, color=colour, alpha=0.25, lw=0)
        axis.barh(3 * place, min(alone, move), left=max(0, move - alone), height=0.7, color=colour, alpha=0.75, lw=0)
        axis.text(move - 0.03, 3 * place, "as long as alone", va="center", ha="right", color="white", fontsize=7.5)
        axis.text(0, 3 * place + 1.5, f"{way}: {row['ran']}", color=colour, weight="bold", va="bottom", fontsize=8)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    size = format_size(int(table["total_bytes"].iloc[0]))
    axis.set(xlabel="ms since both were released", ylim=(-0.6, 5.3))
    axis.set_title(f"{table['gemm'].iloc[0]}, all-gather of {size}", fontsize=8.5, x=0)


def finding(rows: pd.DataFrame) -> style.Finding:
    """In place against out of place, our plan, what was seen in time and in the records, and what to do."""
    table = cases(rows)
    means = {way: part["fraction"] for way, part in table[table["collective"] == "all-gather"].groupby("way")}
    shown = table[(table["gemm"] == example(table)) & (table["collective"] == "all-gather")].set_index("way")
    text = ""
    for way in ("out of place", "in place"):
        if way in means:
            row, values = shown.loc[way], means[way]
            waits = (row["transfer_s"] - row["gemm_s"]) / row["transfer_alone_s"]
            text += (
                f"**{way}: {values.mean():.2f}** of ideal ({values.min():.2f} to {values.max():.2f}); records: "
                f"{row['ran']}; while every SM was held it {'ended' if row['engines_only'] else 'did not end'}; beside "
                f"{row.get('gemm', example(table))} it ends {abs(waits):.2f} of its time alone "
                f"{'after' if waits > 0 else 'before'} the GEMM, alone it takes "
                f"{row['transfer_alone_s'] * 1e3:.2f} ms.  \n"
            )
    if "plan" in means:
        plan = means["plan"]
        text += f"Our plan of copies: {plan.mean():.2f} ({plan.min():.2f} to {plan.max():.2f}).  \n"
    other = table[(table["collective"] == "all-to-all") & (table["way"] == "out of place")]
    if len(other):
        text += (
            f"All-to-all ({other['ran'].iloc[0]}) always has the copy inside the GPU: "
            f"{other['fraction'].min():.2f} to {other['fraction'].max():.2f}.  \n"
        )
    return style.Finding(
        f"NCCL with zero CTAs, all-gather, launched behind the GEMM.  \n{text}A copy inside a GPU runs on its SMs: it "
        "waits for a GEMM that holds them, and the copies to peers, behind it on the stream, wait too. What helps: "
        "gather in place (each rank's input is its part of the output), leave a rank's own block out of an exchange, "
        "or use a plan of copies as here."
    )
