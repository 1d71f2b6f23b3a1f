"""Two figures the paper lacks and users ask for: from which size on overlap pays, and over which part of the plane."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.figures.reported import elsewhere
from c3lib.hardware import COLLECTIVES, Node, load_node
from c3lib.metrics import realised_speedup
from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.strategy import STRATEGIES, strategy
from c3lib.workload import format_size

SIZES = tuple(2.0 ** (power / 2) for power in range(30, 65))
"""Total bytes of the sweep: 32 KiB to 4 GiB in half powers of two."""

RATIOS = tuple(2.0 ** (power / 4) for power in range(-12, 13))
"""GEMM time over collective time: 1/8 to 8."""

SERIAL = 0.02
"""Gain over serial below which overlap is called a loss: launching two streams is not worth less (ours)."""


NEAR = 0.15
"""A GEMM matches the wanted time when it is off by at most this; points without one are left out."""


def matched_gemms(time_s: np.ndarray, bound: str, node: Node) -> kernels.GemmBatch:
    """GEMMs (bf16) whose isolated time is nearest to ``time_s``: 64 x s x s (MB), or s x s x k above the ridge (CB)."""
    if bound not in ("compute", "memory"):
        raise C3Error(f"bound must be compute or memory, not {bound!r}")
    side = np.unique(np.geomspace(1, 4096, 4000).astype(int)) * 64.0
    m, n, k = np.full_like(side, 64), side, side
    if bound == "compute":
        # Several depths a side, as the time of one depth alone jumps from one number of waves to the next.
        m, k = (grid.ravel() for grid in np.meshgrid(side[::8], (0.5, 0.63, 0.8, 1, 1.25, 1.6, 2)))
        n, k = m, np.ceil(m * k / 64) * 64
        keep = 1 / (1 / m + 1 / m + 1 / k) >= node.gpu.ridge  # intensity in 2-byte elements
        m, n, k = m[keep], n[keep], k[keep]
    table = kernels.gemm_time_s(kernels.gemm_batch(m, n, k, 2, node), node.gpu.cus, node)
    nearest = np.abs(np.log(table)[None, :] - np.log(np.ravel(time_s))[:, None]).argmin(1)
    return kernels.gemm_batch(m[nearest], n[nearest], k[nearest], 2, node)


def speedup_rows(
    node: str,
    kind: str = "all-gather",
    sizes: Sequence[float] = SIZES,
    ratios: Sequence[float] = (1.0,),
    strategies: Sequence[str] = tuple(STRATEGIES),
) -> pd.DataFrame:
    """Speedup over serial for each size, GEMM of either bound, and GEMM time as a multiple of the collective's.

    Where no GEMM of that bound is so short, there is no row.
    """
    machine, frames = load_node(node), []
    size, ratio = (grid.ravel() for grid in np.meshgrid(sizes, ratios, indexing="ij"))
    sent = (machine.ranks - 1) * np.ceil(size / machine.ranks)
    collective = kernels.CollectiveBatch(
        np.full(len(size), COLLECTIVES.index(kind)), sent, np.full(len(size), machine.ranks - 1.0)
    )
    alone_s = kernels.library_time_s(collective, machine)
    for bound in ("compute", "memory"):
        gemm = matched_gemms(ratio * alone_s, bound, machine)
        for name in strategies:
            result = predict(gemm, collective, machine, strategy(name))
            speedup = realised_speedup(result.gemm_alone_s, result.collective_alone_s, result.time_s)
            frame = pd.DataFrame({"total_bytes": size, "ratio": ratio, "speedup": speedup})
            frames.append(frame.assign(bound=bound, strategy=name, true_ratio=result.gemm_alone_s / alone_s))
    table = pd.concat(frames, ignore_index=True).assign(node=node, evidence="modelled", collective=kind)
    return table[(table["true_ratio"] / table["ratio"] - 1).abs() <= NEAR].reset_index(drop=True)


def break_even(rows: pd.DataFrame, bound: str, name: str) -> float:
    """Smallest size (bytes) from which on the strategy gains at least :data:`SERIAL` at every size; inf if never."""
    part = rows[(rows["bound"] == bound) & (rows["strategy"] == name)].sort_values("total_bytes")
    losing = part.loc[part["speedup"] < 1 + SERIAL, "total_bytes"]
    larger = part.loc[part["total_bytes"] > (losing.max() if len(losing) else 0), "total_bytes"]
    return float(larger.min()) if len(larger) else np.inf


def dma_ahead_from(rows: pd.DataFrame, bound: str) -> float:
    """Smallest size from which the better DMA strategy beats every CU-driven one at every larger size; inf if never."""
    table = rows[rows["bound"] == bound].pivot_table(index="total_bytes", columns="strategy", values="speedup")
    dma = [name for name in table if STRATEGIES[name].transport == "dma"]
    behind = table.index[table[dma].max(axis=1) <= table.drop(columns=dma).max(axis=1)]
    larger = table.index[table.index > (behind.max() if len(behind) else 0)]
    return float(larger.min()) if len(larger) else np.inf


def _size(nbytes: float) -> str:
    power = int(np.log2(nbytes)) // 10 * 10
    return format_size(round(float(f"{nbytes / 2**power:.2g}") * 2**power))  # half powers of two read 23 MiB, not 22.63


@style.styled
def break_even_size(rows: pd.DataFrame) -> Figure:
    """Speedup against collective size beside a GEMM of the same length: left of a line's foot, overlap is a loss."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    names = [name for name in STRATEGIES if name in rows["strategy"].values]
    figure, axes = style.canvas(1, 2, sharey=True, height_in=4.0)
    for axis, bound in zip(axes, ("compute", "memory"), strict=True):
        for name in names:
            part = rows[(rows["bound"] == bound) & (rows["strategy"] == name)]
            dashed = STRATEGIES[name].oracle
            axis.plot(
                part["total_bytes"],
                part["speedup"],
                color=style.STRATEGY[name],
                lw=1.6,
                ls=(0, (4, 1.5)) if dashed else "-",
            )
        axis.axhspan(0, 1, color=style.FAINT, alpha=0.45, lw=0, zorder=0)
        border = dma_ahead_from(rows, bound)
        if np.isfinite(border):
            axis.axvline(border, color=style.STRATEGY["conccl_rp"], lw=0.9, ls=":")
            axis.text(
                border,
                0.99,
                f" DMA ahead from\n {_size(border)}",
                color=style.STRATEGY["conccl_rp"],
                transform=axis.get_xaxis_transform(),
                va="top",
            )
        style.size_axis(axis, SIZES, "collective size, total")
        axis.set_xticks(
            [2**power for power in (16, 20, 24, 28, 32)], ["64\nKiB", "1\nMiB", "16\nMiB", "256\nMiB", "4\nGiB"]
        )
        axis.set(title="beside a compute-bound GEMM" if bound == "compute" else "beside a memory-bound GEMM")
    bottom, top = rows["speedup"].min(), rows["speedup"].max()
    axes[0].set(ylabel=f"speedup over serial, {rows['collective'].iloc[0]}", ylim=(min(bottom, 0.9) - 0.03, top * 1.1))
    axes[0].text(SIZES[0] * 1.2, min(bottom, 0.9) - 0.015, "loss", color=style.GREY, va="bottom")
    for name in names:
        label = f"{name} (oracle)" if STRATEGIES[name].oracle else name
        axes[0].plot([], [], color=style.STRATEGY[name], lw=3, label=label)
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, handlelength=1.2, columnspacing=1.5
    )
    style.stamp(figure, evidence, node, f"{rows['total_bytes'].nunique()} sizes", "GEMM as long as the collective")
    return figure


def finding_break_even(rows: pd.DataFrame) -> style.Finding:
    """From which size on each strategy pays, and from which size on DMA is the better transport."""
    parts = []
    for bound in ("compute", "memory"):
        sizes = {name: break_even(rows, bound, name) for name in STRATEGIES if name in rows["strategy"].values}
        first = rows.loc[rows["bound"] == bound, "total_bytes"].min()
        groups: dict[str, list[str]] = {}
        for name, size in sizes.items():
            when = "at no size" if np.isinf(size) else "at every size" if size == first else f"from {_size(size)}"
            groups.setdefault(when, []).append(name)
        listed = ", ".join(f"{' and '.join(names)} {when}" for when, names in groups.items())
        listed += f" (swept from {_size(first)}, the smallest beside which a GEMM is as short)"
        ahead = dma_ahead_from(rows, bound)
        text = f"beside a {bound}-bound GEMM: {listed}; "
        text += (
            "DMA never beats the CU-driven ones"
            if np.isinf(ahead)
            else f"DMA beats every CU-driven one from {_size(ahead)}"
        )
        parts.append(text)
    return style.Finding(
        f"**Overlap gains more than {SERIAL:.0%}** "
        + ".  \n".join(parts)
        + ". Below these sizes it is a loss or not worth it."
        + elsewhere(rows["node"].iloc[0])
    )


@style.styled
def surface(rows: pd.DataFrame) -> Figure:
    """Speedup over collective size and GEMM time : collective time, for two strategies beside CB and MB GEMMs."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    names = list(dict.fromkeys(rows["strategy"]))
    figure, axes = style.canvas(2, len(names), sharex=True, sharey=True, height_in=4.6, squeeze=False)
    top = max(1.5, np.ceil(rows["speedup"].max() * 10) / 10)
    levels = np.round(np.arange(min(0.9, np.floor(rows["speedup"].min() * 10) / 10), top + 0.05, 0.1), 2)
    for row, bound in enumerate(("compute", "memory")):
        for axis, name in zip(axes[row], names, strict=True):
            part = rows[(rows["bound"] == bound) & (rows["strategy"] == name)]
            grid = part.pivot_table(index="ratio", columns="total_bytes", values="speedup")
            axis.set_facecolor("#F4F4F4")
            filled = axis.contourf(grid.columns, grid.index, grid, levels=levels, cmap="cividis")
            if (grid < 1).any(axis=None) and (grid > 1).any(axis=None):
                axis.contour(grid.columns, grid.index, grid, levels=[1.0], colors="white", linewidths=2)
            best = part.loc[part["speedup"].idxmax()]
            axis.plot(
                best["total_bytes"], best["ratio"], marker="*", ms=9, color="black", mec="white", mew=0.7, clip_on=False
            )
            style.size_axis(axis, rows["total_bytes"], "collective size, total" if row else "")
            axis.set_xticks(
                [2**power for power in (16, 20, 24, 28, 32)], ["64\nKiB", "1\nMiB", "16\nMiB", "256\nMiB", "4\nGiB"]
            )
            axis.set_yscale("log", base=2)
            axis.set_yticks([1 / 8, 1 / 2, 1, 2, 8], ["1/8", "1/2", "1", "2", "8"])
            axis.minorticks_off()
            axis.set_title(f"{name}, {style.SHORT[bound]} GEMM: best {best['speedup']:.2f}x ★")
    for axis in axes[:, 0]:
        axis.set_ylabel("GEMM time / collective time")
    bar = figure.colorbar(filled, ax=axes, label="speedup over serial", aspect=30, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.axhline(1, color="white", lw=2)
    style.stamp(
        figure,
        evidence,
        node,
        f"{len(rows)} points",
        f"{rows['collective'].iloc[0]}; white line: break-even; blank: no such GEMM",
    )
    return figure


def finding_surface(rows: pd.DataFrame) -> style.Finding:
    """Where the best point of the plane lies for each strategy, and how much of the plane is a loss."""
    parts = []
    for name, part in rows.groupby("strategy", sort=False):
        best = part.loc[part["speedup"].idxmax()]
        loss, gain = (part["speedup"] < 1).mean(), (part["speedup"] >= 1.2).mean()
        parts.append(
            f"{name}: best {best['speedup']:.2f}x where a {style.SHORT[best['bound']]} GEMM takes {best['ratio']:.2f} "
            f"times as long as a collective of {_size(best['total_bytes'])}; at least 1.2x on {gain:.0%} of the plane, "
            f"a loss on {loss:.0%}"
        )
    return style.Finding(".  \n".join(parts) + "." + elsewhere(rows["node"].iloc[0]))
