"""Schemas of the project's tables (pandera): an unknown column or an impossible value names file and column."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pandas as pd
import pandera.pandas as pa

from c3lib.constants import EVIDENCE
from c3lib.errors import C3Error
from c3lib.files import read_text
from c3lib.hardware import COLLECTIVES

_text = lambda **more: pa.Column(str, coerce=True, **more)  # noqa: E731
_finite = pa.Check.in_range(-sys.float_info.max, sys.float_info.max, error="finite")
_number = lambda *checks, **more: pa.Column(float, [_finite, *checks], coerce=True, **more)  # noqa: E731
_seconds = lambda: _number(pa.Check.gt(0))  # noqa: E731
# Not coerced: pandas would turn 7.5 into 7 and the text "False" into True without a word.
_count = lambda least=0: pa.Column(int, pa.Check.ge(least))  # noqa: E731
_flag = lambda: pa.Column(bool)  # noqa: E731

RESULTS = pa.DataFrameSchema(
    {
        "node": _text(),
        "suite": _text(),
        "backend": _text(),
        "evidence": _text(checks=pa.Check.isin(EVIDENCE)),
        "scenario": _text(),
        "gemm": _text(checks=pa.Check.str_matches(r"^\d+x\d+x\d+$")),
        "dtype": _text(),
        "bound": _text(checks=pa.Check.isin(("compute", "memory"))),
        "collective": _text(checks=pa.Check.isin(COLLECTIVES)),
        "ranks": _count(1),
        "total_bytes": _count(),
        "rank_bytes": _count(),
        "length_class": _text(checks=pa.Check.isin(("G-long", "C-long", "GC-equal"))),
        "strategy": _text(),
        "oracle": _flag(),
        "repetition": _count(),
        "cus_taken": _number(pa.Check.ge(0)),
        "gemm_alone_s": _seconds(),
        "collective_alone_s": _number(pa.Check.ge(0)),
        "gemm_end_s": _seconds(),
        "collective_end_s": _number(pa.Check.ge(0)),
        "concurrent_s": _seconds(),
        "ideal": _number(pa.Check.in_range(1, 2)),
        "speedup": _number(pa.Check.gt(0)),
        "fraction_of_ideal": _number(nullable=True),
        "gemm_slowdown": _number(pa.Check.gt(0)),
        "collective_slowdown": _number(nullable=True),
        "unstable_ideal": _flag(),
        "verified": _flag(),
        "path": _text(),
    },
    strict=True,
    ordered=True,
)
"""One row a scenario, strategy and repetition. ``total_bytes``/``rank_bytes`` as in :class:`c3lib.workload.Collective`;
``unstable_ideal`` marks an ideal speedup below 1.05, where the fraction of ideal divides by next to nothing;
``verified`` says that bytes were compared, which only a measured row can claim."""

CLAIMS = pa.DataFrameSchema(
    {
        "id": _text(unique=True),
        "paper": _text(checks=pa.Check.isin(("conccl", "ficco", "dma_latte"))),
        "figure": pa.Column(str, nullable=True),
        "quantity": _text(),
        "value": _number(nullable=True),
        "low": _number(nullable=True),
        "high": _number(nullable=True),
        "unit": _text(),
        "source": _text(),
        "confidence": _text(checks=pa.Check.isin(("high", "medium", "low"))),
        "note": pa.Column(str, nullable=True),
    },
    strict=True,
    ordered=True,
)
"""``data/reported/claims.csv``: what a paper, its review or a third party says; value, low and high may be empty."""


def read_csv(path: Path | str, schema: pa.DataFrameSchema) -> pd.DataFrame:
    """A CSV file checked against a schema. Raises :class:`C3Error` naming file, column, row and what was expected."""
    text = read_text(path)
    kinds = {name: str for name, column in schema.columns.items() if str(column.dtype).startswith("str")}
    try:
        frame = pd.read_csv(io.StringIO(text), dtype=kinds, keep_default_na=False, na_values=[""])
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise C3Error(f"{path}: not a CSV table of the expected form: {error}") from None
    if not isinstance(frame.index, pd.RangeIndex):  # pandas takes surplus values for row labels
        raise C3Error(f"{path}: not a CSV table of the expected form: rows have more values than the header")
    return check(frame, schema, str(path))


def check(frame: pd.DataFrame, schema: pa.DataFrameSchema, where: str) -> pd.DataFrame:
    """The frame with the schema's types. Raises :class:`C3Error` starting with ``where``."""
    missing = [name for name in schema.columns if name not in frame.columns]
    extra = [name for name in frame.columns if name not in schema.columns]
    if missing or extra:
        parts = [f"column {name} is missing" for name in missing] + [f"column {name} is not known" for name in extra]
        raise C3Error(f"{where}: {'; '.join(parts)}")
    if list(frame.columns) != list(schema.columns):
        raise C3Error(f"{where}: columns must stand in the order {', '.join(schema.columns)}")
    try:
        return schema.validate(frame)
    except (pa.errors.SchemaError, pa.errors.SchemaErrors) as failed:  # several at once: values that are no numbers
        error = failed.schema_errors[0] if isinstance(failed, pa.errors.SchemaErrors) else failed
        column = getattr(error.schema, "name", None) or "columns"
        wanted = getattr(error.check, "error", None) or error.check
        cases = error.failure_cases
        first = ""
        if isinstance(cases, pd.DataFrame) and len(cases):
            row = cases.iloc[0].get("index")
            first = f", first in row {int(row) + 1}" if row is not None and not pd.isna(row) else ""
            first += f": {cases.iloc[0]['failure_case']!s}"
        raise C3Error(f"{where}: column {column} must satisfy {wanted}{first}") from None
