"""A few random bytes that one engine carries from the host to a GPU, over to another, and back to be compared."""

from __future__ import annotations

import os

from c3lib.amd.agents import Agent, Gpu
from c3lib.amd.runtime import Runtime
from c3lib.amd.signals import Signal


class Parcel:
    """``nbytes`` random bytes, for the way from ``src`` to ``dst``, by engine ``engine`` of ``copier``, one of them.

    They are other bytes each time: what an earlier parcel left in the same memory is not taken for this one. Order:
    :meth:`fill`, :meth:`send` and :meth:`arrive`, :meth:`wrong`, :meth:`close`. Raises :class:`C3Error` for lack of
    memory.
    """

    def __init__(self, runtime: Runtime, dst: Agent, src: Agent, copier: Gpu, engine: int, nbytes: int) -> None:
        self.runtime, self.dst, self.src, self.copier, self.engine, self.nbytes = (
            runtime, dst, src, copier, engine, nbytes,
        )  # fmt: skip
        self._sent = os.urandom(nbytes)
        self._under_way = False
        host = runtime.cpus[0]
        self._source, self._target = runtime.allocate(src, nbytes), runtime.allocate(dst, nbytes)
        self._staging = runtime.allocate(host, nbytes)
        for buffer in (self._source, self._target):
            runtime.allow(buffer, (src, dst))
        runtime.allow(self._staging, (copier,))

    def fill(self, limit_s: float) -> None:
        """Put the bytes into memory of ``src``. Raises :class:`C3Error` for what the engine does not do."""
        self._staging.view()[:] = self._sent
        self.arrive(self._copy(self._source.address, self.copier, self._staging.address, self._staging.agent), limit_s)

    def send(self, gate: Signal) -> Signal:
        """Queue the copy to ``dst``, which goes when ``gate`` is 0; gives what is 0 when it is done."""
        other = self.dst if self.copier is self.src else self.src
        # The runtime takes the second agent's engine, wherever the addresses are.
        return self._copy(self._target.address, other, self._source.address, self.copier, gate)

    def arrive(self, done: Signal, limit_s: float) -> None:
        """Wait for a copy. Raises :class:`C3Error` for one that fails or takes longer."""
        done.wait(limit_s, f"a copy of {self.nbytes} bytes on it")
        self._under_way = False

    def wrong(self, limit_s: float) -> int:
        """How many bytes at ``dst`` are not those that were sent. Raises :class:`C3Error` as :meth:`fill` does."""
        self._staging.view()[:] = bytes(byte ^ 0xFF for byte in self._sent)  # what does not come is wrong
        self.arrive(self._copy(self._staging.address, self._staging.agent, self._target.address, self.copier), limit_s)
        return sum(got != sent for got, sent in zip(self._staging.view(), self._sent, strict=True))

    def close(self) -> None:
        """Give the memory back, but for what a hanging engine may still touch."""
        if not self._under_way:
            for buffer in (self._source, self._target, self._staging):
                self.runtime.free(buffer)

    def _copy(self, dst: int, dst_agent: Agent, src: int, src_agent: Agent, *after: Signal) -> Signal:
        done = self.runtime.signal(1)
        self.runtime.copy(dst, dst_agent, src, src_agent, self.nbytes, done, self.engine, after)
        self._under_way = True
        return done
