"""What of the CUDA layer can be tried without a GPU: lists, checks, intervals, and one clear sentence for each failure.

Where a driver is needed, a stand-in notes what it is asked; only what our own code decides is asserted.
"""

import importlib.util
import math
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from enum import IntEnum
from itertools import product
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib.cuda import device, partition, path, region, source
from c3lib.cuda.buffers import Buffers, Check, Issue
from c3lib.cuda.device import checked, missing_packages, open_device, said_clearly
from c3lib.cuda.region import Gate, Times, timed
from c3lib.cuda.sm_kernel import CHUNK_NBYTES, SmKernel, chunk_list
from c3lib.cuda.transport import CopyEngine, issue_lists
from c3lib.errors import C3Error
from c3lib.files import ROOT
from c3lib.hardware import load_node
from c3lib.suites import load_suite
from c3lib.transfer.builders import build_plan
from c3lib.transfer.exactness import _MIX, _TOP_BITS

CODES = IntEnum("CODES", {"CUDA_SUCCESS": 0, "CUDA_ERROR_INVALID_VALUE": 1, "CUDA_ERROR_ILLEGAL_ADDRESS": 700})
GPU, HOST = 1 << 40, 1 << 20  # addresses from GPU on count as GPU memory

copies = st.lists(
    st.builds(Issue, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 5 * CHUNK_NBYTES), st.integers(0, 1)),
    max_size=12,
)


class Driver:
    """Notes the calls that would move bytes, and answers where an address lies."""

    CUresult = CODES
    CUdeviceptr = int
    CUmemcpyAttributes = SimpleNamespace
    CUmemcpySrcAccessOrder = SimpleNamespace(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM=1)
    CUmemcpyFlags = SimpleNamespace(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE=1)
    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_EQ=1)

    def __init__(self, answer=CODES.CUDA_SUCCESS):
        self.said, self.answer = [], answer

    def cuCtxGetStreamPriorityRange(self):
        return CODES.CUDA_SUCCESS, 0, -5

    def cuStreamWaitValue32(self, stream, address, value, flags):
        self.said.append(f"stream {stream} waits for {value}")
        return (CODES.CUDA_SUCCESS,)

    def cuMemcpyAsync(self, target, from_, nbytes, stream):
        self.said.append(("copy", target, from_, nbytes, stream))
        return (self.answer,)

    def cuMemcpyBatchAsync(self, targets, sources, sizes, count, attributes, first, kinds, stream):
        flags = [(a.srcAccessOrder, a.flags) for a in attributes]
        self.said.append(("batch", targets, sources, sizes, count, flags, first, kinds, stream))
        return (self.answer,)


class Runtime:
    """Answers where an address lies."""

    cudaMemoryType = SimpleNamespace(cudaMemoryTypeDevice=2)

    def cudaPointerGetAttributes(self, address):
        return CODES.CUDA_SUCCESS, SimpleNamespace(type=2 if address >= GPU else 1, device=address // GPU - 1)


class Stream:
    """A stream that notes what is put on it."""

    def __init__(self, handle, said):
        self.handle, self.said = handle, said

    def record(self, event):
        self.said.append(f"stream {self.handle} records")

    def sync(self):
        pass

    def wait(self, event):
        self.said.append(f"stream {self.handle} waits")


class Event:
    """An event that is done at once, a millisecond after the one recorded before it."""

    is_done = True
    made = 0

    def __init__(self):
        Event.made += 1
        self.at = Event.made

    def __sub__(self, other):
        return float(self.at - other.at)


def stand_in(answer=CODES.CUDA_SUCCESS, **more) -> SimpleNamespace:
    """A GPU of which nothing but the driver's answers exists."""
    driver = Driver(answer)
    opened = SimpleNamespace(
        create_stream=lambda options: Stream(77, driver.said), create_event=lambda options: Event()
    )
    core = SimpleNamespace(StreamOptions=dict, EventOptions=dict)
    zeros = lambda *shape, **how: Flags(*shape)  # noqa: E731
    torch = SimpleNamespace(zeros=zeros, int32=0, cuda=SimpleNamespace(synchronize=lambda index: None))
    gpu = {"driver": driver, "runtime": Runtime(), "device": opened, "core": core, "torch": torch, "index": 0}
    return SimpleNamespace(**gpu, sms=132, current=nullcontext, **more)


class Flags(list):
    """A tensor in host memory."""

    def __init__(self, length):
        super().__init__([0] * length)

    def data_ptr(self):
        return HOST


def held(copies, *cudas) -> SimpleNamespace:
    """Buffers that are nothing but their list of copies and their GPUs."""
    return SimpleNamespace(cudas=cudas, copies=lambda drop=None: [Issue(*copy) for copy in copies])


BOTH_WAYS = [(GPU, HOST, 64, 1), (HOST + 64, GPU + 64, 32, 0), (GPU + 128, HOST + 128, 16, 1)]


# --- lists of copies --------------------------------------------------------------------------------------------------


def test_issue_lists_by_hand():
    copies = [Issue(*copy) for copy in BOTH_WAYS]
    assert issue_lists(copies) == {1: [copies[0], copies[2]], 0: [copies[1]]}
    assert issue_lists([]) == {}


def test_chunks_by_hand():
    one = CHUNK_NBYTES
    chunks = chunk_list([Issue(0, 10, 2 * one + 1, 0), Issue(5, 50, 7, 1)])
    assert chunks.tolist() == [[0, 10, one], [5, 50, 7], [one, 10 + one, one], [2 * one, 10 + 2 * one, 1]]
    assert chunks.dtype == np.uint64
    assert chunk_list([]).shape == (0, 3)


@given(copies)
def test_f11_chunks_are_the_copies_cut_up_and_nothing_else(copies):
    """Joined again, the chunks of each engine are its copies in order, so no byte is moved twice or left out."""
    chunks = [tuple(row) for row in chunk_list(copies).tolist()]
    assert all(0 < nbytes <= CHUNK_NBYTES for _, _, nbytes in chunks)
    lanes = {
        engine: [chunk for part in wanted for chunk in cut(*part[:3])] for engine, wanted in issue_lists(copies).items()
    }
    assert sorted(chunks) == sorted(chunk for lane in lanes.values() for chunk in lane)
    for place in range(min(map(len, lanes.values()), default=0)):
        turn = chunks[place * len(lanes) : (place + 1) * len(lanes)]
        assert turn == [lane[place] for lane in lanes.values()]


def cut(source, target, nbytes):
    """A copy in pieces, written out once more."""
    while nbytes > 0:
        yield source, target, min(nbytes, CHUNK_NBYTES)
        source, target, nbytes = source + CHUNK_NBYTES, target + CHUNK_NBYTES, nbytes - CHUNK_NBYTES


@pytest.mark.parametrize(("name", "suite"), [("h200_1", "conccl30_host"), ("h200_2", "conccl30_nvlink")])
def test_f20_no_payload_of_the_measured_suites_is_misaligned(name, suite):
    """The SM kernel moves 16 bytes at a time where it may: what it is compared on must let it."""
    node = load_node(name)
    for scenario in load_suite(suite, node.ranks):
        plan = build_plan(scenario.collective.kind, scenario.collective.nbytes, node.ranks, node.topology)
        for field in ("src_offset", "dst_offset", "nbytes"):
            assert (plan.copies[field] % 16 == 0).all(), f"{scenario.name}: {field}"


def test_f11_the_kernels_have_the_constants_of_the_host_pattern():
    found = [int(text, 16) for text in re.findall(r"0x([0-9A-Fa-f]{16})ull", source.CODE)]
    assert found == [*map(int, _MIX), int(_TOP_BITS)]
    assert source.CODE.count("word >> 31") == 2


# --- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compared", "wrong", "verified"), [(0, 0, False), (8, 0, True), (8, 1, False), (8, 8, False), (0, 1, False)]
)
def test_f1_nothing_compared_is_not_verified(compared, wrong, verified):
    assert Check(compared, wrong, "").verified is verified


@pytest.mark.parametrize(
    ("gemm", "transfer", "overlap", "end"),
    [
        ((0, 4), (1, 3), 2, 4),
        ((0, 2), (1, 5), 1, 5),
        ((0, 2), (2, 5), 0, 5),
        ((0, 2), (3, 5), 0, 5),
        ((3, 5), (0, 2), 0, 5),
        ((0, 3), (math.nan, math.nan), 0, 3),
        ((math.nan, math.nan), (1, 2), 0, 2),
    ],
)
def test_m4_overlap_is_the_intersection_of_the_two_intervals(gemm, transfer, overlap, end):
    times = Times(*gemm, *transfer)
    assert (times.overlap_s, times.end_s) == (overlap, end)
    assert Times(*transfer, *gemm).overlap_s == overlap


# --- one clear sentence -----------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_missing(monkeypatch):
    """As if the packages of CUDA were here."""
    monkeypatch.setattr(device, "missing_packages", list)
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    for name in ("core", "bindings", "bindings.driver", "bindings.runtime"):
        module = ModuleType(f"cuda.{name}")
        monkeypatch.setitem(sys.modules, f"cuda.{name}", module)
        parent, _, child = f"cuda.{name}".rpartition(".")
        setattr(sys.modules[parent], child, module)


def opening(index=0) -> str:
    """What opening a GPU says, not remembered from an earlier time."""
    with pytest.raises(C3Error) as caught:
        open_device.__wrapped__(index)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_missing_packages_are_named_and_how_to_get_them(monkeypatch):
    def find(name):
        if name.startswith("cuda."):
            raise ModuleNotFoundError("No module named 'cuda'")
        return None if name == "pynvml" else object()

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert missing_packages() == ["cuda.core", "cuda.bindings", "pynvml"]
    assert opening() == (
        "backend cuda: needs cuda.core, cuda.bindings, pynvml; install torch, cuda-core, cuda-bindings, nvidia-ml-py"
    )


def test_no_gpu(monkeypatch, nothing_missing):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert opening() == "backend cuda: no NVIDIA GPU here, or no driver for it (nvidia-smi shows neither)"


def test_a_gpu_that_is_not_there_and_one_that_is_busy(monkeypatch, nothing_missing):
    torch = pytest.importorskip("torch")
    for name, value in {"is_available": True, "device_count": 2, "set_device": None, "mem_get_info": (94, 100)}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *index, value=value: value)
    assert opening(2) == "backend cuda: 3 GPUs are needed, this machine has 2"
    assert "GPU 0 is in use" in opening(0)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            RuntimeError("CUDA out of memory. Tried to allocate 1 TB\nmore"),
            "not enough memory while filling: CUDA out of",
        ),
        (
            RuntimeError("CUDA error: an illegal address\nadvice"),
            "the device failed while filling: CUDA error: an illegal",
        ),
        (
            type("CUDAError", (Exception,), {"__module__": "cuda.core"})(""),
            "the device failed while filling: CUDAError",
        ),
    ],
)
def test_what_the_libraries_raise_is_said_clearly(error, sentence):
    with pytest.raises(C3Error, match=f"^cuda: {re.escape(sentence)}") as caught, said_clearly("filling"):
        raise error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [C3Error("ours"), ValueError("a mistake of ours"), KeyboardInterrupt()])
def test_what_is_no_failure_of_the_device_stays_what_it_is(error):
    with pytest.raises(type(error)) as caught, said_clearly("filling"):
        raise error
    assert caught.value is error


def test_f10_a_driver_call_that_fails_is_named_with_the_drivers_word():
    cuda = stand_in()
    assert checked(cuda, (CODES.CUDA_SUCCESS, 5), "asking") == 5
    assert checked(cuda, (CODES.CUDA_SUCCESS, 5, 6), "asking") == [5, 6]
    assert checked(cuda, (CODES.CUDA_SUCCESS,), "asking") is None
    with pytest.raises(C3Error, match=r"^cuda: asking failed: CUDA_ERROR_INVALID_VALUE$"):
        checked(cuda, (CODES.CUDA_ERROR_INVALID_VALUE, None), "asking")


def test_f13_a_driver_without_green_contexts_and_one_that_grants_something_else():
    def split(granted, left):
        groups = [SimpleNamespace(sm_count=granted)], SimpleNamespace(sm_count=left)
        sm = SimpleNamespace(split=lambda options: groups)
        opened = SimpleNamespace(resources=SimpleNamespace(sm=sm), create_context=lambda options: object())
        core = SimpleNamespace(SMResourceOptions=lambda count: count, ContextOptions=lambda resources: resources)
        return SimpleNamespace(device=opened, core=core, sms=132)

    ask = partition.partition.__wrapped__
    got = ask(split(16, 116), 13)
    assert (got.asked, got.granted, got.gemm_sms) == (13, 16, 116)
    with pytest.raises(C3Error, match=r"asked for 13 SMs, the driver granted 16 and leaves 100 of 132"):
        ask(split(16, 100), 13)
    with pytest.raises(C3Error, match=r"asked for 132 SMs, the driver granted 132 and leaves 0 of 132"):
        ask(split(132, 0), 132)
    with pytest.raises(C3Error, match=r"cannot set 13 of 132 SMs apart \(green contexts\): .*resources"):
        ask(SimpleNamespace(device=object(), core=split(8, 124).core, sms=132), 13)


# --- transports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
def test_copies_are_issued_as_the_plan_says_a_stream_for_each_direction(batched):
    cuda = stand_in()
    engine = CopyEngine(held(BOTH_WAYS, cuda), batched=batched)
    assert engine.copies == 3
    engine.enqueue([Stream(9, cuda.driver.said)])
    moved = [call for call in cuda.driver.said if isinstance(call, tuple)]
    if batched:
        assert moved == [
            ("batch", [HOST, HOST + 128], [GPU, GPU + 128], [64, 16], 2, [(1, 1)], [0], 1, 9),
            ("batch", [GPU + 64], [HOST + 64], [32], 1, [(1, 1)], [0], 1, 77),
        ]
    else:
        assert moved == [
            ("copy", HOST, GPU, 64, 9),
            ("copy", HOST + 128, GPU + 128, 16, 9),
            ("copy", GPU + 64, HOST + 64, 32, 77),
        ]
    # The second stream starts after what came before on the first, and the first goes on after the second's copies.
    order = [call for call in cuda.driver.said if isinstance(call, str)]
    assert order == ["stream 9 records", "stream 77 waits", "stream 77 records", "stream 9 waits"]


@pytest.mark.parametrize("batched", [False, True])
def test_f10_a_refused_copy_raises_and_is_not_done_another_way(batched):
    cuda = stand_in(CODES.CUDA_ERROR_INVALID_VALUE)
    engine = CopyEngine(held(BOTH_WAYS, cuda), batched=batched)
    with pytest.raises(C3Error, match=r"cuMemcpy(Batch)?Async\) failed: CUDA_ERROR_INVALID_VALUE"):
        engine.enqueue([Stream(9, cuda.driver.said)])
    assert len([call for call in cuda.driver.said if isinstance(call, tuple)]) == 1


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_f10_a_batch_on_a_default_stream_is_refused_before_anything_is_issued(handle):
    cuda = stand_in()
    with pytest.raises(C3Error, match=r"^copy_engine: a batch of copies cannot go on the default stream"):
        CopyEngine(held(BOTH_WAYS, cuda), batched=True).enqueue([Stream(handle, cuda.driver.said)])
    assert [call for call in cuda.driver.said if isinstance(call, tuple)] == []
    CopyEngine(held(BOTH_WAYS, cuda)).enqueue([Stream(handle, cuda.driver.said)])  # one by one they may


def test_f10_bindings_without_batched_copies_are_named(monkeypatch):
    cuda = stand_in()
    monkeypatch.delattr(Driver, "cuMemcpyBatchAsync")
    with pytest.raises(C3Error, match=r"no cuMemcpyBatchAsync; use plain copies"):
        CopyEngine(held(BOTH_WAYS, cuda), batched=True)
    assert CopyEngine(held(BOTH_WAYS, cuda)).copies == 3


def test_m8_a_copy_within_the_gpu_is_refused_as_copy_engine():
    within = [*BOTH_WAYS, (GPU, GPU + 4096, 512, 0)]
    with pytest.raises(C3Error, match=r"a copy of 512 bytes within one GPU is no DMA transfer: .* runs on SMs"):
        CopyEngine(held(within, stand_in()))


def test_a_copy_between_two_gpus_is_one_of_a_copy_engine():
    engine = CopyEngine(held([(GPU, 2 * GPU, 512, 0)], stand_in()))
    assert engine.copies == 1


def test_plans_that_cannot_run_here_are_refused():
    with pytest.raises(C3Error, match=r"blocks must be at least 1, not 0"):
        SmKernel(held([], stand_in()), 0)
    with pytest.raises(C3Error, match=r"topology 'mesh' needs 2 GPUs here, not 1; on 'host' the peers' buffers lie in"):
        Buffers([stand_in()], build_plan("all-gather", 64, 2))
    with pytest.raises(C3Error, match=r"topology 'host' needs 1 GPU here, not 2"):
        Buffers([stand_in(), stand_in()], build_plan("all-gather", 64, 2, "host"))
    with pytest.raises(C3Error, match=r"direction 'in' is of topology 'host'; between GPUs it is 'both'"):
        Buffers([stand_in(), stand_in()], build_plan("all-gather", 64, 2), "in")
    with pytest.raises(C3Error, match=r"moves nothing over the link"):
        Buffers([stand_in()], build_plan("all-gather", 64, 1))


# --- the region -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gemm_first", [True, False])
def test_m3_both_streams_are_shut_before_anything_is_enqueued_and_opened_after_all_is(gemm_first):
    cuda = stand_in()
    said = cuda.driver.said
    gate = Gate([cuda])

    def work(name):
        return lambda streams: said.append(f"{name} on {streams[0].handle}, flag {gate._flag[0]}")

    timed(gate, ([Stream(1, said)], work("gemm")), ([Stream(2, said)], work("transfer")), gemm_first)
    first, second = (("gemm", 1), ("transfer", 2))[:: 1 if gemm_first else -1]
    assert said == [
        f"stream {first[1]} waits for 1",
        f"stream {first[1]} records",  # opened
        f"stream {first[1]} records",
        f"{first[0]} on {first[1]}, flag 0",
        f"stream {first[1]} records",
        f"stream {second[1]} waits",  # for opened
        f"stream {second[1]} records",
        f"{second[0]} on {second[1]}, flag 0",
        f"stream {second[1]} records",
    ]
    assert gate._flag[0] == 1


def test_a_kernel_that_is_not_there_has_no_times():
    cuda = stand_in()
    times = timed(Gate([cuda]), None, ([Stream(2, [])], lambda streams: None))
    assert math.isnan(times.gemm_start_s)
    assert math.isnan(times.gemm_end_s)
    assert times.transfer_end_s - times.transfer_start_s == pytest.approx(1e-3)  # the stand-in's millisecond


def test_the_gate_opens_when_enqueueing_fails():
    cuda = stand_in()
    gate = Gate([cuda])

    def fails(stream):
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        timed(gate, ([Stream(1, [])], fails), None)
    assert gate._flag[0] == gate._turn == 1


def test_f17_an_enqueue_that_waits_for_the_shut_gate_ends_in_a_sentence(monkeypatch):
    monkeypatch.setattr(region, "ENQUEUE_LIMIT_S", 0.02)
    gate = Gate([stand_in()])

    def blocks(stream):
        while gate._flag[0] != gate._turn:  # as the device would: until somebody opens
            time.sleep(0.001)

    with pytest.raises(C3Error, match=r"enqueueing took over 0\.02 s behind a shut gate"):
        timed(gate, ([Stream(1, [])], blocks), None)


@pytest.mark.parametrize("name", ["gemm", "transfer"])
def test_f17_a_kernel_that_never_ends_is_named(monkeypatch, name):
    monkeypatch.setattr(region, "LIMIT_S", 0.02)
    monkeypatch.setattr(Event, "is_done", False)
    part = ([Stream(1, [])], lambda streams: None)
    with pytest.raises(C3Error, match=rf"the {name} has not ended after 0\.02 s; the device hangs or is lost"):
        timed(Gate([stand_in()]), part if name == "gemm" else None, part if name == "transfer" else None)


# --- proof of path ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "used_no_sm", "ran"), list(product(["copy_engine", "sm_kernel"], [True, False], [4, 3]))
)
def test_f7_the_path_is_what_was_seen_not_what_the_name_says(monkeypatch, name, used_no_sm, ran):
    """Of the eight combinations only those are believed in which name and observation agree."""
    transport = SimpleNamespace(
        name=name, ready=lambda: None, enqueue=lambda stream: None, told=lambda: (ran, ran), blocks=4
    )
    monkeypatch.setattr(path, "ends_while_sms_are_held", lambda *arguments: used_no_sm)
    believed = used_no_sm if name == "copy_engine" else not used_no_sm and ran == 4
    if not believed:
        with pytest.raises(C3Error, match=f"^{name}: "):
            path.prove_path([stand_in()], transport, 0.0)
        return
    proof = path.prove_path([stand_in()], transport, 0.0)
    wanted = {"copy_engine": "copy engine: ended while all 132 SMs", "sm_kernel": "SM kernel: 4 blocks reported from 4"}
    assert proof.path.startswith(wanted[name])
    assert proof.blocks == (0 if name == "copy_engine" else ran)


# --- the tier itself --------------------------------------------------------------------------------------------------


def test_f15_a_device_run_that_executes_nothing_fails_and_says_not_run():
    command = [sys.executable, "-m", "pytest", "-m", "device", "-p", "no:cacheprovider", "-q"]
    command.append("tests/test_metrics.py")  # holds no device test
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "device: NOT RUN (no test selected)" in result.stdout
    assert result.returncode != 0


def test_every_pitfall_of_the_table_has_its_test():
    """docs/pitfalls.md names tests; each of them exists, and each row says where it stands."""
    table = (ROOT / "docs" / "pitfalls.md").read_text()
    rows = dict(re.findall(r"^\| ([FM]\d+) \| (.+) \|$", table, re.M))
    ids = [f"F{number}" for number in range(1, 21)] + [f"M{number}" for number in range(1, 19)]
    assert list(rows) == ids
    for name, row in rows.items():
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert tests or "does not apply yet" in row, name
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text(), f"{name}: {file} has no {test}"
