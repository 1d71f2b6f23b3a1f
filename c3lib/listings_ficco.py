"""The text that ``c3 ficco`` prints: rows of :func:`c3lib.finer.schedule_rows` in, plain tables and their notes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from c3lib.ficco import FINER, Program
from c3lib.listings import WIDE
from c3lib.terminal import number, paragraph, table
from c3lib.workload import format_size

if TYPE_CHECKING:
    import pandas as pd

    from c3lib.schedule_choice import Choice

MOVER = {"dma": "DMA engines", "cu": "CUs"}
LANE = {"gemm": "GEMM", "exchange": "exchange"}


def of_schedules(rows: pd.DataFrame, choice: Choice, capacity_nbytes: float) -> str:
    """One problem under every schedule, then what the heuristic picks and why."""
    about = rows.iloc[0]
    gemm = f"{about['m']}x{about['n']}x{about['k']} {about['dtype']}"
    size = format_size(about["piece_bytes"])
    title = (
        f"{about['collective']} -> {gemm} a rank, {about['ranks']} ranks of {about['node']}, pieces of {size} by "
        f"{MOVER[about['transport']]} ({about['evidence']})"
    )
    alone = (
        f"alone: GEMM {about['gemm_s'] * 1e3:.3f} ms, exchange {about['exchange_s'] * 1e3:.3f} ms; serial "
        f"{about['serial_s'] * 1e3:.3f} ms, ideal {about['serial_s'] / about['ideal'] * 1e3:.3f} ms "
        f"({about['ideal']:.2f}x)"
    )
    header = ("schedule", "time ms", "speedup", "of ideal", "limited by", "exposed ms", "memory", "")
    cells: list[tuple[object, ...]] = []
    for row in rows.itertuples():
        memory = format_size(row.memory_bytes)
        if not row.fits:
            short = format_size(row.memory_bytes - int(capacity_nbytes))
            cells.append((row.schedule, None, None, None, None, None, memory, f"does not fit: {short} missing"))
            continue
        told = [
            name for name, here in (("chosen", row.schedule == choice.schedule), ("loses", row.speedup < 1)) if here
        ]
        times = (f"{row.time_s * 1e3:.3f}", f"{row.speedup:.2f}x", number(round(row.fraction_of_ideal, 2) + 0, ".2f"))
        limit = LANE[row.waiting] if row.schedule != "serial" else None
        cells.append((row.schedule, *times, limit, f"{round(row.exposed_s * 1e3, 3) + 0:.3f}", memory, ", ".join(told)))
    note = "exposed: bytes move and no kernel runs. Schedules are the project's own reading of arXiv 2512.10236."
    best = rows[rows["fits"]].sort_values("time_s", kind="stable").iloc[0]
    loss = float(rows.set_index("schedule").loc[choice.schedule, "time_s"]) / best["time_s"] - 1
    right = "is the fastest" if loss <= 0 else f"is {loss:.1%} behind {best['schedule']}, the fastest"
    lines = [paragraph(title), paragraph(alone), "", table(header, cells, WIDE), note, ""]
    return "\n".join([*lines, paragraph(f"Heuristic: {choice.reason} By the model its choice {right}.")])


def of_problem_set(title: str, rows: pd.DataFrame, choices: Mapping[str, Choice]) -> str:
    """A line a problem: the fastest schedule, what the heuristic picks, and what its choice costs."""
    header = (
        "problem",
        "GEMM of a rank",
        "piece",
        "ideal",
        "best",
        "schedule",
        "limited by",
        "shard level",
        "chosen",
        "costs",
    )
    cells: list[tuple[object, ...]] = []
    right = 0
    for name, part in rows.groupby("problem", sort=False):
        by = part.set_index("schedule")
        about, there = part.iloc[0], by[by["fits"]]
        gemm = f"{about['m']}x{about['n']}x{about['k']}"
        size = format_size(about["piece_bytes"])
        if there.empty:
            cells.append((name, gemm, size, f"{about['ideal']:.2f}x", None, "fits no memory", None, None, None, None))
            continue
        how = there["time_s"].idxmin()
        chosen = choices[str(name)].schedule
        loss = by.loc[chosen, "time_s"] / there.loc[how, "time_s"] - 1
        right += loss <= 0
        numbers = (f"{about['ideal']:.2f}x", f"{by.loc[how, 'speedup']:.2f}x")
        shard = f"{by.loc['shard_p2p', 'speedup']:.2f}x"
        limit = LANE[str(by.loc[how, "waiting"])] if how != "serial" else None
        cells.append((name, gemm, size, *numbers, how, limit, shard, chosen, f"{loss:.1%}"))
    finer = rows[rows["schedule"].isin(FINER) & rows["fits"]]
    losing = int((finer.groupby("problem")["speedup"].max() < 1).sum())
    note = (
        f"best, shard level: speedup over serial. The heuristic picks the fastest on {right} of {len(cells)}; no "
        f"finer-grain schedule beats serial on {losing}."
    )
    return f"{title}\n\n{table(header, cells, WIDE)}\n\n{paragraph(note)}"


def of_program(program: Program) -> str:
    """What one rank does, task by task; blocks as ``buffer@rank[rows, columns]``."""
    header = ("task", "does", "step", "reads", "and", "writes", "adds", "after")
    keys = ("task", "op", "step", "a", "b", "out", "accumulate", "after")
    cells = [
        [row[key] if key != "accumulate" else "yes" if row[key] else "" for key in keys] for row in program.to_rows()
    ]
    title = f"{program}: {len(program.tasks)} tasks, {format_size(program.peak_nbytes)} of memory"
    return f"{title}\n\n{table(header, cells, WIDE + 30)}"
