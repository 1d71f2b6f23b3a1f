"""A GEMM beside a collective: how long each strategy takes over a batch of scenarios, and which partition it picks.

What happens on the GPU stands in :mod:`c3lib.model.shared_gpu`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c3lib.errors import C3Error
from c3lib.hardware import Node
from c3lib.model import kernels
from c3lib.model.kernels import CollectiveBatch, GemmBatch
from c3lib.model.shared_gpu import Mechanisms, SharedGpu
from c3lib.strategy import Strategy


@dataclass(frozen=True)
class Prediction:
    """Times in seconds and CU counts, arrays ``(batch,)``."""

    time_s: NDArray
    gemm_end_s: NDArray
    collective_end_s: NDArray
    gemm_alone_s: NDArray
    collective_alone_s: NDArray  # as the library runs it by default: the Tc of every metric
    cus_taken: NDArray  # CUs that the GEMM does not have while the collective runs at full width
    law: SharedGpu


def split_sweep(node: Node) -> tuple[int, ...]:
    """CUs for the collective in a partition sweep: none, and powers of two from the smallest step to half of the GPU.

    The sweep may decline (0): the axis of Fig. 5a of arXiv 2412.14335 starts there, and an oracle never has to lose.
    """
    counts, cus = [0], node.gpu.cus_step
    while cus < node.gpu.cus / 2:
        counts.append(cus)
        cus *= 2
    return tuple(counts)


def withheld_cus(gemm: GemmBatch, node: Node) -> NDArray:
    """The ``conccl_rp`` rule: the CUs that a memory-bound GEMM can spare, none off any other.

    Bound as :meth:`c3lib.workload.Gemm.bound` has it, against the ridge of the GPU's peaks. A GEMM so near the ridge
    that its matrix work on the CUs left would take longer than its memory traffic can spare none. Both are what a
    program knows before anything has run.
    """
    left = node.gpu.cus - node.gpu.spare_cus
    fits = kernels.compute_time_s(gemm, left, node) <= kernels.memory_time_s(gemm, node.gpu.cus, node)
    return np.where(gemm.memory_bound & fits, node.gpu.spare_cus, 0)


def predict(
    gemm: GemmBatch,
    collective: CollectiveBatch,
    node: Node,
    strategy: Strategy,
    *,
    cus: ArrayLike | None = None,
    blocks: ArrayLike | None = None,
    on: Mechanisms = Mechanisms(),
) -> Prediction:
    """Concurrent times of a batch of scenarios under one strategy.

    ``cus`` overrides the CUs of a partition (scalar or ``(batch,)``); without it a ``"sweep"`` takes the best of
    :func:`split_sweep` for each scenario, and ``"memory-bound"`` follows :func:`withheld_cus`. ``blocks`` overrides the
    library's default number of workgroups (a sweep's own choice does not know of it: give ``cus`` with it).

    Raises:
        C3Error: ``cus`` given for a strategy without a partition, or ``blocks`` for one that uses DMA engines.
    """
    if blocks is not None and strategy.transport != "cu":
        raise C3Error(f"strategy {strategy.name} runs no collective on CUs, so blocks cannot be given")
    if cus is None:
        cus = _own_split(gemm, collective, node, strategy)
    elif strategy.partition == "none":
        raise C3Error(f"strategy {strategy.name} has no partition, so cus cannot be given")
    cus = np.broadcast_to(np.asarray(cus, float), gemm.nbytes.shape)
    if not ((cus >= 0) & (cus < node.gpu.cus)).all():
        raise C3Error(f"cus must lie in 0 to {node.gpu.cus - 1}: the GEMM keeps at least one CU")
    if blocks is not None and not (np.isfinite(np.asarray(blocks, float)) & (np.asarray(blocks, float) >= 1)).all():
        raise C3Error("blocks must be at least 1")
    law = SharedGpu(gemm, collective, node, strategy, cus, on, blocks)
    gemm_end, collective_end = law.end_times_s()
    return Prediction(
        time_s=np.maximum(gemm_end, collective_end),
        gemm_end_s=gemm_end,
        collective_end_s=collective_end,
        gemm_alone_s=kernels.gemm_time_s(gemm, node.gpu.cus, node),
        collective_alone_s=kernels.library_time_s(collective, node),
        cus_taken=np.where(cus > 0, cus, law.wanted_cus),
        law=law,
    )


def _own_split(gemm: GemmBatch, collective: CollectiveBatch, node: Node, strategy: Strategy) -> ArrayLike:
    if strategy.partition == "sweep":
        return best_split(gemm, collective, node, strategy)
    return withheld_cus(gemm, node) if strategy.partition == "memory-bound" else 0.0


def sweep_times_s(gemm: GemmBatch, collective: CollectiveBatch, node: Node, strategy: Strategy) -> NDArray:
    """Concurrent time for every split of :func:`split_sweep`, ``(batch, splits)``."""
    return np.stack([predict(gemm, collective, node, strategy, cus=count).time_s for count in split_sweep(node)], -1)


def best_split(gemm: GemmBatch, collective: CollectiveBatch, node: Node, strategy: Strategy) -> NDArray:
    """The split with the shortest concurrent time, found by exhaustive sweep: an oracle."""
    return np.array(split_sweep(node))[sweep_times_s(gemm, collective, node, strategy).argmin(-1)]
