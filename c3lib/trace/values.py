"""Values of a trace as Python's, whatever the file holds: times, whole numbers, launch sizes, text for a terminal."""

from __future__ import annotations

import hashlib
from decimal import Decimal, InvalidOperation
from typing import Any

LATEST_NS = 4 * 10**18
"""126 years: times since 1970 lie well inside, and the sum of two fits 64 bits."""

LONGEST_NAME = 2000


class Wrong(Exception):
    """What is wrong with an event, to be said with the file and the event's number."""


def time_ns(event: dict[str, Any], key: str) -> int:
    """A time of an event, microseconds in the file, as whole nanoseconds. Raises :class:`Wrong`."""
    value = event.get(key)
    if value is None:
        raise Wrong(f"{key!r} is missing")
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        text = str(value)
        whole, _, part = text.partition(".")
        # As profilers write it: at most three digits behind the point. Decimal, which takes the rest, is slower.
        plain = len(part) <= 3 and 0 < len(whole) <= 17 and (whole.removeprefix("-") + part).isdecimal()
        found = int(whole + part.ljust(3, "0")) if plain else _rounded(text[:400])
        if found is not None and abs(found) <= LATEST_NS:
            return found
    raise Wrong(f"{key!r} must be a number of microseconds, not {clean(value)[:40]}")


def _rounded(text: str) -> int | None:
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return None
    if not exact.is_finite() or abs(exact) > LATEST_NS // 1000:
        return None
    return int((exact * 1000).to_integral_value())


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
