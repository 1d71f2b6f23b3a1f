"""L1: every fault that the double can have is noticed in a bounded time, and named.

Proves that our code notices; which faults real hardware has, and how it shows them, is for the owner of an MI300X.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from double_control import Control, Fault, Outcome
from plans import run_plan

from c3lib.amd import copies, transport
from c3lib.amd import runtime as runtime_module
from c3lib.amd.buffers import Buffers
from c3lib.amd.engines import choose_engines
from c3lib.amd.runtime import Runtime, open_runtime
from c3lib.amd.signals import Signal, TookTooLong
from c3lib.amd.transport import SdmaCopies
from c3lib.errors import C3Error
from c3lib.transfer.builders import build_plan

NBYTES = 1 << 16
LIMIT_S = 0.2
SOON_S = 5.0
"""What a wait of LIMIT_S may take on cores that are shared."""


@pytest.fixture(scope="module")
def opened(double) -> Iterator[tuple[Runtime, Control]]:
    yield open_runtime(double), Control(double)
    runtime_module._opened = None  # whoever comes next in this process opens what it wants


@pytest.fixture
def runtime(opened) -> Iterator[Runtime]:
    opened[1].reset()
    opened[0]._lanes.clear()  # copies that the double forgot wait nowhere
    yield opened[0]
    opened[1].reset()


@pytest.fixture
def control(opened) -> Control:
    return opened[1]


class Pair:
    """Buffers on GPUs 0 and 1, and one of the host by which both are filled and read."""

    def __init__(self, runtime: Runtime, nbytes: int = NBYTES) -> None:
        self.runtime, self.nbytes = runtime, nbytes
        self.gpus, self.cpu = runtime.gpus[:2], runtime.cpus[0]
        self.near, self.far = (runtime.allocate(gpu, nbytes) for gpu in self.gpus)
        self.host = runtime.allocate(self.cpu, nbytes)
        for buffer in (self.near, self.far, self.host):
            runtime.allow(buffer, [*runtime.gpus, self.cpu])
        self.bytes = np.frombuffer(self.host.view(), np.uint8)

    def write(self, fill: np.ndarray) -> None:
        self.bytes[:] = fill
        signal = self.runtime.signal(1)
        self.runtime.copy(self.near.address, self.gpus[0], self.host.address, self.cpu, self.nbytes, signal, 0)
        signal.wait(SOON_S, "writing")

    def copy(self, signal: Any, engine: int = 4, depends: tuple[Any, ...] = ()) -> None:
        self.runtime.copy(
            self.far.address, self.gpus[1], self.near.address, self.gpus[0], self.nbytes, signal, engine, depends
        )

    def read(self) -> np.ndarray:
        signal = self.runtime.signal(1)
        self.runtime.copy(self.host.address, self.cpu, self.far.address, self.gpus[1], self.nbytes, signal, 1)
        signal.wait(SOON_S, "reading")
        return self.bytes.copy()


def random_bytes(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, NBYTES, dtype=np.uint8)


# --- each fault, on a single copy ---


def test_without_a_fault_the_bytes_are_right(runtime, control):
    pair, signal = Pair(runtime), runtime.signal(1)
    pair.write(random_bytes())
    pair.copy(signal)
    signal.wait(SOON_S, "the copy")
    assert (pair.read() == random_bytes()).all()
    assert [(done.gpu, done.engine, done.outcome) for done in control.journal()][1] == (0, 4, Outcome.COPIED)


def test_a_hang_is_noticed_in_time_and_named(runtime, control):
    pair, signal = Pair(runtime), runtime.signal(3)
    control.fault(Fault.HANG, gpu=0, engine=4, nth=1)
    start_s = time.monotonic()
    for engine in (4, 4, 6):
        pair.copy(signal, engine)
    with pytest.raises(TookTooLong, match=r"the three copies did not end within 0.2 s: 1 of 3 still to come.*hangs"):
        signal.wait(LIMIT_S, "the three copies")
    assert LIMIT_S <= time.monotonic() - start_s < SOON_S
    assert not runtime.idle_engines(runtime.gpus[1], runtime.gpus[0]) >> 4 & 1
    assert [done.outcome for done in control.journal()].count(Outcome.HUNG) == 1


def test_what_depends_on_a_hung_copy_is_noticed_too(runtime, control):
    pair, first, second = Pair(runtime), runtime.signal(1), runtime.signal(1)
    control.fault(Fault.HANG, engine=4)
    pair.copy(first, 4)
    pair.copy(second, 6, (first,))
    with pytest.raises(TookTooLong, match=r"the second copy .* what it depends on never came"):
        second.wait(LIMIT_S, "the second copy")


def test_an_error_of_an_engine_is_named(runtime, control):
    pair, signal = Pair(runtime), runtime.signal(1)
    control.fault(Fault.ENGINE_ERROR, gpu=0, engine=4)
    pair.copy(signal)
    with pytest.raises(C3Error, match="the copy failed: an engine reported an error, its signal reads -1") as caught:
        signal.wait(SOON_S, "the copy")
    assert not isinstance(caught.value, TookTooLong)


def test_an_error_of_submitting_is_named_in_the_library_s_words(runtime, control):
    pair, signal = Pair(runtime), runtime.signal(1)
    control.fault(Fault.SUBMIT_ERROR, gpu=0, engine=4)
    with pytest.raises(C3Error, match="from GPU 0 to GPU 1 on engine 4 failed: HSA_STATUS_ERROR_OUT_OF_RESOURCES"):
        pair.copy(signal)
    assert signal.value == 1
    pair.copy(signal)  # the next one goes
    signal.wait(SOON_S, "the copy")


@pytest.mark.parametrize(("kind", "outcome"), [(Fault.CORRUPT, Outcome.CORRUPTED), (Fault.DROP, Outcome.DROPPED)])
def test_a_signal_does_not_tell_of_wrong_bytes_but_comparing_does(runtime, control, kind, outcome):
    pair, signal = Pair(runtime), runtime.signal(1)
    pair.write(random_bytes(2))
    pair.copy(signal)
    signal.wait(SOON_S, "the copy of other bytes")
    pair.write(random_bytes(3))
    control.fault(kind, gpu=0, engine=4)
    signal = runtime.signal(1)
    pair.copy(signal)
    signal.wait(SOON_S, "the copy")
    assert control.journal()[-1].outcome == outcome
    wrong = int((pair.read() != random_bytes(3)).sum())
    assert wrong == 1 if kind == Fault.CORRUPT else wrong > NBYTES // 2


def test_a_busy_engine_is_not_among_the_idle_ones(runtime, control):
    gpus, cpu = runtime.gpus, runtime.cpus[0]
    control.fault(Fault.BUSY, gpu=0, engine=4)
    assert runtime.idle_engines(gpus[1], gpus[0]) == 0xFFFC & ~(1 << 4)
    assert runtime.idle_engines(cpu, gpus[0]) == 0xFFFF & ~(1 << 4)
    assert runtime.idle_engines(gpus[0], gpus[1]) == 0xFFFC
    control.fault(Fault.BUSY)
    assert runtime.idle_engines(gpus[1], gpus[0]) == 0  # and no error: it is an answer


def test_want_of_memory_is_named(runtime, control):
    gpu = runtime.gpus[1]
    control.fault(Fault.NO_MEMORY, gpu=1, nth=1)
    runtime.free(runtime.allocate(gpu, 64))
    with pytest.raises(C3Error, match="allocating 64 bytes on GPU 1 failed: HSA_STATUS_ERROR_OUT_OF_RESOURCES"):
        runtime.allocate(gpu, 64)
    runtime.free(runtime.allocate(gpu, 64))
    with pytest.raises(C3Error, match=r"allocating \d+ bytes on GPU 1 failed: HSA_STATUS_ERROR_INVALID_ALLOCATION"):
        runtime.allocate(gpu, 2 * gpu.memory_nbytes)


@pytest.mark.parametrize("unreachable", ["near", "far"])
def test_a_missing_right_is_noticed_in_time(runtime, control, unreachable):
    """The engine's GPU must be allowed both buffers; from 2 MiB on a buffer shares its block with none."""
    pair, signal = Pair(runtime, 2 << 20), runtime.signal(1)
    runtime.allow(getattr(pair, unreachable), [runtime.gpus[5]])
    if unreachable == "near":  # then let GPU 1 pull: the owner's right stays
        runtime.copy(pair.far.address, pair.gpus[0], pair.near.address, pair.gpus[1], pair.nbytes, signal, 4)
    else:
        pair.copy(signal)
    with pytest.raises(TookTooLong, match="a buffer's access was not granted"):
        signal.wait(LIMIT_S, "the copy")
    assert control.journal()[-1].outcome == Outcome.NO_ACCESS


def test_a_full_queue_gives_up_in_time_and_names_the_engine(runtime, control, monkeypatch):
    monkeypatch.setattr(copies, "ROOM_LIMIT_S", LIMIT_S)
    pair, gate, signal = Pair(runtime, 64), runtime.signal(1), runtime.signal(1 << 20)
    ready = runtime.prepare(pair.far.address, pair.gpus[1], pair.near.address, pair.gpus[0], 64, signal, 4, (gate,))
    taken = copies.QUEUE_PACKETS
    for _ in range(taken):
        ready.submit()
    with pytest.raises(C3Error, match="engine 4 of GPU 0 has some 4096 packets waiting"):
        ready.submit()
    gate.set(0)
    until_s = time.monotonic() + 2 * SOON_S
    while signal.value > (1 << 20) - taken and time.monotonic() < until_s:
        time.sleep(0.01)
    ready.submit()  # there is room again
    while signal.value > (1 << 20) - taken - 1 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert (1 << 20) - signal.value == taken + 1


def test_a_plan_and_its_copies_count_the_same_room(runtime, monkeypatch):
    """Parts of large copies and what they wait for count: queued behind the gate is what goes in without a wait."""
    monkeypatch.setattr(copies, "PACKET_NBYTES", 256)
    for module in (copies, transport):
        monkeypatch.setattr(module, "QUEUE_PACKETS", 14)
    plan = build_plan("all-gather", 4 * 1024, 4, algorithm="ring")  # an engine a rank, a copy on it in each of 3 steps
    buffers = Buffers(runtime, runtime.gpus[:4], plan)
    buffers.prepare(0)
    made = SdmaCopies(buffers, choose_engines(runtime, buffers.gpus))
    assert (made.behind_gate, made.copies) == (8, 12)
    made.ready()
    made.submit()
    # Four parts, four parts that wait for four signals; the third copies' four would be 15.
    assert [lane.waiting for lane in runtime._lanes.values() if lane.waiting] == [4 + 4 + 3] * 4
    made.release()
    made.wait(SOON_S)
    assert buffers.check(0).verified
    buffers.close()


def test_copies_that_are_done_take_no_room(runtime):
    """Many transfers one after the other, each behind a gate that its own thread opens, never meet a full queue."""
    pair, gate, signal = Pair(runtime, 64), runtime.signal(1), runtime.signal(1)
    ready = runtime.prepare(pair.far.address, pair.gpus[1], pair.near.address, pair.gpus[0], 64, signal, 4, (gate,))
    start_s = time.monotonic()
    for _ in range(copies.QUEUE_PACKETS // 500 + 2):
        gate.set(1)
        signal.set(500)
        for _ in range(500):
            ready.submit()
        gate.set(0)
        signal.wait(SOON_S, "500 copies")
    assert time.monotonic() - start_s < SOON_S


# --- buffers that were given up ---


def buffers_of(runtime: Runtime) -> Buffers:
    return Buffers(runtime, runtime.gpus[:2], build_plan("all-gather", 4096, 2))


def test_given_up_buffers_take_no_further_run(runtime):
    buffers = buffers_of(runtime)
    buffers.prepare(0)
    made = SdmaCopies(buffers, choose_engines(runtime, buffers.gpus))
    made.give_up()
    for again in (made.ready, lambda: buffers.prepare(1)):
        with pytest.raises(C3Error, match=r"its buffers were given up, .*; set the plan up anew"):
            again()


@pytest.mark.parametrize("interrupted", ["received", "untouched"])
def test_ctrl_c_while_bytes_are_read_keeps_the_buffers(runtime, monkeypatch, interrupted):
    buffers = buffers_of(runtime)

    def ctrl_c(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Signal, "wait", ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        buffers.received(0) if interrupted == "received" else buffers.untouched(buffers.copies())
    assert buffers.abandoned


def test_buffers_are_freed_by_whichever_thread_collects_them(runtime, monkeypatch):
    buffers, freed, free = buffers_of(runtime), [], runtime.free
    monkeypatch.setattr(runtime, "free", lambda buffer: [freed.append(buffer), free(buffer)])
    held = len(buffers._held)
    buffers._threads.submit(buffers.close).result(SOON_S)
    assert len(freed) == held == 6


def test_buffers_for_a_library_are_open_to_all(runtime, monkeypatch):
    buffers, allowed = buffers_of(runtime), {}
    monkeypatch.setattr(runtime, "allow", lambda buffer, gpus: allowed.update({buffer.address: list(gpus)}))
    buffers.open_to_all()
    rooms = [*buffers.send, *buffers._receive]
    assert [buffer.agent.index for buffer in rooms] == [0, 1, 0, 1]
    assert allowed == {buffer.address: buffers.gpus for buffer in rooms}


# --- each fault, in a plan of many copies ---


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("fault", [Fault.CORRUPT, Fault.DROP])
def test_one_wrong_copy_of_a_plan_fails_its_check(runtime, control, kind, fault):
    plan = build_plan(kind, 8 * 4096, 8)
    assert run_plan(runtime, plan)["verified"]
    control.fault(fault, gpu=3, engine=8)  # peer engines only carry the plan
    assert not run_plan(runtime, plan)["verified"]
    assert {done.outcome for done in control.journal()} > {Outcome.COPIED}
    assert run_plan(runtime, plan)["verified"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.HANG, "step 0 of all-gather .* did not end within"),
        (Fault.ENGINE_ERROR, "step 0 of all-gather .* failed: an engine reported an error"),
        (Fault.SUBMIT_ERROR, "on engine 8 failed: HSA_STATUS_ERROR_OUT_OF_RESOURCES"),
    ],
)
def test_one_failed_copy_of_a_plan_stops_it(runtime, control, monkeypatch, fault, said):
    monkeypatch.setattr("plans.LIMIT_S", 1.0)
    control.fault(fault, gpu=3, engine=8)
    with pytest.raises(C3Error, match=said):
        run_plan(runtime, build_plan("all-gather", 8 * 4096, 8))


def test_faults_befall_the_event_they_name(runtime, control):
    pair = Pair(runtime)
    for nth, engine in itertools.product((0, 1, 2), (4, 6)):
        control.reset()
        control.fault(Fault.DROP, gpu=0, engine=engine, nth=nth)
        signal = runtime.signal(6)
        for _ in range(3):
            pair.copy(signal, 4)
            pair.copy(signal, 6)
        signal.wait(SOON_S, "six copies")
        hit = {e: [d.outcome for d in control.journal() if d.engine == e] for e in (4, 6)}
        assert hit[engine].index(Outcome.DROPPED) == nth
        assert hit[engine].count(Outcome.DROPPED) == 1
        assert Outcome.DROPPED not in hit[10 - engine]
