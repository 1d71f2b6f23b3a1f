"""The GEMM of a region: torch on HIP streams with a CU mask; where there is no AMD GPU, torch on the CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Sequence

from c3lib.amd.hip import Hip, Stream
from c3lib.amd.mask import CuMask
from c3lib.amd.runtime import Runtime
from c3lib.amd.work import CpuWork, HipWork, Work
from c3lib.errors import C3Error
from c3lib.operands import Operands
from c3lib.workload import Gemm

CPU_FLOP = 2**32
"""What a GEMM of all ranks may take on the CPU: seconds, not hours."""


class Launcher(ABC):
    """One GEMM on every rank, each on operands of its own. ``path`` says what runs it."""

    gemm: Gemm
    path: str
    _operands: list[Operands]

    @abstractmethod
    def work(self, turn: int, mask: CuMask | None, after: Work | None = None) -> Work:
        """The GEMM of a turn on the CUs of a mask; launched after the kernels of ``after``, if those are on streams."""

    def poison(self, turn: int) -> None:
        """Spoil what the last GEMM of these operands computed."""
        for operands in self._operands:
            operands.poison(turn)

    def right(self, turn: int) -> bool:
        """Whether every rank's result is right."""
        return all(operands.right(turn) for operands in self._operands)


class HipGemm(Launcher):
    """Torch's GEMM on a stream of each rank's GPU, each on operands of its own.

    Raises:
        C3Error: a dtype that torch's mm does not take, or too little memory.
    """

    def __init__(self, runtime: Runtime, hip: Hip, gemm: Gemm) -> None:
        self.gemm, self.path = gemm, f"torch {hip.torch.__version__} on HIP {hip.version}"
        self._runtime, self._hip = runtime, hip
        try:
            self._operands = [
                Operands(hip.torch, f"cuda:{index}", gemm, seed) for seed, index in enumerate(hip.indices)
            ]
        except hip.torch.OutOfMemoryError:
            raise C3Error(f"amd: not enough GPU memory for the operands of {gemm}") from None

    def work(self, turn: int, mask: CuMask | None, after: Work | None = None) -> HipWork:
        """See :class:`Launcher`."""
        streams = [self._hip.stream(rank, mask, user="gemm") for rank in range(len(self._operands))]

        def enqueue(streams: Sequence[Stream]) -> None:
            torch = self._hip.torch
            for operands, stream in zip(self._operands, streams, strict=True):
                with torch.cuda.device(stream.index), torch.cuda.stream(stream.torch):
                    operands.multiply(turn)

        behind = after if isinstance(after, HipWork) else None
        return HipWork(self._runtime, self._hip, streams, enqueue, f"GEMM {self.gemm}", behind)


class CpuGemm(Launcher):
    """A stand-in where no AMD GPU is: the same GEMM by torch on the CPU, one rank after the other. Masks do nothing.

    Raises:
        C3Error: no PyTorch, or a GEMM that would take the CPU too long.
    """

    def __init__(self, runtime: Runtime, ranks: int, gemm: Gemm) -> None:
        torch = _torch()
        flop = 2 * gemm.m * gemm.n * gemm.k * ranks
        if flop > CPU_FLOP:
            raise C3Error(
                f"amd: with no AMD GPU, GEMMs run on the CPU, and {ranks} of {gemm} are too large for it; use a small "
                "suite, such as no_gpu"
            )
        self.gemm, self.path = gemm, "stand-in: torch on the CPU"
        self._runtime = runtime
        self._operands = [Operands(torch, "cpu", gemm, seed) for seed in range(ranks)]

    def work(self, turn: int, mask: CuMask | None, after: Work | None = None) -> CpuWork:
        """See :class:`Launcher`."""

        def run() -> None:
            for operands in self._operands:
                operands.multiply(turn)

        return CpuWork(self._runtime, run, f"GEMM {self.gemm}")


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise C3Error("amd: PyTorch is not installed; GEMMs need it") from None
    return torch
