"""NCCL beside a GEMM that leaves it an SM for each thread block: in clusters that start together, and singly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.figures.measured import TRANSPORT, stamp
from c3lib.figures.measured_overlap import by_order
from c3lib.measured import TRANSPORTS

LIBRARY = {"nccl": style.STRATEGY["c3_base"], "nccl_unclustered": style.STRATEGY["c3_rp"]}
FIRST = {"gemm": ("o", "behind the GEMM"), "transfer": ("s", "before it")}
FOUND = 0.2
"""Above this fraction of ideal the transfer is told to have found room beside the GEMM (ours)."""


def room(rows: pd.DataFrame) -> pd.DataFrame:
    """Fraction of ideal of the library's transfers with an SM left free for each of its blocks; table ``order``.

    Columns as :func:`c3lib.figures.measured_overlap.by_order` has them.

    Raises:
        C3Error: rows that no figure may show, or none of the library with SMs left free.
    """
    table = by_order(rows, "fraction")
    library = table["transport"].isin(LIBRARY) & (table["sms_asked"] > 0) & (table["sms_asked"] >= table["blocks"])
    if not library.any():
        raise C3Error("figure: no row of NCCL beside a GEMM that leaves SMs free")
    return table[library].reset_index(drop=True)


def engines(rows: pd.DataFrame) -> dict[str, float]:
    """By GEMM: the fraction of ideal of copy engines beside the GEMM on every SM, mean over launch orders."""
    table = by_order(rows, "fraction")
    table = table[(table["transport"] == "copy_engine") & (table["sms_asked"] == 0)]
    return table.groupby("gemm")["median"].mean().to_dict()


@style.styled
def clusters(rows: pd.DataFrame) -> Figure:
    """Fraction of ideal against blocks, each with an SM left free for it, by whether blocks start in clusters."""
    table, best = room(rows), engines(rows)
    gemms = list(dict.fromkeys(zip(table["bound"], table["gemm"], strict=True)))
    figure, axes = style.canvas(1, len(gemms), sharey=True, height_in=3.3, squeeze=False)
    blocks = sorted(table["blocks"].unique())
    place = {count: index for index, count in enumerate(blocks)}
    for axis, (bound, gemm) in zip(axes[0], gemms, strict=True):
        for step, (name, first, own) in enumerate(_lines(table[table["gemm"] == gemm])):
            colour, (marker, when) = LIBRARY[name], FIRST[first]
            x = own["blocks"].map(place) + 0.17 * (step - 1.5)  # apart, so that no interval runs into another's point
            face = colour if first == "gemm" else "white"
            axis.errorbar(x, own["median"], _errors(own), fmt="none", ecolor=colour, elinewidth=1.4, capsize=2.5)
            axis.plot(x, own["median"], ls="none", color=colour, marker=marker, mfc=face, label=_text(name, when))
        if gemm in best:
            axis.axhline(best[gemm], color=TRANSPORT["copy engine"], lw=1.6, label="copy engine, GEMM on every SM")
        axis.axhline(0, color="#999999", lw=0.8, zorder=0)
        axis.axhline(1, color="#444444", lw=0.9, ls="--", zorder=0)
        axis.set_title(f"{bound}-bound, {gemm}", color=style.BOUND[bound], fontsize=9)
        axis.set_xticks(range(len(blocks)), blocks)
        for between in range(len(blocks) - 1):
            axis.axvline(between + 0.5, color=style.FAINT, lw=0.8, zorder=0)
        axis.set(xlabel="NCCL's blocks, an SM left free for each", xlim=(-0.5, len(blocks) - 0.5))
    axes[0][0].set_ylabel("fraction of ideal, own time")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    stamp(figure, rows, "all-gather about as long as the GEMM")
    return figure


def _errors(own: pd.DataFrame) -> np.ndarray:
    return np.array([own["median"] - own["low"], own["high"] - own["median"]])


def _text(name: str, when: str) -> str:
    return f"NCCL, {'clusters' if name == 'nccl' else 'no clusters'}, launched {when}"


def _lines(part: pd.DataFrame) -> list[tuple[str, str, Any]]:
    """Transport, what is first, and rows by blocks; of several SMs left free for as many blocks the fewest."""
    part = part.sort_values(["blocks", "sms_asked"]).drop_duplicates(["transport", "first", "blocks"])
    return [
        (name, first, part[(part["transport"] == name) & (part["first"] == first)])
        for name in LIBRARY
        for first in FIRST
        if ((part["transport"] == name) & (part["first"] == first)).any()
    ]


def finding(rows: pd.DataFrame) -> style.Finding:
    """Where the library finds the SMs that are left free for it, in clusters and singly, behind the GEMM."""
    table, best, parts = room(rows), engines(rows), []
    for (bound, gemm), part in table[table["first"] == "gemm"].groupby(["bound", "gemm"]):
        for name, own in part.groupby("transport"):
            each = ", ".join(f"{row.blocks} → {row.median:.2f}" for row in own.sort_values("blocks").itertuples())
            found = int((own["median"] > FOUND).sum())
            parts.append(
                f"{bound}-bound {gemm}, {TRANSPORTS[str(name)]}: blocks → fraction {each}; finds room in {found} of "
                f"{len(own)}"
            )
        if gemm in best:
            parts[-1] += f" (copy engine, nothing left free: {best[gemm]:.2f})"
    behind = table[table["first"] == "gemm"].set_index(["gemm", "blocks", "sms_asked", "transport"])["median"].unstack()
    text = "Launched behind a GEMM that leaves an SM free for each block. " + ".  \n".join(parts) + "."
    if set(LIBRARY) <= set(behind):
        pairs = behind[list(LIBRARY)].dropna()
        helped = int(((pairs["nccl"] <= FOUND) & (pairs["nccl_unclustered"] > FOUND)).sum())
        text += (
            f"  \nIn **{helped} of {len(pairs)}** cases NCCL finds the free SMs only if its blocks start singly "
            "(`NCCL_CGA_CLUSTER_SIZE=0`). By default they start in clusters, whose blocks need room at the same time "
            "in one GPC."
        )
        gain = (pairs["nccl_unclustered"] - pairs["nccl"]).to_numpy()
        text += f" Least and largest change: {np.min(gain):+.2f}, {np.max(gain):+.2f}."
    return style.Finding(text)
