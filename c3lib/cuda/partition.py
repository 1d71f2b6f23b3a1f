"""SM partitions by green contexts: what was granted is recorded, not what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from c3lib.cuda.device import Cuda
from c3lib.cuda.streams import new_stream
from c3lib.errors import C3Error


@dataclass(frozen=True)
class Partition:
    """Some SMs for the transfer, the others for the GEMM: a green context each, None where a kernel has every SM."""

    asked: int
    granted: int
    gemm_sms: int
    gemm_context: Any
    transfer_context: Any


@cache
def partition(cuda: Cuda, sms: int) -> Partition:
    """Withhold ``sms`` SMs from the GEMM; 0 gives both kernels the whole GPU.

    Raises:
        C3Error: the driver has no green contexts, or cannot leave the GEMM an SM.
    """
    if sms == 0:
        return Partition(0, 0, cuda.sms, None, None)
    core = cuda.core
    try:
        groups, rest = cuda.device.resources.sm.split(core.SMResourceOptions(count=sms))
        for_transfer = cuda.device.create_context(core.ContextOptions(resources=[groups[0]]))
        for_gemm = cuda.device.create_context(core.ContextOptions(resources=[rest]))
    except Exception as error:
        raise C3Error(f"cuda: the driver cannot set {sms} of {cuda.sms} SMs apart (green contexts): {error}") from error
    granted, left = int(groups[0].sm_count), int(rest.sm_count)
    if granted + left != cuda.sms or left < 1:
        raise C3Error(f"cuda: asked for {sms} SMs, the driver granted {granted} and leaves {left} of {cuda.sms}")
    return Partition(sms, granted, left, for_gemm, for_transfer)


@cache
def streams(cuda: Cuda, sms: int, high: bool) -> tuple[Any, Any]:
    """Streams of GEMM and transfer under a partition; ``high`` gives the transfer's the highest priority."""
    split = partition(cuda, sms)
    return new_stream(cuda, context=split.gemm_context), new_stream(cuda, high=high, context=split.transfer_context)
