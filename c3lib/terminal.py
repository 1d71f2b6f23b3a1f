"""Plain text tables and JSON: what the shell commands print, readable on a terminal and in a pipe alike."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 100
"""Columns that a table fills at most; only its last column wraps."""


def table(header: Sequence[str], rows: Iterable[Sequence[object]], width: int = WIDTH) -> str:
    """A table with aligned columns: numbers to the right, words to the left.

    Cells are text or None (shown as ``-``); a column counts as numbers when each of its cells is one (``1.50x`` too).
    The last column takes what is left of ``width`` and wraps.
    """
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    columns = list(zip(header, *cells, strict=True))
    sizes = [max(map(len, column)) for column in columns]
    right = [bool(cells) and all(_like_number(cell) for cell in column[1:]) for column in columns]
    before = sum(sizes[:-1]) + 2 * (len(sizes) - 1)
    last = max(20, width - before)
    sizes[-1] = min(sizes[-1], last)
    lines = []
    for row in zip(*columns, strict=True):
        wrapped = textwrap.wrap(row[-1], sizes[-1], break_on_hyphens=False) or [""]
        for number, piece in enumerate(wrapped):
            shown = [*(row[:-1] if number == 0 else [""] * (len(row) - 1)), piece]
            parts = [
                cell.rjust(size) if flush else cell.ljust(size)
                for cell, size, flush in zip(shown, sizes, right, strict=True)
            ]
            lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def paragraph(text: str, width: int = WIDTH) -> str:
    """Text wrapped to the width."""
    return textwrap.fill(text, width, break_on_hyphens=False, break_long_words=False)


def number(value: float | None, form: str = ".3g") -> str | None:
    """A number as text; None where there is none (None or NaN)."""
    return None if value is None or math.isnan(value) else format(value, form)


def records(frame: Any) -> list[dict[str, Any]]:
    """Rows of a DataFrame as dicts."""
    return frame.to_dict(orient="records")


def to_json(content: Any) -> str:
    """JSON text. NaN and infinities, which JSON does not know, become null; NumPy values become plain ones."""
    return json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_plain(value) for value in content]
    if hasattr(content, "tolist"):  # NumPy scalars and arrays
        return _plain(content.tolist())
    if isinstance(content, float) and not math.isfinite(content):
        return None
    if content is None or isinstance(content, (str, bool, int, float)):
        return content
    return str(content)


def _like_number(text: str) -> bool:
    return re.fullmatch(r"-|[+-]?\d[\d.]*(e[+-]?\d+)?[x%]?", text) is not None
