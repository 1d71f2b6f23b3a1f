"""What is asked of AMD's runtime, the same for our double of it (L1) and for the real one over the model (L2).

``python tests/amd/scenarios.py LIBRARY SCENARIO`` runs one in a process of its own and prints its facts as JSON. Each
function takes the opened runtime and returns facts that do not depend on time. ``cases.py`` says what they have to be.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from ctypes import CDLL, byref, c_long, c_uint64
from pathlib import Path

if __name__ == "__main__":  # a process of its own, which pytest has not told where things lie
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]

import scenarios_of_copies as copies
import scenarios_of_limits as limits
import scenarios_of_plans as plans
import scenarios_of_transfers as transfers
from pair import MIB, Facts

from c3lib.amd.runtime import Runtime, open_runtime

SCENARIOS: dict[str, Callable[[Runtime], Facts]] = {
    "what_is_there": copies.what_is_there,
    "plans_of_2": plans.plans(2),
    "plans_of_4": plans.plans(4),
    "plans_of_8": plans.plans(8),
    "uneven_shards": plans.uneven_shards,
    "packet_splits": plans.packet_splits,
    "large_shards": plans.large_shards,
    "small_plans": plans.small_plans,
    "one_all_gather": plans.one_all_gather,
    "one_push": copies.one(),
    "one_pull": copies.one(pull=True),
    "one_of_64_mib": copies.one(nbytes=64 * MIB),
    "one_packet": copies.one(nbytes=plans.SPLIT),
    "one_packet_and_a_byte": copies.one(nbytes=plans.SPLIT + 1),
    "refusals": copies.refusals,
    "size_zero": copies.size_zero,
    "dependencies": copies.dependencies,
    "who_copies": copies.who_copies,
    "interrupted": copies.interrupted,
    "forked": copies.forked,
    "spawned": copies.spawned,
    "access": limits.access,
    "full_ring": limits.full_ring,
    "path": limits.path,
    "engines_lost": transfers.engines_lost,
    **transfers.SCENARIOS,
}


def witness() -> Facts:
    """What the model saw, which no runtime can have made up: kernels, and copies by engines, per GPU. Empty on L1."""
    process = CDLL(None)
    if not hasattr(process, "c3_model_kernels"):
        return {}
    process.c3_model_kernels.restype = c_long
    rows = (c_uint64 * (5 * 1024))()
    count = process.c3_model_queues(byref(rows), 1024)
    names = ("gpu", "type", "packets", "nbytes", "stopped")
    queues = [dict(zip(names, rows[5 * i : 5 * i + 5], strict=True)) for i in range(count)]
    return {"kernels": process.c3_model_kernels(), "queues": queues}


def main(library: str, name: str) -> None:
    """Run one scenario and print its facts."""
    runtime = open_runtime(library)
    facts = SCENARIOS[name](runtime)
    said = {"build": runtime.build, "missing": sorted(runtime.missing), "facts": facts, "witness": witness()}
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
