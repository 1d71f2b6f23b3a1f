"""The paper's rules and their scores."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_cases import MI300X, NODES, cases, gemms, node_list

from c3lib import heuristics
from c3lib.errors import C3Error
from c3lib.heuristics import (
    TABLE_BYTES,
    TABLE_GEMMS,
    TIE,
    SplitTable,
    candidates,
    cu_split,
    launch_order,
    roofline_s,
    score_order,
    score_split,
    score_withhold,
    split_table,
)
from c3lib.model.contention import best_split, predict, split_sweep, withheld_cus
from c3lib.model.kernels import batch, compute_time_s, memory_time_s
from c3lib.strategy import strategy
from c3lib.suites import MATRICES, load_suite, random_suite
from c3lib.workload import Collective, Gemm, Scenario

SUITE = load_suite("conccl30", 8)
SQUARE = Gemm(8192, 8192, 8192)


def _scenario(gemm=SQUARE, kind="all-gather", nbytes=2**30, ranks=8):
    return Scenario("x", gemm, Collective(kind, nbytes, ranks))


# --- launch order ---


def test_fewest_workgroups_go_first():
    assert launch_order({"gemm": 1024, "collective": 64}) == ["collective", "gemm"]
    assert launch_order({"gemm": 32, "collective": 64}) == ["gemm", "collective"]
    assert launch_order({"a": 5, "b": 5, "c": 1}) == ["c", "a", "b"]
    assert launch_order({}) == []


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 9)))
def test_order_ascends_and_loses_no_kernel(workgroups):
    order = launch_order(workgroups)
    assert sorted(order) == sorted(workgroups)
    counts = [workgroups[name] for name in order]
    assert counts == sorted(counts)


# --- roofline ---


def test_roofline_is_70_percent_of_peak():
    scenario = _scenario()
    gemm_s, collective_s = roofline_s(scenario, MI300X)
    assert gemm_s == pytest.approx(2 * 8192**3 / (0.7 * MI300X.gpu.matrix_peak_tflops * 1e12))
    assert collective_s == pytest.approx(2**30 * 7 / 8 / (0.7 * 7 * MI300X.link.peak_gbs * 1e9))


def test_roofline_of_a_memory_bound_gemm_is_its_traffic():
    gemm = Gemm(16, 16384, 16384)
    gemm_s = roofline_s(_scenario(gemm), MI300X)[0]
    assert gemm_s == pytest.approx(gemm.nbytes / (0.7 * MI300X.gpu.hbm_peak_gbs * 1e9))


def test_wider_numbers_take_longer():
    wide = dataclasses.replace(SQUARE, dtype="fp32")
    assert roofline_s(_scenario(wide), MI300X)[0] == pytest.approx(2 * roofline_s(_scenario(), MI300X)[0])


# --- partition ---


def test_split_by_a_table_worked_out_by_hand():
    scenario = _scenario()
    gemm_s, collective_s = roofline_s(scenario, MI300X)
    ratio = gemm_s / collective_s
    # max(1.0 g, 4 c), max(1.1 g, 2 c), max(1.5 g, 1 c) over c, for the given g / c
    table = SplitTable((8, 16, 32), {"compute": np.array([1.0, 1.1, 1.5])}, {"all-gather": np.array([4.0, 2.0, 1.0])})
    predicted = [max(1.0 * ratio, 4), max(1.1 * ratio, 2), max(1.5 * ratio, 1)]
    assert cu_split([scenario], MI300X, table).tolist() == [(8, 16, 32)[predicted.index(min(predicted))]]


@pytest.mark.parametrize(("nbytes", "chosen"), [(2**20, 8), (2**36, 64)])
def test_a_short_kernel_gives_its_cus_to_the_long_one(nbytes, chosen):
    # 32 are enough for the links; of the tie with 64 and 128 the rule takes the largest that the library fills.
    assert cu_split([_scenario(nbytes=nbytes)], MI300X).tolist() == [chosen]


def test_no_partition_is_not_a_candidate_of_the_rule():
    assert candidates(MI300X) == (8, 16, 32, 64, 128)
    assert set(candidates(MI300X)) == set(split_sweep(MI300X)) - {0}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_table_shapes_are_in_no_suite(node):
    for suite in (load_suite("conccl30", node.ranks), random_suite(300, node, seed=1)):
        assert {scenario.gemm for scenario in suite}.isdisjoint(TABLE_GEMMS)
        assert TABLE_BYTES not in {scenario.collective.nbytes for scenario in suite}
    # Not by luck of a seed: random suites draw these matrices and whole MiB.
    assert {(gemm.n, gemm.k) for gemm in TABLE_GEMMS}.isdisjoint(MATRICES.values())
    assert TABLE_BYTES % 2**20
    assert {gemm.bound(node.gpu) for gemm in TABLE_GEMMS} == {"compute", "memory"}


def test_table_holds_the_isolated_curves():
    table = split_table(MI300X)
    assert table.counts == candidates(MI300X)
    for kind, library in MI300X.library.items():
        full = dict(zip(table.counts, table.collective[kind], strict=True))
        assert full[64] == full[128] == pytest.approx(1)
        # By CUs alone while below the links: half of them take twice as long, latency aside.
        assert full[8] / full[16] == pytest.approx(2, rel=0.01)
        assert full[library.saturation_cus // 2] > 1.5
        assert full[library.saturation_cus] == pytest.approx(1, rel=0.01)
    assert table.gemm["compute"][-1] > 1.5 > table.gemm["memory"][-1] > 1
    assert (np.diff(table.gemm["compute"]) >= 0).all()


def test_a_table_without_a_class_is_refused(monkeypatch):
    monkeypatch.setattr(heuristics, "TABLE_GEMMS", (SQUARE,))
    with pytest.raises(C3Error, match=r"mi300x_8: no GEMM of the slowdown table is memory-bound"):
        split_table(MI300X)


def test_the_rule_never_looks_at_a_concurrent_time(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the rule asked for a concurrent time")

    expected = cu_split(SUITE, MI300X)
    monkeypatch.setattr(heuristics, "predict", refuse)
    monkeypatch.setattr("c3lib.model.contention.SharedGpu", refuse)
    assert cu_split(SUITE, MI300X).tolist() == expected.tolist()
    shared = MI300X.with_constant("interference.memory_queueing", 50.0)
    assert cu_split(SUITE, shared).tolist() == expected.tolist()


@given(cases())
def test_split_is_a_candidate(case):
    node, scenarios = case
    assert set(cu_split(scenarios, node)) <= set(candidates(node))


# --- withheld CUs ---


@given(st.lists(gemms, min_size=1, max_size=5), node_list)
def test_withheld_cus_follow_the_taxonomy(shapes, node):
    gemm, _ = batch([_scenario(shape, ranks=node.ranks) for shape in shapes], node)
    spare = node.gpu.spare_cus
    fits = compute_time_s(gemm, node.gpu.cus - spare, node) <= memory_time_s(gemm, node.gpu.cus, node)
    bounds = [shape.bound(node.gpu) == "memory" for shape in shapes]
    assert withheld_cus(gemm, node).tolist() == [spare * (low and fit) for low, fit in zip(bounds, fits, strict=True)]


def test_withheld_cus_by_hand():
    """Far from the ridge all that can be spared, right below it none: its matrix work needs the CUs."""
    far, near = Gemm(16, 28672, 8192), Gemm(4168, 81, 44294, "fp32")
    for shape, expected in ((far, 64), (near, 0)):
        assert shape.bound(NODES["h200_2"].gpu) == "memory"
        gemm, _ = batch([_scenario(shape, ranks=2)], NODES["h200_2"])
        assert withheld_cus(gemm, NODES["h200_2"]).tolist() == [expected]


# --- scores ---

SCORES = {"split": score_split, "order": score_order, "withhold": score_withhold}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_scores_cover_every_scenario_and_agree_with_themselves(score, node):
    scenarios = random_suite(300, node, seed=1)
    table = score(scenarios, node)
    assert table["scenario"].tolist() == [scenario.name for scenario in scenarios]
    assert (table["loss"] >= 0).all()
    assert np.isfinite(table["loss"]).all()
    assert (table["hit"] == (table["loss"] == 0)).all()
    assert (table["hit"] == (table["chosen"] == table["best"])).all()


def test_score_of_the_split_is_against_the_same_candidates():
    table = score_split(SUITE, MI300X)
    gemm, collective = batch(SUITE, MI300X)
    how = strategy("c3_rp")
    chosen_s = predict(gemm, collective, MI300X, how, cus=table["chosen"]).time_s
    best_s = predict(gemm, collective, MI300X, how, cus=table["best"]).time_s
    full_s = predict(gemm, collective, MI300X, how, cus=best_split(gemm, collective, MI300X, how)).time_s
    least_s = np.min([predict(gemm, collective, MI300X, how, cus=n).time_s for n in candidates(MI300X)], axis=0)
    loss = chosen_s / least_s - 1
    assert table["loss"].to_numpy() == pytest.approx(np.where(loss <= TIE, 0, loss), abs=1e-9)
    assert (best_s <= least_s * (1 + TIE)).all()
    assert table["loss_full"].to_numpy() == pytest.approx(chosen_s / full_s - 1, abs=1e-9)
    assert (table["loss_full"] >= table["loss"] - 1e-9).all()
    assert 0 not in set(table["best"])


def test_score_of_the_order_compares_the_two_launches():
    table = score_order(SUITE, MI300X)
    gemm, collective = batch(SUITE, MI300X)
    base, first = (predict(gemm, collective, MI300X, strategy(name)).time_s for name in ("c3_base", "c3_sp"))
    assert set(table["chosen"]) <= {"gemm", "collective"}
    chosen_s = np.where(table["chosen"] == "gemm", base, first)
    assert table["loss"].to_numpy() == pytest.approx(chosen_s / np.minimum(base, first) - 1, abs=TIE)


def test_withholding_is_scored_against_a_sweep_from_none():
    scenario = _scenario(Gemm(64, 16384, 16384))
    row = score_withhold([scenario], MI300X).iloc[0]
    gemm, collective = batch([scenario], MI300X)
    times = [float(predict(gemm, collective, MI300X, strategy("conccl_rp"), cus=n).time_s[0]) for n in (0, 8, 16, 32)]
    assert row["chosen"] == 8
    assert row["loss"] == pytest.approx(max(0, times[1] / min(times) - 1), abs=TIE)
