"""The folder of a sweep: a manifest that says what it is of, and numbered parts, each whole or not there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from c3lib import __version__
from c3lib.errors import C3Error, unknown
from c3lib.files import read_text, write_text
from c3lib.sweeps.grid import Grid
from c3lib.sweeps.rows import EVIDENCE, arrow, model_id

if TYPE_CHECKING:
    import pandas

MANIFEST = "_sweep.json"
"""Readers of Parquet folders (pandas, pyarrow, Dask, Polars, Spark) pass over names that begin with ``_`` or ``.``."""

ABOUT = ("grid_sha256", "model", "nodes", "evidence")
"""What every part repeats of the manifest, so that a part of another sweep is known by itself."""

MOST_NBYTES = 2**22


def part_path(folder: Path, number: int) -> Path:
    """Where a part lies; the order of names is that of the table."""
    return folder / f"part-{number:06}.parquet"


def begin(folder: Path, grid: Grid) -> dict[str, Any]:
    """The folder's manifest, written if the folder is new.

    Raises:
        C3Error: the folder holds something else, or a sweep of another grid or by another model.
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
    if not (folder / MANIFEST).exists():
        if any(not path.name.startswith(".") for path in folder.iterdir()):
            raise C3Error(f"{folder}: is not empty and holds no sweep; name a new folder")
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


def clear(folder: Path) -> None:
    """Remove the sweep that the folder holds, if it holds one, and nothing else."""
    if (folder / MANIFEST).exists():
        for path in (*folder.glob("part-*.parquet"), folder / MANIFEST):  # the manifest last: till then it is a sweep's
            path.unlink(missing_ok=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a sweep's folder says of itself. Raises :class:`C3Error` when there is no sweep, or the file is damaged."""
    path = folder / MANIFEST
    if not path.exists():
        raise C3Error(f"{folder}: holds no sweep ({MANIFEST} is missing)")
    try:
        content = json.loads(read_text(path, MOST_NBYTES))
        counts = [content[key] for key in ("rows", "parts", "part_rows")]
        words = [content[key] for key in ABOUT]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise C3Error(f"{path}: is damaged; name a new folder") from None
    if not all(type(count) is int and 0 < count < 2**40 for count in counts) or not all(
        isinstance(word, str) for word in words
    ):
        raise C3Error(f"{path}: is damaged; name a new folder")
    return content


def finished(folder: Path, about: dict[str, Any]) -> set[int]:
    """Numbers of the parts that are there, whole and of this sweep; what a killed run left half-written is removed."""
    for scratch in (*folder.glob(".part-*"), *folder.glob(f".{MANIFEST}.*")):
        scratch.unlink(missing_ok=True)
    return {number for number in range(about["parts"]) if _whole(folder, number, about)}


def _whole(folder: Path, number: int, about: dict[str, Any]) -> bool:
    path = part_path(folder, number)
    if not path.exists():
        return False
    pyarrow = arrow()
    try:
        found = pyarrow.parquet.read_metadata(path)
    except (pyarrow.ArrowException, OSError):
        return False
    said = {key.decode(): value.decode("utf-8", "replace") for key, value in (found.metadata or {}).items()}
    wanted = {**{key: about[key] for key in ABOUT}, "part": str(number)}
    return found.num_rows == _rows(number, about) and wanted.items() <= said.items()


def _rows(number: int, about: dict[str, Any]) -> int:
    return min(about["part_rows"], about["rows"] - number * about["part_rows"])


def read_sweep(folder: Path | str, columns: Iterable[str] | None = None) -> pandas.DataFrame:
    """The table of a finished sweep, in the grid's order: a row a scenario and strategy, times in seconds.

    Columns: the axes (constants by their keys), then those of :data:`c3lib.sweeps.rows.RESULTS`; or only ``columns``.
    Names are categories. ``best`` marks the fastest strategy of a scenario that a program can choose beforehand.

    Raises:
        C3Error: no sweep, an unfinished or damaged one, or an unknown column.
    """
    folder, pyarrow = Path(folder), arrow()
    about = read_manifest(folder)
    missing = sum(not part_path(folder, number).exists() for number in range(about["parts"]))
    if missing:
        raise C3Error(
            f"{folder}: {missing} of {about['parts']} parts are missing; run the sweep again, and it goes on there"
        )
    wanted = None if columns is None else list(columns)
    tables = []
    for number in range(about["parts"]):
        path = part_path(folder, number)
        if not _whole(folder, number, about):
            raise C3Error(f"{path}: is damaged, or not of this sweep; delete it and run the sweep again")
        try:
            file = pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
            for name in wanted or ():
                if name not in file.schema_arrow.names:
                    raise unknown("column", name, file.schema_arrow.names)
            tables.append(file.read(wanted).replace_schema_metadata(None))
        except (pyarrow.ArrowException, OSError):
            raise C3Error(f"{path}: is damaged; delete it and run the sweep again") from None
    table = pyarrow.concat_tables(tables).unify_dictionaries()
    del tables
    return table.to_pandas(split_blocks=True, self_destruct=True)  # column by column: never the whole table twice
