"""Problems of all kinds for the tests of finer-grain schedules, and programs with one thing wrong."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from c3lib.ficco import SCHEDULES, Problem, Program, Task, build
from c3lib.ficco.execute import Data
from c3lib.ficco.graph import COPY, GEMM
from c3lib.ficco.processes import Case

KINDS = ("all-gather", "all-to-all")

UNEVEN = ((3, 5, 1), (4, 2, 0), (4, 6, 9))
"""``rows[src][dst]`` of an all-to-all in which one shard is empty."""


def programs_of(schedule: str, problem: Problem) -> list[Program]:
    return [build(schedule, problem, rank) for rank in range(problem.ranks)]


def problem_of(kind: str, m: int, n: int, k: int, ranks: int, pieces: int = 0) -> Problem:
    make = Problem.all_gather if kind == "all-gather" else Problem.all_to_all
    return make(m, n, k, ranks, pieces=pieces)


def odd_problem(kind: str, pieces: int = 4) -> Problem:
    """Three ranks, and nothing that divides by the number of pieces."""
    if kind == "all-gather":
        return Problem.all_gather(16, 5, 7, 3, pieces=pieces)
    return Problem.all_to_all(0, 5, 7, 3, pieces=pieces, rows=UNEVEN)


@st.composite
def problems(draw: st.DrawFn, most_ranks: int = 8) -> Problem:
    """Any kind, ranks, shape and number of pieces: fewer rows or columns than pieces, and ranks that give nothing."""
    ranks = draw(st.integers(2, most_ranks))
    n, k, pieces = draw(st.integers(1, 5)), draw(st.integers(1, 20)), draw(st.integers(0, 11))
    if draw(st.booleans()):
        return Problem.all_gather(draw(st.integers(1, 60)), n, k, ranks, pieces=pieces)
    counts = st.one_of(st.just(0), st.integers(0, 14))
    rows = draw(st.lists(st.lists(counts, min_size=ranks, max_size=ranks), min_size=ranks, max_size=ranks))
    for dst in range(ranks):
        if not any(row[dst] for row in rows):
            rows[draw(st.integers(0, ranks - 1))][dst] = draw(st.integers(1, 14))
    return Problem.all_to_all(0, n, k, ranks, pieces=pieces, rows=rows)


schedules = st.sampled_from(tuple(SCHEDULES))


# --- programs with one thing wrong: what it is, and the program ---

Wrong = Iterator[tuple[str, Program]]


def with_task(program: Program, index: int, **changes: object) -> Program:
    task = program.tasks[index]._replace(**changes)
    return replace(program, tasks=(*program.tasks[:index], task, *program.tasks[index + 1 :]))


def without_a_dependency(program: Program) -> Wrong:
    for index, task in enumerate(program.tasks):
        for other in task.after:
            left = tuple(item for item in task.after if item != other)
            yield f"task {index} does not wait for {other}", with_task(program, index, after=left)


def without_a_task(program: Program) -> Wrong:
    """What waited for the task waits for what it waited for: only its work is missing."""
    for index, gone in enumerate(program.tasks):
        tasks = []
        for task in program.tasks[:index] + program.tasks[index + 1 :]:
            waits = {other for other in task.after if other != index} | set(gone.after if index in task.after else ())
            tasks.append(task._replace(after=tuple(sorted(other - (other > index) for other in waits))))
        yield f"no task {index}", replace(program, tasks=tuple(tasks))


def with_a_block_elsewhere(program: Program) -> Wrong:
    for index, task in enumerate(program.tasks):
        for name in ("a", "b", "out"):
            block = getattr(task, name)
            for side in ("row", "col") if block is not None else ():
                for far in (-1, 1):
                    moved = block._replace(**{side: getattr(block, side) + far})
                    yield f"task {index}: {name}.{side} {far:+}", with_task(program, index, **{name: moved})


def with_another_size(program: Program) -> Wrong:
    """A task of one row or one column less, its blocks still fitting one another."""
    for index, task in enumerate(program.tasks):
        if task.out.rows > 1:
            rows = task.out.rows - 1
            less = {"a": task.a._replace(rows=rows), "out": task.out._replace(rows=rows)}
            yield f"task {index}: a row less", with_task(program, index, **less)
        if task.op == GEMM and task.a.cols > 1:
            cols = task.a.cols - 1
            less = {"a": task.a._replace(cols=cols), "b": task.b._replace(rows=cols)}
            yield f"task {index}: a column of A less", with_task(program, index, **less)


def with_accumulation_turned(program: Program) -> Wrong:
    for index, task in enumerate(program.tasks):
        if task.op == GEMM:
            yield f"task {index}: accumulate", with_task(program, index, accumulate=not task.accumulate)


def with_swapped_sources(program: Program) -> Wrong:
    """Two tasks of one kind and shape read what the other has to read."""
    for index, task in enumerate(program.tasks):
        for far, other in enumerate(program.tasks[index + 1 :], index + 1):
            if other.op == task.op and _shape(task) == _shape(other) and task.a != other.a:
                swapped = with_task(program, index, a=other.a)
                yield f"tasks {index} and {far} swap sources", with_task(swapped, far, a=task.a)


def _shape(task: Task) -> tuple[int, int]:
    return task.a.rows, task.a.cols


def from_another_rank(program: Program) -> Wrong:
    for index, task in enumerate(program.tasks):
        if task.op == COPY:
            for rank in range(program.problem.ranks):
                if rank != task.a.rank:
                    yield f"task {index} reads rank {rank}", with_task(program, index, a=task.a._replace(rank=rank))


def with_a_smaller_buffer(program: Program) -> Wrong:
    for at, buffer in enumerate(program.buffers):
        for side in ("rows", "cols"):
            if buffer.rows * buffer.cols:
                less = buffer._replace(**{side: getattr(buffer, side) - 1})
                buffers = (*program.buffers[:at], less, *program.buffers[at + 1 :])
                yield f"{buffer.name} has fewer {side}", replace(program, buffers=buffers)


WRONG_DATA = (
    without_a_task,
    with_a_block_elsewhere,
    with_another_size,
    with_accumulation_turned,
    with_swapped_sources,
    from_another_rank,
    with_a_smaller_buffer,
)
"""What a run in program order has to notice too."""


# --- for processes ---


class Stuck(Data):
    """Rank 1 never begins."""

    def b(self, rank):
        if rank == 1:
            time.sleep(600)
        return super().b(rank)


class Killed(Data):
    """Rank 1 dies without a word."""

    def b(self, rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().b(rank)


def case(schedule: str, problem: Problem, seed: int | None = None, dtype: str = "fp64", make=Data) -> Case:
    return Case(tuple(programs_of(schedule, problem)), make(problem, dtype), seed)
