"""Schedules over a make-believe GPU whose streams run in any order that waits allow: data, waits, pitches, controls."""

from types import SimpleNamespace

import pytest
import torch
from make_believe_torch import machine

from c3lib.cuda import exchange, lane
from c3lib.cuda.exchange import BATCHED_NBYTES, Piece, piece, row_chunks
from c3lib.cuda.matrices import SHIFTS, Matrices
from c3lib.cuda.region import Gate
from c3lib.cuda.schedule import How, Schedule
from c3lib.cuda.sm_kernel import CHUNK_NBYTES
from c3lib.errors import C3Error
from c3lib.ficco import SCHEDULES, Problem

PROBLEMS = {
    "all-gather": Problem.all_gather(60, 24, 40, 4, pieces=3),
    "odd": Problem.all_gather(61, 13, 37, 3),
    "all-to-all": Problem.all_to_all(64, 16, 32, 4),
    "uneven": Problem.all_to_all(0, 9, 16, 3, rows=[(5, 1, 2), (0, 3, 4), (8, 2, 2)]),
}
__all__ = ["machine"]  # a fixture

HOWS = [How(), How(blocks=3, withheld=8)]


def runs(cuda, problem, name, how, turns=(0, SHIFTS + 5)):
    there = Schedule(cuda, Gate([cuda]), Matrices(cuda, problem), name, how)
    return [there.run(turn) for turn in turns]


@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.transport)
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_every_schedule_comes_out_right_in_any_order_that_its_waits_allow(machine, problem, name, how):
    for seed in range(2):
        for run in runs(machine(seed), problem, name, how):
            assert run.region.check.verified, run.region.check.first
            assert run.region.gemm_right
            assert run.region.check.compared_nbytes == problem.received_nbytes(0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_lane_alone_comes_out_right(machine, name):
    cuda = machine()
    there = Schedule(cuda, Gate([cuda]), Matrices(cuda, PROBLEMS["odd"]), name)
    kernels, exchanges = there.run(1, exchanges=False), there.run(2, kernels=False)
    assert kernels.region.verified
    assert kernels.region.path == "no transfer"
    assert exchanges.region.verified
    assert len(exchanges.step_ends_s) == there.program.steps


@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.transport)
@pytest.mark.parametrize("name", SCHEDULES)
def test_any_wait_left_out_is_wrong_where_kernels_are_fast(machine, name, how):
    """And none where all waits stand: the order of chance is one in which kernels run as soon as they may."""
    cuda = machine()
    there = Schedule(cuda, Gate([cuda]), Matrices(cuda, PROBLEMS["all-gather"]), name, how)
    fast = there._kernel_stream
    cuda.machine.random = SimpleNamespace(choice=lambda ready: fast if fast in ready else ready[0])
    whole = there.lane.kernels
    for turn, left_out in enumerate([*sorted(there.lane.awaited), None]):
        there.lane.kernels = [
            kernel._replace(waits=lane.NOTHING) if kernel.waits == left_out else kernel for kernel in whole
        ]
        assert there.run(turn).region.gemm_right == (left_out is None), left_out


@pytest.mark.parametrize("how", HOWS, ids=lambda how: how.transport)
@pytest.mark.parametrize("name", SCHEDULES)
def test_any_dropped_copy_is_noticed_twice(machine, name, how):
    cuda = machine()
    there = Schedule(cuda, Gate([cuda]), Matrices(cuda, PROBLEMS["all-gather"]), name, how)
    for drop, task in enumerate(there.program.of("copy")):
        run = there.run(drop, drop=drop).region
        assert run.check.wrong_nbytes == 2 * task.a.elements
        assert not run.gemm_right
        assert f"copy {drop} brought" in run.check.first


def test_data_of_another_iteration_are_other_data(machine):
    cuda = machine()
    matrices = Matrices(cuda, PROBLEMS["odd"])
    there = Schedule(cuda, Gate([cuda]), matrices, "serial")
    there.run(1)
    assert not matrices.check_arrived(there.program, 2).verified
    assert not matrices.right(there.program, 2)


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_slice_missing_is_beyond_the_bound_by_far(machine, name):
    """The largest error of a sum that lacks a slice of K: over ten times what rounding may do."""
    cuda = machine()
    problem = Problem.all_gather(512, 64, 1024, 8)
    matrices = Matrices(cuda, problem)
    program = matrices.programs[name]
    lacking = matrices._pool[:, 128:].float() @ matrices._room("b")[128:].float()
    error = (lacking - matrices._product.float()).abs().max()
    assert error > 10 / 3 * matrices.bound(program)


def test_copies_are_issued_as_their_rows_lie():
    wide = torch.zeros(8, 10, dtype=torch.bfloat16)
    narrow, whole = wide[:, 2:5], torch.zeros(8, 3, dtype=torch.bfloat16)
    assert piece(wide[2:4], wide[4:6]) == Piece(wide.data_ptr() + 40, wide.data_ptr() + 80, 40)
    assert piece(narrow, whole) == Piece(wide.data_ptr() + 4, whole.data_ptr(), 6, 8, 20, 6)
    assert piece(narrow[3:4], whole[:1]).rows == 1
    with pytest.raises(C3Error, match="rows must be whole and alike"):
        piece(wide.t(), wide.t())


def test_chunks_are_all_bytes_of_the_copies_once():
    parts = [Piece(0, 1 << 40, 3 * CHUNK_NBYTES + 5), Piece(1 << 30, 1 << 41, 1000, 700, 4096, 2048)]
    chunks = row_chunks(parts)
    assert (chunks[:, 2] * chunks[:, 3]).sum() == sum(part.total_nbytes for part in parts)
    assert (chunks[:, 2] * chunks[:, 3]).max() <= CHUNK_NBYTES
    last = chunks[-1]
    assert last[0] - (1 << 30) + last[3] * 4096 == 700 * 4096
    assert last[1] - (1 << 41) + last[3] * 2048 == 700 * 2048


@pytest.mark.parametrize(("k", "batched"), [(64, True), (BATCHED_NBYTES // 2, False)])
def test_small_copies_of_a_step_are_one_call(machine, monkeypatch, k, batched):
    cuda = machine()
    problem = Problem.all_gather(16, 2, k, 4, pieces=2)
    matrices = Matrices(cuda, problem)
    found = exchange.Exchange(cuda, matrices.programs["hetero_unfused_1d"], matrices)
    assert found.copies == 6
    assert len(found.operations) == (2 if batched else 6)
    assert found.step_ends == ([0, 1] if batched else [2, 5])
    slices = exchange.Exchange(cuda, matrices.programs["uniform_fused_2d"], matrices)
    assert len(slices.operations) == 6  # a batch has no pitch


def test_moves_of_a_step_are_one_kernel_where_blocks_are_evenly_apart(machine):
    cuda = machine()
    even = Schedule(cuda, Gate([cuda]), Matrices(cuda, PROBLEMS["all-to-all"]), "uniform_fused_1d").lane.kernels
    assert [kernel.b is None for kernel in even] == [True, False, True] * 4
    assert all(kernel.out.dtype == torch.complex128 for kernel in even if kernel.b is None and kernel.out.dim() == 3)
    uneven = Schedule(cuda, Gate([cuda]), Matrices(cuda, PROBLEMS["uneven"]), "uniform_fused_1d").lane.kernels
    assert sum(kernel.b is None for kernel in uneven) > sum(kernel.b is not None for kernel in uneven) * 2


def test_the_controls_fire_and_say_so(machine):
    cuda = machine()
    there = Schedule(cuda, Gate([cuda]), Matrices(cuda, PROBLEMS["all-gather"]), "serial")
    assert there.controls() == "copy 1 dropped, 1200 bytes wrong: noticed; no GEMM waited: noticed"


def test_a_control_that_does_not_fire_ends_the_run(machine, monkeypatch):
    cuda = machine()
    there = Schedule(cuda, Gate([cuda]), Matrices(cuda, PROBLEMS["all-gather"]), "serial")
    monkeypatch.setattr(Matrices, "right", lambda self, program, turn: True)
    with pytest.raises(C3Error, match="a check did not notice"):
        there.controls()
