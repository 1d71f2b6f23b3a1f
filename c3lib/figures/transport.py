"""Figure 9 of arXiv 2412.14335, its premise in bytes, and a figure it lacks: DMA engines against CUs as transport."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.reported import elsewhere, reported
from c3lib.hardware import COLLECTIVES, Node, load_node
from c3lib.model import kernels
from c3lib.workload import LATENCY_BOUND_BELOW, format_size

SIZES = tuple(2**power for power in range(12, 33))
"""Total bytes of the sweep: 4 KiB to 4 GiB."""

AT_PAR = 1.1
"""DMA is at par with the library where it takes at most this times the library's time (ours, as the claims have it)."""

MIB = 2**20  # a size reported in MB, its base unstated, is taken as MiB, as the claims take it


def _batch(kind: str, sizes: np.ndarray, node: Node) -> kernels.CollectiveBatch:
    rank_bytes = np.ceil(sizes / node.ranks)
    full = lambda value: np.full(len(sizes), value)  # noqa: E731
    return kernels.CollectiveBatch(full(COLLECTIVES.index(kind)), (node.ranks - 1) * rank_bytes, full(node.ranks - 1.0))


def size_rows(node: str) -> pd.DataFrame:
    """Isolated time of both collectives over size, by the library's default and by DMA; ``share`` is of the plateau.

    The plateau is the median bandwidth of the three largest sizes (facts section 8).
    """
    machine, frames = load_node(node), []
    sizes = np.array(SIZES, float)
    for kind in COLLECTIVES:
        batch = _batch(kind, sizes, machine)
        times = {
            "library": kernels.library_time_s(batch, machine),
            "dma": kernels.dma_collective_time_s(batch, machine),
        }
        for transport, time_s in times.items():
            bandwidth = batch.sent_bytes / time_s / 1e9
            frame = pd.DataFrame({"total_bytes": sizes, "time_s": time_s, "bandwidth_gbs": bandwidth})
            share = bandwidth / np.median(bandwidth[-3:])
            frames.append(
                frame.assign(collective=kind, transport=transport, share=share, over_library=time_s / times["library"])
            )
    return pd.concat(frames, ignore_index=True).assign(node=node, evidence="modelled")


def latency_bound_below(rows: pd.DataFrame, kind: str, transport: str, threshold: float = LATENCY_BOUND_BELOW) -> float:
    """Size in bytes at which bandwidth reaches ``threshold`` of its plateau, interpolated between the sizes swept."""
    part = rows[(rows["collective"] == kind) & (rows["transport"] == transport)]
    return float(2 ** np.interp(threshold, part["share"], np.log2(part["total_bytes"])))


def parity_from(rows: pd.DataFrame, kind: str) -> float:
    """Smallest size swept from which DMA is at par with the library at every larger one; inf if at none."""
    part = rows[(rows["collective"] == kind) & (rows["transport"] == "dma")]
    slower = part.loc[part["over_library"] > AT_PAR, "total_bytes"]
    larger = part.loc[part["total_bytes"] > (slower.max() if len(slower) else 0), "total_bytes"]
    return float(larger.min()) if len(larger) else np.inf


@style.styled
def dma_over_library(rows: pd.DataFrame) -> Figure:
    """Fig. 9: isolated DMA time over library time against size, with the reported parity and small-size penalty."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    known = reported(node)
    dma = rows[rows["transport"] == "dma"]
    figure, axis = style.canvas()
    top = max(dma["over_library"].max(), 4.2 if known else 0) * 1.12
    axis.axhline(1, color=style.FAINT, lw=1, zorder=0)
    for kind, part in dma.groupby("collective", sort=False):
        axis.plot(part["total_bytes"], part["over_library"], color=style.KIND[kind], marker="o", ms=3.5)
    first = dma[dma["total_bytes"] == SIZES[0]].set_index("collective")["over_library"]
    alike = np.ptp(first) < 0.05 * top
    labels = {" and ".join(first.index): "#444444"} if alike else {kind: style.KIND[kind] for kind in first.index}
    for (name, colour), height in zip(labels.items(), first, strict=False):
        axis.text(SIZES[0] * 1.15, height + top * 0.03, name, color=colour, weight="bold", va="bottom")
    if known:
        factor, below = known["small_size_slowdown"].value, known["small_size_slowdown_below"].value * MIB
        axis.plot([SIZES[0], below], [factor, factor], color=style.GREY, lw=1, ls=(0, (3, 2)))
        axis.plot([below], [factor], **style.REPORTED)
        axis.text(
            below * 1.25,
            factor,
            f"reported: up to {factor:g}x\nslower below {below / MIB:.0f} MB",
            color=style.GREY,
            va="center",
        )
        start = known["rccl_parity_from"].value * MIB
        axis.plot([start, SIZES[-1]], [known["rccl_parity_ratio"].value] * 2, color=style.GREY, lw=1, ls=(0, (3, 2)))
        axis.plot([start], [known["rccl_parity_ratio"].value], **style.REPORTED)
        axis.annotate(
            f"reported: equal\nfrom {start / MIB:.0f} MB",
            (start, 1),
            (0, 26),
            textcoords="offset points",
            ha="center",
            color=style.GREY,
        )
    axis.text(SIZES[0] * 1.15, 0.97, "DMA faster", color=style.GREY, va="top", fontsize=8)
    style.size_axis(axis, SIZES, "collective size, total")
    axis.set(ylabel="DMA time over library time", ylim=(0, top))
    style.stamp(figure, evidence, node, f"{len(SIZES)} sizes", "each alone", bool(known))
    return figure


@style.styled
def plateau(rows: pd.DataFrame) -> Figure:
    """Where a collective is latency-bound: its bandwidth over its plateau against size, by library and by DMA."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    known = reported(node)
    figure, axes = style.canvas(1, 2, sharey=True)
    for axis, kind in zip(axes, COLLECTIVES, strict=True):
        corner = {"transform": axis.transAxes, "ha": "right"}
        for transport, look in (("library", {"ls": "-"}), ("dma", {"ls": (0, (5, 1.5))})):
            part = rows[(rows["collective"] == kind) & (rows["transport"] == transport)]
            colour = style.STRATEGY["c3_sp" if transport == "library" else "conccl_rp"]
            axis.plot(part["total_bytes"], part["share"], color=colour, **look)
            border = latency_bound_below(rows, kind, transport)
            axis.plot([border], [LATENCY_BOUND_BELOW], color=colour, **style.MODELLED)
            name, height = ("library", 0.26) if transport == "library" else ("DMA", 0.18)
            axis.text(0.98, height, f"{name}: < {border / MIB:.0f} MiB", color=colour, weight="bold", **corner)
        axis.axhspan(0, LATENCY_BOUND_BELOW, color=style.FAINT, alpha=0.35, lw=0, zorder=0)
        value = known.get(f"latency_bound_below.{style.SHORT[kind].lower()}")
        if value is not None:
            axis.plot([value.value * MIB], [LATENCY_BOUND_BELOW], **style.REPORTED)
            axis.text(0.98, 0.1, f"reported: < {value.value:.0f} MB", color=style.GREY, **corner)
        axis.text(0.98, 0.34, "latency-bound", color="#333333", **corner)
        style.size_axis(axis, SIZES, "collective size, total")
        axis.set(title=f"{kind} ({style.SHORT[kind]})", ylim=(0, 1.05))
    axes[0].set_ylabel("bandwidth over its plateau")
    axes[0].text(SIZES[0] * 1.3, LATENCY_BOUND_BELOW, f"{LATENCY_BOUND_BELOW:g}", color=style.GREY, va="bottom")
    style.stamp(figure, evidence, node, f"{len(SIZES)} sizes", "our criterion", bool(known))
    return figure


def finding_sizes(rows: pd.DataFrame) -> style.Finding:
    """Penalty at small sizes, parity, latency borders; each beside what is reported, saying where it does not hold."""
    node = rows["node"].iloc[0]
    known, parts = reported(node), []
    for kind in COLLECTIVES:
        dma = rows[(rows["collective"] == kind) & (rows["transport"] == "dma")]
        worst, start = dma["over_library"].max(), parity_from(rows, kind)
        text = f"**{kind}**: DMA takes up to {worst:.1f}x the library's time at small sizes"
        text += (
            f" and is at par (within {AT_PAR - 1:.0%}) from {format_size(int(start))}"
            if np.isfinite(start)
            else " and never comes to par"
        )
        if known:
            large = dma.loc[dma["total_bytes"] >= known["rccl_parity_from"].value * MIB, "over_library"].max()
            factor = known["small_size_slowdown"].value
            text += (
                f" (reported: up to {factor:g}x, {'near' if abs(worst - factor) <= 0.25 * factor else '**not met**'}; "
            )
            text += f"equal from {known['rccl_parity_from'].value:.0f} MB, where ours is at most {large:.2f}x)"
        border = latency_bound_below(rows, kind, "library")
        text += f"; latency-bound below {border / MIB:.1f} MiB by the library"
        value = known.get(f"latency_bound_below.{style.SHORT[kind].lower()}")
        if value is not None:
            near = 0.5 <= border / (value.value * MIB) <= 2
            verdict = "within a factor of 2" if near else "**does not hold under our criterion**"
            text += f" (reported {value.value:.0f} MB: {verdict})"
        parts.append(text)
    return style.Finding(".  \n".join(parts) + "." + elsewhere(node))


def cu_rows(node: str, nbytes: int = 2**30) -> pd.DataFrame:
    """Link bandwidth reached against CUs spent, for each transport, at one large size; DMA spends none."""
    machine = load_node(node)
    peak = machine.links_used() * machine.link.peak_gbs
    rows: list[dict] = []
    for kind in COLLECTIVES:
        counts = np.unique(np.r_[np.arange(1, 9), np.arange(0, machine.gpu.cus // 2 + 1, 4)[1:]])
        batch = _batch(kind, np.array([float(nbytes)]), machine)
        for cus in counts:
            time_s = kernels.cu_collective_time_s(batch, float(cus), machine)[0]
            rows.append({"transport": kind, "cus": int(cus), "share": batch.sent_bytes[0] / time_s / 1e9 / peak})
    time_s = kernels.dma_collective_time_s(batch, machine)[0]
    rows.append({"transport": "dma", "cus": 0, "share": batch.sent_bytes[0] / time_s / 1e9 / peak})
    return pd.DataFrame(rows).assign(node=node, evidence="modelled", total_bytes=nbytes)


@style.styled
def cus_needed(rows: pd.DataFrame) -> Figure:
    """How many CUs each transport needs for how much of the link rate: a figure the paper lacks."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    machine = load_node(node)
    figure, axis = style.canvas()
    enough = {}
    for kind in COLLECTIVES:
        part = rows[rows["transport"] == kind]
        enough[kind] = int(part.loc[part["share"] >= 0.99 * part["share"].max(), "cus"].min())
    last = min(
        rows["cus"].max(), 1.6 * max(*enough.values(), *(machine.library[kind].default_cus for kind in COLLECTIVES))
    )
    for kind, drop in zip(COLLECTIVES, (0.0, 0.07), strict=True):
        part = rows[(rows["transport"] == kind) & (rows["cus"] <= last)]
        same = len(set(enough.values())) == 1
        axis.plot(part["cus"], part["share"], color=style.KIND[kind], ls="-" if not drop else (0, (5, 1.5)))
        default = machine.library[kind].default_cus
        axis.text(
            last, 0.2 - drop, f"{kind} by CUs: {enough[kind]} needed, {default} taken by default",
            color=style.KIND[kind], ha="right", va="top", weight="bold",
        )  # fmt: skip
        if not (same and drop):
            axis.plot([enough[kind]], [part["share"].max()], color=style.KIND[kind], **style.MODELLED)
    dma = rows[rows["transport"] == "dma"].iloc[0]
    axis.plot(
        [0], [dma["share"]], color=style.STRATEGY["conccl_rp"], clip_on=False, zorder=5, **{**style.MODELLED, "ms": 9}
    )
    blue = style.STRATEGY["conccl_rp"]
    axis.annotate(
        f"DMA engines: {dma['share']:.0%} of link peak with 0 CUs", (0, dma["share"]), (12, 14),
        textcoords="offset points", color=blue, weight="bold", arrowprops={"arrowstyle": "-", "color": blue, "lw": 0.8},
    )  # fmt: skip
    axis.set(
        xlim=(0, last),
        ylim=(0, 1.05),
        xlabel=f"compute units spent on moving data, of {machine.gpu.cus}",
        ylabel="share of link peak reached",
    )
    style.stamp(figure, evidence, node, format_size(int(dma["total_bytes"])), "kernel alone")
    return figure


def finding_cus(rows: pd.DataFrame) -> style.Finding:
    """CUs that buy the last percent of link rate, and what the DMA engines reach with none."""
    node = rows["node"].iloc[0]
    machine, dma = load_node(node), rows.loc[rows["transport"] == "dma", "share"].iloc[0]
    parts = []
    for kind in COLLECTIVES:
        part = rows[rows["transport"] == kind]
        enough = part.loc[part["share"] >= 0.99 * part["share"].max(), "cus"].min()
        parts.append(
            f"{kind} needs {enough} CUs ({enough / machine.gpu.cus:.0%} of the GPU) "
            f"for {part['share'].max():.0%} of link peak"
        )
    best = rows.loc[rows["transport"] != "dma", "share"].max()
    verdict = "as much as" if abs(dma - best) < 0.01 else "more than" if dma > best else "**less than**"
    return style.Finding(f"{'; '.join(parts)}; DMA engines reach {dma:.0%} with none, {verdict} the library.")
