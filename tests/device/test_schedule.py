"""Finer-grain schedules on the GPU: results, paths, negative controls, and no copy that nobody asked for."""

import pytest

from c3lib.cuda.matrices import Matrices
from c3lib.cuda.schedule import How, Schedule
from c3lib.ficco import SCHEDULES, Problem

pytestmark = pytest.mark.device

HOWS = [How(), How(blocks=8, withheld=8)]
PROBLEMS = {
    "odd all-gather": Problem.all_gather(1021, 331, 517, 8),
    "all-gather of fewer ranks": Problem.all_gather(768, 256, 640, 3, pieces=5),
    "all-to-all": Problem.all_to_all(1000, 200, 264, 5),
    "uneven all-to-all": Problem.all_to_all(0, 96, 72, 3, rows=[(50, 1, 2), (0, 3, 4), (80, 2, 2)]),
    "half precision": Problem.all_gather(512, 512, 512, 4, dtype="fp16"),
}
LARGE = Problem.all_gather(16384, 4096, 4096, 8)


def schedule(cuda, gate, problem, name, how):
    return Schedule(cuda, gate, Matrices(cuda, problem), name, how)


@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.transport)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_every_schedule_comes_out_right_by_the_path_of_its_name(cuda, gate, problem, how):
    matrices = Matrices(cuda, problem)
    for name in SCHEDULES:
        there = Schedule(cuda, gate, matrices, name, how)
        for turn in range(4):
            region = there.run(turn).region
            assert region.check.verified, region.check.first
            assert region.gemm_right, name
            assert region.path.startswith("SM kernel: 8 blocks" if how.blocks else "copy engine: ended while all")
            assert region.blocks == how.blocks
        assert there.run(4, kernels=False).region.verified
        assert there.run(5, exchanges=False).region.verified


@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.transport)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_dropped_copy_and_a_wait_left_out_are_noticed(cuda, gate, name, how):
    there = schedule(cuda, gate, LARGE, name, how)
    assert there.controls().count("noticed") == 2
    for drop in (0, len(there.program.of("copy")) - 1):
        region = there.run(drop, drop=drop).region
        assert region.check.wrong_nbytes == 2 * there.program.of("copy")[drop].a.elements
        assert not region.gemm_right


@pytest.mark.parametrize("name", SCHEDULES)
def test_times_are_in_order_and_lanes_overlap(cuda, gate, name):
    there = schedule(cuda, gate, LARGE, name, How())
    run = [there.run(turn) for turn in range(3)][-1]
    times, steps = run.region.times, run.step_ends_s
    assert len(steps) == there.program.steps
    assert list(steps) == sorted(steps)
    assert 0 <= times.transfer_start_s < steps[0] <= steps[-1] <= times.transfer_end_s
    gbs = LARGE.received_nbytes() / (times.transfer_end_s - times.transfer_start_s) / 1e9
    assert 1 < gbs < 64  # a host link carries no more; slices of columns move in short rows
    if name == "serial":
        assert times.gemm_start_s >= times.transfer_end_s - 1e-5
    else:
        assert times.overlap_s > 0
        assert times.gemm_end_s > times.transfer_end_s  # the last piece is multiplied when it is there


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_kernel_works_in_a_hidden_copy(cuda, gate, name):
    """Once warm, a run of any schedule asks torch for no memory: no operand and no result is copied."""
    there = schedule(cuda, gate, PROBLEMS["odd all-gather"], name, How())
    there.run(0)
    there.matrices.prepare(there.program, 1, arrived=True)
    cuda.torch.cuda.synchronize()
    cuda.torch.cuda.reset_peak_memory_stats()
    before = cuda.torch.cuda.memory_allocated()
    there._enqueue(there.exchange, True, False, None, False)
    cuda.torch.cuda.synchronize()
    assert cuda.torch.cuda.max_memory_allocated() == before


def test_copies_wait_for_no_kernel(cuda, gate):
    """Kernels on the compute stream that take long do not delay the exchanges: the lanes are independent."""
    there = schedule(cuda, gate, LARGE, "hetero_unfused_1d", How())
    alone = [there.run(turn, kernels=False).region.times for turn in range(3)][-1]
    beside = [there.run(turn).region.times for turn in range(3)][-1]
    assert beside.transfer_end_s - beside.transfer_start_s < 1.3 * (alone.transfer_end_s - alone.transfer_start_s)
