"""How a region is run, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from c3lib.cuda.buffers import Check
from c3lib.cuda.health import Health
from c3lib.cuda.region import Times

NO_TRANSFER = "no transfer"


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


@dataclass(frozen=True)
class Region:
    """One timed region: its times, the byte check, whether the GEMM's result was right, the GPUs before and after.

    ``granted`` SMs of each GPU were withheld from the GEMM; ``blocks`` thread blocks moved the bytes on each.
    """

    times: Times
    check: Check
    gemm_right: bool
    granted: int
    blocks: int
    before: Health
    after: Health
    path: str

    def health(self) -> dict[str, float]:
        """The columns of a row that tell the GPU's state, before and after."""
        return {
            "sm_mhz_before": self.before.sm_mhz,
            "sm_mhz": self.after.sm_mhz,
            "power_w_before": self.before.power_w,
            "power_w": self.after.power_w,
            "temperature_c": self.after.temperature_c,
        }

    @property
    def verified(self) -> bool:
        """True when all that the region should have computed and moved was compared and right."""
        moved = self.path == NO_TRANSFER or self.check.verified
        return moved and self.gemm_right
