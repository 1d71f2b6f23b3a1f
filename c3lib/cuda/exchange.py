"""The copies of a schedule as one rank issues them, in order on one stream: by copy engine or by SM kernel.

Each copy, each batch of small ones and each launch is an *operation*; a GEMM waits for the operation that brings the
last of what it reads. The operations move rows that lie together, or apart (slices of columns) by a pitch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from c3lib.cuda.device import Cuda, checked
from c3lib.cuda.matrices import Matrices
from c3lib.cuda.sm_kernel import CHUNK_NBYTES, CopyLaunch
from c3lib.cuda.streams import Streams
from c3lib.cuda.transport import overlap_attributes
from c3lib.errors import C3Error
from c3lib.ficco.graph import COPY, Program

BATCHED_NBYTES = 1 << 20
"""Copies up to this size go to the copy engine in one call a step: one alone costs some microseconds to start."""


class Piece(NamedTuple):
    """A copy as it is issued: addresses, bytes of a row, rows, and bytes from row to row on either side."""

    source: int
    target: int
    nbytes: int
    rows: int = 1
    source_pitch: int = 0
    target_pitch: int = 0

    @property
    def total_nbytes(self) -> int:
        """Bytes that it moves."""
        return self.nbytes * self.rows


def piece(source: Any, target: Any) -> Piece:
    """A copy between two views ``(rows, columns)``; rows that lie together on both sides are one.

    Raises:
        C3Error: elements of a row do not lie together, or shapes differ.
    """
    if source.shape != target.shape or (source.shape[1] > 1 and (source.stride(1), target.stride(1)) != (1, 1)):
        raise C3Error(f"a copy from {tuple(source.shape)} to {tuple(target.shape)}: rows must be whole and alike")
    size, (rows, cols) = source.element_size(), source.shape
    pitches = source.stride(0) * size, target.stride(0) * size
    if rows == 1 or pitches == (cols * size, cols * size):
        return Piece(source.data_ptr(), target.data_ptr(), rows * cols * size)
    return Piece(source.data_ptr(), target.data_ptr(), cols * size, rows, *pitches)


class Operation(Protocol):
    """What is put on the stream at once."""

    nbytes: int

    def ready(self, shift_nbytes: int) -> None:
        """Before each run, outside of every clock; sources lie so many bytes further on."""

    def restart(self, stream: Any) -> None:
        """The same, put on the stream, for a run that follows another one there; the shift stays."""

    def enqueue(self, stream: Any) -> None:
        """Put it on a stream; returns before it runs."""


class EngineCopies:
    """Copies by a copy engine, one call each, or one call for all of them (``batched``)."""

    def __init__(self, cuda: Cuda, parts: Sequence[Piece], batched: bool):
        self.cuda, self.parts, self.nbytes = cuda, list(parts), sum(part.total_nbytes for part in parts)
        self._attributes = overlap_attributes(cuda) if batched and parts else None
        self._shift = 0

    def ready(self, shift_nbytes: int) -> None:
        """Nothing but the shift."""
        self._shift = shift_nbytes

    def restart(self, stream: Any) -> None:
        """Nothing to do."""

    def enqueue(self, stream: Any) -> None:
        """The calls."""
        driver, runtime, handle = self.cuda.driver, self.cuda.runtime, int(stream.handle)
        with self.cuda.current():
            if self._attributes is not None:
                sources = [driver.CUdeviceptr(part.source + self._shift) for part in self.parts]
                targets = [driver.CUdeviceptr(part.target) for part in self.parts]
                sizes, count = [part.nbytes for part in self.parts], len(self.parts)
                found = driver.cuMemcpyBatchAsync(targets, sources, sizes, count, [self._attributes], [0], 1, handle)
                checked(self.cuda, found, "a batch of copies (cuMemcpyBatchAsync)")
                return
            for part in self.parts:
                source = part.source + self._shift
                if part.rows == 1:
                    found = driver.cuMemcpyAsync(part.target, source, part.nbytes, handle)
                    checked(self.cuda, found, "a copy (cuMemcpyAsync)")
                    continue
                found = runtime.cudaMemcpy2DAsync(
                    part.target, part.target_pitch, source, part.source_pitch, part.nbytes, part.rows,
                    runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, handle,
                )  # fmt: skip
                checked(self.cuda, found, "a copy of rows (cudaMemcpy2DAsync)")


class KernelCopies(CopyLaunch):
    """Copies by one launch of our copy kernel, on ``blocks`` thread blocks that take chunks of them in turn."""

    def __init__(self, cuda: Cuda, parts: Sequence[Piece], blocks: int):
        self.nbytes = sum(part.total_nbytes for part in parts)
        apart = any(part.rows > 1 for part in parts)
        width = 6 if apart else 3  # of the kernel's structure
        chunks = row_chunks(parts)[:, :width].astype(np.int64)
        super().__init__(cuda, "copy_rows" if apart else "copy", chunks, blocks)


def row_chunks(parts: Sequence[Piece]) -> np.ndarray:
    """Chunks ``(source, target, bytes of a row, rows, source pitch, target pitch)``, int64, of at most
    :data:`CHUNK_NBYTES` or one row; copies in order."""
    found = []
    for part in parts:
        if part.rows == 1:
            for first in range(0, part.nbytes, CHUNK_NBYTES):
                size = min(CHUNK_NBYTES, part.nbytes - first)
                found.append((part.source + first, part.target + first, size, 1, 0, 0))
            continue
        step = max(1, CHUNK_NBYTES // part.nbytes)
        for row in range(0, part.rows, step):
            source, target = part.source + row * part.source_pitch, part.target + row * part.target_pitch
            rows = min(step, part.rows - row)
            found.append((source, target, part.nbytes, rows, part.source_pitch, part.target_pitch))
    return np.array(found, np.int64).reshape(-1, 6)


class Exchange:
    """All exchanges of a program, as a transport: ``copy_engine``, or with ``blocks`` ``sm_kernel``.

    ``drop`` leaves out the copy of that number, for a negative control.

    Raises:
        C3Error: a program whose copies wait for its kernels, or that has none.
    """

    def __init__(self, cuda: Cuda, program: Program, matrices: Matrices, blocks: int = 0, drop: int | None = None):
        self.name, self.blocks = "sm_kernel" if blocks else "copy_engine", blocks
        self.matrices = matrices  # kept: it owns the memory
        self.operations: list[Any] = []
        self.step_ends: list[int] = []
        """The last operation of each step."""
        self.brings: dict[int, int] = {}
        """The operation that brings each copy, by the copy's place among the program's tasks."""
        self.copies, self._shift = 0, 0
        steps: dict[int, list[int]] = {}
        for place, task in enumerate(program.tasks):
            if task.op == COPY:
                if any(program.tasks[before].op != COPY for before in task.after):
                    raise C3Error(f"{program}: copy {place} waits for a kernel, which is not what runs here")
                steps.setdefault(task.step, []).append(place)
        if not steps:
            raise C3Error(f"{program}: fetches nothing, so there is nothing to overlap")
        dropped = None if drop is None else program.tasks.index(program.of(COPY)[drop])
        for places in steps.values():
            tasks = [program.tasks[place] for place in places]
            parts = [piece(matrices.peer(program, task.a), matrices.view(task.out)) for task in tasks]
            kept = [[] if place == dropped else [part] for place, part in zip(places, parts, strict=True)]
            small = max(part.total_nbytes for part in parts) <= BATCHED_NBYTES
            batched = not blocks and small and len(parts) > 1 and all(part.rows == 1 for part in parts)
            for together in [range(len(places))] if blocks or batched else [[one] for one in range(len(places))]:
                self.brings |= {places[one]: len(self.operations) for one in together}
                copies = [part for one in together for part in kept[one]]
                self.copies += len(copies)
                self.operations.append(
                    KernelCopies(cuda, copies, blocks) if blocks else EngineCopies(cuda, copies, batched)
                )
            self.step_ends.append(len(self.operations) - 1)

    @property
    def nbytes(self) -> int:
        """Bytes that all operations move."""
        return sum(operation.nbytes for operation in self.operations)

    def ready(self, turn: int | None = None) -> None:
        """What has to be done before each run, outside of every clock; by default for the iteration of the last."""
        if turn is not None:
            self._shift = self.matrices.shift_nbytes(turn)
        for operation in self.operations:
            operation.ready(self._shift)

    def enqueue(self, streams: Streams) -> None:
        """All operations in order on the first stream."""
        for operation in self.operations:
            operation.enqueue(streams[0])

    def told(self) -> tuple[int, int]:
        """How many blocks of a launch ran in the last run, and on how many SMs; of several launches the fewest."""
        return min(op.told() for op in self.operations if isinstance(op, KernelCopies))
