"""The kernels of a schedule as one rank launches them, in order on one stream: GEMMs by torch, and moves of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from c3lib.cuda.device import Cuda
from c3lib.cuda.gemm import set_sm_target
from c3lib.cuda.matrices import Matrices
from c3lib.errors import C3Error
from c3lib.ficco.graph import COPY, GEMM, Block, Program, Task

NOTHING = -1
"""A kernel that waits for no exchange."""

_WORDS = (("complex128", 16), ("int64", 8), ("int32", 4))  # to move rows in, widest first


class Kernel(NamedTuple):
    """A GEMM ``out (+)= a b``, or without ``b`` rows moved from ``a`` to ``out``; views of the matrices.

    ``waits``: the operation of the exchange that must have ended before, or :data:`NOTHING`.
    """

    out: Any
    a: Any
    b: Any
    accumulate: bool
    waits: int


class KernelLane:
    """All kernels of a program, in order. ``brings``: the exchange's operation that brings each copy.

    Raises:
        C3Error: a result whose rows do not lie together, which torch would compute elsewhere and copy.
    """

    def __init__(self, cuda: Cuda, program: Program, matrices: Matrices, brings: Mapping[int, int]):
        self.cuda = cuda
        self.kernels: list[Kernel] = []
        tasks = [(place, task) for place, task in enumerate(program.tasks) if task.op != COPY]
        for (op, _), group in groupby(tasks, lambda item: (item[1].op, item[1].step)):
            part = list(group)
            after = {before for _, task in part for before in task.after}
            if op != GEMM:
                waits = max((brings[before] for before in after & brings.keys()), default=NOTHING)
                self.kernels += [Kernel(out, a, None, False, waits) for a, out in moves(matrices, part)]
                continue
            for _, task in part:
                waits = max((brings[before] for before in brings.keys() & set(task.after)), default=NOTHING)
                out, a, b = (matrices.view(block) for block in (task.out, task.a, task.b) if block is not None)
                if out.stride(-1) != 1 or out.stride(0) < out.shape[1]:
                    raise C3Error(f"{program}: a result of strides {out.stride()} would be computed in a copy")
                self.kernels.append(Kernel(out, a, b, task.accumulate, waits))

    @property
    def awaited(self) -> set[int]:
        """Operations of the exchange that some kernel waits for."""
        return {kernel.waits for kernel in self.kernels} - {NOTHING}

    def enqueue(self, stream: Any, sms: int, wait: Any, started: Any) -> None:
        """Put all on a stream; cuBLAS counts on ``sms`` SMs (0: all).

        ``wait(operation)`` is called before a kernel that needs it, where no later one was waited for; ``started()``
        just before the first kernel.
        """
        torch, waited = self.cuda.torch, NOTHING
        with self.cuda.current():
            set_sm_target(self.cuda, sms)
            with torch.cuda.stream(torch.cuda.ExternalStream(int(stream.handle), device=self.cuda.index)):
                for place, kernel in enumerate(self.kernels):
                    if kernel.waits > waited:
                        wait(kernel.waits)
                        waited = kernel.waits
                    if place == 0:
                        started()
                    run(torch, kernel)


def run(torch: Any, kernel: Kernel) -> None:
    """Launch one kernel on torch's current stream."""
    if kernel.b is None:
        kernel.out.copy_(kernel.a)
    elif kernel.accumulate:
        kernel.out.addmm_(kernel.a, kernel.b)
    else:
        torch.mm(kernel.a, kernel.b, out=kernel.out)


def moves(matrices: Matrices, part: Sequence[tuple[int, Task]]) -> list[tuple[Any, Any]]:
    """Pairs ``(from, to)`` of views that move the rows of one step: a single pair where its blocks are evenly apart."""
    blocks = [(task.a, task.out) for _, task in part]
    both = [spread(matrices, [pair[side] for pair in blocks]) for side in (0, 1)]
    if len(blocks) == 1 or both[0] is None or both[1] is None:
        return [(matrices.view(a), matrices.view(out)) for a, out in blocks]
    return [(as_words(matrices.cuda.torch, both[0], both), as_words(matrices.cuda.torch, both[1], both))]


def spread(matrices: Matrices, blocks: Sequence[Block]) -> Any:
    """One view ``(blocks, rows, columns)`` of blocks alike in all but a row that grows evenly; None of others."""
    first, apart = blocks[0], blocks[-1].row - blocks[0].row
    step = apart // max(1, len(blocks) - 1)
    if any(block != first._replace(row=first.row + place * step) for place, block in enumerate(blocks)):
        return None
    view = matrices.view(first)
    pitch = view.stride(0)
    return view.as_strided((len(blocks), first.rows, first.cols), (step * pitch, pitch, 1), view.storage_offset())


def as_words(torch: Any, view: Any, both: Sequence[Any]) -> Any:
    """The view in the widest words that both sides consist of: rows are moved as bits, and wide words move faster."""
    size = view.element_size()
    numbers = [n * size for side in both for n in (side.storage_offset(), side.shape[-1], *side.stride()[:-1])]
    for name, nbytes in _WORDS:
        if all(number % nbytes == 0 for number in numbers):
            return view.view(getattr(torch, name))
    return view
