"""What the device tests share: the arms, and how one of them is run and timed."""

import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from c3lib.cuda.buffers import Buffers, Issue
from c3lib.cuda.device import Cuda
from c3lib.cuda.gemm import Operands
from c3lib.cuda.region import Gate, timed
from c3lib.cuda.sm_kernel import SmKernel
from c3lib.cuda.source import launch
from c3lib.cuda.streams import new_stream
from c3lib.cuda.transport import CopyEngine
from c3lib.transfer.builders import build_plan

MIB = 1 << 20
ARMS = ("copy_engine", "copy_engine batched", "sm_kernel 8")
each_arm = pytest.mark.parametrize("arm", ARMS)


def transport(arm: str, cuda: Cuda, buffers: Any, drop: int | None = None) -> Any:
    """The transport of an arm; ``sm_kernel N`` has N blocks."""
    name, _, how = arm.partition(" ")
    if name == "sm_kernel":
        return SmKernel(buffers, int(how), drop=drop)
    return CopyEngine(buffers, batched=how == "batched", drop=drop)


def buffers_of(cuda: Cuda, nbytes: int, ranks: int = 4, kind: str = "all-gather", direction: str = "both") -> Buffers:
    """Buffers of a collective seen from rank 0."""
    return Buffers([cuda], build_plan(kind, nbytes, ranks, "host"), direction)


def only(cuda: Cuda, *copies: tuple[int, int, int, int]) -> SimpleNamespace:
    """Stands for buffers whose copies are these: (source address, destination address, bytes, engine)."""
    return SimpleNamespace(cudas=[cuda], copies=lambda drop=None: [Issue(*copy) for copy in copies])


def run(cuda: Cuda, mover: Any, stream: Any = None) -> None:
    """One run without a gate, to its end."""
    stream = stream or new_stream(cuda)
    mover.ready()
    cuda.torch.cuda.synchronize()
    mover.enqueue([stream])
    stream.sync()


def moved(arm: str, cuda: Cuda, buffers: Buffers, iteration: int = 0, drop: int | None = None) -> None:
    """Prepare the buffers and run the arm once."""
    buffers.prepare(iteration)
    run(cuda, transport(arm, cuda, buffers, drop))


def pause(cuda: Cuda, seconds: float, grid: int = 1, block: int = 1) -> Any:
    """An enqueue of a kernel that waits."""
    return lambda streams: launch(cuda, streams[0], "pause", grid, block, np.uint64(round(seconds * 1e9)))


def transfer_s(cuda: Cuda, gate: Gate, mover: Any, stream: Any = None, repeats: int = 5) -> float:
    """Median time of a transfer alone."""
    stream = stream or new_stream(cuda)
    run(cuda, mover, stream)
    found = []
    for _ in range(repeats):
        mover.ready()
        cuda.torch.cuda.synchronize()
        times = timed(gate, None, ([stream], mover.enqueue))
        found.append(times.transfer_end_s - times.transfer_start_s)
    return statistics.median(found)


def gemm_s(cuda: Cuda, gate: Gate, operands: Operands, sms: int = 0, stream: Any = None, repeats: int = 5) -> float:
    """Median time of a GEMM alone; the first runs, which load kernels and allocate, have no gate."""
    stream = stream or new_stream(cuda)
    cuda.torch.cuda.synchronize()
    for turn in range(3):
        operands.enqueue(stream, turn, sms)
    stream.sync()
    found = []
    for turn in range(repeats):
        times = timed(gate, ([stream], lambda on, turn=turn: operands.enqueue(on[0], turn, sms)), None)
        found.append(times.gemm_end_s - times.gemm_start_s)
    return statistics.median(found)
