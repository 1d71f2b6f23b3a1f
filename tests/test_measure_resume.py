"""A measurement that is cut short: finished rows are kept, a second run does the rest, nothing unsound is published."""

import errno
import json
from collections import Counter
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib.errors import C3Error
from c3lib.measure import run as session
from c3lib.measure.journal import Journal
from c3lib.measure.rounds import Group, run_rounds

ABOUT = {"experiment": "order", "seed": 0}
ARMS = ("a", "b", "c")
REPEATS = 3
LOST = C3Error("cuda: the device failed while running gemm beside transfer: CUDA_ERROR_ILLEGAL_ADDRESS")


class Device:
    """Runs arms until it is lost; counts what it was asked for."""

    def __init__(self, lasts=None, **row):
        self.lasts, self.row, self.ran, self.loaded = lasts, row, [], []

    def arm(self, group, name, repetition):
        if self.lasts is not None and len(self.ran) == self.lasts:
            raise LOST
        self.ran.append((group, name, repetition))
        sound = {"verified": True, "path": "copy engine: seen", "transport": "copy_engine"}
        return [{"gemm": group, "strategy": name, "repetition": repetition, **sound, **self.row}]

    def groups(self):
        return [
            Group(
                name,
                lambda name=name: self.loaded.append(name),
                {arm: lambda turn, name=name, arm=arm: self.arm(name, arm, turn) for arm in ARMS},
            )
            for name in ("one", "two")
        ]


def finish(path, device, seed=0):
    """Run what the journal lacks; returns its rows."""
    journal = Journal(path, ABOUT)
    try:
        run_rounds(device.groups(), journal, REPEATS, seed, "order", quiet=True)
    finally:
        journal.close()
    return journal.rows


def as_set(rows):
    return sorted((row["gemm"], row["strategy"], row["repetition"]) for row in rows)


def test_m5_every_repetition_runs_every_arm_once_in_an_order_drawn_by_the_seed(tmp_path):
    orders = []
    for seed in (0, 0, 1):
        device = Device()
        finish(tmp_path / f"{len(orders)}.jsonl", device, seed)
        orders.append(device.ran)
        assert len(device.loaded) == 2  # a group is set up once
        for start in range(0, len(device.ran), len(ARMS)):
            turn = device.ran[start : start + len(ARMS)]
            assert sorted(arm for _, arm, _ in turn) == list(ARMS)
            assert len({(group, repetition) for group, _, repetition in turn}) == 1
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("lasts", range(2 * len(ARMS) * REPEATS))
def test_a_lost_device_costs_no_finished_row_and_the_second_run_does_the_rest(tmp_path, lasts):
    path = tmp_path / "order.jsonl"
    first, second = Device(lasts), Device()
    with pytest.raises(C3Error) as caught:
        finish(path, first)
    assert caught.value is LOST
    assert as_set(Journal(path, ABOUT).rows) == sorted(first.ran)
    rows = finish(path, second)
    assert Counter(first.ran + second.ran) == Counter((g, a, r) for g in ("one", "two") for a in ARMS for r in range(3))
    assert as_set(rows) == sorted(first.ran + second.ran)


@given(data=st.data())
def test_a_journal_cut_at_any_byte_keeps_every_whole_line(tmp_path_factory, data):
    """As after a power cut or a kill while a line was being written."""
    path = tmp_path_factory.mktemp("cut") / "order.jsonl"
    finish(path, Device())
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)), label="cut")
    path.write_bytes(whole[:cut])
    kept = max(0, whole[:cut].count(b"\n") - 1)
    device = Device()
    rows = finish(path, device)
    assert len(device.ran) == len(rows) - kept
    assert as_set(rows) == as_set(json.loads(line)["rows"][0] for line in whole.decode().splitlines()[1:])
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_journal_of_other_arguments_is_left_alone(tmp_path):
    path = tmp_path / "order.jsonl"
    finish(path, Device())
    before = path.read_bytes()
    with pytest.raises(C3Error, match=r"order\.jsonl: is of a run with other arguments .*; finish that or delete the"):
        Journal(path, {**ABOUT, "seed": 1})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text", [b"{broken\n{}\n", b"\xff\xfe\n", b'{"experiment": "order", "seed": 0}\n{"rows": []}\n']
)
def test_a_damaged_journal_is_one_sentence(tmp_path, text):
    path = tmp_path / "order.jsonl"
    path.write_bytes(text)
    with pytest.raises(C3Error, match=r"order\.jsonl: is damaged; delete it to measure afresh"):
        Journal(path, ABOUT)
    assert path.read_bytes() == text


def test_a_full_disk_keeps_the_finished_rows(tmp_path, monkeypatch):
    path = tmp_path / "order.jsonl"
    journal = Journal(path, ABOUT)
    journal.add(("one", "a", 0), [{"value": 1}])

    def full(text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal, "_file", SimpleNamespace(write=full, close=journal._file.close))
    with pytest.raises(C3Error, match=r"cannot be written: No space left on device; finished rows are kept"):
        journal.add(("one", "b", 0), [{"value": 2}])
    assert not journal.done(("one", "b", 0))
    journal.close()
    again = Journal(path, ABOUT)
    assert (again.rows, again.done(("one", "a", 0)), again.done(("one", "b", 0))) == ([{"value": 1}], True, False)


# --- a whole `c3 measure`, with a stand-in for the GPU ----------------------------------------------------------------


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """``measure(device)`` runs the experiment "order" on it and returns the table, read back."""

    class Backend(SimpleNamespace):
        check_node = staticmethod(lambda node: 1)

    monkeypatch.setattr(session, "CudaBackend", lambda node: Backend(about=lambda: {"device": "a stand-in"}))
    monkeypatch.setattr(session.CudaBackend, "check_node", Backend.check_node, raising=False)
    monkeypatch.setattr(session, "require_gpu", lambda count: None)

    def measure(device):
        monkeypatch.setattr(session.regions, "order", lambda opened: device.groups())
        (path,) = session.measure("h200_1", "conccl30_host", tmp_path, ["order"], REPEATS, quiet=True)
        return pd.read_csv(path)

    return measure


def test_a_second_measurement_goes_on_where_the_first_was_lost(tmp_path, measure):
    first, second = Device(7), Device()
    with pytest.raises(C3Error, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        measure(first)
    assert [path.name for path in tmp_path.iterdir()] == ["order.unfinished.jsonl"]  # no half a table
    table = measure(second)
    assert len(first.ran) + len(second.ran) == len(table) == 2 * len(ARMS) * REPEATS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["order.csv", "order.csv.json"]
    assert json.loads((tmp_path / "order.csv.json").read_text())["device"] == "a stand-in"
    assert len(measure(Device())) == len(table)  # and once more from the beginning


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"verified": False}, r"order: 18 of 18 rows failed their check and nothing is published"),
        ({"path": ""}, r"order: 18 rows have no proof of path and nothing is published"),
        ({"path": "no transfer"}, r"order: 18 rows have no proof of path and nothing is published"),
    ],
)
def test_f1_f6_rows_that_failed_their_check_or_have_no_proof_are_not_published(tmp_path, measure, row, message):
    with pytest.raises(C3Error, match=message):
        measure(Device(**row))
    assert [path.suffix for path in tmp_path.iterdir()] == [".jsonl"]
