"""Small tables of measured data by a simple law, built to the schemas: what the tests of their figures draw.

The law is not the contention model: a link of ``LINK`` GB/s a way, a kernel that moves ``PER_BLOCK`` GB/s with each
block, and the shares of time given as arguments. ``jitter`` is the relative half-width of the spread of repetitions.
"""

import numpy as np
import pandas as pd

from c3lib import metrics
from c3lib.measured import schemas
from c3lib.strategy import STRATEGIES
from c3lib.workload import length_class

NODE = "h200_1"
GEMMS = {"8192x8192x8192": ("compute", 1.4e-3), "64x106496x16384": ("memory", 0.8e-3)}
SMALL = {"512x8192x8192": ("compute", 0.1e-3)}
LINK, PER_BLOCK, START_S = 50.0, 12.0, 8e-6
REPEATS = 5

HEALTH = {
    "sm_mhz_before": 1980.0,
    "sm_mhz": 1980.0,
    "power_w_before": 400.0,
    "power_w": 500.0,
    "temperature_c": 40.0,
}
PROOF = {"verified": True, "path": "copy engine: ended while all 132 SMs were held"}


def spread(repetition, jitter):
    """A factor of each repetition, median 1."""
    return 1 + jitter * (np.arange(REPEATS) - REPEATS // 2)[repetition] / (REPEATS // 2)


def setting(blocks=0, batched=True, first="transfer", high=False, withheld=0, green=False, transport=None):
    transport = transport or ("sm_kernel" if blocks else "copy_engine")
    return {
        "transport": transport,
        "batched": batched and transport == "copy_engine",
        "blocks": blocks,
        "first": first,
        "high_priority": high,
        "sms_asked": withheld,
        "sms_granted": withheld,
        "partition": "none" if not withheld else "green context" if green else "sm target",
    }


def transfer_s(link_bytes, how, copies=14, ways=2):
    """Start-up (0.5 us a copy more where copies are not batched) and bytes over the link's rate."""
    rate = LINK * ways * (0.8 if how["blocks"] else 1)
    if how["blocks"]:
        rate = min(rate, PER_BLOCK * how["blocks"])
    return START_S + (0 if how["batched"] else 0.5e-6 * copies) + link_bytes / rate / 1e9


def row(experiment, gemm, how, repetition, nbytes=0, direction="both", copies=14, jitter=0.0, **times):
    """A region; ``times`` (seconds) that are not given are NaN."""
    bound, _ = {**GEMMS, **SMALL, "none": ("none", 0)}[gemm]
    moves = how["transport"] != "none"
    factor = spread(repetition, jitter)
    return {
        "node": NODE,
        "evidence": "measured",
        "experiment": experiment,
        "gemm": gemm,
        "dtype": "none" if gemm == "none" else "bf16",
        "bound": bound,
        "collective": "all-gather" if moves else "none",
        "direction": direction if moves else "none",
        "total_bytes": nbytes if moves else 0,
        "link_bytes": link_of(nbytes, direction, copies) if moves else 0,
        "copies": copies if moves else 0,
        **how,
        "repetition": repetition,
        "gemm_s": times.get("gemm_s", np.nan) * factor,
        "transfer_s": times.get("transfer_s", np.nan) * factor,
        "region_s": times.get("region_s", np.nanmax([times.get(n, np.nan) for n in ("gemm_s", "transfer_s")])) * factor,
        "overlap_s": 0.0,
        **HEALTH,
        **PROOF,
    }


def link_of(nbytes, direction, copies):
    """A plan of 8 ranks moves 7 of 8 shards each way; one copy moves half of an all-gather of 2 ranks."""
    return nbytes // 2 if copies == 1 else nbytes // 8 * 7 * (2 if direction == "both" else 1)


def table(rows, experiment):
    """Rows as a frame that the experiment's schema accepts."""
    return schemas()[experiment].validate(pd.DataFrame(rows))


NONE = setting(transport="none")


def isolated(jitter=0.01):
    rows = []
    for repetition in range(REPEATS):
        more = {"repetition": repetition, "jitter": jitter}
        for gemm, (bound, alone_s) in GEMMS.items():
            for withheld in (0, 8, 32, 64, 96):
                left = 132 / (132 - withheld) if bound == "compute" else max(1, 66 / (132 - withheld))
                for green in (False, True)[: 1 + (withheld == 32)]:
                    how = setting(withheld=withheld, green=green, transport="none")
                    rows.append(row("isolated", gemm, how, gemm_s=alone_s * left, **more))
        for way in ("in", "out", "both"):
            for how in (setting(), setting(batched=False), *(setting(blocks=b) for b in (1, 2, 4, 8, 32))):
                rows.append(_moved(2**27, how, way, 14 if way == "both" else 7, more))
        for size in (4**power for power in range(6, 16)):
            for how in (setting(), setting(batched=False), setting(blocks=8), setting(blocks=32)):
                rows.append(_moved(size, how, "both", 14, more))
            for how in (setting(), setting(batched=False)):
                rows.append(_moved(2 * size, how, "in", 1, more))
    return table(rows, "isolated")


def _moved(nbytes, how, way, copies, more):
    seconds = transfer_s(link_of(nbytes, way, copies), how, copies, 2 if way == "both" else 1)
    return row("isolated", "none", how, nbytes=nbytes, direction=way, copies=copies, transfer_s=seconds, **more)


def pair(experiment, gemm, how, nbytes, repetition, saved=None, reached=0.0, slower=1.0, jitter=0.0, direction="both"):
    """A GEMM and a transfer, each alone and both at once.

    Overlap saves the share ``saved`` of the serial time, or else as much as reaches ``reached`` of ideal.
    """
    copies = 14 if direction == "both" else 7
    gemm_s = {**GEMMS, **SMALL}[gemm][1]
    move_s = transfer_s(link_of(nbytes, direction, copies), how, copies, 2 if direction == "both" else 1)
    more = {"nbytes": nbytes, "copies": copies, "jitter": jitter, "direction": direction}
    if saved is None:
        saved = 1 - 1 / (1 + reached * (float(metrics.ideal_speedup(gemm_s, move_s)) - 1))
    both = {"gemm_s": gemm_s * slower, "transfer_s": move_s, "region_s": (gemm_s + move_s) * (1 - saved)}
    return [
        row(experiment, gemm, NONE, repetition, gemm_s=gemm_s, jitter=jitter),
        row(experiment, "none", how, repetition, transfer_s=move_s, **more),
        row(experiment, gemm, how, repetition, **both, **more),
    ]


def break_even(saved=lambda nbytes, how: 0.1 if nbytes >= 2**20 else -0.05, jitter=0.0):
    """Overlap saves what ``saved(total bytes, setting)`` says."""
    hows = (setting(high=True), setting(blocks=32, high=True), setting(blocks=4, withheld=4, high=True))
    sizes = [4**power for power in range(6, 14)]
    rows = []
    for gemm in ("512x8192x8192", "8192x8192x8192"):
        for repetition in range(REPEATS):
            for how in hows:
                for size in sizes:
                    rows += pair("break_even", gemm, how, size, repetition, saved(size, how), jitter=jitter)
    return table(rows, "break_even")


def order(jitter=0.01):
    """GEMM first: few blocks overlap, many wait; transfer first: the GEMM waits. Copy engines overlap."""
    rows = []
    for gemm, (bound, alone_s) in GEMMS.items():
        nbytes = round(alone_s * 40e9 * 8 / 7 / 2**20) * 2**20
        for repetition in range(REPEATS):
            more = {"repetition": repetition, "jitter": jitter}
            for high in (False, True):
                for first in ("gemm", "transfer"):
                    for blocks in (1, 2, 4, 8, 16, 32, 64):
                        reached = max(0.05, 1 - blocks / 32) - (0 if first == "gemm" else 0.05)
                        slower = 1.01 if first == "gemm" else 1 + min(1, blocks / 32)
                        how = setting(blocks=blocks, first=first, high=high)
                        rows += pair("order", gemm, how, nbytes, reached=reached, slower=slower, **more)
                    slower = 1.001 if bound == "compute" else 1.05
                    how = setting(first=first, high=high)
                    rows += pair("order", gemm, how, nbytes, reached=0.97, slower=slower, **more)
            for blocks in (2, 4, 8, 16, 32):
                how = setting(blocks=blocks, withheld=blocks)
                rows += pair("order", gemm, how, nbytes, reached=0.92, slower=1.05, **more)
            for way in ("in", "out"):
                slower = 1.02 if bound == "compute" else 1.04
                rows += pair("order", gemm, setting(), nbytes, reached=0.9, slower=slower, direction=way, **more)
    return table(rows, "order")


ENERGY = {"serial_sm_kernel": 1.0, "serial_copy_engine": 0.98, "c3_base": 1.02, "conccl": 0.9, "conccl_rp": 0.88}


def energy(jitter=0.01):
    rows = []
    for scenario, gemm in (("big-ag", "8192x8192x8192"), ("thin-ag", "64x106496x16384")):
        for name, share in ENERGY.items():
            for repetition in range(REPEATS):
                engine = "conccl" in name or name.endswith("engine")
                rows.append(
                    {
                        "node": NODE,
                        "evidence": "measured",
                        "scenario": scenario,
                        "gemm": gemm,
                        "bound": GEMMS[gemm][0],
                        "strategy": name,
                        **setting(blocks=0 if engine else 32),
                        "repetition": repetition,
                        "runs": 300,
                        "seconds_per_run": 2e-3 * share,
                        "joules_per_run": share * spread(repetition, jitter),
                        "sm_mhz": 1980.0,
                        "power_w": 500.0,
                        **PROOF,
                    }
                )
    return table(rows, "energy")


COUNTED = {"dram_read_bytes": 5e9, "dram_write_bytes": 1e8, "l2_hit_sectors": 3e8, "l2_miss_sectors": 1e8}
OWN, LINK_BYTES = 2e6, 8_000_000
"""What a transfer alone counts, of everything, and the bytes that it moves: half of them out."""


def premise(engine=0.001, kernel=0.1, jitter=0.001):
    """A copy engine adds the share ``engine`` to the GEMM's own counts, an SM kernel ``kernel`` for every 4 blocks."""
    movers = {"copy_engine": engine, **{f"sm_kernel:{blocks}": kernel * blocks / 4 for blocks in (4, 16, 32, 64)}}
    rows = []
    for gemm, (bound, _) in GEMMS.items():
        for counter, alone in COUNTED.items():
            arms = {"gemm": alone} | {f"gemm+{name}": alone * (1 + share) + OWN for name, share in movers.items()}
            arms |= dict.fromkeys(movers, OWN)
            for arm, value in arms.items():
                for repetition in range(3):
                    kind, _, blocks = arm.removeprefix("gemm+").partition(":")
                    rows.append(
                        {
                            "node": NODE,
                            "evidence": "measured",
                            "gemm": gemm,
                            "bound": bound,
                            "arm": arm,
                            "transport": "none" if kind == "gemm" else kind,
                            "blocks": int(blocks or 0),
                            "link_bytes": 0 if kind == "gemm" else LINK_BYTES,
                            "counter": counter,
                            "unit": "B" if "bytes" in counter else "sectors of 32 B",
                            "value": value * spread(repetition, jitter),
                            "repetition": repetition,
                            **PROOF,
                        }
                    )
    return table(rows, "premise")


REACHED = {"c3_base": 0.05, "c3_sp": 0.0, "c3_rp": 0.85, "c3_sp_rp": 0.8, "conccl": 0.95, "conccl_rp": 0.98}


def suite(reached=None, jitter=0.01):
    """Each strategy reaches its fraction of ideal against own time; copy engines take 0.8 of the library's time."""
    reached, rows = {**REACHED, **(reached or {})}, []
    for gemm in GEMMS:
        for kind, ending in (("all-gather", "ag"), ("all-to-all", "a2a")):
            for ratio in (0.6, 1.0, 1.6):
                for name, how in STRATEGIES.items():
                    for repetition in range(REPEATS):
                        rows.append(_suite_row(gemm, kind, ending, ratio, how, repetition, reached[name], jitter))
    return table(rows, "suite")


def _suite_row(gemm, kind, ending, ratio, strategy, repetition, reached, jitter):
    bound, gemm_s = GEMMS[gemm]
    engine = strategy.transport == "dma"
    gemm_s = gemm_s * spread(repetition, jitter)
    library_s = gemm_s * ratio
    own_s = library_s * (0.8 if engine else 1)
    ideal = float(metrics.ideal_speedup(gemm_s, own_s))
    end_s = (gemm_s + own_s) / (1 + reached * (ideal - 1))
    library_ideal = float(metrics.ideal_speedup(gemm_s, library_s))
    speedup = (gemm_s + library_s) / end_s
    name = f"{bound}-{ratio:g}"
    blocks = 0 if engine else 32 if strategy.partition == "none" else 4
    nbytes = round(library_s * 40e9 * 8 / 7)
    return {
        "node": NODE,
        "suite": "conccl30_host",
        "backend": "cuda",
        "evidence": "measured",
        "scenario": f"{name}-{ending}",
        "gemm": gemm,
        "dtype": "bf16",
        "bound": bound,
        "collective": kind,
        "ranks": 8,
        "total_bytes": nbytes,
        "rank_bytes": -(-nbytes // 8),
        "length_class": length_class(gemm_s, library_s),
        "strategy": strategy.name,
        "oracle": strategy.oracle,
        "repetition": repetition,
        "cus_taken": float(blocks),
        "gemm_alone_s": gemm_s,
        "collective_alone_s": library_s,
        "gemm_end_s": end_s,
        "collective_end_s": own_s * 1.01,
        "concurrent_s": end_s,
        "ideal": library_ideal,
        "speedup": speedup,
        "fraction_of_ideal": float(metrics.fraction_of_ideal(speedup, library_ideal)),
        "gemm_slowdown": end_s / gemm_s,
        "collective_slowdown": 1.01,
        "unstable_ideal": library_ideal < metrics.UNSTABLE_IDEAL,
        "verified": True,
        "path": PROOF["path"],
        **setting(blocks=blocks, first="gemm" if strategy.first == "gemm" else "transfer"),
        "link_bytes": nbytes // 8 * 14,
        "own_alone_s": own_s,
        "own_fraction": reached,
        "overlap_s": 0.0,
        **HEALTH,
    }
