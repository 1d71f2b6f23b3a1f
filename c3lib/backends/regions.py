"""What backends of real GPUs share: a scenario under a strategy as four timed regions, sweeps, the columns of a row."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any, Sequence

import numpy as np

from c3lib import metrics
from c3lib.backends.base import Timings
from c3lib.errors import C3Error
from c3lib.hardware import Node
from c3lib.model.contention import withheld_cus
from c3lib.model.kernels import batch
from c3lib.region import Region
from c3lib.strategy import Strategy
from c3lib.transfer.builders import build_plan
from c3lib.workload import Scenario

SWEEP_REPEATS = 3
"""Runs of each configuration by which a sweep chooses; what is published of the winner is measured afresh."""


class RegionBackend(ABC):
    """Runs scenarios by regions of ``rig``. A vendor's backend says which of its settings stand for a strategy.

    A setting is a frozen dataclass of the vendor's (:class:`c3lib.cuda.setting.Setting`); its attributes that
    :func:`describe` reads are common to all. ``whole`` is the one under which a GEMM alone has the whole GPU.
    """

    name: str
    evidence: str
    deterministic = False

    node: Node
    rig: Any
    whole: Any

    def __init__(self) -> None:
        self.sweeps: list[dict[str, Any]] = []
        self._chosen: dict[tuple[str, str], Any] = {}

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """What the provenance says of the device; runs the negative control, which must fire."""

    @abstractmethod
    def default(self, scenario: Scenario) -> Any:
        """The setting of the library's kernel as it runs when nobody says otherwise."""

    @abstractmethod
    def swept(self, first: str) -> list[Any]:
        """The settings that a sweep tries; ``first``: which kernel is launched first."""

    @abstractmethod
    def how(self, scenario: Scenario, transport: str, **how: Any) -> Any:
        """The setting of a transport (``"cu"``, ``"dma"``) with ``gemm_first``, ``high`` and ``withheld`` as given."""

    def open(self, scenario: Scenario) -> None:
        """Set a scenario up on the GPU; nothing happens if it is."""
        kind = scenario.collective
        plan = build_plan(kind.kind, kind.nbytes, kind.ranks, self.node.topology)
        if len(plan) == 0:
            raise C3Error(f"scenario {scenario.name}: a collective of {kind.nbytes} bytes moves nothing to measure")
        self.rig.load(scenario.gemm, plan)

    def setting(self, scenario: Scenario, strategy: Strategy) -> Any:
        """How a strategy runs a scenario here; for a sweep, the configuration that won it."""
        if strategy.partition == "sweep":
            key = (scenario.name, strategy.name)
            if key not in self._chosen:
                self._chosen[key] = self._sweep(scenario, strategy)
            return self._chosen[key]
        withheld = 0
        if strategy.partition == "memory-bound":
            withheld = int(withheld_cus(batch([scenario], self.node)[0], self.node)[0])
        gemm_first = strategy.first == "gemm"
        return self.how(scenario, strategy.transport, gemm_first=gemm_first, high=not gemm_first, withheld=withheld)

    def settle(self, scenario: str, strategy: str, setting: Any) -> None:
        """Say which configuration won a sweep, so that it is not run again."""
        self._chosen[scenario, strategy] = setting

    def _sweep(self, scenario: Scenario, strategy: Strategy) -> Any:
        settings = self.swept(strategy.first)
        order = [(setting, turn) for turn in range(SWEEP_REPEATS) for setting in settings]
        random.Random(f"{scenario.name} {strategy.name}").shuffle(order)
        ends: dict[Any, list[float]] = {}
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
        arms = [("gemm", self.whole, True, False), ("library", self.default(scenario), False, True)]
        arms += [("own", setting, False, True), ("both", setting, True, True)]
        random.Random(f"{scenario.name} {strategy.name} {repetition}").shuffle(arms)
        runs: dict[str, Region] = {
            name: self.rig.run(how, gemm=gemm, transfer=transfer) for name, how, gemm, transfer in arms
        }
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


def describe(setting: Any, region: Region) -> dict[str, Any]:
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
