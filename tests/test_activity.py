"""What the GPUs ran, read from a Chrome trace written by hand in the form that torch writes."""

import json
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from c3lib.cuda import activity
from c3lib.cuda.activity import Activity, blocks, parse_trace, recorded, summary
from c3lib.errors import C3Error

RING = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x256>(cutlass::Params)"
FILL = "void at::native::(anonymous namespace)::fill<4, float>(int, float*)"


def kernel(name, ts, grid, device=0, stream=7, dur=4.0):
    args = {"device": device, "stream": stream, "grid": grid, "block": [640, 1, 1], "correlation": 3}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": stream, "ts": ts, "dur": dur, "args": args}


def memcpy(name, ts, nbytes, **where):
    args = {"stream": 13, "correlation": 4, "bytes": nbytes, "memory bandwidth (GB/s)": 300.0} | where
    return {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 1, "tid": 13, "ts": ts, "dur": 2.5, "args": args}


PEER = memcpy("Memcpy PtoP (Device -> Device)", 1_000_010.5, 4096, fromDevice=1, inDevice=2, toDevice=0)
OWN = memcpy("Memcpy DtoD (Device -> Device)", 1_000_000.5, 64, device=0)
MEMSET = {
    "ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 7, "ts": 1_000_001.5, "dur": 1,
    "args": {"device": 0, "stream": 7, "bytes": 16},
}  # fmt: skip
OTHERS = [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 1, "dur": 2, "args": {}},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": 1_000_000.5, "id": 3},
    {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {}},
]


def traced(*events):
    return {"schemaVersion": 1, "traceEvents": [*OTHERS, *events]}


def test_a_trace_by_hand():
    found = parse_trace(traced(PEER, kernel(RING, 1_000_004.5, [24, 1, 1], device=1), OWN, MEMSET))
    assert [each.kind for each in found] == ["memcpy", "memset", "kernel", "memcpy"]
    own, memset, ring, peer = found
    assert ring == Activity("kernel", RING, 1, 7, pytest.approx(4e-6), pytest.approx(4e-6), (24, 1, 1), 0)
    assert (own.start_s, own.nbytes, own.device, own.grid) == (0.0, 64, 0, None)
    assert (memset.nbytes, memset.stream, memset.duration_s) == (16, 7, pytest.approx(1e-6))
    # The GPU that ran a copy between GPUs is not named 'device'.
    assert (peer.device, peer.stream, peer.nbytes, peer.start_s) == (2, 13, 4096, pytest.approx(1e-5))


def test_a_gpu_that_is_not_named_is_that_of_the_row():
    (found,) = parse_trace(traced(memcpy("Memcpy PtoP (Device -> Device)", 1.0, 8)))
    assert found.device == 1


def test_a_trace_without_gpu_activity_is_empty():
    assert parse_trace(traced()) == []


@pytest.mark.parametrize("trace", [{}, {"traceEvents": None}, []])
def test_what_is_no_trace_is_refused(trace):
    with pytest.raises(C3Error, match="traceEvents"):
        parse_trace(trace)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (RING, "ncclDevKernel_AllGather_RING_LL"),
        (GEMM, "cutlass::Kernel2"),
        (FILL, "at::native::fill"),
        ("Memcpy PtoP (Device -> Device)", "Memcpy PtoP"),
        ("copy", "copy"),
    ],
)
def test_short_names(name, short):
    (found,) = parse_trace(traced(kernel(name, 1.0, [1, 1, 1])))
    assert found.short_name == short


def test_a_summary_counts_by_name_and_grid():
    found = parse_trace(
        traced(
            PEER, OWN, PEER, MEMSET,
            *(kernel(RING, 5.0 + device, [24, 1, 1], device) for device in (0, 1)),
            kernel(RING, 9.0, [2, 1, 1]), kernel(GEMM, 10.0, [8, 4, 2]), kernel("pause", 11.0, [1, 1, 1]),
        )
    )  # fmt: skip
    assert summary(found) == (
        "Memcpy DtoD x1, Memcpy PtoP x2, Memset x1, cutlass::Kernel2 x1 of 64 blocks, "
        "ncclDevKernel_AllGather_RING_LL x1 of 2 blocks, ncclDevKernel_AllGather_RING_LL x2 of 24 blocks, "
        "pause x1 of 1 block"
    )
    assert summary([]) == "nothing"


def test_blocks_are_those_of_the_largest_nccl_kernel():
    found = parse_trace(
        traced(
            kernel(RING, 1.0, [24, 1, 1]),
            kernel("ncclSymkDevKernel_AllGather_ST(ncclSymkDevWorkArgs)", 2.0, [32, 1, 1]),
            kernel(GEMM, 3.0, [999, 1, 1]),
        )
    )
    assert blocks(found) == 32
    assert blocks(parse_trace(traced(kernel(GEMM, 3.0, [999, 1, 1]), PEER))) == 0


@pytest.fixture
def fake_torch(monkeypatch):
    """A torch whose profiler writes the trace that a test puts into ``trace``; notes what is asked of it."""
    said, torch = [], ModuleType("torch")
    holder = SimpleNamespace(trace=traced(), said=said, gpu=True)

    class Profiler:
        def export_chrome_trace(self, path):
            said.append("exports")
            with open(path, "w") as file:
                json.dump(holder.trace, file)

    @contextmanager
    def profile(activities):
        said.append(f"starts {activities}")
        yield Profiler()
        said.append("stops")

    profiler = ModuleType("torch.profiler")
    profiler.profile, profiler.ProfilerActivity = profile, SimpleNamespace(CUDA="cuda")
    torch.profiler, torch.uint8 = profiler, "uint8"
    torch.cuda = SimpleNamespace(is_available=lambda: holder.gpu, synchronize=lambda: said.append("waits"))
    torch.zeros = lambda size, dtype, device: SimpleNamespace(cpu=lambda: said.append("marks"))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.profiler", profiler)
    return holder


MARK = memcpy("Memcpy DtoH (Device -> Pageable)", 2_000_000.0, activity._MARK_NBYTES, device=0)


def test_a_record_holds_what_ran_without_the_mark(fake_torch):
    fake_torch.trace = traced(PEER, MARK)
    found = recorded(lambda: fake_torch.said.append("runs"))
    assert [each.short_name for each in found] == ["Memcpy PtoP"]
    assert fake_torch.said == ["waits", "starts ['cuda']", "runs", "marks", "waits", "stops", "exports"]


def test_only_one_copy_is_taken_for_the_mark(fake_torch):
    own = MARK | {"ts": 1_000_000.0}
    fake_torch.trace = traced(own, MARK)
    assert [each.start_s for each in recorded(lambda: None)] == [0.0]


def test_a_profiler_that_sees_nothing_is_no_proof_of_nothing(fake_torch):
    fake_torch.trace = traced(PEER)
    with pytest.raises(C3Error, match="recorded no activity"):
        recorded(lambda: None)


def test_no_gpu_is_said(fake_torch):
    fake_torch.gpu = False
    with pytest.raises(C3Error, match="needs an NVIDIA GPU"):
        recorded(lambda: None)
