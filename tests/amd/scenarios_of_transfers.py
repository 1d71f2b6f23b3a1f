"""What the backend's own modules do with transfer plans: engines, buffers and copies, the same for both layers.

Every received byte is compared twice: by the backend's check, and with what the host executor makes of the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scenarios_of_plans import SPLIT

from c3lib.amd.buffers import Buffers
from c3lib.amd.engines import Engines, choose_engines
from c3lib.amd.runtime import Runtime
from c3lib.amd.transport import SdmaCopies
from c3lib.errors import C3Error
from c3lib.transfer import TransferPlan, execute_on_host
from c3lib.transfer.builders import BUILDERS, build_plan

Facts = dict[str, Any]
MODES = ("push", "pull")
SIZES = (1, 4096, 64 * 2**10 + 5)  # of a shard, about
SPLIT_SIZES = (2 * SPLIT - 1, 2 * SPLIT, 2 * SPLIT + 1, 4 * SPLIT + 3)  # of two ranks: a shard is half of it
LIMIT_S = 30.0


@cache
def engines_for(runtime: Runtime, ranks: int, mode: str) -> Engines:
    """The engines of the first GPUs, proven once."""
    return choose_engines(runtime, runtime.gpus[:ranks], mode)


def transfer(transport: SdmaCopies, limit_s: float = LIMIT_S) -> None:
    """One run, from the shut gate to the last copy."""
    transport.ready()
    transport.submit()
    transport.release()
    transport.wait(limit_s)


def moved(runtime: Runtime, plan: TransferPlan, drop: int | None = None, turns: int = 2) -> str:
    """ "exact", or what is wrong with the bytes or the times of some runs of a plan."""
    buffers = Buffers(runtime, runtime.gpus[: plan.ranks], plan)
    try:
        transport = SdmaCopies(buffers, engines_for(runtime, plan.ranks, plan.mode), drop)
        for turn in range(turns):
            buffers.prepare(turn)
            transfer(transport)
            check = buffers.check(turn)
            if not check.verified:
                return check.first or "nothing was compared"
            start_s, end_s = transport.times()
            if not 0 <= start_s < end_s <= runtime.now_s() - transport.released_s:
                return f"times out of order: {start_s}, {end_s}"
        for rank, wanted in enumerate(execute_on_host(without_empty(plan), turns - 1)):
            if not np.array_equal(buffers.received(rank), wanted):
                return f"rank {rank} differs from the host's run of the plan"
    finally:
        buffers.close()
    return "exact"


def without_empty(plan: TransferPlan) -> TransferPlan:
    """The plan without copies of no bytes, which the host executor refuses."""
    return replace(plan, copies=plan.copies[plan.copies["nbytes"] > 0])


def cut(plan: TransferPlan, seed: int, parts: int = 3) -> TransferPlan:
    """The same transfer in other copies: each cut at random places, some of the parts empty, in another order and on
    other engines."""
    random = np.random.default_rng(seed)
    found = []
    for copy in plan.copies:
        nbytes = int(copy["nbytes"])
        ends = np.sort(random.integers(0, nbytes + 1, random.integers(0, parts)))
        for start, end in zip([0, *ends], [*ends, nbytes], strict=True):
            part = copy.copy()
            part["src_offset"] += start
            part["dst_offset"] += start
            part["nbytes"] = end - start
            if copy["src_rank"] != copy["dst_rank"]:
                part["engine"] = random.integers(0, plan.engines)
            found.append(part)
    copies = np.array(found)[random.permutation(len(found))]
    return replace(plan, copies=copies[np.argsort(copies["step"], kind="stable")])


def engines_chosen(runtime: Runtime) -> Facts:
    """One engine a pair, proven, of one number at both ends, no two peers on the same."""
    facts: Facts = {}
    for mode in MODES:
        engines = engines_for(runtime, 8, mode)
        pairs = {(choice.copier, choice.peer): choice.engine for choice in engines}
        facts[f"{mode}: all pairs"] = len(pairs) == 56 and all(pairs[a, b] == 2 * (a ^ b) for a, b in pairs)
        facts[f"{mode}: all proven, none dropped"] = (
            all(choice.proof.proven for choice in engines) and not engines.dropped
        )
        facts[f"{mode}: masks"] = all(c.proof.alone and c.proof.before == c.accepted == 0xFFFC for c in engines)
    return facts


def _transfers_of(ranks: int) -> Callable[[Runtime], Facts]:
    def scenario(runtime: Runtime) -> Facts:
        return {
            f"{kind} {algorithm} {mode} of {nbytes} bytes": moved(
                runtime, build_plan(kind, nbytes, ranks, topology, algorithm, mode)
            )
            for kind, algorithm in BUILDERS
            for mode, topology in zip(MODES, ("mesh", "switch"), strict=True)
            for nbytes in (ranks * shard + (ranks - 1) for shard in SIZES)
        }

    return scenario


def transfers_around_splits(runtime: Runtime) -> Facts:
    """Copies a byte less, as much as and a byte more than one packet carries where copies are split, and twice that.

    By default the library splits none of them: a case sets the variable that has it do so.
    """
    return {f"{plan} {plan.mode}": moved(runtime, plan, turns=1) for plan in plans_around_splits()}


def plans_around_splits() -> list[TransferPlan]:
    """The plans of that scenario, two ranks each."""
    return [
        build_plan(kind, nbytes, 2, mode=mode)
        for kind in ("all-gather", "all-to-all")
        for mode in MODES
        for nbytes in SPLIT_SIZES
    ]


def transfers_cut_at_random(runtime: Runtime) -> Facts:
    """Plans in other copies than a builder makes, with empty ones among them, and fewer engines than peers."""
    facts = {}
    for seed in range(12):
        kind, algorithm = list(BUILDERS)[seed % 4]
        ranks, mode = (3, 4, 5, 8)[seed // 3], MODES[seed % 2]
        plan = build_plan(kind, 1000 * ranks + 37 * seed, ranks, "mesh", algorithm, mode, engines=1 + seed % ranks)
        facts[f"{kind} {algorithm} {mode}, {ranks} ranks, seed {seed}"] = moved(runtime, cut(plan, seed))
    return facts


def many_copies(ranks: int = 2, nbytes: int = 9000) -> TransferPlan:
    """More copies to an engine than its queue has room for: each carries one byte."""
    plan = build_plan("all-gather", nbytes, ranks)
    copies = np.repeat(plan.copies, plan.copies["nbytes"])
    place = np.concatenate([np.arange(count) for count in plan.copies["nbytes"]])
    copies["src_offset"] += place
    copies["dst_offset"] += place
    copies["nbytes"] = 1
    return replace(plan, copies=copies)


def transfers_of_many_copies(runtime: Runtime) -> Facts:
    """What has no room behind the gate follows when it is open; runs that are over take no room."""
    return {
        "9000 copies": moved(runtime, many_copies(), turns=1),
        "1000 copies, 9 runs": moved(runtime, many_copies(2, 1000), turns=9),
    }


def transfers_dropped(runtime: Runtime) -> Facts:
    """A copy that is left out is noticed."""
    facts = {}
    for kind, algorithm in BUILDERS:
        for mode in MODES:
            plan = build_plan(kind, 4099, 4, "mesh", algorithm, mode)
            facts[f"{kind} {algorithm} {mode}"] = all(
                "bytes of rank" in moved(runtime, plan, drop) for drop in (0, 5, 11)
            )
    return facts


def transfers_of_all(runtime: Runtime) -> Facts:
    """Plans over all GPUs there are, whatever engines they have: what is proven, and the bytes."""
    ranks = len(runtime.gpus)
    facts: Facts = {}
    for mode in MODES:
        engines = engines_for(runtime, ranks, mode)
        facts[f"{mode}: all pairs proven"] = len(list(engines)) == ranks * (ranks - 1) and not engines.dropped
        for kind, algorithm in BUILDERS:
            plan = build_plan(kind, 1000 * ranks + 1, ranks, "mesh", algorithm, mode)
            facts[f"{kind} {algorithm} {mode}"] = moved(runtime, plan) == "exact"
    return facts


def engines_lost(runtime: Runtime) -> Facts:
    """What the choice of engines says of a machine that has none, or too few."""
    try:
        engines = choose_engines(runtime, runtime.gpus)
    except C3Error as error:
        return {"refused": str(error).split("(")[0]}
    return {
        "engines": sorted({choice.engine for choice in engines}),
        "dropped": sorted({said.split("(")[0] for said in engines.dropped}),
    }


SCENARIOS: dict[str, Callable[[Runtime], Facts]] = {
    "engines_chosen": engines_chosen,
    **{f"transfers_of_{ranks}": _transfers_of(ranks) for ranks in (2, 4, 8)},
    "transfers_around_splits": transfers_around_splits,
    "transfers_cut_at_random": transfers_cut_at_random,
    "transfers_of_many_copies": transfers_of_many_copies,
    "transfers_dropped": transfers_dropped,
    "transfers_of_all": transfers_of_all,
}
"""What must be exact or true on any machine of eight GPUs."""
