"""AMD's runtime, opened once a process: memory, access, signals, and copies on a chosen SDMA engine.

``open_runtime()`` gives the :class:`Runtime`. Engines are numbered, a copy names one, and a mask of engines has bit k
for engine k. Who copies is the *source* agent's GPU (the destination's, if the source is a CPU): swapping a copy's two
agents, but not its addresses, makes the destination GPU pull.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterable, Sequence

from c3lib.amd import driver
from c3lib.amd import table as t
from c3lib.amd.agents import Agent, Gpu, find_agents, link_between
from c3lib.amd.copies import Copy, Lane
from c3lib.amd.library import Library
from c3lib.amd.signals import Signal
from c3lib.errors import C3Error


@dataclass(frozen=True)
class Buffer:
    """Memory of one agent, ``nbytes`` from ``address``; only its owner may touch it until :meth:`Runtime.allow`."""

    address: int
    nbytes: int
    agent: Agent

    def view(self) -> Any:
        """The bytes themselves, for the CPU (a ctypes array: ``numpy.frombuffer`` takes it). Host memory only."""
        if isinstance(self.agent, Gpu):
            raise C3Error(f"amd: memory of {self.agent} is not for the CPU to touch; copy it to a buffer of a CPU")
        return (ctypes.c_uint8 * self.nbytes).from_address(self.address)


class Runtime:
    """The opened runtime; made by :func:`open_runtime`, and by nothing else.

    ``cpus`` and ``gpus`` are tuples in the library's order. ``build`` is the library's own version string, ``version``
    that of its HSA interface and ``extension`` that of AMD's extension. ``missing`` names functions that it lacks and
    what is done without. ``stand_ins`` says why nothing that it shows is a measurement; it is empty on real hardware.
    """

    def __init__(self, library: str | Path | None = None) -> None:
        self.library = Library(library)
        self.forked = False
        self.pid = os.getpid()
        if (status := self.library.hsa_init()) != t.HSA_STATUS_SUCCESS:
            why = driver.why_no_driver()
            raise C3Error(f"amd: AMD's runtime did not start: {why or self.library.text(status)}")
        self.library.check(self.library.hsa_amd_profiling_async_copy_enable(True), "switching times of copies on")
        self.build = self._build()
        self.version = self._pair(t.HSA_SYSTEM_INFO_VERSION_MAJOR, t.HSA_SYSTEM_INFO_VERSION_MINOR)
        self.extension = self._pair(t.HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR, t.HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR)
        self.missing = self.library.missing
        self.ticks_per_s = self._ticks(t.HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY)
        self._opened_ticks = self._ticks(t.HSA_SYSTEM_INFO_TIMESTAMP)
        self.cpus, self.gpus = find_agents(self.library)
        self.stand_ins = (["the library is the tests' double of AMD's"] if self.library.is_double else []) + (
            driver.stand_ins()
        )
        self._lanes: dict[tuple[int, int], Lane] = {}
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def is_hardware(self) -> bool:
        """True when AMD's own library drives a real driver: without that, nothing is ever ``measured``."""
        return not self.stand_ins

    def allocate(self, agent: Agent, nbytes: int) -> Buffer:
        """At least ``nbytes`` (at least 1) of an agent's memory, not cleared. Give it back with :meth:`free`.

        Under 2 MiB several share a block, and what one of them grants (:meth:`allow`) holds for the others too.
        """
        if nbytes < 1:
            raise C3Error(f"amd: a buffer of {nbytes} bytes on {agent}; expected 1 or more")
        self.require_here()
        address = c_void_p()
        status = self.library.hsa_amd_memory_pool_allocate(agent.pool, nbytes, 0, byref(address))
        self.library.check(status, f"allocating {nbytes} bytes on {agent}")
        return Buffer(address.value or 0, nbytes, agent)

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back. No copy may be under way on it."""
        self.require_here()
        status = self.library.hsa_amd_memory_pool_free(buffer.address)
        self.library.check(status, f"freeing {buffer.nbytes} bytes of {buffer.agent}")

    def allow(self, buffer: Buffer, agents: Iterable[Agent]) -> None:
        """Let these agents, and its owner, touch a buffer, instead of those that were allowed before.

        A GPU that copies must be allowed both buffers: without, hardware ends the process, or the engine hangs.
        """
        self.require_here()
        allowed = list(agents) or [buffer.agent]
        handles = (t.hsa_agent_t * len(allowed))(*(agent.handle for agent in allowed))
        status = self.library.hsa_amd_agents_allow_access(len(allowed), handles, None, buffer.address)
        self.library.check(status, f"opening memory of {buffer.agent} to {', '.join(map(str, allowed))}")

    def signal(self, value: int = 1) -> Signal:
        """A signal that counts ``value`` copies, or a gate (see :class:`Signal`)."""
        self.require_here()
        return Signal(self, value)

    def prepare(
        self,
        dst: int,
        dst_agent: Agent,
        src: int,
        src_agent: Agent,
        nbytes: int,
        signal: Signal,
        engine: int,
        depends: Sequence[Signal] = (),
    ) -> Copy:
        """A copy, checked and ready; each call of its ``submit()`` submits it (once before ``signal`` is set anew).

        ``dst`` and ``src`` are addresses. It starts when all of ``depends`` are 0 and then counts ``signal`` down.
        While it waits it blocks its engine: submit in one order everywhere, and never wait on the engine one sits on.

        Raises:
            C3Error: no bytes (the library would take that, and never signal), no GPU, no such engine.
        """
        self.require_here()
        copier = src_agent if isinstance(src_agent, Gpu) else dst_agent
        if not isinstance(copier, Gpu):
            raise C3Error(f"amd: a copy from {src_agent} to {dst_agent} has no GPU whose engine could do it")
        if nbytes < 1:
            raise C3Error(f"amd: a copy of {nbytes} bytes would never be signalled; leave it out, and out of the count")
        if not 0 <= engine < copier.engines:
            raise C3Error(f"amd: {copier} has no engine {engine}; expected 0 to {copier.engines - 1}")
        lane = self._lanes.setdefault((copier.index, engine), Lane(copier, engine))
        return Copy(self, lane, dst, dst_agent, src, src_agent, nbytes, signal, depends)

    def copy(
        self,
        dst: int,
        dst_agent: Agent,
        src: int,
        src_agent: Agent,
        nbytes: int,
        signal: Signal,
        engine: int,
        depends: Sequence[Signal] = (),
    ) -> None:
        """:meth:`prepare` a copy and submit it; raises also what the library refuses, in its words."""
        self.prepare(dst, dst_agent, src, src_agent, nbytes, signal, engine, depends).submit()

    def idle_engines(self, dst: Agent, src: Agent) -> int:
        """Mask of the engines that could copy from ``src`` to ``dst`` and have nothing to do now; may be 0."""
        self.require_here()
        mask = c_uint32()
        status = self.library.hsa_amd_memory_copy_engine_status(dst.handle, src.handle, byref(mask))
        if status != t.HSA_STATUS_ERROR_OUT_OF_RESOURCES:  # that is: all are busy
            self.library.check(status, f"asking which engines are idle from {src} to {dst}")
        return mask.value

    def preferred_engine(self, dst: Agent, src: Agent) -> int:
        """Mask of the engines that the driver recommends for ``src`` to ``dst``: 0 where it recommends none.

        It is also 0 where the library cannot say (see ``missing``): choose among :meth:`idle_engines` then.
        """
        self.require_here()
        if "hsa_amd_memory_get_preferred_copy_engine" in self.missing:
            return 0
        mask = c_uint32()
        status = self.library.hsa_amd_memory_get_preferred_copy_engine(dst.handle, src.handle, byref(mask))
        self.library.check(status, f"asking which engine is preferred from {src} to {dst}")
        return mask.value

    def link(self, agent: Agent, other: Agent) -> str:
        """What joins an agent to another's memory, in the header's word: ``XGMI``, ``PCIE``; ``""`` for its own."""
        self.require_here()
        return link_between(self.library, agent, other)

    def seconds(self, ticks: int) -> float:
        """A time of the library's clock as seconds since the runtime was opened."""
        return (ticks - self._opened_ticks) / self.ticks_per_s

    def now_s(self) -> float:
        """Seconds since the runtime was opened, by the clock that times of copies are in."""
        self.require_here()
        return self.seconds(self._ticks(t.HSA_SYSTEM_INFO_TIMESTAMP))

    def _ticks(self, attribute: int) -> int:
        value = c_uint64()
        self.library.check(self.library.hsa_system_get_info(attribute, byref(value)), "reading the library's clock")
        return value.value

    def _build(self) -> str:
        said = c_char_p()
        status = self.library.hsa_system_get_info(t.HSA_AMD_SYSTEM_INFO_BUILD_VERSION, byref(said))
        return (
            said.value.decode(errors="replace").strip('"')
            if status == t.HSA_STATUS_SUCCESS and said.value
            else "not reported"
        )

    def _pair(self, major: int, minor: int) -> tuple[int, int]:
        values = (c_uint16(), c_uint16())
        for attribute, value in zip((major, minor), values, strict=True):
            if self.library.hsa_system_get_info(attribute, byref(value)) != t.HSA_STATUS_SUCCESS:
                return (0, 0)  # older than the attribute
        return values[0].value, values[1].value

    def require_here(self) -> None:
        """Raises :class:`C3Error` in a process that was forked off the one that opened the runtime."""
        if self.forked:
            raise C3Error(
                "amd: AMD's runtime was opened before this process was forked, and does not work in it; start workers "
                "with multiprocessing's 'spawn', or open it in them alone"
            )

    def _after_fork(self) -> None:
        self.forked = True
        for lane in self._lanes.values():
            lane.close()


_opened: Runtime | None = None


def open_runtime(library: str | Path | None = None) -> Runtime:
    """The runtime of this process, opened by the first call; later calls give the same one.

    ``library`` is a path of ``libhsa-runtime64``; without, it is looked for (:func:`c3lib.amd.library.candidates`).
    It is never closed: AMD's library can be started only once in a process.

    Raises:
        C3Error: no library, a too old one, no driver, no permission, another library than the first call's, or this
            process was forked from one that had opened it.
    """
    global _opened
    if _opened is None:
        _opened = Runtime(library)
    _opened.require_here()
    if library is not None and Path(library).resolve() != Path(_opened.library.path).resolve():
        raise C3Error(f"amd: this process has opened {_opened.library.path} and cannot open {library} too")
    return _opened
