"""Programs of all ranks run with real data on the CPU by torch, ranks simulated; the result against one product.

What this proves numerically is proven of the very programs that the model times and GPUs run. Whatever a program is to
write is full of NaN before, so that a read that comes too early or a place that is left out shows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from c3lib.errors import C3Error, unknown
from c3lib.ficco.graph import GEMM, Block, Program, Task, require_every_rank
from c3lib.ficco.problem import Problem
from c3lib.ficco.schedules import STAGED, home

if TYPE_CHECKING:
    from torch import Tensor

EXACT = "fp64"
DTYPES = {EXACT: "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""What programs are run in, and torch's name for it."""

LARGEST_VALUE = 1000
"""Of the whole numbers in fp64: a sum of 2**33 products of two is still exact, whatever the order."""


@dataclass(frozen=True)
class Data:
    """What every rank has at the start, made from the seed, each part by itself: whole numbers in fp64, else normal.

    Raises:
        C3Error: an unknown dtype.
    """

    problem: Problem
    dtype: str = EXACT
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise unknown("dtype", self.dtype, DTYPES)

    def rows(self, src: int, dst: int) -> Tensor:
        """The rows of A that ``src`` gives to ``dst``, ``(rows, k)``; in an all-gather the same for every ``dst``."""
        to = dst if self.problem.kind == "all-to-all" else 0
        return self._make(self.problem.rows[src][dst], self.problem.k, src, to)

    def b(self, rank: int) -> Tensor:
        """B of a rank, ``(k, n)``."""
        return self._make(self.problem.k, self.problem.n, rank, self.problem.ranks)

    def _make(self, rows: int, cols: int, *which: int) -> Tensor:
        import torch

        seed = random.Random(repr((self.seed, *which))).getrandbits(63)
        generator = torch.Generator().manual_seed(seed)
        if self.dtype == EXACT:
            values = torch.randint(-LARGEST_VALUE, LARGEST_VALUE + 1, (rows, cols), generator=generator)
        else:
            values = torch.randn(rows, cols, generator=generator)
        return values.to(getattr(torch, DTYPES[self.dtype]))


Buffers = dict[str, "Tensor"]
"""The buffers of a rank by name."""


def place(program: Program, data: Data) -> Buffers:
    """A rank's buffers before anything begins: its inputs, and NaN wherever there is none."""
    import torch

    dtype, rank, problem = getattr(torch, DTYPES[data.dtype]), program.rank, program.problem
    found = {item.name: torch.full((item.rows, item.cols), torch.nan, dtype=dtype) for item in program.buffers}
    for dst in range(problem.ranks):
        if dst == rank or problem.kind == "all-to-all":
            name, row = home(problem, rank, dst, program.schedule in STAGED)
            view(found, Block(name, rank, row, problem.rows[rank][dst], 0, problem.k)).copy_(data.rows(rank, dst))
    view(found, Block("b", rank, 0, problem.k, 0, problem.n)).copy_(data.b(rank))
    return found


def view(buffers: Buffers, block: Block) -> Tensor:
    """The block as a view of its buffer.

    Raises:
        C3Error: it is not inside.
    """
    buffer = buffers.get(block.buffer)
    if buffer is None:
        raise C3Error(f"{block}: rank {block.rank} has no buffer {block.buffer!r}")
    end = (block.row + block.rows, block.col + block.cols)
    if min(block[2:]) < 0 or end[0] > buffer.shape[0] or end[1] > buffer.shape[1]:
        raise C3Error(f"{block} is not inside {block.buffer}, which is {buffer.shape[0]}x{buffer.shape[1]}")
    return buffer[block.row : end[0], block.col : end[1]]


def require_one_shape(task: Task) -> None:
    """Raises :class:`C3Error` where the blocks of a task do not fit one another: torch would repeat a single row."""
    a, b, out = task.a, task.b, task.out
    if task.op != GEMM and (a.rows, a.cols) != (out.rows, out.cols):
        raise C3Error(f"{a} cannot be moved to {out}, which has another shape")
    if task.op == GEMM and (b is None or (a.rows, a.cols, b.cols) != (out.rows, b.rows, out.cols)):
        raise C3Error(f"{out} cannot be {a} times {b}")


def apply(task: Task, buffers: Mapping[int, Buffers]) -> None:
    """Do a task; ``buffers`` by rank.

    Raises:
        C3Error: a block that is not inside its buffer, or that does not fit the others.
    """
    a, out = view(buffers[task.a.rank], task.a), view(buffers[task.out.rank], task.out)
    require_one_shape(task)
    if task.op != GEMM:
        out.copy_(a)
        return
    assert task.b is not None  # as has been seen
    b = view(buffers[task.b.rank], task.b)
    if task.accumulate:
        out.addmm_(a, b)
    else:
        out.copy_(a @ b)


def some_order(program: Program, seed: int) -> Iterator[int]:
    """Indices of a program's tasks in a random order that keeps every dependency."""
    draw = random.Random(seed)
    missing = [len(set(task.after)) for task in program.tasks]
    then: list[list[int]] = [[] for _ in program.tasks]
    for index, task in enumerate(program.tasks):
        for other in set(task.after):
            then[other].append(index)
    ready = [index for index, count in enumerate(missing) if not count]
    while ready:
        at = draw.randrange(len(ready))
        ready[at], ready[-1] = ready[-1], ready[at]
        index = ready.pop()
        yield index
        for other in then[index]:
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)


def run(programs: Sequence[Program], data: Data, seed: int | None = None) -> list[Tensor]:
    """The result C ``(m, n)`` of each rank; ``programs`` are those of all ranks, in their order.

    Tasks run in program order, rank after rank, or with a ``seed`` in a random order that keeps the dependencies, ranks
    taking turns at random: peers' rows have to be there whatever the peer has done since.

    Raises:
        C3Error: not one program a rank, data of another problem, a block that is not inside its buffer.
    """
    require_every_rank(programs)
    require_same_problem(programs, data)
    buffers = {program.rank: place(program, data) for program in programs}
    if seed is None:
        orders = [iter(range(len(program.tasks))) for program in programs]
        turns = [rank for rank, program in enumerate(programs) for _ in program.tasks]
    else:
        orders = [some_order(program, seed + rank) for rank, program in enumerate(programs)]
        turns = [rank for rank, program in enumerate(programs) for _ in program.tasks]
        random.Random(seed).shuffle(turns)
    for rank in turns:
        apply(programs[rank].tasks[next(orders[rank])], buffers)
    return [buffers[program.rank]["c"] for program in programs]


def require_same_problem(programs: Sequence[Program], data: Data) -> None:
    """Raises :class:`C3Error` where the data are not of the problem that the programs are of."""
    for program in programs:
        if program.problem != data.problem:
            raise C3Error(f"data: are of {data.problem}, and have to be of the problem of {program}")


def serial_result(data: Data, rank: int) -> Tensor:
    """What C of a rank has to be: all its rows in the order of ranks, times B, in fp64. Knows of no program."""
    import torch

    rows = torch.cat([data.rows(src, rank) for src in range(data.problem.ranks)])
    return rows.double() @ data.b(rank).double()


def bound(data: Data, rank: int, products: int) -> Tensor:
    """How far an element of C may be from :func:`serial_result`, ``(m, n)``; 0 in fp64, whose numbers are whole.

    With S = sum over k of |a b|, unit roundoff u of the dtype and u32 of fp32, in which sums of products are at least
    formed, ``((1 + u)**P (1 + (K + P) u32 / (1 - (K + P) u32)) - 1) S``: each of the K terms is rounded to the dtype
    at most P = ``products`` times, once when its product is stored and once for each product that is added after. Of
    numbers that are too small for full precision, each rounding loses at most u times the smallest normal one.
    """
    import torch

    rows = torch.cat([data.rows(src, rank) for src in range(data.problem.ranks)])
    terms = rows.double().abs() @ data.b(rank).double().abs()
    if data.dtype == EXACT:
        return torch.zeros_like(terms)
    about = torch.finfo(getattr(torch, DTYPES[data.dtype]))
    u, sums = about.eps / 2, (data.problem.k + products) * 2.0**-24
    return ((1 + u) ** products * (1 + sums / (1 - sums)) - 1) * terms + products * u * about.tiny


def verify(programs: Sequence[Program], data: Data, results: Sequence[Tensor]) -> None:
    """Every rank's result is the serial one: equal in fp64, within :func:`bound` else.

    Raises:
        C3Error: not one result a program, data of another problem; the first element that is not, and how far it is.
    """
    if len(results) != len(programs):
        raise C3Error(f"results: expected one for each of {len(programs)} programs, got {len(results)}")
    require_same_problem(programs, data)
    for program, found in zip(programs, results, strict=True):
        wanted = serial_result(data, program.rank)
        if found.shape != wanted.shape:
            raise C3Error(f"{program}: the result is {tuple(found.shape)} and has to be {tuple(wanted.shape)}")
        products = 1 + sum(task.accumulate for task in program.tasks)
        within = bound(data, program.rank, products)
        wrong = ~((found.double() - wanted).abs() <= within)  # NaN is wrong too
        if wrong.any():
            row, col = map(int, wrong.nonzero()[0])
            raise C3Error(
                f"{program}: element ({row}, {col}) of the result is {found[row, col].item():g} and has to be "
                f"{wanted[row, col].item():g} to within {within[row, col].item():.3g}; {int(wrong.sum())} of "
                f"{wrong.numel()} elements are wrong"
            )
