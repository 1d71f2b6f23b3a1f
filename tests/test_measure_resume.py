"""A measurement that is cut short: finished rows are kept, a second run does the rest, nothing unsound is published."""

import errno
import json
from collections import Counter
from dataclasses import asdict
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib.backends.cuda import SWEEP_REPEATS, CudaBackend
from c3lib.cuda.buffers import Check
from c3lib.cuda.health import Health
from c3lib.cuda.region import Times
from c3lib.cuda.setting import Region, Setting
from c3lib.errors import C3Error
from c3lib.hardware import load_node
from c3lib.measure import energy, suite
from c3lib.measure import run as session
from c3lib.measure.journal import Journal, content_id
from c3lib.measure.rounds import Group, run_rounds
from c3lib.strategy import STRATEGIES

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
    with pytest.raises(
        C3Error, match=r"order\.jsonl: is of another run \(seed 0 then and 1 now\); finish that or delete the"
    ):
        Journal(path, {**ABOUT, "seed": 1})
    assert path.read_bytes() == before


def test_rows_of_arms_that_the_experiment_no_longer_has_are_not_published(tmp_path):
    path = tmp_path / "order.jsonl"
    finish(path, Device())
    journal = Journal(path, ABOUT)
    without = Device().groups()[:1]
    with pytest.raises(C3Error, match=r"holds repetition 0 of 'two', arm 'a', which the experiment does not have; del"):
        run_rounds(without, journal, REPEATS, 0, "order", quiet=True)
    with pytest.raises(C3Error, match=r"holds repetition 2 of 'one', arm 'a', which the experiment does not have; del"):
        run_rounds(Device().groups(), journal, REPEATS - 1, 0, "order", quiet=True)


def test_contents_are_told_apart_by_names_and_bytes(tmp_path):
    found = set()
    for name, text in (("a.py", "x"), ("a.py", "y"), ("b.py", "x"), ("c.py", "x")):
        (tmp_path / name).write_text(text)
        found.add(content_id(tmp_path))
    assert len(found) == 4
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.cpython-312.pyc").write_text("compiled")
    assert content_id(tmp_path) in found
    assert content_id(tmp_path / "a.py") != content_id(tmp_path / "b.py")
    (tmp_path / "copy.toml").write_bytes((tmp_path / "a.py").read_bytes())
    assert content_id(tmp_path / "copy.toml") == content_id(tmp_path / "a.py")


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
    """``measure(device)`` runs the experiment "order" on it and returns the table; ``measure.told`` is of the GPU."""
    told = {"device": "a stand-in", "driver": "1.0", "negative_control": "noticed"}

    class Backend(SimpleNamespace):
        check_node = staticmethod(lambda node: 1)

    opened = Backend(about=lambda: dict(told))
    monkeypatch.setattr(session, "CudaBackend", lambda node: opened)
    monkeypatch.setattr(session.CudaBackend, "check_node", Backend.check_node, raising=False)
    monkeypatch.setattr(session, "require_gpu", lambda count: None)

    def measure(device):
        monkeypatch.setattr(session.regions, "order", lambda opened: device.groups())
        (path,) = session.measure("h200_1", "conccl30_host", tmp_path, ["order"], REPEATS, quiet=True)
        return pd.read_csv(path)

    measure.told = told
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
    "what", ["device", "driver", "code", "node_file", "suite_file", "libraries"], ids="another {}".format
)
def test_rows_of_another_experiment_are_not_gone_on_from(tmp_path, measure, monkeypatch, what):
    with pytest.raises(C3Error, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        measure(Device(7))
    before = (tmp_path / "order.unfinished.jsonl").read_bytes()
    names = {"code": "c3lib", "node_file": "h200_1.toml", "suite_file": "conccl30_host.csv"}
    if what in names:
        changed = lambda path: "another" if path.name == names[what] else content_id(path)  # noqa: E731
        monkeypatch.setattr(session, "content_id", changed)
    elif what == "libraries":
        monkeypatch.setattr(session, "provenance", lambda: {"libraries": {"torch": "another"}})
    else:
        measure.told[what] = "another"
    device = Device()
    with pytest.raises(C3Error, match=rf"is of another run \({what} [^;]* then and .*another.* now\); finish that or"):
        measure(device)
    assert not device.ran
    assert (tmp_path / "order.unfinished.jsonl").read_bytes() == before


def test_what_a_control_saw_may_differ(measure):
    with pytest.raises(C3Error, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        measure(Device(7))
    measure.told["negative_control"] = "noticed, by 3 %"
    device = Device()
    assert len(measure(device)) == len(device.ran) + 7


@pytest.mark.parametrize(
    ("node", "name", "use"),
    [("h200_1", "conccl30_nvlink", "conccl30_host"), ("h200_2", "conccl30_host", "conccl30_nvlink")],
)
def test_a_suite_sized_for_other_links_is_refused_before_anything_is_opened(tmp_path, node, name, use):
    with pytest.raises(C3Error, match=rf"suite {name}: its transfers were sized .* {node} is .*; use --suite {use}"):
        session.measure(node, name, tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


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


# --- a partition sweep that was settled before the run was cut short --------------------------------------------------


class Rig:
    """A library that runs at most 8 blocks; the setting ``best`` is the fastest."""

    cudas = ()

    def __init__(self, best):
        self.best, self.ran, self.buffers = best, [], SimpleNamespace(link_nbytes=14)

    def load(self, gemm, plan):
        assert len(plan)

    def run(self, setting, gemm=True, transfer=True):
        self.ran.append(setting)
        nan, end_s = float("nan"), 5.0 if setting == self.best else 6.0
        times = (0, 4, nan, nan) if not transfer else (0, end_s, 0, 3) if gemm else (nan, nan, 0, 3)
        check, health = Check(14, 0, ""), Health(1980.0, 3201.0, 400.0, 40.0, 1.0)
        blocks = min(setting.blocks or 24, 8) if setting.library else setting.blocks
        return Region(Times(*times), check, True, setting.withheld, blocks, health, health, "proved")


def sweeping(rig):
    backend = CudaBackend.__new__(CudaBackend)
    backend.node, backend.rig, backend.sweeps, backend._chosen = load_node("h200_2"), rig, [], {}
    return backend


def suite_rows(path, rig, repeats=2):
    """One scenario of the suite under ``c3_rp``, as far as the journal lacks it; rows as the journal has them."""
    backend, journal = sweeping(rig), Journal(path, ABOUT)
    group = suite.suite_groups(backend, "conccl30_nvlink", journal)[0]
    only = Group(group.name, group.load, {"c3_rp": group.arms["c3_rp"]})
    try:
        run_rounds([only], journal, repeats, 0, "suite", quiet=True)
    finally:
        journal.close()
    return [row for row in journal.rows if row["table"] == "suite"], backend


def test_a_resumed_sweep_runs_what_won_and_not_what_the_library_made_of_it(tmp_path):
    best = Setting(blocks=16, withheld=16, library="nccl")
    (row,), first = suite_rows(tmp_path / "suite.jsonl", Rig(best), repeats=1)
    assert len(first.sweeps) == SWEEP_REPEATS * len(first.swept("gemm"))
    assert (row["blocks"], row["sms_asked"]) == (8, 16)  # the columns tell what ran
    again = Rig(best=None)
    rows, second = suite_rows(tmp_path / "suite.jsonl", again)
    assert not second.sweeps
    assert [row["repetition"] for row in rows] == [0, 1]
    assert again.ran.count(best) == 2  # alone and beside the GEMM
    assert set(again.ran) == {best, Setting(), Setting(library="nccl")}


def test_energy_is_measured_by_what_won_before_the_run_was_cut_short(tmp_path):
    best = Setting(blocks=16, withheld=16, library="nccl")
    journal, rig = Journal(tmp_path / "energy.jsonl", ABOUT), Rig(best=None)
    backend = sweeping(rig)
    scenario = suite.scenarios_of(backend, "conccl30_nvlink")[0]
    for strategy in ("serial_copy_engine", "c3_rp", "c3_base"):
        row = {"scenario": scenario.name, "strategy": strategy, "setting": asdict(best)}
        journal.add((f"energy {scenario.name}", strategy, 0), [row])
    journal.close()
    energy.energy_groups(backend, "conccl30_nvlink", Journal(tmp_path / "energy.jsonl", ABOUT))
    assert backend.setting(scenario, STRATEGIES["c3_rp"]) == best
    assert backend.setting(scenario, STRATEGIES["c3_base"]) != best  # nothing was swept for it
    assert not rig.ran


def test_what_was_asked_stays_in_the_journal(measure):
    table = measure(Device(setting={"blocks": 16}))
    assert list(table) == ["gemm", "strategy", "repetition", "verified", "path", "transport"]
