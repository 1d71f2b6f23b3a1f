"""How a region is run on AMD GPUs; what comes of it is a :class:`c3lib.region.Region`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """How the two kernels of a region are run, the same on every GPU.

    ``library``: "" for SDMA engines, else a name of :data:`c3lib.amd.rccl.VARIANTS`, which has RCCL move the bytes.
    ``withheld``: CUs, a multiple of the XCDs, that the GEMM's stream does not have; RCCL's stream then has those alone.
    ``high``: RCCL's stream has the highest priority; streams with a CU mask have none, and engines take no stream.
    """

    library: str = ""
    gemm_first: bool = True
    high: bool = False
    withheld: int = 0

    blocks = 0
    """RCCL chooses its workgroups itself."""
    batched = False

    @property
    def transport(self) -> str:
        """Who moves the bytes."""
        return self.library or "sdma"

    @property
    def partition(self) -> str:
        """How the CUs are withheld."""
        return "cu mask" if self.withheld else "none"
