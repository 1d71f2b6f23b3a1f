"""Who ran when, at what rate, limited by what: one scenario under a few strategies."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import unknown
from c3lib.figures import style
from c3lib.hardware import load_node
from c3lib.metrics import ideal_speedup
from c3lib.model import kernels
from c3lib.model.timeline import timeline
from c3lib.suites import load_suite

TASK = {"gemm": "GEMM", "collective": "collective"}


def timeline_rows(node: str, scenario: str, strategies: Sequence[str], suite: str = "conccl30") -> pd.DataFrame:
    """The timelines of one scenario of a suite under several strategies; ``""`` takes that with most to overlap.

    Raises :class:`C3Error` for an unknown node, suite, scenario or strategy.
    """
    machine = load_node(node)
    known = {item.name: item for item in load_suite(suite, machine.ranks)}
    if not scenario:
        gemm, collective = kernels.batch(list(known.values()), machine)
        alone = kernels.gemm_time_s(gemm, machine.gpu.cus, machine), kernels.library_time_s(collective, machine)
        scenario = list(known)[int(ideal_speedup(*alone).argmax())]
    if scenario not in known:
        raise unknown("scenario", scenario, known)
    frames = [timeline(known[scenario], machine, name).assign(strategy=name) for name in strategies]
    return pd.concat(frames, ignore_index=True).assign(node=node, evidence="modelled", scenario=scenario)


@style.styled
def tasks(rows: pd.DataFrame) -> Figure:
    """Bars from start to end of each task; height is its rate over the isolated one, the label what limits it."""
    evidence, names = style.shown(rows), list(dict.fromkeys(rows["strategy"]))
    figure, axes = style.canvas(len(names), 1, sharex=True, height_in=1.15 + 1.05 * len(names), squeeze=False)
    end = rows["end_s"].max() * 1e3
    for axis, name in zip(axes[:, 0], names, strict=True):
        part = rows[rows["strategy"] == name]
        for place, task in ((1, "gemm"), (0, "collective")):
            colour = "#444444" if task == "gemm" else style.STRATEGY[name]
            own = part[part["task"] == task].sort_values("start_s")
            axis.plot([0, end], [place - 0.4] * 2, color=style.FAINT, lw=0.6, zorder=0)
            labelled = 0.0
            for row in own.itertuples():
                start, stop = row.start_s * 1e3, row.end_s * 1e3
                height = 0.8 * min(row.rate, 1.15)
                axis.bar(start, height, stop - start, place - 0.4, align="edge", color=colour, alpha=0.75, lw=0)
                width = stop - start
                text = f"{row.rate:.0%}: {row.limited_by}"
                if width > 0.011 * len(text) * end and row.rate > 0:
                    axis.text(
                        start + 0.008 * end,
                        place - 0.34,
                        text,
                        fontsize=8,
                        va="bottom",
                        color="white" if task == "gemm" and height > 0.3 else "#222222",
                    )
                    labelled = max(labelled, stop)
            stop = own["end_s"].max() * 1e3
            axis.plot([stop, stop], [place - 0.4, place + 0.4], color=colour, lw=1.4)
        total = part["end_s"].max() * 1e3
        axis.set_yticks([1, 0], [TASK["gemm"], TASK["collective"]])
        axis.set(ylim=(-0.5, 1.55), xlim=(0, end * 1.02))
        axis.set_title(f"{name}: {total:.2f} ms", color=style.STRATEGY[name])
        axis.spines["left"].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[-1, 0].set_xlabel("time (ms); height and percent: rate over that of the kernel alone")
    style.stamp(figure, evidence, style.node_of(rows), f"scenario {rows['scenario'].iloc[0]}")
    return figure


def finding(rows: pd.DataFrame) -> style.Finding:
    """End of each strategy, and what limits each kernel for the longest time."""
    parts = []
    for name, part in rows.groupby("strategy", sort=False):
        limits = []
        for task in TASK:
            own = part[(part["task"] == task) & (part["end_s"] > part["start_s"])]
            longest = (own["end_s"] - own["start_s"]).groupby(own["limited_by"]).sum()
            limits.append(f"{TASK[task]} mostly by {longest.idxmax()}")
        parts.append(f"{name} ends after {part['end_s'].max() * 1e3:.2f} ms ({', '.join(limits)})")
    return style.Finding(f"({style.shown(rows)}) {rows['scenario'].iloc[0]}: {'; '.join(parts)}.")
