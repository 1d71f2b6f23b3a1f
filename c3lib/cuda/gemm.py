"""The GEMM on NVIDIA GPUs: torch (cuBLAS), which can be told how many SMs there are for it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from c3lib import operands
from c3lib.cuda.device import Cuda, said_clearly
from c3lib.errors import C3Error
from c3lib.operands import SETS
from c3lib.workload import Gemm

__all__ = ["SETS", "Operands", "set_sm_target"]


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


class Operands(operands.Operands):
    """Operands of one GEMM on one GPU: see :class:`c3lib.operands.Operands`.

    Raises:
        C3Error: a dtype that torch's mm does not take, or too little memory.
    """

    def __init__(self, cuda: Cuda, gemm: Gemm, seed: int = 0):
        self.cuda = cuda
        with cuda.current(), said_clearly(f"allocating the operands of {gemm}"):
            super().__init__(cuda.torch, f"cuda:{cuda.index}", gemm, seed)

    def enqueue(self, stream: Any, turn: int, sms: int = 0) -> None:
        """One GEMM with the operands whose turn it is, on a stream of cuda.core.

        ``sms`` tells cuBLAS how many SMs there are for it, so that it launches no more blocks than these hold; 0 leaves
        it to its default, the whole GPU (cuBLAS does not notice that a stream belongs to a smaller green context).
        """
        torch = self.torch
        with self.cuda.current():
            set_sm_target(self.cuda, sms)
            with torch.cuda.stream(torch.cuda.ExternalStream(int(stream.handle), device=self.cuda.index)):
                self.multiply(turn)
