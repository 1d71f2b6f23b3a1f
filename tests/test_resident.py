"""Workgroups that find no room beside a GEMM kernel that stays: by hand, and where the rules do not apply."""

import numpy as np
import pytest
from model_cases import MI300X, NODES

from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.model.kernels import GemmBatch
from c3lib.model.resident import crowded_times_s
from c3lib.strategy import STRATEGIES
from c3lib.workload import Collective, Gemm, Scenario

NVLINK = NODES["h200_2"]
STEADY = NVLINK.with_constant("gpu.clock_gain", 0)  # so that a round takes the same time on any number of SMs
COMPUTE, MEMORY = Gemm(8192, 8192, 8192), Gemm(64, 106496, 16384)
CUS = NVLINK.gpu.cus
KINDS = [f"{kind}.cluster_cus" for kind in NVLINK.library]


def singly(node=NVLINK, blocks=1):
    for key in KINDS:
        node = node.with_constant(key, blocks)
    return node


def tiles(count, seconds=1.0, nbytes=0.0):
    one = lambda value: np.array([float(value)])  # noqa: E731
    return GemmBatch(
        nbytes=one(nbytes), memory_bound=np.array([nbytes > 0]), workgroups=one(count), waves=one(np.ceil(count / CUS)),
        tile_time_s=one(seconds), beyond_l2_bytes=one(nbytes), die_tiles=np.full((1, 1), float(count)),
        wave_time_s=np.full((1, 1), seconds),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "held", "rounds"),
    [
        (2048, 0, 16),  # 15.5 on all SMs
        (2048, 4, 17),  # 2044 on 128 SMs are 15.97, and the 4 that found no SM after them
        (2048, 8, 18),  # 2040 on 124: 16.5
        (2048, 16, 19),  # 2032 on 116: 17.5
        (2048, 24, 20),  # 2024 on 108: 18.7
        (256, 2, 3),  # 254 on 130: 2, where all SMs need 2 as well
        (100, 32, 1),  # too small to notice
        (100, 40, 2),  # 92 at once, 8 after them
        (100, 72, 2),
        (100, 131, 100),  # on one SM
    ],
)
def test_rounds_of_a_kernel_that_was_not_told(count, held, rounds):
    compute, _ = crowded_times_s(tiles(count), np.array([float(CUS - held)]), STEADY, 0.0)
    assert compute == pytest.approx(rounds)


def test_a_memory_bound_kernel_takes_one_round_more_of_its_memory_time():
    """416 tiles: 4 rounds with every SM; 412 on 128 SMs are 4 as well, and the other 4 tiles one more."""
    gemm, left = tiles(416, 1e-9, 4e9), np.array([CUS - 4.0])
    _, memory = crowded_times_s(gemm, left, STEADY, 0.0)
    assert memory == pytest.approx(5 / 4 * kernels.memory_time_s(gemm, left, STEADY))


def test_on_all_sms_it_is_the_kernel_that_the_library_would_run_anyway():
    gemm, _ = batch(COMPUTE)
    everything = np.array([float(CUS)])
    compute, memory = crowded_times_s(gemm, everything, NVLINK, 0.0)
    assert compute == pytest.approx(kernels.compute_time_s(gemm, CUS, NVLINK))
    assert memory == pytest.approx(kernels.memory_time_s(gemm, CUS, NVLINK))


def batch(gemm, node=NVLINK, mebibytes=512):
    return kernels.batch([Scenario("x", gemm, Collective("all-gather", mebibytes * 2**20, node.ranks))], node)


def times(gemm, strategy, node=NVLINK, mebibytes=512, **how):
    found = predict(*batch(gemm, node, mebibytes), node, STRATEGIES[strategy], **how)
    return float(found.gemm_end_s[0]), float(found.time_s[0])


def alone_s(blocks, node=NVLINK):
    """A transfer that has started up meanwhile."""
    _, collective = batch(COMPUTE, node)
    whole = kernels.cu_collective_time_s(collective, blocks, node) - kernels.cu_collective_latency_s(collective, node)
    return float(whole[0])


@pytest.mark.parametrize("gemm", [COMPUTE, MEMORY], ids=["compute-bound", "memory-bound"])
def test_clusters_launched_second_do_not_start_on_sms_left_free_for_them(gemm):
    """The GEMM runs undisturbed on the SMs it was told, then the transfer; launched singly its blocks start at once."""
    gemm_end_s, time_s = times(gemm, "c3_rp", cus=16, blocks=16)
    assert gemm_end_s == pytest.approx(float(kernels.gemm_time_s(batch(gemm)[0], CUS - 16, NVLINK)[0]))
    assert time_s == pytest.approx(gemm_end_s + alone_s(16))
    assert times(gemm, "c3_rp", singly(), cus=16, blocks=16)[1] < 0.9 * time_s


def test_clusters_find_no_room_on_sms_that_a_memory_bound_gemm_leaves_idle():
    gemm_end_s, time_s = times(MEMORY, "c3_base", blocks=8)
    assert time_s == pytest.approx(gemm_end_s + alone_s(8))
    assert times(MEMORY, "c3_base", singly(), blocks=8)[1] < 0.9 * time_s


@pytest.mark.parametrize("strategy", ["c3_sp", "c3_sp_rp", "conccl"])
def test_clusters_launched_first_and_copy_engines_wait_for_nobody(strategy):
    assert times(COMPUTE, strategy) == times(COMPUTE, strategy, singly())


def test_a_gemm_that_is_told_chooses_for_the_sms_it_has():
    node = STEADY.with_constant("interference.memory_queueing", 0)
    told, _ = times(COMPUTE, "c3_sp_rp", node, 2048, cus=16, blocks=16)
    untold, _ = times(COMPUTE, "c3_sp", node, 2048, blocks=16)
    gemm, _ = batch(COMPUTE)
    assert told == pytest.approx(float(kernels.gemm_time_s(gemm, CUS - 16, node)[0]))
    crowded = crowded_times_s(gemm, np.array([CUS - 16.0]), node, 0.0)[0]
    # It runs undisturbed for a few microseconds, while the collective starts up.
    assert untold == pytest.approx(float((crowded + kernels.gemm_launch_s(gemm, node))[0]), rel=3e-3)
    assert untold > 1.03 * told


def test_copies_wait_more_than_gemms_where_that_was_seen():
    """A copy slowed by 1 + coefficient x traffic: doubled beside a GEMM that takes all of the memory bandwidth."""
    gemm, collective = batch(MEMORY, mebibytes=4096)
    node = singly().with_constant("interference.memory_queueing", 0).with_constant("interference.copy_queueing", 1)
    law = predict(gemm, collective, node, STRATEGIES["c3_rp"], cus=8, blocks=8).law
    alone, beside = law.collective_only.collective_rate, law.late.collective_rate
    traffic = law.late.gemm_rate * gemm.beyond_l2_bytes / (node.gpu.hbm_gbs * 1e9)
    assert alone / beside == pytest.approx(1 + traffic, rel=0.1)  # the GEMM has given some way by then
    assert float((alone / beside)[0]) > 1.5


def test_nothing_of_it_is_assumed_of_the_mi300x():
    for key, value in ((KINDS[0], 4), (KINDS[1], 4), ("interference.copy_queueing", 0)):
        changed = MI300X.with_constant(key, value)
        for name in STRATEGIES:
            assert times(COMPUTE, name, changed) == times(COMPUTE, name, MI300X)
