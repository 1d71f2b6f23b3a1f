"""A schedule proven for a problem: its programs followed element by element, and run beside one product."""

from __future__ import annotations

from importlib.util import find_spec

from c3lib.errors import lacking
from c3lib.ficco.check import check_ranks
from c3lib.ficco.execute import Data, run, verify
from c3lib.ficco.problem import Problem
from c3lib.ficco.schedules import build

MOST_ROWS, MOST_COLUMNS = 256, 32
"""A problem is run with about so many rows of A and of K, and columns of B, at most: enough to cut into pieces."""


def prove(problem: Problem, schedule: str, seed: int = 0) -> str:
    """Prove the programs of all ranks; one sentence that says what was compared.

    They are checked at the problem's own size without running, rank after rank, which takes as long as there are tasks
    (about a second a rank at 64 ranks and 64 pieces, so a minute in all); then run on the CPU at a size that takes no
    more than seconds: the same ranks, pieces and zeros, all dimensions smaller.

    Raises:
        C3Error: an unknown schedule, no torch to run with, or what is wrong, with task and block or element.
    """
    if find_spec("torch") is None:
        raise lacking("a proof by running", "torch", "gpu")
    said = check_ranks([build(schedule, problem, rank) for rank in range(problem.ranks)])
    small = smaller(problem)
    programs = [build(schedule, small, rank) for rank in range(small.ranks)]
    data = Data(small, seed=seed)
    for order in (None, seed):
        verify(programs, data, run(programs, data, order))
    size = "at its own size" if small == problem else f"cut down to {max(small.m)}x{small.n}x{small.k}"
    return (
        f"{said}; run by torch on the CPU {size}, in program order and in a random order that keeps the dependencies, "
        f"on whole numbers in fp64, the {small.ranks} results equal the serial product in every element"
    )


def smaller(problem: Problem) -> Problem:
    """The problem with every dimension divided by one number each, rounded up, so that nothing becomes zero."""

    def divisor(size: int, most: int) -> int:
        return -(-size // most)

    fewer = divisor(max(problem.m), MOST_ROWS)
    rows = tuple(tuple(-(-count // fewer) for count in row) for row in problem.rows)
    n = -(-problem.n // divisor(problem.n, MOST_COLUMNS))
    k = -(-problem.k // divisor(problem.k, MOST_ROWS))
    return Problem(problem.kind, rows, n, k, problem.dtype, problem.pieces)
