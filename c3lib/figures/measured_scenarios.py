"""Copy engines against the best SM kernel, scenario by scenario, as a device ran them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.measured import count_range, medians, mover, repetitions, stamp
from c3lib.figures.measured_c3 import BY_SM, DMA
from c3lib.figures.measured_curves import blocks_needed
from c3lib.figures.taxonomy import pair_names
from c3lib.hardware import COLLECTIVES
from c3lib.metrics import bootstrap_interval
from c3lib.workload import format_size

CORNER = 4, 0.4
"""Rows, from below, and share of the width from which on a key stands beside the points of :func:`versus`."""


def best_name(rows: pd.DataFrame) -> str:
    """``"best SM kernel"``, or ``"best NCCL configuration"`` where a library moves the bytes with SMs."""
    name = mover(rows)
    return f"best {name}" if name == "SM kernel" else f"best {name} configuration"


def best_sm(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each scenario the rows of the SM-kernel strategy that ends first (median), chosen with hindsight."""
    style.shown(rows)
    own = rows[rows["strategy"].isin(BY_SM)]
    medians_s = own.groupby(["scenario", "strategy"])["concurrent_s"].median().unstack()
    chosen = own["strategy"] == own["scenario"].map(medians_s.idxmin(axis=1))
    return own[chosen].assign(chosen=own["strategy"])


def duel(rows: pd.DataFrame, name: str = "conccl_rp") -> pd.DataFrame:
    """Time with the best SM kernel over time with a DMA strategy, per scenario, paired by repetition.

    Columns: ``scenario``, ``bound``, ``collective``, ``median``, ``low``, ``high``, ``chosen`` (the SM strategy),
    ``blocks``, ``sms_granted``. Above 1 the copy engine is ahead.
    """
    keys = ["scenario", "repetition"]
    other = best_sm(rows)[[*keys, "concurrent_s", "chosen", "blocks", "sms_granted"]]
    pairs = rows[rows["strategy"] == name].merge(other, on=keys, suffixes=("", "_sm"))
    pairs = pairs.assign(ratio=pairs["concurrent_s_sm"] / pairs["concurrent_s"])
    table = medians(pairs, ["scenario", "bound", "collective"], "ratio")
    first = pairs.groupby("scenario")[["chosen", "blocks_sm", "sms_granted_sm"]].first()
    return table.join(first.rename(columns=lambda column: column.removesuffix("_sm")), on="scenario")


@style.styled
def versus(rows: pd.DataFrame, name: str = "conccl_rp") -> Figure:
    """How much longer the best SM kernel takes than the copy engine, scenario by scenario."""
    table = duel(rows, name).sort_values("median", kind="stable").reset_index(drop=True)
    figure, axis = style.canvas(height_in=max(3.0, 1.2 + 0.13 * len(table)))
    ends = min(0.98, table["median"].min() - 0.02), table["median"].max() + 0.04
    for row in table.itertuples():
        _interval(axis, row, row.Index, style.BOUND[row.bound], ends)
        axis.plot([row.median], [row.Index], color=style.BOUND[row.bound], marker=style.BOUND_MARKER[row.bound], mew=0)
        text = f"{row.chosen}, {row.blocks} blocks" + (f", {row.sms_granted} SMs withheld" if row.sms_granted else "")
        look = {"transform": axis.get_yaxis_transform(), "va": "center", "fontsize": 6.5, "color": style.GREY}
        axis.text(1.01, row.Index, text, **look)
    axis.axvline(1, color="#444444", lw=0.9)
    axis.set_yticks(range(len(table)), table["scenario"], fontsize=6.5)
    _key(axis, table["high"].head(CORNER[0]).max() < ends[0] + CORNER[1] * (ends[1] - ends[0]))
    axis.set(ylim=(-0.7, len(table) - 0.3), xlim=ends, xlabel=f"time with the {best_name(rows)} over time with {name}")
    axis.text(1, len(table) - 0.3, " copy engine ahead →", va="bottom", fontsize=8, color="#444444")
    stamp(figure, rows, f"{len(table)} scenarios")
    return figure


def _key(axis: Any, free: bool) -> None:
    """Markers of the bounds: in the lower right corner where it is free, else above, as no point may stand there."""
    for place, bound in enumerate(style.BOUND):
        look = {"color": style.BOUND[bound], "weight": "bold", "transform": axis.transAxes}
        text = f"{'▲' if style.BOUND_MARKER[bound] == '^' else '●'} {bound}-bound GEMM"
        if free:
            axis.text(0.99, 0.08 - 0.055 * place, text, ha="right", **look)
        else:
            axis.text((0.46, 1.01)[place], 1.005, text, va="bottom", fontsize=7.5, **look)


def _interval(axis: Any, row: Any, height: float, colour: str, ends: tuple[float, float]) -> None:
    """A row's interval; an arrow where it goes on beyond the axis."""
    axis.plot(np.clip([row.low, row.high], *ends), [height] * 2, color=colour, lw=1.4)
    for beyond, end, marker in ((row.low < ends[0], ends[0], 4), (row.high > ends[1], ends[1], 5)):
        if beyond:
            axis.plot([end], [height], marker=marker, color=colour, ms=5, mew=0, clip_on=False)


def finding_versus(rows: pd.DataFrame, name: str = "conccl_rp") -> style.Finding:
    """In how many scenarios the copy engine is ahead of the best SM kernel beyond the interval, and by how much."""
    table, best_sms = duel(rows, name), best_name(rows)
    low, high = bootstrap_interval(table["median"])
    ahead, behind = int((table["low"] > 1).sum()), int((table["high"] < 1).sum())
    best, worst = table.loc[table["median"].idxmax()], table.loc[table["median"].idxmin()]
    return style.Finding(
        f"{name} ends before the {best_sms}, chosen for each scenario with hindsight, in **{ahead} of "
        f"{len(table)}** scenarios and after it in {behind}, beyond the interval of {repetitions(rows)} repetitions. "
        f"Mean ratio of times {table['median'].mean():.3f} [{low:.3f}, {high:.3f}], from {worst['median']:.3f} "
        f"({worst['scenario']}) to {best['median']:.3f} ({best['scenario']}). The {best_sms} uses "
        f"{count_range(table['blocks'])} blocks, most often {table['blocks'].mode().iloc[0]}."
    )


@style.styled
def per_scenario(rows: pd.DataFrame) -> Figure:
    """Fraction of ideal of every scenario: the best SM kernel, and copy engines without and with SMs withheld."""
    best = best_name(rows)
    shown = pd.concat([best_sm(rows).assign(strategy=best), rows[rows["strategy"].isin(DMA)]])
    shown = shown.assign(pair=pair_names(shown))
    table = medians(shown, ["strategy", "bound", "collective", "pair"], "own_fraction")
    ends = min(0.9, table["median"].min() - 0.05), max(1.02, table["median"].max() + 0.05)
    place, colours = _places(table), {best: style.STRATEGY["c3_rp"], **{n: style.STRATEGY[n] for n in DMA}}
    figure, axes = style.canvas(1, 2, sharey=True, sharex=True, height_in=max(3.0, 1.4 + 0.22 * len(place)))
    for axis, kind in zip(axes, COLLECTIVES, strict=True):
        for offset, (name, colour) in zip((0.22, 0, -0.22), colours.items(), strict=True):
            part = table[(table["strategy"] == name) & (table["collective"] == kind)]
            y = part["pair"].map(place) + offset
            for row, height in zip(part.itertuples(), y, strict=True):
                _interval(axis, row, height, colour, ends)
            marker = "o" if name == best else "s"
            axis.plot(part["median"], y, color=colour, label=name, **{**style.MODELLED, "marker": marker, "ms": 4})
        axis.axvline(1, color="#444444", lw=0.9, ls=(0, (4, 2)))
        axis.set(title=f"{kind} ({style.SHORT[kind]})", xlabel="fraction of ideal, own transport's time", xlim=ends)
    bound_of = table.drop_duplicates("pair").set_index("pair")["bound"]
    axes[0].set_yticks(list(place.values()), list(place), fontsize=7.5)
    for label in axes[0].get_yticklabels():
        label.set_color(style.BOUND[bound_of[label.get_text()]])
    axes[0].set_ylim(-0.6, len(place) - 0.4)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, handletextpad=0.1)
    stamp(figure, rows, f"{rows['scenario'].nunique()} scenarios")
    return figure


def _places(table: pd.DataFrame) -> dict[str, int]:
    """Rows of the pairs: memory-bound below, compute-bound above, each sorted by what the last strategy reaches."""
    means = table.groupby(["bound", "pair"])["median"].mean().sort_values(kind="stable").reset_index()
    order = means.sort_values("bound", ascending=False, kind="stable")["pair"]
    return {pair: place for place, pair in enumerate(order)}


def link_use(rows: pd.DataFrame, alone: pd.DataFrame, name: str = "conccl") -> pd.DataFrame:
    """Per scenario the share of the link that a strategy drives beside the GEMM, with its interval.

    The whole is what copy engines reach in a large transfer alone, both ways at once: ``alone``, the isolated table.
    """
    bare_gbs = blocks_needed(alone).set_index("direction").loc["both", "link_gbs"]
    part = rows[rows["strategy"] == name]
    part = part.assign(share=part["link_bytes"] / part["collective_end_s"] / 1e9 / bare_gbs)
    return medians(part, ["scenario", "total_bytes"], "share")


def finding_link(rows: pd.DataFrame, alone: pd.DataFrame, name: str = "conccl") -> style.Finding:
    """How much of the link copy engines drive beside the GEMM, for the smaller and the larger half of the transfers."""
    table = link_use(rows, alone, name).sort_values("total_bytes", kind="stable")
    middle = table["total_bytes"].median()
    parts = []
    for text, part in (
        ("below", table[table["total_bytes"] < middle]),
        ("from", table[table["total_bytes"] >= middle]),
    ):
        if len(part):
            low, high = bootstrap_interval(part["median"])
            size = f"{text} {format_size(int(middle))}{' on' if text == 'from' else ''}"
            parts.append(f"{part['median'].mean():.3f} [{low:.3f}, {high:.3f}] {size} ({len(part)} scenarios)")
    return style.Finding(
        f"Beside the GEMM {name} drives, of what copy engines reach in a large transfer alone, {', '.join(parts)}."
    )
