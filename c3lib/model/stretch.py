"""Isolated curves drawn through measured isolated times: their shape stays the model's, their scale is the device's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c3lib.hardware import Node
from c3lib.model import kernels
from c3lib.model.kernels import CollectiveBatch, GemmBatch


def stretched(
    gemm: GemmBatch,
    collective: CollectiveBatch,
    node: Node,
    gemm_alone_s: NDArray,
    own_alone_s: NDArray,
    transport: str,
    blocks: ArrayLike | None = None,
) -> tuple[GemmBatch, CollectiveBatch]:
    """The batches with their isolated curves scaled, so that both kernels alone take the given times.

    One factor for a whole curve (launch, compute and memory; latency and bytes), so that its shape over CUs and size
    stays the model's. A prediction from these batches is told the isolated times and judged on contention alone.

    Args:
        gemm_alone_s: time of the GEMM alone on all CUs, ``(batch,)``.
        own_alone_s: time of the collective alone by ``transport``, ``(batch,)``; see
            :func:`c3lib.model.kernels.own_time_s`.
    """
    gemm_s = kernels.gemm_time_s(gemm, node.gpu.cus, node)
    own_s = kernels.own_time_s(collective, node, transport, blocks)
    moves = own_s > 0  # nothing to send takes no time, however stretched
    factor = np.divide(np.broadcast_to(own_alone_s, own_s.shape), own_s, out=np.ones_like(own_s), where=moves)
    return (
        replace(gemm, stretch=gemm.stretch * gemm_alone_s / gemm_s),
        replace(collective, stretch=collective.stretch * factor),
    )
