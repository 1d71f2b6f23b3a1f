"""The ladder as it was measured, as the model had predicted it, and as the paper reports it: a panel each."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import ladder, measured_c3, style
from c3lib.figures.measured import repetitions
from c3lib.figures.reported import reported
from c3lib.hardware import PAPER_NODE
from c3lib.metrics import bootstrap_interval

MISSED = 0.05
"""A rung of the ladder is met when the prediction lies within this of it: the project's target for the paper's."""


def rungs(rows: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """One row a strategy: mean fraction of ideal, measured and predicted, with bootstrap intervals over scenarios.

    ``own``, ``own_low``, ``own_high``: measured against the strategy's own transport alone; ``library...``: measured
    against the library's time; ``predicted...``: the same as the model had it; ``reported``: for another machine,
    by the library's time there. ``error``, ``error_low``, ``error_high``: mean absolute error of the predicted
    concurrent time over scenarios; ``bias``: its signed mean.

    Raises:
        C3Error: rows that no figure may show, a measured table in the place of the prediction, or two suites.
    """
    if style.shown(predicted) != "modelled" or style.shown(rows) != "measured":
        raise C3Error("figure: needs measured rows and modelled ones, in this order")
    if (predicted["suite"].iloc[0], style.node_of(predicted)) != (rows["suite"].iloc[0], style.node_of(rows)):
        raise C3Error("figure: what was predicted is another suite or another node than what was measured")
    # Bootstrap intervals over scenarios depend on their order, which must not be that of the rows.
    rows, predicted = (part.sort_values(["scenario", "strategy", "repetition"]) for part in (rows, predicted))
    found, told = measured_c3.rungs(rows).set_index("strategy"), ladder.rungs(predicted).set_index("strategy")
    known = reported(PAPER_NODE)
    table = pd.DataFrame(
        {
            "own": found["own_fraction"],
            "own_low": found["own_low"],
            "own_high": found["own_high"],
            "library": found["fraction_of_ideal"],
            "library_low": found["low"],
            "library_high": found["high"],
            "predicted": told["fraction_of_ideal"],
            "predicted_low": told["low"],
            "predicted_high": told["high"],
            "setting": found["setting"],
            "oracle": found["oracle"],
        }
    ).loc[found.index]
    table["reported"] = [known[f"fraction_of_ideal.{name}"].value for name in table.index]
    error = _errors(rows, predicted)
    ends = [bootstrap_interval(error[name].abs()) for name in table.index]
    table = table.assign(error=error.abs().mean(), bias=error.mean(), scenarios=len(error))
    return table.assign(error_low=[low for low, _ in ends], error_high=[high for _, high in ends]).reset_index()


def _errors(rows: pd.DataFrame, predicted: pd.DataFrame) -> pd.DataFrame:
    """Signed relative errors of the predicted concurrent times: scenarios by strategies."""
    keys = ["scenario", "strategy"]
    ratio = predicted.groupby(keys)["concurrent_s"].median() / rows.groupby(keys)["concurrent_s"].median()
    return (ratio - 1).unstack()


@style.styled
def beside(rows: pd.DataFrame, predicted: pd.DataFrame, commit: str) -> Figure:
    """Three panels: overlap as measured; by library time measured over what was predicted; what the paper reports."""
    table = rungs(rows, predicted).iloc[::-1].reset_index(drop=True)
    figure, axes = style.canvas(1, 3, sharey=True, height_in=3.9, width_ratios=(1, 1.35, 0.8))
    for row in table.itertuples():
        colour = style.STRATEGY[row.strategy]
        _measured(axes[0], row.Index, (row.own, row.own_low, row.own_high), colour)
        _measured(axes[1], row.Index + 0.17, (row.library, row.library_low, row.library_high), colour)
        axes[1].plot([row.predicted_low, row.predicted_high], [row.Index - 0.2] * 2, color=colour, lw=1.2, ls=":")
        axes[1].plot([row.predicted], [row.Index - 0.2], marker="s", ms=5.5, mfc="white", mec=colour, mew=1.4)
        axes[2].plot([row.reported], [row.Index], **style.REPORTED)
    for axis, name, shift in ((axes[0], "own", 0), (axes[1], "library", 0.17), (axes[2], "reported", 0)):
        _values(axis, table[name], shift)
    _values(axes[1], table["predicted"], -0.2, "predicted ", "normal")
    titles = ("measured: overlap", "measured ● and predicted □", "reported ◇")
    below = (
        "fraction of ideal,\nown transport alone",
        "fraction of ideal,\nlibrary alone",
        "8x MI300X,\nlibrary alone",
    )
    for axis, title, text in zip(axes, titles, below, strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(text, fontsize=8.5)
        axis.axvline(1, color="#444444", lw=0.9, ls=(0, (4, 2)), zorder=0)
        axis.axvline(0, color=style.FAINT, lw=0.9, zorder=0)
    left = min(0.0, table["library_low"].min()) - 0.06
    axes[0].set_xlim(-0.06, 1.08)
    axes[1].set_xlim(left, max(1.0, table[["library_high", "predicted_high"]].max().max()) + 0.05)
    axes[2].set_xlim(-0.06, 1.08)
    names = [f"{row.strategy}{' (oracle)' * row.oracle}\n{row.setting}" for row in table.itertuples()]
    axes[0].set(ylim=(-0.6, len(table) - 0.4))
    axes[0].set_yticks(range(len(table)), names, fontsize=8)
    for label, name in zip(axes[0].get_yticklabels(), table["strategy"], strict=True):
        label.set(color=style.STRATEGY[name], weight="bold")
    n = f"{rows['scenario'].nunique()} scenarios, {repetitions(rows)} repetitions"
    evidence = f"measured beside modelled (commit {commit[:7]}, before the run)"
    style.stamp(figure, evidence, style.node_of(rows), n, note="", reported=True)
    return figure


def _measured(axis: Any, height: float, numbers: tuple[float, float, float], colour: str) -> None:
    value, low, high = numbers
    axis.plot([0, value], [height] * 2, color=colour, lw=7, alpha=0.22, solid_capstyle="butt")
    axis.plot([low, high], [height] * 2, color=colour, lw=2)
    axis.plot([value], [height], color=colour, **{**style.MODELLED, "ms": 7})


def _values(axis: Any, values: pd.Series, shift: float, before: str = "", weight: str = "bold") -> None:
    """Values as text at the panel's right end, the one place where no bar runs through them."""
    for place, value in enumerate(values):
        where = {"transform": axis.get_yaxis_transform(), "va": "center", "ha": "left"}
        axis.text(1.02, place + shift, f"{before}{value:.2f}", fontsize=7.5, weight=weight, color="#333333", **where)


def finding(rows: pd.DataFrame, predicted: pd.DataFrame) -> style.Finding:
    """Which rungs were predicted and which were not, by how much, and how far off the concurrent times were."""
    table = rungs(rows, predicted)
    gap = table["predicted"] - table["library"]
    met = table[gap.abs() <= MISSED]
    parts = [
        f"{row.strategy} {row.predicted:.2f} predicted, {row.library:.2f} measured ("
        + ("met" if row.Index in met.index else "**missed**")
        + f"; times off by {row.error:.1%} [{row.error_low:.1%}, {row.error_high:.1%}], bias {row.bias:+.1%})"
        for row in table.itertuples()
    ]
    text = (
        f"Fractions of ideal by the library's time, predicted from the node's constants before the suite was "
        f"run. Within {MISSED:g}: {len(met)} of {len(table)}.  \n" + ".  \n".join(parts) + "."
    )
    worst = table.loc[gap.abs().idxmax()]
    if abs(worst["predicted"] - worst["library"]) > MISSED:
        direction = "too well" if worst["predicted"] > worst["library"] else "too badly"
        text += (
            f"  \nThe model was furthest off with {worst['strategy']}, which it saw do {direction} by "
            f"{abs(worst['predicted'] - worst['library']):.2f}."
        )
    return style.Finding(text)


def finding_uneven(rows: pd.DataFrame, share: float = 0.05) -> style.Finding:
    """Scenarios in which one transport's time alone differs by more than ``share`` between two strategies of a suite.

    Both ran the very same transfer alone, so what differs is the spread of the machine; it moves the fraction of ideal.
    """
    style.shown(rows)
    same = ["scenario", "transport", "batched", "blocks", "high_priority"]
    alone = rows.groupby([*same, "strategy"])["own_alone_s"].median().reset_index()
    each = alone.groupby(same)["own_alone_s"].agg(["min", "max", "size"]).reset_index()
    each = each[(each["size"] > 1) & (each["max"] > (1 + share) * each["min"])]
    if each.empty:
        return style.Finding(f"No transfer alone differs by more than {share:.0%} between two strategies.")
    parts = []
    for row in each.itertuples():
        own = rows[(rows["scenario"] == row.scenario) & (rows["transport"] == row.transport)]
        told = own.groupby("strategy", sort=False)[["own_alone_s", "own_fraction"]].median()
        parts.append(
            f"{row.scenario}: "
            + ", ".join(f"{name} {t.own_alone_s * 1e3:.3f} ms (F {t.own_fraction:.2f})" for name, t in told.iterrows())
        )
    return style.Finding(
        f"**The same transfer alone took different times** in {len(each)} of "
        f"{rows['scenario'].nunique()} scenarios, which moves their fraction of ideal: {'; '.join(parts)}."
    )
