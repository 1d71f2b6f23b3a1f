"""A knob that is swept must move what it is said to move; what the driver granted is recorded, and counted."""

import pytest
from device_cases import MIB, buffers_of, gemm_s, transfer_s, transport

from c3lib.cuda.gemm import Operands
from c3lib.cuda.partition import partition, streams
from c3lib.cuda.sm_kernel import SmKernel
from c3lib.cuda.streams import new_stream, stream_priorities
from c3lib.errors import C3Error
from c3lib.workload import Gemm

pytestmark = pytest.mark.device


def sms_of(cuda, buffers, stream, blocks):
    """The SMs that this many blocks of a kernel on this stream report to have run on."""
    kernel = SmKernel(buffers, blocks)
    kernel.ready()
    cuda.torch.cuda.synchronize()
    kernel.enqueue([stream])
    stream.sync()
    sms = set(next(kernel._launches)._told.cpu().tolist()[::3])
    assert 0 not in sms  # every block ran
    assert kernel.told() == (blocks, len(sms))
    return sms


@pytest.fixture(scope="module")
def square(cuda):
    """A GEMM long enough to be limited by its SMs."""
    return Operands(cuda, Gemm(8192, 8192, 4096))


def test_f8_the_sm_target_moves_the_gemm(cuda, gate, square):
    """The flat-line check: a target that cuBLAS ignored would read the same four times."""
    stream = new_stream(cuda)
    times = [gemm_s(cuda, gate, square, sms, stream) for sms in (cuda.sms, 96, 64, 32)]
    assert times == sorted(times)
    assert times[-1] > 2 * times[0]
    assert gemm_s(cuda, gate, square, 0, stream) == pytest.approx(times[0], rel=0.05)  # 0 is all of them, again


def test_f8_blocks_move_the_sm_kernel(cuda, gate):
    buffers = buffers_of(cuda, 64 * MIB, direction="in")
    one, eight = (transfer_s(cuda, gate, transport(f"sm_kernel {blocks}", cuda, buffers)) for blocks in (1, 8))
    assert one > 1.2 * eight


def test_f8_a_green_context_moves_the_gemm(cuda, gate, square):
    split = partition(cuda, 96)
    fenced, _ = streams(cuda, 96, False)
    whole_s = gemm_s(cuda, gate, square)
    assert gemm_s(cuda, gate, square, stream=fenced) > 0.5 * whole_s * cuda.sms / split.gemm_sms


@pytest.mark.parametrize("asked", [8, 13, 32, 100])
def test_f12_f13_granted_sms_are_recorded_and_are_those_that_blocks_run_on(cuda, asked):
    """What the driver cannot give it refuses by name or rounds up; what it granted is counted block by block."""
    try:
        split = partition(cuda, asked)
    except C3Error as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert asked % 8, f"whole groups of 8 SMs must be possible: {refusal}"
        assert f"{asked} of {cuda.sms} SMs" in refusal or f"asked for {asked} SMs" in refusal
        return
    assert split.asked == asked <= split.granted
    assert split.granted + split.gemm_sms == cuda.sms
    buffers = buffers_of(cuda, 32 * MIB)
    for_gemm, for_transfer = streams(cuda, asked, False)
    theirs = sms_of(cuda, buffers, for_transfer, 2 * split.granted)
    others = sms_of(cuda, buffers, for_gemm, 2 * split.gemm_sms)
    assert (len(theirs), len(others)) == (split.granted, split.gemm_sms)
    assert not theirs & others


def test_f13_nothing_asked_is_the_whole_gpu(cuda):
    split = partition(cuda, 0)
    assert (split.asked, split.granted, split.gemm_sms) == (0, 0, cuda.sms)
    stream, _ = streams(cuda, 0, False)
    assert len(sms_of(cuda, buffers_of(cuda, 32 * MIB), stream, 2 * cuda.sms)) == cuda.sms


def test_f13_more_sms_than_there_are_is_one_sentence(cuda):
    with pytest.raises(C3Error, match=rf"{cuda.sms + 8} (of {cuda.sms} )?SMs") as caught:
        partition(cuda, cuda.sms + 8)
    assert "\n" not in str(caught.value)


def test_f10_the_priority_asked_for_is_the_streams(cuda):
    least, most = stream_priorities(cuda)
    assert most < least
    assert [stream.priority for stream in streams(cuda, 0, True)] == [least, most]
    assert [stream.priority for stream in streams(cuda, 0, False)] == [least, least]
