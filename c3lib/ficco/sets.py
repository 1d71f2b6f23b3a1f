"""Sets of problems: fixed ones from ``data/problems/<name>.csv`` and random realistic ones for held-out tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from c3lib.errors import unknown
from c3lib.ficco.problem import Problem
from c3lib.files import DATA, names_in
from c3lib.hardware import COLLECTIVES, Node
from c3lib.suites import MATRICES, numbers_of, read_named
from c3lib.workload import whole

COLUMNS = ("name", "m", "n", "k", "dtype", "collective", "pieces", "origin")
FOLDER = DATA / "problems"
PAPER_SET = "ficco16"


@dataclass(frozen=True)
class Row:
    """A problem with its name and where its numbers come from."""

    name: str
    problem: Problem
    origin: str


def problem_sets(folder: Path = FOLDER) -> list[str]:
    """Names of the sets that have a file."""
    return names_in(folder, ".csv")


def load_problems(name: str, ranks: int, folder: Path = FOLDER, pieces: int = 0) -> list[Row]:
    """Problems of ``<folder>/<name>.csv`` for ``ranks`` GPUs.

    ``m``, ``n``, ``k`` in the file are the GEMM of all ranks together: each computes ``n / ranks`` columns (rounded up)
    of all rows, which is the project's inference (with ``n`` whole, row g13 would need more than a GPU's memory).
    ``pieces`` of a shard, in the file or for all rows; 0 is as many as there are ranks.

    Raises:
        C3Error: unknown set, wrong columns, a value out of range (file, line and column named), a repeated name.
    """
    if name not in problem_sets(folder):
        raise unknown("problem set", name, problem_sets(folder))
    return read_named(folder / f"{name}.csv", COLUMNS, "problem", lambda row: _row(row, ranks, pieces))


def _row(row: dict[str, str], ranks: int, pieces: int) -> Row:
    numbers = numbers_of(row, ("m", "n", "k", "pieces"))
    for column, number in numbers.items():
        whole(column, number, least=0 if column == "pieces" else 1)
    numbers["pieces"] = pieces or numbers["pieces"]
    return Row(row["name"], problem(row["collective"], **numbers, dtype=row["dtype"], ranks=ranks), row["origin"])


def problem(kind: str, m: int, n: int, k: int, ranks: int, dtype: str = "bf16", pieces: int = 0) -> Problem:
    """The problem of a GEMM of all ranks together, of which each computes ``n / ranks`` columns (rounded up)."""
    if kind not in COLLECTIVES:
        raise unknown("collective", kind, COLLECTIVES)
    build = Problem.all_gather if kind == "all-gather" else Problem.all_to_all
    return build(m, -(-n // max(ranks, 1)), k, ranks, dtype, pieces)


def random_problems(count: int, node: Node, seed: int = 0) -> list[Row]:
    """``count`` random realistic problems: a model's weight matrix, 2048 to 1048576 rows of A, either collective.

    A third of them, as in the paper's rows, have the tokens in K (weight gradients): M is a dimension of the matrix
    and K the number of tokens. Token counts are log-uniform in multiples of 256. Shapes of the fixed sets are left out,
    so that a rule scored here has not seen its cases.
    """
    count = whole("random problems: count", count, least=1)
    rng = np.random.default_rng(whole("random problems: seed", seed, least=0))
    seen = {
        (row.problem.m, row.problem.n, row.problem.k)
        for name in problem_sets()
        for row in load_problems(name, node.ranks)
    }
    names = list(MATRICES)
    found: list[Row] = []
    while len(found) < count:
        name = names[rng.integers(len(names))]
        n, k = MATRICES[name]
        tokens = 256 * int(2 ** rng.uniform(3, 12))
        m, n, k = (n, k, tokens) if rng.random() < 1 / 3 else (tokens, n, k)
        kind = COLLECTIVES[rng.integers(len(COLLECTIVES))]
        one = problem(kind, m, n, k, node.ranks)
        if (one.m, one.n, one.k) not in seen:
            found.append(Row(f"{name}-{kind}-{m}x{n}x{k}-{len(found)}", one, f"random, seed {seed}"))
    return found
