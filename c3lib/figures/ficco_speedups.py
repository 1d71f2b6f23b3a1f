"""Every problem under every schedule: speedup over serial beside the ideal, where it loses, and who limits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from c3lib.errors import C3Error
from c3lib.ficco import FINER, SCHEDULES
from c3lib.ficco.sets import PAPER_SET, load_problems
from c3lib.figures import style
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node

TRANSPORT = {"dma": "pieces by DMA engines", "cu": "pieces by CUs"}
NAMES = {"dma": "DMA", "cu": "CU-driven"}
LANE = {"gemm": "GEMM", "exchange": "exch."}
BASELINE, SHARD_LEVEL = tuple(SCHEDULES)[:2]
COMPARED = (SHARD_LEVEL, *FINER)

LOSS_OR_GAIN = LinearSegmentedColormap.from_list(
    "loss or gain", ["#B35806", "#F7C58C", "#FFFFFF", "#92C0E0", "#14548C"]
)
"""Orange below 1, blue above: told apart by every common kind of colour vision, and in grey by lightness around 1."""

WORST, BEST = 0.4, 1.8
"""Speedups at which the colours end."""


def rows(node: str, problem_set: str = PAPER_SET) -> pd.DataFrame:
    """A set of problems on a node, by the model, under every schedule and transport."""
    machine = load_node(node)
    return schedule_rows(machine, load_problems(problem_set, machine.ranks))


def best(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each problem and transport the fastest of the finer-grain schedules that fits, with its row."""
    finer = rows[rows["schedule"].isin(FINER) & rows["fits"]]
    return finer.loc[finer.groupby(["problem", "transport"], sort=False)["time_s"].idxmin()]


def _complete(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows themselves, if each problem and transport has every schedule; else :class:`C3Error` names what lacks."""
    for (name, transport), part in rows.groupby(["problem", "transport"], sort=False):
        if lacks := [how for how in SCHEDULES if how not in part["schedule"].values]:
            raise C3Error(f"figure: {name} by {transport} has no row of schedule {', '.join(lacks)}")
    return rows


def _order(rows: pd.DataFrame) -> list[str]:
    return list(rows.drop_duplicates("problem").sort_values("ideal", ascending=False, kind="stable")["problem"])


@style.styled
def speedups(rows: pd.DataFrame) -> Figure:
    """A cell a problem, schedule and transport: speedup over serial, the best finer-grain one in bold."""
    evidence, order = style.shown(rows), _order(_complete(rows))
    transports = [name for name in TRANSPORT if name in rows["transport"].values]
    figure, axes = style.canvas(1, len(transports), sharey=True, height_in=1.7 + 0.225 * len(order), squeeze=False)
    norm = TwoSlopeNorm(1, WORST, BEST)
    for axis, transport in zip(axes[0], transports, strict=True):
        part = rows[rows["transport"] == transport].set_index(["problem", "schedule"])
        winner = best(rows[rows["transport"] == transport]).set_index("problem")
        values = np.array([[part.loc[(name, how), "speedup"] for how in COMPARED] for name in order])
        fits = np.array([[part.loc[(name, how), "fits"] for how in COMPARED] for name in order])
        axis.imshow(np.where(fits, values, np.nan), cmap=LOSS_OR_GAIN, norm=norm, aspect="auto")
        for y, name in enumerate(order):
            for x, how in enumerate(COMPARED):
                is_best = name in winner.index and winner.loc[name, "schedule"] == how
                if not fits[y, x]:
                    axis.text(x, y, "full", ha="center", va="center", fontsize=7.5, color=style.GREY)
                    continue
                dark = abs(float(norm(np.clip(values[y, x], WORST, BEST))) - 0.5) > 0.32
                look = {"color": "white" if dark else "#222222", "weight": "bold" if is_best else "normal"}
                axis.text(x, y, f"{values[y, x]:.2f}", ha="center", va="center", fontsize=8, **look)
            if name in winner.index and values[y, 0] > winner.loc[name, "speedup"]:
                axis.add_patch(Rectangle((-0.46, y - 0.46), 0.92, 0.92, fill=False, ec="#111111", lw=1.1))
            ideal = part.loc[(name, BASELINE), "ideal"]
            axis.text(len(COMPARED), y, f"{ideal:.2f}", ha="center", va="center", fontsize=8, color=style.GREY)
            limit = LANE[winner.loc[name, "waiting"]] if name in winner.index else ""
            axis.text(len(COMPARED) + 1, y, limit, ha="center", va="center", fontsize=7.5, color=style.GREY)
        heads = [*COMPARED, "ideal", "best limited by"]
        axis.xaxis.tick_top()
        axis.set_xticks(range(len(heads)), heads, rotation=38, ha="left", rotation_mode="anchor", fontsize=8)
        for label in axis.get_xticklabels():
            known = style.SCHEDULE.get(label.get_text())
            label.set(color=known or style.GREY, weight="bold" if known else "normal")
        axis.set_yticks(range(len(order)), [_label(rows, name) for name in order], fontsize=8)
        axis.tick_params(length=0)
        axis.set(xlim=(-0.5, len(heads) - 0.45), xlabel=TRANSPORT[transport])
        axis.spines[:].set_visible(False)
        axis.axvline(0.5, color="white", lw=3)
    note = "blue gains, orange loses; bold: best finer-grain, framed: shard level beats it"
    note += "" if rows["fits"].all() else "; full: beyond the memory"
    style.stamp(figure, evidence, style.node_of(rows), f"{len(order)} problems, schedules ours", note)
    return figure


def _label(rows: pd.DataFrame, name: str) -> str:
    about = rows[rows["problem"] == name].iloc[0]
    return f"{name} {style.SHORT[about['collective']]}"


def finding(rows: pd.DataFrame) -> style.Finding:
    """Best speedup and ideal of each transport, where overlap loses, and where shard level does better."""
    style.shown(_complete(rows))
    parts = []
    for transport in [name for name in TRANSPORT if name in rows["transport"].values]:
        part = rows[rows["transport"] == transport]
        winner = best(part).set_index("problem")
        if winner.empty:
            parts.append(f"{TRANSPORT[transport]}: **no problem fits the memory**")
            continue
        top = winner["speedup"].idxmax()
        shard = part[part["schedule"] == SHARD_LEVEL].set_index("problem")["speedup"].reindex(winner.index)
        loses, behind = winner.index[winner["speedup"] < 1], winner.index[winner["speedup"] < shard]
        worst = part[part["schedule"].isin(FINER) & part["fits"]]
        worst = worst.loc[worst["speedup"].idxmin()]
        counts = winner["schedule"].value_counts()
        text = (
            f"{TRANSPORT[transport]}: best **{winner.loc[top, 'speedup']:.2f}x** over serial ({top}, "
            f"{winner.loc[top, 'schedule']}; ideal of that problem {winner.loc[top, 'ideal']:.2f}x), mean "
            f"{winner['speedup'].mean():.2f}x; ideal at most {part['ideal'].max():.2f}x. Fastest: "
            f"{', '.join(f'{name} on {count}' for name, count in counts.items())}. "
        )
        text += f"No finer-grain schedule beats serial on {_few(loses)}. " if len(loses) else ""
        text += f"Shard level beats them all on {_few(behind)}. " if len(behind) else "Shard level never does better. "
        text += f"Worst choice: {worst['schedule']} on {worst['problem']}, {worst['speedup']:.2f}x"
        short = part.loc[~part["fits"] & part["schedule"].isin(FINER), "problem"].unique()
        parts.append(text + (f"; too large for the memory under some schedule: {_few(short)}" if len(short) else ""))
    return style.Finding(f"({rows['evidence'].iloc[0]}) " + ".  \n".join(parts) + ".")


def _few(names: pd.Index | np.ndarray) -> str:
    """``"**3 problems** (g1, g2, g4)"``, the first eight by name."""
    more = ", ..." if len(names) > 8 else ""
    return f"**{len(names)} problem{'s' * (len(names) != 1)}** ({', '.join(names[:8])}{more})"


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a schedule and transport: mean, best and worst speedup over the problems, and how many lose."""
    style.shown(rows)
    part = rows[rows["schedule"].isin(COMPARED) & rows["fits"]]
    found = part.groupby(["node", "evidence", "transport", "schedule"], sort=False).agg(
        problems=("problem", "nunique"),
        mean=("speedup", "mean"),
        best=("speedup", "max"),
        worst=("speedup", "min"),
        slower_than_serial=("speedup", lambda values: int((values < 1).sum())),
        exchange_limits=("waiting", lambda names: int((names == "exchange").sum())),
    )
    return found.reset_index()


def everywhere(nodes: Sequence[str], problem_set: str = PAPER_SET) -> pd.DataFrame:
    """One row a node and transport: what the best finer-grain schedule of each problem reaches, and where it loses.

    ``best``, ``mean``: speedup over serial; ``ideal``: the largest; ``behind_serial``, ``behind_shard``: problems on
    which serial or shard level is faster than every finer-grain schedule; ``fastest``: the schedule that most often is.
    """
    found = []
    for node in nodes:
        for transport, part in rows(node, problem_set).groupby("transport", sort=False):
            winner = best(part).set_index("problem")
            shard = part[part["schedule"] == SHARD_LEVEL].set_index("problem")["speedup"].reindex(winner.index)
            found.append(
                {
                    "node": node,
                    "evidence": "modelled",
                    "transport": transport,
                    "problems": len(winner),
                    "best": winner["speedup"].max(),
                    "mean": winner["speedup"].mean(),
                    "ideal": winner["ideal"].max(),
                    "behind_serial": int((winner["speedup"] < 1).sum()),
                    "behind_shard": int((winner["speedup"] < shard).sum()),
                    "fastest": winner["schedule"].mode().iloc[0] if len(winner) else "none",
                    "limited_by_exchange": int((winner["waiting"] == "exchange").sum()),
                }
            )
    return pd.DataFrame(found)
