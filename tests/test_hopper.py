"""What the model says of a GPU whose GEMM kernels stay on their SMs: closed forms, and one H200's measured table."""

import numpy as np
import pytest
from model_cases import H200, MI300X

from c3lib.measured import read_measured
from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.model.shared_gpu import Mechanisms
from c3lib.model.sharing import flood_share
from c3lib.strategy import STRATEGIES, Strategy
from c3lib.workload import Collective, Gemm, Scenario

COMPUTE = Gemm(8192, 8192, 8192)
MEMORY = Gemm(64, 106496, 16384)


def pair(gemm, mebibytes=64):
    return kernels.batch([Scenario("x", gemm, Collective("all-gather", mebibytes * 2**20, H200.ranks))], H200)


def one(gemm, how, node=H200, **more):
    result = predict(*pair(gemm), node, how, **more)
    return {name: float(getattr(result, name)[0]) for name in ("time_s", "gemm_end_s", "collective_end_s")} | {
        "gemm_alone_s": float(result.gemm_alone_s[0])
    }


@pytest.mark.parametrize(
    ("copying", "limit", "share"), [(8, 9, 1), (9, 9, 1), (18, 9, 1 / 4), (36, 9, 1 / 16), (64, 0, 1), (0, 9, 1)]
)
def test_flood_by_hand(copying, limit, share):
    assert flood_share(copying, limit) == pytest.approx(share)


def test_more_copying_cus_never_leave_the_gemm_more():
    assert (np.diff(flood_share(np.arange(1, 132), 9.0)) <= 0).all()


def test_a_copy_behind_a_resident_gemm_runs_after_it():
    """Few enough blocks that nothing floods: the pair takes as long as one after the other."""
    node = H200.with_constant("interference.waiting_per_cu", 1)
    found = one(COMPUTE, STRATEGIES["c3_base"], node, blocks=8)
    _, collective = pair(COMPUTE)
    alone = float(kernels.cu_collective_time_s(collective, 8, node)[0])
    latency = float(kernels.cu_collective_latency_s(collective, node)[0])
    assert found["gemm_end_s"] == pytest.approx(found["gemm_alone_s"])
    assert found["time_s"] == pytest.approx(found["gemm_alone_s"] + alone - latency)  # it starts up meanwhile


def test_blocks_that_waited_share_the_first_sms_that_fall_free():
    slow = one(COMPUTE, STRATEGIES["c3_base"], blocks=4)["time_s"]
    other = H200.with_constant("interference.waiting_per_cu", 1)
    assert one(COMPUTE, STRATEGIES["c3_base"], other, blocks=2)["time_s"] == pytest.approx(slow)


def test_a_memory_bound_gemm_leaves_sms_for_a_copy_behind_it():
    """Eight blocks find room on the twelve SMs that it does not use: nothing waits."""
    found = one(MEMORY, STRATEGIES["c3_base"], blocks=8)
    assert found["time_s"] < 1.1 * max(found["gemm_alone_s"], found["collective_end_s"])
    none = H200.with_constant("gpu.idle_cus", 0)
    assert one(MEMORY, STRATEGIES["c3_base"], none, blocks=8)["time_s"] > 1.5 * found["time_s"]


def test_without_its_mechanisms_a_flood_costs_nothing():
    off = Mechanisms(False, False, False, False, False, False, False)
    found = one(COMPUTE, STRATEGIES["c3_sp"], on=off)
    assert found["time_s"] == pytest.approx(max(found["gemm_alone_s"], found["collective_end_s"]))


def test_nothing_of_it_is_assumed_of_the_mi300x():
    assert MI300X.gpu.resident_gemm == 0
    assert MI300X.interference.flood_cus == 0
    assert (MI300X.gpu.idle_cus, MI300X.interference.waiting_per_cu) == (0, 1)


@pytest.mark.parametrize("gemm", [COMPUTE, MEMORY], ids=["compute-bound", "memory-bound"])
@pytest.mark.parametrize("blocks", [4, 8, 16, 32, 64])
def test_the_measured_times_that_set_the_coefficients(gemm, blocks):
    """Table ``order``, transfer first: in sample, so this is no evidence, only a guard; within 20 %."""
    rows, _ = read_measured("h200_1", "order")
    rows = rows[(rows["gemm"] == str(gemm)) & (rows["blocks"] == blocks) & (rows["first"] == "transfer")]
    rows = rows[(rows["sms_asked"] == 0) & (rows["direction"] == "both") & ~rows["high_priority"]]
    measured = float(rows["region_s"].median())
    how = Strategy("x", "cu", "collective", "sweep", "as measured")
    nbytes = int(rows["total_bytes"].iloc[0])
    batch = kernels.batch([Scenario("x", gemm, Collective("all-gather", nbytes, H200.ranks))], H200)
    assert float(predict(*batch, H200, how, cus=0, blocks=blocks).time_s[0]) == pytest.approx(measured, rel=0.2)
