"""The window between GPUs: memory mapped by CUDA IPC, copies by copy engine, signals by stream memory operations.

No kernel runs for a collective: a copy to a peer's GPU is a copy engine's work, flags are written and awaited by the
GPU's front end. (Between processes that share one GPU all is as right, but copies within a GPU run on SMs.)
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from c3lib.collectives.board import SIGNALS, Board, poll
from c3lib.collectives.gpu import HANDLE_NBYTES, CudaBlock, done, exported, own_streams, spare_streams
from c3lib.collectives.window import Place
from c3lib.collectives.work import CudaWork
from c3lib.errors import C3Error

_WORD_NBYTES = 4


class CudaWindow:
    """One rank's window on one GPU.

    A collective runs on streams of the window's own: one that waits for the caller's and signals that this rank is
    ready, one for each peer, and one for the copy within this rank, which never delays the others.

    Raises:
        C3Error: cuda-bindings is missing, or memory cannot be shared between the GPUs of the group.
    """

    granularity = 1 << 21

    def __init__(self, board: Board, device: torch.device):
        try:
            from cuda.bindings import driver
        except ImportError:
            raise C3Error("collectives on cuda need the package cuda-bindings") from None
        self._driver, self._board, self._device = driver, board, device
        self._mapped: dict[tuple[int, bytes], int] = {}
        self._blocks: list[CudaBlock] = []
        self._events: list[torch.cuda.Event] = []
        torch.zeros(1, device=device)  # opens the GPU, if nothing has yet
        with torch.cuda.device(device):
            self._context = done(driver.cuCtxGetCurrent(), "reading the context")
        can_flush = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES
        self.flushes = bool(done(driver.cuDeviceGetAttribute(can_flush, device.index), "asking what waits can do"))
        with self._here():
            self._main, self._own, self._aside, *self._lanes = own_streams(driver, device, 3 + len(board.peers))
            # Two tables of flags: what peers write, and what this rank has written to peers.
            flags = self.allocate(self.granularity)
            self._flags = flags.lend(2 * len(SIGNALS) * board.ranks * _WORD_NBYTES)[0].zero_()
            torch.cuda.current_stream().synchronize()
            self._flags_at, what = flags.address, "sharing the flags of collectives"
            words = board.exchange(flags.word, what)
            self._flags_of = [self.open(p, words[p]) if p != board.rank else self._flags_at for p in range(board.ranks)]
            self.writes_values = self._can_write_values()
            board.exchange(None, what)
        # Not when the program ends: closing may wait for streams, these for peers; and the driver closes them then.
        weakref.finalize(self, _unmap, driver, self._mapped).atexit = False

    @contextmanager
    def _here(self) -> Iterator[None]:
        """On this GPU; a thread of torch's (a backward pass) may have no context yet."""
        with torch.cuda.device(self._device):
            done(self._driver.cuCtxSetCurrent(self._context), "setting the context")
            yield

    def _can_write_values(self) -> bool:
        """Whether the driver lets a stream write a value straight to a peer's flag (0, which is there already)."""
        stream = self._main.cuda_stream
        codes = [self._driver.cuStreamWriteValue32(stream, self._flag(p, "ready"), 0, 0)[0] for p in self._board.peers]
        self._main.synchronize()
        return not any(map(int, codes))

    def _flag(self, peer: int, name: str) -> int:
        """The flag of this rank at a peer's."""
        return self._flags_of[peer] + _WORD_NBYTES * self._slot(name, self._board.rank)

    def _slot(self, name: str, rank: int, table: int = 0) -> int:
        return (table * len(SIGNALS) + SIGNALS.index(name)) * self._board.ranks + rank

    def allocate(self, nbytes: int) -> CudaBlock:
        with self._here():
            self._blocks.append(CudaBlock(self._driver, nbytes, self._device))
        return self._blocks[-1]

    def place(self, output: torch.Tensor) -> Place:
        if not output.numel():
            return Place(None, output)
        code, base, _ = self._driver.cuMemGetAddressRange(output.data_ptr())
        address = int(base) if not int(code) else output.data_ptr()  # what has no range is not exported either
        return Place((exported(self._driver, address), output.data_ptr() - address), output)

    def open(self, peer: int, word: Any) -> int:
        handle, offset = word
        if (peer, handle) not in self._mapped:
            ipc = self._driver.CUipcMemHandle()
            ctypes.memmove(ipc.getPtr(), handle, HANDLE_NBYTES)
            lazily = int(self._driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
            what = f"opening GPU memory of rank {self._board.names[peer]} (cuIpcOpenMemHandle)"
            with self._here():
                self._mapped[peer, handle] = int(done(self._driver.cuIpcOpenMemHandle(ipc, lazily), what))
        return self._mapped[peer, handle] + offset

    def opened(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def usable(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise C3Error("collectives by copy engine count their calls, so no CUDA graph can repeat one")

    def start(self, body: Callable[[], None], tensors: tuple[torch.Tensor, ...], asynchronous: bool) -> dist.Work:
        with self._here():
            body()
            self._events = [self._main.record_event(), self._own.record_event()]
            work = CudaWork(self._device, self._events)
            if asynchronous:
                for tensor in tensors:  # whose memory torch's allocator must not hand out before the streams are done
                    for stream in (self._main, self._own):
                        tensor.record_stream(stream)
            else:
                work.wait()
        return work

    def begin(self) -> None:
        caller = torch.cuda.current_stream(self._device).record_event()
        self._main.wait_event(caller)
        self._own.wait_event(caller)

    def fork(self) -> None:
        ready = self._main.record_event()
        for lane in self._lanes:
            lane.wait_event(ready)

    def join(self) -> None:
        for lane in self._lanes:
            self._main.wait_stream(lane)

    def signal(self, lane: int | None, peer: int, name: str, number: int) -> None:
        # By default a write waits until all before it on the stream is seen everywhere: the copies, for a "done".
        stream, value = (self._main if lane is None else self._lanes[lane]).cuda_stream, number % 2**32
        flag, what = self._flag(peer, name), f"signalling '{name}' to rank {self._board.names[peer]}"
        if self.writes_values:
            done(self._driver.cuStreamWriteValue32(stream, flag, value, 0), what)
        else:  # write it here, and copy it there
            here = self._flags_at + _WORD_NBYTES * self._slot(name, peer, table=1)
            done(self._driver.cuStreamWriteValue32(stream, here, value, 0), what)
            done(self._driver.cuMemcpyAsync(flag, here, _WORD_NBYTES, stream), what)

    def wait(self, lane: int, peer: int, name: str, number: int, what: str) -> None:
        flag = self._flags_at + _WORD_NBYTES * self._slot(name, peer)
        kinds, stream = self._driver.CUstreamWaitValue_flags, self._lanes[lane].cuda_stream
        how = int(kinds.CU_STREAM_WAIT_VALUE_GEQ)
        if name == "done" and self.flushes:  # who sees the flag shall see what was written before it
            how |= int(kinds.CU_STREAM_WAIT_VALUE_FLUSH)
        outcome = self._driver.cuStreamWaitValue32(stream, flag, number % 2**32, how)
        done(outcome, f"waiting for '{name}' in {what}")

    def copy(self, lane: int, base: int, offset: int, source: torch.Tensor) -> None:
        stream = self._lanes[lane].cuda_stream
        done(self._driver.cuMemcpyAsync(base + offset, source.data_ptr(), source.numel(), stream), "a copy to a peer")

    def copy_own(self, target: torch.Tensor, source: torch.Tensor) -> None:
        stream = self._own.cuda_stream
        done(self._driver.cuMemcpyAsync(target.data_ptr(), source.data_ptr(), source.numel(), stream), "a copy")

    def check(self, timeout_s: float, number: int, what: str) -> None:
        def over() -> bool:
            return all(event.query() for event in self._events)

        poll(over, timeout_s, lambda: self._missing(number, what, timeout_s))

    def _missing(self, number: int, what: str, timeout_s: float) -> str:
        with torch.cuda.stream(self._aside):  # all others may be waiting
            words = self._flags.cpu().view(torch.int32).tolist()
        return self._board.missing(number, lambda name, peer: words[self._slot(name, peer)] % 2**32, what, timeout_s)

    def close(self) -> None:
        streams = [self._main, self._own, self._aside, *self._lanes]
        for stream in streams:
            stream.synchronize()
        with self._here():
            _unmap(self._driver, self._mapped)
        spare_streams.setdefault(self._device, []).extend(streams)

    def free(self) -> None:
        for block in self._blocks:
            block.shared[0] = False
        self._blocks.clear()


def _unmap(driver: Any, mapped: dict[tuple[int, bytes], int]) -> None:
    while mapped:
        _, address = mapped.popitem()
        driver.cuIpcCloseMemHandle(address)
