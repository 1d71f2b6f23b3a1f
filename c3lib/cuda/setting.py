"""How a region is run on NVIDIA GPUs; what comes of it is a :class:`c3lib.region.Region`."""

from __future__ import annotations

from dataclasses import dataclass

from c3lib.region import NO_TRANSFER, Region

__all__ = ["NO_TRANSFER", "Region", "Setting"]


@dataclass(frozen=True)
class Setting:
    """How the two kernels of a region are run, the same on every GPU.

    ``blocks``: thread blocks of the SM kernel, 0 for copy engines (``batched`` or one call a copy). ``library``: a name
    of :data:`c3lib.cuda.nccl.VARIANTS` has the vendor's library move the bytes, by ``blocks`` thread blocks or, with 0,
    as many as it likes; ``in_place``: a rank's own shard is where it belongs already. ``bare``: copy engines without
    the ranks waiting for one another, before and after. ``withheld``: SMs that the GEMM is told to leave free; with
    ``green`` the driver also fences them off (a green context each), else cuBLAS alone launches fewer blocks.
    ``high``: the transfer's stream has the highest priority.
    """

    blocks: int = 0
    batched: bool = True
    gemm_first: bool = True
    high: bool = False
    withheld: int = 0
    green: bool = False
    library: str = ""
    in_place: bool = True
    bare: bool = False

    @property
    def transport(self) -> str:
        """Who moves the bytes."""
        return self.library or ("sm_kernel" if self.blocks else "bare_copy" if self.bare else "copy_engine")

    @property
    def mover(self) -> tuple:
        """What tells transports apart: two settings with the same share one."""
        return self.library, self.blocks, self.in_place, self.bare, self.batched, self.high

    @property
    def partition(self) -> str:
        """How the SMs are withheld."""
        return "none" if not self.withheld else "green context" if self.green else "sm target"
