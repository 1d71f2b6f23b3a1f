"""Scenarios that run whole transfer plans and compare every byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pair import KIB, MIB, Facts
from plans import any_host_engine, every_second_peer_engine, run_plan

from c3lib.amd.runtime import Runtime
from c3lib.transfer.builders import build_plan

SPLIT = 4 * MIB - 32  # most that one packet carries, where the runtime splits copies
SIZES = (1, 64, 4 * KIB, 4 * KIB + 1, 64 * KIB - 3, MIB + 17)  # of a shard
SPLIT_SIZES = (SPLIT - 1, SPLIT, SPLIT + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 2 * SPLIT + 1, 12 * MIB + 5)


def _run(runtime: Runtime, kind: str, shard: int, ranks: int, mode: str = "push", **how: Any) -> str:
    """ "exact", or what is wrong with the bytes of a plan that a runtime executed."""
    host_only = not runtime.gpus[0].peer_engines
    plan = build_plan(kind, shard * ranks, ranks, mode=mode, algorithm=how.pop("algorithm", "flat"))
    found = run_plan(runtime, plan, any_host_engine if host_only else every_second_peer_engine, **how)
    exact = found["verified"] and found["right_nbytes"] == sum(plan.dst_nbytes)
    return "exact" if exact and found["guards_whole"] else f"wrong: {found}"


def plans(ranks: int) -> Callable[[Runtime], Facts]:
    def scenario(runtime: Runtime) -> Facts:
        facts: Facts = {}
        for kind, algorithms in {"all-gather": ("flat", "ring"), "all-to-all": ("flat", "pairwise")}.items():
            for mode in ("push", "pull"):
                for number, shard in enumerate(SIZES):
                    algorithm, shift = algorithms[number % 2], (0, 1, 13)[number % 3]
                    how = f"{kind} {algorithm} {mode} {shard} bytes a shard, shifted by {shift}"
                    facts[how] = _run(runtime, kind, shard, ranks, mode, algorithm=algorithm, shift=shift)
        facts["a dropped copy is noticed"] = _run(runtime, "all-gather", 4 * KIB, ranks, drop=1) != "exact"
        return facts

    return scenario


def uneven_shards(runtime: Runtime) -> Facts:
    """Sizes that no number of ranks divides: shards differ by a byte, or are empty."""
    facts = {}
    for kind in ("all-gather", "all-to-all"):
        for ranks in (2, 4, 8):
            for nbytes in (ranks - 1, 8 * KIB + ranks - 1, MIB + 1):
                found = run_plan(runtime, build_plan(kind, nbytes, ranks), shift=3)
                facts[f"{kind} of {nbytes} bytes, {ranks} ranks"] = found["verified"] and found["guards_whole"]
    return facts


def packet_splits(runtime: Runtime) -> Facts:
    """Copies of one byte less, as much as and one more than what one packet carries, and of several packets."""
    return {
        f"{kind} {shard} bytes a shard": _run(runtime, kind, shard, 2, shift=shard % 7)
        for kind, shards in (("all-gather", SPLIT_SIZES), ("all-to-all", SPLIT_SIZES[2:4]))
        for shard in shards
    }


def large_shards(runtime: Runtime) -> Facts:
    """16 MiB a shard: eight ranks gather 1 GiB in all."""
    return {
        "all-gather": _run(runtime, "all-gather", 16 * MIB, 8),
        "all-to-all": _run(runtime, "all-to-all", 2 * MIB, 8),
    }


def small_plans(runtime: Runtime) -> Facts:
    """A plan of each kind over all GPUs there are: for topologies that differ from the usual one."""
    ranks = len(runtime.gpus)
    return {
        f"{kind} {mode}": _run(runtime, kind, shard, ranks, mode)
        for kind, shard in (("all-gather", 64 * KIB + 1), ("all-to-all", 4 * KIB))
        for mode in ("push", "pull")
    }


def one_all_gather(runtime: Runtime) -> Facts:
    """Eight ranks, 64 KiB a shard."""
    return {"all-gather": _run(runtime, "all-gather", 64 * KIB, 8)}
