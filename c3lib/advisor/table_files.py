"""Tables of pairs as files, CSV and Parquet: read row by row, written as a whole, hostile ones refused."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from c3lib.errors import C3Error

LARGEST_FILE = 2**28
MOST_ROWS = 250_000
LONGEST_LINE = 2**16
MOST_LINES = 100
"""What is refused, so that no file can take all memory: bytes, rows, characters of a line, and lines of a row."""

Row = tuple[str, dict[str, Any]]
"""Where it stands in the file, in words, and its cells by column."""


def _columns(path: Path, names: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Column names, checked."""
    for name in needed:
        if name not in names:
            raise C3Error(f"{path}: column {name!r} is missing; needed are {', '.join(needed)}")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
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


def from_csv(path: Path, needed: Sequence[str]) -> tuple[list[str], Iterator[Row]]:
    _size(path)
    rows = _csv_rows(path)
    columns = _columns(path, next(rows, (0, []))[1], needed)

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
    number = pending = 0

    def lines(handle: TextIO) -> Iterator[str]:
        nonlocal pending
        while line := handle.readline(LONGEST_LINE + 1):
            pending += 1
            if len(line) > LONGEST_LINE or pending > MOST_LINES:
                many = f"{LONGEST_LINE} characters in a line or {MOST_LINES} lines in a row"
                raise C3Error(f"{path}, line {number + 1}: more than {many}; is a quote not closed?")
            yield line

    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(lines(handle), strict=True)
            for values in reader:
                number, pending = reader.line_num, 0
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


def from_parquet(path: Path, needed: Sequence[str]) -> tuple[list[str], Iterator[Row]]:
    _size(path)
    arrow, parquet = _arrow(path)
    try:
        file = parquet.ParquetFile(path, pre_buffer=False)  # in this thread alone: Arrow's may outlive Python
        count, names = file.metadata.num_rows, file.schema_arrow.names
        nbytes = sum(file.metadata.row_group(index).total_byte_size for index in range(file.metadata.num_row_groups))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise C3Error(f"{path}: not a Parquet table: {_first_line(error)}") from None
    if count > MOST_ROWS or nbytes > 4 * LARGEST_FILE:
        raise C3Error(f"{path}: more than {MOST_ROWS} rows or {4 * LARGEST_FILE} bytes; split it")
    columns = _columns(path, names, needed)

    def cells() -> Iterator[Row]:
        number = 0
        try:
            for batch in file.iter_batches(batch_size=1024, use_threads=False):
                for values in batch.to_pylist():
                    number += 1
                    yield f"row {number}", values
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise C3Error(f"{path}: cannot be read after row {number}: {_first_line(error)}") from None

    return columns, cells()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def to_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[name] for name in columns] for row in rows)  # None is an empty cell
    return text.getvalue().encode()


def to_parquet(
    path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]
) -> bytes:
    """``types`` are of columns that may be empty as a whole, so that cells do not tell."""
    arrow, parquet = _arrow(path)
    try:
        table = arrow.table({name: arrow.array([row[name] for row in rows], types.get(name)) for name in columns})
        content = arrow.BufferOutputStream()
        parquet.write_table(table, content)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise C3Error(f"{path}: cannot be written as Parquet: {_first_line(error)}") from None
    return content.getvalue().to_pybytes()
