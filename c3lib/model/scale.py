"""A suite for another node: the same GEMMs, transfers of the size that keeps each pair's ratio of isolated times."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

import numpy as np

from c3lib.hardware import COLLECTIVES, Node
from c3lib.model import kernels
from c3lib.workload import Collective, Scenario, length_class

MIB = 2**20


def scaled(scenarios: Sequence[Scenario], origin: Node, node: Node) -> list[Scenario]:
    """The scenarios of ``origin`` for ``node``: each collective as long, against its GEMM, as it is there.

    So the cells of the taxonomy stay filled on a node whose links are faster or slower. Sizes are rounded to whole MiB
    and are at least one; the rule inverts ``t0 + s / B`` of the library (:func:`c3lib.model.kernels.library_time_s`).
    """
    gemm, collective = kernels.batch(scenarios, origin)
    ratio = kernels.library_time_s(collective, origin) / kernels.gemm_time_s(gemm, origin.gpu.cus, origin)
    gemm, collective = kernels.batch(scenarios, node)
    wanted_s = ratio * kernels.gemm_time_s(gemm, node.gpu.cus, node)
    default = kernels.library_field(collective, node, "default_cus")
    rate = kernels.cu_collective_gbs(collective, default, node) * 1e9
    sent = (wanted_s - kernels.library_field(collective, node, "latency_us") * 1e-6) * rate
    total = np.maximum(1, np.round(sent * node.ranks / max(1, node.ranks - 1) / MIB)).astype(int) * MIB
    return [
        replace(scenario, collective=Collective(scenario.collective.kind, int(nbytes), node.ranks))
        for scenario, nbytes in zip(scenarios, total, strict=True)
    ]


def cells(scenarios: Sequence[Scenario], node: Node) -> set[tuple[str, str, str]]:
    """Cells (bound, length class, kind) of the taxonomy that the scenarios fill, by the node's isolated times."""
    gemm, collective = kernels.batch(scenarios, node)
    times = zip(kernels.gemm_time_s(gemm, node.gpu.cus, node), kernels.library_time_s(collective, node), strict=True)
    return {
        (scenario.gemm.bound(node.gpu), length_class(*pair), COLLECTIVES[kind])
        for scenario, pair, kind in zip(scenarios, times, collective.kind, strict=True)
    }
