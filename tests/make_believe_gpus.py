"""GPUs that exist only here: what is put on their streams is run by this process, in any order that streams allow.

Each GPU has memory, streams, events and a clock of its own. A missing wait shows as wrong bytes in some order, a wait
too many as a standstill, and what a real driver refuses or gets wrong (work for a GPU that is not the current one,
events of two clocks) as a failed assertion.
"""

import ctypes
import random
from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace

import numpy as np

from c3lib.transfer import pattern

CODES = IntEnum("CODES", {"CUDA_SUCCESS": 0})
OK = CODES.CUDA_SUCCESS


class Stream:
    """Operations in order: (when it may start or None for not yet, what it does, how long it takes)."""

    def __init__(self, machine, gpu):
        self.machine, self.gpu, self.queue, self.at_s = machine, gpu, [], 0.0
        machine.streams.append(self)
        self.handle = 100 + len(machine.streams)

    def put(self, run=lambda: None, ready=lambda: 0.0, lasts_s=0.0):
        self.queue.append((ready, run, lasts_s))
        self.machine.put()

    def step(self):
        ready, run, lasts_s = self.queue.pop(0)
        self.at_s = max(self.at_s, ready()) + lasts_s
        run()

    def record(self, event):
        assert event.gpu == self.gpu, "an event is recorded on streams of its own GPU"
        event.mark = mark = SimpleNamespace(at_s=None)
        self.put(lambda: setattr(mark, "at_s", self.at_s))

    def wait(self, event):
        mark = event.mark
        self.put(ready=lambda: mark.at_s)

    def sync(self):
        self.machine.drain(lambda stream: stream is self)


class Event:
    """A place in a stream, with the time of its GPU's own clock."""

    def __init__(self, machine, gpu, timed):
        self.machine, self.gpu, self.timed, self.mark = machine, gpu, timed, SimpleNamespace(at_s=0.0)

    @property
    def is_done(self):
        while self.mark.at_s is None and self.machine.step():
            pass
        return self.mark.at_s is not None

    def __sub__(self, other):
        assert (self.timed, other.timed) == (True, True)
        assert self.gpu == other.gpu, "events of two GPUs have no time between them"
        return 1e3 * (self.mark.at_s - other.mark.at_s)


class Tensor:
    """Memory of a GPU, or of the host (``gpu`` None); what is done with it goes on its GPU's default stream."""

    def __init__(self, machine, gpu, array):
        self.machine, self.gpu, self.array = machine, gpu, array

    def data_ptr(self):
        return self.array.ctypes.data

    def numel(self):
        return len(self.array)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, key):
        return Tensor(self.machine, self.gpu, self.array[key]) if isinstance(key, slice) else self.tolist()[key]

    def __setitem__(self, place, value):
        self._do(lambda: self.array.__setitem__(place, value))

    def fill_(self, value):
        self._do(lambda: self.array.fill(value))

    def zero_(self):
        self.fill_(0)

    def copy_(self, other):
        self._do(lambda: np.copyto(self.array, other.array))

    def _do(self, run):
        run() if self.gpu is None else self.machine.gpus[self.gpu].device.default_stream.put(run)

    def cpu(self):
        if self.gpu is not None:
            self.machine.gpus[self.gpu].device.default_stream.sync()
        return Tensor(self.machine, None, self.array)

    def numpy(self):
        return self.array

    def tolist(self):
        return self.cpu().array.tolist()

    def to(self, where):
        return self.machine.tensor(self.array.copy(), int(where.removeprefix("cuda:")))


class Gpu(SimpleNamespace):
    """One of them, that caches can tell from others."""

    __eq__, __hash__ = object.__eq__, object.__hash__


class Gpus:
    """Some GPUs, and chance; ``eager``: what may run runs at once, else when somebody waits for it."""

    def __init__(self, count, seed=0, eager=False):
        self.random, self.eager, self.streams, self.rooms, self.now = random.Random(seed), eager, [], [], []
        self.gpus = [self._gpu(index) for index in range(count)]

    def __iter__(self):
        return iter(self.gpus)

    def _gpu(self, index):
        @contextmanager
        def current():
            self.now.append(index)
            yield
            self.now.pop()

        def made(what):
            def create(options):
                self.require_current(index)
                return what(options)

            return create

        device = SimpleNamespace(
            device_id=index,
            arch="90",
            default_stream=Stream(self, index),
            create_stream=made(lambda options: Stream(self, index)),
            create_event=made(lambda options: Event(self, index, options["timing_enabled"])),
        )
        core = SimpleNamespace(StreamOptions=dict, EventOptions=dict, LaunchConfig=SimpleNamespace, launch=self.launch)
        synchronize = lambda gpu: self.drain(lambda stream: stream.gpu == gpu)  # noqa: E731
        torch = SimpleNamespace(
            uint8=np.uint8, int32=np.int32, int64=np.int64, zeros=self.zeros, empty=self.zeros,
            from_numpy=lambda array: Tensor(self, None, array),
            cuda=SimpleNamespace(synchronize=synchronize, empty_cache=lambda: None),
        )  # fmt: skip
        more = {"driver": Driver(self), "runtime": Runtime(self), "current": current, "sms": 132, "name": "believed"}
        return Gpu(index=index, device=device, core=core, torch=torch, pci_bus_id=f"pci {index}", **more)

    # --- memory ---

    def tensor(self, array, gpu):
        self.rooms.append((array, gpu))
        return Tensor(self, gpu, array)

    def zeros(self, length, dtype, device="", pin_memory=False):
        assert bool(device) != pin_memory
        return self.tensor(np.zeros(length, dtype), int(device.removeprefix("cuda:")) if device else None)

    def gpu_of(self, address):
        """Whose memory an address is: a GPU's number, None for the host."""
        for array, gpu in self.rooms:
            if 0 <= address - array.ctypes.data < array.nbytes:
                return gpu
        raise AssertionError("an address of nobody")

    # --- order ---

    def put(self):
        while self.eager and self.step():
            pass

    def step(self):
        """One operation that may run, by chance; False if there is none."""
        ready = [stream for stream in self.streams if stream.queue and stream.queue[0][0]() is not None]
        if ready:
            self.random.choice(ready).step()
        return bool(ready)

    def drain(self, which=lambda stream: True):
        """Run until these streams are empty; others go on meanwhile, as they do."""
        while any(stream.queue for stream in self.streams if which(stream)):
            assert self.step(), "standstill: every stream waits"

    def run_what_may(self):
        while self.step():
            pass

    # --- what the driver and cuda.core are asked ---

    def require_current(self, gpu):
        assert self.now[-1:] == [gpu], f"GPU {gpu} is not the current one"

    def stream(self, handle):
        stream = self.streams[int(handle) - 101]
        self.require_current(stream.gpu)
        return stream

    def launch(self, stream, config, name, *arguments):
        self.require_current(stream.gpu)
        stream.put(lambda: getattr(self, f"_{name}")(stream.gpu, config.grid, *map(int, arguments)))

    def _fill(self, gpu, grid, address, nbytes, seed):
        assert self.gpu_of(address) == gpu, "a GPU fills its own memory"
        view(address, nbytes)[:] = pattern(seed - 1 >> 32, nbytes, seed - 1 & 0xFFFFFFFF)

    def _compare(self, gpu, grid, address, nbytes, seed, first, offset, wrong):
        assert self.gpu_of(address) == self.gpu_of(wrong) == gpu, "a GPU compares its own memory"
        wanted = pattern(seed - 1 >> 32, first + nbytes, seed - 1 & 0xFFFFFFFF)[first:]
        bad = np.flatnonzero(view(address, nbytes) != wanted)
        told = view(wrong, 16).view(np.uint64)
        if len(bad):
            told[0] += np.uint64(len(bad))
            told[1] = min(int(told[1]), offset + int(bad[0]))

    def _copy(self, gpu, grid, chunks, count, ticket, told):
        assert {self.gpu_of(address) for address in (chunks, ticket, told)} == {gpu}
        taken = view(ticket, 4).view(np.int32)
        for source, target, nbytes in view(chunks, 24 * count).view(np.uint64).reshape(-1, 3)[taken[0] :].tolist():
            ctypes.memmove(target, source, nbytes)
        taken[0] += count + grid  # each block asks once more
        view(told, 24 * grid).view(np.uint64)[::3] = np.arange(1, grid + 1, dtype=np.uint64)


class Driver:
    """Puts on streams what is asked for, where the GPU is the current one."""

    CUdeviceptr = int
    CUmemcpyAttributes = SimpleNamespace
    CUmemcpySrcAccessOrder = SimpleNamespace(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM=1)
    CUmemcpyFlags = SimpleNamespace(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE=1)
    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_EQ=1)

    def __init__(self, machine):
        self.machine = machine

    def cuCtxGetStreamPriorityRange(self):
        return OK, 0, -5

    def cuMemcpyAsync(self, target, source, nbytes, handle):
        self.machine.stream(handle).put(lambda: ctypes.memmove(target, source, nbytes))
        return (OK,)

    def cuMemcpyBatchAsync(self, targets, sources, sizes, count, attributes, first, kinds, handle):
        for copy in zip(targets, sources, sizes, strict=True):
            self.cuMemcpyAsync(*copy, handle)
        return (OK,)

    def cuMemsetD32Async(self, address, value, count, handle):
        self.machine.stream(handle).put(lambda: view(address, 4 * count).view(np.int32).fill(value))
        return (OK,)

    def cuStreamWaitValue32(self, handle, address, value, flags):
        flag = view(address, 4).view(np.int32)
        self.machine.stream(handle).put(ready=lambda: 0.0 if flag[0] == value else None)
        return (OK,)


class Runtime:
    """Knows whose memory an address is."""

    cudaMemoryType = SimpleNamespace(cudaMemoryTypeDevice=2)
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1)

    def __init__(self, machine):
        self.machine = machine

    def cudaPointerGetAttributes(self, address):
        gpu = self.machine.gpu_of(address)
        return OK, SimpleNamespace(type=1 if gpu is None else 2, device=gpu)

    def cudaMemcpy2DAsync(self, target, target_pitch, source, source_pitch, nbytes, rows, kind, handle):
        assert kind == self.cudaMemcpyKind.cudaMemcpyHostToDevice
        assert nbytes <= min(target_pitch, source_pitch)

        def run():
            for row in range(rows):
                ctypes.memmove(target + row * target_pitch, source + row * source_pitch, nbytes)

        self.machine.stream(handle).put(run)
        return (OK,)


def view(address, nbytes):
    """Bytes at an address."""
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(int(address)), np.uint8)
