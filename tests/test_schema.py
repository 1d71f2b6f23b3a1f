"""Schemas: every kind of corrupted cell is named with its column and row, and nothing is coerced in silence."""

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib.errors import C3Error
from c3lib.experiment import run_suite
from c3lib.files import DATA
from c3lib.schema import CLAIMS, RESULTS, check, read_csv

ROWS = run_suite(strategies=["c3_sp", "conccl"])
CLAIM = "x.y,conccl,8,what,0.5,,,fraction,abstract,high,"
HEADER = ",".join(CLAIMS.columns)


def written(frame, path):
    path.write_text(frame.to_csv(index=False, lineterminator="\n"))
    return path


def test_what_the_runner_gives_is_what_the_schema_wants():
    assert list(ROWS.columns) == list(RESULTS.columns)
    pd.testing.assert_frame_equal(check(ROWS, RESULTS, "rows"), ROWS)


def test_rows_read_back_exactly(tmp_path):
    pd.testing.assert_frame_equal(read_csv(written(ROWS, tmp_path / "a.csv"), RESULTS), ROWS, check_exact=True)


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=20))
def test_every_float_reads_back_exactly(values):
    text = pd.DataFrame({"x": values}).to_csv(index=False)
    assert pd.read_csv(io.StringIO(text))["x"].tolist() == values


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("evidence", "guessed"),
        ("gemm", "8x8"),
        ("bound", "io"),
        ("collective", "reduce"),
        ("length_class", "long"),
        ("ranks", 0),
        ("ranks", 7.5),
        ("ranks", ""),
        ("total_bytes", -1),
        ("rank_bytes", "many"),
        ("gemm_alone_s", 0),
        ("gemm_alone_s", -1.0),
        ("gemm_alone_s", "inf"),
        ("gemm_alone_s", ""),
        ("concurrent_s", "soon"),
        ("cus_taken", -8),
        ("ideal", 2.5),
        ("ideal", 0.9),
        ("speedup", "inf"),
        ("fraction_of_ideal", "-inf"),
        ("verified", "maybe"),
        ("verified", ""),
        ("verified", 1),
        ("oracle", "no"),
        ("scenario", ""),
    ],
)
def test_a_corrupted_cell_is_named(tmp_path, column, value):
    frame = ROWS.astype({column: object})
    frame.loc[4, column] = value
    path = written(frame, tmp_path / "a.csv")
    with pytest.raises(C3Error) as caught:
        read_csv(path, RESULTS)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert f"column {column} must" in text or "not a CSV table" in text


def test_the_row_is_named():
    frame = ROWS.copy()
    frame.loc[4, "gemm_alone_s"] = -1.0
    with pytest.raises(C3Error, match=r"column gemm_alone_s .*first in row 5: -1\.0"):
        check(frame, RESULTS, "x")


def test_false_is_not_turned_into_true(tmp_path):
    """One foreign word makes the column text; as text, "False" is true."""
    frame = ROWS.astype({"verified": object})
    frame.loc[0, "verified"] = "yes"
    with pytest.raises(C3Error, match="verified"):
        read_csv(written(frame, tmp_path / "a.csv"), RESULTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="ranks"), "column ranks is missing"),
        (lambda f: f.assign(extra=1), "column extra is not known"),
        (lambda f: f.rename(columns={"ranks": "rank"}), "column ranks is missing; column rank is not known"),
        (lambda f: f[f.columns[::-1]], "columns"),
    ],
)
def test_wrong_columns_are_named(change, message):
    with pytest.raises(C3Error, match=rf"^x: .*{message}"):
        check(change(ROWS), RESULTS, "x")


def test_the_claims_of_the_project():
    claims = read_csv(DATA / "reported" / "claims.csv", CLAIMS)
    assert claims["id"].is_unique
    assert (claims[["value", "low", "high"]].notna().any(axis=1)).all()
    both = claims.dropna(subset=["low", "high"])
    assert (both["low"] <= both["high"]).all()
    assert claims["figure"].dropna().isin(["4", "5a", "5b", "5c", "6", "7", "8", "9", "10"]).all()  # text, not 8.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a CSV table"),
        (HEADER.replace("unit,", "") + "\n", "column unit is missing"),
        (f"{HEADER},more\n{CLAIM},1\n", "column more is not known"),
        (f"{HEADER}\n{CLAIM}\n{CLAIM}\n", "column id must satisfy .*unique"),
        (f"{HEADER}\n{CLAIM.replace('conccl', 'concl')}\n", "column paper must satisfy isin"),
        (f"{HEADER}\n{CLAIM.replace('high', 'sure')}\n", "column confidence must satisfy isin"),
        (f"{HEADER}\n{CLAIM.replace('0.5', 'half')}\n", "column value must satisfy"),
        (f"{HEADER}\n{CLAIM.replace('0.5', 'inf')}\n", "column value must satisfy finite"),
        (f"{HEADER}\n{CLAIM.replace('what', '')}\n", "column quantity must satisfy"),
        (f'{HEADER}\n"{CLAIM}\n', "not a CSV table"),
        (f"{HEADER}\n{CLAIM},,,,,\n", "not a CSV table|not known|must satisfy"),
    ],
)
def test_wrong_claims_are_named(tmp_path, text, message):
    path = tmp_path / "claims.csv"
    path.write_text(text)
    with pytest.raises(C3Error, match=message) as caught:
        read_csv(path, CLAIMS)
    assert str(caught.value).startswith(f"{path}: ")


def test_the_control_claim_reads(tmp_path):
    (tmp_path / "claims.csv").write_text(f"{HEADER}\n{CLAIM}\n")
    row = read_csv(tmp_path / "claims.csv", CLAIMS).iloc[0]
    assert (row["value"], row["figure"]) == (0.5, "8")
    assert np.isnan(row["low"])
