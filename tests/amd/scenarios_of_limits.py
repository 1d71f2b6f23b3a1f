"""Scenarios at the edge: rights taken away, a ring that is full, engines lost without a word."""

from __future__ import annotations

import threading
import time

from pair import KIB, MIB, NEVER_S, SOON_S, Facts, Pair, comes_true, ends, reaches

from c3lib.amd import table
from c3lib.amd.runtime import Runtime
from c3lib.errors import C3Error

STUCK_S = 1.0  # a thread that got nothing done for so long is blocked; on shared cores less could be chance
NONE_BUSY = "a kernel copied: no engine was busy while the copy was held"
NO_QUEUE = "a kernel copied: the engine, whose queue could not be made, is taken for busy ever after"


def access(runtime: Runtime) -> Facts:
    """A right that was taken away again: from 2 MiB on the engine stops; smaller buffers share a block with others."""
    facts = {}
    for engine, nbytes in ((2, 4 * KIB), (4, MIB), (6, 2 * MIB), (8, 16 * MIB)):
        pair = Pair(runtime, nbytes)
        runtime.allow(pair.to, [runtime.gpus[2]])  # replaces what was granted: GPU 0 may write no longer
        done = runtime.signal(1)
        pair.copy(done, engine)
        facts[f"{nbytes} bytes"] = ends(done, NEVER_S if nbytes >= 2 * MIB else SOON_S)
    return facts


def full_ring(runtime: Runtime) -> Facts:
    """Copies behind a shut gate: the library's call blocks when the ring is full, ours gives up before."""
    pair = Pair(runtime, 64)
    gate, ours = runtime.signal(1), runtime.signal(1 << 20)
    taken = 0
    try:
        while taken < 20000:
            pair.copy(ours, 4, (gate,))
            taken += 1
        said = "nothing"
    except C3Error as error:
        said = str(error)
    gate.set(0)
    drained = reaches(ours, (1 << 20) - taken)
    blocks, submitted, theirs = _submit_until_blocked(pair, engine=6)
    return {
        "ours gives up": "packets waiting" in said, "ours, before that": 1000 < taken < 6000,
        "ours, all done after": drained, "the library's call blocks": blocks,
        "the library's, before that": 5000 < submitted < 8000, "the library's, all done after": theirs,
    }  # fmt: skip


def _submit_until_blocked(pair: Pair, engine: int, most: int = 12000) -> tuple[bool, int, bool]:
    """Whether a thread that submits behind a gate gets stuck, after how many copies, and whether all ended well."""
    runtime = pair.runtime
    gate, done = runtime.signal(1), runtime.signal(most)
    gates = (table.hsa_signal_t * 1)(gate.handle)
    count = [0]

    def submit() -> None:
        call = runtime.library.hsa_amd_memory_async_copy_on_engine
        for _ in range(most):
            call(pair.to.address, pair.to.agent.handle, pair.from_.address, pair.from_.agent.handle, pair.nbytes,
                 1, gates, done.handle, 1 << engine, False)  # fmt: skip
            count[0] += 1

    thread = threading.Thread(target=submit, daemon=True)
    thread.start()
    before = -1
    while thread.is_alive() and count[0] != before:
        before = count[0]
        time.sleep(STUCK_S)
    blocked, submitted = thread.is_alive(), count[0]
    gate.set(0)
    thread.join(2 * SOON_S)
    return blocked, submitted, not thread.is_alive() and ends(done, 2 * SOON_S)


def path(runtime: Runtime) -> Facts:
    """Proof of path on all engines at once, by the mask of idle engines: before, while copies are held, after them."""
    gpu, pair, gate = runtime.gpus[0], Pair(runtime), runtime.signal(1)
    engines = range(gpu.host_engines, gpu.engines) if gpu.peer_engines else range(gpu.host_engines)
    before = pair.idle()
    copies = {engine: runtime.signal(1) for engine in engines}
    for engine, done in copies.items():
        pair.copy(done, engine, (gate,))
    held = pair.idle()
    gate.set(0)
    ended = [engine for engine, done in copies.items() if ends(done, SOON_S)]
    comes_true(lambda: pair.idle() == before, SOON_S / 5)
    after = pair.idle()

    def verdict(engine: int) -> str:
        seen = (before >> engine & 1, held >> engine & 1, after >> engine & 1)
        said = {(1, 0, 1): "engine", (1, 1, 1): NONE_BUSY, (1, 0, 0): NO_QUEUE}
        return said.get(seen, f"idle: {seen}") if engine in ended else "the copy never ended"

    found = {engine: verdict(engine) for engine in engines}
    return {
        "engines": sorted(engine for engine, said in found.items() if said == "engine"),
        "not engines": sorted({said for said in found.values() if said != "engine"}),
    }
