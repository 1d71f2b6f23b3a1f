"""The design space of finer-grain overlap: which part of A each schedule multiplies when, and both queues over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from c3lib.errors import unknown
from c3lib.ficco import SCHEDULES, Block, Problem, Program, Task, build
from c3lib.ficco.graph import COPY, GATHER, GEMM, SCATTER
from c3lib.ficco.schedules import STAGED, home
from c3lib.ficco.sets import PAPER_SET, Row, load_problems
from c3lib.figures import style
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node
from c3lib.model.order import order_of
from c3lib.model.pieces import lanes
from c3lib.model.pipeline import simulate

OWN = -1
"""Stands for the step of a GEMM over nothing but the rank's own shard."""

FIRST, LAST = 0.06, 0.92
"""The part of the colour map that steps take, so that the last one still differs from white."""


def choose(node: str, problem: str = "", problem_set: str = PAPER_SET) -> Row:
    """A problem of a set by name; ``""`` takes the one with most to overlap on the node.

    Raises:
        C3Error: an unknown node, set or problem.
    """
    machine = load_node(node)
    known = {row.name: row for row in load_problems(problem_set, machine.ranks)}
    if not problem:
        table = schedule_rows(machine, list(known.values()), ["dma"], ["serial"])
        problem = str(table.loc[table["ideal"].idxmax(), "problem"])
    if problem not in known:
        raise unknown("problem", problem, known)
    return known[problem]


def cut_rows(node: str, row: Row) -> pd.DataFrame:
    """Which rows and columns of A go into which GEMM: one row a block of A, GEMM and schedule.

    Columns ``row``, ``rows``, ``col``, ``cols`` as fractions of A, rows in the order of their ranks; ``step`` of the
    GEMM (:data:`OWN` where it needs nothing from others) and its ``gemm`` number.
    """
    problem, found = row.problem, []
    rank = problem.busiest
    for name in SCHEDULES:
        program = build(name, problem, rank)
        for number, task in enumerate(program.of(GEMM)):
            own = name != "serial" and not task.after and task.a.rows == problem.rows[rank][rank]
            for top, rows in _places(program, task):
                block = {"row": top / problem.m[rank], "rows": rows / problem.m[rank]}
                block |= {"col": task.a.col / problem.k, "cols": task.a.cols / problem.k}
                found.append({"schedule": name, **block, "step": OWN if own else task.step, "gemm": number})
    return pd.DataFrame(found).assign(node=node, evidence="modelled", problem=row.name, ranks=problem.ranks)


def _places(program: Program, gemm: Task) -> Iterator[tuple[int, int]]:
    """First row in A, were it in the order of ranks, and number of rows of what a GEMM reads."""
    problem, rank, a = program.problem, program.rank, gemm.a
    if program.schedule not in STAGED:
        yield a.row, a.rows
        return
    if a.buffer == "own":
        yield _place(problem, rank, a), a.rows
    for task in program.tasks:
        if task.op in (COPY, GATHER) and a.buffer == "a" and a.row <= task.out.row < a.row + a.rows:
            yield _place(problem, rank, task.a), task.a.rows


def _place(problem: Problem, rank: int, source: Block) -> int:
    before = sum(row[rank] for row in problem.rows[: source.rank])
    return before + source.row - home(problem, source.rank, rank, staged=True)[1]


@style.styled
def cuts(rows: pd.DataFrame) -> Figure:
    """A as one rank multiplies it under each schedule: a colour a step, a frame a GEMM where a step has several."""
    evidence, names = style.shown(rows), list(dict.fromkeys(rows["schedule"]))
    figure, axes = style.canvas(2, 3, height_in=4.6, sharex=True, sharey=True)
    last = max(1, int(rows["step"].max()))
    colours = matplotlib.colormaps["viridis_r"]
    for axis, name in zip(axes.flat, names, strict=False):
        part = rows[rows["schedule"] == name]
        several = part.groupby("step")["gemm"].transform("nunique") > 1
        for block, alone in zip(part.itertuples(), several, strict=True):
            colour = style.FAINT if block.step == OWN else colours(FIRST + (LAST - FIRST) * block.step / last)
            edge = {"ec": "white", "lw": 0.35} if alone else {"ec": colour, "lw": 0}
            axis.add_patch(Rectangle((block.col, block.row), block.cols, block.rows, fc=colour, **edge))
        for rank in range(1, rows["ranks"].iloc[0]):
            axis.axhline(rank / rows["ranks"].iloc[0], color="white", lw=1.6)
        gemms = part["gemm"].nunique()
        axis.set_title(f"{name}\n", color=style.SCHEDULE[name])
        axis.text(0, -0.02, f"{gemms} GEMM{'s' * (gemms > 1)}", va="bottom", fontsize=8.5, color="#333333")
        if (part["step"] == OWN).any():
            own = part[part["step"] == OWN].iloc[0]
            look = {"ha": "center", "va": "center", "fontsize": 8, "color": "#333333"}
            axis.text(0.5, own["row"] + own["rows"] / 2, "own shard, at once", **look)
        axis.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("columns of A (K)")
    for axis in axes[:, 0]:
        axis.set_ylabel("rows of A, by owner")
    steps = ListedColormap([colours(FIRST + (LAST - FIRST) * step / last) for step in range(last + 1)])
    scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(-0.5, last + 0.5), steps)
    bar = figure.colorbar(scale, ax=axes, label="step whose exchange the GEMM waits for", aspect=35, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_ticks([0, last], labels=["1", f"{last + 1}"])
    what = f"{rows['problem'].iloc[0]}, one rank's A"
    style.stamp(figure, evidence, rows["node"].iloc[0], what, "definitions are the project's own")
    return figure


def timeline_rows(node: str, row: Row, transport: str = "dma") -> pd.DataFrame:
    """What both queues do under every schedule: one row an operation, with its start and end in seconds.

    ``lane``: ``kernel`` or ``exchange``; ``op``: ``gemm``, ``move`` (gather or scatter) or ``exchange``. GEMMs that
    wait for the same exchange are given equal parts of their time. ``serial_s`` and ``ideal_s`` are of the problem.
    """
    machine, found = load_node(node), []
    table = schedule_rows(machine, [row], [transport]).set_index("schedule")
    programs = [build(name, row.problem, row.problem.busiest) for name in SCHEDULES]
    for program, both in zip(programs, lanes(programs, machine, transport), strict=True):
        ran, groups = simulate(both), order_of(program, machine, transport)[0]
        ops = ["move" if group.kernels[0].moved_nbytes else "gemm" for group in groups]
        counts = [len(group.kernels) for group in groups]
        parts = zip(ops, ran.kernels, counts, strict=True)
        spans = [("kernel", op, *piece) for op, span, count in parts for piece in _split(span, count)]
        spans += [("exchange", "exchange", *span) for span in ran.exchanges]
        found += [(program.schedule, *span, table.loc[program.schedule, "speedup"]) for span in spans]
    columns = ["schedule", "lane", "op", "start_s", "end_s", "speedup"]
    about = table.iloc[0]
    return pd.DataFrame(found, columns=columns).assign(
        node=node,
        evidence="modelled",
        problem=row.name,
        transport=transport,
        serial_s=about["serial_s"],
        ideal_s=about["serial_s"] / about["ideal"],
    )


def _split(span: tuple[float, float], count: int) -> list[tuple[float, float]]:
    start, step = span[0], (span[1] - span[0]) / count
    return [(start + index * step, start + (index + 1) * step) for index in range(count)]


BEYOND = 1.15
"""Times this over serial's end the time axis is cut off."""


@style.styled
def timelines(rows: pd.DataFrame) -> Figure:
    """Both queues of a rank under each schedule: exchanges above, kernels below, one time axis for all."""
    evidence, names = style.shown(rows), list(dict.fromkeys(rows["schedule"]))
    figure, axes = style.canvas(len(names), 1, sharex=True, height_in=1.2 + 0.72 * len(names), squeeze=False)
    ideal = rows["ideal_s"].iloc[0] * 1e3
    end = min(rows["end_s"].max(), BEYOND * rows["serial_s"].iloc[0]) * 1e3
    for axis, name in zip(axes[:, 0], names, strict=True):
        part, colour = rows[rows["schedule"] == name], style.SCHEDULE[name]
        looks = {"gemm": (0, 1.0, colour), "move": (0, 1.0, "#F2A93B"), "exchange": (1, 0.5, colour)}
        for op, bars in part.groupby("op", sort=False):
            place, alpha, fill = looks[str(op)]
            start, width = bars["start_s"] * 1e3, (bars["end_s"] - bars["start_s"]) * 1e3
            thin = np.minimum(0.6, 40 * width / end) if op != "move" else 0.0
            look = {
                "color": fill,
                "alpha": alpha,
                "edgecolor": "white",
                "linewidth": thin,
                "zorder": 3 if op == "move" else 2,
            }
            axis.barh(np.full(len(bars), place), width, 0.82, start, **look)
        stop = part["end_s"].max() * 1e3
        axis.axvline(ideal, color="#444444", lw=0.9, ls=(0, (4, 2)), zorder=0)
        text = f"{stop:.1f} ms" + ("" if name == "serial" else f"\n{part['speedup'].iloc[0]:.2f}x")
        beyond = "\u2192 " if stop > end else ""
        axis.text(min(stop, end) + 0.012 * end, 0.5, beyond + text, va="center", color=colour, weight="bold")
        axis.set_yticks([1, 0], ["exchange", "kernels"], fontsize=8)
        axis.set_title(name, color=colour, pad=2, fontsize=9)
        axis.set(xlim=(0, end), ylim=(-0.5, 1.5))
        axis.spines["left"].set_visible(False)
        axis.spines["bottom"].set_visible(axis is axes[-1, 0])
        axis.tick_params(axis="y", length=0)
        axis.tick_params(axis="x", length=3 if axis is axes[-1, 0] else 0)
    axes[0, 0].text(ideal, 1.55, "ideal", ha="center", va="bottom", fontsize=8.5, color="#444444")
    has_moves = (rows["op"] == "move").any()
    axes[-1, 0].set_xlabel("time, ms" + ("; orange: rows gathered or scattered within the GPU" if has_moves else ""))
    note = f"pieces by {TRANSPORT_TEXT[rows['transport'].iloc[0]]}; schedules are the project's own"
    style.stamp(figure, evidence, rows["node"].iloc[0], rows["problem"].iloc[0], note)
    return figure


TRANSPORT_TEXT = {"dma": "DMA engines", "cu": "CUs"}


def finding_timelines(rows: pd.DataFrame) -> style.Finding:
    """Fastest and slowest schedule of the problem, and how long kernels idle under each while bytes move."""
    style.shown(rows)
    ends = rows.groupby("schedule", sort=False)["end_s"].max().sort_values(kind="stable")
    speedup = rows.drop_duplicates("schedule").set_index("schedule")["speedup"]
    kernels = rows[rows["lane"] == "kernel"].assign(busy=lambda table: table["end_s"] - table["start_s"])
    idle = 1 - kernels.groupby("schedule")["busy"].sum() / ends
    best, worst = ends.index[0], ends.index[-1]
    ideal = rows["serial_s"].iloc[0] / rows["ideal_s"].iloc[0]
    text = (
        f"({rows['evidence'].iloc[0]}) {rows['problem'].iloc[0]} by {TRANSPORT_TEXT[rows['transport'].iloc[0]]}: "
        f"fastest is **{best}**, {speedup[best]:.2f}x over serial (ideal {ideal:.2f}x); its kernels idle for "
        f"{idle[best]:.0%} of the time. Slowest is {worst}, {speedup[worst]:.2f}x"
    )
    return style.Finding(text + (": **slower than serial**." if speedup[worst] < 1 else "."))


def schedule_table(node: str, row: Row, transport: str = "dma") -> pd.DataFrame:
    """What each schedule launches, moves and holds for one problem: one row a schedule, sizes in bytes."""
    table = schedule_rows(load_node(node), [row], [transport]).set_index("schedule")
    found = []
    for name in SCHEDULES:
        program = build(name, row.problem, row.problem.busiest)
        gemms = Counter((task.a.rows, task.out.cols, task.a.cols) for task in program.of(GEMM))
        found.append(
            {
                "schedule": name,
                "steps": program.steps,
                "copies": len(program.of(COPY)),
                "gemms": sum(gemms.values()),
                "gemm_shapes": ", ".join(f"{count} of {'x'.join(map(str, shape))}" for shape, count in gemms.items()),
                "added_up": sum(task.accumulate for task in program.of(GEMM)),
                "gathered_bytes": program.moved_nbytes(GATHER),
                "scattered_bytes": program.moved_nbytes(SCATTER),
                "memory_bytes": program.peak_nbytes,
                "loss_free_speedup": table.loc[name, "serial_s"] / table.loc[name, "loss_free_s"],
                "speedup": table.loc[name, "speedup"],
            }
        )
    return pd.DataFrame(found).assign(node=node, evidence="modelled", problem=row.name, transport=transport)
