"""Interference coefficients from the table ``order``: a GEMM beside a transfer, and each of the two alone.

They invert the model's own laws (:mod:`c3lib.model.sharing`, :mod:`c3lib.model.shared_gpu`), one at a time. A pair that
cannot tell a coefficient from noise is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from c3lib.derive.alone import LINEAR
from c3lib.derive.reading import OWN_KERNEL, Reading, Tables
from c3lib.model import kernels, resident
from c3lib.model.kernels import BYTES_PER_LINK_BYTE, GemmBatch
from c3lib.workload import Collective, Gemm, Scenario

LEAST_TRAFFIC = 0.05
"""Share of memory bandwidth below which a transfer's traffic moves a GEMM no more than the spread does."""

FLOODED = (0.2, 0.7)
"""Shares of its rate that a GEMM keeps between which the law of flooding is read: above, other mechanisms explain the
loss as well; below, the times are those of starting and ending."""


def from_order(tables: Tables) -> Iterator[Reading]:
    """Every coefficient that the table gives; none of an empty one."""
    pairs = tables.beside[(tables.beside["direction"] == "both") & (tables.beside["sms_granted"] == 0)]
    transport = tables.library if (pairs["transport"] == tables.library).any() else OWN_KERNEL
    kernel = pairs[pairs["transport"] == transport]
    yield from _queueing(tables, pairs[(pairs["transport"] == "copy_engine") & (pairs["bound"] == "compute")])
    yield from _copy_queueing(tables, kernel[(kernel["first"] == "transfer") & (kernel["bound"] == "memory")])
    if tables.node.gpu.resident_gemm:
        yield from _waiting(tables, kernel[(kernel["first"] == "gemm") & (kernel["bound"] == "compute")])
    yield from _flood(tables, kernel[kernel["first"] == "transfer"])


def kept_share(pairs: pd.DataFrame) -> pd.Series:
    """Share of its rate that the GEMM keeps while the transfer runs: 1 - time lost / time together."""
    together_s = np.minimum(pairs["transfer_s"], pairs["gemm_s"])
    return 1 - (pairs["gemm_s"] - pairs["gemm_alone_s"]) / together_s


def _queueing(tables: Tables, pairs: pd.DataFrame) -> Iterator[Reading]:
    """A GEMM at rate 1 / (1 + coefficient * traffic) beside copy engines."""
    traffic = BYTES_PER_LINK_BYTE * pairs["sent_bytes"] / pairs["transfer_s"] / (tables.node.gpu.hbm_gbs * 1e9)
    pairs, traffic = pairs[traffic >= LEAST_TRAFFIC], traffic[traffic >= LEAST_TRAFFIC]
    if len(pairs):
        slower = 1 / kept_share(pairs)
        text = f"compute-bound GEMM {slower.median():.3f}x beside copy-engine traffic of "
        text += f"{traffic.median():.0%} of memory bandwidth"
        value = max(0.0, float(((slower - 1) / traffic).median()))
        yield Reading("interference.memory_queueing", _round(value), _says(tables, text))


def _copy_queueing(tables: Tables, pairs: pd.DataFrame) -> Iterator[Reading]:
    """Copying blocks at rate 1 / (1 + coefficient * traffic) beside a memory-bound GEMM, where links are no limit."""
    pairs = pairs[pairs["transfer_alone_s"] * LINEAR >= pairs["transfer_alone_s"].min()]
    if pairs.empty:
        return
    traffic = _gemms(tables, pairs).beyond_l2_bytes / pairs["gemm_s"] / (tables.node.gpu.hbm_gbs * 1e9)
    kept = 1 - (pairs["transfer_s"] - pairs["transfer_alone_s"]) / np.minimum(pairs["transfer_s"], pairs["gemm_s"])
    value = max(0.0, float(((1 / kept - 1) / traffic).median()))
    told = ", ".join(f"{share:.2f} by {blocks}" for blocks, share in kept.groupby(pairs["blocks"]).median().items())
    text = f"launched before a memory-bound GEMM, blocks keep a share of their rate of {told}, "
    text += f"beside traffic of {traffic.median():.0%} of memory"
    yield Reading("interference.copy_queueing", _round(value, 2), _says(tables, text))


def _waiting(tables: Tables, pairs: pd.DataFrame) -> Iterator[Reading]:
    """Blocks launched behind a resident GEMM: at what rate, in blocks, do they run once it has ended?"""
    waiting, shares = [], []
    for _, part in pairs.groupby(["gemm", "batched", "total_bytes", "high_priority"]):
        part = part.dropna(subset=["transfer_alone_s"]).sort_values("blocks")
        blocks, alone_s = part["blocks"].to_numpy(float), part["transfer_alone_s"].to_numpy()
        tail_s = (part["region_s"] - part["gemm_s"]).to_numpy()
        faster = np.interp(np.log(blocks / 2), np.log(blocks), alone_s) / alone_s  # than half of them
        waited = (blocks > blocks.min()) & (faster >= 1.05) & (tail_s > 0.5 * alone_s)
        falling = np.minimum.accumulate(alone_s)
        ran = np.exp(np.interp(-np.log(np.maximum(tail_s, 1e-12)), -np.log(falling), np.log(blocks)))
        waiting += list((blocks / ran)[waited])
        gemm_s = part["gemm_s"].to_numpy()
        shares += list(np.clip((alone_s - tail_s) / gemm_s, 0, 1)[waited])
    if waiting:
        per_sm, share = max(1, round(float(np.median(waiting)))), float(np.median(shares))
        text = (
            f"launched behind a GEMM, blocks run at the rate of {np.median(waiting):.2g} times fewer when it has ended"
        )
        yield Reading("interference.waiting_per_cu", per_sm, _says(tables, text))
        text = f"blocks launched behind a GEMM move {share:.0%} of what they move alone before it ends"
        yield Reading("interference.dispatch_share", _round(share, 2), _says(tables, text))


def _flood(tables: Tables, pairs: pd.DataFrame) -> Iterator[Reading]:
    """A GEMM at rate (flood_cus / blocks)^2 beside blocks that copy: 0 where no number of them has that effect."""
    if pairs.empty:
        return
    blocks, gemm, node = pairs["blocks"].to_numpy(float), _gemms(tables, pairs), tables.node
    # What the SMs that they hold cost it, of the resource that bounds it.
    whole, crowded = (resident.crowded_times_s(gemm, node.gpu.cus - held, node, 0) for held in (0 * blocks, blocks))
    left = np.where(pairs["bound"] == "compute", whole[0] / crowded[0], whole[1] / crowded[1])
    kept = (kept_share(pairs) / left).to_numpy()
    told = ", ".join(f"{kept[blocks == count].mean():.2f} beside {count:g}" for count in np.unique(blocks))
    # A memory-bound GEMM loses bandwidth too: it is a flood only where every GEMM loses as much.
    least = pd.Series(kept).groupby(blocks).transform("max").to_numpy()
    flooded = (kept >= FLOODED[0]) & (least <= FLOODED[1])
    value = float(np.median(blocks[flooded] * np.sqrt(kept[flooded]))) if flooded.any() else 0.0
    text = f"share of its rate that a GEMM keeps beside copying blocks, {told}"
    yield Reading("interference.flood_cus", _round(value, 2), _says(tables, text))


def _gemms(tables: Tables, pairs: pd.DataFrame) -> GemmBatch:
    nothing = Collective("all-gather", 0, tables.node.ranks)
    return kernels.batch([Scenario("", Gemm.parse(name), nothing) for name in pairs["gemm"]], tables.node)[0]


def _says(tables: Tables, text: str) -> str:
    return f"{tables.device}, table order: {text}"


def _round(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")
