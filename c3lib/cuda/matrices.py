"""The matrices of one rank's GEMM on a GPU, those of its peers in pinned host memory, and whether all came out right.

Data are random normal numbers of a pool: iteration ``i`` gives from every source the rows from ``i % SHIFTS`` on, so
that nothing is written between iterations and yet a row of another iteration, source or place is another row. What has
to arrive, and the product of the whole pool, stand on the GPU and are compared there.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from c3lib.cuda.device import Cuda, said_clearly
from c3lib.errors import C3Error
from c3lib.ficco.graph import COPY, Block, Program
from c3lib.ficco.problem import Problem
from c3lib.ficco.schedules import SCHEDULES, STAGED, build, home
from c3lib.region import Check

SHIFTS = 8
"""Rows by which a source's pool is longer than what it gives."""

_DTYPES = {"bf16": ("bfloat16", 2.0**-8), "fp16": ("float16", 2.0**-11)}  # torch's name, unit roundoff
_DEVIATIONS = 7  # that no element of a product of 10^10 exceeds: each is close to normal, its deviation sqrt(k)
_COMPARED = 1 << 27  # elements at a time, so that comparing takes little memory


MOST_SLICES = 64
"""Slices of K beyond which :func:`rounding` comes near what one missing slice changes."""


class Matrices:
    """Room for every schedule of a problem, as rank ``rank`` sees it, and its data.

    ``shape`` of A ``(m, k)``, B ``(k, n)``, C ``(m, n)``, all row-major. A peer's memory holds what this rank fetches.

    Raises:
        C3Error: a dtype that cannot be measured here, more pieces than can be checked, or too little memory.
    """

    def __init__(self, cuda: Cuda, problem: Problem, rank: int = 0, seed: int = 0):
        if problem.dtype not in _DTYPES:
            raise C3Error(f"{problem}: dtype {problem.dtype} cannot be measured here; known: {', '.join(_DTYPES)}")
        if problem.pieces > MOST_SLICES:
            raise C3Error(
                f"{problem}: {problem.pieces} pieces cannot be checked, at most {MOST_SLICES}: what rounding "
                "adds up to over so many slices of K hides a slice that is missing"
            )
        self.cuda, self.problem, self.rank = cuda, problem, rank
        self.programs = {name: build(name, problem, rank) for name in SCHEDULES}
        torch, name = cuda.torch, _DTYPES[problem.dtype][0]
        self._how = {"dtype": getattr(torch, name), "device": f"cuda:{cuda.index}"}
        self._counts = [row[rank] for row in problem.rows]
        with cuda.current(), said_clearly(f"allocating the matrices of {problem}"):
            generator = torch.Generator(device=self._how["device"]).manual_seed(seed)
            sizes: dict[str, int] = {}
            self._cols: dict[str, int] = {}
            for program in self.programs.values():
                for item in program.buffers:
                    if item.name != "send":  # only peers read it
                        sizes[item.name] = max(sizes.get(item.name, 0), item.rows * item.cols)
                        self._cols[item.name] = item.cols
            self._rooms = {key: torch.empty(size, **self._how) for key, size in sizes.items()}
            self._rooms["b"].normal_(generator=generator)
            self._first = [sum(count + SHIFTS for count in self._counts[:src]) for src in range(problem.ranks)]
            pool_rows = sum(self._counts) + SHIFTS * problem.ranks
            self._pool = torch.randn(pool_rows, problem.k, generator=generator, **self._how)
            self._peers = torch.empty(pool_rows, problem.k, dtype=self._how["dtype"], pin_memory=True)
            self._peers.copy_(self._pool)
            self._product = torch.mm(self._pool, self._room("b"))
            torch.cuda.synchronize(cuda.index)

    def _room(self, name: str) -> Any:
        return self._rooms[name].view(-1, self._cols[name])

    def view(self, block: Block) -> Any:
        """A block of this rank's memory."""
        return self._room(block.buffer)[block.row : block.row + block.rows, block.col : block.col + block.cols]

    def peer(self, program: Program, block: Block, on_gpu: bool = False) -> Any:
        """A block of a peer's memory as it is in iteration 0; in iteration ``i``, ``i % SHIFTS`` rows further on.

        ``on_gpu``: its twin there, with which what arrives is compared.
        """
        _, row = home(self.problem, block.rank, self.rank, program.schedule in STAGED)
        first = self._first[block.rank] + block.row - row
        pool = self._pool if on_gpu else self._peers
        return pool[first : first + block.rows, block.col : block.col + block.cols]

    def shift_nbytes(self, turn: int) -> int:
        """Bytes by which an iteration's rows lie further on in a peer's memory."""
        return turn % SHIFTS * self.problem.k * self.problem.element_nbytes

    def _arriving(self, program: Program, block: Block, turn: int) -> Any:
        shifted = block._replace(row=block.row + turn % SHIFTS)
        return self.peer(program, shifted, on_gpu=True)

    def prepare(self, program: Program, turn: int, arrived: bool = False) -> None:
        """Poison all that the program writes, and put the iteration's own rows where it looks for them.

        ``arrived``: what the copies would bring lies there already, for a run without them.
        """
        with self.cuda.current():
            for name in self._rooms.keys() & {"a", "c", "step"}:
                self._rooms[name].fill_(float("nan"))
            own = self._counts[self.rank]
            name, row = home(self.problem, self.rank, self.rank, program.schedule in STAGED)
            first = self._first[self.rank] + turn % SHIFTS
            self._room(name)[row : row + own].copy_(self._pool[first : first + own])
            for task in program.of(COPY) if arrived else ():
                self.view(task.out).copy_(self._arriving(program, task.a, turn))

    def check_arrived(self, program: Program, turn: int) -> Check:
        """Compare all that the program's copies should have brought, bit for bit."""
        wrong = []
        for task in program.of(COPY):
            # By bits: as numbers, poison would differ from itself and a zero's sign would not show.
            got, wanted = (
                part.view(self.cuda.torch.int16)
                for part in (self.view(task.out), self._arriving(program, task.a, turn))
            )
            wrong.append((got != wanted).sum())
        counts = self.cuda.torch.stack(wrong).tolist() if wrong else []
        size = self.problem.element_nbytes
        first = next((place for place, count in enumerate(counts) if count), None)
        text = "" if first is None else f"{program}: copy {first} brought {counts[first]} wrong elements"
        return Check(program.moved_nbytes(COPY), size * sum(counts), text)

    def right(self, program: Program, turn: int) -> bool:
        """Whether C is the product, everywhere and finite, within :meth:`bound`."""
        torch, row, worst = self.cuda.torch, 0, []
        for src, count in enumerate(self._counts):
            first = self._first[src] + turn % SHIFTS
            if count:
                got, wanted = self._room("c")[row : row + count], self._product[first : first + count]
                worst.append(worst_difference(torch, got, wanted))
            row += count
        return bool(torch.stack(worst).max() <= self.bound(program))

    def bound(self, program: Program) -> float:
        """Most that an element may differ from the whole product: :func:`rounding`."""
        return rounding(self.problem.dtype, self.problem.k, 1 + sum(task.accumulate for task in program.tasks))


def rounding(dtype: str, k: int, slices: int) -> float:
    """Most by which rounding makes a product in so many slices of K differ from the whole one, of random normal data.

    An element after ``j`` of ``s`` slices has a deviation of ``sqrt(k j / s)``; each time it is written it is rounded
    to the dtype, one way or the other by chance, so squares add up. The whole product was rounded as well. Twice that,
    as a library that splits K itself rounds once more.
    """
    written = sqrt(sum(part / slices for part in range(1, slices + 1)))
    return 2 * _DTYPES[dtype][1] * _DEVIATIONS * sqrt(k) * (1 + written)


def worst_difference(torch: Any, got: Any, wanted: Any) -> Any:
    """The largest absolute difference of two matrices, as a tensor; NaN where either has one."""
    step = max(1, _COMPARED // got.shape[1])
    parts = [(got[row : row + step] - wanted[row : row + step]).abs().max().float() for row in range(0, len(got), step)]
    return torch.stack(parts).max()
