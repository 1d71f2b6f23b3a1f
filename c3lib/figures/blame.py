"""Where the lost time goes: a figure the paper lacks. Mechanisms are those of :mod:`c3lib.model.blame`."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.reported import elsewhere
from c3lib.hardware import load_node
from c3lib.model.blame import BLAME_TITLES, blame_s
from c3lib.model.contention import predict
from c3lib.model.kernels import batch
from c3lib.strategy import STRATEGIES
from c3lib.suites import load_suite


def blame_rows(node: str, suite: str = "conccl30") -> pd.DataFrame:
    """One row a scenario, strategy and mechanism: seconds lost to it, and ``share``, over the longer kernel's time."""
    machine = load_node(node)
    scenarios = load_suite(suite, machine.ranks)
    gemm, collective = batch(scenarios, machine)
    frames = []
    for name, how in STRATEGIES.items():
        result = predict(gemm, collective, machine, how)
        longer = pd.Series([max(pair) for pair in zip(result.gemm_alone_s, result.collective_alone_s, strict=True)])
        for mechanism, lost in blame_s(gemm, collective, machine, how).items():
            frame = pd.DataFrame(
                {"scenario": [item.name for item in scenarios], "lost_s": lost, "share": lost / longer}
            )
            frame["bound"] = [item.gemm.bound(machine.gpu) for item in scenarios]
            frames.append(frame.assign(strategy=name, mechanism=mechanism))
    return pd.concat(frames, ignore_index=True).assign(node=node, evidence="modelled")


@style.styled
def breakdown(rows: pd.DataFrame) -> Figure:
    """Mean lost time of each strategy by mechanism, in percent of the longer kernel; gains extend to the left of 0."""
    evidence = style.shown(rows)
    means = rows.groupby(["strategy", "mechanism"], sort=False)["share"].mean().unstack()[list(style.BLAME)] * 100
    means = means.loc[[name for name in STRATEGIES if name in means.index]]
    figure, axis = style.canvas(height_in=4.1)
    widest = means.clip(lower=0).sum(axis=1).max()
    for place, (_name, row) in enumerate(means.iloc[::-1].iterrows()):
        ends = {1: 0.0, -1: 0.0}
        for mechanism, value in row.items():
            sign = 1 if value >= 0 else -1
            axis.barh(place, value, left=ends[sign], height=0.62, color=style.BLAME[mechanism], lw=0)
            if abs(value) > 0.05 * widest:
                middle = ends[sign] + value / 2
                dark = mechanism in ("hbm", "dispatch", "cu", "cache")
                axis.text(
                    middle,
                    place,
                    f"{value:.0f}",
                    ha="center",
                    va="center",
                    color="white" if dark else "#222222",
                    fontsize=8,
                )
            ends[sign] += value
        total = round(row.sum())
        text = f"{total} % lost" if total >= 0 else f"{-total} % gained"
        axis.text(ends[1] + 0.012 * widest, place, text, va="center", weight="bold")
    labels = [f"{name} (oracle)" if STRATEGIES[name].oracle else name for name in means.index]
    axis.set_yticks(range(len(means)), labels[::-1])
    axis.axvline(0, color="#444444", lw=0.9)
    low = means.clip(upper=0).sum(axis=1).min()
    axis.set(xlim=(low * 1.1, widest * 1.2), xlabel="lost time, % of the longer kernel alone (mean over scenarios)")
    for mechanism in means.columns[(means.abs() > 0.002 * widest).any()]:
        axis.barh([0], [0], color=style.BLAME[mechanism], label=BLAME_TITLES[mechanism])
    figure.legend(loc="outside upper left", ncols=2, fontsize=8, handlelength=1, columnspacing=1.5)
    style.stamp(
        figure,
        evidence,
        style.node_of(rows),
        f"{rows['scenario'].nunique()} scenarios",
        "Shapley value of each mechanism",
    )
    return figure


def finding(rows: pd.DataFrame) -> style.Finding:
    """The mechanism that costs most under each strategy, and what moving to DMA removes."""
    means = rows.groupby(["strategy", "mechanism"], sort=False)["share"].mean().unstack()
    parts = []
    for name in [name for name in STRATEGIES if name in means.index]:
        worst, total = means.loc[name].idxmax(), means.loc[name].sum()
        if total <= 0.005:
            parts.append(f"{name} loses nothing ({total:+.0%})")
            continue
        parts.append(
            f"{name} loses {total:.0%}, most to *{BLAME_TITLES[worst]}* ({means.loc[name, worst] / total:.0%} of it)"
        )
    gain = rows.loc[rows["share"] < -0.005]
    text = f"({rows['evidence'].iloc[0]}) " + "; ".join(parts) + "."
    if len(gain):
        top = gain.groupby("mechanism")["share"].mean().idxmin()
        text += f" Negative parts are gains: here above all *{BLAME_TITLES[top]}*."
    return style.Finding(text + elsewhere(rows["node"].iloc[0]))
