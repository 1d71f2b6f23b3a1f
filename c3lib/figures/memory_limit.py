"""Why copies slow a GEMM: what memory bandwidth explains of it, and the slowdown for each byte that copies move."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from c3lib.figures import style
from c3lib.figures.measured import stamp
from c3lib.figures.measured_c3 import DMA
from c3lib.hardware import load_node
from c3lib.metrics import fraction_of_ideal, ideal_speedup, realised_speedup
from c3lib.workload import Gemm

CLOSE = 0.03
"""A time within this of the limit is explained by it (ours)."""


def limits(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a scenario and DMA strategy: medians of a measured suite beside what memory bandwidth would allow.

    The GEMM's bytes are the least it can move, each operand once: A and B read, C written. Copies read what a rank
    sends in its memory and write what it receives: ``link_bytes`` in all. ``gemm_gbs``: the rate of the GEMM alone;
    ``limit_s``: all bytes at that rate, but no less than the longer kernel alone; ``lasts`` and ``limit``: measured and
    limiting time over that longer kernel; ``share``: bytes a second that copies moved while the GEMM ran, over the
    memory's peak; ``slowdown``: of the GEMM, as a share of its time alone with every SM; ``both_gbs``: all bytes over
    the measured time; ``fraction`` and ``fraction_limit``: of ideal.
    """
    style.shown(rows)
    rows = rows[rows["strategy"].isin(DMA)]
    keys = ["strategy", "bound", "scenario", "gemm", "dtype", "link_bytes", "sms_granted"]
    times = ["gemm_alone_s", "own_alone_s", "gemm_end_s", "collective_end_s", "concurrent_s", "own_fraction"]
    table = rows.groupby(keys)[times].median().reset_index()
    gemm_bytes = np.array([Gemm.parse(*row).nbytes for row in zip(table["gemm"], table["dtype"], strict=True)])
    both, peak_gbs = gemm_bytes + table["link_bytes"], load_node(rows["node"].iloc[0]).gpu.hbm_peak_gbs
    alone = table["gemm_alone_s"], table["own_alone_s"]
    longer = np.maximum(*alone)
    limit_s = np.maximum(both / (gemm_bytes / table["gemm_alone_s"]), longer)
    # Copies that go on after the GEMM moved only a part of their bytes beside it.
    beside = table["link_bytes"] * np.minimum(1, table["gemm_end_s"] / table["collective_end_s"])
    return table.assign(
        gemm_gbs=gemm_bytes / table["gemm_alone_s"] / 1e9,
        both_gbs=both / table["concurrent_s"] / 1e9,
        limit_s=limit_s,
        lasts=table["concurrent_s"] / longer,
        limit=limit_s / longer,
        share=beside / table["gemm_end_s"] / 1e9 / peak_gbs,
        slowdown=table["gemm_end_s"] / table["gemm_alone_s"] - 1,
        fraction=table["own_fraction"],
        fraction_limit=fraction_of_ideal(realised_speedup(*alone, limit_s), ideal_speedup(*alone)),
    )


@style.styled
def memory_limit(rows: pd.DataFrame) -> Figure:
    """Memory-bound GEMMs against the limit by memory bandwidth; every GEMM's slowdown against the copies' traffic."""
    table = limits(rows)
    figure, (left, right) = style.canvas(1, 2, height_in=3.7)
    part = table[table["bound"] == "memory"]
    top = part[["lasts", "limit"]].max().max() * 1.02
    left.plot([1, top], [1, top], color="#444444", lw=0.9, zorder=0)
    for name in DMA:
        own = part[part["strategy"] == name]
        left.plot(own["limit"], own["lasts"], color=style.STRATEGY[name], label=_label(own), **style.MODELLED)
    left.legend(loc="upper left", handletextpad=0.1, borderpad=0)
    left.text(
        top, top - 0.045, "all bytes\nat the GEMM's\nown rate", ha="right", va="top", color="#444444", fontsize=7.5
    )
    left.set(xlabel="time of all bytes at the GEMM's own rate", ylabel="measured time (1x: the longer kernel alone)")
    left.set(xlim=(0.995, top), ylim=(0.99, top + 0.04), title="memory-bound GEMMs")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_locator(MultipleLocator(0.05))
        axis.set_major_formatter(lambda value, _: f"{value:.2f}x")

    for bound, colour in style.BOUND.items():
        for name, filled in zip(DMA, (True, False), strict=True):
            own = table[(table["bound"] == bound) & (table["strategy"] == name)]
            look = {**style.MODELLED, "marker": style.BOUND_MARKER[bound], "mew": 1.1, "mec": colour, "ms": 5}
            right.plot(own["share"] * 100, own["slowdown"] * 100, **{**look, "mfc": colour if filled else "white"})
    for height, (bound, slope) in zip((0.87, 0.95), slopes(table).items(), strict=False):
        ends = np.array([0, table["share"].max() * 1.02])
        right.plot(ends * 100, ends * slope * 100, color=style.BOUND[bound], lw=1, ls=":", zorder=0)
        look = {"transform": right.transAxes, "color": style.BOUND[bound], "weight": "bold", "fontsize": 8.5}
        right.text(0.04, height, f"{'▲' if bound == 'memory' else '●'} {bound}-bound: {slope:.2f} % per %", **look)
    right.text(0.04, 0.79, "hollow: conccl_rp", transform=right.transAxes, color=style.GREY, fontsize=8)
    right.set(xlabel="copies' traffic, % of peak bandwidth", ylabel="GEMM slower by %", xlim=(0, None))
    right.set_ylim(top=1.25 * table["slowdown"].max() * 100)
    right.set_title("every GEMM beside copies")
    right.axhline(0, color="#444444", lw=0.8)
    stamp(figure, rows, f"{table['scenario'].nunique()} scenarios")
    return figure


def _label(own: pd.DataFrame) -> str:
    sms = int(own["sms_granted"].max())
    return own["strategy"].iloc[0] + (f", {sms} SMs withheld" if sms else ", every SM")


def slopes(table: pd.DataFrame) -> dict[str, float]:
    """Of the GEMMs that have every SM, by bound: the median slowdown per share of memory bandwidth that copies take."""
    every = table[table["sms_granted"] == 0]
    return {bound: float((part["slowdown"] / part["share"]).median()) for bound, part in every.groupby("bound")}


def finding(rows: pd.DataFrame) -> style.Finding:
    """What memory bandwidth explains of what is missing to ideal, for memory-bound GEMMs and for the others."""
    table, parts = limits(rows), []
    memory = table[table["bound"] == "memory"]
    for _, part in memory.groupby("strategy"):
        over = part["concurrent_s"] / part["limit_s"] - 1
        near, below = int((over.abs() <= CLOSE).sum()), int((over < -CLOSE).sum())
        parts.append(
            f"{_label(part)}: measured over that, median {1 + over.median():.3f} ({1 + over.min():.3f} to "
            f"{1 + over.max():.3f}); {near} of {len(part)} within {CLOSE:.0%}, {below} below; GEMM alone "
            f"{part['gemm_gbs'].median():.0f} GB/s, both together {part['both_gbs'].median():.0f} GB/s; fraction of "
            f"ideal if it took that {part['fraction_limit'].mean():.2f}, measured {part['fraction'].mean():.2f}"
        )
    text = "Memory-bound GEMMs, against all bytes at the rate of the GEMM alone. " + ".  \n".join(parts) + "."
    text += _verdict(memory)
    every = slopes(table)
    told = ", ".join(f"{bound}-bound {slope:.2f}" for bound, slope in every.items())
    text += f"  \nSlowdown of a GEMM with every SM, in % for each % of peak memory bandwidth that copies take: {told}."
    compute = table[(table["bound"] == "compute") & (table["sms_granted"] == 0)]
    if len(compute):
        gap = np.maximum(0, 1 - compute["fraction"]).mean()
        low, high = compute["slowdown"].min(), compute["slowdown"].max()
        spare = (compute["gemm_gbs"] + compute["link_bytes"] / compute["collective_end_s"] / 1e9).max()
        peak = load_node(rows["node"].iloc[0]).gpu.hbm_peak_gbs
        text += (
            f"  \nCompute-bound GEMMs are slowed too, by {low:.1%} to {high:.1%}, and lack {gap:.2f} to ideal, though "
            f"with each operand moved once the two together would take {spare:.0f} GB/s or less, {spare / peak:.0%} of "
            "peak. Either the GEMM moves its operands many times, or it is not bandwidth but memory latency, the L2 or "
            "power: these tables cannot tell."
        )
    return style.Finding(text)


def _verdict(memory: pd.DataFrame) -> str:
    """Whether the limit holds, and what follows."""
    over = memory["concurrent_s"] / memory["limit_s"] - 1
    whole, rest = over[memory["sms_granted"] == 0], over[memory["sms_granted"] > 0]
    text = ""
    near = int((whole.abs() <= CLOSE).sum())
    if 2 * near > len(whole):
        text += (
            f"  \nWith every SM the pair ends when that rate has moved all bytes in {near} of {len(whole)} scenarios: "
            "there **bandwidth explains the loss**."
        )
    if len(rest) and rest.median() < -0.01:
        text += (
            " With SMs withheld it ends sooner, as the pair then moves more bytes a second than the GEMM alone does: "
            "the rate of the GEMM alone is no hard limit of the memory, so this is no bound for conccl_rp."
        )
    return text
