"""Tables of results: written with their origin, read only when whole, shown only when they may be."""

import errno
import hashlib
import json
import os

import numpy as np
import pandas as pd
import pytest

from c3lib import results
from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.errors import C3Error
from c3lib.experiment import run_suite
from c3lib.results import publishable, read_table, sidecar_path, write_table

ROWS = run_suite(strategies=["c3_sp", "conccl"])


@pytest.fixture
def table(tmp_path):
    return write_table(ROWS, tmp_path / "rows.csv", seed=3, node="mi300x_8")


def test_a_table_reads_back_with_its_origin(table):
    frame, origin = read_table(table)
    pd.testing.assert_frame_equal(frame, ROWS, check_exact=True)
    assert origin["sha256"] == hashlib.sha256(table.read_bytes()).hexdigest()
    assert (origin["rows"], origin["seed"], origin["node"]) == (60, 3, "mi300x_8")
    assert {"commit", "command", "python", "libraries"} <= set(origin)
    assert origin["libraries"]["numpy"] == np.__version__


def test_the_same_rows_give_the_same_bytes(table, tmp_path):
    again = write_table(run_suite(strategies=["c3_sp", "conccl"]), tmp_path / "again.csv")
    assert again.read_bytes() == table.read_bytes()


def test_outside_a_repository_the_commit_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert results.provenance()["commit"] == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert results.provenance()["commit"] == "unknown"  # no git at all


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "key sha256 is missing"),
        ("{}", "key sha256 is missing"),
        ("null", "key sha256 is missing"),
        ("[" * 100000, "not valid JSON"),
        ('{"sha256": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_a_corrupted_sidecar_is_named(table, text, message):
    sidecar_path(table).write_text(text)
    with pytest.raises(C3Error, match=rf"rows\.csv\.json: {message}"):
        read_table(table)


def test_a_missing_sidecar_is_named(table):
    sidecar_path(table).unlink()
    with pytest.raises(C3Error, match=r"rows\.csv\.json: no such file"):
        read_table(table)


def test_a_changed_table_is_noticed(table):
    text = table.read_text()
    table.write_text(text.replace("c3_sp", "c3_rp", 1))
    with pytest.raises(C3Error, match=r"rows\.csv: differs from the table that rows\.csv\.json describes"):
        read_table(table)


@pytest.mark.parametrize("digest", ["0" * 64, 7, None])
def test_another_tables_sidecar_is_noticed(table, digest):
    side = sidecar_path(table)
    side.write_text(json.dumps({**json.loads(side.read_text()), "sha256": digest}))
    with pytest.raises(C3Error, match="differs from the table"):
        read_table(table)


@pytest.mark.parametrize("lines", [0, 1, 20])
def test_a_table_cut_short_is_refused(table, lines):
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:lines]))
    with pytest.raises(C3Error, match=r"rows\.csv: "):
        read_table(table)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_full_disk_leaves_the_old_pair(table, monkeypatch, failing):
    """Neither a new table with an old sidecar nor the reverse: the old pair still reads."""
    calls, real = [], os.fsync

    def fsync(number):
        calls.append(number)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(C3Error, match="No space left on device; nothing was changed"):
        write_table(ROWS.head(3), table)
    monkeypatch.undo()
    assert len(read_table(table)[0]) == 60
    assert sorted(os.listdir(table.parent)) == ["rows.csv", "rows.csv.json"]


def test_modelled_rows_may_be_shown():
    assert publishable(ROWS) is ROWS


def test_no_rows_may_not():
    with pytest.raises(C3Error, match="no rows to show"):
        publishable(ROWS.head(0))


def test_mixed_evidence_may_not():
    mixed = pd.concat([ROWS, ROWS.assign(evidence="measured", verified=True)], ignore_index=True)
    with pytest.raises(C3Error, match="must not be mixed in one series, found measured, modelled"):
        publishable(mixed)


@pytest.mark.parametrize("evidence", ["guessed", "", None])
def test_unknown_evidence_may_not(evidence):
    with pytest.raises(C3Error, match="unknown evidence"):
        publishable(ROWS.assign(evidence=evidence))


@pytest.mark.parametrize("value", [False, None, "False", "True", float("nan")])
def test_one_unverified_measured_row_is_enough(value):
    measured = ROWS.assign(evidence="measured", verified=True).astype({"verified": object})
    measured.loc[7, "verified"] = value
    row = measured.loc[7]
    message = rf"1 measured rows failed the byte check, first {row['scenario']} under {row['strategy']}"
    with pytest.raises(C3Error, match=message):
        publishable(measured)


def test_verified_measured_rows_may():
    for kind in (bool, object):
        measured = ROWS.assign(evidence="measured", verified=True).astype({"verified": kind})
        assert publishable(measured) is measured


def test_what_is_not_a_measurement_is_shown_but_never_stored(tmp_path):
    rows = ROWS.assign(evidence=NOT_A_MEASUREMENT, verified=True)
    assert publishable(rows) is rows
    with pytest.raises(C3Error, match="not written: rows that are not a measurement are shown but never stored"):
        write_table(rows, tmp_path / "table.csv")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_measurement_is_refused_where_it_is_read_as_a_result(tmp_path):
    write_table(ROWS, path := tmp_path / "table.csv")
    path.write_text(path.read_text().replace(",modelled,", f",{NOT_A_MEASUREMENT},"))
    with pytest.raises(C3Error, match="column evidence must satisfy"):
        read_table(path)


STOOD_IN = ["the library is the tests' double of AMD's"]


@pytest.mark.parametrize(
    ("path", "about", "why"),
    [
        (f"{NOT_A_MEASUREMENT} ({STOOD_IN[0]}): sdma", {}, "column path says so"),
        ("sdma", {"stand_ins": STOOD_IN}, "stand_ins of its provenance: .*double"),
    ],
)
@pytest.mark.parametrize("evidence", ["measured", "modelled"])
def test_another_word_for_evidence_makes_no_measurement(tmp_path, path, about, why, evidence):
    """Rows of a stand-in keep saying so in two other places, which are looked at in writing and in reading."""
    rows = ROWS.assign(evidence=evidence, verified=True, path="sdma")
    rows.loc[7, "path"] = path
    with pytest.raises(C3Error, match=rf"not written: .*never stored \({why}"):
        write_table(rows, tmp_path / "table.csv", **about)
    assert list(tmp_path.iterdir()) == []
    table = write_table(rows.assign(path="sdma"), tmp_path / "table.csv", stand_ins=[])
    read_table(table)
    table.write_text(rows.to_csv(index=False, lineterminator="\n"))
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    side = sidecar_path(table)
    side.write_text(json.dumps({**json.loads(side.read_text()), "sha256": digest, **about}))
    with pytest.raises(C3Error, match=rf"table\.csv: not read: its rows are not a measurement \({why}"):
        read_table(table)


def test_what_is_not_a_measurement_is_shown_only_with_its_bytes_compared():
    with pytest.raises(C3Error, match="not a measurement rows failed the byte check"):
        publishable(ROWS.assign(evidence=NOT_A_MEASUREMENT, verified=False))
