"""Figures 5a to 5c of arXiv 2412.14335: kernels alone, with fewer CUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.claims import evaluator
from c3lib.figures import style
from c3lib.figures.reported import elsewhere, reported
from c3lib.hardware import COLLECTIVES, load_node
from c3lib.model import kernels
from c3lib.suites import load_suite

LOST_CUS = (8, 32, 64)
"""CUs taken away at which a slowdown is reported."""


def suite_batch(node: str, suite: str) -> tuple[Any, list, kernels.GemmBatch, kernels.CollectiveBatch]:
    """A node, the scenarios of a suite for it, and these as batches."""
    machine = load_node(node)
    scenarios = load_suite(suite, machine.ranks)
    return machine, scenarios, *kernels.batch(scenarios, machine)


def gemm_rows(node: str, suite: str = "conccl30") -> pd.DataFrame:
    """Slowdown of each GEMM shape of a suite with CUs taken away, from none to 45 % of them in partition steps."""
    machine, scenarios, gemm, _ = suite_batch(node, suite)
    gpu = machine.gpu
    alone = kernels.gemm_time_s(gemm, gpu.cus, machine)
    frames = [
        pd.DataFrame(
            {
                "node": node,
                "evidence": "modelled",
                "gemm": [str(item.gemm) for item in scenarios],
                "bound": [item.gemm.bound(gpu) for item in scenarios],
                "cus_lost": lost,
                "slowdown": kernels.gemm_time_s(gemm, gpu.cus - lost, machine) / alone,
            }
        )
        for lost in range(0, int(gpu.cus * 0.45), gpu.cus_step)
    ]
    return pd.concat(frames).drop_duplicates(["gemm", "cus_lost"]).reset_index(drop=True)


@style.styled
def gemm_slowdown(rows: pd.DataFrame) -> Figure:
    """Fig. 5a: mean GEMM slowdown against CUs taken away, with the range over shapes and the reported values."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    known, cus = reported(node), load_node(node).gpu.cus
    figure, axis = style.canvas()
    lost = np.sort(rows["cus_lost"].unique())
    axis.plot(lost, cus / (cus - lost), color=style.GREY, lw=1, ls=":")
    axis.text(lost[-1], cus / (cus - lost[-1]), " linear share", color=style.GREY, va="bottom", ha="left")
    for bound, part in rows.groupby("bound", sort=False):
        colour, curve = style.BOUND[bound], part.groupby("cus_lost")["slowdown"].agg(["mean", "min", "max"])
        axis.fill_between(curve.index, curve["min"], curve["max"], color=colour, alpha=0.18, lw=0)
        axis.plot(curve.index, curve["mean"], color=colour)
        count = part["gemm"].nunique()
        axis.text(
            lost[-1],
            curve["mean"].iloc[-1],
            f" {style.SHORT[bound]}, {count} shapes",
            color=colour,
            va="center",
            weight="bold",
        )
        for count in LOST_CUS:
            value = known.get(f"{style.SHORT[bound].lower()}_gemm_slowdown.lost_{count}_cus")
            if value is not None and np.isnan(value.value):
                axis.vlines(count, value.low, value.high, color=style.GREY, lw=1.2)
                axis.plot([count, count], [value.low, value.high], **{**style.REPORTED, "markersize": 4.5})
            elif value is not None:
                axis.plot([count], [value.value], **style.REPORTED)
    axis.axhline(1, color=style.FAINT, lw=0.8, zorder=0)
    axis.set(
        xlabel=f"compute units taken from the GEMM, of {cus}",
        ylabel="GEMM time over time with all",
        xlim=(0, lost[-1] * 1.24),
    )
    axis.set_xticks([tick for tick in (0, 8, 16, 32, 48, 64, 96, 128) if tick <= lost[-1]])
    style.stamp(figure, evidence, node, f"{rows['gemm'].nunique()} GEMM shapes, mean and range", reported=bool(known))
    return figure


def finding_gemm(rows: pd.DataFrame) -> style.Finding:
    """Slowdowns at the reported CU counts, beside the reported values, and which of them the model misses."""
    node = rows["node"].iloc[0]
    known, means = reported(node), rows.groupby(["bound", "cus_lost"])["slowdown"].mean()
    parts = []
    for bound in [name for name in style.BOUND if name in rows["bound"].values]:
        for count in [count for count in LOST_CUS if (bound, count) in means.index]:
            claim = f"{style.SHORT[bound].lower()}_gemm_slowdown.lost_{count}_cus"
            mean, value = means[bound, count], known.get(claim)
            text = f"{style.SHORT[bound]} with {count} CUs fewer takes {mean:.3f}x its time"
            if value is not None:
                off = evaluator(claim).tolerance
                low, high = (value.value - off, value.value + off) if np.isnan(value.low) else (value.low, value.high)
                said = f"{value.value:.2f}x ± {off:g}" if np.isnan(value.low) else f"{low:.2f} to {high:.2f}x"
                text += f" (reported {said}: {'agrees' if low <= round(mean, 3) <= high else '**missed**'})"
            parts.append(text)
    return style.Finding("; ".join(parts) + "." + elsewhere(node))


def collective_rows(node: str, suite: str = "conccl30", most_cus: int = 128) -> pd.DataFrame:
    """Time of each library collective of a suite against the CUs given to it, over its time with the default CUs."""
    machine, scenarios, _, collective = suite_batch(node, suite)
    default = kernels.library_time_s(collective, machine)
    counts = [cus for cus in (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128) if cus <= most_cus]
    frames = [
        pd.DataFrame(
            {
                "node": node,
                "evidence": "modelled",
                "collective": [item.collective.kind for item in scenarios],
                "total_bytes": [item.collective.nbytes for item in scenarios],
                "cus": cus,
                "slowdown": kernels.cu_collective_time_s(collective, cus, machine) / default,
            }
        )
        for cus in counts
        if cus >= machine.gpu.cus_step or machine.gpu.dies == 1
    ]
    return pd.concat(frames).drop_duplicates(["collective", "total_bytes", "cus"]).reset_index(drop=True)


def saturation(rows: pd.DataFrame) -> dict[str, int]:
    """First power of two of CUs from which at most 1 % of mean time is left to gain, by collective (a sweep's grid)."""
    found, rows = {}, rows[(rows["cus"] & (rows["cus"] - 1)) == 0]
    for kind, curve in rows.groupby(["collective", "cus"])["slowdown"].mean().groupby("collective"):
        flat = curve[curve <= 1.01 * curve.min()]
        found[str(kind)] = int(flat.index[0][1])
    return found


@style.styled
def collective_slowdown(rows: pd.DataFrame) -> Figure:
    """Figs. 5b and 5c: slowdown of AG and A2A against CUs given, 1.0 at the library's default; reported saturation."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    known, machine, flat = reported(node), load_node(node), saturation(rows)
    figure, axes = style.canvas(1, 2, sharey=True)
    for axis, kind in zip(axes, COLLECTIVES, strict=True):
        part, short = rows[rows["collective"] == kind], style.SHORT[kind]
        if part.empty:  # a suite may have one kind only
            axis.set(title=f"{kind} ({short}): not in this suite", xticks=[])
            continue
        curve = part.groupby("cus")["slowdown"].mean()
        axis.plot(curve.index, curve, color=style.KIND[kind], marker="o", ms=4.5)
        default = machine.library[kind].default_cus
        axis.axvline(default, color=style.FAINT, lw=1.2, zorder=0)
        top = float(rows.groupby(["collective", "cus"])["slowdown"].mean().max())
        axis.text(default, top * 0.97, f" default\n {default}", color=style.GREY, va="top")
        value = known.get(f"saturation_cus.{short.lower()}")
        if value is not None:
            axis.plot([value.value], [1], **{**style.REPORTED, "markersize": 8})
            axis.annotate(
                f"reported:\nflat from {value.value:.0f}", (value.value, 1), (0, -14), textcoords="offset points",
                ha="center", va="top", color=style.GREY,
            )  # fmt: skip
        axis.annotate(
            f"model: flat\nfrom {flat[kind]}", (flat[kind], curve[flat[kind]]), (4, 24), textcoords="offset points",
            color=style.KIND[kind], weight="bold", arrowprops={"arrowstyle": "-", "color": style.KIND[kind], "lw": 0.8},
        )  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_xticks(
            ticks := [2**power for power in range(8) if 2**power >= curve.index[0]], [str(tick) for tick in ticks]
        )
        axis.set_yscale("log", base=2)
        axis.set_yticks(
            marks := [mark for mark in (0.5, 1, 2, 4, 8, 16) if mark <= top * 1.2], [f"{mark:g}" for mark in marks]
        )
        axis.minorticks_off()
        axis.set(title=f"{kind} ({short})", xlabel="compute units given", ylim=(0.55, top * 1.15))
    axes[0].set_ylabel("time over time with default CUs")
    sizes = rows["total_bytes"].nunique()
    style.stamp(figure, evidence, node, f"mean of {sizes} sizes, flat: powers of 2 only", reported=bool(known))
    return figure


def finding_collective(rows: pd.DataFrame) -> style.Finding:
    """From how many CUs on each collective is flat, against what is reported, and whether that calibrated the model."""
    node = rows["node"].iloc[0]
    known, flat, constants = reported(node), saturation(rows), load_node(node).constants
    parts = []
    for kind, cus in flat.items():
        value = known.get(f"saturation_cus.{style.SHORT[kind].lower()}")
        text = f"{kind} is flat from {cus} CUs on a power-of-two grid"
        if value is not None:
            verdict = "agrees" if cus == value.value else f"**differs by {abs(cus - value.value):.0f}**"
            text += f" (reported {value.value:.0f}: {verdict}"
            text += ", calibrated on it)" if constants[f"{kind}.cu_gbs"].calibrated_on else ")"
        parts.append(text)
    return style.Finding(
        "; ".join(parts)
        + ". Beside a GEMM, CUs beyond that are taken for nothing: the link is the limit."
        + elsewhere(node)
    )
