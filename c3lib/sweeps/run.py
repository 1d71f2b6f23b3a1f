"""A sweep from its grid to its folder: what is there already is kept, the rest is computed and written part by part."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from c3lib.cores import cores
from c3lib.errors import C3Error, shorten
from c3lib.files import held, write_bytes
from c3lib.sweeps import crew
from c3lib.sweeps.folder import ABOUT, begin, check_free, finished, part_name
from c3lib.sweeps.grid import read_grid
from c3lib.sweeps.rows import EVIDENCE, arrow
from c3lib.workload import whole

FEW_PARTS = 3
"""So many are computed sooner than other processes have started."""
MOST_LETTERS = 300
"""Of a cluster's address."""


@dataclass(frozen=True)
class Done:
    """A finished sweep: where it lies, its size, parts that were there before, and the seconds that the rest took."""

    folder: Path
    rows: int
    scenarios: int
    parts: int
    kept: int
    time_s: float
    evidence: str = EVIDENCE


def sweep(
    grid: Path | str | Mapping[str, Any],
    out: Path | str,
    *,
    dask: str | None = None,
    workers: int | None = None,
    fresh: bool = False,
    progress: bool = False,
) -> Done:
    """Predict every scenario of a grid under its strategies, into the Parquet files of the folder ``out``.

    The folder may hold part of this very sweep, cut short at any moment: what is missing is added, and the table is
    the same to the last bit. It is computed on ``workers`` processes of this machine (default: one a core), or on the
    Dask cluster at the address ``dask``.

    Args:
        grid: a TOML file, or a mapping of the same form (docs/sweeps.md).
        fresh: begin anew, whatever sweep the folder holds; its parts are removed.
        progress: a progress bar, on a terminal only.

    Raises:
        C3Error: a bad grid, a folder of something else, no such cluster, a full disk; finished parts are kept.
    """
    if dask is not None and (dask.split() != [dask] or not dask.isprintable() or len(dask) > MOST_LETTERS):
        hint = "give the address of a Dask scheduler, such as tcp://host:8786, or leave it out"
        raise C3Error(f"--dask: {hint}, not {shorten(dask)}")
    if dask is not None and workers is not None:
        raise C3Error("sweep: give either dask or workers, as the cluster has workers of its own")
    started, folder = time.monotonic(), Path(out)
    workers = cores() if workers is None else whole("sweep: workers", workers, least=1)
    arrow()
    points = read_grid(grid)
    with ExitStack() as stack:
        client = None if dask is None else stack.enter_context(crew.cluster(dask))
        check_free(folder)  # first, since holding it leaves a file there
        stack.enter_context(held(folder, "sweep"))
        about = begin(folder, points, fresh)
        there = finished(folder, about)
        todo = [number for number in range(points.parts) if number not in there]
        blocks = map(points.block, todo)
        of_part = {key: about[key] for key in ABOUT}
        if dask is not None:
            parts = crew.on_cluster(blocks, of_part, client, dask)
        elif min(workers, len(todo)) == 1 or len(todo) <= FEW_PARTS:
            parts = crew.here(blocks, of_part)
        else:
            parts = crew.processes(blocks, of_part, min(workers, len(todo)))
        _write(folder, parts, len(there), about, progress)
    return Done(folder, points.rows, points.scenarios, points.parts, len(there), time.monotonic() - started)


def _write(folder: Path, parts: crew.Parts, kept: int, about: Mapping[str, Any], progress: bool) -> None:
    from tqdm import tqdm

    each, rows = about["part_rows"], about["rows"]
    with tqdm(
        total=rows,
        initial=min(kept * each, rows),
        desc="sweep",
        unit="row",
        unit_scale=True,
        disable=None if progress else True,  # None: not where nobody watches
    ) as bar:
        for number, content in parts:
            write_bytes(folder / part_name(number, content, about), content)
            bar.update(min(each, rows - number * each))
