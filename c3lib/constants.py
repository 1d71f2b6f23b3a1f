"""Constants as they stand in a node's file: a value with its unit, evidence and source, read and checked.

A file's sections are dataclasses whose fields are made by :func:`quantity`; an unknown, missing or impossible entry is
an error that names file and key.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields
from numbers import Real
from pathlib import Path
from typing import Any, Mapping

from c3lib.errors import C3Error, unknown

EVIDENCE = ("reported", "modelled", "measured")

NOT_A_MEASUREMENT = "not a measurement"
"""What rows say that look measured but were run without the hardware: they can be shown, but never be stored."""


@dataclass(frozen=True)
class Constant:
    """One number of a node: value, unit, where it comes from, and whether a reported result was used to set it."""

    key: str
    value: float
    unit: str
    source: str
    evidence: str
    calibrated_on: str | None = None


def quantity(unit: str, low: float = 0.0, high: float = math.inf, *, whole: bool = False) -> Any:
    """A dataclass field with its unit and the closed range of its possible values."""
    return field(metadata={"unit": unit, "low": low, "high": high, "whole": whole})


def require_keys(path: Path, where: str, table: Mapping, expected: Mapping) -> None:
    """Raises :class:`C3Error` for a key that is not expected, and for one that is missing."""
    for key in table:
        if key not in expected:
            raise C3Error(f"{path}: {unknown('key', f'{where}{key}', [f'{where}{name}' for name in expected])}")
    for key in expected:
        if key not in table:
            raise C3Error(f"{path}: key {where}{key} is missing")


def read_section(path: Path, section: str, kind: type, table: Mapping, constants: dict[str, Constant]) -> Any:
    """A section of a file as an instance of ``kind``; each of its constants is added to ``constants`` by its key.

    Raises:
        C3Error: a key, unit, label, source or value is not as expected; file and key are named.
    """
    require_keys(path, f"{section}.", table, {item.name: item for item in fields(kind)})
    values = {}
    for item in fields(kind):
        constant = _read_constant(path, f"{section}.{item.name}", table[item.name], item.metadata)
        constants[constant.key] = constant
        values[item.name] = int(constant.value) if item.metadata["whole"] else float(constant.value)
    return kind(**values)


def _read_constant(path: Path, key: str, entry: Any, meta: Mapping) -> Constant:
    if not isinstance(entry, Mapping):
        raise C3Error(f"{path}: {key} must be a table {{ value, unit, evidence, source }}, not {entry!r}")
    require_keys(
        path,
        f"{key}.",
        {name: entry[name] for name in entry if name != "calibrated_on"},
        dict.fromkeys(("value", "unit", "evidence", "source")),
    )
    value = entry["value"]
    check_value(f"{path}: {key}.value", value, meta)
    if entry["unit"] != meta["unit"]:
        raise C3Error(f"{path}: {key}.unit must be {meta['unit']!r}, not {entry['unit']!r}")
    if entry["evidence"] not in EVIDENCE:
        raise C3Error(f"{path}: {key}.evidence must be one of {', '.join(EVIDENCE)}, not {entry['evidence']!r}")
    for name in ("source", "calibrated_on"):
        text = entry.get(name)
        if (name == "source" or name in entry) and not (isinstance(text, str) and text.strip()):
            raise C3Error(f"{path}: {key}.{name} must say where the number comes from, not {text!r}")
    return Constant(key, value, entry["unit"], entry["source"], entry["evidence"], entry.get("calibrated_on"))


def check_value(where: str, value: Any, meta: Mapping) -> None:
    """Raises :class:`C3Error`, beginning with ``where``, for a value that a field of :func:`quantity` cannot have."""
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not -sys.float_info.max <= number <= sys.float_info.max:  # not isfinite: an int can be too large for a float
        raise C3Error(f"{where} must be a finite number, not {value!r}")
    if meta["whole"] and value != int(value):
        raise C3Error(f"{where} must be a whole number, not {value!r}")
    if not meta["low"] <= value <= meta["high"]:
        raise C3Error(f"{where} must lie in [{meta['low']:g}, {meta['high']:g}] {meta['unit']}, not {value!r}")
