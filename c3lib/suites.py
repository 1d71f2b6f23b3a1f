"""Suites of scenarios: fixed ones from ``data/suites/<name>.csv`` and random realistic ones for held-out tests."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from c3lib.errors import C3Error, unknown
from c3lib.files import DATA, names_in, read_text
from c3lib.hardware import COLLECTIVES, Node
from c3lib.workload import Collective, Gemm, Scenario, whole

COLUMNS = ("name", "m", "n", "k", "dtype", "collective", "nbytes", "origin")

SIZED_FOR = {"conccl30_host": "host", "conccl30_nvlink": "switch"}
"""Suites whose transfers were sized for the links of one topology; any other may be run on every node."""

MATRICES = {
    "70b-qkv": (10240, 8192),
    "70b-o": (8192, 8192),
    "70b-gateup": (57344, 8192),
    "70b-down": (8192, 28672),
    "405b-qkv": (18432, 16384),
    "405b-o": (16384, 16384),
    "405b-gateup": (106496, 16384),
    "405b-down": (16384, 53248),
    "8x7b-gateup": (28672, 4096),
    "8x7b-down": (4096, 14336),
}
"""Weight matrices N x K of Llama-2-70B, Llama-3-405B and Mixtral-8x7B, from the public model configurations."""


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


Named = TypeVar("Named", bound=_HasName)


def suite_names(folder: Path = DATA / "suites") -> list[str]:
    """Names of the suites that have a file."""
    return names_in(folder, ".csv")


def load_suite(name: str, ranks: int, folder: Path = DATA / "suites") -> list[Scenario]:
    """Scenarios of ``<folder>/<name>.csv`` for a node of ``ranks`` GPUs; ``nbytes`` in the file is the total.

    Raises:
        C3Error: unknown suite, wrong columns, a value out of range (file, line and column named), a repeated name.
    """
    if name not in suite_names(folder):
        raise unknown("suite", name, suite_names(folder))
    return read_named(folder / f"{name}.csv", COLUMNS, "scenario", lambda row: _scenario(row, ranks))


def read_named(path: Path, columns: tuple[str, ...], what: str, make: Callable[[dict[str, str]], Named]) -> list[Named]:
    """The rows of a CSV file, each made into something with a name of its own.

    Raises:
        C3Error: wrong columns, a row that ``make`` refuses (file and line named), a repeated name, no row.
    """
    reader = csv.DictReader(io.StringIO(read_text(path)), strict=True)
    found: dict[str, Named] = {}
    try:
        if tuple(reader.fieldnames or ()) != columns:
            have = ",".join(reader.fieldnames or ()) or "an empty file"
            raise C3Error(f"columns must be {','.join(columns)}, not {have}")
        for row in reader:
            if None in row or None in row.values():
                raise C3Error(f"expected {len(columns)} values")
            if not row["name"]:
                raise C3Error("name must not be empty")
            item = make(row)
            if item.name in found:
                raise C3Error(f"name {item.name!r} stands twice")
            found[item.name] = item
    except (C3Error, csv.Error) as error:
        raise C3Error(f"{path}, line {max(1, reader.line_num)}: {error}") from None
    if not found:
        raise C3Error(f"{path}: holds no {what}")
    return list(found.values())


def require_sized(name: str, node: Node) -> None:
    """Raises :class:`C3Error` for a suite whose transfers were sized for links that the node does not have."""
    topology = SIZED_FOR.get(name, node.topology)
    if topology != node.topology:
        fit = [suite for suite in suite_names() if SIZED_FOR.get(suite) == node.topology] or ["conccl30"]
        raise C3Error(
            f"suite {name}: its transfers were sized for nodes of topology {topology}, and {node.name} is of topology "
            f"{node.topology}; use --suite {fit[0]}"
        )


def _scenario(row: dict, ranks: int) -> Scenario:
    numbers = numbers_of(row, ("m", "n", "k", "nbytes"))
    gemm = Gemm(numbers["m"], numbers["n"], numbers["k"], row["dtype"])
    return Scenario(row["name"], gemm, Collective(row["collective"], numbers["nbytes"], ranks), row["origin"])


def numbers_of(row: dict[str, str], columns: tuple[str, ...]) -> dict[str, int]:
    """Columns of a row as whole numbers. Raises :class:`C3Error` naming the column that is none."""
    numbers = {}
    for column in columns:
        try:
            numbers[column] = int(row[column])
        except ValueError:
            raise C3Error(f"{column} must be a whole number, not {row[column]!r}") from None
    return numbers


def random_suite(count: int, node: Node, seed: int = 0) -> list[Scenario]:
    """``count`` random realistic scenarios: a model matrix, 16 to 16384 tokens, an AG or A2A of 128 MiB to 4 GiB.

    Token counts and sizes are log-uniform (tokens in multiples of 16, sizes in MiB); the shapes of ``conccl30`` are
    left out, so that a rule scored here has not seen its cases.
    """
    count = whole("random suite: count", count, least=1)
    seed = whole("random suite: seed", seed, least=0)
    rng = np.random.default_rng(seed)
    seen = {scenario.gemm for scenario in load_suite("conccl30", node.ranks)}
    names = list(MATRICES)
    scenarios: list[Scenario] = []
    while len(scenarios) < count:
        matrix = names[rng.integers(len(names))]
        tokens = 16 * int(2 ** rng.uniform(0, 10))
        size_mib = int(2 ** rng.uniform(7, 12))
        gemm = Gemm(tokens, *MATRICES[matrix])
        if gemm in seen:
            continue
        kind = COLLECTIVES[rng.integers(len(COLLECTIVES))]
        name = f"{matrix}-{tokens}-{kind}-{size_mib}-{len(scenarios)}"
        scenarios.append(Scenario(name, gemm, Collective(kind, size_mib * 2**20, node.ranks), f"random, seed {seed}"))
    return scenarios
