"""Our copy kernel: the copies of a plan on some thread blocks, the stand-in for the kernels of a collective library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from c3lib.cuda.buffers import Buffers, Issue
from c3lib.cuda.device import Cuda, checked
from c3lib.cuda.source import BLOCK, kernels, launch
from c3lib.cuda.streams import Barrier, Streams
from c3lib.cuda.transport import by_step, issue_lists
from c3lib.errors import C3Error

CHUNK_NBYTES = 1 << 17  # what a block takes at a time: 2 rounds of its loads in flight


class SmKernel:
    """Our copy kernel on ``blocks`` thread blocks of each GPU; blocks take chunks of all copies in turn, engines
    alternating. Every step is a launch, and starts when all GPUs have ended the one before.

    The first starts at once, as a library's kernel does, which waits for its peers inside: to wait before it would make
    it second wherever it is to be launched first. Who runs it sees to it that every GPU's buffers are ready.
    """

    def __init__(self, buffers: Buffers, blocks: int, *, drop: int | None = None):
        self.name, self.blocks, self.buffers = "sm_kernel", blocks, buffers  # kept: they own the memory
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


class CopyLaunch:
    """One launch of a copy kernel (a name of :mod:`c3lib.cuda.source`) on ``blocks`` thread blocks, which take turns
    at ``chunks``, int64 of one row each as the kernel reads them, the address of the source first."""

    def __init__(self, cuda: Cuda, kernel: str, chunks: np.ndarray, blocks: int):
        self.cuda, self._kernel, self._blocks, self._count = cuda, kernel, blocks, len(chunks)
        kernels(cuda)
        torch, where = cuda.torch, f"cuda:{cuda.index}"
        self._chunks = torch.from_numpy(chunks.copy()).to(where)
        self._shift = 0
        self._ticket = torch.zeros(1, dtype=torch.int32, device=where)
        self._told = torch.zeros(3 * blocks, dtype=torch.int64, device=where)

    def ready(self, shift_nbytes: int = 0) -> None:
        """Reset the ticket and what the blocks tell; sources lie so many bytes further on than was given."""
        if shift_nbytes != self._shift:
            self._chunks[:, 0] += shift_nbytes - self._shift
            self._shift = shift_nbytes
        self._ticket.zero_()
        self._told.zero_()

    def restart(self, stream: Any) -> None:
        """Reset the ticket once what is before on the stream is done."""
        with self.cuda.current():
            found = self.cuda.driver.cuMemsetD32Async(self._ticket.data_ptr(), 0, 1, int(stream.handle))
            checked(self.cuda, found, "resetting the ticket of the copy kernel")

    def enqueue(self, stream: Any) -> None:
        """The launch."""
        launch(
            self.cuda, stream, self._kernel, self._blocks, BLOCK,
            np.uint64(self._chunks.data_ptr()), np.uint32(self._count), np.uint64(self._ticket.data_ptr()),
            np.uint64(self._told.data_ptr()),
        )  # fmt: skip

    def told(self) -> tuple[int, int]:
        """How many blocks ran, and on how many different SMs: the kernel's own word."""
        sms = self._told.cpu().numpy()[::3]
        return int((sms > 0).sum()), len(set(sms[sms > 0].tolist()))


class _Launch(CopyLaunch):
    """One rank's copies of one step by the copy kernel."""

    def __init__(self, cuda: Cuda, rank: int, blocks: int, copies: Sequence[Issue]):
        super().__init__(cuda, "copy", chunk_list(copies).view(np.int64), blocks)
        self.rank = rank


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
