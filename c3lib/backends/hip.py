"""AMD GPUs as a backend: every scenario run on them, bytes checked; rows are ``measured`` on real hardware only.

DMA transfers are copies on SDMA engines that were proven one by one, through AMD's HSA runtime; the library is RCCL,
GEMMs are torch's on streams with a CU mask. Where the runtime drives no real GPU, all of it runs with stand-ins, and
rows carry :data:`c3lib.constants.NOT_A_MEASUREMENT`, which no table of measured data takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from c3lib.amd import driver
from c3lib.amd.rccl import load_library, zero_cta
from c3lib.amd.region import GATE
from c3lib.amd.rig import Rig
from c3lib.amd.setting import Setting
from c3lib.backends.base import AD_HOC
from c3lib.backends.regions import RegionBackend
from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.errors import C3Error
from c3lib.hardware import Node
from c3lib.model.contention import split_sweep
from c3lib.operands import SETS
from c3lib.transfer.builders import build_plan
from c3lib.workload import Scenario

LIBRARY = "rccl"


class HipBackend(RegionBackend):
    """Runs scenarios on the first AMD GPUs of this machine, one for each rank.

    Raises:
        C3Error: a node of another vendor or of one GPU, GPUs other than the node's, and all that
            :class:`c3lib.amd.rig.Rig` says.
    """

    name = "hip"
    whole = Setting()

    def __init__(self, node: Node, suite: str = AD_HOC) -> None:
        super().__init__()
        self.node = node
        self.check_node(node)
        self.rig: Rig = Rig(node.ranks)
        self.evidence = "measured" if self.rig.runtime.is_hardware else NOT_A_MEASUREMENT
        wanted = node.gpu
        for gpu in self.rig.gpus:
            if not wanted.is_like(gpu.cus, gpu.memory_nbytes, gpu.xccs):
                raise C3Error(
                    f"backend hip: {gpu} ({gpu.product or gpu.name}) has {gpu.cus} CUs on {gpu.xccs} XCDs and "
                    f"{gpu.memory_nbytes / 1e9:.0f} GB, node {node.name} has {wanted.cus} on {wanted.dies} and "
                    f"{wanted.hbm_capacity_gb:g} GB; name the node of this GPU with --node, and use whole GPUs (SPX, "
                    "NPS1)"
                )
        self._control: dict[str, Any] = {}
        self._masks = "no GPU here"

    @staticmethod
    def check_node(node: Node) -> None:
        """Raises :class:`C3Error` for a node that this backend cannot stand for."""
        if node.vendor != "amd":
            raise C3Error(f"backend hip: node {node.name} is {node.vendor}; it measures AMD GPUs")
        if node.topology == "host":
            raise C3Error(
                f"backend hip: node {node.name} is one GPU on topology 'host'; it measures links between GPUs"
            )

    def about(self) -> dict[str, Any]:
        """What the provenance says of the device; runs the negative control, which must fire."""
        runtime, gpu = self.rig.runtime, self.rig.gpu
        if not self._control:
            self.rig.load(plan=build_plan("all-gather", 2**20, self.node.ranks, self.node.topology))
            self._control = self.rig.negative_control([Setting(), Setting(library=LIBRARY)])
            if self.rig.hip is not None:
                self._masks = self.rig.mask_control()
        version = driver.version()
        hip = self.rig.hip
        return {
            "device": gpu.product or gpu.name,
            "gpus": len(self.rig.gpus),
            "driver": f"KFD {version[0]}.{version[1]}" if version else "KFD not reported",
            "hsa_runtime": runtime.build,
            "stand_ins": runtime.stand_ins,
            "sdma_engines": {"host": gpu.host_engines, "peers": gpu.peer_engines},
            "engines": self.rig.engines.rows(),
            "engines_dropped": list(self.rig.engines.dropped),
            "environment": driver.environment(),
            "hip": hip.version if hip else "none",
            "zero_cta": zero_cta(load_library()) if hip else "no RCCL here",
            "gate": GATE,
            "operands": f"random normal, {SETS} sets in turn, so that the L2 is not warm",
            "negative_control": self._control,
            "mask_control": self._masks,
        }

    def default(self, scenario: Scenario) -> Setting:
        """RCCL as it runs when nobody says otherwise."""
        return Setting(library=LIBRARY)

    def swept(self, first: str) -> list[Setting]:
        """RCCL on CUs of its own, by powers of two as in the paper, or beside the GEMM on all of them."""
        how = Setting(library=LIBRARY, gemm_first=first == "gemm", high=first != "gemm")
        return [replace(how, withheld=count, high=how.high and not count) for count in split_sweep(self.node)]

    def how(self, scenario: Scenario, transport: str, **how: Any) -> Setting:
        """By RCCL, or by SDMA engines, to which no priority can be given."""
        if transport == "cu":
            return Setting(LIBRARY, gemm_first=how["gemm_first"], high=how["high"])
        return Setting(gemm_first=how["gemm_first"], withheld=how["withheld"])
