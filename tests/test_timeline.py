"""The timeline against the model's own ends, and its limits in cases that are known beforehand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c3lib.errors import C3Error
from c3lib.hardware import load_node
from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.model.timeline import COLUMNS, timeline
from c3lib.strategy import STRATEGIES, strategy
from c3lib.workload import Collective, Gemm, Scenario

MI300X = load_node("mi300x_8")
LONG = Scenario("long", Gemm(8192, 8192, 8192), Collective("all-gather", 896 * 2**20, 8))
STREAM = Scenario("stream", Gemm(64, 106496, 16384), Collective("all-to-all", 192 * 2**20, 8))

scenarios = st.builds(
    lambda m, n, k, kind, mib: Scenario("any", Gemm(m, n, k), Collective(kind, mib * 2**20, 8)),
    st.integers(1, 8192),
    st.integers(64, 16384),
    st.integers(64, 16384),
    st.sampled_from(["all-gather", "all-to-all"]),
    st.integers(0, 2048),
)


@settings(max_examples=60, deadline=None)
@given(scenarios, st.sampled_from(sorted(STRATEGIES)))
def test_ends_are_those_of_the_prediction_and_rows_leave_no_gap(scenario, name):
    rows = timeline(scenario, MI300X, name)
    result = predict(*kernels.batch([scenario], MI300X), MI300X, strategy(name))
    assert list(rows.columns) == list(COLUMNS)
    for task, end in (("gemm", result.gemm_end_s[0]), ("collective", result.collective_end_s[0])):
        mine = rows[rows["task"] == task]
        assert (mine["end_s"].max() if len(mine) else 0.0) == pytest.approx(end, rel=1e-9)
        assert (mine["start_s"].iloc[1:].to_numpy() == mine["end_s"].iloc[:-1].to_numpy()).all()
        assert (mine["end_s"] > mine["start_s"]).all()


@settings(max_examples=60, deadline=None)
@given(scenarios, st.sampled_from(sorted(STRATEGIES)))
def test_no_more_cus_than_the_gpu_has(scenario, name):
    rows = timeline(scenario, MI300X, name)
    for time in rows["start_s"]:
        running = rows[(rows["start_s"] <= time) & (rows["end_s"] > time)]
        assert running["cus"].sum() <= MI300X.gpu.cus + 1e-9


def limits(scenario, name, task, phase):
    rows = timeline(scenario, MI300X, name)
    return set(rows[(rows["task"] == task) & (rows["phase"] == phase)]["limited_by"])


def test_known_limits():
    assert limits(LONG, "c3_base", "collective", "GEMM dispatching") == {"dispatch order"}
    assert limits(LONG, "c3_sp", "collective", "GEMM dispatching") == {"links"}
    assert limits(LONG, "conccl", "collective", "GEMM dispatching") == {"links"}
    assert limits(LONG, "conccl", "gemm", "GEMM dispatching") == {"memory latency"}
    assert limits(STREAM, "conccl", "gemm", "GEMM alone") == {"memory bandwidth"}
    assert limits(STREAM, "c3_sp", "collective", "GEMM dispatching") == {"memory latency"}
    assert limits(LONG, "conccl", "gemm", "start-up") == {"start-up"}


def test_without_queueing_a_compute_bound_gemm_beside_dma_is_limited_by_its_cus():
    node = MI300X.with_constant("interference.memory_queueing", 0)
    rows = timeline(LONG, node, "conccl")
    busy = rows[(rows["task"] == "gemm") & (rows["phase"] != "start-up")]
    assert set(busy["limited_by"]) == {"compute units"}
    assert busy["rate"].to_numpy() == pytest.approx(1.0)


def test_a_dma_collective_holds_no_cus_and_a_library_one_its_default():
    for name, cus in (("conccl", 0), ("c3_sp", MI300X.library["all-gather"].default_cus)):
        rows = timeline(LONG, MI300X, name)
        assert set(rows[(rows["task"] == "collective") & (rows["phase"] != "start-up")]["cus"]) == {cus}


def test_unknown_strategy_is_named():
    with pytest.raises(C3Error, match="c3_bas"):
        timeline(LONG, MI300X, "c3_bas")


@settings(max_examples=60, deadline=None)
@given(scenarios, st.sampled_from(sorted(STRATEGIES)))
def test_rate_times_time_is_the_whole_kernel(scenario, name):
    rows = timeline(scenario, MI300X, name)
    gemm, collective = kernels.batch([scenario], MI300X)
    latency_s = kernels.cu_collective_latency_s(collective, MI300X)[0]
    alone_s = {
        "gemm": kernels.gemm_time_s(gemm, MI300X.gpu.cus, MI300X)[0] - MI300X.gpu.launch_us * 1e-6,
        "collective": kernels.library_time_s(collective, MI300X)[0] - latency_s,
    }
    for task, own in rows.groupby("task"):
        done_s = (own["rate"] * (own["end_s"] - own["start_s"])).sum()
        assert done_s == pytest.approx(alone_s[task], rel=1e-6)
        assert own["start_s"].iloc[0] == 0


def test_a_gemm_beside_nothing_runs_at_its_isolated_rate():
    scenario = Scenario("alone", Gemm(8192, 8192, 8192), Collective("all-gather", 0, 8))
    rows = timeline(scenario, MI300X, "conccl")
    gemm, _ = kernels.batch([scenario], MI300X)
    busy = rows[rows["phase"] != "start-up"]
    assert set(busy["task"]) == {"gemm"}
    assert busy["rate"].to_numpy() == pytest.approx(1.0)
    assert busy["end_s"].max() == pytest.approx(kernels.gemm_time_s(gemm, MI300X.gpu.cus, MI300X)[0])
