"""Who moved the bytes: the proof says what ran, whatever a name says; what is refused is not done in another way."""

from types import SimpleNamespace

import pytest
from device_cases import MIB, buffers_of, each_arm, only, pause, run, transport

from c3lib.cuda import path, region
from c3lib.cuda.device import checked
from c3lib.cuda.gemm import set_sm_target
from c3lib.cuda.path import ends_while_sms_are_held, prove_path
from c3lib.cuda.sm_kernel import SmKernel
from c3lib.cuda.streams import new_stream
from c3lib.cuda.transport import CopyEngine, memory_side
from c3lib.errors import C3Error
from c3lib.transfer import HOST_IN

pytestmark = pytest.mark.device


def within_the_gpu(cuda, nbytes=64 * MIB):
    """An enqueue of a copy from GPU memory to GPU memory, and the addresses."""
    rooms = [cuda.torch.empty(nbytes, dtype=cuda.torch.uint8, device="cuda") for _ in range(2)]
    source, target = (room.data_ptr() for room in rooms)

    def enqueue(streams, rooms=rooms):
        checked(cuda, cuda.driver.cuMemcpyAsync(target, source, nbytes, int(streams[0].handle)), "a copy")

    return enqueue, source, target


@each_arm
@pytest.mark.parametrize("nbytes", [4 * 1024, 4 * 65537, 64 * MIB])
def test_f6_the_path_that_ran_is_recorded_with_its_proof(cuda, arm, nbytes):
    buffers = buffers_of(cuda, nbytes)
    mover = transport(arm, cuda, buffers)
    buffers.prepare(0)
    run(cuda, mover)
    said = prove_path([cuda], mover, buffers.link_nbytes / 20e9).path
    if arm == "sm_kernel 8":
        assert said.startswith("SM kernel: 8 blocks reported from ")
        assert said.endswith(f"did not end while all {cuda.sms} SMs were held")
    else:
        assert said == f"copy engine: ended while all {cuda.sms} SMs were held"
    assert buffers.check(0).verified  # the proof's own transfer ran to its end


def test_f6_m8_a_copy_within_the_gpu_runs_on_sms(cuda):
    enqueue, *_ = within_the_gpu(cuda)
    stream = new_stream(cuda)
    enqueue([stream])
    stream.sync()
    assert not ends_while_sms_are_held([cuda], enqueue, 0.05)


@pytest.mark.parametrize("batched", [False, True])
def test_m8_a_copy_within_the_gpu_is_refused_as_copy_engine(cuda, batched):
    _, source, target = within_the_gpu(cuda, MIB)
    assert memory_side(cuda, source) == memory_side(cuda, target) == "GPU 0"
    with pytest.raises(C3Error, match=r"a copy of 1048576 bytes within one GPU is no DMA transfer"):
        CopyEngine(only(cuda, (source, target, MIB, HOST_IN)), batched=batched)
    peer = cuda.torch.empty(8, dtype=cuda.torch.uint8, pin_memory=True)
    assert memory_side(cuda, peer.data_ptr()) == "host"


def test_f7_a_name_that_is_not_what_runs_is_refused_both_ways(cuda):
    buffers = buffers_of(cuda, 4 * MIB)
    buffers.prepare(0)
    engine, kernel = CopyEngine(buffers), SmKernel(buffers, 8)
    for mover in (engine, kernel):
        run(cuda, mover)
    liar = SimpleNamespace(name="copy_engine", ready=kernel.ready, enqueue=kernel.enqueue)
    with pytest.raises(C3Error, match=r"^copy_engine: .* so it ran on SMs"):
        prove_path([cuda], liar, 1e-3)
    liar = SimpleNamespace(name="sm_kernel", ready=engine.ready, enqueue=engine.enqueue, told=lambda: (8, 8), blocks=8)
    with pytest.raises(C3Error, match=r"^sm_kernel: .* held SMs did not stop it"):
        prove_path([cuda], liar, 1e-3)


def test_f10_a_batch_whose_attributes_the_driver_refuses_raises(cuda):
    buffers = buffers_of(cuda, 4 * MIB)
    engine = CopyEngine(buffers, batched=True)
    buffers.prepare(0)
    engine._steps[0][
        0
    ]._attributes.srcAccessOrder = cuda.driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_INVALID
    with pytest.raises(C3Error, match=r"a batch of copies \(cuMemcpyBatchAsync\) failed: CUDA_ERROR_"):
        engine.enqueue([new_stream(cuda)])
    cuda.torch.cuda.synchronize()
    assert buffers.check(0).wrong_nbytes == buffers.link_nbytes  # and nothing was copied another way


@pytest.mark.parametrize("name", ["LEGACY_DEFAULT_STREAM", "PER_THREAD_DEFAULT_STREAM"])
def test_f10_a_batch_on_a_default_stream_is_refused(cuda, name):
    buffers = buffers_of(cuda, 4 * MIB)
    engine = CopyEngine(buffers, batched=True)
    with pytest.raises(C3Error, match=r"cannot go on the default stream"):
        engine.enqueue([getattr(cuda.core, name)])


def test_f10_cublas_refuses_a_number_of_sms_that_cannot_be(cuda):
    with pytest.raises(C3Error, match=r"cuBLAS does not take -1 SMs as its target \(status \d+\)"):
        set_sm_target(cuda, -1)
    set_sm_target(cuda, 0)


def test_f17_the_hold_gives_up_by_itself_and_then_proves_nothing(cuda, monkeypatch):
    monkeypatch.setattr(path, "HELD_NS", 200_000_000)
    with pytest.raises(C3Error, match=r"the SMs were given back before the transfer was looked at; nothing is proved"):
        ends_while_sms_are_held([cuda], pause(cuda, 0.001), 0.6)


def test_m16_the_shut_gate_takes_no_sm(cuda, gate):
    """The waiting method is a factor, so it is named. A kernel that waits could not even start while SMs are held."""
    assert region.GATE == "stream memory operation on a host flag"
    mover = CopyEngine(buffers_of(cuda, 4 * MIB))
    run(cuda, mover)

    def enqueue(streams):
        with gate.guarded():
            gate.shut(streams)
            mover.enqueue(streams)

    assert ends_while_sms_are_held([cuda], enqueue, 0.1)
