"""The static proof of a program: nothing runs, every element is followed from where it starts to the result.

Tasks are taken in program order, once. Of every cell of every buffer it is known what it holds (which rows of whose A,
or which slices of K of which product), who wrote it and who has read it since. A task that touches a cell has to wait,
through whatever tasks between, for the one that wrote it, and to write also for those that read it; hence any order
that keeps the dependencies gives the same result, and program order gives the right one.

What lies where before the first task is taken from :func:`c3lib.ficco.schedules.home`, and what the result is from the
problem alone: C holds, source by source, each row times all of B.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from c3lib.errors import C3Error
from c3lib.ficco.contents import Contents, Value
from c3lib.ficco.graph import COPY, GEMM, OPS, Block, Program, Task, require_every_rank
from c3lib.ficco.schedules import STAGED, home


def check(program: Program) -> str:
    """Prove one rank's program; a sentence of what was proven.

    Proven are: every block lies in its buffer and fits the others of its task; dependencies point backward; what is
    read was given or has been written, and is waited for; two tasks that touch the same element, one of them writing,
    are in order; inputs stay as they are, so that copies read what their owner had at the start; exchange steps follow
    one another; and every element of C is written once, then added to, until it holds all of K exactly once, of the
    right row. With the same proven of the peers' programs, their results are right in whatever order ranks go on.

    Raises:
        C3Error: what is wrong, with the task and the block.
    """
    return _Proof(program).run()


def check_ranks(programs: Sequence[Program]) -> str:
    """Prove the programs of all ranks, in their order; a sentence of what was proven.

    Raises:
        C3Error: programs of different problems or schedules, or not one a rank; what is wrong with one.
    """
    require_every_rank(programs)
    first = programs[0]
    for program in programs:
        check(program)
    tasks = sum(len(program.tasks) for program in programs)
    return (
        f"{first.schedule} of {first.problem}: {tasks} tasks of {len(programs)} ranks are free of races and leave all "
        "of K exactly once in every element"
    )


class _Proof:
    """One program, task by task."""

    def __init__(self, program: Program):
        self.program, self.problem, self.rank = program, program.problem, program.rank
        self.staged = program.schedule in STAGED
        self.contents = {buffer.name: Contents(buffer) for buffer in program.buffers}
        self.index, self.before = 0, 0  # the task at hand, and a bit for each task that it waits for

    def wrong(self, what: str) -> C3Error:
        task = self.program.tasks[self.index]
        return C3Error(f"{self.program}: task {self.index} ({task.op} to {task.out}) {what}")

    def run(self) -> str:
        self.give()
        waits: list[int] = []
        copies: dict[int, int] = {}  # by step, a bit a task
        for index, task in enumerate(self.program.tasks):
            self.index, self.before = index, 0
            for other in task.after:
                if not 0 <= other < index:
                    raise self.wrong(f"waits for task {other}, which does not come before it")
                self.before |= waits[other] | 1 << other
            waits.append(self.before)
            self.fits(task)
            if task.op == COPY:
                self.follows(task, copies)
                self.write(task.out, self.fetched(task))
            elif task.op == GEMM:
                self.multiply(task)
            else:
                for part, value in list(self.read(task.a)):
                    self.write(_same_part(part, task.a, task.out), value.moved(task.a, task.out))
        self.result()
        return (
            f"{self.program}: {len(self.program.tasks)} tasks are free of races and leave all of K exactly once in "
            "every element"
        )

    def give(self) -> None:
        """Put the rank's own rows, and those for others, where they lie at the start."""
        for dst in range(self.problem.ranks):
            rows = self.problem.rows[self.rank][dst]
            once_more = self.problem.kind == "all-gather" and dst != self.rank  # the rows that all get lie there once
            if not rows or once_more:
                continue
            name, row = home(self.problem, self.rank, dst, self.staged)
            block = Block(name, self.rank, row, rows, 0, self.problem.k)
            self.inside(block, f"{self.program}: rows for rank {dst}")
            for _, _, cells in self.contents[name].cut(block):
                for cell in cells:
                    if cell.given:
                        raise C3Error(f"{self.program}: rows for rank {dst} at {block} overlap other inputs")
                    cell.value, cell.given = Value(self.rank, dst, -row, 0), True

    def inside(self, block: Block, what: str) -> None:
        buffer = self.contents[block.buffer].buffer if block.buffer in self.contents else None
        if buffer is None or block.rank != self.rank:
            raise C3Error(f"{what}: {block} is in no buffer of rank {self.rank}")
        low = min(block.row, block.col) >= 0 and min(block.rows, block.cols) >= 1
        if not low or block.row + block.rows > buffer.rows or block.col + block.cols > buffer.cols:
            raise C3Error(f"{what}: {block} is not inside {buffer.name}, which is {buffer.rows}x{buffer.cols}")

    def fits(self, task: Task) -> None:
        """The task's blocks are inside their buffers and of one shape."""
        if task.op not in OPS:
            raise self.wrong(f"is none of {', '.join(OPS)}")
        here = f"{self.program}: task {self.index} ({task.op})"
        self.inside(task.out, here)
        if task.op != COPY:
            self.inside(task.a, here)
        if task.op != GEMM:
            if task.b is not None or task.accumulate:
                raise self.wrong("moves a block, and has a second operand or adds")
            if (task.a.rows, task.a.cols) != (task.out.rows, task.out.cols):
                raise self.wrong(f"reads {task.a}, which has another shape")
            return
        if task.b is None:
            raise self.wrong("has no second operand")
        self.inside(task.b, here)
        if task.b.buffer != "b" or (task.a.rows, task.a.cols, task.b.cols) != (
            task.out.rows,
            task.b.rows,
            task.out.cols,
        ):
            raise self.wrong(f"cannot be {task.a} times {task.b}")

    def follows(self, task: Task, copies: dict[int, int]) -> None:
        """A copy waits for one of the step before: steps are in order, whatever the speed of links."""
        if not copies:
            for index, other in enumerate(self.program.tasks):
                if other.op == COPY:
                    copies[other.step] = copies.get(other.step, 0) | 1 << index
        earlier = [step for step in copies if step < task.step]
        if earlier and not copies[max(earlier)] & self.before:
            raise self.wrong(f"belongs to step {task.step} and waits for no copy of step {max(earlier)}")

    def fetched(self, task: Task) -> Value:
        """What a copy brings: it may read only what its owner holds for this rank from the start."""
        a = task.a
        if not 0 <= a.rank < self.problem.ranks or a.rank == self.rank:
            raise self.wrong(f"reads {a}, which is on no peer")
        name, row = home(self.problem, a.rank, self.rank, self.staged)
        rows = self.problem.rows[a.rank][self.rank]
        if a.buffer != name or not (row <= a.row and a.row + a.rows <= row + rows):
            held = Block(name, a.rank, row, rows, 0, self.problem.k)
            raise self.wrong(f"reads {a}, and what rank {a.rank} holds for it from the start is {held}")
        if not (a.col >= 0 and a.col + a.cols <= self.problem.k):
            raise self.wrong(f"reads {a}, beyond the {self.problem.k} columns of A")
        return Value(a.rank, self.rank, a.row - row - task.out.row, a.col - task.out.col)

    def read(self, block: Block) -> Iterator[tuple[Block, Value]]:
        """The block in parts that hold one kind of value."""
        for row, rows, cells in self.contents[block.buffer].cut(block):
            for cell in cells:
                part = Block(block.buffer, block.rank, row, rows, cell.col, cell.end - cell.col)
                if cell.value is None:
                    raise self.wrong(f"reads {part}, which was neither given nor written by a task before")
                if cell.writer >= 0 and not self.before >> cell.writer & 1:
                    raise self.wrong(f"reads {part}, which task {cell.writer} writes, and does not wait for it")
                cell.readers |= 1 << self.index
                yield part, cell.value

    def write(self, block: Block, value: Value, add: bool = False) -> None:
        """Write ``value``, or with ``add`` add it to what is there."""
        contents = self.contents[block.buffer]
        for row, rows, cells in contents.cut(block):
            for cell in cells:
                part = Block(block.buffer, block.rank, row, rows, cell.col, cell.end - cell.col)
                touched = cell.readers | (1 << cell.writer if cell.writer >= 0 else 0)
                if cell.given or contents.buffer.role == "input":
                    raise self.wrong(f"overwrites {part}, an input")
                if others := touched & ~self.before:
                    other = (others & -others).bit_length() - 1
                    raise self.wrong(f"writes {part}, which task {other} uses, and does not wait for it")
                if add:
                    cell.value = self.sum(part, cell.value, value)
                elif cell.value is not None and contents.buffer.role == "output":
                    raise self.wrong(f"overwrites {part}, a result that is there")
                else:
                    cell.value = value
                cell.writer, cell.readers = self.index, 0

    def sum(self, part: Block, old: Value | None, new: Value) -> Value:
        if old is None:
            raise self.wrong(f"adds to {part}, which nothing has written")
        if not old.slices or old._replace(slices=()) != new._replace(slices=()):
            raise self.wrong(f"adds to {part}, which holds something else")
        slices: list[tuple[int, int]] = []
        for low, high in sorted(old.slices + new.slices):
            if slices and low < slices[-1][1]:
                raise self.wrong(f"adds columns {low}:{min(high, slices[-1][1])} of A to {part} a second time")
            joins = bool(slices) and low == slices[-1][1]
            slices[-1:] = [(slices[-1][0], high)] if joins else [*slices[-1:], (low, high)]
        return old._replace(slices=tuple(slices))

    def multiply(self, task: Task) -> None:
        a, b, out = task.a, task.b, task.out
        assert b is not None  # as `fits` has seen
        found: dict[tuple[int, int], Value] = {}
        for part, value in self.read(a):
            if value.slices or found.setdefault((part.row, part.rows), value) != value:
                raise self.wrong(f"reads {part}, which is no part of the rows beside it")
            if a.col + value.col != b.row:
                k = a.col + value.col
                raise self.wrong(f"multiplies columns {k}:{k + a.cols} of A by rows {b.row}:{b.row + b.rows} of B")
        for (row, rows), value in found.items():
            part = out._replace(row=out.row + row - a.row, rows=rows)
            product = Value(
                value.src, value.dst, value.row + a.row - out.row, b.col - out.col, ((b.row, b.row + b.rows),)
            )
            self.write(part, product, task.accumulate)

    def result(self) -> None:
        """C is what the problem asks for."""
        first = [0, *accumulate(row[self.rank] for row in self.problem.rows)]
        if "c" not in self.contents:
            raise C3Error(f"{self.program}: has no buffer c")
        c = Block("c", self.rank, 0, self.problem.m[self.rank], 0, self.problem.n)
        self.inside(c, f"{self.program}: the result")
        for src, rows in enumerate(row[self.rank] for row in self.problem.rows):
            wanted = Value(src, self.rank, -first[src], 0, ((0, self.problem.k),))
            if not rows:
                continue
            for row, count, cells in self.contents["c"].cut(c._replace(row=first[src], rows=rows)):
                for cell in cells:
                    if cell.value != wanted:
                        part = Block("c", self.rank, row, count, cell.col, cell.end - cell.col)
                        raise C3Error(f"{self.program}: {part} ends as {_words(cell.value, part)}")


def _same_part(part: Block, a: Block, out: Block) -> Block:
    """Where in ``out`` the part of ``a`` lies."""
    return part._replace(
        buffer=out.buffer, rank=out.rank, row=part.row + out.row - a.row, col=part.col + out.col - a.col
    )


def _words(value: Value | None, part: Block) -> str:
    if value is None:
        return "nothing: no task writes it"
    first = part.row + value.row
    whose = f"rows {first}:{first + part.rows} of those that rank {value.src} gives to rank {value.dst}"
    if not value.slices:
        return f"{whose}, not multiplied"
    over = ", ".join(f"{low}:{high}" for low, high in value.slices)
    return f"{whose}, times columns {part.col + value.col}:{part.col + value.col + part.cols} of B, over {over} of K"
