"""Several GPUs: the same plans between them, byte for byte, every rank waiting for every other; needs 2 unless it says.

Plans of several steps run on one GPU too, by the SM kernel, with ranks that share it.
"""

import statistics

import numpy as np
import pytest
from device_cases import MIB, pause, transport
from hypothesis import given, settings
from hypothesis import strategies as st

from c3lib.backends.cuda import CudaBackend
from c3lib.cuda.buffers import Buffers
from c3lib.cuda.nccl import SHORT_NBYTES, VARIANTS
from c3lib.cuda.path import prove_path
from c3lib.cuda.region import Gate, timed
from c3lib.cuda.rig import Rig
from c3lib.cuda.setting import Setting
from c3lib.cuda.sm_kernel import CHUNK_NBYTES, SmKernel
from c3lib.cuda.source import launch
from c3lib.cuda.streams import Barrier, new_stream
from c3lib.cuda.transport import CopyEngine, memory_side
from c3lib.errors import C3Error
from c3lib.hardware import load_node
from c3lib.measure.links import link_groups
from c3lib.transfer import KINDS, execute_on_host
from c3lib.transfer.builders import BUILDERS, build_plan
from c3lib.workload import Gemm

pytestmark = pytest.mark.device

MOVERS = ("copy_engine", "copy_engine batched", "sm_kernel 8")
plans = {
    "builder": st.sampled_from(sorted(BUILDERS)),
    "mode": st.sampled_from(["push", "pull"]),
    "nbytes": st.integers(1, 3 * CHUNK_NBYTES),
    "iteration": st.integers(0, 9),
}


def moved_rightly(arm, cudas, plan, iteration):
    """Run a plan on these GPUs, a rank on each, and compare every byte with the host's run of it."""
    buffers = Buffers(cudas, plan)
    buffers.prepare(iteration)
    mover, streams = transport(arm, cudas[0], buffers), [new_stream(cuda) for cuda in cudas]
    mover.ready()
    buffers._wait()
    mover.enqueue(streams)
    for stream in streams:
        stream.sync()
    for rank, wanted in enumerate(execute_on_host(plan, iteration)):
        assert np.array_equal(buffers.receive[rank][: len(wanted)].cpu().numpy(), wanted)
    return buffers.check(iteration).verified


@settings(max_examples=40)
@given(**plans, ranks=st.integers(2, 5))
def test_f11_ranks_that_share_one_gpu_run_plans_of_any_number_of_steps(cuda, builder, mode, nbytes, iteration, ranks):
    kind, algorithm = builder
    plan = build_plan(kind, nbytes, ranks, "switch", algorithm, mode)
    if not (~plan.is_local).any():
        return
    assert moved_rightly("sm_kernel 3", [cuda] * ranks, plan, iteration)


@settings(max_examples=60)
@given(**plans, arm=st.sampled_from(MOVERS))
def test_f11_gpus_and_the_host_run_random_plans_alike(cudas, builder, mode, nbytes, iteration, arm):
    kind, algorithm = builder
    plan = build_plan(kind, nbytes, len(cudas), "switch", algorithm, mode)
    if not (~plan.is_local).any():
        return
    assert moved_rightly(arm, cudas, plan, iteration)


@pytest.mark.parametrize("arm", MOVERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nbytes", [1021, 2 * 65537, 1 << 30])
def test_f5_odd_and_large_sizes(cudas, arm, kind, nbytes):
    assert moved_rightly(arm, cudas, build_plan(kind, nbytes, len(cudas), "switch"), 3)


def test_where_memory_lies_is_asked_of_the_runtime(cudas):
    for cuda in cudas:
        room = cuda.torch.empty(8, dtype=cuda.torch.uint8, device=f"cuda:{cuda.index}")
        assert memory_side(cudas[0], room.data_ptr()) == f"GPU {cuda.index}"


def test_m8_ranks_that_share_a_gpu_have_no_copy_engine_between_them(cuda):
    buffers = Buffers([cuda] * 2, build_plan("all-gather", MIB, 2, "switch"))
    with pytest.raises(C3Error, match=r"a copy of 524288 bytes within one GPU is no DMA transfer"):
        CopyEngine(buffers)


@pytest.mark.parametrize("arm", MOVERS)
@pytest.mark.parametrize("kind", KINDS)
def test_f6_the_path_between_gpus_is_proved(cudas, arm, kind):
    buffers = Buffers(cudas, build_plan(kind, 64 * MIB, len(cudas), "switch"))
    buffers.prepare(0)
    proof = prove_path(cudas, transport(arm, cudas[0], buffers), 1e-3)
    held = f"all {cudas[0].sms} SMs of each of {len(cudas)} GPUs were held"
    assert proof.path.endswith(("ended while " if "engine" in arm else "did not end while ") + held)
    assert buffers.check(0).verified


def test_f1_a_dropped_copy_is_noticed_whichever_it_is(cudas):
    buffers = Buffers(cudas, build_plan("all-gather", MIB, len(cudas), "switch"))
    streams = [new_stream(cuda) for cuda in cudas]
    for drop in range(len(buffers.chosen)):
        for mover in (CopyEngine(buffers, drop=drop), SmKernel(buffers, 4, drop=drop)):
            buffers.prepare(drop)
            mover.ready()
            buffers._wait()
            mover.enqueue(streams)
            for stream in streams:
                stream.sync()
            check = buffers.check(drop)
            assert check.wrong_nbytes == MIB // len(cudas)


def test_f1_the_controls_of_all_that_the_experiments_measure_fire(cudas):
    node = load_node("h200_2")
    if len(cudas) != node.ranks or cudas[0].sms != node.gpu.cus:
        pytest.skip("needs the two GPUs of h200_2")
    backend = CudaBackend(node)
    try:
        link_groups(backend)
        told = backend.about()["negative_control"]
    finally:
        backend.rig.close()
    assert {name.split()[0] for name in told} == {"copy_engine", "sm_kernel", *VARIANTS}
    for name, text in told.items():
        left_out = f"every count {SHORT_NBYTES} bytes short" if name.startswith("nccl") else "copy 1 dropped"
        assert all(said.startswith(left_out) and said.endswith(": noticed") for said in text.split(" / ")), name


def test_m1_a_late_rank_holds_up_every_other(cudas):
    """The ranks wait for one another before the copies: what is put on one stream before is in everyone's time."""
    gate = Gate(cudas)
    buffers = Buffers(cudas, build_plan("all-gather", MIB, len(cudas), "switch"))
    streams, mover = [new_stream(cuda) for cuda in cudas], CopyEngine(buffers)
    for cuda, stream in zip(cudas, streams, strict=True):
        launch(cuda, stream, "pause", 1, 1, np.uint64(1))
    mover.enqueue(streams)
    buffers._wait()
    late = pause(cudas[-1], 0.01)

    def enqueue(on):
        late([on[-1]])
        mover.enqueue(on)

    times = timed(gate, None, (streams, enqueue))
    assert 0.01 < times.transfer_end_s - times.transfer_start_s < 0.02

    def first(on):
        late([on[-1]])
        Barrier(cudas).enqueue(on)

    ends = timed(gate, (streams[:1] + [new_stream(cuda) for cuda in cudas[1:]], first), None)
    assert ends.gemm_end_s > 0.01


def test_the_link_is_used_as_by_bare_copies(cudas):
    """Waiting for one another costs less than a hundredth of a transfer of a GiB."""
    rig = Rig(len(cudas))
    rig.load(Gemm(512, 512, 512), build_plan("all-gather", 1 << 31, len(cudas), "switch"))
    seconds = {}
    for setting in (Setting(), Setting(batched=False, bare=True)):
        regions = [rig.run(setting, gemm=False) for _ in range(5)]
        assert all(region.verified for region in regions)
        seconds[setting] = statistics.median(r.times.transfer_end_s - r.times.transfer_start_s for r in regions)
    ours, bare = seconds.values()
    assert bare / ours > 0.99
    both = rig.run(Setting(), gemm=True)
    assert both.verified
