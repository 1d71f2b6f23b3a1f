"""The contention model against what was measured, beside the two naive rules: case by case, and errors by group."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.judge import TARGETS, TRANSPORTS, WAYS, by_scenario, verdicts
from c3lib.strategy import STRATEGIES

NAME = {"max": "max(Tg, Tc)", "model": "model", "sum": "Tg + Tc"}
LOOK = {"model": ("o", "#222222"), "max": ("<", "#2A9D8F"), "sum": (">", "#B0436E")}
BAND = TARGETS["all"]
LOWEST, HIGHEST = 0.4, 2.5
"""Ratios beyond these are drawn as an arrow at the edge."""


def _stamp(figure: Figure, rows: pd.DataFrame, n: str) -> None:
    style.stamp(figure, "modelled against measured", rows["node"].iloc[0], n, "")


@style.styled
def ratios(judged: pd.DataFrame, way: str = "isolated") -> Figure:
    """Predicted over measured time of every case, by predictor and transport, with the mean error over the suite.

    The line is a perfect prediction, the band the project's target.
    """
    style.shown(judged)
    rows = judged[judged["way"] == way].assign(ratio=lambda table: table["error"] + 1)
    there = [name for name in TRANSPORTS if (rows["transport"] == name).any()]
    figure, axes = style.canvas(
        len(there), len(NAME), height_in=0.9 + 2.1 * len(there), sharex=True, sharey=True, squeeze=False
    )
    for line, transport in zip(axes, there, strict=True):
        for axis, predictor in zip(line, NAME, strict=True):
            part = rows[(rows["transport"] == transport) & (rows["predictor"] == predictor)]
            axis.axhspan(1 - BAND, 1 + BAND, color=style.FAINT, lw=0, zorder=0)
            axis.axhline(1, color="#444444", lw=0.9, zorder=1)
            for name, cases in part.groupby("strategy", sort=False):
                for table, look in (("sweep", {"ms": 2.2, "alpha": 0.45}), ("suite", {"ms": 4})):
                    _points(axis, cases[cases["table"] == table], style.STRATEGY[str(name)], look)
            mean = by_scenario(part[part["table"] == "suite"]).mean()
            axis.set_title(f"{NAME[predictor]}: {mean:.1%} off")
        line[-1].text(1.01, 1, f"±{BAND:.0%}", transform=line[-1].get_yaxis_transform(), va="center", color=style.GREY)
        line[0].set_ylabel(f"{TRANSPORTS[transport]}\npredicted / measured")
    for axis in axes[-1]:
        axis.set_xlabel("measured time, ms")
    bottom = axes[0, 0]
    bottom.set(xscale="log", yscale="log", ylim=(LOWEST * 0.95, HIGHEST * 1.05))
    bottom.set_yticks(ticks := [0.5, 0.7, 1, 1.4, 2], [f"{tick:g}" for tick in ticks])
    low, high = rows["measured_s"].min() * 1e3, rows["measured_s"].max() * 1e3
    shown = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= tick <= high]
    bottom.set_xticks(shown, [f"{tick:g}" for tick in shown])
    bottom.minorticks_off()
    for name in STRATEGIES:
        bottom.plot([], [], color=style.STRATEGY[name], label=name, **style.MODELLED)
    if (rows["table"] == "sweep").any():
        bottom.plot([], [], color=style.GREY, label="sweep", **{**style.MODELLED, "ms": 2.2})
    handles, labels = bottom.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=7, handletextpad=0, columnspacing=0.8)
    _stamp(figure, rows, f"{len(rows) // len(NAME)} configurations, {WAYS[way]}")
    return figure


def _points(axis, cases: pd.DataFrame, colour: str, look: dict) -> None:
    """A dot a case; an arrow at the edge for those beyond it."""
    beyond = {"v": cases["ratio"] < LOWEST, "^": cases["ratio"] > HIGHEST}
    beyond["o"] = ~(beyond["v"] | beyond["^"])
    for marker, chosen in beyond.items():
        own = cases[chosen]
        more = {**style.MODELLED, **look, "marker": marker}
        axis.plot(own["measured_s"] * 1e3, np.clip(own["ratio"], LOWEST, HIGHEST), color=colour, **more)


@style.styled
def errors(judged: pd.DataFrame, scores: pd.DataFrame) -> Figure:
    """Mean absolute error by group with its bootstrap interval: the model beside the naive rules, both ways.

    ``scores``: the scorecard of ``judged``.
    """
    style.shown(judged)
    groups = scores[["by", "group"]].drop_duplicates().reset_index(drop=True)
    place = -(np.arange(len(groups)) + 0.6 * (groups["by"] != groups["by"].shift()).cumsum().to_numpy())
    where = dict(zip(groups["group"], place, strict=True))
    figure, axes = style.canvas(1, 2, height_in=1.1 + 0.24 * len(groups), sharex=True, sharey=True)
    for axis, (way, title) in zip(axes, WAYS.items(), strict=True):
        for predictor, (marker, colour) in LOOK.items():
            part = scores[(scores["way"] == way) & (scores["predictor"] == predictor)]
            strong = predictor == "model"
            y = part["group"].map(where) + (0.17 if strong else -0.17)
            axis.hlines(y, part["low"], part["high"], color=colour, lw=2 if strong else 1.2, alpha=1 if strong else 0.6)
            look = {"marker": marker, "ms": 5 if strong else 4.5, "mew": 0, "ls": "none"}
            axis.plot(part["mean"], y, color=colour, label=NAME[predictor], **look)
            for height, mean in zip(y - 0.17, part["mean"], strict=True) if strong else ():
                axis.text(1.02, height, f"{mean:.1%}", transform=axis.get_yaxis_transform(), va="center", fontsize=8)
        axis.text(1.02, 1, "model", transform=axis.transAxes, va="bottom", fontsize=8)
        axis.set(title=title[0].upper() + title[1:], xlabel="mean absolute error, 95 % interval")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    for group, target in TARGETS.items():
        if group in where:
            axes[0].plot([target, target], where[group] + np.array([-0.42, 0.42]), color="#C0392B", lw=1.6, zorder=0)
    axes[0].plot([], [], color="#C0392B", lw=1.6, label="target")
    axes[0].set(xlim=(0, min(scores["high"].max(), 1.2) * 1.03), ylim=(place[-1] - 0.6, place[0] + 0.6))
    axes[0].set_yticks(place, groups["group"])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=4, handletextpad=0.3)
    _stamp(figure, judged, f"{judged['scenario'].nunique()} scenarios")
    return figure


def finding(scores: pd.DataFrame) -> style.Finding:
    """How far off the model and the naive rules are, whether the targets are met, where the model is worst."""
    given = scores[scores["way"] == "isolated"].set_index(["group", "predictor"])
    alone = scores[scores["way"] == "constants"].set_index(["group", "predictor"])
    whole = given.loc[("all", "model")]
    text = (
        f"**With the isolated times given, the model misses {whole['configurations']} measured concurrent times by "
        f"{whole['mean']:.1%} on average** ({whole['low']:.1%} to {whole['high']:.1%} over scenarios); perfect overlap "
        f"misses them by {given.loc[('all', 'max'), 'mean']:.1%}, serial execution by "
        f"{given.loc[('all', 'sum'), 'mean']:.1%}. "
        f"From constants alone it is {alone.loc[('all', 'model'), 'mean']:.1%}."
    )
    for row in verdicts(scores):
        met = "met" if row["met"] else "**missed**"
        where = "over all" if row["group"] == "all" else f"for the {row['group']}"
        text += f" Target {where}, at most {row['target']:.0%}: {row['mean']:.1%}, {met}."
    strategies = given[given["by"] == "strategy"].xs("model", level="predictor")
    naive = pd.concat([given.xs(name, level="predictor")["mean"] for name in ("max", "sum")], axis=1)
    naive = naive.min(axis=1)[strategies.index]
    text += f" Worst strategy: {strategies['mean'].idxmax()} ({strategies['mean'].max():.1%}); worst case: "
    text += f"{whole['worst_case']}, off by {whole['worst']:.0%}."
    worse = naive < strategies["mean"]
    if worse.any():
        text += f" **A naive rule does better for {', '.join(naive.index[worse])}.**"
    tied = ~worse & (naive <= strategies["high"])
    if tied.any():
        text += f" No better than a naive rule, within the interval: {', '.join(naive.index[tied])}."
    return style.Finding(text)


def shown_table(scores: pd.DataFrame) -> pd.DataFrame:
    """The scorecard as a reader wants it: errors in percent."""
    numbers = ["mean", "low", "high", "median", "p90", "bias", "worst"]
    return scores.assign(**(scores[numbers] * 100).round(1)).rename(columns={name: f"{name} %" for name in numbers})
