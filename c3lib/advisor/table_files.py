"""Tables of pairs as files, CSV and Parquet: read row by row, written as a whole, hostile ones refused."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from c3lib.errors import C3Error, lacking, shorten
from c3lib.files import ordinary

LARGEST_FILE = 2**27
MOST_ROWS = 250_000
MOST_COLUMNS = 1_000
MOST_CELLS = 2**23
LONGEST_LINE = 2**16
MOST_LINES = 100
"""What is refused, so that no file can take all memory: bytes (of Parquet unpacked, and as text in cells), rows,
columns, cells, characters of a line, and lines of a row."""

BATCH = 1024
"""Rows of Parquet that are unpacked at once."""

Row = tuple[str, dict[str, Any]]
"""Where it stands in the file, in words, and its cells by column."""


def _columns(path: Path, names: Sequence[str]) -> list[str]:
    """Column names, checked."""
    if len(names) > MOST_COLUMNS:
        raise C3Error(f"{path}: has {len(names)} columns, more than {MOST_COLUMNS}; leave some out")
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise C3Error(f"{path}: column {twice[:40]!r} stands twice")
    return list(names)


def _few_cells(path: Path, rows: int, columns: int) -> None:
    if rows * columns > MOST_CELLS:
        raise C3Error(f"{path}: more than {MOST_CELLS} cells, {columns} in a row; leave columns out, or split it")


def from_csv(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Column names and rows of a UTF-8 file that begins with the names; cells are text, and one row is held at a time.

    Raises :class:`C3Error`, at once or while rows are drawn, for what is no such table or larger than the limits above.
    """
    ordinary(path, LARGEST_FILE)
    rows = _csv_rows(path)
    columns = _columns(path, next(rows, (0, []))[1])

    def cells() -> Iterator[Row]:
        for number, (line, values) in enumerate(rows, 1):
            if not values:
                continue  # an empty line
            if len(values) != len(columns):
                raise C3Error(f"{path}, line {line}: {len(values)} values for {len(columns)} columns")
            _few_cells(path, number, len(columns))
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
        raise lacking(f"{path}: Parquet (CSV does not)", "pyarrow", "sweep") from None
    return pyarrow, pyarrow.parquet


def from_parquet(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Column names and rows of a file of plain columns; cells are Python's values, unpacked :data:`BATCH` rows a time.

    Raises :class:`C3Error`, at once or while rows are drawn, for what is no such table or larger than the limits above,
    and without pyarrow.
    """
    ordinary(path, LARGEST_FILE)
    arrow, parquet = _arrow(path)
    try:
        about = parquet.read_metadata(path)
        schema = about.schema.to_arrow_schema()
        nbytes = sum(about.row_group(index).total_byte_size for index in range(about.num_row_groups))
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise C3Error(f"{path}: not a Parquet table: {_first_line(error)}") from None
    if about.num_rows > MOST_ROWS or nbytes > LARGEST_FILE:
        raise C3Error(f"{path}: more than {MOST_ROWS} rows or {LARGEST_FILE} bytes unpacked; split it")
    columns = _columns(path, schema.names)
    _few_cells(path, about.num_rows, len(columns))
    for field in schema:
        if not _plain(arrow.types, field.type):
            kind = shorten(field.type, bare=True)
            raise C3Error(f"{path}: column {field.name[:40]!r} holds {kind}, not numbers, times or text")

    def cells() -> Iterator[Row]:
        number = text = 0
        try:
            # Text as dictionaries: one long value may stand in every row, and its copies are counted before made.
            words = [field.name for field in schema if _text(arrow.types, field.type)]
            # In this thread alone: Arrow's may outlive Python.
            file = parquet.ParquetFile(path, pre_buffer=False, read_dictionary=words)
            for batch in file.iter_batches(BATCH, use_threads=False):
                text += sum(map(_text_nbytes, batch.columns))
                if text > LARGEST_FILE:
                    raise C3Error(f"{path}: more than {LARGEST_FILE} bytes of text in its cells; split it")
                for values in zip(*map(_values, batch.columns), strict=True):
                    number += 1
                    yield f"row {number}", dict(zip(columns, values, strict=True))
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise C3Error(f"{path}: cannot be read after row {number}: {_first_line(error)}") from None

    return columns, cells()


def _text(types: Any, kind: Any) -> bool:
    return types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)


def _plain(types: Any, kind: Any) -> bool:
    """Whether each cell of a type is one value, short or text."""
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind) or _text(types, kind)


def _text_nbytes(column: Any) -> int:
    """Bytes of text in an array, a dictionary's once for each row."""
    import pyarrow
    import pyarrow.compute

    coded = pyarrow.types.is_dictionary(column.type)
    words = column.dictionary if coded else column
    if not _text(pyarrow.types, words.type):
        return 0
    lengths = pyarrow.compute.binary_length(words)
    return pyarrow.compute.sum(lengths.take(column.indices) if coded else lengths).as_py() or 0


def _values(column: Any) -> list[Any]:
    return (column.dictionary_decode() if hasattr(column, "dictionary") else column).to_pylist()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def to_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The columns of the rows as UTF-8 text, a line of names first; None is an empty cell."""
    content = io.BytesIO()
    text = io.TextIOWrapper(content, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[name] for name in columns] for row in rows)
    text.flush()
    return content.getvalue()


def to_parquet(
    path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]
) -> bytes:
    """The columns of the rows as a Parquet file; ``types`` are of those that may be empty, so that no cell tells.

    Raises :class:`C3Error` for cells of one column that have no common type, and without pyarrow.
    """
    arrow, parquet = _arrow(path)
    try:
        table = arrow.table({name: arrow.array([row[name] for row in rows], types.get(name)) for name in columns})
        content = arrow.BufferOutputStream()
        parquet.write_table(table, content)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise C3Error(f"{path}: cannot be written as Parquet: {_first_line(error)}") from None
    return content.getvalue().to_pybytes()
