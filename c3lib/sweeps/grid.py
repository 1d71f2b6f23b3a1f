"""A grid of scenarios and strategies: read from a file, counted, and cut into parts that can be computed anywhere."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c3lib.errors import C3Error, large, shorten, unknown
from c3lib.files import read_text
from c3lib.hardware import PAPER_NODE, load_node
from c3lib.strategy import STRATEGIES
from c3lib.sweeps.axes import CONSTANTS, REQUIRED, Axis, axis, flat, length

MOST_NBYTES = 2**17
"""Of a grid's file; a mapping may hold more."""
CHAIN = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){9}""")
"""Keys with many dots, which no grid has: their reader takes the square of the time for twice as many."""
MOST_ROWS = 100_000_000
MOST_NODES = 10_000
"""Nodes and values of their constants: the model is vectorised over scenarios, and each node is a call of its own."""
PART_ROWS = 98_304
"""Rows of a part at most: a second's work or less, some MB."""
PART_NODES = 64

DEFAULTS: Mapping[str, Any] = {"node": PAPER_NODE, "dtype": "bf16", "strategy": list(STRATEGIES)}


@dataclass(frozen=True)
class Block:
    """The scenarios of one part, ready to be computed in another process or on another machine.

    ``nodes``: name, constants changed, and how many of the scenarios in turn run there. ``numbers``: m, n, k and size
    of each scenario. ``words``: of other axes, what they can be and which of them each scenario has.
    """

    number: int
    strategies: tuple[str, ...]
    nodes: tuple[tuple[str, dict[str, float], int], ...]
    numbers: Mapping[str, NDArray]
    words: Mapping[str, tuple[tuple[str, ...], NDArray]]


@dataclass(frozen=True)
class Grid:
    """Groups of axes that vary together, the slowest first; strategies vary fastest and are counted apart.

    Nodes and their constants are slowest, whatever the order of the file, so that a part needs few of them.
    """

    table: Mapping[str, Any]  # as it was given
    groups: tuple[tuple[Axis, ...], ...]
    strategies: tuple[str, ...]

    @cached_property
    def scenarios(self) -> int:
        """Points of the grid, strategies not counted."""
        return math.prod(len(group[0]) for group in self.groups)

    @property
    def rows(self) -> int:
        """A row a scenario and strategy."""
        return self.scenarios * len(self.strategies)

    @cached_property
    def part_scenarios(self) -> int:
        """Scenarios of a part, but for the last one."""
        nodes = math.prod(len(group[0]) for group in self.groups if _of_node(group))
        return min(max(1, PART_ROWS // len(self.strategies)), max(1, self.scenarios // nodes * PART_NODES))

    @property
    def parts(self) -> int:
        """How many parts the grid is cut into."""
        return -(-self.scenarios // self.part_scenarios)

    @cached_property
    def sha256(self) -> str:
        """Of axes, values and their order: grids of the same table have the same."""
        digest = hashlib.sha256(json.dumps(self.strategies).encode())
        for group in self.groups:
            for item in group:
                whole = item.values if isinstance(item.values, tuple) else [item.values.dtype.str, len(item)]
                digest.update(json.dumps([item.name, whole, item is group[-1]]).encode())
                if not isinstance(item.values, tuple):
                    digest.update(item.values.tobytes())
        return digest.hexdigest()

    def nodes(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Each node of the grid with its changed constants, in their order."""
        count = self.scenarios // math.prod(len(group[0]) for group in self.groups if not _of_node(group))
        step = self.scenarios // count
        for index in range(count):
            (name, constants, _), *_ = self._block_nodes(self._at(np.array([index * step])))
            yield name, constants

    def block(self, number: int) -> Block:
        """One part's scenarios."""
        first = number * self.part_scenarios
        at = self._at(np.arange(first, min(first + self.part_scenarios, self.scenarios)))
        numbers, words = {}, {}
        for item, index in at.values():
            if isinstance(item.values, tuple):
                if item.name != "node":
                    words[item.name] = (item.values, index.astype(np.int32))
            elif item.name not in CONSTANTS:
                numbers[item.name] = item.values[index]
        return Block(number, self.strategies, tuple(self._block_nodes(at)), numbers, words)

    def _at(self, scenarios: NDArray) -> dict[str, tuple[Axis, NDArray]]:
        """Each axis with the positions on it of the scenarios of these numbers."""
        digits = np.unravel_index(scenarios, [len(group[0]) for group in self.groups])
        return {item.name: (item, digit) for group, digit in zip(self.groups, digits, strict=True) for item in group}

    def _block_nodes(self, at: Mapping[str, tuple[Axis, NDArray]]) -> Iterator[tuple[str, dict[str, float], int]]:
        names, which = at["node"]
        constants = [(name, item.values[digit]) for name, (item, digit) in at.items() if name in CONSTANTS]
        changes = np.zeros(len(which) - 1, bool)
        for values in (which, *(values for _, values in constants)):
            changes |= values[1:] != values[:-1]
        starts = [0, *(np.flatnonzero(changes) + 1).tolist(), len(which)]
        for start, stop in pairwise(starts):
            found = {name: float(values[start]) for name, values in constants}
            yield names.values[which[start]], found, stop - start


def _of_node(group: tuple[Axis, ...]) -> bool:
    return any(item.name == "node" or item.name in CONSTANTS for item in group)


def read_grid(source: Path | str | Mapping[str, Any]) -> Grid:
    """The grid of a TOML file, or of a mapping of the same form.

    Raises:
        C3Error: not TOML, an unknown or missing key, an impossible value, or more rows than can be swept; file and key
            are named, and nothing large was made before.
    """
    if isinstance(source, Mapping):
        return _grid("grid", source)
    path = Path(source)
    text = read_text(path, MOST_NBYTES)
    if chain := CHAIN.search(text):
        line = text.count("\n", 0, chain.start()) + 1
        raise C3Error(f"{path}: line {line}: a key of a grid has at most one dot")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is only a ValueError
        raise C3Error(f"{path}: not valid TOML: {shorten(error, bare=True, most=200)}") from None
    return _grid(str(path), table)


def _grid(where: str, table: Mapping[str, Any]) -> Grid:
    for key in table:
        if key not in ("axes", "zip"):
            raise C3Error(f"{where}: {unknown('key', shorten(key, bare=True), ('axes', 'zip'))}")
    alone = flat(f"{where}: axes", table.get("axes", {}))
    zips = table.get("zip", [])
    if not isinstance(zips, list | tuple):
        raise C3Error(f"{where}: zip must be a list of tables, [[zip]] in a file, not {shorten(zips)}")
    together = [flat(f"{where}: zip {number}", item) for number, item in enumerate(zips, 1)]
    named = [(f"{where}: zip {number}", specs) for number, specs in enumerate(together, 1)]

    seen = set(alone)
    for there, specs in named:
        if not specs:
            raise C3Error(f"{there} must have at least one axis")
        if "strategy" in specs:
            raise C3Error(f"{there}.strategy: strategies are compared with one another, so they cannot be zipped")
        if again := seen & set(specs):
            raise C3Error(f"{there}.{min(again)} stands twice in the grid")
        seen |= set(specs)
    for name in REQUIRED:
        if name not in seen:
            raise C3Error(f"{where}: axes.{name} is missing")
    alone = {**{name: value for name, value in DEFAULTS.items() if name not in seen}, **alone}

    counts = [length(f"{where}: axes.{name}", spec) for name, spec in alone.items()]
    of_node = [count for name, count in zip(alone, counts, strict=True) if name == "node" or name in CONSTANTS]
    for there, specs in named:
        lengths = {name: length(f"{there}.{name}", spec) for name, spec in specs.items()}
        if len(set(lengths.values())) > 1:
            raise C3Error(f"{there}: axes must be equally long, not {_listed(lengths)}")
        counts.append(max(lengths.values()))
        of_node += [counts[-1]] if any(name == "node" or name in CONSTANTS for name in specs) else []
    if (rows := math.prod(counts)) > MOST_ROWS:
        raise C3Error(f"{where}: the grid has {large(rows)} rows, and a sweep can have at most {MOST_ROWS:,}")
    if (nodes := math.prod(of_node)) > MOST_NODES:
        raise C3Error(f"{where}: the grid has {nodes:,} nodes with their constants, at most {MOST_NODES:,} are allowed")

    groups: list[tuple[Axis, ...]]
    groups = [(axis(f"{where}: axes.{name}", name, spec, True),) for name, spec in alone.items() if name != "strategy"]
    groups += [
        tuple(axis(f"{there}.{name}", name, spec, False) for name, spec in specs.items()) for there, specs in named
    ]
    strategies = axis(f"{where}: axes.strategy", "strategy", alone["strategy"], True).values
    groups.sort(key=lambda group: not _of_node(group))
    grid = Grid(table, tuple(groups), tuple(map(str, strategies)))
    for name, constants in grid.nodes():
        try:
            load_node(name).with_constants(constants)
        except C3Error as error:
            raise C3Error(f"{where}: constants that cannot be had together: {error}") from None
    return grid


def _listed(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in list(lengths.items())[:8])
