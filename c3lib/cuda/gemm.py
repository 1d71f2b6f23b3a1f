"""The GEMM: torch (cuBLAS) on random normal operands, several sets of them in turn so that the L2 is not warm."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from c3lib.cuda.device import Cuda, said_clearly
from c3lib.errors import C3Error
from c3lib.workload import Gemm

SETS = 3
"""Operand sets that repetitions take in turn; between two runs of one set lie more bytes than the L2 holds."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@cache
def _cublas(major: str) -> Any:
    return ctypes.CDLL(f"libcublas.so.{major}")


def set_sm_target(cuda: Cuda, sms: int) -> None:
    """Tell torch's cuBLAS how many SMs it may count on (``cublasSetSmCountTarget``); 0 is all of them.

    Raises:
        C3Error: cuBLAS refuses the number.
    """
    handle = ctypes.c_void_p(cuda.torch.cuda.current_blas_handle())
    status = _cublas(cuda.torch.version.cuda.split(".")[0]).cublasSetSmCountTarget(handle, ctypes.c_int(sms))
    if status:
        raise C3Error(f"cuda: cuBLAS does not take {sms} SMs as its target (status {status})")


class Operands:
    """Operands of one GEMM on one GPU, ``SETS`` of them: A ``(m, k)``, B ``(n, k)`` used transposed, C ``(m, n)``.

    Raises:
        C3Error: a dtype that torch's mm does not take, or too little memory.
    """

    def __init__(self, cuda: Cuda, gemm: Gemm, seed: int = 0):
        if gemm.dtype not in _DTYPES:
            raise C3Error(f"gemm {gemm}: dtype {gemm.dtype} cannot be measured here; known: {', '.join(_DTYPES)}")
        torch = cuda.torch
        self.cuda, self.gemm = cuda, gemm
        where = f"cuda:{cuda.index}"
        generator = torch.Generator(device=where).manual_seed(seed)
        kind = getattr(torch, _DTYPES[gemm.dtype])

        def normal(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, dtype=kind, device=where, generator=generator)

        with cuda.current(), said_clearly(f"allocating the operands of {gemm}"):
            self._sets = [(normal(gemm.m, gemm.k), normal(gemm.n, gemm.k), normal(gemm.m, gemm.n)) for _ in range(SETS)]
            self.reference: list[Any] = [(a @ b.t()).clone() for a, b, _ in self._sets]

    def poison(self, turn: int) -> None:
        """Fill C with NaN, so that a GEMM that did not run is noticed."""
        self._sets[turn % SETS][2].fill_(float("nan"))

    def enqueue(self, stream: Any, turn: int, sms: int = 0) -> None:
        """One GEMM with the operands whose turn it is, on a stream of cuda.core.

        ``sms`` tells cuBLAS how many SMs there are for it, so that it launches no more blocks than these hold; 0 leaves
        it to its default, the whole GPU (cuBLAS does not notice that a stream belongs to a smaller green context).
        """
        torch = self.cuda.torch
        a, b, c = self._sets[turn % SETS]
        with self.cuda.current():
            set_sm_target(self.cuda, sms)
            with torch.cuda.stream(torch.cuda.ExternalStream(int(stream.handle), device=self.cuda.index)):
                torch.mm(a, b.t(), out=c)

    def right(self, turn: int) -> bool:
        """Whether C is what the GEMM alone gave: equal, or (another kernel on fewer SMs) within rounding."""
        torch = self.cuda.torch
        got, wanted = self._sets[turn % SETS][2], self.reference[turn % SETS]
        if torch.equal(got, wanted):
            return True
        scale = float(self.gemm.k) ** 0.5  # standard deviation of an element
        return bool(torch.isfinite(got).all()) and float((got - wanted).abs().max()) <= 0.05 * scale

    def is_random(self) -> bool:
        """Whether the operands look standard normal: power, and so clocks, depend on the data."""
        a = self._sets[0][0].float()
        return abs(float(a.mean())) < 0.05 and abs(float(a.std()) - 1) < 0.05
