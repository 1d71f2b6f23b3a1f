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

FOLDER = DATA / "predicted"


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
