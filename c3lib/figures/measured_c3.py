"""C3 as a device ran it: what each strategy reaches, copy engines against the best SM kernel, and what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.experiment import summarise
from c3lib.figures import style
from c3lib.figures.measured import count_range, medians, mover, percent, stamp
from c3lib.measured import TRANSPORTS
from c3lib.metrics import ideal_speedup, realised_speedup
from c3lib.strategy import STRATEGIES

DMA, BY_SM = (
    tuple(name for name, how in STRATEGIES.items() if (how.transport == "dma") == dma) for dma in (True, False)
)


def rungs(rows: pd.DataFrame, by: tuple[str, ...] = ("strategy",)) -> pd.DataFrame:
    """One row a strategy (and what else ``by`` names): fraction of ideal against library time and against own time.

    ``fraction_of_ideal``, ``low``, ``high``, ``fraction_of_means``: against the time of the SM kernel at the library's
    default blocks, which ``c3_base`` uses; ``own_fraction``, ``own_low``, ``own_high``, ``own_fraction_of_means``:
    against the time of the strategy's own transport alone. Means over scenarios of the medians of repetitions, with
    bootstrap 95 % intervals.
    """
    style.shown(rows)
    rows = rows.sort_values("strategy", key=lambda names: names.map(list(STRATEGIES).index), kind="stable")
    alone = rows["gemm_alone_s"], rows["own_alone_s"]
    speedup = realised_speedup(*alone, rows["concurrent_s"])
    own = rows.assign(fraction_of_ideal=rows["own_fraction"], ideal=ideal_speedup(*alone), speedup=speedup)
    keys, numbers = list(by), ["fraction_of_ideal", "low", "high", "fraction_of_means"]
    names = {name: f"own_{name.removesuffix('_of_ideal')}" for name in numbers}
    by_own = summarise(own, by)[[*keys, *numbers]].rename(columns=names)
    by_library = summarise(rows, by)[[*keys, "scenarios", *numbers, "oracle", "evidence"]]
    table = by_own.merge(by_library, on=keys).assign(node=rows["node"].iloc[0])
    table = table[[*keys, "scenarios", *names.values(), *numbers, "oracle", "evidence", "node"]]
    return table.assign(setting=[_setting(rows[rows["strategy"] == name]) for name in table["strategy"]])


def _setting(rows: pd.DataFrame) -> str:
    names = rows["transport"].map(TRANSPORTS)
    if names.nunique() > 1:  # variants of a library, of which a sweep may choose another for each scenario
        names = names.str.split(", ").str[0]
    name = " or ".join(names.unique())
    blocks = count_range(rows["blocks"])
    return name if blocks == "0" else f"{name}, {blocks} block{'' if blocks == '1' else 's'}"


def _draw_rungs(axis: Any, table: pd.DataFrame, right: float) -> None:
    for place, row in enumerate(table.iloc[::-1].itertuples()):
        colour = style.STRATEGY[row.strategy]
        axis.plot([0, row.own_fraction], [place, place], color=colour, lw=9, alpha=0.22, solid_capstyle="butt")
        axis.plot([row.own_low, row.own_high], [place, place], color=colour, lw=2)
        axis.plot([row.own_fraction], [place], color=colour, **{**style.MODELLED, "ms": 8})
        axis.plot([row.fraction_of_ideal], [place], ls="none", marker="|", ms=13, mew=1.6, color=colour)
        axis.text(right, place, f"{row.own_fraction:.2f}", va="center", weight="bold", color=colour)
    axis.axvline(1, color="#444444", lw=0.9, ls=(0, (4, 2)))
    axis.axvline(0, color=style.FAINT, lw=0.9, zorder=0)
    axis.text(1, len(table) - 0.45, "ideal", ha="center", va="bottom", color="#444444")
    axis.set(ylim=(-0.6, len(table) - 0.3))


def _ends(table: pd.DataFrame) -> tuple[float, float]:
    values = table[["own_low", "own_high", "fraction_of_ideal"]]
    return min(0.0, float(values.min().min()) - 0.02), max(1.0, float(values.max().max())) + 0.04


@style.styled
def ladder(rows: pd.DataFrame) -> Figure:
    """The ladder: mean fraction of ideal of each strategy against its own transport's time, and by library time."""
    table = rungs(rows)
    figure, axis = style.canvas(height_in=3.7)
    left, right = _ends(table)
    _draw_rungs(axis, table, right)
    for place, row in enumerate(table.iloc[::-1].itertuples()):
        text = f"           [{row.own_low:.2f}, {row.own_high:.2f}], by library time {row.fraction_of_ideal:.2f}"
        axis.text(right, place, text, va="center", fontsize=8, color=style.GREY)
    names = [f"{row.strategy}{' (oracle)' * row.oracle}\n{row.setting}" for row in table.itertuples()]
    axis.set_yticks(range(len(table)), names[::-1], fontsize=8)
    for label, name in zip(axis.get_yticklabels(), table["strategy"][::-1], strict=True):
        label.set(color=style.STRATEGY[name], weight="bold")
    axis.set(
        xlim=(left, right), xlabel="mean fraction of ideal speedup\n● against own transport alone   | by library time"
    )
    axis.xaxis.set_label_coords(0.5, -0.13)
    stamp(figure, rows, f"{rows['scenario'].nunique()} scenarios")
    return figure


@style.styled
def by_bound(rows: pd.DataFrame) -> Figure:
    """The ladder for compute-bound and for memory-bound GEMMs."""
    table = rungs(rows, ("strategy", "bound"))
    left, right = _ends(table)
    figure, axes = style.canvas(1, 2, sharey=True, height_in=3.2)
    for axis, bound in zip(axes, style.BOUND, strict=True):
        part = table[table["bound"] == bound]
        _draw_rungs(axis, part, right + 0.02)
        count = rows.loc[rows["bound"] == bound, "scenario"].nunique()
        axis.set_title(f"{bound}-bound GEMM, {count} scenarios", color=style.BOUND[bound], pad=16)
        axis.set(xlim=(left, right), xlabel="mean fraction of ideal speedup\n● own transport   | by library time")
    names = table["strategy"].drop_duplicates()
    axes[0].set_yticks(range(len(names)), names[::-1])
    for label in axes[0].get_yticklabels():
        label.set(color=style.STRATEGY[label.get_text()], weight="bold")
    stamp(figure, rows, f"{rows['scenario'].nunique()} scenarios")
    return figure


def finding_ladder(rows: pd.DataFrame) -> style.Finding:
    """The headline: the best DMA strategy against the best SM kernel, over all and by bound, with intervals."""
    table, split = rungs(rows).set_index("strategy"), rungs(rows, ("strategy", "bound"))
    names = [
        max((n for n in group if n in table.index), key=lambda n: table.loc[n, "own_fraction"])
        for group in (DMA, BY_SM)
    ]
    parts = []
    for name in names:
        row = table.loc[name]
        each = split[split["strategy"] == name].itertuples()
        bounds = ", ".join(f"{part.bound}-bound {part.own_fraction:.2f}" for part in each)
        parts.append(
            f"{name}{' (an oracle)' if row['oracle'] else ''}: {row['setting']}, **{row['own_fraction']:.2f}** of "
            f"ideal [{row['own_low']:.2f}, {row['own_high']:.2f}] against its own transport's time ({bounds}), "
            f"{row['fraction_of_ideal']:.2f} by library time"
        )
    by_sms = mover(rows).replace(" ", "-")
    text = f"Best copy-engine strategy, {parts[0]}.  \nBest {by_sms} strategy, {parts[1]}."
    text += _beyond(rows, names[0])
    flagged = rows.loc[rows["unstable_ideal"], "scenario"].nunique()
    if flagged:
        text += f"  \n{flagged} scenarios have an ideal speedup near 1, where the fraction divides by next to nothing."
    return style.Finding(text)


def _beyond(rows: pd.DataFrame, name: str) -> str:
    """A sentence about scenarios in which a strategy exceeds 1, if any; it cannot by overlap alone."""
    rows = rows[rows["strategy"] == name]
    each = rows.groupby("scenario")[["gemm_slowdown", "sms_granted"]].median()
    each = each.join(medians(rows, ["scenario"], "own_fraction").set_index("scenario")[["median", "low"]])
    above = each[each["median"] > 1]
    if above.empty:
        return ""
    faster = above[(above["sms_granted"] > 0) & (above["gemm_slowdown"] < 1)]
    rest = above.drop(faster.index)
    text = f"  \n{name} exceeds 1 in {len(above)} of {len(each)} scenarios, which overlap alone cannot do"
    if len(faster):
        text += (
            f": in {len(faster)} of them the GEMM with SMs withheld runs beside the transfer in "
            f"{faster['gemm_slowdown'].median():.3f}x the time that it takes alone with every SM, so a part of the "
            "gain is a better GEMM"
        )
    within, unexplained = int((rest["low"] <= 1).sum()), int((rest["low"] > 1).sum())
    text += f"; {within} are within their interval, which includes 1" if within else ""
    text += f"; {unexplained} are **unexplained**" if unexplained else ""
    return text + "."


def losses(rows: pd.DataFrame, name: str = "conccl_rp") -> pd.DataFrame:
    """Where the rest of ideal is lost: medians by bound and by the kernel that ends last.

    ``scenarios``, ``lost`` (time beyond the longer of the two alone, as a share of it), ``gemm_slowdown`` and
    ``transfer_slowdown`` (end beside the other over its own time alone).
    """
    style.shown(rows)
    part = rows[rows["strategy"] == name]
    longest = np.maximum(part["gemm_alone_s"], part["own_alone_s"])
    part = part.assign(
        last=np.where(part["gemm_end_s"] >= part["collective_end_s"], "GEMM", "transfer"),
        lost=part["concurrent_s"] / longest - 1,
        transfer_slowdown=part["collective_end_s"] / part["own_alone_s"],
    )
    numbers = ["lost", "gemm_slowdown", "transfer_slowdown"]
    each = part.groupby("scenario").agg(
        {"bound": "first", "last": lambda names: names.mode().iloc[0], **dict.fromkeys(numbers, "median")}
    )
    table = each.groupby(["bound", "last"])[numbers].median()
    return table.assign(scenarios=each.groupby(["bound", "last"]).size()).reset_index()


def finding_rest(rows: pd.DataFrame, name: str = "conccl_rp") -> style.Finding:
    """What is missing to ideal with a DMA strategy, by bound and by the kernel that ends last."""
    parts = [
        f"{row.bound}-bound, {row.last} last ({row.scenarios} scenarios): {percent(row.lost, 1, '')} lost; the GEMM "
        f"takes {row.gemm_slowdown:.3f}x its time alone, the transfer {row.transfer_slowdown:.3f}x"
        for row in losses(rows, name).itertuples()
    ]
    return style.Finding(f"What {name} lacks to ideal, medians. " + ".  \n".join(parts) + ".")
