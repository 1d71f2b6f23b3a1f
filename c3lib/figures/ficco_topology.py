"""The topology argument: peer-to-peer steps against all-peer exchanges on a mesh, a switch and a host link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.ficco import build
from c3lib.ficco.sets import PAPER_SET, load_problems
from c3lib.figures import style
from c3lib.figures.ficco_speedups import BASELINE, SHARD_LEVEL, best
from c3lib.figures.reported import reported
from c3lib.finer import schedule_rows
from c3lib.hardware import PAPER_NODE, load_node
from c3lib.model.pieces import lanes

NODES = ("mi300x_8", "h200_8", "h200_1")
"""A full mesh, a switch, and a host link, 8 ranks each."""

TOPOLOGY = {"mesh": "full mesh", "switch": "switch", "host": "host link"}


def topology_rows(
    nodes: Sequence[str] = NODES, problem_set: str = PAPER_SET, transport: str = "dma", pieces: int = 0
) -> pd.DataFrame:
    """One row a node and problem: what peer-to-peer steps cost against one all-peer exchange of the same bytes.

    ``penalty``: all steps of shard level over the one exchange, nothing beside either. ``shard_speedup``,
    ``finer_speedup``: over serial, whole overlap at shard level and under the best finer-grain schedule (``schedule``)
    that fits.
    """
    frames = []
    for name in nodes:
        node = load_node(name)
        problems = load_problems(problem_set, node.ranks, pieces=pieces)
        rows = schedule_rows(node, problems, [transport])
        speedup = rows.pivot(index="problem", columns="schedule", values="speedup")
        winner = best(rows).set_index("problem")
        programs = [build(how, row.problem, row.problem.busiest) for row in problems for how in (BASELINE, SHARD_LEVEL)]
        exchange_s = [sum(both.start_s) + sum(both.exchange_s) for both in lanes(programs, node, transport)]
        penalty = dict(
            zip((row.name for row in problems), np.divide(exchange_s[1::2], exchange_s[::2]).tolist(), strict=True)
        )
        about = rows.drop_duplicates("problem").set_index("problem")[["node", "evidence", "transport", "piece_bytes"]]
        frames.append(
            about.assign(
                topology=node.topology,
                ranks=node.ranks,
                penalty=pd.Series(penalty),
                shard_speedup=speedup[SHARD_LEVEL],
                finer_speedup=winner["speedup"],
                schedule=winner["schedule"],
            ).reset_index()
        )
    return pd.concat(frames, ignore_index=True)


def penalty_reported() -> float:
    """The reported upper value of the penalty on the paper's mesh."""
    return reported(PAPER_NODE, "ficco")["p2p_penalty.mesh"].value


@style.styled
def topology(rows: pd.DataFrame) -> Figure:
    """Left: how much slower peer-to-peer steps move the same bytes. Right: what that does to the overlap."""
    evidence, nodes = style.shown(rows), list(dict.fromkeys(rows["node"]))
    figure, (left, right) = style.canvas(1, 2, sharey=True, height_in=1.5 + 0.62 * len(nodes))
    shard, finer = style.SCHEDULE[SHARD_LEVEL], style.SCHEDULE["uniform_fused_1d"]
    for place, name in enumerate(reversed(nodes)):
        part = rows[rows["node"] == name]
        spread = np.linspace(-0.13, 0.13, len(part))
        left.plot(part["penalty"], place + spread, color=shard, **{**style.MODELLED, "marker": "X", "ms": 5})
        middle = part["penalty"].median()
        left.text(middle, place + 0.2, f"{middle:.2f}x", ha="center", va="bottom", color=shard, weight="bold")
        if name == PAPER_NODE:
            told = penalty_reported()
            left.plot([told], [place], **style.REPORTED)
            left.text(told, place - 0.17, f"reported: up to {told:g}x", ha="center", va="top", color=style.GREY)
        for column, colour, marker, height in (
            ("finer_speedup", finer, "o", 0.17),
            ("shard_speedup", shard, "X", -0.17),
        ):
            look = {**style.MODELLED, "marker": marker, "ms": 5, "alpha": 0.75}
            right.plot(part[column], place + height + 0.6 * spread, color=colour, **look)
    left.axvline(1, color=style.GREY, lw=0.9, zorder=0)
    right.axvline(1, color=style.GREY, lw=0.9, zorder=0)
    names = [f"{TOPOLOGY[rows.loc[rows['node'] == name, 'topology'].iloc[0]]}\n{name}" for name in nodes]
    left.set_yticks(range(len(nodes)), names[::-1])
    left.set(xlim=(0, max(4.5, rows["penalty"].max()) * 1.12), ylim=(-0.6, len(nodes) - 0.35))
    left.set(xlabel="time of peer-to-peer steps over that of\none exchange with all peers, same bytes")
    right.set(xlabel="speedup over serial", xlim=(0, max(1.9, rows["finer_speedup"].max() * 1.05)))
    right.set_title("shard level", color=shard, loc="left", fontsize=8.5)
    right.set_title("best finer-grain", color=finer, loc="right", fontsize=8.5)
    right.text(0.97, -0.55, "loses ", color=style.GREY, ha="right", va="bottom", fontsize=8)
    count = rows["problem"].nunique()
    note = (
        f"a mark a problem; host link: {style.HOST_VIEW}" if "host" in rows["topology"].values else "a mark a problem"
    )
    told = PAPER_NODE in nodes
    style.stamp(figure, evidence, ", ".join(nodes), f"{count} problems", note, reported=told, paper="third-party")
    return figure


def finding(rows: pd.DataFrame) -> style.Finding:
    """The penalty of each node beside the reported one, and whether finer-grain beats shard level there."""
    style.shown(rows)
    parts = []
    for name, part in rows.groupby("node", sort=False):
        low, high = part["penalty"].min(), part["penalty"].max()
        ratio = part["finer_speedup"] / part["shard_speedup"]
        text = (
            f"**{name}** ({TOPOLOGY[part['topology'].iloc[0]]}): peer-to-peer steps take "
            f"{low:.2f} to {high:.2f} times as long as one exchange with all peers"
        )
        if name == PAPER_NODE:
            told, bound = penalty_reported(), int(part["ranks"].iloc[0]) - 1
            side = "above" if high > told else "below"
            text += (
                f" (reported: up to {told:g}, by a review; one link of {bound} bounds it at {bound}; the model is "
                f"{side} the reported value, and why the paper's is what it is is not public)"
            )
        text += (
            f"; shard level reaches {part['shard_speedup'].min():.2f}x to {part['shard_speedup'].max():.2f}x over "
            f"serial, and the best finer-grain schedule is {ratio.min():.2f} to {ratio.max():.2f} times as fast, "
        )
        text += f"faster on {int((ratio > 1).sum())} of {len(part)} problems"
        parts.append(text)
    return style.Finding(f"({rows['evidence'].iloc[0]}) " + ".  \n".join(parts) + ".")
