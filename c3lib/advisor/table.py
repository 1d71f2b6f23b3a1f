"""Advice for a whole table, CSV or Parquet by the file's ending: its columns, and those of the advice behind them.

Read are ``m, n, k, collective, nbytes`` (or ``total_bytes``, as sweeps name it), and where they say something
``dtype`` and ``node`` (else those that are given) and ``ranks`` (else all of the node). Others are carried along.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from c3lib.advisor.advice import Advice, advise_all
from c3lib.advisor.table_files import MOST_ROWS, Row, from_csv, from_parquet, to_csv, to_parquet
from c3lib.errors import C3Error, located, unknown
from c3lib.files import write_bytes
from c3lib.hardware import COLLECTIVES, load_node
from c3lib.workload import DTYPE_BYTES, Collective, Gemm, Scenario, whole

NEEDED = ("m", "n", "k", "collective", "nbytes")
SIZES = ("nbytes", "total_bytes")  # two names of one column
OPTIONAL = ("dtype", "node", "ranks")

ADVICE = (
    "strategy",
    "overlap",
    "dma",
    "cus_reserved",
    "gemm_alone_s",
    "collective_alone_s",
    "serial_s",
    "time_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "sure",
    "overlap_from_nbytes",
    "dma_from_nbytes",
    "fall_back_nbytes",
    "reason",
    "uncertainty",
    "unadvised_strategy",
    "unadvised_speedup",
    "unadvised_speedup_low",
    "unadvised_speedup_high",
    "evidence",
)
"""Columns that are added: attributes of :class:`c3lib.advisor.advice.Advice`; empty where there is no such value."""

_MAY_BE_EMPTY: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys((name for name in ADVICE if name.endswith("_nbytes")), "int64"),
        **dict.fromkeys((name for name in ADVICE if name.startswith("unadvised_speedup")), "float64"),
        "unadvised_strategy": "string",
    }
)
"""Types of the columns that may have no value in any row."""

CHUNK = 2048
"""Rows that the model is asked about at once."""


def _number(least: int) -> Callable[[str, Any], int]:
    def read(column: str, cell: Any) -> int:
        if isinstance(cell, str):
            cell = int(cell) if re.fullmatch(r"\s*\d{1,17}\s*", cell, re.ASCII) else cell
        if isinstance(cell, str) and len(cell) > 40:
            cell = f"{cell[:37]}..."
        return whole(column, cell, least)

    return read


def _one_of(what: str, known: Sequence[str]) -> Callable[[str, Any], str]:
    def read(column: str, cell: Any) -> str:
        if cell not in known:
            raise unknown(what, str(cell)[:40], known)
        return cell

    return read


def _node(column: str, cell: Any) -> str:
    return load_node(str(cell)[:100]).name


_READ: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys("mnk", _number(1)),
        "collective": _one_of("collective", COLLECTIVES),
        **dict.fromkeys(SIZES, _number(0)),
        "dtype": _one_of("dtype", tuple(DTYPE_BYTES)),
        "node": _node,
        "ranks": _number(1),
    }
)


def advise_table(
    path: Path | str,
    out: Path | str,
    node: str = "mi300x_8",
    strategies: Sequence[str] | None = None,
    *,
    dtype: str = "bf16",
    progress: bool = False,
) -> int:
    """Write ``path`` with advice to ``out``, whole or not at all; the number of rows.

    Raises:
        C3Error: a file or column is missing, is none, or is too large; a cell is impossible (line and column named);
            or the result cannot be written. Nothing is written then.
    """
    path, out = Path(path), Path(out)
    for file in (path, out):
        if file.suffix not in (".csv", ".parquet"):
            raise C3Error(f"{file}: must end in .csv or .parquet")
    load_node(node)
    _READ["dtype"]("dtype", dtype)
    columns, source = (from_csv if path.suffix == ".csv" else from_parquet)(path)
    size = _size(path, columns)
    taken = [name for name in ADVICE if name in columns]
    if taken:
        raise C3Error(f"{path}: column {taken[0]!r} is one that the advice adds; rename it")
    rows: list[dict[str, Any]] = []
    with _bar(progress) as bar:
        while chunk := list(islice(source, CHUNK)):
            rows += _advised(path, chunk, size, node, strategies, dtype)
            if len(rows) > MOST_ROWS:
                raise C3Error(f"{path}: more than {MOST_ROWS} rows; split it")
            bar.update(len(chunk))
    names = [*columns, *ADVICE]
    content = to_csv(out, names, rows) if out.suffix == ".csv" else to_parquet(out, names, rows, _MAY_BE_EMPTY)
    write_bytes(out, content)
    return len(rows)


def _size(path: Path, columns: Sequence[str]) -> str:
    """Which column has the sizes; raises :class:`C3Error` where one that is needed is missing."""
    there = [name for name in SIZES if name in columns]
    if len(there) > 1:
        raise C3Error(f"{path}: columns {' and '.join(map(repr, there))} are two names of one size; leave one out")
    for name in NEEDED:
        if name not in columns and not (name in SIZES and there):
            raise C3Error(f"{path}: column {name!r} is missing; needed are {', '.join(NEEDED)}")
    return there[0]


def _advised(
    path: Path, chunk: Sequence[Row], size: str, node: str, strategies: Sequence[str] | None, dtype: str
) -> list[dict[str, Any]]:
    """The rows with their advice."""
    by_node: dict[str, list[int]] = {}
    pairs = []
    for index, (where, cells) in enumerate(chunk):
        name, pair = _pair(path, where, cells, size, node, dtype)
        by_node.setdefault(name, []).append(index)
        pairs.append(pair)
    found: dict[int, Advice] = {}
    for name, those in by_node.items():
        found |= zip(those, advise_all([pairs[index] for index in those], name, strategies), strict=True)
    return [cells | _advice_cells(found[index]) for index, (_, cells) in enumerate(chunk)]


def _advice_cells(advice: Advice) -> dict[str, Any]:
    cells = {name: getattr(advice, name) for name in ADVICE}
    # Few sentences for many rows: held once each.
    return {name: sys.intern(cell) if isinstance(cell, str) else cell for name, cell in cells.items()}


def _pair(path: Path, where: str, cells: dict[str, Any], size: str, node: str, dtype: str) -> tuple[str, Scenario]:
    """Node and pair of a row; its cells are replaced by what they were read as."""
    empty = {column for column in OPTIONAL if cells.get(column) in ("", None)}
    for column in (name for name in _READ if name in cells and name not in empty):
        with located(f"{path}, {where}, column {column!r}"):
            cells[column] = _READ[column](column, cells[column])
    there = load_node(node if "node" in empty else cells["node"])
    ranks = there.ranks if "ranks" in empty else cells["ranks"]
    there.check_ranks(ranks, f"{path}, {where}, column 'ranks'")
    gemm = Gemm(cells["m"], cells["n"], cells["k"], dtype if "dtype" in empty else cells["dtype"])
    return there.name, Scenario(where, gemm, Collective(cells["collective"], cells[size], ranks))


def _bar(wanted: bool) -> Any:
    from tqdm import tqdm

    return tqdm(desc="advise", unit=" rows", delay=1, disable=None if wanted else True, leave=False)
