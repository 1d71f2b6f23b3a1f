"""The GPU's side of the collectives without a GPU: what is put on streams is run here, in any order they allow.

All ranks are threads of this process, which put copies, flag writes and waits on make-believe streams. These are run
afterwards, the next stream chosen by chance: a missing wait shows as wrong bytes, a wait too many as a standstill.
"""

import ctypes
import random
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from c3lib.collectives import gpu, ipc, work
from c3lib.collectives.board import reached
from c3lib.collectives.communicator import Communicator, Splits
from c3lib.errors import C3Error

DEVICE = torch.device("cuda", 0)


class Code(int):
    name = "CUDA_ERROR_INVALID_VALUE"


class Stream:
    """Operations in order: (may it run, run it)."""

    def __init__(self, gpus: "Gpus"):
        self.queue, self.gpus = [], gpus
        gpus.streams.append(self)
        self.cuda_stream = len(gpus.streams)

    def put(self, run, ready=lambda: True):
        self.queue.append((ready, run))

    def record_event(self):
        event = SimpleNamespace(over=False)
        self.put(lambda: setattr(event, "over", True))
        return event

    def wait_event(self, event):
        self.put(lambda: None, lambda: event.over)

    def wait_stream(self, other):
        self.wait_event(other.record_event())

    def synchronize(self):
        with self.gpus.lock:
            while self.queue:
                self.gpus.step()


class Gpus:
    """All streams of all ranks, and the driver that puts work on them."""

    def __init__(self, seed: int, peers_refuse_values: bool = False):
        self.streams, self.memory, self.lock = [], {}, threading.RLock()
        self.random, self.refuses = random.Random(seed), peers_refuse_values
        self.waits, self.mapped, self.freed = [], [], []
        kinds = {"CU_STREAM_WAIT_VALUE_GEQ": 0, "CU_STREAM_WAIT_VALUE_FLUSH": 1 << 30}
        self.driver = SimpleNamespace(
            CUstreamWaitValue_flags=SimpleNamespace(**kinds),
            CUipcMem_flags=SimpleNamespace(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS=1),
            CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
            CUdevice_attribute=SimpleNamespace(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES=98),
            CUipcMemHandle=Handle,
            cuDeviceGetAttribute=lambda which, index: (0, 1),
            cuCtxGetCurrent=lambda: (0, "context"),
            cuCtxSetCurrent=lambda context: (0,),
            cuMemAlloc=self.allocate,
            cuMemFree=lambda address: self.freed.append(address),
            cuMemGetAddressRange=lambda address: (0, address - 8, 0),
            cuIpcGetMemHandle=lambda address: (0, Handle(address)),
            cuIpcOpenMemHandle=lambda handle, flags: (0, self.mapped.append(handle.address) or handle.address),
            cuIpcCloseMemHandle=lambda address: self.mapped.remove(address),
            cuStreamCreateWithPriority=lambda flags, priority: (0, Stream(self).cuda_stream),
            cuStreamWriteValue32=self.write,
            cuStreamWaitValue32=self.wait,
            cuMemcpyAsync=self.copy,
        )

    def step(self) -> None:
        ready = [stream for stream in self.streams if stream.queue and stream.queue[0][0]()]
        assert ready, "standstill: every stream waits"
        self.random.choice(ready).queue.pop(0)[1]()

    def run(self) -> None:
        while any(stream.queue for stream in self.streams):
            self.step()

    def allocate(self, nbytes: int) -> tuple:
        buffer = (ctypes.c_uint8 * nbytes)()
        self.memory[ctypes.addressof(buffer)] = buffer
        return 0, ctypes.addressof(buffer)

    def write(self, stream: int, address: int, value: int, flags: int) -> tuple:
        if self.refuses and value == 0:  # what a window tries first, on the flags of its peers
            return (Code(1),)
        self.streams[stream - 1].put(lambda: setattr(ctypes.c_uint32.from_address(address), "value", value))
        return (0,)

    def wait(self, stream: int, address: int, value: int, how: int) -> tuple:
        self.waits.append(how)
        flag = ctypes.c_uint32.from_address(address)
        self.streams[stream - 1].put(lambda: None, lambda: reached(flag.value, value))
        return (0,)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> tuple:
        self.streams[stream - 1].put(lambda: ctypes.memmove(target, source, nbytes))
        return (0,)


class Handle:
    """Of memory: the address itself, since all ranks are one process."""

    def __init__(self, address: int = 0):
        self.bytes = (ctypes.c_uint8 * 64)(*address.to_bytes(8, "little"))

    @property
    def address(self) -> int:
        return int.from_bytes(bytes(self.bytes)[:8], "little")

    def getPtr(self) -> int:
        return ctypes.addressof(self.bytes)


class Hosts:
    """The board between threads."""

    def __init__(self, ranks: int):
        self.barrier, self.letters = threading.Barrier(ranks, timeout=20), [None] * ranks

    def board(self, rank: int) -> SimpleNamespace:
        ranks = len(self.letters)
        return SimpleNamespace(
            rank=rank,
            ranks=ranks,
            names=list(range(ranks)),
            peers=[(rank + distance) % ranks for distance in range(1, ranks)],
            broken="",
            exchange=lambda letter, what: self.exchange(rank, letter),
            announce=lambda number, note: None,
            compare=lambda peer: None,
        )

    def exchange(self, rank: int, letter: object) -> list:
        self.letters[rank] = letter
        self.barrier.wait()
        found = list(self.letters)
        self.barrier.wait()
        return found


@pytest.fixture
def machine(monkeypatch):
    """``machine(seed, ranks, program)``: run ``program(communicator, stream)`` as each rank, then all streams."""
    local = threading.local()

    def run(seed, ranks, program, **how):
        gpus, hosts, errors = Gpus(seed, **how), Hosts(ranks), []

        def tensor_over(loan, device):
            given = loan.__cuda_array_interface__
            (nbytes,), (address, _) = given["shape"], given["data"]
            return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)

        cuda = SimpleNamespace(
            device=lambda device: nullcontext(),
            stream=lambda stream: nullcontext(),
            current_stream=lambda device=None: local.stream,
            is_current_stream_capturing=lambda: False,
            ExternalStream=lambda handle, device: gpus.streams[handle - 1],
        )
        fake = SimpleNamespace(cuda=cuda, zeros=lambda *size, **how: None, as_tensor=tensor_over, int32=torch.int32)
        for module in (gpu, ipc, work):
            monkeypatch.setattr(module, "torch", fake)
        for module in (gpu, ipc):
            monkeypatch.setattr(module, "spare_streams", {})
        monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=gpus.driver))
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)

        def body(rank):
            try:
                local.stream = Stream(gpus)
                board = hosts.board(rank)
                program(Communicator(DEVICE, board, ipc.CudaWindow(board, DEVICE)), local.stream)
            except BaseException as error:
                errors.append(error)
                hosts.barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        gpus.run()
        return gpus

    return run


POISON = 0x5A


def pattern(rank, turn, nbytes):
    return ((torch.arange(nbytes) * 7 + rank * 31 + turn * 13) % 97 + 100).to(torch.uint8)


class Rounds:
    """A program: some collectives in the same memory, overwritten as soon as the handle's wait allows it."""

    def __init__(self, kind, ranks, in_place=False, registered=True, splits=None, turns=5, count=6):
        self.kind, self.ranks, self.turns, self.count = kind, ranks, turns, count
        self.in_place, self.registered, self.splits, self.found = in_place, registered, splits, []

    def __call__(self, comm, stream):
        rank, whole = comm.rank, self.count * self.ranks
        room = comm.register(whole).block.lend(whole)[0] if self.registered else torch.zeros(whole, dtype=torch.uint8)
        splits = self.splits and Splits(self.splits[rank], [row[rank] for row in self.splits])
        output = room[: sum(splits.receives)] if splits else room
        size = self.count if self.kind == "all-gather" else sum(splits.sends) if splits else whole
        own = output[rank * self.count :][:size]
        source = own if self.in_place else torch.zeros(size, dtype=torch.uint8)
        for turn in range(self.turns):
            sent, seen = pattern(rank, turn, size), torch.zeros_like(output)
            stream.put(lambda sent=sent: source.copy_(sent))
            comm.run(self.kind, output, source, turn % 2 == 0, self.in_place, splits).wait()
            stream.put(lambda seen=seen: seen.copy_(output))
            stream.put(lambda: (source.fill_(POISON), output.fill_(POISON)))
            self.found.append((rank, turn, seen))

    def wrong(self):
        """Ranks and rounds whose bytes are not those that the definition of the collective gives."""
        return [(rank, turn) for rank, turn, seen in self.found if not torch.equal(seen, self.wanted(rank, turn))]

    def wanted(self, rank, turn):
        if self.kind == "all-gather":
            return torch.cat([pattern(src, turn, self.count) for src in range(self.ranks)])
        sends = self.splits or [[self.count] * self.ranks] * self.ranks
        return torch.cat(
            [pattern(src, turn, sum(row))[sum(row[:rank]) :][: row[rank]] for src, row in enumerate(sends)]
        )


UNEVEN = [[0, 3, 5], [1, 0, 0], [6, 2, 4]]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize(("kind", "in_place"), [("all-gather", True), ("all-gather", False), ("all-to-all", False)])
def test_any_order_that_streams_allow_gives_the_same_bytes(machine, kind, in_place, ranks, registered):
    for seed in range(10):
        rounds = Rounds(kind, ranks, in_place, registered)
        machine(seed, ranks, rounds)
        assert len(rounds.found) == ranks * rounds.turns
        assert rounds.wrong() == []


def test_split_sizes(machine):
    for seed in range(10):
        rounds = Rounds("all-to-all", 3, splits=UNEVEN)
        machine(seed, 3, rounds)
        assert rounds.wrong() == []


@pytest.mark.parametrize("signal", ["ready", "done"])
def test_without_a_wait_bytes_are_wrong(machine, monkeypatch, signal):
    """The control of the test above: either signal is needed."""
    wait = ipc.CudaWindow.wait

    def some(window, lane, peer, name, number, what):
        if name != signal:
            wait(window, lane, peer, name, number, what)

    monkeypatch.setattr(ipc.CudaWindow, "wait", some)
    wrong = []
    for seed in range(10):
        rounds = Rounds("all-gather", 3)
        machine(seed, 3, rounds)
        wrong += rounds.wrong()
    assert wrong != []


def test_signals_are_copied_where_the_driver_refuses_to_write_them(machine):
    seen = []
    for seed in range(10):
        rounds = Rounds("all-gather", 3)

        def program(comm, stream, rounds=rounds):
            seen.append(comm.window.writes_values)
            rounds(comm, stream)

        machine(seed, 3, program, peers_refuse_values=True)
        assert rounds.wrong() == []
    assert set(seen) == {False}


def test_done_is_waited_for_with_what_was_written_before_it(machine):
    """A remote write before the flag has to be seen with it; for "ready" nothing has."""
    gpus = machine(0, 2, Rounds("all-gather", 2, turns=1))
    assert sorted(gpus.waits) == [0, 0, 1 << 30, 1 << 30]


def test_memory_of_a_size_that_no_number_of_the_driver_holds_is_refused(machine):
    said = []

    def program(comm, stream):
        with pytest.raises(C3Error) as caught:
            comm.register(2**72)
        said.append(str(caught.value))
        comm.register(5)  # and the group is none the worse

    machine(0, 2, program)
    assert said == [f"size: expected at most {2**63 - 1} bytes, got {2**72}"] * 2


def test_a_destroyed_group_closes_what_it_opened_and_frees_only_what_nobody_uses(machine):
    kept = []

    def program(comm, stream):
        kept.append(comm.register(5).block)
        comm.register(5)
        comm.close()

    gpus = machine(0, 2, program)
    assert gpus.mapped == []
    kept_at = {block.address for block in kept}
    assert len(gpus.freed) >= 2
    assert kept_at & set(gpus.freed) == set()
    kept.clear()
    assert kept_at <= set(gpus.freed)
