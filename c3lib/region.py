"""What came of a timed region, on whatever GPUs: times, the byte check, the GPUs' state before and after.

A region is a GEMM, a transfer or both, released together; :mod:`c3lib.cuda` and :mod:`c3lib.amd` run them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NO_TRANSFER = "no transfer"


@dataclass(frozen=True)
class Times:
    """Seconds since the gate opened; NaN for a kernel that was not part of the region.

    Over several GPUs a kernel starts when the first of them starts it and ends when the last has ended it.
    """

    gemm_start_s: float
    gemm_end_s: float
    transfer_start_s: float
    transfer_end_s: float

    @property
    def end_s(self) -> float:
        """When all was done."""
        return max(value for value in (self.gemm_end_s, self.transfer_end_s) if value == value)

    @property
    def overlap_s(self) -> float:
        """Length of the intersection of the two intervals; 0 where they do not meet or one is missing."""
        if math.isnan(self.gemm_end_s + self.transfer_end_s):  # max and min below would pass over a NaN
            return 0.0
        start, end = max(self.gemm_start_s, self.transfer_start_s), min(self.gemm_end_s, self.transfer_end_s)
        return max(0.0, end - start)


@dataclass(frozen=True)
class Check:
    """Outcome of a byte check: how many bytes were compared and how many were wrong, and where the first one is."""

    compared_nbytes: int
    wrong_nbytes: int
    first: str

    @property
    def verified(self) -> bool:
        """True when something was compared and every byte was right."""
        return self.compared_nbytes > 0 and self.wrong_nbytes == 0


@dataclass(frozen=True)
class Health:
    """One reading. ``energy_j`` counts since the driver was loaded and moves in steps of some tens of milliseconds.

    Of several GPUs: clocks of the slowest, temperature of the hottest, power and energy of all together.
    """

    sm_mhz: float
    memory_mhz: float
    power_w: float
    temperature_c: float
    energy_j: float


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
