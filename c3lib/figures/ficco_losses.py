"""What cutting costs: decomposition loss of the GEMM by axis, contention loss by transport; modelled, and measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.ficco.sets import PAPER_SET, load_problems
from c3lib.figures import style
from c3lib.figures.measured import percent
from c3lib.hardware import load_node
from c3lib.model.losses import loss_rows

AXES = {"m": "along M (rows)", "n": "along N (columns)", "k": "along K (results added)"}
WAYS = (("#0072B2", "o"), ("#D55E00", "^"))
"""Look of the coarser and of the finer cut."""

TRANSPORT = {"dma": ("DMA engines", style.STRATEGY["conccl_rp"], "s"), "cu": ("CUs", style.STRATEGY["c3_sp"], "o")}
OPERATION = {"gemm": "the GEMM beside the exchange", "exchange": "the exchange beside the GEMM"}
NOTHING = 0.005
"""Losses below this are told as none."""


def rows(node: str, problem_set: str = PAPER_SET) -> pd.DataFrame:
    """Every modelled loss of a set of problems on a node."""
    machine = load_node(node)
    return loss_rows(machine, load_problems(problem_set, machine.ranks))


def decomposed(rows: pd.DataFrame) -> pd.DataFrame:
    """The decomposition losses of GEMMs among rows of :func:`c3lib.model.losses.loss_rows` (or measured alike).

    Raises:
        C3Error: there is none.
    """
    return _some(rows[(rows["loss"] == "decomposition") & (rows["operation"] == "gemm")], "GEMM that is cut")


def contended(rows: pd.DataFrame) -> pd.DataFrame:
    """Contention losses of pieces as one step of a fused 1-D schedule has them: cut along M, as many as ranks.

    Raises:
        C3Error: there is none, as where no problem exchanges anything.
    """
    beside = (rows["loss"] == "contention") & (rows["axis"] == "m")
    return _some(rows[beside & (rows["ways"] == rows["ranks"])], "GEMM cut along M, as often as ranks, and an exchange")


def _some(losses: pd.DataFrame, of: str) -> pd.DataFrame:
    if losses.empty:
        raise C3Error(f"losses: expected some of a {of}, got none")
    return losses


def row_axis(axis: Any, order: Sequence[str]) -> None:
    """A y axis of names, the first on top, with a faint line each."""
    axis.set_yticks(range(len(order)), order[::-1], fontsize=8)
    axis.set_ylim(-0.6, len(order) - 0.4)
    axis.hlines(range(len(order)), 0, 1, color=style.FAINT, lw=0.6, zorder=0, transform=axis.get_yaxis_transform())


@style.styled
def decomposition(rows: pd.DataFrame) -> Figure:
    """Time of all pieces of a GEMM over that of the whole, by axis, for a coarse and a fine cut."""
    evidence, part = style.shown(rows), decomposed(rows)
    order, ways = list(dict.fromkeys(part["problem"])), sorted(part["ways"].unique())
    place = {name: len(order) - 1 - index for index, name in enumerate(order)}
    figure, axes = style.canvas(1, len(AXES), sharex=True, sharey=True, height_in=1.5 + 0.2 * len(order))
    for axis, (name, title) in zip(axes, AXES.items(), strict=True):
        for count, (colour, marker) in zip(ways, WAYS, strict=False):
            own = part[(part["axis"] == name) & (part["ways"] == count)]
            y, x = own["problem"].map(place), 1 + own["value"]
            axis.hlines(y, 1, x, color=colour, lw=1, alpha=0.5)
            axis.plot(x, y, color=colour, label=f"{count} pieces", **{**style.MODELLED, "marker": marker})
        axis.axvline(1, color="#444444", lw=0.9)
        axis.set_title(title)
        row_axis(axis, order)
    factor_axis(axes[0], 1 + part["value"])
    axes[1].set_xlabel("time of all pieces over that of the whole GEMM, each alone")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, handletextpad=0.1)
    style.stamp(figure, evidence, style.node_of(rows), f"{len(order)} GEMMs of a rank", "shapes as transcribed")
    return figure


def factor_axis(axis: Any, values: pd.Series) -> None:
    """A logarithmic x axis of factors from 1 on."""
    top = max(1.6, values.max() * 1.12)
    axis.set_xscale("log")
    axis.set_xlim(min(0.97, values.min() * 0.98), top)
    ticks = [tick for tick in (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50) if tick <= top]
    ticks = [tick for tick in ticks if top < 4 or tick not in (1.2, 1.5)]
    axis.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axis.minorticks_off()


@style.styled
def contention(rows: pd.DataFrame) -> Figure:
    """How much longer a piece's GEMM and its exchange take beside each other, by who moves the bytes."""
    evidence, part = style.shown(rows), contended(rows)
    order = list(dict.fromkeys(part["problem"]))
    place = {name: len(order) - 1 - index for index, name in enumerate(order)}
    figure, axes = style.canvas(1, len(OPERATION), sharey=True, height_in=1.5 + 0.2 * len(order))
    for axis, (operation, title) in zip(axes, OPERATION.items(), strict=True):
        for transport, (name, colour, marker) in TRANSPORT.items():
            own = part[(part["operation"] == operation) & (part["transport"] == transport)]
            look = {**style.MODELLED, "marker": marker, "label": f"exchange by {name}"}
            axis.plot(1 + own["value"], own["problem"].map(place), color=colour, **look)
        own = 1 + part.loc[part["operation"] == operation, "value"]
        axis.axvline(1, color="#444444", lw=0.9)
        axis.set_xlim(min(0.98, own.min() - 0.02), max(1.1, own.max() + 0.04 * np.ptp(own) + 0.02))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.3g}x")
        axis.set(title=title, xlabel="time beside the other over that alone")
        row_axis(axis, order)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, handletextpad=0.1)
    ways = int(part["ways"].iloc[0])
    note = f"a piece of {ways} along M; CUs that the exchange holds are part of it"
    style.stamp(figure, evidence, style.node_of(rows), f"{len(order)} GEMMs", note)
    return figure


def finding_decomposition(rows: pd.DataFrame) -> style.Finding:
    """Median and largest loss by axis and cut, and along which axis each GEMM loses least."""
    evidence, part = style.shown(rows), decomposed(rows)
    texts = []
    for name, title in AXES.items():
        losses = []
        for count in sorted(part["ways"].unique()):
            own = part[(part["axis"] == name) & (part["ways"] == count)]
            worst = own.loc[own["value"].idxmax()]
            losses.append(
                f"{count} pieces {percent(own['value'].median(), 0)} in the median, at most "
                f"{percent(worst['value'], 0)} ({worst['problem']})"
            )
        texts.append(f"{title}: {'; '.join(losses)}")
    coarse = part[part["ways"] == part["ways"].min()]
    least = coarse.loc[coarse.groupby("problem", sort=False)["value"].idxmin()]
    by_axis = least.groupby("axis", sort=False)["problem"].agg(list)
    which = "; ".join(f"{name.upper()}: {', '.join(by_axis[name])}" for name in AXES if name in by_axis)
    head = f"({evidence}) **Time lost by cutting a GEMM**, each piece alone. "
    count = int(part["ways"].min())
    return style.Finding(head + ".  \n".join(texts) + f".  \nLeast lost by {count} pieces when cut along {which}.")


def finding_contention(rows: pd.DataFrame) -> style.Finding:
    """Median slowdown of GEMM and exchange by transport."""
    evidence, part = style.shown(rows), contended(rows)
    texts = []
    for transport, (name, _, _) in TRANSPORT.items():
        own = part[part["transport"] == transport].groupby("operation")["value"]
        middle, most = own.median(), own.max()
        told = [
            f"the {('GEMM', 'exchange')[operation == 'exchange']} {_loss(middle[operation])} longer in the median"
            + (f", {_loss(most[operation])} at most" if most[operation] > middle[operation] + NOTHING else "")
            for operation in OPERATION
            if operation in middle
        ]
        texts.append(f"Exchange by {name}: {'; '.join(told)}")
    return style.Finding(f"({evidence}) **Time lost while both run.** {'.  '.join(texts)}.")


def _loss(value: float) -> str:
    return "nothing" if abs(value) < NOTHING else percent(value, 0, "")


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Every loss: one row a problem, loss, operation, transport, axis and cut."""
    columns = ["node", "evidence", "problem", "loss", "operation", "transport", "axis", "ways", "piece_m", "piece_n"]
    return rows[[*columns, "piece_k", "piece_bytes", "whole_s", "cut_s", "value"]]
