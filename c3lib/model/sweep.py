"""Strategies over many scenarios, in chunks: beside the times themselves, memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from c3lib.hardware import Node
from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.model.kernels import CollectiveBatch, GemmBatch
from c3lib.strategy import STRATEGIES, Strategy, strategy
from c3lib.workload import Scenario, whole

CHUNK = 4096
"""Scenarios evaluated at once: enough that NumPy's cost per call is small, few enough to stay in the caches."""


@dataclass(frozen=True)
class Sweep:
    """Times in seconds: ``(scenarios,)`` alone, ``(scenarios, strategies)`` concurrent, columns as ``strategies``."""

    strategies: tuple[str, ...]
    gemm_alone_s: NDArray
    collective_alone_s: NDArray
    time_s: NDArray
    cus_taken: NDArray


def evaluate(gemm: GemmBatch, collective: CollectiveBatch, node: Node, chosen: Sequence[Strategy]) -> Sweep:
    """One chunk of scenarios under every strategy; a scenario's times do not depend on what else is in the chunk."""
    results = [predict(gemm, collective, node, how) for how in chosen]
    return Sweep(
        tuple(how.name for how in chosen),
        kernels.gemm_time_s(gemm, node.gpu.cus, node),
        kernels.library_time_s(collective, node),
        np.stack([result.time_s for result in results], -1),
        np.stack([result.cus_taken for result in results], -1),
    )


def sweep(
    scenarios: Sequence[Scenario], node: Node, strategies: Iterable[str] = tuple(STRATEGIES), chunk: int = CHUNK
) -> Sweep:
    """Predict every scenario under every strategy, ``chunk`` scenarios at a time.

    Equals :func:`c3lib.model.contention.predict` on all of them at once, up to the 1e-9 to which it iterates.

    Raises:
        C3Error: an unknown strategy, or a chunk of less than 1.
    """
    chunk = whole("sweep: chunk", chunk, least=1)
    chosen = [strategy(name) for name in strategies]
    times, taken = np.empty((2, len(scenarios), len(chosen)))
    gemm_alone, collective_alone = np.empty((2, len(scenarios)))
    for first in range(0, len(scenarios), chunk):
        rows = slice(first, first + chunk)
        part = evaluate(*kernels.batch(scenarios[rows], node), node, chosen)
        gemm_alone[rows], collective_alone[rows] = part.gemm_alone_s, part.collective_alone_s
        times[rows], taken[rows] = part.time_s, part.cus_taken
    return Sweep(tuple(how.name for how in chosen), gemm_alone, collective_alone, times, taken)
