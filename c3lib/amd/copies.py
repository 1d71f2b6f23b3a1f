"""A copy made ready once, so that submitting it is one call; and the room that an engine's queue has for copies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Sequence

from c3lib.amd import table as t
from c3lib.amd.agents import Agent, Gpu
from c3lib.errors import C3Error

if TYPE_CHECKING:
    from c3lib.amd.runtime import Runtime
    from c3lib.amd.signals import Signal

PACKET_NBYTES = 0x3FFFE0  # 4 MiB - 32
"""A bound for counting: no copy of this size is ever more than one packet. ROCr 6.1.2 splits there with
``HSA_ENABLE_SDMA_COPY_SIZE_OVERRIDE=0``; by default its packets are larger, 64 MiB being one."""

QUEUE_PACKETS = 4096
"""Packets that may wait in an engine's queue. Where some 6,700 do, submitting blocks, for ever if its own thread was to
open their gate; so at this number we look whether the engine ever gets done."""

ROOM_LIMIT_S = 2.0
"""How long a full queue may take to empty before submitting gives up."""

_FULL = 1 << 62


def packets(nbytes: int, depends: int) -> int:
    """What a copy counts for in its engine's queue: its parts, and what it ``depends`` on beyond the first signal.

    The first wait is in the room that :data:`QUEUE_PACKETS` leaves for each.
    """
    return -(-nbytes // PACKET_NBYTES) + max(0, depends - 1)


class Lane:
    """One engine of one GPU, and how many packets may be waiting in its queue."""

    __slots__ = ("engine", "gpu", "waiting")

    def __init__(self, gpu: Gpu, engine: int) -> None:
        self.gpu, self.engine, self.waiting = gpu, engine, 0

    def close(self) -> None:
        """Let nothing through any more without a look at the runtime."""
        self.waiting = _FULL


class Copy:
    """A copy that is ready to be submitted, any number of times; made by :meth:`Runtime.prepare`."""

    __slots__ = (
        "_arguments",
        "_call",
        "_dst_agent",
        "_lane",
        "_packets",
        "_runtime",
        "_src_agent",
        "depends",
        "signal",
    )

    def __init__(
        self,
        runtime: Runtime,
        lane: Lane,
        dst: int,
        dst_agent: Agent,
        src: int,
        src_agent: Agent,
        nbytes: int,
        signal: Signal,
        depends: Sequence[Signal],
    ) -> None:
        self.signal, self.depends = signal, tuple(depends)
        handles = (t.hsa_signal_t * len(depends))(*(s.handle for s in depends)) if depends else None
        # "force" lets a GPU copy within its own memory by engine too; nothing makes a copy fail that has no engine.
        self._arguments = (
            dst, dst_agent.handle, src, src_agent.handle, nbytes, len(depends), handles, signal.handle,
            1 << lane.engine, True,
        )  # fmt: skip
        self._call = runtime.library.hsa_amd_memory_async_copy_on_engine
        self._runtime, self._lane, self._dst_agent, self._src_agent = runtime, lane, dst_agent, src_agent
        self._packets = packets(nbytes, len(depends))

    def submit(self) -> None:
        """Submit it; returns at once.

        Raises:
            C3Error: the library refused it, or its engine's queue is full and stays full.
        """
        lane = self._lane
        lane.waiting += self._packets
        if lane.waiting > QUEUE_PACKETS:
            self._make_room()
        if status := self._call(*self._arguments):
            lane.waiting -= self._packets
            self._runtime.library.check(status, f"submitting {self}")
        self.signal.submitted.append(self)

    def settle(self) -> None:
        """It is done, and takes no room in the queue any more; :class:`Signal` calls this."""
        # Not below nothing: a look at the engine may have told before that this one was done.
        self._lane.waiting = max(0, self._lane.waiting - self._packets)

    def _make_room(self) -> None:
        """Wait until the engine has nothing to do; a queue that is empty has room again."""
        runtime, lane = self._runtime, self._lane
        until_s = time.monotonic() + ROOM_LIMIT_S
        while not runtime.idle_engines(self._dst_agent, self._src_agent) >> lane.engine & 1:
            if time.monotonic() > until_s:
                lane.waiting -= self._packets
                raise C3Error(
                    f"amd: engine {lane.engine} of {lane.gpu} has some {lane.waiting} packets waiting, which did not "
                    f"get done in {ROOM_LIMIT_S:g} s; submit at most {QUEUE_PACKETS} behind a gate, then open it"
                )
            time.sleep(0.001)
        lane.waiting = self._packets

    def __str__(self) -> str:
        nbytes = self._arguments[4]
        return f"a copy of {nbytes} bytes from {self._src_agent} to {self._dst_agent} on engine {self._lane.engine}"
