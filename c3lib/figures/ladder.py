"""Figures 8 and 10 of arXiv 2412.14335: what each strategy reaches, on average and scenario by scenario."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.experiment import summarise
from c3lib.figures import style
from c3lib.figures.reported import calibrated, elsewhere, reported
from c3lib.figures.taxonomy import pair_names
from c3lib.hardware import COLLECTIVES
from c3lib.strategy import STRATEGIES

CLOSE = 0.05
"""A rung is met when it lies within this of the reported fraction of ideal (the project's target)."""


def rungs(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a strategy: mean fraction of ideal with its interval, the reported value, and how the two stand.

    ``status`` of modelled rungs is "calibrated" where the reported value set a constant of the node, "predicted" where
    it did not; that of others is "measured against reported" or "not a measurement". It is empty where nothing is
    reported.
    """
    table = summarise(rows)
    node = rows["node"].iloc[0]
    known, used = reported(node), calibrated(node)
    keys = [f"fraction_of_ideal.{name}" for name in table["strategy"]]
    table["reported"] = [known[key].value if key in known else float("nan") for key in keys]
    table["deviation"] = table["fraction_of_ideal"] - table["reported"]
    evidence = table["evidence"].iloc[0]
    if evidence == "modelled":
        status = ["calibrated" if key in used else "predicted" for key in keys]
    else:
        status = [evidence if evidence == NOT_A_MEASUREMENT else f"{evidence} against reported"] * len(keys)
    table["status"] = [name if key in known else "" for name, key in zip(status, keys, strict=True)]
    return table.assign(node=node)


@style.styled
def ladder(rows: pd.DataFrame) -> Figure:
    """The ladder: mean fraction of ideal of each strategy with its bootstrap interval, beside the reported value."""
    evidence, table = style.shown(rows), rungs(rows)
    figure, axis = style.canvas(height_in=3.6)
    values = table[["fraction_of_ideal", "low", "high"]].max().max()
    right = max(1.0, values)
    for place, row in enumerate(table.iloc[::-1].itertuples()):
        colour = style.STRATEGY[row.strategy]
        axis.plot([0, row.fraction_of_ideal], [place, place], color=colour, lw=9, alpha=0.25, solid_capstyle="butt")
        axis.plot([row.low, row.high], [place, place], color=colour, lw=2)
        axis.plot([row.fraction_of_ideal], [place], color=colour, **{**style.MODELLED, "ms": 8})
        text = f"{row.fraction_of_ideal:.2f}"
        if row.status:
            axis.plot([row.reported], [place - 0.27], **style.REPORTED)
            text += f" · reported {row.reported:.2f}" + (f", {row.status}" if evidence == "modelled" else "")
        axis.text(right * 1.04, place, text, va="center", color=style.GREY if row.status == "calibrated" else "#222222")
    names = [
        f"{name}\n(oracle)" if oracle else name for name, oracle in zip(table["strategy"], table["oracle"], strict=True)
    ]
    axis.set_yticks(range(len(table)), names[::-1])
    for label, name in zip(axis.get_yticklabels(), table["strategy"][::-1], strict=True):
        label.set(color=style.STRATEGY[name], weight="bold")
    axis.axvline(1, color="#444444", lw=0.9, ls=(0, (4, 2)))
    axis.text(1, len(table) - 0.45, "ideal", ha="center", va="bottom", color="#444444")
    axis.set(
        xlim=(0, right * 1.03),
        ylim=(-0.6, len(table) - 0.4),
        xlabel="mean fraction of ideal speedup, 95 % interval over scenarios",
    )
    scenarios = rows["scenario"].nunique()
    style.stamp(figure, evidence, table["node"].iloc[0], f"{scenarios} scenarios", reported=bool(table["status"].any()))
    return figure


@style.labelled
def finding_ladder(rows: pd.DataFrame) -> style.Finding:
    """How the rungs stand to the reported ones, which the model was told; the best speedup; A2A against AG."""
    table, node = rungs(rows), rows["node"].iloc[0]
    known, evidence = reported(node), table["evidence"].iloc[0]
    best = table.loc[table["speedup_max"].idxmax()]
    dma, cu = table[table["strategy"].str.startswith("conccl")], table[~table["strategy"].str.startswith("conccl")]
    text = _beside_reported(table, evidence)
    text += f"Best speedup on {node}: {best['speedup_max']:.2f}x by {best['strategy']}"
    if known:
        value = known["speedup.max"].value
        text += f" (reported {value:.2f}x{_verdict(': ', evidence, best['speedup_max'] - value, 'agrees')})"
    gains = {kind: f"{gain:+.2f}x" for kind, gain in dma_gain(rows).items()}
    if len(gains) > 1:
        more = dma_gain(rows)["all-to-all"] > dma_gain(rows)["all-gather"]
        text += f". From c3_base to the better DMA strategy all-to-all gains {gains['all-to-all']} and all-gather "
        text += f"{gains['all-gather']}: {'all-to-all gains more' if more else '**all-to-all does not gain more**'}"
    text += "."
    ahead = dma["fraction_of_ideal"].max() - cu["fraction_of_ideal"].max()
    side = "ahead of" if ahead > 0 else "**behind**"
    text += f" The best DMA strategy is {abs(ahead):.2f} of ideal {side} the best CU-driven one."
    beyond = table[table["fraction_of_ideal"] > 1]
    if len(beyond):
        text += (
            f" {' and '.join(beyond['strategy'])} exceed 1: here DMA engines drive the link faster than the library "
            "does, and the library's time is the collective's in every metric."
        )
    return style.Finding(text + elsewhere(node))


def _beside_reported(table: pd.DataFrame, evidence: str) -> str:
    """Sentences on the rungs that something is reported for; of modelled ones those that it did not set count."""
    parts = [
        f"{row.strategy} {row.fraction_of_ideal:.2f} (reported {row.reported:.2f}"
        f"{_verdict(', ', evidence, row.deviation, 'met' if evidence == 'modelled' else 'agrees')})"
        for row in table[~table["status"].isin(("", "calibrated"))].itertuples()
    ]
    if not parts:
        return ""
    heads = {
        "modelled": f"Predicted rungs within {CLOSE:g} of the reported ones",
        NOT_A_MEASUREMENT: "Rungs beside the reported ones, of which they say nothing",
    }
    head = heads.get(evidence, f"Rungs {evidence} against reported (to agree is to lie within {CLOSE:g})")
    told = ", ".join(table.loc[table["status"] == "calibrated", "strategy"])
    return f"{head}: {'; '.join(parts)}. " + (f"Calibrated, so no evidence: {told}. " if told else "")


def _verdict(before: str, evidence: str, deviation: float, close: str) -> str:
    """Whether a number is close to the reported one; only a prediction can miss it; empty for no measurement."""
    if evidence == NOT_A_MEASUREMENT:
        return ""
    far = "**missed**" if evidence == "modelled" else "**differs**"
    return before + (close if abs(deviation) <= CLOSE else far)


def dma_gain(rows: pd.DataFrame) -> dict[str, float]:
    """Mean speedup of the better DMA strategy minus that of ``c3_base``, by collective."""
    means = rows.groupby(["collective", "strategy"])["speedup"].mean()
    kinds = [kind for kind in COLLECTIVES if kind in means]  # a suite may have one kind only
    return {kind: max(means[kind]["conccl"], means[kind]["conccl_rp"]) - means[kind]["c3_base"] for kind in kinds}


@style.styled
def per_scenario(rows: pd.DataFrame, strategies: Sequence[str], note: str = "our shapes") -> Figure:
    """Figs. 8 and 10: speedup of every scenario under some strategies, sorted by what is possible (the grey tick)."""
    evidence = style.shown(rows)
    rows = rows.groupby(["node", "scenario", "strategy", "collective"], sort=False, as_index=False)[
        ["speedup", "ideal"]
    ].median()
    rows = rows.assign(pair=pair_names(rows))
    order = rows.groupby("pair", sort=False)["ideal"].mean().sort_values(kind="stable").index
    place = {name: index for index, name in enumerate(order)}
    figure, axes = style.canvas(1, 2, sharey=True, sharex=True, height_in=max(3.0, 1.3 + 0.23 * min(len(order), 24)))
    for axis, kind in zip(axes, COLLECTIVES, strict=True):
        part = rows[rows["collective"] == kind]
        ideal = part.drop_duplicates("scenario")
        y = ideal["pair"].map(place)
        axis.hlines(y, 1, ideal["ideal"], color=style.FAINT, lw=1, zorder=0)
        axis.plot(ideal["ideal"], y, ls="none", marker="|", ms=9, mew=1.6, color="#333333", label="ideal")
        offsets = np.linspace(0.24, -0.24, len(strategies))
        for name, offset in zip(strategies, offsets, strict=True):
            own = part[part["strategy"] == name]
            marker = "s" if STRATEGIES[name].transport == "dma" else "o"
            label = f"{name} (oracle)" if STRATEGIES[name].oracle else name
            axis.plot(
                own["speedup"],
                own["pair"].map(place) + offset,
                color=style.STRATEGY[name],
                label=label,
                **{**style.MODELLED, "marker": marker, "ms": 4.5},
            )
        axis.axvline(1, color="#444444", lw=0.9)
        axis.set(title=f"{kind} ({style.SHORT[kind]})", xlabel="speedup over serial", ylim=(-0.6, len(order) - 0.4))
    axes[0].set_yticks(range(len(order)), order if len(order) <= 24 else [""] * len(order), fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), handletextpad=0.1, columnspacing=1.2)
    style.stamp(figure, evidence, style.node_of(rows), f"{rows['scenario'].nunique()} scenarios", note)
    return figure


@style.labelled
def finding_scenarios(rows: pd.DataFrame, strategies: Sequence[str]) -> style.Finding:
    """Best and worst case of some strategies, and in how many scenarios overlap by each loses against serial."""
    parts = []
    rows = rows.groupby(["scenario", "strategy"], sort=False, as_index=False)["speedup"].median()
    for name in strategies:
        part = rows[rows["strategy"] == name]
        best, worst = part.loc[part["speedup"].idxmax()], part.loc[part["speedup"].idxmin()]
        losses = int((part["speedup"] < 1).sum())
        text = f"{name}: {worst['speedup']:.2f}x ({worst['scenario']}) to {best['speedup']:.2f}x ({best['scenario']})"
        parts.append(
            text + (f", **slower than serial in {losses} of {len(part)}**" if losses else ", never slower than serial")
        )
    return style.Finding("Speedup, worst to best. " + "; ".join(parts) + ".")
