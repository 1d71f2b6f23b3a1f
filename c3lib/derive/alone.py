"""Constants of each kernel alone, from the table ``isolated``: link rates, start-up times, blocks, the GEMM's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from c3lib.derive.reading import Reading, Tables
from c3lib.hardware import COLLECTIVES
from c3lib.measured import TRANSPORTS
from c3lib.workload import Gemm, format_size

LARGE_NBYTES = 2**27
"""From this total on a transfer's rate counts as the link's."""

SATURATED = 0.95
"""Blocks that reach this share of the best rate gain nothing more."""

LINEAR = 0.7
"""Up to this share of the best rate blocks do not get into each other's way."""

SPARED = 1.03
"""A memory-bound GEMM spares SMs without which it takes at most this times its time."""


def from_isolated(tables: Tables) -> Iterator[Reading]:
    """Every constant that the table gives."""
    yield from _gemm(tables)
    yield from _copy_engines(tables)
    best = 0.0
    for kind in COLLECTIVES:
        rates, more = _library(tables, kind)
        best = max(best, rates.max() if len(rates) else 0.0)
        yield from more
    if best:
        name = TRANSPORTS[tables.library]
        yield Reading(
            "link.cu_gbs", _round(best / _links(tables)), _says(tables, f"{name} {best:.4g} GB/s a direction")
        )
    if tables.node.topology == "host":  # links between GPUs are full duplex
        yield from _one_way(tables)


def _gemm(tables: Tables) -> Iterator[Reading]:
    gpu, gemms = tables.node.gpu, tables.gemms
    whole = gemms[gemms["sms_granted"] == 0].set_index("gemm")["gemm_s"]
    bound = gemms.drop_duplicates("gemm").set_index("gemm")["bound"]
    large = [name for name in whole.index if bound[name] == "compute"]
    if large:
        name = max(large, key=lambda text: Gemm.parse(text).flops)
        tflops = Gemm.parse(name).flops / whole[name] / 1e12
        source = _says(tables, f"{name} in {whole[name] * 1e3:.3f} ms, {tflops:.0f} TFLOP/s")
        yield Reading("gpu.matrix_efficiency", _round(tflops / gpu.matrix_peak_tflops, 2), source)
    fewer = gemms[(gemms["bound"] == "memory") & (gemms["partition"] == "sm target")]
    if len(fewer):
        slower = (fewer["gemm_s"] / fewer["gemm"].map(whole)).groupby(fewer["sms_granted"]).max()
        powers = [count for count in slower.index if count >= gpu.cus_step and count & (count - 1) == 0]
        spared = max([count for count in powers if slower[count] <= SPARED], default=0)
        told = ", ".join(f"{count} fewer {slower[count] - 1:+.1%}" for count in powers)
        yield Reading("gpu.spare_cus", spared, _says(tables, f"the memory-bound GEMM that loses most, SMs {told}"))


def _copy_engines(tables: Tables) -> Iterator[Reading]:
    rows, dma = tables.transfers[tables.transfers["transport"] == "copy_engine"], tables.node.dma
    engines = tables.about.get("copy_engines")
    if isinstance(engines, int):
        yield Reading("dma.engines", engines, f"{tables.device}, device query: {engines} asynchronous engines")
    plans = _both(rows[rows["batched"]] if rows["batched"].any() else rows)
    if plans.empty:
        return
    start_s = plans["transfer_s"].iloc[0]
    rate = _plateau_gbs(plans)
    if rate:
        source = _says(tables, f"copy engines {rate:.4g} GB/s a direction, both ways at once")
        yield Reading("link.dma_gbs", _round(rate / _links(tables)), source)
    # A plan's start-up is a copy, a command for each peer and a start for each further engine, as the model has it.
    start_us, peers = start_s * 1e6, tables.node.ranks - 1
    further_us = dma.engine_us * (min(peers, dma.peer_engines) - 1)
    said = f"a plan of {format_size(plans['total_bytes'].iloc[0])} in all takes {start_us:.3g} us"
    single = rows[(rows["copies"] == 1) & (rows["direction"] != "both")].sort_values("total_bytes")
    if len(single):
        copy_us = single["transfer_s"].iloc[:1].mean() * 1e6
        yield Reading(
            "dma.copy_us", _round(copy_us, 2), _says(tables, f"one copy of {_half(single)}, {copy_us:.2g} us")
        )
        command_us = max(0.0, (start_us - copy_us - further_us) / peers)
        source = _says(tables, f"{said}; less one copy and the further engines, a peer")
        yield Reading("dma.command_us", _round(command_us, 2), source)
    else:  # with nothing to tell a copy from a command, the file's command stands
        copy_us = max(0.0, start_us - dma.command_us * peers - further_us)
        yield Reading(
            "dma.copy_us", _round(copy_us, 2), _says(tables, f"{said}; less the file's command for each peer")
        )


def _one_way(tables: Tables) -> Iterator[Reading]:
    """Rates of whole plans whose bytes all come from host memory, nothing going the other way."""
    rows = tables.transfers
    rows = rows[(rows["direction"] == "in") & (rows["copies"] == tables.node.ranks - 1)]
    for key, transport in (("dma", "copy_engine"), ("cu", tables.library)):
        mine = rows[rows["transport"] == transport].sort_values("total_bytes")
        mine = mine[mine["batched"]] if mine["batched"].any() else mine
        best = max((_plateau_gbs(part) for _, part in mine.groupby("blocks")), default=0.0)
        if best:
            name = "copy engines" if transport == "copy_engine" else TRANSPORTS[transport]
            source = _says(tables, f"{name} {best:.4g} GB/s from host memory, nothing going back")
            yield Reading(f"link.{key}_one_way_gbs", _round(best / _links(tables)), source)


def _library(tables: Tables, kind: str) -> tuple[pd.Series, list[Reading]]:
    """Rates by blocks (GB/s a direction) and the constants of one collective; another's rows where it has none."""
    rows = tables.transfers[tables.transfers["transport"] == tables.library]
    every = _both(rows)
    of_kind = every["collective"] == kind
    rows = every[of_kind] if of_kind.any() else every
    large = rows[rows["total_bytes"] >= LARGE_NBYTES]
    if large.empty:
        return pd.Series(dtype=float), []
    swept = large[large["total_bytes"] == large.groupby("total_bytes")["blocks"].nunique().idxmax()]
    default = _default_blocks(large, swept)
    small = rows if rows["total_bytes"].min() < LARGE_NBYTES else every  # the other collective's start will do
    first = small[small["total_bytes"] == small["total_bytes"].min()]
    first = first.loc[[(first["blocks"] - default).abs().idxmin()]]
    start_s, name = first["transfer_s"].iloc[0], TRANSPORTS[tables.library]
    rates = (swept["sent_bytes"] / (swept["transfer_s"] - start_s) / 1e9).groupby(swept["blocks"]).median()
    plateau = _plateau_gbs(pd.concat([first, rows[rows["blocks"] == default]]).sort_values("total_bytes"))
    rates *= plateau / rates[default]  # the swept size may lie below the plateau
    best = rates.max()
    steps = [count for count in rates.index if count & (count - 1) == 0 and rates[count] >= SATURATED * best]
    linear = rates[rates <= LINEAR * best]
    if rates[default] < SATURATED * best:
        per_block, told = rates[default] / default, f"{plateau:.4g} GB/s a direction by its {default} blocks"
    else:
        linear = linear if len(linear) else rates.iloc[:1]
        per_block = (linear * linear.index).sum() / (linear.index.to_numpy() ** 2).sum()
        told = ", ".join(f"{rate:.4g}" for rate in linear) + " GB/s a direction by "
        told += ", ".join(map(str, linear.index)) + " blocks"
    found = [
        Reading(f"{kind}.cu_gbs", _round(per_block), _says(tables, f"{name} {told}")),
        Reading(f"{kind}.latency_us", _round(start_s * 1e6, 2), _says(tables, f"{name}, {_whole(first)} in all")),
    ]
    if steps:
        saturation = max(min(steps), tables.node.gpu.cus_step)
        told = f"{name} reaches {SATURATED:.0%} of its best rate with {min(steps)} blocks"
        told += f"; {saturation} is the least a partition moves" if saturation > min(steps) else ""
        found.append(Reading(f"{kind}.saturation_cus", saturation, _says(tables, told)))
    if tables.library == "nccl":
        found.append(Reading(f"{kind}.default_cus", default, _says(tables, f"{name} ran on {default} blocks")))
    return rates, found


def _default_blocks(large: pd.DataFrame, swept: pd.DataFrame) -> int:
    """Blocks that the library takes by itself: those that ran most often, at every size and in the sweep of blocks.

    Of equally frequent ones a number that nobody would ask for, else the largest.
    """
    often = large.groupby("blocks")["repetitions"].sum()
    return max(map(int, swept["blocks"].unique()), key=lambda count: (often[count], count & (count - 1) > 0, count))


def _both(rows: pd.DataFrame) -> pd.DataFrame:
    """Whole plans, both ways at once, smallest first."""
    return rows[(rows["direction"] == "both") & (rows["sent_bytes"] > 0)].sort_values("total_bytes")


def _plateau_gbs(rows: pd.DataFrame) -> float:
    """Rate of large transfers, GB/s a direction, without the start-up time of the smallest; 0 without a large one."""
    large = rows[rows["total_bytes"] >= LARGE_NBYTES]
    start_s = rows["transfer_s"].iloc[0] if rows["total_bytes"].iloc[0] < LARGE_NBYTES else 0.0
    return float(np.median(large["sent_bytes"] / (large["transfer_s"] - start_s)) / 1e9) if len(large) else 0.0


def _links(tables: Tables) -> int:
    return tables.node.links_used()


def _half(single: pd.DataFrame) -> str:
    return format_size(single["total_bytes"].iloc[0] // 2)  # one copy moves one shard of two


def _whole(rows: pd.DataFrame) -> str:
    return format_size(rows["total_bytes"].iloc[0])


def _says(tables: Tables, text: str) -> str:
    return f"{tables.device}, table isolated: {text}"


def _round(value: float, digits: int = 3) -> float:
    return float(f"{value:.{digits}g}")
