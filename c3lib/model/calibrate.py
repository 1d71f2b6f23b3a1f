"""Sets the interference coefficients of a node from reported numbers, and nothing else.

Two rungs of the reported ladder are used (``c3_sp`` and ``c3_base``, both CU-driven); every DMA rung is then a
prediction. The third coefficient follows from isolated GEMM times (Fig. 5a). What this module computes stands in the
node's TOML; a test holds the two together.
"""

from __future__ import annotations

from typing import Mapping

import numpy as np

from c3lib import metrics
from c3lib.errors import C3Error
from c3lib.hardware import Node
from c3lib.model.contention import predict
from c3lib.model.kernels import batch
from c3lib.strategy import strategy
from c3lib.suites import load_suite

QUEUEING_RUNG = "conccl.fraction_of_ideal.c3_sp"
DISPATCH_RUNG = "conccl.fraction_of_ideal.c3_base"
THRASH_CLAIMS = tuple(f"conccl.mb_gemm_slowdown.lost_{cus}_cus" for cus in (8, 32, 64))
SUITE = "conccl30"


def mean_fraction_of_ideal(node: Node, name: str, suite: str = SUITE) -> float:
    """Mean fraction of ideal of one strategy over a suite, by the model."""
    gemm, collective = batch(load_suite(suite, node.ranks), node)
    result = predict(gemm, collective, node, strategy(name))
    alone = (result.gemm_alone_s, result.collective_alone_s)
    speedup = metrics.realised_speedup(*alone, result.time_s)
    return float(np.nanmean(metrics.fraction_of_ideal(speedup, metrics.ideal_speedup(*alone))))


def calibrate(node: Node, reported: Mapping[str, float]) -> dict[str, float]:
    """Interference coefficients for which the model meets the reported numbers.

    Args:
        node: the node to calibrate; its own coefficients are ignored except ``cache_pollution``.
        reported: values by claim id; for a claim that is an interval its middle.

    Raises:
        C3Error: a claim is missing, or no coefficient in the possible range meets its rung.
    """
    for claim in (QUEUEING_RUNG, DISPATCH_RUNG, *THRASH_CLAIMS):
        if claim not in reported:
            raise C3Error(f"calibration needs the reported claim {claim!r}")
    thrash = 1 - float(np.mean([reported[claim] for claim in THRASH_CLAIMS]))
    node = node.with_constant("interference.requestor_thrash", thrash)
    queueing = _solve(node, "interference.memory_queueing", "c3_sp", reported[QUEUEING_RUNG], 0.0, 20.0)
    node = node.with_constant("interference.memory_queueing", queueing)
    share = _solve(node, "interference.dispatch_share", "c3_base", reported[DISPATCH_RUNG], 0.0, 1.0)
    return {
        "interference.requestor_thrash": thrash,
        "interference.memory_queueing": queueing,
        "interference.dispatch_share": share,
    }


def _solve(node: Node, key: str, name: str, target: float, low: float, high: float) -> float:
    from scipy.optimize import brentq

    def miss(value: float) -> float:
        return mean_fraction_of_ideal(node.with_constant(key, value), name) - target

    if miss(low) * miss(high) > 0:
        raise C3Error(f"no {key} in [{low:g}, {high:g}] brings {name} to the reported {target:g} on {node.name}")
    return float(brentq(miss, low, high, xtol=1e-6))
