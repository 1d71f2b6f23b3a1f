"""Values of a trace as Python's, whatever the file holds: times, whole numbers, launch sizes, text for a terminal."""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal, InvalidOperation
from typing import Any

LATEST_NS = 3 * 10**18
"""95 years, for starts before and after 0 and for durations. From the earliest start to the latest end it is three
times that, which 64 bits hold: so they do all lengths of disjoint spans and their sums."""

LONGEST_NAME = 2000

# A number as JSON has it: no digits of other scripts, underscores or blanks, which Python's own functions take.
_NUMBER = re.compile(r"(-?[0-9]+)(?:\.([0-9]*))?([eE][+-]?[0-9]+)?")


class Wrong(Exception):
    """What is wrong with an event, to be said with the file and the event's number."""


def time_ns(event: dict[str, Any], key: str) -> int:
    """A time of an event, microseconds in the file, as whole nanoseconds. Raises :class:`Wrong`."""
    value = event.get(key)
    if value is None:
        raise Wrong(f"{key!r} is missing")
    text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    if number := _NUMBER.fullmatch(text):
        whole, part, exponent = number.group(1), number.group(2) or "", number.group(3)
        # As profilers write it: at most three digits behind the point. Decimal, which takes the rest, is slower.
        plain = len(whole) <= 17 and len(part) <= 3 and not exponent
        found = int(whole + part.ljust(3, "0")) if plain else _rounded(text)
        if found is not None and abs(found) <= LATEST_NS:
            return found
    raise Wrong(f"{key!r} must be a number of microseconds within {LATEST_NS / 1e3:g} of 0, not {clean(value)[:40]}")


def _rounded(text: str) -> int | None:
    try:
        exact = Decimal(text)
    except InvalidOperation:  # of an exponent without bounds
        return None
    return int((exact * 1000).to_integral_value()) if exact.copy_abs() <= LATEST_NS // 1000 else None


def is_whole(value: Any) -> bool:
    """Whether it is an integer from -1 on that fits 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**62


def count(value: Any) -> int:
    """A whole number from 0 to 2^53; 0 for anything else."""
    return value if is_whole(value) and 0 <= value <= 2**53 else 0


def sizes(value: Any) -> tuple[int, ...]:
    """A grid or a block, one to three sizes; empty for anything else."""
    return tuple(value) if isinstance(value, list) and len(value) <= 3 and all(map(is_whole, value)) else ()


def name_of(value: Any) -> str:
    """A name that a table can hold; of one that is too long the beginning, and a mark that tells it from others."""
    name = value if isinstance(value, str) else ""
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}...{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:12]}"
    return clean(name)


def clean(value: Any) -> str:
    """Text without what would move a terminal's cursor or change its colours; of a container its type."""
    text = type(value).__name__ if isinstance(value, (dict, list)) else str(value)
    text = text[: LONGEST_NAME + 20]
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)
