"""The folder of a sweep: a manifest that says what it is of, and numbered parts, each whole or not there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from c3lib import __version__
from c3lib.errors import C3Error, unknown
from c3lib.files import read_text, write_text
from c3lib.strategy import STRATEGIES
from c3lib.sweeps.grid import Grid
from c3lib.sweeps.rows import EVIDENCE, arrow, model_id

if TYPE_CHECKING:
    import pandas
    import pyarrow

MANIFEST = "_sweep.json"
"""Readers of Parquet folders (pandas, pyarrow, Dask, Polars, Spark) pass over names that begin with ``_`` or ``.``."""

ABOUT = ("grid_sha256", "model", "nodes", "evidence")
"""What every part repeats of the manifest."""

MOST_NBYTES = 2**22
"""Of a manifest."""
MOST_PART_NBYTES = 2**28

PART = re.compile(r"part-(\d{6,12})-[0-9a-f]{16}\.parquet", re.ASCII)
SCRATCH = re.compile(rf"\.({PART.pattern}|{re.escape(MANIFEST)})\.[a-z0-9_]{{8}}", re.ASCII)
"""What a killed run was writing."""


def part_name(number: int, content: bytes, about: Mapping[str, Any]) -> str:
    """A part's file name: its number, so that the order of names is that of the table, and a hash.

    The hash is of the content and of what it is part of, so that a part proves itself: it is whole, in its place, and
    of this sweep.
    """
    digest = hashlib.sha256(json.dumps([number, *(about[key] for key in ABOUT)]).encode())
    digest.update(content)
    return f"part-{number:06}-{digest.hexdigest()[:16]}.parquet"


def check_free(folder: Path) -> None:
    """Raises :class:`C3Error` where the folder holds something else than a sweep."""
    try:
        if not (folder / MANIFEST).exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise C3Error(f"{folder}: is not empty and holds no sweep; name a new folder")
    except (FileNotFoundError, NotADirectoryError):
        pass  # it is made, or told not to be a folder, when it is held
    except OSError as error:
        raise C3Error(f"{folder}: cannot be read: {error.strerror}") from None


def begin(folder: Path, grid: Grid, fresh: bool = False) -> dict[str, Any]:
    """The folder's manifest, written if the folder is new.

    ``fresh``: the parts of whatever sweep is there are removed, and nothing else, and the manifest written anew.

    Raises:
        C3Error: the folder holds something else, or a sweep of another grid or by another model; something that is no
            file has the name of a part, or a part cannot be removed.
    """
    nodes = tuple(sorted({name for name, _ in grid.nodes()}))
    about = {
        "grid_sha256": grid.sha256,
        "model": model_id(nodes),
        "nodes": " ".join(nodes),
        "evidence": EVIDENCE,
        "rows": grid.rows,
        "scenarios": grid.scenarios,
        "strategies": list(grid.strategies),
        "part_rows": grid.part_scenarios * len(grid.strategies),
        "parts": grid.parts,
    }
    check_free(folder)
    if fresh:
        for paths in _listed(folder).values():
            _remove(paths)
    if fresh or not (folder / MANIFEST).exists():
        from c3lib.results import provenance  # brings pandas, which workers can do without

        given = json.dumps(grid.table, default=str)
        more = provenance(c3lib=__version__, grid=json.loads(given) if len(given) <= MOST_NBYTES // 4 else None)
        write_text(folder / MANIFEST, json.dumps({**about, **more}, indent=1) + "\n")
        return about
    there = read_manifest(folder)
    if there["grid_sha256"] != about["grid_sha256"]:
        raise C3Error(
            f"{folder}: holds a sweep of another grid ({there['rows']:,} rows); name a new one, or begin anew (fresh)"
        )
    if any(there.get(key) != value for key, value in about.items()):
        commit = str(there.get("commit", "unknown"))[:12]
        raise C3Error(
            f"{folder}: was begun with another version of the model (commit {commit}), so going on would mix two; "
            "name a new folder, or begin anew (fresh)"
        )
    return there


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise C3Error(f"{path}: cannot be removed: {error.strerror}") from None


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a sweep's folder says of itself. Raises :class:`C3Error` when there is no sweep, or the file is damaged."""
    path = folder / MANIFEST
    if not path.exists():
        raise C3Error(f"{folder}: holds no sweep ({MANIFEST} is missing)")
    try:
        content = json.loads(read_text(path, MOST_NBYTES))
        counts = [content[key] for key in ("rows", "parts", "part_rows")]
        good = all(type(count) is int and 0 < count < 2**40 for count in counts)
        good &= all(isinstance(content[key], str) for key in ABOUT) and set(content["strategies"]) <= set(STRATEGIES)
    except (ValueError, KeyError, TypeError, RecursionError):
        good = False
    if not good:
        raise C3Error(f"{path}: is damaged; name a new folder")
    return content


def finished(folder: Path, about: Mapping[str, Any]) -> set[int]:
    """Numbers of the parts that are there and prove themselves; what else a killed run left is removed."""
    _remove(path for path in folder.glob(".*") if SCRATCH.fullmatch(path.name) and path.is_file())
    found = set()
    for number, paths in _listed(folder).items():
        for path in paths:
            if number < about["parts"] and _content(path, number, about) is not None:
                found.add(number)
            else:
                _remove([path])
    return found


def _listed(folder: Path) -> dict[int, list[Path]]:
    """Files by the numbers in their names. Raises :class:`C3Error` where something else has such a name."""
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("part-*.parquet")):
        if match := PART.fullmatch(path.name):
            if not path.is_file():
                raise C3Error(f"{path}: must be an ordinary file, as the parts of a sweep are")
            found.setdefault(int(match[1]), []).append(path)
    return found


def _content(path: Path, number: int, about: Mapping[str, Any]) -> bytes | None:
    """The bytes of a part, if they are what its name says."""
    try:
        content = path.read_bytes() if path.stat().st_size <= MOST_PART_NBYTES else b""
    except OSError:
        return None
    return content if part_name(number, content, about) == path.name else None


def tables(folder: Path, about: Mapping[str, Any], columns: Iterable[str] | None = None) -> Iterator[pyarrow.Table]:
    """The parts of a finished sweep in turn.

    Raises:
        C3Error: an unfinished or damaged sweep, or an unknown column.
    """
    arrow_, listed, schema = arrow(), _listed(folder), None
    wanted = None if columns is None else list(columns)
    missing = sum(number not in listed for number in range(about["parts"]))
    if missing:
        raise C3Error(
            f"{folder}: {missing} of {about['parts']} parts are missing; run the sweep again, and it goes on there"
        )
    for number in range(about["parts"]):
        contents = (_content(path, number, about) for path in listed[number])
        content = next((content for content in contents if content is not None), None)
        if content is None:
            raise C3Error(f"{listed[number][0]}: is damaged, or not of this sweep; run the sweep again")
        try:
            # In this thread alone. One of Arrow's own may let go of its task, and so of our bytes, only when Python has
            # ended, which aborts the process after all is done (apache/arrow#34314).
            file = arrow_.parquet.ParquetFile(arrow_.BufferReader(content), pre_buffer=False)
            for name in wanted or ():
                if name not in file.schema_arrow.names:
                    raise unknown("column", name, file.schema_arrow.names)
            table = file.read(wanted, use_threads=False).replace_schema_metadata(None)
            table.validate(full=True)
            schema = table.schema if schema is None else schema
            if table.schema != schema:
                raise ValueError
        except (arrow_.ArrowException, OSError, ValueError, MemoryError):
            raise C3Error(f"{listed[number][0]}: is not a part that can be read") from None
        yield table


def read_sweep(folder: Path | str, columns: Iterable[str] | None = None) -> pandas.DataFrame:
    """The table of a finished sweep, in the grid's order: a row a scenario and strategy, times in seconds.

    Columns: the axes (constants by their keys), then those of :data:`c3lib.sweeps.rows.RESULTS`; or only ``columns``.
    Names are categories. ``best`` marks the fastest strategy of a scenario that a program can choose beforehand.

    Raises:
        C3Error: no sweep, an unfinished or damaged one, or an unknown column.
    """
    folder, arrow_ = Path(folder), arrow()
    table = arrow_.concat_tables(tables(folder, read_manifest(folder), columns)).unify_dictionaries()
    # Column by column: never the whole table twice. In this thread: as in tables().
    return table.to_pandas(split_blocks=True, self_destruct=True, use_threads=False)
