"""The window between GPUs: memory mapped by CUDA IPC, copies by copy engine, signals by stream memory operations.

No kernel runs for a collective: a copy to a peer's GPU is a copy engine's work, flags are written and awaited by the
GPU's front end. (Between processes that share one GPU all is as right, but copies within a GPU run on SMs.)
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from c3lib.collectives.board import SIGNALS, Board, poll
from c3lib.collectives.window import Place
from c3lib.collectives.work import CudaWork
from c3lib.errors import C3Error

_HANDLE_NBYTES = 64
_WORD_NBYTES = 4


def _done(outcome: tuple, what: str) -> Any:
    """The value of a driver call. Raises :class:`C3Error` with the driver's name for the error."""
    code, *values = outcome
    if int(code):
        raise C3Error(f"cuda: {what} failed: {code.name}")
    return values[0] if len(values) == 1 else values


class _Loan:
    """Lends memory to torch: its storage holds this object, so this is gone when the last tensor on it is."""

    def __init__(self, block: CudaBlock):
        self._block = block
        self.__cuda_array_interface__ = {
            "shape": (block.nbytes,),
            "typestr": "|u1",
            "data": (block.address, False),
            "strides": None,
            "version": 3,
        }


class CudaBlock:
    """Memory of the driver's own, not of torch's allocator: always a whole allocation, which IPC can share.

    It is freed with its last user, but never while peers may have it mapped, which CUDA leaves undefined.
    """

    def __init__(self, driver: Any, nbytes: int, device: torch.device):
        self.nbytes, self._device = nbytes, device
        self.address = int(_done(driver.cuMemAlloc(nbytes), f"allocating {nbytes} bytes of shared GPU memory"))
        self.shared = [True]
        weakref.finalize(self, _free, driver, self.address, self.shared).atexit = False
        self.word = _exported(driver, self.address), 0

    def lend(self, nbytes: int) -> tuple[torch.Tensor, Callable[[], Any]]:
        loan = _Loan(self)
        return torch.as_tensor(loan, device=self._device)[:nbytes], weakref.ref(loan)


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
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # opens the GPU, if nothing has yet
            torch.zeros(1, device=device)
            self._context = _done(driver.cuCtxGetCurrent(), "reading the context")
            self._main, self._own = (torch.cuda.Stream(device, priority=-1) for _ in range(2))
            self._lanes = [torch.cuda.Stream(device, priority=-1) for _ in board.peers]
            # Two tables of flags: what peers write, and what this rank has written to peers.
            flags = self.allocate(2 * len(SIGNALS) * board.ranks * _WORD_NBYTES)
            self._flags = flags.lend(flags.nbytes)[0]
            self._flags.zero_()
            torch.cuda.current_stream().synchronize()
            self._flags_at = flags.address
            words = board.exchange(flags.word, "sharing the flags of collectives")
            self._flags_of = [self.open(p, words[p]) if p != board.rank else self._flags_at for p in range(board.ranks)]
            self.writes_values = self._can_write_values()
            board.exchange(None, "sharing the flags of collectives")
        # Not when the program ends: closing may wait for streams, these for peers; and the driver closes them then.
        weakref.finalize(self, _unmap, driver, self._mapped).atexit = False

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
        with torch.cuda.device(self._device):
            self._blocks.append(CudaBlock(self._driver, nbytes, self._device))
        return self._blocks[-1]

    def place(self, output: torch.Tensor) -> Place:
        if not output.numel():
            return Place(None, output)
        what = "looking up the memory of the output"
        base, _ = _done(self._driver.cuMemGetAddressRange(output.data_ptr()), what)
        return Place((_exported(self._driver, int(base)), output.data_ptr() - int(base)), output)

    def open(self, peer: int, word: Any) -> int:
        handle, offset = word
        if (peer, handle) not in self._mapped:
            ipc = self._driver.CUipcMemHandle()
            ctypes.memmove(ipc.getPtr(), handle, _HANDLE_NBYTES)
            lazily = int(self._driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
            what = f"opening GPU memory of rank {self._board.names[peer]} (cuIpcOpenMemHandle)"
            self._mapped[peer, handle] = int(_done(self._driver.cuIpcOpenMemHandle(ipc, lazily), what))
        return self._mapped[peer, handle] + offset

    def opened(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def usable(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise C3Error("collectives by copy engine count their calls, so no CUDA graph can repeat one")

    def start(self, body: Callable[[], None], tensors: tuple[torch.Tensor, ...], asynchronous: bool) -> dist.Work:
        with torch.cuda.device(self._device):
            # A thread that torch made may have no context yet.
            _done(self._driver.cuCtxSetCurrent(self._context), "setting the context")
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
            _done(self._driver.cuStreamWriteValue32(stream, flag, value, 0), what)
        else:  # write it here, and copy it there
            here = self._flags_at + _WORD_NBYTES * self._slot(name, peer, table=1)
            _done(self._driver.cuStreamWriteValue32(stream, here, value, 0), what)
            _done(self._driver.cuMemcpyAsync(flag, here, _WORD_NBYTES, stream), what)

    def wait(self, lane: int, peer: int, name: str, number: int, what: str) -> None:
        flag = self._flags_at + _WORD_NBYTES * self._slot(name, peer)
        at_least = int(self._driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        stream = self._lanes[lane].cuda_stream
        _done(
            self._driver.cuStreamWaitValue32(stream, flag, number % 2**32, at_least), f"waiting for '{name}' in {what}"
        )

    def copy(self, lane: int, base: int, offset: int, source: torch.Tensor) -> None:
        stream = self._lanes[lane].cuda_stream
        _done(self._driver.cuMemcpyAsync(base + offset, source.data_ptr(), source.numel(), stream), "a copy to a peer")

    def copy_own(self, target: torch.Tensor, source: torch.Tensor) -> None:
        stream = self._own.cuda_stream
        _done(self._driver.cuMemcpyAsync(target.data_ptr(), source.data_ptr(), source.numel(), stream), "a copy")

    def check(self, timeout_s: float, number: int, what: str) -> None:
        def over() -> bool:
            return all(event.query() for event in self._events)

        poll(over, timeout_s, lambda: self._missing(number, what, timeout_s))

    def _missing(self, number: int, what: str, timeout_s: float) -> str:
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # any other waits as well
            words = self._flags.cpu().view(torch.int32).tolist()
        return self._board.missing(number, lambda name, peer: words[self._slot(name, peer)] % 2**32, what, timeout_s)

    def close(self) -> None:
        for stream in (self._main, self._own):
            stream.synchronize()
        _unmap(self._driver, self._mapped)

    def free(self) -> None:
        for block in self._blocks:
            block.shared[0] = False
        self._blocks.clear()


def _exported(driver: Any, base: int) -> bytes:
    code, handle = driver.cuIpcGetMemHandle(base)
    if int(code):
        raise C3Error(
            f"output: its GPU memory cannot be opened by other processes (cuIpcGetMemHandle: {code.name}), as that of "
            "expandable segments and memory pools cannot; take it from c3lib.collectives.empty, or have torch allocate "
            "without expandable_segments"
        )
    return ctypes.string_at(handle.getPtr(), _HANDLE_NBYTES)


def _unmap(driver: Any, mapped: dict[tuple[int, bytes], int]) -> None:
    while mapped:
        _, address = mapped.popitem()
        driver.cuIpcCloseMemHandle(address)


def _free(driver: Any, address: int, shared: list[bool]) -> None:
    if not shared[0]:
        driver.cuMemFree(address)
