"""Scenarios of single copies: what is there, what is refused, who copies, what waits for what."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from pair import KIB, NEVER_S, SOON_S, Facts, Pair, ends, refused

from c3lib.amd import table
from c3lib.amd.runtime import Runtime, open_runtime


def what_is_there(runtime: Runtime) -> Facts:
    """GPUs, engines, links and the masks of engines that may copy."""
    gpus, cpu = runtime.gpus, runtime.cpus[0]
    return {
        "gpus": len(gpus),
        "architectures": sorted({gpu.name for gpu in gpus}),
        "engines": sorted({f"{gpu.host_engines} + {gpu.peer_engines}" for gpu in gpus}),
        "link between GPUs": runtime.link(gpus[0], gpus[1]),
        "link to the host": runtime.link(gpus[0], cpu),
        "between GPUs": hex(runtime.idle_engines(gpus[1], gpus[0])),
        "from the host": hex(runtime.idle_engines(gpus[0], cpu)),
        "to the host": hex(runtime.idle_engines(cpu, gpus[0])),
        "within a GPU": refused(lambda: runtime.idle_engines(gpus[0], gpus[0])),
        "is_hardware": runtime.is_hardware,
        "stand-ins named": bool(runtime.stand_ins),
    }


def refusals(runtime: Runtime) -> Facts:
    """What the library refuses, by status, and what our calls say before it comes to that."""
    pair = Pair(runtime)
    nobody, no_signal = table.hsa_agent_t(0), table.hsa_signal_t(0)
    some = (table.hsa_signal_t * 1)(runtime.signal(0).handle)
    done = runtime.signal(1)
    first = runtime.gpus[0].host_engines
    return {
        "engine for a peer": pair.raw(1 << first),
        "no engine": pair.raw(0),
        "two engines": pair.raw(0b11 << first),
        "engine 16": pair.raw(1 << 16),
        "host engine 0 for a peer": pair.raw(1),
        "host engine 1 for a peer": pair.raw(2),
        "dependencies without a count": pair.raw(1 << first, depends=some),
        "no destination": pair.raw(1 << first, dst=None),
        "no source": pair.raw(1 << first, src=None),
        "no agent": pair.raw(1 << first, dst_agent=nobody),
        "no signal": pair.raw(1 << first, signal=no_signal),
        "ours: host engine for a peer": refused(lambda: pair.copy(done, 0)),
        "ours: engine 16": refused(lambda: pair.copy(done, 16)),
        "ours: no bytes": refused(lambda: pair.copy(done, first, nbytes=0)),
        "signal untouched by all that was refused": done.value,
    }


def size_zero(runtime: Runtime) -> Facts:
    """A copy of nothing is accepted and never signalled: whoever waits for it hangs."""
    pair = Pair(runtime)
    done = runtime.signal(1)
    status = pair.raw(1 << 4, nbytes=0, signal=done.handle)
    return {"status": status, "ends": ends(done, NEVER_S)}


def dependencies(runtime: Runtime) -> Facts:
    """A chain over two engines waits for its gate; one signal counts many copies; times come with copies."""
    pair = Pair(runtime)
    gate, first, second, many = (runtime.signal(value) for value in (1, 1, 1, 5))
    pair.copy(first, 4, (gate,))
    pair.copy(second, 6, (first,))
    facts: Facts = {"behind a shut gate": [ends(first, NEVER_S / 2), ends(second, NEVER_S / 2)]}
    gate.set(0)
    facts["gate open"] = [ends(second, SOON_S), ends(first, SOON_S)]
    for engine in (2, 4, 6, 8, 10):
        pair.copy(many, engine)
    facts["five copies, one signal"] = ends(many, SOON_S)
    (start, end), (later_start, later_end) = first.times(), second.times()
    facts["times in order"] = start <= end <= later_start <= later_end <= runtime.now_s()
    facts["times of five"] = refused(many.times)
    return facts


def who_copies(runtime: Runtime) -> Facts:
    """The agent given as source does the work: swapping agents, not addresses, makes the other GPU's engine busy."""
    facts = {}
    for pull in (False, True):
        pair = Pair(runtime)
        gate, done = runtime.signal(1), runtime.signal(1)
        pair.copy(done, 8, (gate,), pull)
        busy = {
            str(gpu): hex(0xFFFC & ~runtime.idle_engines(peer, gpu))
            for gpu, peer in ((runtime.gpus[0], runtime.gpus[1]), (runtime.gpus[1], runtime.gpus[0]))
        }
        gate.set(0)
        facts["pull" if pull else "push"] = busy | {"ends": ends(done, SOON_S)}
    return facts


def one(pull: bool = False, nbytes: int = 4 * KIB) -> Callable[[Runtime], Facts]:
    def scenario(runtime: Runtime) -> Facts:
        done = runtime.signal(1)
        Pair(runtime, nbytes).copy(done, 8, pull=pull)
        return {"ends": ends(done, 2 * SOON_S)}

    return scenario


def interrupted(runtime: Runtime) -> Facts:
    """Ctrl-C ends a wait for something that never comes."""
    never = runtime.signal(1)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    start_s = time.monotonic()
    try:
        never.wait(60.0, "what never comes")
    except KeyboardInterrupt:
        return {"interrupted": True, "soon": time.monotonic() - start_s < SOON_S}
    return {"interrupted": False}


def forked(runtime: Runtime) -> Facts:
    """In a forked child the runtime is refused at once; in the parent it goes on."""
    child = os.fork()
    if not child:
        os._exit(7 if "spawn" in refused(lambda: runtime.allocate(runtime.gpus[0], 64)) else 1)
    facts: Facts = {"refused in the child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7}
    done = runtime.signal(1)
    Pair(runtime).copy(done, 4)
    return facts | {"goes on in the parent": ends(done, SOON_S)}


def spawned(runtime: Runtime) -> Facts:
    """Spawned workers open the runtime for themselves. They start as this process did: C3_PYTHON says how."""
    context = multiprocessing.get_context("spawn")
    context.set_executable(os.environ.get("C3_PYTHON", sys.executable))
    workers = [context.Process(target=_work, args=(runtime.library.path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"exit status": [worker.exitcode for worker in workers]}


def _work(library: str) -> None:
    runtime = open_runtime(library)
    done = runtime.signal(1)
    Pair(runtime).copy(done, 4)
    sys.exit(0 if ends(done, SOON_S) else 1)
