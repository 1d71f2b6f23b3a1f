"""``c3 trace analyze`` on what torch.profiler records of real overlap, against CUDA events around the same work."""

import statistics

import pytest
from device_cases import MIB

from c3lib.trace import names
from c3lib.trace.analysis import analyze
from c3lib.trace.page import text

pytestmark = pytest.mark.device

SIDE = 8192
BESIDE = 4  # GEMMs while a transfer runs
HELD_CYCLES = 4_000_000  # about 2 ms, in which all is queued that then runs without waiting for the CPU
NEAR = 0.05
SLACK_S = 60e-6
"""What an event takes more than the work between two of them: launches, and the gaps between kernels."""


def near(value_s):
    return pytest.approx(value_s, rel=NEAR, abs=SLACK_S)


class Work:
    """A GEMM on the current stream of GPU 0, and marks by events on it and on a stream beside it."""

    def __init__(self, torch):
        self.torch = torch
        self.factors = [torch.randn(SIDE, SIDE, device="cuda:0", dtype=torch.bfloat16) for _ in range(2)]
        self.out = torch.empty(SIDE, SIDE, device="cuda:0", dtype=torch.bfloat16)
        self.side = torch.cuda.Stream("cuda:0")

    def gemm(self):
        self.torch.mm(*self.factors, out=self.out)

    def mark(self, stream=None):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(stream or self.torch.cuda.current_stream("cuda:0"))
        return event

    def hold(self, stream=None):
        """Keep a stream waiting while work is queued behind it."""
        with self.torch.cuda.stream(stream or self.torch.cuda.current_stream("cuda:0")):
            self.torch.cuda._sleep(HELD_CYCLES)

    def wait(self):
        for device in range(self.torch.cuda.device_count()):
            self.torch.cuda.synchronize(device)


def recorded(work, move, path):
    """Profile each alone, then ``BESIDE`` GEMMs while ``move`` runs: the GPU's row, and seconds by events."""
    torch = work.torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):  # kernels are loaded, pages pinned, communicators made
        work.gemm()
        move()
        work.wait()
    told = {"gemm": [], "move": []}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        for _ in range(3):
            work.hold()
            marks = [work.mark(), work.gemm(), work.mark()]
            work.wait()
            told["gemm"].append(marks[0].elapsed_time(marks[2]) / 1e3)
            work.hold(work.side)
            marks = [work.mark(work.side), move(), work.mark(work.side)]
            work.wait()
            told["move"].append(marks[0].elapsed_time(marks[2]) / 1e3)
        work.hold()
        zero = work.mark()
        work.side.wait_event(zero)
        moving = [work.mark(work.side), move(), work.mark(work.side)]
        busy = [work.mark(), [work.gemm() for _ in range(BESIDE)], work.mark()]
        work.wait()
    profiler.export_chrome_trace(str(path))
    found = next(device for device in analyze([path]) if device.device == 0)
    print(text([found], [], 10))
    ends = {
        name: [zero.elapsed_time(part[i]) / 1e3 for i in (0, 2)] for name, part in (("move", moving), ("gemm", busy))
    }
    told["overlap"] = min(ends["move"][1], ends["gemm"][1]) - max(ends["move"][0], ends["gemm"][0])
    told["moving"], told["busy"] = (ends[name][1] - ends[name][0] for name in ("move", "gemm"))
    assert torch.isfinite(work.out).all()
    return found, told


def agrees(found, hidden, told):
    """Times, overlap, exposed time and slowdown are those that the events told."""
    whole = sum(told["move"]) + told["moving"]
    assert told["overlap"] > 1e-3, "the work did not overlap: nothing was tested"
    assert found.gemm_s == near(sum(told["gemm"]) + told["busy"])
    assert hidden.time_s == near(whole)
    assert hidden.beside_gemms_s == near(told["overlap"])
    assert hidden.exposed_s == near(whole - told["overlap"])
    (overlap,) = [row for row in found.overlaps if row.gemm.shape == (SIDE, SIDE, SIDE, 1, "bf16")]
    assert overlap.runs == BESIDE
    assert overlap.gemm_alone_runs == 3
    assert overlap.gemm_alone_s == near(statistics.median(told["gemm"]))
    assert overlap.gemm_s == near(told["busy"] / BESIDE)
    assert overlap.gemm_slowdown == pytest.approx(told["busy"] / BESIDE / statistics.median(told["gemm"]), rel=NEAR)
    assert overlap.transfer_alone_runs == 3
    assert overlap.transfer_alone_s == near(statistics.median(told["move"]))
    return overlap


def test_a_gemm_beside_a_copy_from_the_host(cuda, tmp_path):
    torch = cuda.torch
    work = Work(torch)
    source = torch.empty(1024 * MIB, dtype=torch.uint8, pin_memory=True).fill_(7)  # longer than the GEMMs beside it
    target = torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda:0")

    def move():
        with torch.cuda.stream(work.side):
            target.copy_(source, non_blocking=True)

    found, told = recorded(work, move, tmp_path / "trace.json.gz")
    overlap = agrees(found, found.host_copies, told)
    assert (overlap.transfer.role, overlap.transfer.nbytes) == (names.HOST_COPY, 1024 * MIB)
    assert found.communication.time_s == 0
    assert found.title == torch.cuda.get_device_name(0)
    assert bool((target == 7).all())


def test_a_gemm_beside_a_copy_to_another_gpu(cuda, cudas, tmp_path):
    torch = cuda.torch
    work = Work(torch)
    nbytes = 4096 * MIB
    source = torch.full((nbytes,), 5, dtype=torch.uint8, device="cuda:0")
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda:1")

    def move():
        with torch.cuda.stream(work.side):
            target.copy_(source, non_blocking=True)

    found, told = recorded(work, move, tmp_path / "trace.json")
    overlap = agrees(found, found.communication, told)
    assert (overlap.transfer.role, overlap.transfer.nbytes) == (names.PEER_COPY, nbytes)
    assert bool((target == 5).all())


def test_a_gemm_beside_an_all_gather_of_nccl(cuda, cudas, tmp_path):
    from torch.cuda import nccl

    torch = cuda.torch
    work = Work(torch)
    shards = [torch.full((1024 * MIB,), 1 + rank, dtype=torch.uint8, device=f"cuda:{rank}") for rank in range(2)]
    whole = [torch.empty(2048 * MIB, dtype=torch.uint8, device=f"cuda:{rank}") for rank in range(2)]
    streams = [work.side, torch.cuda.Stream("cuda:1")]

    def move():
        nccl.all_gather(shards, whole, streams=streams)

    found, told = recorded(work, move, tmp_path / "trace.json")
    hidden = found.communication
    enclosed_s = sum(told["move"]) + told["moving"]  # by events, which see the kernel's waiting for SMs as well
    assert 0.8 * enclosed_s < hidden.time_s < 1.02 * enclosed_s
    assert hidden.beside_gemms_s > 0.5 * told["overlap"]  # the kernel may wait for SMs, which an event does not see
    assert hidden.exposed_s == near(hidden.time_s - hidden.beside_gemms_s)
    assert {row.transfer.collective for row in found.overlaps} == {"all-gather"}
    assert {row.transfer.role for row in found.overlaps} == {names.COLLECTIVE}
    assert all(bool((part[:: 1024 * MIB] == torch.tensor([1, 2], device=part.device)).all()) for part in whole)
