"""The schedules: one function each, from a problem to the program of a rank. A new schedule is one function here.

``serial`` and ``shard_p2p`` are what finer-grain overlap is compared with. The four others cut every shard into pieces
and exchange one piece with every peer a step. They differ in *shape* (1-D: rows; 2-D: rows of a step's columns of K),
*uniformity* (hetero: the own shard first, as one large GEMM, while the first pieces fly) and *fusion* (fused: all
pieces of a step in one GEMM; unfused: a GEMM a piece).

That there are four is what a reader of arXiv 2512.10236 says; axes and definitions are the project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType

from c3lib.errors import C3Error, unknown
from c3lib.ficco.graph import COPY, GATHER, GEMM, SCATTER, Block, Buffer, Program, Task
from c3lib.ficco.problem import Problem
from c3lib.transfer.definition import shards
from c3lib.workload import format_size

STAGED = ("uniform_fused_1d", "hetero_fused_1d")
"""Schedules whose pieces land in the order of steps; the others receive every row where it belongs in A."""


class _Rank:
    """The program of one rank while it is written down: where everything lies, and the tasks so far."""

    def __init__(self, problem: Problem, rank: int, staged: bool):
        self.problem, self.rank, self.staged = problem, rank, staged
        self.rows = [row[rank] for row in problem.rows]  # that this rank gets, by source
        self.first = [0, *accumulate(self.rows)]  # where they belong in A and C
        self.m, self.n, self.k = self.first[-1], problem.n, problem.k
        self.cuts = [shards(count, problem.pieces) for count in self.rows]
        self.starts = [[0, *accumulate(cut)] for cut in self.cuts]  # of a shard's pieces, within it
        self.homes = [home(problem, src, rank, staged) for src in range(problem.ranks)]
        self.peers = [(rank + distance) % problem.ranks for distance in range(1, problem.ranks)]
        self.tasks: list[Task] = []

    def add(self, *task) -> int:
        self.tasks.append(Task(*task))
        return len(self.tasks) - 1

    def source(self, src: int, first: int, rows: int, col: int = 0, cols: int = 0) -> Block:
        """``rows`` of what ``src`` gives to this rank, from its ``first`` on; all columns unless told otherwise."""
        name, row = self.homes[src]
        return Block(name, src, row + first, rows, col, cols or self.k)

    def a(self, row: int, rows: int, col: int = 0, cols: int = 0) -> Block:
        return Block("a", self.rank, row, rows, col, cols or self.k)

    def c(self, row: int, rows: int) -> Block:
        return Block("c", self.rank, row, rows, 0, self.n)

    def step(self, row: int, rows: int) -> Block:
        return Block("step", self.rank, row, rows, 0, self.n)

    def copy(self, src: int, step: int, first: int, out: Block, after: tuple[int, ...]) -> int:
        return self.add(COPY, step, self.source(src, first, out.rows, out.col, out.cols), out, after)

    def gemm(self, step: int, a: Block, out: Block, after: tuple[int, ...] = (), add: bool = False) -> int:
        b = Block("b", self.rank, a.col, a.cols, 0, self.n)
        return self.add(GEMM, step, a, out, after, b, add)

    def own(self, step: int = 0) -> None:
        """The own shard as one GEMM that waits for nothing."""
        rows = self.rows[self.rank]
        if rows:
            self.gemm(step, self.source(self.rank, 0, rows), self.c(self.first[self.rank], rows))

    def pieces(self, step: int, sources: list[int]) -> Iterator[tuple[int, int, int]]:
        """``(source, first row of the piece within its shard, rows)`` of those pieces of a step that have rows."""
        for src in sources:
            if self.cuts[src][step]:
                yield src, self.starts[src][step], self.cuts[src][step]


def home(problem: Problem, src: int, dst: int, staged: bool) -> tuple[str, int]:
    """Buffer and row, on ``src``, where the rows that it gives to ``dst`` lie before anything begins.

    A rank's own rows lie in place in A, or beside it where a schedule orders A otherwise. What an all-to-all sends to
    others lies in a send buffer of its own, by destination.
    """
    if src != dst and problem.kind == "all-to-all":
        return "send", sum(count for peer, count in enumerate(problem.rows[src][:dst]) if peer != src)
    return ("own", 0) if staged else ("a", sum(row[src] for row in problem.rows[:src]))


def serial(rank: _Rank) -> None:
    """Everything is fetched from all peers at once, then multiplied at once."""
    waits = tuple(
        rank.copy(src, 0, 0, rank.a(rank.first[src], rank.rows[src]), ()) for src in rank.peers if rank.rows[src]
    )
    rank.gemm(0, rank.a(0, rank.m), rank.c(0, rank.m), waits)


def shard_p2p(rank: _Rank) -> None:
    """A shard at a time from one peer at a time, in ring order, while the shard before is multiplied.

    Each shard comes from its owner: the same bytes over as many links at a time as a ring that passes shards on, and
    no rank waits for its neighbour's progress.
    """
    rank.own()
    before: tuple[int, ...] = ()
    for step, src in enumerate(rank.peers):
        rows, row = rank.rows[src], rank.first[src]
        if rows:
            before = (rank.copy(src, step, 0, rank.a(row, rows), before),)
            rank.gemm(step, rank.a(row, rows), rank.c(row, rows), before)


def uniform_fused_1d(rank: _Rank) -> None:
    """A piece of every shard a step, the own one gathered to them; one GEMM a step, its rows scattered."""
    _fused_1d(rank, [rank.rank, *rank.peers])


def hetero_fused_1d(rank: _Rank) -> None:
    """The own shard as one GEMM while the first pieces fly; then a GEMM a step over the peers' pieces."""
    rank.own()
    _fused_1d(rank, rank.peers)


def _fused_1d(rank: _Rank, sources: list[int]) -> None:
    sources = sorted(sources)
    last: dict[int, tuple[int, ...]] = {}  # copies of a peer follow one another
    moved: list[tuple[int, int]] = []  # first row, task: what takes a step's result away before the next overwrites it
    top = 0
    for step in range(rank.problem.pieces):
        parts = list(rank.pieces(step, sources))
        if not parts:
            continue
        row, waits = top, []
        for src, first, rows in parts:
            if src == rank.rank:
                waits.append(rank.add(GATHER, step, rank.source(src, first, rows), rank.a(row, rows)))
            else:
                index = rank.copy(src, step, first, rank.a(row, rows), last.get(src, ()))
                last[src] = (index,)
                waits.append(index)
            row += rows
        waits += [index for first, index in moved if first < row - top]
        product = rank.gemm(step, rank.a(top, row - top), rank.step(0, row - top), tuple(waits))
        moved, row = [], 0
        for src, first, rows in parts:
            out = rank.c(rank.first[src] + first, rows)
            moved.append((row, rank.add(SCATTER, step, rank.step(row, rows), out, (product,))))
            row += rows
        top += row


def hetero_unfused_1d(rank: _Rank) -> None:
    """The own shard as one GEMM while the first pieces fly; then a GEMM for every piece, in place."""
    rank.own()
    last: dict[int, tuple[int, ...]] = {}
    for step in range(rank.problem.pieces):
        for src, first, rows in rank.pieces(step, rank.peers):
            row = rank.first[src] + first
            last[src] = (rank.copy(src, step, first, rank.a(row, rows), last.get(src, ())),)
            rank.gemm(step, rank.a(row, rows), rank.c(row, rows), last[src])


def uniform_fused_2d(rank: _Rank) -> None:
    """A slice of K of every shard a step, in place; one GEMM of all rows a step, added to the result."""
    last: dict[int, tuple[int, ...]] = {}
    col = 0
    product: tuple[int, ...] = ()
    for step, cols in enumerate(shards(rank.k, rank.problem.pieces)):
        if not cols:
            continue
        for src in rank.peers:
            if rank.rows[src]:
                out = rank.a(rank.first[src], rank.rows[src], col, cols)
                last[src] = (rank.copy(src, step, 0, out, last.get(src, ())),)
        waits = tuple(index for wait in last.values() for index in wait)
        product = (rank.gemm(step, rank.a(0, rank.m, col, cols), rank.c(0, rank.m), waits + product, add=col > 0),)
        col += cols


SCHEDULES: Mapping[str, Callable[[_Rank], None]] = MappingProxyType(
    {
        builder.__name__: builder
        for builder in (serial, shard_p2p, uniform_fused_1d, hetero_fused_1d, hetero_unfused_1d, uniform_fused_2d)
    }
)

FINER = tuple(SCHEDULES)[2:]
"""The four that exchange pieces of shards."""


def build(schedule: str, problem: Problem, rank: int = 0, memory_nbytes: float | None = None) -> Program:
    """The program of one rank.

    Raises:
        C3Error: an unknown schedule, a rank that there is not, or buffers beyond ``memory_nbytes`` (by how much).
    """
    if schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
    if not 0 <= rank < problem.ranks:
        raise C3Error(f"rank must be one of 0 to {problem.ranks - 1}, not {rank}")
    there = _Rank(problem, rank, schedule in STAGED)
    SCHEDULES[schedule](there)
    program = Program(schedule, problem, rank, _buffers(there), tuple(there.tasks))
    if memory_nbytes is not None and program.peak_nbytes > memory_nbytes:
        short = format_size(program.peak_nbytes - int(memory_nbytes))
        raise C3Error(
            f"{program}: needs {format_size(program.peak_nbytes)} of memory and has {format_size(int(memory_nbytes))}: "
            f"{short} are missing"
        )
    return program


def _buffers(rank: _Rank) -> tuple[Buffer, ...]:
    problem, own = rank.problem, rank.rows[rank.rank]
    received = rank.m - own * (rank.staged and not any(task.op == GATHER for task in rank.tasks))
    found = [Buffer("a", received, rank.k, "work"), Buffer("b", rank.k, rank.n, "input")]
    if rank.staged:
        found.append(Buffer("own", own, rank.k, "input"))
        most = max((task.out.rows for task in rank.tasks if task.out.buffer == "step"), default=0)
        found.append(Buffer("step", most, rank.n, "work"))
    if problem.kind == "all-to-all":
        sent = sum(count for dst, count in enumerate(problem.rows[rank.rank]) if dst != rank.rank)
        found.append(Buffer("send", sent, rank.k, "input"))
    found.append(Buffer("c", rank.m, rank.n, "output"))
    return tuple(found)
