"""Calls of AMD's library with arguments that are right, odd or wrong; ``arguments.py LIBRARY all`` prints the answers.

Each fact is a status, or, where the call submitted a copy, the status and whether the copy ended. Nothing is expected
here: the double has to answer as AMD's library does.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # a process of its own, which pytest has not told where things lie
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).resolve().parents[2])]

from c3lib.amd import table as t
from c3lib.amd.agents import Agent
from c3lib.amd.runtime import Runtime, open_runtime
from c3lib.amd.signals import TookTooLong

KIB, MIB = 2**10, 2**20
ENDS_S, NEVER_S = 5.0, 0.2
NOBODY, NO_POOL, NO_SIGNAL = t.hsa_agent_t(0), t.hsa_amd_memory_pool_t(0), t.hsa_signal_t(0)
UNKNOWN = 0x9999


def memory(runtime: Runtime) -> dict[str, Any]:
    """Allocating, freeing and granting."""
    hsa, gpu, peer = runtime.library, runtime.gpus[0], runtime.gpus[1]
    small, large, address = runtime.allocate(gpu, 4 * KIB), runtime.allocate(gpu, 4 * MIB), ctypes.c_void_p()
    foreign = ctypes.create_string_buffer(64)
    one, nobody = (t.hsa_agent_t * 1)(peer.handle), (t.hsa_agent_t * 1)(NOBODY)
    allocate, allow, free = (
        hsa.hsa_amd_memory_pool_allocate, hsa.hsa_amd_agents_allow_access, hsa.hsa_amd_memory_pool_free,
    )  # fmt: skip
    return {
        "allocate nothing": allocate(gpu.pool, 0, 0, byref(address)),
        "allocate more than there is": allocate(gpu.pool, 1 << 50, 0, byref(address)),
        "allocate from no pool": allocate(NO_POOL, 64, 0, byref(address)),
        "allocate with a flag": allocate(gpu.pool, 64, 1, byref(address)),
        "grant to none": allow(0, one, None, small.address),
        "grant without a list": allow(1, None, None, small.address),
        "grant with flags": allow(1, one, (ctypes.c_uint32 * 1)(0), small.address),
        "grant nothing": allow(1, one, None, None),
        "grant what nobody allocated": allow(1, one, None, 0x1000),
        "grant from the middle": allow(1, one, None, large.address + 8 * KIB),
        "grant to nobody": allow(1, nobody, None, small.address),
        "grant": allow(1, one, None, small.address),
        "free": free(small.address),
        "free again": free(small.address),
        "free nothing": free(None),
        "free from the middle": free(large.address + 4 * KIB),
        "free what nobody allocated": free(ctypes.addressof(foreign)),
    }


def signals(runtime: Runtime) -> dict[str, Any]:
    """Signals, and the times of copies."""
    hsa, fresh, negative, handle = runtime.library, runtime.signal(1), runtime.signal(-3), t.hsa_signal_t()
    found, time_of = t.hsa_amd_profiling_async_copy_time_t(), hsa.hsa_amd_profiling_get_async_copy_time
    return {
        "make a signal without a place for it": hsa.hsa_signal_create(1, 0, None, None),
        "make a signal for a list that is not there": hsa.hsa_signal_create(1, 1, None, byref(handle)),
        "destroy no signal": hsa.hsa_signal_destroy(NO_SIGNAL),
        "times before the copy": time_of(fresh.handle, byref(found)),
        "times of no signal": time_of(NO_SIGNAL, byref(found)),
        "times without a place for them": time_of(fresh.handle, None),
        "wait for a negative signal": hsa.hsa_signal_wait_scacquire(
            negative.handle, t.HSA_SIGNAL_CONDITION_LT, 1, 0, 0
        ),
    }


def questions(runtime: Runtime) -> dict[str, Any]:
    """What is asked of agents, engines and the library."""
    hsa, gpu, cpu = runtime.library, runtime.gpus[0], runtime.cpus[0]
    number, words, status_of = ctypes.c_uint64(), ctypes.c_char_p(), hsa.hsa_amd_memory_copy_engine_status
    mask = ctypes.c_uint32()
    return {
        "engines of the host alone": status_of(cpu.handle, cpu.handle, byref(mask)),
        "engines within a GPU": status_of(gpu.handle, gpu.handle, byref(mask)),
        "engines of nobody": status_of(NOBODY, gpu.handle, byref(mask)),
        "what no agent has": hsa.hsa_agent_get_info(gpu.handle, UNKNOWN, byref(number)),
        "who nobody is": hsa.hsa_agent_get_info(NOBODY, t.HSA_AGENT_INFO_NAME, byref(number)),
        "what the library has not": hsa.hsa_system_get_info(UNKNOWN, byref(number)),
        "list without a callback": hsa.hsa_iterate_agents(t.AGENT_CALLBACK(0), None),
        "text of no status": hsa.hsa_status_string(0x7777, byref(words)),
        "text without a place for it": hsa.hsa_status_string(0, None),
    }


def copies(runtime: Runtime) -> dict[str, Any]:
    """Who may copy what on which engine, with an engine forced and not."""
    gpu, cpu = runtime.gpus[0], runtime.cpus[0]
    here, there = runtime.allocate(gpu, 4 * KIB), runtime.allocate(gpu, 4 * KIB)
    host, secret = runtime.allocate(cpu, 4 * KIB), runtime.allocate(cpu, 4 * KIB)
    runtime.allow(host, [gpu])
    places = {"within a GPU": (here, there), "from the host": (here, host), "to the host": (host, here)}
    facts = {}
    for place, (dst, src) in places.items():
        for engine in (0, 1, 2, 5, 15, 16):
            for force in (False, True):
                how = f"{place} on engine {engine}{', forced' if force else ''}"
                facts[how] = _copy(runtime, dst.address, dst.agent, src.address, src.agent, engine, force)
    negative, depends = runtime.signal(-1), (t.hsa_signal_t * 1)(NO_SIGNAL)
    return facts | {
        "host to host": _copy(runtime, host.address, cpu, secret.address, cpu, 0, True),
        "after no signal": _copy(runtime, here.address, gpu, host.address, cpu, 0, True, depends),
        "to host memory that was not granted": _copy(runtime, secret.address, cpu, here.address, gpu, 3, True),
        "after a negative signal": _copy(
            runtime, here.address, gpu, host.address, cpu, 4, True, (t.hsa_signal_t * 1)(negative.handle)
        ),
    }


def _copy(
    runtime: Runtime, dst: int, to: Agent, src: int, from_: Agent, engine: int, force: bool, depends: Any = None
) -> list[Any]:
    done = runtime.signal(1)
    status = runtime.library.hsa_amd_memory_async_copy_on_engine(
        dst, to.handle, src, from_.handle, 4 * KIB, len(depends or ()), depends, done.handle, 1 << engine, force
    )
    try:
        if status == 0:
            done.wait(ENDS_S if depends is None and engine != 3 else NEVER_S, "the copy")
    except TookTooLong:
        return [status, "never ends"]
    return [status, "ends" if status == 0 else "refused"]


def local(runtime: Runtime, force: bool) -> dict[str, Any]:
    """A copy within a GPU, seen by who did it."""
    gpu = runtime.gpus[0]
    here, there = runtime.allocate(gpu, 4 * KIB), runtime.allocate(gpu, 4 * KIB)
    return {"copy": _copy(runtime, here.address, gpu, there.address, gpu, 5, force)}


def main(library: str, what: str) -> None:
    """Print the facts, and the kernels that the model saw (none on the double, which sees none)."""
    runtime = open_runtime(library)
    parts = {
        "all": [memory, signals, questions, copies],
        "forced": [lambda runtime: local(runtime, True)],
        "not forced": [lambda runtime: local(runtime, False)],
    }[what]
    facts: dict[str, Any] = {}
    for part in parts:
        facts |= part(runtime)
    process = ctypes.CDLL(None)
    kernels = process.c3_model_kernels() if hasattr(process, "c3_model_kernels") else None
    print(json.dumps({"facts": facts, "kernels": kernels}))


if __name__ == "__main__":
    main(*sys.argv[1:])
