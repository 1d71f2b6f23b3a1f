"""Who moves the bytes of a plan: copy engines, or our copy kernel on some thread blocks. Nothing collective-specific.

``copy_engine`` issues asynchronous copies between GPU and pinned host memory, one by one or as a batch; ``sm_kernel``
runs the same copies on SMs, the stand-in for the kernels of a collective library.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from c3lib.cuda.buffers import Buffers
from c3lib.cuda.device import Cuda, checked
from c3lib.cuda.source import BLOCK, kernels, launch
from c3lib.errors import C3Error

CHUNK_NBYTES = 1 << 17  # what a block takes at a time: 2 rounds of its loads in flight
_DEFAULT_STREAMS = (0, 1, 2)  # handles of the null, the legacy and the per-thread default stream


class Transport(Protocol):
    """Moves the bytes of some buffers when enqueued; may be enqueued again and again."""

    name: str

    def ready(self) -> None:
        """What has to be done before each run, outside of every clock."""

    def restart(self, stream: Any) -> None:
        """The same, put on a stream: for a run that follows another one there."""

    def enqueue(self, stream: Any) -> None:
        """Put the transfer on a stream of cuda.core; returns before it runs."""


def issue_lists(copies: list[tuple[int, int, int, int]]) -> dict[int, list[tuple[int, int, int]]]:
    """Copies by engine, each ``(source, destination, bytes)``, in order."""
    lists: dict[int, list[tuple[int, int, int]]] = {}
    for source, target, nbytes, engine in copies:
        lists.setdefault(engine, []).append((source, target, nbytes))
    return lists


class CopyEngine:
    """Asynchronous copies by the GPU's copy engines, a stream for each direction.

    ``batched``: one call for all copies of a direction (``cuMemcpyBatchAsync``), with the preference to overlap with
    compute; else one call a copy.

    Raises:
        C3Error: a plan of several steps or a copy within the GPU, which runs on SMs there and is no DMA transfer; a
            driver without batched copies.
    """

    def __init__(
        self, cuda: Cuda, buffers: Buffers, *, batched: bool = False, drop: int | None = None, high: bool = False
    ):
        self.name = "copy_engine"
        self.cuda, self.batched = cuda, batched
        self.buffers = buffers  # only addresses are used from here on: what lies there must not be given back
        if buffers.plan.steps > 1:
            raise C3Error(f"{buffers.plan}: copy_engine runs plans of one step, this one has {buffers.plan.steps}")
        copies = buffers.copies(drop)
        _refuse_local(cuda, copies)
        driver = cuda.driver
        if batched and not hasattr(driver, "cuMemcpyBatchAsync"):
            raise C3Error("copy_engine: these bindings have no cuMemcpyBatchAsync; use plain copies")
        self._lists = list(issue_lists(copies).values())
        self._streams = [new_stream(cuda, high=high) for _ in self._lists[1:]]
        self._joins = [new_event(cuda) for _ in self._lists]
        self._pointers = [
            ([driver.CUdeviceptr(c[0]) for c in part], [driver.CUdeviceptr(c[1]) for c in part], [c[2] for c in part])
            for part in self._lists
        ]
        self._attributes = overlap_attributes(cuda) if batched else None

    @property
    def copies(self) -> int:
        """Copies that one run issues."""
        return sum(map(len, self._lists))

    def ready(self) -> None:
        """Nothing to do."""

    def restart(self, stream: Any) -> None:
        """Nothing to do."""

    def enqueue(self, stream: Any) -> None:
        """All copies; the stream goes on when the last of them is done."""
        if self._streams:
            stream.record(self._joins[0])
        for place, part in enumerate(self._pointers):
            on = stream if place == 0 else self._streams[place - 1]
            if place:
                on.wait(self._joins[0])
            self.submit(part, on)
            if place:
                on.record(self._joins[place])
        for join in self._joins[1:]:
            stream.wait(join)

    def submit(self, part: tuple, stream: Any) -> None:
        """Issue one list of copies on one stream. Raises :class:`C3Error` for a batch on the default stream."""
        driver, handle = self.cuda.driver, int(stream.handle)
        sources, targets, sizes = part
        if self.batched:
            if handle in _DEFAULT_STREAMS:
                raise C3Error(
                    "copy_engine: a batch of copies cannot go on the default stream; give it a stream of its own"
                )
            found = driver.cuMemcpyBatchAsync(targets, sources, sizes, len(sizes), [self._attributes], [0], 1, handle)
            checked(self.cuda, found, "a batch of copies (cuMemcpyBatchAsync)")
            return
        for source, target, nbytes in zip(sources, targets, sizes, strict=True):
            checked(self.cuda, driver.cuMemcpyAsync(target, source, nbytes, handle), "a copy (cuMemcpyAsync)")


def overlap_attributes(cuda: Cuda) -> Any:
    """Attributes of a batched copy: read in stream order, prefer to overlap with compute."""
    attributes = cuda.driver.CUmemcpyAttributes()
    attributes.srcAccessOrder = cuda.driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    attributes.flags = int(cuda.driver.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
    return attributes


def new_stream(cuda: Cuda, *, high: bool = False, context: Any = None) -> Any:
    """A stream of cuda.core, of the lowest or the highest priority, on the whole GPU or in a green context."""
    least, most = stream_priorities(cuda)
    options = cuda.core.StreamOptions(nonblocking=True, priority=most if high else least)
    return (context or cuda.device).create_stream(options=options)


def stream_priorities(cuda: Cuda) -> tuple[int, int]:
    """Numbers of the lowest and the highest priority of a stream."""
    return tuple(checked(cuda, cuda.driver.cuCtxGetStreamPriorityRange(), "reading the stream priorities"))


def new_event(cuda: Cuda, *, timed: bool = False) -> Any:
    """An event of cuda.core."""
    return cuda.device.create_event(options=cuda.core.EventOptions(timing_enabled=timed))


def memory_side(cuda: Cuda, address: int) -> str:
    """``"device"`` or ``"host"``: where an address lies, by the driver."""
    which = cuda.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    kind = checked(cuda, cuda.driver.cuPointerGetAttribute(which, address), "asking where an address lies")
    return "device" if int(kind) == int(cuda.driver.CUmemorytype.CU_MEMORYTYPE_DEVICE) else "host"


def _refuse_local(cuda: Cuda, copies: list[tuple[int, int, int, int]]) -> None:
    for source, target, nbytes, _ in copies:
        if memory_side(cuda, source) == memory_side(cuda, target) == "device":
            raise C3Error(
                f"copy_engine: a copy of {nbytes} bytes within one GPU is no DMA transfer: on this GPU it runs on SMs "
                "and competes with the GEMM; use sm_kernel, or a peer's or the host's memory"
            )


class SmKernel:
    """Our copy kernel on ``blocks`` thread blocks; blocks take chunks of all copies in turn, directions alternating."""

    def __init__(self, cuda: Cuda, buffers: Buffers, blocks: int, *, drop: int | None = None):
        self.name, self.blocks = "sm_kernel", blocks
        self.cuda, self.buffers = cuda, buffers  # kept, as above
        if blocks < 1:
            raise C3Error(f"sm_kernel: blocks must be at least 1, not {blocks}")
        if buffers.plan.steps > 1:
            raise C3Error(f"{buffers.plan}: sm_kernel runs plans of one step, this one has {buffers.plan.steps}")
        torch = cuda.torch
        chunks = chunk_list(buffers.copies(drop))
        self._count = len(chunks)
        kernels(cuda)
        self._chunks = torch.from_numpy(chunks.view(np.int64).copy()).cuda()
        self._ticket = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._told = torch.zeros(3 * blocks, dtype=torch.int64, device="cuda")

    def ready(self) -> None:
        """Reset the ticket and what the blocks tell."""
        self._ticket.zero_()
        self._told.zero_()

    def restart(self, stream: Any) -> None:
        """Reset the ticket once what is before it on the stream is done."""
        found = self.cuda.driver.cuMemsetD32Async(self._ticket.data_ptr(), 0, 1, int(stream.handle))
        checked(self.cuda, found, "resetting the ticket of the copy kernel")

    def enqueue(self, stream: Any) -> None:
        """One launch."""
        launch(
            self.cuda, stream, "copy", self.blocks, BLOCK,
            np.uint64(self._chunks.data_ptr()), np.uint32(self._count), np.uint64(self._ticket.data_ptr()),
            np.uint64(self._told.data_ptr()),
        )  # fmt: skip

    def told(self) -> tuple[int, int]:
        """How many blocks ran in the last run, and on how many different SMs: the kernel's own word."""
        sms = self._told.cpu().numpy()[::3]
        return int((sms > 0).sum()), len(set(sms[sms > 0].tolist()))


def chunk_list(copies: list[tuple[int, int, int, int]]) -> np.ndarray:
    """Chunks ``(source, destination, bytes)``, uint64 of shape (chunks, 3): engines take turns, copies in order."""
    lanes = []
    for part in issue_lists(copies).values():
        cut = [
            (source + first, target + first, min(CHUNK_NBYTES, nbytes - first))
            for source, target, nbytes in part
            for first in range(0, nbytes, CHUNK_NBYTES)
        ]
        lanes.append(cut)
    turns = [lane[place] for place in range(max(map(len, lanes), default=0)) for lane in lanes if place < len(lane)]
    return np.array(turns, np.uint64).reshape(-1, 3)
