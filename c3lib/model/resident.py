"""GEMM kernels that stay: what becomes of workgroups that find no CU free while a resident kernel runs.

cuBLAS on Hopper launches at most one workgroup a CU, and each works through tiles until none is left
(``gpu.resident_gemm``). Two rules follow, one for each side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c3lib.hardware import Node
from c3lib.model import kernels
from c3lib.model.kernels import CollectiveBatch, GemmBatch


def room_cus(gemm: GemmBatch, collective: CollectiveBatch, node: Node) -> NDArray:
    """CUs on which a collective launched behind the GEMM starts at once, ``(batch,)``.

    Those that the GEMM is too small for, or that the library's memory-bound GEMMs leave idle. The latter lie scattered,
    so that workgroups which start only in clusters (``cluster_cus``) find no place for one.
    """
    idle = np.where(gemm.memory_bound & ~clustered(collective, node), node.gpu.idle_cus, 0)
    return np.maximum(node.gpu.cus - gemm.workgroups, idle)


def clustered(collective: CollectiveBatch, node: Node) -> NDArray:
    """Whether CUs left free of a resident GEMM are too scattered for the collective's clusters, bool ``(batch,)``."""
    return (kernels.library_field(collective, node, "cluster_cus") > 1) & bool(node.gpu.resident_gemm)


def crowded_times_s(gemm: GemmBatch, cus: NDArray, node: Node, extra_bytes: ArrayLike) -> tuple[NDArray, NDArray]:
    """Compute and memory time of a GEMM that was launched for all CUs and finds only ``cus`` of them free.

    Nobody told the library, so tile and workgroups are those for the whole GPU. Every workgroup's first tile is its own
    and it takes the others as they come; the workgroups that found no CU run theirs when the rest have ended::

        waves = ceil((tiles - late) / cus) + ceil(late / cus) with late = min(tiles, all CUs) - cus workgroups

    A late wave takes as long as any other, whichever resource sets the pace.
    """
    gpu = node.gpu
    tiles = np.ceil(gemm.workgroups / gpu.dies)
    free = np.maximum(1, np.floor(cus / gpu.dies + 1e-9))
    late = np.maximum(np.minimum(tiles, gpu.cus / gpu.dies) - free, 0)
    before = np.ceil((tiles - late) / free)
    waves = before + np.ceil(late / free)
    compute = kernels.waves_time_s(tiles, waves, gemm.tile_time_s, node) * gemm.stretch
    memory = kernels.memory_time_s(gemm, cus, node, extra_bytes) * waves / before
    return compute, memory
