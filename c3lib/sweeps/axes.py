"""Axes of a grid as a file has them: checked, and counted before a single value of a range is made."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c3lib.constants import check_value
from c3lib.errors import C3Error, shorten, unknown
from c3lib.hardware import COLLECTIVES, SECTIONS, node_names
from c3lib.strategy import STRATEGIES
from c3lib.workload import DTYPE_BYTES, parse_size, whole

DIMENSIONS = ("m", "n", "k")
SIZE = "size"
LABEL = "label"
WORDS: Mapping[str, Callable[[], Iterable[str]]] = {
    "node": node_names,
    "strategy": lambda: STRATEGIES,
    "collective": lambda: COLLECTIVES,
    "dtype": DTYPE_BYTES.keys,
}
"""Axes of names, with what they can be."""

CONSTANTS = {f"{section}.{item.name}": item.metadata for section, kind in SECTIONS.items() for item in fields(kind)}
"""Axes of a node's constants, with their possible values."""

NAMES = (*WORDS, LABEL, *DIMENSIONS, SIZE, *CONSTANTS)
REQUIRED = ("collective", *DIMENSIONS, SIZE)
RANGE = ("from", "to", "steps", "scale", "multiple")

MOST_VALUES = 1_000_000
"""Values of one axis."""
MOST_LETTERS = 200
"""Letters of a label."""


@dataclass(frozen=True)
class Axis:
    """Values of one axis in the order of the grid: words, whole numbers (int64) or numbers (float64)."""

    name: str
    values: tuple[str, ...] | NDArray

    def __len__(self) -> int:
        return len(self.values)


def flat(where: str, table: Any) -> dict[str, Any]:
    """Axes by name; constants may stand in a table of their section. Raises :class:`C3Error` for an unknown name."""
    if not isinstance(table, Mapping):
        raise C3Error(f"{where} must be a table of axes, not {shorten(table)}")
    found = {}
    for key, value in table.items():
        inside = isinstance(value, Mapping) and key in SECTIONS
        for name, spec in ({f"{key}.{name}": spec for name, spec in value.items()} if inside else {key: value}).items():
            if name not in NAMES:
                raise C3Error(f"{where}: {unknown('axis', shorten(name, bare=True), NAMES)}")
            if name in found:
                raise C3Error(f"{where}.{name} stands twice")
            found[name] = spec
    return found


def length(where: str, spec: Any) -> int:
    """How many values an axis has at most, without making them. Raises :class:`C3Error` for none, or too many."""
    if isinstance(spec, Mapping):
        for key in spec:
            if key not in RANGE:
                raise C3Error(f"{where}: {unknown('key', shorten(key, bare=True), RANGE)}")
        for key in RANGE[:3]:
            if key not in spec:
                raise C3Error(f"{where}.{key} is missing: a range is {{ from = 1, to = 8, steps = 8 }}")
        count = _whole(f"{where}.steps", spec["steps"], least=2)
    else:
        count = len(spec) if isinstance(spec, list | tuple) else 1
    if not count:
        raise C3Error(f"{where} must have at least one value")
    if count > MOST_VALUES:
        raise C3Error(f"{where} has {count:,} values, and an axis can have at most {MOST_VALUES:,}")
    return count


def axis(where: str, name: str, spec: Any, alone: bool) -> Axis:
    """The axis with its values; ``alone``: not zipped with others, so that no value may stand twice.

    A range's values are rounded to multiples (of 1 for what is counted), and equal ones of an axis alone become one.

    Raises:
        C3Error: a value of the wrong kind, out of range or unknown, or one that stands twice.
    """
    if isinstance(spec, Mapping):
        if name in WORDS or name == LABEL:
            raise C3Error(f"{where} must be a list of names, not a range")
        values = _range(where, name, spec)
        return Axis(name, values[np.append(True, values[1:] > values[:-1])] if alone else values)  # they ascend
    listed = spec if isinstance(spec, list | tuple) else [spec]
    found = [
        _word(where, name, item) if name in WORDS or name == LABEL else _number(where, name, item) for item in listed
    ]
    if alone and len(set(found)) < len(found):
        raise C3Error(f"{where}: {Counter(found).most_common(1)[0][0]!r} stands twice")
    if name in WORDS or name == LABEL:
        return Axis(name, tuple(map(str, found)))
    return Axis(name, np.array(found, float if name in CONSTANTS else np.int64))


def _word(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise C3Error(f"{where} must be a name in quotes, or a list of them, not {shorten(value)}")
    if name == LABEL:
        if not 1 <= len(value) <= MOST_LETTERS:
            raise C3Error(f"{where}: a label has 1 to {MOST_LETTERS} letters, not {len(value)}")
    elif value not in (known := WORDS[name]()):
        raise C3Error(f"{where}: {unknown(name, shorten(value, bare=True), known)}")
    return value


def _number(where: str, name: str, value: Any) -> int | float:
    if name in CONSTANTS:
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > sys.float_info.max:
            raise C3Error(f"{where} must be a finite number, not {shorten(value)}")
        check_value(where, value, CONSTANTS[name])
        return float(value)
    if name == SIZE and isinstance(value, str) and len(value) <= 40:
        try:
            return parse_size(value)
        except C3Error as error:
            raise C3Error(f"{where}: {error}") from None
    if not isinstance(value, int) or isinstance(value, bool):
        kind = "a whole number or text such as '896MiB'" if name == SIZE else "a whole number"
        raise C3Error(f"{where} must be {kind}, not {shorten(value)}")
    return _whole(where, value, least=0 if name == SIZE else 1)


def _whole(where: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise C3Error(f"{where} must be a whole number, not {shorten(value)}")
    return whole(where, value, least)


def _range(where: str, name: str, spec: Mapping) -> NDArray:
    low, high = (_number(f"{where}.{key}", name, spec[key]) for key in ("from", "to"))
    counted = name not in CONSTANTS or CONSTANTS[name]["whole"]
    scale, steps = spec.get("scale", "linear"), int(spec["steps"])
    if scale not in ("linear", "log"):
        raise C3Error(f"{where}.scale must be 'linear' or 'log', not {shorten(scale)}")
    if low >= high:
        raise C3Error(f"{where}.from must be less than to, not {low:g} and {high:g}")
    if scale == "log" and low <= 0:
        raise C3Error(f"{where}.from must be more than 0 where the scale is 'log'")
    values = (np.geomspace if scale == "log" else np.linspace)(low, high, steps)
    values[0], values[-1] = low, high
    if "multiple" in spec or counted:
        step = _multiple(f"{where}.multiple", name, spec.get("multiple", 1), counted)
        first, last = math.ceil(low / step), math.floor(high / step)
        if first > last:
            raise C3Error(f"{where}: no multiple of {step:g} lies between {low:g} and {high:g}")
        values = np.clip(np.rint(values / step), first, last) * step
    return values.astype(np.int64) if name not in CONSTANTS else values


def _multiple(where: str, name: str, value: Any, counted: bool) -> int | float:
    if name == SIZE and isinstance(value, str):
        value = _number(where, name, value)
    if counted:
        return _whole(where, value, least=1)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise C3Error(f"{where} must be a number above 0, not {shorten(value)}")
    return value
