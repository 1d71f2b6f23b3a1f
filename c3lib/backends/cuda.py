"""NVIDIA GPUs as a backend: every scenario run on them, bytes checked; every row it gives is ``measured``.

A node of topology ``host`` is one GPU, rank 0; its peers' buffers lie in pinned host memory, so what is measured is one
rank's view over the host link, and our copy kernel stands in for the library's, on as many thread blocks as that takes
by default. On any other node every rank is a GPU, and the library is NCCL itself.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Sequence

import numpy as np

from c3lib import metrics
from c3lib.backends.base import AD_HOC, Timings
from c3lib.cuda.gemm import SETS
from c3lib.cuda.region import GATE
from c3lib.cuda.rig import Rig
from c3lib.cuda.setting import Region, Setting
from c3lib.errors import C3Error
from c3lib.hardware import Node
from c3lib.model.contention import withheld_cus
from c3lib.model.kernels import batch
from c3lib.strategy import Strategy
from c3lib.transfer.builders import build_plan
from c3lib.workload import Scenario

SWEEP_REPEATS = 3
"""Runs of each configuration by which a sweep chooses; what is published of the winner is measured afresh."""


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


class CudaBackend:
    """Runs scenarios on the first GPUs of this machine, one for each rank (on topology ``host`` one in all).

    Raises:
        C3Error: a node of another vendor, a GPU other than the node's, and all that
            :func:`c3lib.cuda.device.open_devices` says.
    """

    name = "cuda"
    evidence = "measured"
    deterministic = False

    def __init__(self, node: Node, suite: str = AD_HOC) -> None:
        self.node = node
        self.rig = Rig(self.check_node(node))
        if self.rig.cuda.sms != node.gpu.cus:
            raise C3Error(
                f"backend cuda: this GPU ({self.rig.cuda.name}) has {self.rig.cuda.sms} SMs, node {node.name} has "
                f"{node.gpu.cus}; name the node of this GPU with --node"
            )
        self.sweeps: list[dict[str, Any]] = []
        self._chosen: dict[tuple[str, str], Setting] = {}
        self._control: dict[str, Any] = {}

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
        """What the provenance says of the device; runs the negative control, which must fire."""
        cuda = self.rig.cuda
        controls = [Setting(), Setting(blocks=8)] + ([Setting(library=self.library)] if self.library else [])
        if not self._control:
            self.rig.load(plan=build_plan("all-gather", 2**20, self.node.ranks, self.node.topology))
            self._control = self.rig.negative_control(controls)
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
            "negative_control": self._control,
        }

    def open(self, scenario: Scenario) -> None:
        """Set a scenario up on the GPU; nothing happens if it is."""
        kind = scenario.collective
        plan = build_plan(kind.kind, kind.nbytes, kind.ranks, self.node.topology)
        if len(plan) == 0:
            raise C3Error(f"scenario {scenario.name}: a collective of {kind.nbytes} bytes moves nothing to measure")
        self.rig.load(scenario.gemm, plan)

    def setting(self, scenario: Scenario, strategy: Strategy) -> Setting:
        """How a strategy runs a scenario here; for a sweep, the configuration that won it."""
        gemm_first, high = strategy.first == "gemm", strategy.first != "gemm"
        if strategy.partition == "sweep":
            key = (scenario.name, strategy.name)
            if key not in self._chosen:
                self._chosen[key] = self._sweep(scenario, strategy)
            return self._chosen[key]
        if strategy.transport == "cu":
            return replace(self.default(scenario), gemm_first=gemm_first, high=high)
        withheld = 0
        if strategy.partition == "memory-bound":
            withheld = int(withheld_cus(batch([scenario], self.node)[0], self.node)[0])
        return Setting(gemm_first=gemm_first, high=high, withheld=withheld)

    def default(self, scenario: Scenario) -> Setting:
        """The library's kernel as it runs when nobody says otherwise."""
        blocks = 0 if self.library else self.node.library[scenario.collective.kind].default_cus
        return Setting(blocks=blocks, library=self.library)

    def settle(self, scenario: str, strategy: str, setting: Setting) -> None:
        """Say which configuration won a sweep, so that it is not run again."""
        self._chosen[scenario, strategy] = setting

    def _sweep(self, scenario: Scenario, strategy: Strategy) -> Setting:
        settings = sweep_settings(strategy.first, self.library)
        order = [(setting, turn) for turn in range(SWEEP_REPEATS) for setting in settings]
        random.Random(f"{scenario.name} {strategy.name}").shuffle(order)
        ends: dict[Setting, list[float]] = {}
        for setting, turn in order:
            region = self.rig.run(setting)
            ends.setdefault(setting, []).append(region.times.end_s)
            self.sweeps.append(
                {
                    "scenario": scenario.name,
                    "strategy": strategy.name,
                    **describe(setting, region),
                    "repetition": turn,
                    "gemm_end_s": region.times.gemm_end_s,
                    "collective_end_s": region.times.transfer_end_s,
                    "concurrent_s": region.times.end_s,
                    "verified": region.verified,
                    "path": region.path,
                }
            )
        return min(settings, key=lambda setting: float(np.median(ends[setting])))

    def run(self, scenarios: Sequence[Scenario], strategy: Strategy, repetition: int) -> Timings:
        """Each scenario under the strategy, beside its own isolated runs: four regions in an order of chance.

        GEMM alone, transfer alone as the library runs it by default, transfer alone as the strategy runs it, and both
        at once. Bytes and the GEMM's result are checked in each.
        """
        found = [self._run(scenario, strategy, repetition) for scenario in scenarios]
        columns: dict[str, Any] = {name: np.array([row[name] for row in found]) for name in found[0]}
        path = columns.pop("path").tolist()
        main = {name: columns.pop(name) for name in Timings.MAIN}
        return Timings(**main, path=path, more=columns)

    def _run(self, scenario: Scenario, strategy: Strategy, repetition: int) -> dict[str, Any]:
        self.open(scenario)
        setting = self.setting(scenario, strategy)
        arms = [("gemm", setting, True, False), ("library", self.default(scenario), False, True)]
        arms += [("own", setting, False, True), ("both", setting, True, True)]
        random.Random(f"{scenario.name} {strategy.name} {repetition}").shuffle(arms)
        runs: dict[str, Region] = {}
        for name, how, gemm, transfer in arms:
            alone = Setting() if name == "gemm" else how  # the GEMM alone has the whole GPU
            runs[name] = self.rig.run(alone, gemm=gemm, transfer=transfer)
        both = runs["both"]
        gemm_alone = runs["gemm"].times.gemm_end_s - runs["gemm"].times.gemm_start_s
        own_alone = runs["own"].times.transfer_end_s - runs["own"].times.transfer_start_s
        speedup = metrics.realised_speedup(gemm_alone, own_alone, both.times.end_s)
        own_fraction = metrics.fraction_of_ideal(speedup, metrics.ideal_speedup(gemm_alone, own_alone))
        return {
            "gemm_alone_s": gemm_alone,
            "collective_alone_s": runs["library"].times.transfer_end_s - runs["library"].times.transfer_start_s,
            "gemm_end_s": both.times.gemm_end_s,
            "collective_end_s": both.times.transfer_end_s,
            "concurrent_s": both.times.end_s,
            "cus_taken": float(max(both.granted, both.blocks)),
            "verified": all(region.verified for region in runs.values()),
            "path": both.path,
            **describe(setting, both),
            "link_bytes": self.rig.buffers.link_nbytes,
            "own_alone_s": own_alone,
            "own_fraction": float(own_fraction),
            "overlap_s": both.times.overlap_s,
            **both.health(),
        }


def describe(setting: Setting, region: Region) -> dict[str, Any]:
    """The columns that tell how a region was run."""
    return {
        "transport": setting.transport,
        "batched": setting.batched and not setting.blocks and not setting.library,
        "blocks": region.blocks,
        "first": "gemm" if setting.gemm_first else "transfer",
        "high_priority": setting.high,
        "sms_asked": setting.withheld,
        "sms_granted": region.granted,
        "partition": setting.partition,
    }
