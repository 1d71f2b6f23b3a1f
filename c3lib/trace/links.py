"""Which operator of the program launched a GPU activity, and what that tells: a GEMM's shapes, a collective's bytes.

Three ways, by what a profiler writes. An activity has its operator's ``External id``. Or it has the ``correlation`` of
a launch that has it. Or, as some ROCm builds of torch write it, where launches have no ``correlation``: its
``External id`` is that of its launch alone, which lies in the operator's time on its thread. Then an operator of the
same number is another's, and it is the launch that has the grid and the block.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c3lib.trace import names
from c3lib.trace.intervals import groups
from c3lib.trace.kernel import Fact, Launch, Sent, Shape
from c3lib.trace.values import Wrong, clean, is_whole, time_ns

MOST_LAUNCHES = 6_000_000
MOST_DIFFERENT = 100_000
"""Of shapes, launch sizes, threads."""

Numbers = NDArray[np.int64]


class Links:
    """Operators and launches as they are read; afterwards what they say of activities."""

    def __init__(self) -> None:
        self._facts: dict[Fact, int] = {}  # what operators and launches say, numbered from 1 on
        self._threads: dict[Any, int] = {}
        self._operators = _Columns("external", "fact", "thread", "start", "end")
        self._launches = _Columns("correlation", "external")
        self._old = _Columns("external", "fact", "thread", "start")  # launches without a correlation

    def operator(self, event: dict[str, Any]) -> None:
        """Keep an operator that launches GEMMs, if its shapes are there, or a collective. Raises :class:`Wrong`."""
        name, told = event.get("name"), event.get("args")
        if not isinstance(name, str) or not isinstance(told, dict) or not is_whole(told.get("External id")):
            return
        fact: Fact | None = None
        if name in names.MATMULS:
            fact = Shape.of(name, told)
        elif name == "record_param_comms":
            fact = Sent.of(told)
        if fact:
            start, length = _time(event, "ts"), _time(event, "dur")
            self._operators.add(told["External id"], self._fact(fact), self._thread(event), start, start + length)

    def launch(self, event: dict[str, Any]) -> None:
        """Keep a launch. Raises :class:`Wrong`."""
        told = event.get("args")
        if not isinstance(told, dict) or not is_whole(told.get("External id")):
            return
        if is_whole(told.get("correlation")):
            self._launches.add(told["correlation"], told["External id"])
        elif "correlation" not in told:
            launch = Launch.of(told, "grid dim", "block dim")
            self._old.add(told["External id"], self._fact(launch), self._thread(event), _time(event, "ts"))

    def facts(self, external: Numbers, correlation: Numbers) -> tuple[Numbers, list[list[Fact]]]:
        """For activities with these ids (0: none) numbers, and for each number what is told."""
        known = [None, *self._facts]  # None: nothing
        operators = {name: self._operators[name] for name in self._operators.names}
        if len(self._old["external"]):
            rows = _looked_up(self._old["external"], np.arange(1, len(self._old["external"]) + 1), external)
            of_operator = np.append(0, self._in_time(operators))[rows]
            of_launch = np.append(0, self._old["fact"])[rows]
        else:
            external = np.where(
                external > 0,
                external,
                _looked_up(self._launches["correlation"], self._launches["external"], correlation),
            )
            of_operator = _looked_up(operators["external"], operators["fact"], external)
            of_launch = np.zeros_like(external)
        pairs, number = np.unique(of_operator * len(known) + of_launch, return_inverse=True)
        both = ((known[place] for place in divmod(pair, len(known))) for pair in pairs.tolist())
        told = [[fact for fact in facts if fact is not None] for facts in both]
        return number, told

    def _in_time(self, operators: dict[str, Numbers]) -> Numbers:
        """Facts of the innermost operators in whose time the old launches lie, 0 where there is none."""
        found = np.zeros_like(self._old["start"])
        of_thread = groups(operators["thread"])
        for thread, own in groups(self._old["thread"]).items():
            mine = of_thread.get(thread, np.zeros(0, np.int64))
            mine = mine[np.lexsort((-operators["end"][mine], operators["start"][mine]))]
            place = np.searchsorted(operators["start"][mine], self._old["start"][own], side="right") - 1
            own, latest = own[place >= 0], mine[place[place >= 0]]
            inside = self._old["start"][own] <= operators["end"][latest]
            found[own[inside]] = operators["fact"][latest[inside]]
        return found

    def _fact(self, fact: Fact) -> int:
        return number_of(self._facts, fact, "shapes and launch sizes") + 1

    def _thread(self, event: dict[str, Any]) -> int:
        return number_of(self._threads, clean(event.get("tid"))[:40], "threads")


class _Columns:
    """Rows of whole numbers, 8 bytes each."""

    def __init__(self, *columns: str):
        self.names = columns
        self._columns = [array("q") for _ in columns]

    def __getitem__(self, name: str) -> Numbers:
        return np.asarray(self._columns[self.names.index(name)], dtype=np.int64)

    def add(self, *row: int) -> None:
        if len(self._columns[0]) >= MOST_LAUNCHES:
            raise Wrong(f"more than {MOST_LAUNCHES} launches: profile fewer steps")
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)


def number_of(known: dict[Any, int], what: Any, called: str, most: int | None = None) -> int:
    """Its number among the different ones. Raises :class:`Wrong` for more than ``most`` (:data:`MOST_DIFFERENT`)."""
    most = MOST_DIFFERENT if most is None else most
    if what not in known and len(known) >= most:
        raise Wrong(f"more than {most} different {called}: no program on GPUs has so many")
    return known.setdefault(what, len(known))


def _looked_up(keys: Numbers, values: Numbers, wanted: Numbers) -> Numbers:
    """Values for the wanted keys; 0 for those that are 0 or have none."""
    if not keys.size:
        return np.zeros_like(wanted)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    place = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where((keys[place] == wanted) & (wanted > 0), values[place], 0)


def _time(event: dict[str, Any], key: str) -> int:
    """A time in nanoseconds; 0 where it is none, as only the activities' own times are reported."""
    try:
        return time_ns(event, key)
    except Wrong:
        return 0
