"""How far each constant moves the headline results: one at a time, up and down by the same share (a tornado)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import numpy as np
import pandas as pd

from c3lib import metrics
from c3lib.constants import Constant
from c3lib.errors import C3Error, unknown
from c3lib.hardware import SECTIONS, Node
from c3lib.model import kernels
from c3lib.model.contention import predict
from c3lib.strategy import STRATEGIES
from c3lib.suites import load_suite

IDLE = frozenset(
    {"gpu.llc_mb", "gpu.llc_peak_gbs", "gpu.l2_mb", "gpu.hbm_capacity_gb", "link.peak_gbs", "dma.engines"}
    | {f"{kind}.saturation_cus" for kind in ("all-gather", "all-to-all")}
    | {"link.dma_one_way_gbs", "link.cu_one_way_gbs"}
)
"""Constants that no time of a scenario depends on: they describe, bound, normalise, or are of finer-grain overlap alone
(a test holds this list)."""

BEST = "speedup_max"


def used_keys(node: Node) -> list[str]:
    """Keys of the constants that a scenario's time depends on, in the order of the node's file."""
    return [key for key in node.constants if key not in IDLE]


def headline(node: Node, suite: str = "conccl30") -> dict[str, float]:
    """Mean fraction of ideal of each strategy over the suite, and the best speedup of a DMA strategy."""
    gemm, collective = kernels.batch(load_suite(suite, node.ranks), node)
    found: dict[str, float] = {}
    best = 0.0
    for name, how in STRATEGIES.items():
        result = predict(gemm, collective, node, how)
        alone = (result.gemm_alone_s, result.collective_alone_s)
        speedup = metrics.realised_speedup(*alone, result.time_s)
        found[name] = float(np.nanmean(metrics.fraction_of_ideal(speedup, metrics.ideal_speedup(*alone))))
        if how.transport == "dma":
            best = max(best, float(speedup.max()))
    return {**found, BEST: best}


def tornado(node: Node, swing: float = 0.2, suite: str = "conccl30", keys: Iterable[str] | None = None) -> pd.DataFrame:
    """Headline results with each constant lowered and raised by ``swing`` (a share), the others as they are.

    A count moves by at least one, and to a whole number that the node allows; a switch (0 or 1) stays as it is; a value
    is kept inside its possible range, so ``low_value`` or ``high_value`` may be nearer than the swing. Columns: key,
    unit, value, low_value, high_value, metric, base, low, high. Raises :class:`C3Error` for an unknown key or a swing
    outside (0, 1).
    """
    if not 0 < swing < 1:
        raise C3Error(f"swing must lie between 0 and 1, not {swing!r}")
    chosen = list(used_keys(node) if keys is None else keys)
    for key in chosen:
        if key not in node.constants:
            raise unknown("constant", key, node.constants)
    base = headline(node, suite)
    rows = []
    for key in chosen:
        constant = node.constants[key]
        moved = [_moved(node, constant, sign * swing) for sign in (-1, 1)]
        low, high = (base if other is node else headline(other, suite) for other in moved)
        low_value, high_value = (other.constants[key].value for other in moved)
        for metric, value in base.items():
            rows.append(
                (key, constant.unit, constant.value, low_value, high_value, metric, value, low[metric], high[metric])
            )
    columns = ["key", "unit", "value", "low_value", "high_value", "metric", "base", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def _moved(node: Node, constant: Constant, share: float) -> Node:
    """The node with one constant moved as far as it may be; the node itself where it may not move that way at all."""
    section, name = constant.key.split(".")
    meta = next(item.metadata for item in fields(SECTIONS[section]) if item.name == name)
    if meta["whole"] and (meta["low"], meta["high"]) == (0, 1):
        return node  # a switch: turning it over is another model, not a share more of this one
    value = constant.value * (1 + share)
    if meta["whole"]:
        step = node.gpu.dies if constant.key == "gpu.cus" else 1
        by = max(1, round(abs(constant.value * share) / step)) * step
        value = constant.value + (by if share > 0 else -by)
    value = min(max(value, meta["low"]), meta["high"])
    try:
        return node.with_constant(constant.key, value)
    except C3Error:
        return node
