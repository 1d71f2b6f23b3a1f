"""Who moves the bytes of a plan: copy engines, or our copy kernel on some thread blocks. Nothing collective-specific.

``copy_engine`` issues asynchronous copies between GPUs, or between a GPU and pinned host memory, one by one or as a
batch; ``sm_kernel`` runs the same copies on SMs, the stand-in for the kernels of a collective library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from c3lib.cuda.buffers import Buffers, Issue
from c3lib.cuda.device import Cuda, checked
from c3lib.cuda.source import BLOCK, kernels, launch
from c3lib.cuda.streams import Barrier, Streams, new_event, new_stream
from c3lib.errors import C3Error

CHUNK_NBYTES = 1 << 17  # what a block takes at a time: 2 rounds of its loads in flight
_DEFAULT_STREAMS = (0, 1, 2)  # handles of the null, the legacy and the per-thread default stream


class Transport(Protocol):
    """Moves the bytes of some buffers when enqueued; may be enqueued again and again."""

    name: str

    def ready(self) -> None:
        """What has to be done before each run, outside of every clock."""

    def restart(self, streams: Streams) -> None:
        """The same, put on the streams: for a run that follows another one there."""

    def enqueue(self, streams: Streams) -> None:
        """Put the transfer on a stream of each GPU; returns before it runs."""


def issue_lists(copies: Sequence[Issue]) -> dict[int, list[Issue]]:
    """Copies by engine, in order."""
    lists: dict[int, list[Issue]] = {}
    for copy in copies:
        lists.setdefault(copy.engine, []).append(copy)
    return lists


def by_step(copies: Sequence[Issue]) -> list[dict[int, list[Issue]]]:
    """For each step the copies by issuing rank, in order."""
    steps: dict[int, dict[int, list[Issue]]] = {}
    for copy in copies:
        steps.setdefault(copy.step, {}).setdefault(copy.issuer, []).append(copy)
    return [steps[step] for step in sorted(steps)]


class CopyEngine:
    """Asynchronous copies by the GPUs' copy engines, a stream for each engine that a rank's copies are dealt to.

    ``batched``: one call for all copies of an engine (``cuMemcpyBatchAsync``), with the preference to overlap with
    compute; else one call a copy. Every step starts when all GPUs have ended the one before. ``bare`` leaves out all
    waiting for other GPUs: no collective, since nobody knows when it may start or has ended, but what the links give.

    Raises:
        C3Error: bare copies of several steps; a copy within a GPU, which runs on SMs there and is no DMA transfer; a
            driver without batched copies.
    """

    def __init__(
        self,
        buffers: Buffers,
        *,
        batched: bool = False,
        drop: int | None = None,
        high: bool = False,
        bare: bool = False,
    ):
        self.name = "bare_copy" if bare else "copy_engine"
        self.buffers, self.batched = buffers, batched  # kept: what lies at the addresses must not be given back
        copies = buffers.copies(drop)
        _refuse_local(buffers.cudas[0], copies)
        if batched and not hasattr(buffers.cudas[0].driver, "cuMemcpyBatchAsync"):
            raise C3Error("copy_engine: these bindings have no cuMemcpyBatchAsync; use plain copies")
        self.copies = len(copies)
        """Copies that one run issues."""
        self._barrier = Barrier(() if bare else buffers.cudas)
        self._steps = [
            [_Fan(buffers.cudas[rank], rank, part, batched, high) for rank, part in step.items()]
            for step in by_step(copies)
        ]
        if bare and len(self._steps) > 1:
            raise C3Error(f"{buffers.plan}: bare copies have one step, this plan has {len(self._steps)}")

    def ready(self) -> None:
        """Nothing to do."""

    def restart(self, streams: Streams) -> None:
        """Nothing to do."""

    def enqueue(self, streams: Streams) -> None:
        """All copies; each GPU's stream goes on when all GPUs are done."""
        self._barrier.enqueue(streams)
        for step in self._steps:
            for fan in step:
                fan.enqueue(streams[fan.rank])
            self._barrier.enqueue(streams)


class _Fan:
    """One rank's copies of one step, fanned out over a stream for each engine and joined again."""

    def __init__(self, cuda: Cuda, rank: int, copies: Sequence[Issue], batched: bool, high: bool):
        self.cuda, self.rank = cuda, rank
        lists = list(issue_lists(copies).values())
        self._streams = [new_stream(cuda, high=high) for _ in lists[1:]]
        self._joins = [new_event(cuda) for _ in lists]
        address = cuda.driver.CUdeviceptr
        self._parts = [
            ([address(c.source) for c in part], [address(c.target) for c in part], [c.nbytes for c in part])
            for part in lists
        ]
        self._attributes = overlap_attributes(cuda) if batched else None

    def enqueue(self, stream: Any) -> None:
        """The copies; the stream goes on when the last of them is done."""
        with self.cuda.current():
            if self._streams:
                stream.record(self._joins[0])
            for place, part in enumerate(self._parts):
                on = stream if place == 0 else self._streams[place - 1]
                if place:
                    on.wait(self._joins[0])
                self._submit(part, on)
                if place:
                    on.record(self._joins[place])
            for join in self._joins[1:]:
                stream.wait(join)

    def _submit(self, part: tuple, stream: Any) -> None:
        """Issue one list of copies on one stream. Raises :class:`C3Error` for a batch on the default stream."""
        driver, handle = self.cuda.driver, int(stream.handle)
        sources, targets, sizes = part
        if self._attributes is not None:
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


def memory_side(cuda: Cuda, address: int) -> str:
    """Where an address lies: ``"host"``, or ``"GPU 0"`` with the GPU's number.

    By the runtime: the driver's attribute DEVICE_ORDINAL was seen to read 0 for the memory of every GPU.
    """
    found = checked(cuda, cuda.runtime.cudaPointerGetAttributes(address), "asking where an address lies")
    on_gpu = found.type == cuda.runtime.cudaMemoryType.cudaMemoryTypeDevice
    return f"GPU {found.device}" if on_gpu else "host"


def _refuse_local(cuda: Cuda, copies: Sequence[Issue]) -> None:
    for copy in copies:
        side = memory_side(cuda, copy.source)
        if side != "host" and side == memory_side(cuda, copy.target):
            raise C3Error(
                f"copy_engine: a copy of {copy.nbytes} bytes within one GPU is no DMA transfer: on this GPU it runs on "
                "SMs and competes with the GEMM; use sm_kernel, or a peer's or the host's memory"
            )


class SmKernel:
    """Our copy kernel on ``blocks`` thread blocks of each GPU; blocks take chunks of all copies in turn, engines
    alternating. Every step is a launch, and starts when all GPUs have ended the one before.

    The first starts at once, as a library's kernel does, which waits for its peers inside: to wait before it would make
    it second wherever it is to be launched first. Who runs it sees to it that every GPU's buffers are ready.
    """

    def __init__(self, buffers: Buffers, blocks: int, *, drop: int | None = None):
        self.name, self.blocks, self.buffers = "sm_kernel", blocks, buffers  # kept, as above
        if blocks < 1:
            raise C3Error(f"sm_kernel: blocks must be at least 1, not {blocks}")
        self._barrier = Barrier(buffers.cudas)
        self._steps = [
            [_Launch(buffers.cudas[rank], rank, blocks, part) for rank, part in step.items()]
            for step in by_step(buffers.copies(drop))
        ]

    def ready(self) -> None:
        """Reset the tickets and what the blocks tell."""
        for part in self._launches:
            part.ready()

    def restart(self, streams: Streams) -> None:
        """Reset the tickets once what is before them on the streams is done."""
        for part in self._launches:
            part.restart(streams[part.rank])

    def enqueue(self, streams: Streams) -> None:
        """One launch a step and GPU."""
        for step in self._steps:
            for part in step:
                part.enqueue(streams[part.rank])
            self._barrier.enqueue(streams)

    @property
    def _launches(self) -> Iterator[_Launch]:
        return (part for step in self._steps for part in step)

    def told(self) -> tuple[int, int]:
        """How many blocks of a launch ran in the last run, and on how many different SMs: the kernel's own word; of
        several launches the fewest."""
        return min(part.told() for part in self._launches)


class _Launch:
    """One rank's copies of one step by the copy kernel."""

    def __init__(self, cuda: Cuda, rank: int, blocks: int, copies: Sequence[Issue]):
        self.cuda, self.rank, self._blocks = cuda, rank, blocks
        chunks = chunk_list(copies)
        self._count = len(chunks)
        kernels(cuda)
        torch, where = cuda.torch, f"cuda:{cuda.index}"
        self._chunks = torch.from_numpy(chunks.view(np.int64).copy()).to(where)
        self._ticket = torch.zeros(1, dtype=torch.int32, device=where)
        self._told = torch.zeros(3 * blocks, dtype=torch.int64, device=where)

    def ready(self) -> None:
        self._ticket.zero_()
        self._told.zero_()

    def restart(self, stream: Any) -> None:
        with self.cuda.current():
            found = self.cuda.driver.cuMemsetD32Async(self._ticket.data_ptr(), 0, 1, int(stream.handle))
            checked(self.cuda, found, "resetting the ticket of the copy kernel")

    def enqueue(self, stream: Any) -> None:
        launch(
            self.cuda, stream, "copy", self._blocks, BLOCK,
            np.uint64(self._chunks.data_ptr()), np.uint32(self._count), np.uint64(self._ticket.data_ptr()),
            np.uint64(self._told.data_ptr()),
        )  # fmt: skip

    def told(self) -> tuple[int, int]:
        sms = self._told.cpu().numpy()[::3]
        return int((sms > 0).sum()), len(set(sms[sms > 0].tolist()))


def chunk_list(copies: Sequence[Issue]) -> np.ndarray:
    """Chunks ``(source, destination, bytes)``, uint64 of shape (chunks, 3): engines take turns, copies in order."""
    lanes = []
    for part in issue_lists(copies).values():
        cut = [
            (c.source + first, c.target + first, min(CHUNK_NBYTES, c.nbytes - first))
            for c in part
            for first in range(0, c.nbytes, CHUNK_NBYTES)
        ]
        lanes.append(cut)
    turns = [lane[place] for place in range(max(map(len, lanes), default=0)) for lane in lanes if place < len(lane)]
    return np.array(turns, np.uint64).reshape(-1, 3)
