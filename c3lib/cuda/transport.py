"""Who moves the bytes of a plan: what every transport does, and the one by copy engines. Nothing collective-specific.

``copy_engine`` issues asynchronous copies between GPUs, or between a GPU and pinned host memory, one by one or as a
batch. The same copies on SMs: :mod:`c3lib.cuda.sm_kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from c3lib.cuda.buffers import Buffers, Issue
from c3lib.cuda.device import Cuda, checked
from c3lib.cuda.streams import Barrier, Streams, new_event, new_stream
from c3lib.errors import C3Error

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
