"""The experiments of finer-grain schedules over a make-believe GPU: arms, rows, schemas, what is refused."""

from types import SimpleNamespace

import pandas as pd
import pytest
from make_believe_gpus import Stream
from make_believe_torch import machine

from c3lib.cuda import cuts, schedule
from c3lib.cuda.region import Gate
from c3lib.cuda.schedule import How
from c3lib.errors import C3Error
from c3lib.ficco import SCHEDULES, Problem
from c3lib.ficco.sets import Row, load_problems
from c3lib.hardware import load_node
from c3lib.measure import ficco, ficco_losses
from c3lib.measure.journal import Journal
from c3lib.measure.rounds import run_rounds
from c3lib.measure.run import _require_sound, experiments_of, measure
from c3lib.measured import schemas

__all__ = ["machine"]  # a fixture

NODE = load_node("h200_1")
SMALL = [Row("small", Problem.all_gather(64, 24, 32, 4), "ours")]


@pytest.fixture
def bench(machine, monkeypatch):
    cuda = machine()
    put = Stream.put  # everything takes a microsecond
    monkeypatch.setattr(
        Stream, "put", lambda self, *how, lasts_s=1e-6, **more: put(self, *how, lasts_s=lasts_s, **more)
    )
    monkeypatch.setattr(ficco_losses, "SHARD_ROWS", 128)
    monkeypatch.setattr(ficco_losses, "SHARD_COLS", 64)
    for module in (ficco_losses, cuts):
        monkeypatch.setattr(module, "read_health", schedule.read_health, raising=False)
    monkeypatch.setattr(cuts, "set_sm_target", lambda cuda, sms: None)
    for module in (ficco, ficco_losses):
        monkeypatch.setattr(module, "load_problems", lambda name, ranks: SMALL)
    rig = SimpleNamespace(cuda=cuda, gate=Gate([cuda]), synchronize=lambda: cuda.torch.cuda.synchronize(0))
    cuda.torch.cuda.empty_cache = lambda: None
    return ficco.Bench(SimpleNamespace(node=NODE, evidence="measured", rig=rig))


def rows_of(groups, tmp_path, repeats):
    journal = Journal(tmp_path / "x.jsonl", {})
    run_rounds(groups, journal, repeats, 0, "x", quiet=True)
    return pd.DataFrame(journal.rows)


def test_every_schedule_runs_by_either_transport_and_each_lane_alone(bench, tmp_path):
    rows = rows_of(ficco.ficco_groups(bench), tmp_path, ficco.ALONE_REPEATS + 1)
    schemas()["ficco"].validate(rows)
    _require_sound("ficco", rows, tmp_path)
    counted = rows.groupby(["schedule", "lanes", "transport"]).size()
    for name in SCHEDULES:
        for transport in ("copy_engine", "sm_kernel"):
            assert counted[name, "both", transport] == ficco.ALONE_REPEATS + 1
            assert counted[name, "exchanges", transport] == ficco.ALONE_REPEATS
        assert counted[name, "kernels", "none"] == ficco.ALONE_REPEATS * (1 if name == "serial" else 2)
    kernel = rows[(rows["transport"] == "sm_kernel") & (rows["lanes"] == "both")].set_index("schedule")
    assert (kernel["sms_withheld"].drop("serial") == 8).all()
    assert (kernel["blocks"]["serial"] == 32).all()
    assert (rows["received_bytes"] == 48 * 32 * 2).all()


def test_losses_are_of_every_cut_alone_and_beside(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(ficco_losses, "ceil", lambda value: 20)
    rows = rows_of(ficco_losses.loss_groups(bench), tmp_path, 1)
    schemas()["ficco_losses"].validate(rows)
    _require_sound("ficco_losses", rows, tmp_path)
    gemms = rows[(rows["measured"] == "gemm") & (rows["beside"] == "nothing") & (rows["sms_withheld"] == 0)]
    assert set(zip(gemms["cut"], gemms["parts"], strict=True)) == set(ficco_losses.CUTS)
    beside = rows[(rows["measured"] == "gemm") & (rows["beside"] == "exchange")]
    assert set(zip(beside["cut"], beside["parts"], strict=True)) == set(ficco_losses.BESIDE)
    assert set(rows[rows["measured"] == "exchange"]["cut"]) == {"none", "m", "k"}
    assert set(rows[rows["beside"] == "gemm"]["transport"]) == {"copy_engine", "sm_kernel"}


def test_a_gemm_of_which_a_piece_is_left_out_is_noticed(bench):
    there = ficco_losses._Row(bench)
    there.load(SMALL[0].problem.gemm())
    for cut, parts in ficco_losses.CUTS[1:]:
        kernels, _ = there.pieces(cut, parts, 0)
        there.gemm.poison()
        there.beside.warm(there.gemm.enqueue(kernels[:-1]))
        assert not there.gemm.right(kernels)


def test_the_controls_of_an_experiment_fire(bench, monkeypatch):
    monkeypatch.setattr(ficco, "_CONTROL", Problem.all_gather(64, 24, 64, 4))
    fired = ficco.controls(bench)
    assert len(fired) == 4
    assert all(text.count("noticed") == 2 for text in fired.values())


def test_something_beside_that_never_outlasts_the_work_is_no_measurement(bench):
    beside = cuts.Beside(bench.backend.rig.cuda, bench.backend.rig.gate)

    def put(on):
        on.put(lasts_s=1.0)

    assert beside.time_s(put, False) == pytest.approx(1, rel=1e-3)
    assert beside.time_s(put, True, lambda on: on.put(lasts_s=0.3), 1) == pytest.approx(
        1, rel=1e-3
    )  # four of them are enough
    with pytest.raises(C3Error, match=r"what ran beside 1 s of work ended before it, 8 times over"):
        beside.time_s(put, True, lambda on: on.put(lasts_s=0.1), 1)


def test_the_problems_are_what_their_names_say():
    rows = load_problems(ficco.PROBLEMS, NODE.ranks)
    for row in rows:
        problem = row.problem
        kind, _, what = row.name.partition("-")
        if kind == "piece":
            assert what == {1 << 22: "4MiB", 1 << 20: "1MiB", 1 << 18: "256KiB", 1 << 16: "64KiB"}[problem.piece_nbytes]
            continue
        assert problem.piece_nbytes >= 8 << 20
        exchange_s = problem.received_nbytes() / (NODE.link.dma_one_way_gbs * 1e9)
        ratio = what.split("-")[0].removeprefix("r") if what.startswith("r") else 1  # g1-r1-16MiB, g1-2-pieces
        assert exchange_s / (problem.gemm().flops / 780e12) == pytest.approx(float(ratio), rel=0.02)
        pieces = int(what.split("-")[-2]) if what.endswith("-pieces") else 8
        assert problem.pieces == pieces
        paper = next(other.problem for other in load_problems("ficco16", 8) if other.name == kind)
        assert problem.m[0] / problem.k == pytest.approx(paper.m[0] / paper.k)
        assert problem.kind == paper.kind


def test_nodes_without_a_host_link_are_refused_in_one_sentence(tmp_path):
    assert {"ficco", "ficco_losses"} <= set(experiments_of(NODE))
    assert "ficco" not in experiments_of(load_node("h200_2"))
    for name in ("ficco", "ficco_losses"):
        with pytest.raises(C3Error, match=rf"^experiment {name} runs one rank on one NVIDIA GPU, over its host link"):
            measure("h200_2", "conccl30", tmp_path, [name])


def test_the_sm_kernel_has_the_default_blocks_only_where_nothing_runs_beside_it():
    assert ficco.hows(NODE, "all-gather", "serial")[1] == How(32, 0)
    assert ficco.hows(NODE, "all-gather", "hetero_fused_1d")[1] == How(8, 8)
