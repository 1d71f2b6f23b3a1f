"""Who is there: the CPUs and GPUs that the library lists, their engines, and the pool that their memory is from."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_uint32, c_uint64
from dataclasses import dataclass
from typing import Any

from c3lib.amd import table as t
from c3lib.amd.library import Library, enum_name
from c3lib.errors import C3Error


@dataclass(frozen=True)
class Agent:
    """A CPU or GPU by its place in the library's list of its kind; ``node`` is its number in the driver's topology."""

    index: int
    name: str
    node: int
    handle: t.hsa_agent_t
    pool: t.hsa_amd_memory_pool_t

    def __str__(self) -> str:
        return f"{type(self).__name__.upper()} {self.index}"


@dataclass(frozen=True)
class Cpu(Agent):
    """A NUMA node of the host; its buffers are fine-grained and pinned, so that engines reach them."""


@dataclass(frozen=True)
class Gpu(Agent):
    """A GPU, or a partition of one: ``name`` is its architecture (``gfx942``).

    Engines are numbered from 0: first ``host_engines`` of them, which face the host, then ``peer_engines`` for the
    other GPUs. ``xccs`` is the number of its compute dies, 0 where the library does not say.
    """

    product: str
    pci: str
    cus: int
    xccs: int
    host_engines: int
    peer_engines: int
    memory_nbytes: int

    @property
    def engines(self) -> int:
        """How many SDMA engines it has in all."""
        return self.host_engines + self.peer_engines


def find_agents(library: Library) -> tuple[tuple[Cpu, ...], tuple[Gpu, ...]]:
    """All CPUs and all GPUs, in the library's order. Raises :class:`C3Error` where one cannot be read."""
    cpus: list[Cpu] = []
    gpus: list[Gpu] = []
    for handle in _handles(library, t.AGENT_CALLBACK, library.hsa_iterate_agents, t.hsa_agent_t, "listing agents"):
        kind = _number(library, handle, t.HSA_AGENT_INFO_DEVICE)
        name = _text(library, handle, t.HSA_AGENT_INFO_NAME)
        node = _number(library, handle, t.HSA_AGENT_INFO_NODE)
        if kind == t.HSA_DEVICE_TYPE_CPU:
            fine = t.HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED
            pool, _ = _pool(library, handle, fine, t.HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT, name)
            cpus.append(Cpu(len(cpus), name, node, handle, pool))
        elif kind == t.HSA_DEVICE_TYPE_GPU:
            coarse = t.HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED
            pool, nbytes = _pool(library, handle, coarse, 0, name)
            place = _number(library, handle, t.HSA_AMD_AGENT_INFO_BDFID)
            domain = _number(library, handle, t.HSA_AMD_AGENT_INFO_DOMAIN)
            gpus.append(
                Gpu(
                    len(gpus), name, node, handle, pool,
                    product=_text(library, handle, t.HSA_AMD_AGENT_INFO_PRODUCT_NAME),
                    pci=f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}",
                    cus=_number(library, handle, t.HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT),
                    xccs=_number(library, handle, t.HSA_AMD_AGENT_INFO_NUM_XCC, default=0),
                    host_engines=_number(library, handle, t.HSA_AMD_AGENT_INFO_NUM_SDMA_ENG),
                    peer_engines=_number(library, handle, t.HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG),
                    memory_nbytes=nbytes,
                )
            )  # fmt: skip
    return tuple(cpus), tuple(gpus)


def link_between(library: Library, agent: Agent, other: Agent) -> str:
    """What joins an agent to another's memory, in the header's word: ``XGMI``, ``PCIE``; ``""`` for its own."""
    hops = c_uint32()
    ask, what = library.hsa_amd_agent_memory_pool_get_info, f"asking for the link from {agent} to {other}"
    status = ask(agent.handle, other.pool, t.HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS, byref(hops))
    library.check(status, what)
    if not hops.value:
        return ""
    links = (t.hsa_amd_memory_pool_link_info_t * hops.value)()
    library.check(ask(agent.handle, other.pool, t.HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO, links), what)
    prefix = "HSA_AMD_LINK_INFO_TYPE_"
    return enum_name(links[0].link_type, prefix).removeprefix(prefix)


def _handles(library: Library, callback: Any, iterate: Any, kind: Any, what: str, *first: Any) -> list[Any]:
    """What an iterating function hands to its callback.

    The struct it is given dies with the call, so the number in it is copied out. Nothing in there can raise: an
    exception in a callback would be swallowed and the library would read garbage for a status.
    """
    found: list[int] = []

    def take(item: Any, _data: Any) -> int:
        found.append(item.handle)
        return t.HSA_STATUS_SUCCESS

    library.check(iterate(*first, callback(take), None), what)
    return [kind(handle) for handle in found]


def _number(library: Library, agent: t.hsa_agent_t, attribute: int, default: int | None = None) -> int:
    value = c_uint32()
    status = library.hsa_agent_get_info(agent, attribute, byref(value))
    if status != t.HSA_STATUS_SUCCESS and default is not None:
        return default
    library.check(status, f"asking an agent for attribute {attribute:#x}")
    return value.value


def _text(library: Library, agent: t.hsa_agent_t, attribute: int) -> str:
    value = ctypes.create_string_buffer(65)  # the header gives names 64 bytes
    library.check(library.hsa_agent_get_info(agent, attribute, value), f"asking an agent for attribute {attribute:#x}")
    return value.value.decode(errors="replace").strip()


def _pool(
    library: Library, agent: t.hsa_agent_t, flag: int, without: int, name: str
) -> tuple[t.hsa_amd_memory_pool_t, int]:
    """The first global pool of an agent that has a flag and not another, and its size in bytes."""
    iterate, pool_t = library.hsa_amd_agent_iterate_memory_pools, t.hsa_amd_memory_pool_t
    for pool in _handles(library, t.POOL_CALLBACK, iterate, pool_t, f"listing memory pools of {name}", agent):
        segment, flags, nbytes = c_uint32(), c_uint32(), c_uint64()
        answers = {
            t.HSA_AMD_MEMORY_POOL_INFO_SEGMENT: segment,
            t.HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS: flags,
            t.HSA_AMD_MEMORY_POOL_INFO_SIZE: nbytes,
        }
        for attribute, answer in answers.items():
            if attribute == t.HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS and segment.value != t.HSA_AMD_SEGMENT_GLOBAL:
                break  # only global pools have flags
            status = library.hsa_amd_memory_pool_get_info(pool, attribute, byref(answer))
            library.check(status, f"asking a memory pool of {name} for attribute {attribute}")
        if segment.value == t.HSA_AMD_SEGMENT_GLOBAL and flags.value & flag and not flags.value & without:
            return pool, nbytes.value
    raise C3Error(f"amd: {name} has no memory pool that is global with flag {flag} and without flag {without}")
