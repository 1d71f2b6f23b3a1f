"""Advice for a whole table, CSV or Parquet by the file's ending: its columns, and those of the advice behind them.

Read are ``m, n, k, collective, nbytes``, and where they say something ``dtype`` and ``node`` (else those that
are given) and ``ranks`` (else all of the node). Other columns are carried along.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from c3lib.advisor.advice import Advice, advise_all
from c3lib.errors import C3Error, unknown
from c3lib.files import write_bytes
from c3lib.hardware import COLLECTIVES, load_node
from c3lib.workload import DTYPE_BYTES, Collective, Gemm, Scenario, whole

NEEDED = ("m", "n", "k", "collective", "nbytes")
OPTIONAL = ("dtype", "node", "ranks")

ADVICE = (
    "strategy",
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
    "reason",
    "uncertainty",
    "evidence",
)
"""Columns that are added: attributes of :class:`c3lib.advisor.advice.Advice`; empty where there is no such size."""

LARGEST_FILE = 2**28
MOST_ROWS = 1_000_000
CHUNK = 2048

Row = tuple[str, dict[str, Any]]
"""Where it stands in the file, in words, and its cells by column."""


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
        "nbytes": _number(0),
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
    columns, source = (_from_csv if path.suffix == ".csv" else _from_parquet)(path)
    taken = [name for name in ADVICE if name in columns]
    if taken:
        raise C3Error(f"{path}: column {taken[0]!r} is one that the advice adds; rename it")
    rows: list[dict[str, Any]] = []
    with _bar(progress) as bar:
        while chunk := list(islice(source, CHUNK)):
            rows += _advised(path, chunk, node, strategies, dtype)
            if len(rows) > MOST_ROWS:
                raise C3Error(f"{path}: more than {MOST_ROWS} rows; split it")
            bar.update(len(chunk))
    content = (_to_csv if out.suffix == ".csv" else _to_parquet)(out, [*columns, *ADVICE], rows)
    write_bytes(out, content)
    return len(rows)


def _advised(
    path: Path, chunk: Sequence[Row], node: str, strategies: Sequence[str] | None, dtype: str
) -> list[dict[str, Any]]:
    """The rows with their advice."""
    by_node: dict[str, list[int]] = {}
    pairs = []
    for index, (where, cells) in enumerate(chunk):
        name, pair = _pair(path, where, cells, node, dtype)
        by_node.setdefault(name, []).append(index)
        pairs.append(pair)
    found: dict[int, Advice] = {}
    for name, those in by_node.items():
        found |= zip(those, advise_all([pairs[index] for index in those], name, strategies), strict=True)
    return [cells | {name: getattr(found[index], name) for name in ADVICE} for index, (_, cells) in enumerate(chunk)]


def _pair(path: Path, where: str, cells: dict[str, Any], node: str, dtype: str) -> tuple[str, Scenario]:
    """Node and pair of a row; its cells are replaced by what they were read as."""
    empty = {column for column in OPTIONAL if cells.get(column) in ("", None)}
    for column in (name for name in _READ if name not in empty):
        try:
            cells[column] = _READ[column](column, cells[column])
        except C3Error as error:
            raise C3Error(f"{path}, {where}, column {column!r}: {error}") from None
    there = load_node(node if "node" in empty else cells["node"])
    ranks = there.ranks if "ranks" in empty else cells["ranks"]
    if ranks > there.ranks:
        raise C3Error(f"{path}, {where}, column 'ranks': {ranks}, but node {there.name} has {there.ranks}")
    gemm = Gemm(cells["m"], cells["n"], cells["k"], dtype if "dtype" in empty else cells["dtype"])
    return there.name, Scenario(where, gemm, Collective(cells["collective"], cells["nbytes"], ranks))


def _columns(path: Path, names: Sequence[str]) -> list[str]:
    """Column names, checked."""
    for name in NEEDED:
        if name not in names:
            raise C3Error(f"{path}: column {name!r} is missing; needed are {', '.join(NEEDED)}")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise C3Error(f"{path}: column {twice[:40]!r} stands twice")
    return list(names)


def _size(path: Path) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise C3Error(f"{path}: no such file") from None
    except OSError as error:
        raise C3Error(f"{path}: cannot be read: {error.strerror}") from None
    if not path.is_file():
        raise C3Error(f"{path}: must be an ordinary file")
    if size > LARGEST_FILE:
        raise C3Error(f"{path}: is larger than {LARGEST_FILE} bytes; split it")


def _from_csv(path: Path) -> tuple[list[str], Iterator[Row]]:
    _size(path)
    rows = _csv_rows(path)
    columns = _columns(path, next(rows, (0, []))[1])

    def cells() -> Iterator[Row]:
        for line, values in rows:
            if not values:
                continue  # an empty line
            if len(values) != len(columns):
                raise C3Error(f"{path}, line {line}: {len(values)} values for {len(columns)} columns")
            yield f"line {line}", dict(zip(columns, values, strict=True))

    return columns, cells()


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line and values of each row. Line by line, so that a large file is not held as a whole."""
    number = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            for values in reader:
                number = reader.line_num
                yield number, values
    except csv.Error as error:
        raise C3Error(f"{path}, line {number + 1}: {error}") from None
    except UnicodeDecodeError:
        raise C3Error(f"{path}: not UTF-8 text after line {number}") from None
    except OSError as error:
        raise C3Error(f"{path}: cannot be read: {error.strerror}") from None


def _arrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise C3Error(f"{path}: Parquet needs pyarrow: pip install 'c3lib[sweep]', or use CSV") from None
    return pyarrow, pyarrow.parquet


def _from_parquet(path: Path) -> tuple[list[str], Iterator[Row]]:
    _size(path)
    arrow, parquet = _arrow(path)
    try:
        file = parquet.ParquetFile(path)
        count, names = file.metadata.num_rows, file.schema_arrow.names
        nbytes = sum(file.metadata.row_group(index).total_byte_size for index in range(file.metadata.num_row_groups))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise C3Error(f"{path}: not a Parquet table: {_first_line(error)}") from None
    if count > MOST_ROWS or nbytes > 4 * LARGEST_FILE:
        raise C3Error(f"{path}: more than {MOST_ROWS} rows or {4 * LARGEST_FILE} bytes; split it")
    columns = _columns(path, names)

    def cells() -> Iterator[Row]:
        number = 0
        try:
            for batch in file.iter_batches(batch_size=CHUNK):
                for values in batch.to_pylist():
                    number += 1
                    yield f"row {number}", values
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise C3Error(f"{path}: cannot be read after row {number}: {_first_line(error)}") from None

    return columns, cells()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _to_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[name] for name in columns] for row in rows)  # None is an empty cell
    return text.getvalue().encode()


def _to_parquet(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    arrow, parquet = _arrow(path)
    sizes = {name: arrow.int64() for name in ADVICE if name.endswith("_nbytes")}  # also where all are empty
    try:
        table = arrow.table({name: arrow.array([row[name] for row in rows], sizes.get(name)) for name in columns})
        content = arrow.BufferOutputStream()
        parquet.write_table(table, content)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise C3Error(f"{path}: cannot be written as Parquet: {_first_line(error)}") from None
    return content.getvalue().to_pybytes()


def _bar(wanted: bool) -> Any:
    from tqdm import tqdm

    return tqdm(desc="advise", unit=" rows", delay=1, disable=None if wanted else True, leave=False)
