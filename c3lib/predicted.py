"""What the model said before a suite was run: ``data/predicted/<node>/<suite>.csv``, kept as it was committed then.

The sidecar names the commit whose code and constants it was computed from, and the measured suite's sidecar the commit
that was measured at: the file stands in the latter's tree (``git show COMMIT:data/predicted/...``), so it is the older.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from c3lib.errors import C3Error
from c3lib.files import DATA
from c3lib.measured import FOLDER as MEASURED
from c3lib.measured import read_measured

FOLDER = DATA / "predicted"
TARGET = 0.10
"""Mean absolute error that the project aims at for a prediction made before a run."""


def read_predicted(node: str, suite: str, folder: Path = FOLDER) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A prediction (rows of :data:`c3lib.schema.RESULTS`) and its provenance.

    Raises:
        C3Error: nothing was predicted for that suite, the schema is violated, CSV and sidecar disagree, or rows are of
            another node or suite or were not modelled.
    """
    from c3lib.results import read_table

    path = folder / node / f"{suite}.csv"
    if not path.is_file():
        have = ", ".join(sorted(f"{file.parent.name}/{file.stem}" for file in folder.glob("*/*.csv"))) or "nothing"
        raise C3Error(f"suite {suite!r} was not predicted for {node} before it was run; predicted were: {have}")
    rows, about = read_table(path)
    for column, value in {"node": node, "suite": suite, "evidence": "modelled"}.items():
        if not rows[column].eq(value).all():
            raise C3Error(f"{path}: column {column} must be {value!r} in every row")
    return rows, about


def kept(node: str, suite: str, folder: Path = FOLDER, measured: Path = MEASURED) -> dict[str, Any] | None:
    """How far a prediction was from what was measured then; None where none was made before the run.

    ``mean``: absolute relative error of the concurrent times over scenarios, of each one's mean over the strategies,
    with nothing measured given to the model; ``commit`` that it was computed at; ``target``, ``met``.

    Raises:
        C3Error: as :func:`read_predicted` and :func:`c3lib.measured.read_measured`.
    """
    if not (folder / node / f"{suite}.csv").is_file():
        return None
    rows, about = read_predicted(node, suite, folder)
    found, _ = read_measured(node, suite, measured)
    keys = ["scenario", "strategy"]
    times = found.groupby(keys)["concurrent_s"].median()
    errors = (rows.set_index(keys)["concurrent_s"] / times - 1).abs().dropna()
    mean = float(errors.groupby("scenario").mean().mean())
    return {"mean": mean, "commit": about["commit"], "target": TARGET, "met": mean <= TARGET}
