"""What claims are evaluated on: one run of the suite, the isolated curves and the heuristic's score, each made once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from c3lib import metrics
from c3lib.claims.finer import Finer
from c3lib.errors import C3Error
from c3lib.experiment import run_suite
from c3lib.hardware import COLLECTIVES, Node
from c3lib.model import kernels
from c3lib.suites import load_suite
from c3lib.workload import DTYPE_BYTES, LATENCY_BOUND_BELOW, Collective, Scenario, length_class

MIB = 2**20
SMALLEST_MIB, LARGEST_MIB = 2.0**-10, 4096.0
"""Sizes of collectives that isolated curves span, 1 KiB to 4 GiB in total."""

SATURATED_GAIN = 0.02
"""A collective is saturated when doubling its CUs gains less than this share of its time."""

PARITY = 0.1
"""DMA is at par with the library when it takes at most this share longer."""


@dataclass(frozen=True)
class Context:
    """A node, a suite, and the reported values by claim id. Averages over nothing are NaN."""

    node: Node
    suite: str
    reported_values: Mapping[str, float]

    def reported(self, name: str) -> float:
        """Reported value of another claim of this paper. Raises :class:`C3Error` when it is missing."""
        if f"conccl.{name}" not in self.reported_values:
            raise C3Error(f"claims.csv: row conccl.{name} is missing")
        return self.reported_values[f"conccl.{name}"]

    @cached_property
    def scenarios(self) -> list[Scenario]:
        """The suite's scenarios."""
        return load_suite(self.suite, self.node.ranks)

    @cached_property
    def rows(self) -> pd.DataFrame:
        """All strategies over the suite, by the model."""
        return run_suite(self.node, self.suite)

    @cached_property
    def finer(self) -> Finer:
        """What claims about finer-grain overlap are evaluated on."""
        return Finer(self.node)

    # --- concurrent ---

    def _of(self, column: str, strategy: str, kind: str | None = None) -> pd.Series:
        rows = self.rows[self.rows["strategy"] == strategy]
        return rows[column] if kind is None else rows.loc[rows["collective"] == kind, column]

    def mean(self, column: str, strategy: str, kind: str | None = None) -> float:
        """Mean over the scenarios, or over those of one collective."""
        return float(self._of(column, strategy, kind).mean())

    def best(self, column: str, strategy: str) -> float:
        """Largest value over the scenarios."""
        return float(self._of(column, strategy).max())

    def dma_gain(self, kind: str) -> float:
        """Mean speedup that conccl adds to c3_base for one collective."""
        return self.mean("speedup", "conccl", kind) - self.mean("speedup", "c3_base", kind)

    def default_cus(self, kind: str) -> float:
        """CUs that c3_sp really gives this collective; NaN when they differ between scenarios or there is none."""
        counts = set(self._of("cus_taken", "c3_sp", kind))
        return counts.pop() if len(counts) == 1 else float("nan")

    def withheld_cus(self) -> float:
        """CUs that conccl_rp really withholds from memory-bound GEMMs (the largest count); NaN if from others too."""
        rows = self.rows[self.rows["strategy"] == "conccl_rp"]
        memory, compute = (rows.loc[rows["bound"] == bound, "cus_taken"] for bound in ("memory", "compute"))
        return float(memory.max()) if not compute.any() else float("nan")

    # --- isolated ---

    def gemm_slowdown(self, bound: str, lost_cus: int) -> float:
        """Mean over the suite's GEMMs of one bound: isolated time with ``lost_cus`` fewer over that with all CUs."""
        shapes = {scenario.gemm for scenario in self.scenarios if scenario.gemm.bound(self.node.gpu) == bound}
        cus = self.node.gpu.cus
        if not shapes or lost_cus >= cus:
            return float("nan")
        m, n, k, size = np.array([(gemm.m, gemm.n, gemm.k, DTYPE_BYTES[gemm.dtype]) for gemm in shapes]).T
        gemms = kernels.gemm_batch(m, n, k, size, self.node)
        slower, all_cus = (kernels.gemm_time_s(gemms, count, self.node) for count in (cus - lost_cus, cus))
        return float(np.mean(np.sort(slower / all_cus)))  # sorted: the same sum whatever the order of a set

    def _collectives(self, kind: str, sizes_mib: NDArray) -> kernels.CollectiveBatch:
        ranks = self.node.ranks
        items = [Collective(kind, int(size * MIB), ranks) for size in np.atleast_1d(sizes_mib)]
        sent = np.array([item.sent_bytes for item in items], float)
        return kernels.CollectiveBatch(
            np.full(len(items), COLLECTIVES.index(kind)), sent, np.full(len(items), ranks - 1.0)
        )

    def saturation_cus(self, kind: str) -> float:
        """First power of two of CUs whose doubling gains less than 2 % of the time of a 1 GiB collective."""
        one, gpu = self._collectives(kind, np.array([1024.0])), self.node.gpu
        counts = [gpu.cus_step * 2**step for step in range(20) if gpu.cus_step * 2**step <= gpu.cus / 2]
        for cus in counts:
            time_s, doubled_s = (kernels.cu_collective_time_s(one, count, self.node)[0] for count in (cus, 2 * cus))
            if doubled_s > (1 - SATURATED_GAIN) * time_s:
                return float(cus)
        return float("nan")

    def latency_bound_below_mib(self, kind: str) -> float:
        """Total size in MiB up to which the library's bandwidth is below 0.8 of its plateau (c3lib.workload)."""
        sizes = np.geomspace(SMALLEST_MIB, LARGEST_MIB, 2201)  # steps of 0.7 %
        bandwidth = sizes / kernels.library_time_s(self._collectives(kind, sizes), self.node)
        plateau = np.median(bandwidth[-3:])
        return float(sizes[np.argmax(bandwidth >= LATENCY_BOUND_BELOW * plateau)])

    def dma_ratio(self, kind: str, sizes_mib: NDArray) -> NDArray:
        """Isolated DMA time over library time for total sizes in MiB."""
        items = self._collectives(kind, sizes_mib)
        return kernels.dma_collective_time_s(items, self.node) / kernels.library_time_s(items, self.node)

    def _worst_ratio(self, sizes_mib: NDArray) -> NDArray:
        return np.max([self.dma_ratio(kind, sizes_mib) for kind in COLLECTIVES], axis=0)

    @cached_property
    def grid_mib(self) -> NDArray:
        """Powers of two from 1 KiB to 4 GiB, in MiB."""
        return 2.0 ** np.arange(np.log2(SMALLEST_MIB), np.log2(LARGEST_MIB) + 1)

    def parity_from_mib(self) -> float:
        """Smallest grid size from which on both DMA collectives take at most 10 % longer; NaN if never."""
        slower = self._worst_ratio(self.grid_mib) > 1 + PARITY
        first = int(np.flatnonzero(slower)[-1]) + 1 if slower.any() else 0
        return float(self.grid_mib[first]) if first < len(slower) else float("nan")

    def worst_parity_ratio(self, from_mib: float) -> float:
        """Largest ratio of DMA to library time from a size on."""
        return float(self._worst_ratio(self.grid_mib[self.grid_mib >= from_mib]).max())

    def worst_small_ratio(self) -> float:
        """Largest ratio of DMA to library time over all sizes."""
        return float(self._worst_ratio(self.grid_mib).max())

    def slowed_below_mib(self, factor: float) -> float:
        """Largest total size in MiB at which a DMA collective takes ``factor`` times as long; 0 if none does."""
        sizes = np.geomspace(SMALLEST_MIB, LARGEST_MIB, 2201)
        slowed = sizes[self._worst_ratio(sizes) >= factor]
        return float(slowed[-1]) if slowed.size else 0.0

    # --- definitions and heuristics ---

    def long_ratio(self, name: str) -> float:
        """Ratio of the two times at which the taxonomy starts to call the pair ``name``, found by bisection."""
        low, high = 1.0, 2.0
        while high - low > 1e-12:
            middle = (low + high) / 2
            pair = (middle, 1.0) if name == "G-long" else (1.0, middle)
            low, high = (low, middle) if length_class(*pair) == name else (middle, high)
        return round(high, 9)

    def largest_ideal(self) -> float:
        """Largest ideal speedup over ratios of the two times from 1:1000 to 1000:1."""
        return float(metrics.ideal_speedup(np.logspace(-3, 3, 601), 1.0).max())

    @cached_property
    def split_score(self) -> pd.DataFrame:
        """The partition heuristic against the sweep, on this suite."""
        from c3lib.heuristics import score_split

        return score_split(self.scenarios, self.node)

    def split_hits(self) -> float:
        """Scenarios in which the partition heuristic names the best split."""
        return float(self.split_score["hit"].sum())

    def split_hit_fraction(self) -> float:
        """Hits over scenarios."""
        return float(self.split_score["hit"].mean())

    def split_max_loss(self) -> float:
        """Largest loss of the partition heuristic against the sweep, as a fraction of time."""
        return float(self.split_score["loss"].max())

    def repetitions(self) -> float:
        """Runs a configuration; NaN where a model was asked, which has nothing to repeat."""
        measured = self.rows[self.rows["evidence"] == "measured"]
        return float(measured["repetition"].nunique()) if len(measured) else math.nan

    def heuristic_efficiency(self) -> float:
        """Share of peak that the partition heuristic assumes."""
        from c3lib import heuristics

        return float(heuristics.EFFICIENCY)
