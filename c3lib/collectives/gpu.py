"""What the driver gives a window of a GPU: memory that other processes can open, and streams that nobody else has."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import torch

from c3lib.errors import C3Error

HANDLE_NBYTES = 64


def done(outcome: tuple, what: str) -> Any:
    """The value of a driver call. Raises :class:`C3Error` with the driver's name for the error."""
    code, *values = outcome
    if int(code):
        raise C3Error(f"cuda: {what} failed: {code.name}")
    return values[0] if len(values) == 1 else values


class _Loan:
    """Lends a block to torch: its storage holds this object, so this is gone when the last tensor on it is."""

    def __init__(self, block: CudaBlock):
        self._block = block

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        block = self._block
        return {
            "shape": (block.nbytes,),
            "typestr": "|u1",
            "data": (block.address, False),
            "strides": None,
            "version": 3,
        }


class CudaBlock:
    """Memory of the driver's own, not of torch's allocator: always a whole allocation, which IPC can share.

    It is freed with its last user, but never while peers may have it mapped, which CUDA leaves undefined.
    """

    def __init__(self, driver: Any, nbytes: int, device: torch.device):
        self.nbytes, self._device = nbytes, device
        self.address = int(done(driver.cuMemAlloc(nbytes), f"allocating {nbytes} bytes of shared GPU memory"))
        self.shared = [True]
        weakref.finalize(self, _free, driver, self.address, self.shared).atexit = False
        self.word = exported(driver, self.address), 0

    def lend(self, nbytes: int) -> tuple[torch.Tensor, Callable[[], Any]]:
        loan = _Loan(self)
        return torch.as_tensor(loan, device=self._device)[:nbytes], weakref.ref(loan)


spare_streams: dict[torch.device, list[torch.cuda.ExternalStream]] = {}


def own_streams(driver: Any, device: torch.device, count: int) -> list[torch.cuda.ExternalStream]:
    """Streams that nobody else has: those of torch's pool come round again, to FSDP2 for one.

    They are never destroyed, but used again: torch's allocator may still have to ask them about memory it was told of.
    """
    spare = spare_streams.setdefault(device, [])
    while len(spare) < count:
        flags = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        stream = done(driver.cuStreamCreateWithPriority(flags, -1), "making a stream")
        spare.append(torch.cuda.ExternalStream(int(stream), device))
    return [spare.pop() for _ in range(count)]


def exported(driver: Any, base: int) -> bytes:
    code, handle = driver.cuIpcGetMemHandle(base)
    if int(code):
        raise C3Error(
            f"output: its GPU memory cannot be opened by other processes (cuIpcGetMemHandle: {code.name}), as that of "
            "expandable segments and memory pools cannot; take it from c3lib.collectives.empty, or have torch allocate "
            "without expandable_segments"
        )
    return ctypes.string_at(handle.getPtr(), HANDLE_NBYTES)


def _free(driver: Any, address: int, shared: list[bool]) -> None:
    if not shared[0]:
        driver.cuMemFree(address)
