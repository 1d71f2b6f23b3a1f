"""What a schedule is: one program a rank, a graph of tasks over blocks of named matrices. Data only; nothing runs here.

A program belongs to the rank that computes. It fetches: each copy reads rows that their owner had before anything
began, so that no task waits for a task of another rank, and ranks need one barrier at the start and one at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from c3lib.errors import C3Error
from c3lib.ficco.problem import Problem

COPY, GATHER, GEMM, SCATTER = "copy", "gather", "gemm", "scatter"
OPS = (COPY, GATHER, GEMM, SCATTER)


class Block(NamedTuple):
    """Rows ``row`` to ``row + rows`` and columns ``col`` to ``col + cols`` of a buffer of a rank."""

    buffer: str
    rank: int
    row: int
    rows: int
    col: int
    cols: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.cols

    def __str__(self) -> str:
        rows, cols = f"{self.row}:{self.row + self.rows}", f"{self.col}:{self.col + self.cols}"
        return f"{self.buffer}@{self.rank}[{rows}, {cols}]"


class Task(NamedTuple):
    """One operation, as it is launched.

    ``op``: ``copy`` moves ``a`` on a peer to ``out`` here, over a link; ``gather`` moves rows of this rank to where a
    GEMM of several pieces reads them; ``gemm`` computes ``out = a b``, with ``accumulate`` ``out += a b``; ``scatter``
    moves rows of a result to where they belong. ``after``: indices of the tasks that must have ended before.
    """

    op: str
    step: int
    a: Block
    out: Block
    after: tuple[int, ...] = ()
    b: Block | None = None
    accumulate: bool = False


class Buffer(NamedTuple):
    """A matrix of a rank, row-major. ``role``: ``input``, ``work`` or ``output``."""

    name: str
    rows: int
    cols: int
    role: str


@dataclass(frozen=True)
class Program:
    """What one rank does under one schedule. ``tasks`` are in an order of issue that keeps every dependency.

    ``buffers`` are allocated before the first task and stay, so their sum is the peak of memory.
    """

    schedule: str
    problem: Problem
    rank: int
    buffers: tuple[Buffer, ...]
    tasks: tuple[Task, ...]

    @cached_property
    def peak_nbytes(self) -> int:
        """Bytes of all buffers of the rank, inputs and outputs included."""
        return sum(item.rows * item.cols for item in self.buffers) * self.problem.element_nbytes

    def of(self, op: str) -> list[Task]:
        """The tasks of one kind, in order."""
        return [task for task in self.tasks if task.op == op]

    @property
    def steps(self) -> int:
        """Number of exchange steps."""
        return 1 + max((task.step for task in self.tasks if task.op == COPY), default=-1)

    def moved_nbytes(self, op: str) -> int:
        """Bytes that all tasks of a kind (``copy``, ``gather``, ``scatter``) move."""
        return sum(task.a.elements for task in self.of(op)) * self.problem.element_nbytes

    def to_rows(self) -> list[dict[str, object]]:
        """One dict a task, for tables."""
        return [
            {
                "task": index,
                "op": task.op,
                "step": task.step,
                "a": str(task.a),
                "b": str(task.b or ""),
                "out": str(task.out),
                "accumulate": task.accumulate,
                "after": " ".join(map(str, task.after)),
            }
            for index, task in enumerate(self.tasks)
        ]

    def __str__(self) -> str:
        return f"{self.schedule} of {self.problem}, rank {self.rank}"


def require_every_rank(programs: Sequence[Program]) -> None:
    """Raises :class:`C3Error` unless these are the programs of all ranks of one problem, one each, in their order."""
    if not programs:
        raise C3Error("programs: expected one a rank, got none")
    first = programs[0]
    if [program.rank for program in programs] != list(range(first.problem.ranks)):
        ranks = ", ".join(str(program.rank) for program in programs)
        raise C3Error(f"programs: expected one for each of ranks 0 to {first.problem.ranks - 1} in order, got {ranks}")
    for program in programs:
        if (program.schedule, program.problem) != (first.schedule, first.problem):
            raise C3Error(f"programs: {program} does not go together with {first}")
