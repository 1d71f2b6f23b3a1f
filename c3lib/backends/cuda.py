"""NVIDIA GPUs as a backend: every scenario run on them, bytes checked; every row it gives is ``measured``.

A node of topology ``host`` is one GPU, rank 0; its peers' buffers lie in pinned host memory, so what is measured is one
rank's view over the host link, and our copy kernel stands in for the library's, on as many thread blocks as that takes
by default. On any other node every rank is a GPU, and the library is NCCL itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable

from c3lib.backends.base import AD_HOC
from c3lib.backends.regions import SWEEP_REPEATS, RegionBackend, describe
from c3lib.cuda.gemm import SETS
from c3lib.cuda.nccl import WINDOWED
from c3lib.cuda.region import GATE
from c3lib.cuda.rig import Rig
from c3lib.cuda.setting import Setting
from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES, Node
from c3lib.transfer.builders import build_plan
from c3lib.workload import Scenario

__all__ = ["SWEEP_REPEATS", "CudaBackend", "describe", "sweep_settings"]


def sweep_settings(first: str, library: str = "") -> list[Setting]:
    """Configurations that a partition sweep tries: few blocks without a partition, blocks on SMs that are left free.

    Blocks are those of ``library``, in its clusters and singly, or, by default, of the SM kernel, which alone can be
    fenced off by green contexts.
    """
    how: dict[str, Any] = {"gemm_first": first == "gemm", "high": first != "gemm"}
    kernels = (library, "nccl_unclustered") if library else ("",)
    free = [Setting(blocks=blocks, library=name, **how) for name in kernels for blocks in (2, 4, 8)]
    told = [Setting(blocks=b, withheld=b, library=name, **how) for name in kernels for b in (2, 4, 8, 16)]
    if library:
        return free + told
    fenced = [Setting(blocks=b, withheld=s, green=True, **how) for b, s in ((2, 8), (4, 8), (8, 8), (16, 16), (32, 32))]
    return free + told + fenced


class CudaBackend(RegionBackend):
    """Runs scenarios on the first GPUs of this machine, one for each rank (on topology ``host`` one in all).

    Raises:
        C3Error: a node of another vendor, a GPU other than the node's, and all that
            :func:`c3lib.cuda.device.open_devices` says.
    """

    name = "cuda"
    evidence = "measured"
    whole = Setting()

    def __init__(self, node: Node, suite: str = AD_HOC) -> None:
        super().__init__()
        self.node = node
        self.rig = Rig(self.check_node(node))
        if self.rig.cuda.sms != node.gpu.cus:
            raise C3Error(
                f"backend cuda: this GPU ({self.rig.cuda.name}) has {self.rig.cuda.sms} SMs, node {node.name} has "
                f"{node.gpu.cus}; name the node of this GPU with --node"
            )
        self._control: dict[tuple[Setting, str], str] = {}

    @staticmethod
    def check_node(node: Node) -> int:
        """How many GPUs a node takes. Raises :class:`C3Error` for a node that this backend cannot stand for."""
        if node.vendor != "nvidia":
            raise C3Error(f"backend cuda: node {node.name} is {node.vendor}; it measures NVIDIA GPUs")
        return 1 if node.topology == "host" else node.ranks

    @property
    def library(self) -> str:
        """Who stands for the collective library: NCCL between GPUs, our SM kernel ("") over the host link."""
        return "" if self.node.topology == "host" else "nccl"

    def about(self) -> dict[str, Any]:
        """What the provenance says of the device; runs the negative controls of every scenario's movers first."""
        cuda = self.rig.cuda
        libraries = [Setting(library=name) for name in (self.library, "nccl_unclustered") if self.library]
        self.control([Setting(), Setting(blocks=8), *libraries])
        fired: dict[str, dict[str, None]] = {}
        for (kind, _), text in self._control.items():
            fired.setdefault(_named(kind), {})[text] = None
        several = (
            {"gpus": len(self.rig.cudas), "nccl": self.rig.clique(self.library, 0).version} if self.library else {}
        )
        return {
            "device": cuda.name,
            **several,
            "driver": cuda.driver_version,
            "copy_engines": cuda.copy_engines,
            "gate": GATE,
            "operands": f"random normal, {SETS} sets in turn, so that the L2 is not warm",
            "negative_control": {name: " / ".join(texts) for name, texts in fired.items()},
        }

    def control(self, movers: Iterable[Setting]) -> None:
        """Negative controls, to be run before anything is measured by these movers: of each kind and collective once.

        Raises:
            C3Error: a transfer with bytes left out passed its check.
        """
        due = [kind for kind in dict.fromkeys(map(_kind, movers)) if (kind, COLLECTIVES[0]) not in self._control]
        registered = any(kind.library in WINDOWED for kind in due)
        for collective in COLLECTIVES if due else ():
            plan = build_plan(collective, self.node.ranks << 17, self.node.ranks, self.node.topology)
            self.rig.load(plan=plan, registered=registered)
            for kind in due:
                if (kind.library, kind.in_place, collective) != ("nccl_zero_cta", True, "all-to-all"):  # there is none
                    self._control[kind, collective] = self.rig.negative_control(kind)

    def default(self, scenario: Scenario) -> Setting:
        """The library's kernel as it runs when nobody says otherwise."""
        blocks = 0 if self.library else self.node.library[scenario.collective.kind].default_cus
        return Setting(blocks=blocks, library=self.library)

    def swept(self, first: str) -> list[Any]:
        """See :func:`sweep_settings`."""
        return sweep_settings(first, self.library)

    def how(self, scenario: Scenario, transport: str, **how: Any) -> Setting:
        """By the library's kernel or by copy engines; CUs are withheld beside copy engines only."""
        if transport == "cu":
            return replace(self.default(scenario), gemm_first=how["gemm_first"], high=how["high"])
        return Setting(**how)


def _kind(setting: Setting) -> Setting:
    """What of a setting decides how bytes are moved; of how many thread blocks does not."""
    if setting.library:
        return Setting(library=setting.library, in_place=setting.in_place)
    return Setting(blocks=8) if setting.blocks else Setting(batched=setting.batched, bare=setting.bare)


def _named(kind: Setting) -> str:
    if kind.library:
        return f"{kind.library} {'in' if kind.in_place else 'out of'} place"
    return kind.transport + (" batched" if kind.batched and not kind.blocks else "")
