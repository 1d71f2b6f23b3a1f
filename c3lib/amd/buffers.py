"""The bytes of a transfer plan on AMD GPUs: send and receive buffers of each rank, filled and compared by the host.

There is no kernel here that could fill or check memory, so the host makes the pattern of
:func:`c3lib.transfer.pattern` and copies it over, and reads back what was received, through pinned memory and by the
engines that face the host; a thread for each rank does it. Around each receive buffer lie guard bytes that nothing may
write.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from c3lib.amd.agents import Gpu
from c3lib.amd.runtime import Buffer, Runtime
from c3lib.errors import C3Error
from c3lib.region import Check
from c3lib.transfer import POISON, RECEIVE, SEND, TransferPlan, check_plan, pattern, pieces

GUARD_NBYTES = 4096
"""Bytes around each receive buffer; a whole page, so that a buffer begins as aligned as its allocation."""

LIMIT_S = 20.0
"""A copy between host and GPU that has not ended by then is reported as hanging."""

_STAGING_NBYTES = 1 << 24
_HOST_IN, _HOST_OUT = 0, 1  # engines that face the host: what comes from the device is slower on the first


class Issue(NamedTuple):
    """A copy as it is issued: addresses, ranks, bytes, the step it belongs to, the engine that the plan names."""

    source: int
    target: int
    src_rank: int
    dst_rank: int
    nbytes: int
    step: int
    lane: int


class Buffers:
    """Send and receive buffers of every rank for one plan; ``gpus`` has the GPU of each rank, a different one each.

    Every buffer is opened to the GPUs whose engines read or write it by this plan, and to no others before
    :meth:`open_to_all`. ``chosen`` are the indices of the plan's copies that cross a link and have bytes.

    Raises:
        C3Error: topology ``host``, GPUs that do not fit the plan, an unsound plan, one that moves nothing over a link,
            too little memory.
    """

    def __init__(self, runtime: Runtime, gpus: Sequence[Gpu], plan: TransferPlan) -> None:
        if plan.topology == "host":
            raise C3Error(f"{plan}: topology 'host' is not for AMD GPUs here; expected 'mesh' or 'switch'")
        if len(gpus) != plan.ranks or len({gpu.index for gpu in gpus}) != plan.ranks:
            raise C3Error(f"{plan}: expected {plan.ranks} different GPUs, one a rank, got {', '.join(map(str, gpus))}")
        copies = plan.copies
        some = copies["nbytes"] > 0  # the library takes empty copies and never signals them
        self.chosen = np.flatnonzero(~plan.is_local & some)
        self.local = np.flatnonzero(plan.is_local & some)
        if not len(self.chosen):
            raise C3Error(f"{plan}: moves nothing over a link, so there is nothing to time")
        if (copies["src_buffer"][self.local] != SEND).any():
            raise C3Error(f"{plan}: a copy within a rank reads what was received; expected one from its send buffer")
        check_plan(replace(plan, copies=copies[some]))  # nothing else keeps an engine from writing beside a buffer
        self.runtime, self.gpus, self.plan = runtime, list(gpus), plan
        self.link_nbytes = int(copies["nbytes"][self.chosen].sum())
        self.abandoned = False
        """Set when an engine or a kernel may still touch the buffers, unwatched: they are then never given back."""
        self._held: list[Buffer] = []
        self._sent: tuple[int, list[np.ndarray]] | None = None  # the pattern of an iteration, a send buffer each
        self._thread_name = f"c3-buffers-{id(self):x}-"
        self._threads = ThreadPoolExecutor(min(plan.ranks, os.cpu_count() or 1), self._thread_name)
        try:
            self.send = [self._room(rank, size, self._users(rank, SEND)) for rank, size in enumerate(plan.src_nbytes)]
            self._receive = [
                self._room(rank, size + 2 * GUARD_NBYTES, self._users(rank, RECEIVE))
                for rank, size in enumerate(plan.dst_nbytes)
            ]
            self._staging = [self._stage(rank) for rank in range(plan.ranks)]
        except BaseException:
            self.close()
            raise

    @property
    def pair_nbytes(self) -> int:
        """Bytes over the busiest link, one direction: what a rate is worked out from."""
        table = self.plan.nbytes_per_pair.copy()
        np.fill_diagonal(table, 0)
        return int(max(table.sum(axis=0).max(), table.sum(axis=1).max()))

    def address(self, rank: int, buffer: int) -> int:
        """Where a buffer of a rank lies, as GPUs see it."""
        return self.send[rank].address if buffer == SEND else self._receive[rank].address + GUARD_NBYTES

    def open_to_all(self) -> None:
        """Let the GPU of every rank touch every buffer: for kernels that choose themselves who reads and who writes."""
        for buffer in [*self.send, *self._receive]:
            self.runtime.allow(buffer, self.gpus)

    def copies(self, drop: int | None = None) -> list[Issue]:
        """The copies that count, in the order of issue: by step, within one in plan order.

        ``drop`` leaves out one of them (an index into this list), for a negative control.
        """
        found = []
        for index in self.chosen[np.argsort(self.plan.copies["step"][self.chosen], kind="stable")].tolist():
            c = self.plan[index]
            source = self.address(c.src_rank, c.src_buffer) + c.src_offset
            target = self.address(c.dst_rank, RECEIVE) + c.dst_offset
            found.append(Issue(source, target, c.src_rank, c.dst_rank, c.nbytes, c.step, c.engine))
        if drop is not None:
            if not 0 <= drop < len(found):
                raise C3Error(f"drop: {self.plan} has {len(found)} copies over links, got index {drop}")
            del found[drop]
        return found

    def prepare(self, iteration: int) -> None:
        """Fill the send buffers with this iteration's pattern, poison the receive buffers, do the local copies.

        A rank's own shard is put in place here, before any clock runs: a collective that works in place moves it never.

        Raises:
            C3Error: they were given up, or an engine that faces the host hangs.
        """
        self.require_kept()
        sent = self._pattern(iteration)

        def one(rank: int) -> None:
            self._write(rank, self.send[rank].address, sent[rank][: self.plan.src_nbytes[rank]])
            self._write(rank, self._receive[rank].address, None, self.plan.dst_nbytes[rank] + 2 * GUARD_NBYTES)
            for index in self.local.tolist():
                c = self.plan[index]
                if c.dst_rank == rank:
                    target = self.address(rank, RECEIVE) + c.dst_offset
                    self._write(rank, target, sent[rank][c.src_offset : c.src_offset + c.nbytes])

        self._each(one)

    def check(self, iteration: int) -> Check:
        """Compare every received byte with the definition of the collective, not with the plan's copies.

        A guard byte that was written counts as wrong.
        """
        sent = self._pattern(iteration)
        wanted = pieces(self.plan.kind, self.plan.nbytes, self.plan.ranks, self.plan.topology)
        guard = np.full(GUARD_NBYTES, POISON, np.uint8)

        def one(rank: int) -> tuple[int, str]:
            parts = [sent[part.src_rank][part.src_offset :][: part.nbytes] for part in wanted[rank]]
            wrong, first, at = 0, "", -GUARD_NBYTES
            for part in (guard, *parts, guard):
                for start, got in self._read(rank, self.address(rank, RECEIVE) + at, len(part)):
                    here = part[start : start + len(got)]
                    if not np.array_equal(got, here):
                        bad = np.flatnonzero(got != here)
                        first = first or f"rank {rank} are wrong, the first at {at + start + int(bad[0])}"
                        wrong += len(bad)
                at += len(part)
            return wrong, first

        found = self._each(one)
        wrong = sum(count for count, _ in found)
        first = next((f"{self.plan}: {count} bytes of {said}" for count, said in found if said), "")
        return Check(sum(self.plan.dst_nbytes), wrong, first)

    def received(self, rank: int) -> np.ndarray:
        """What the receive buffer of a rank holds now: uint8, shape (nbytes,)."""
        parts = [got.copy() for _, got in self._read(rank, self.address(rank, RECEIVE), self.plan.dst_nbytes[rank])]
        return np.concatenate([np.empty(0, np.uint8), *parts])

    def untouched(self, copies: Sequence[Issue], limit_s: float = 1.0) -> list[Issue]:
        """Those of ``copies`` whose last byte has not come: it still is poison, which no pattern has."""
        found = []
        for copy in copies:
            last = copy.target + copy.nbytes - 1
            if any(got[0] == POISON for _, got in self._read(copy.dst_rank, last, 1, limit_s)):
                found.append(copy)
        return found

    def abandon(self) -> None:
        """Something may touch the buffers for as long as the process lives: see :attr:`abandoned`."""
        self.abandoned = True

    def require_kept(self) -> None:
        """Raises :class:`C3Error` when the buffers were given up: what comes into them is anybody's."""
        if self.abandoned:
            raise C3Error(
                f"{self.plan}: its buffers were given up, something may still write them; set the plan up anew"
            )

    def close(self) -> None:
        """Give the memory back; the buffers are of no use then."""
        # The collector may run on one of these threads, which cannot wait for itself; nobody else has work there then.
        self._threads.shutdown(wait=not threading.current_thread().name.startswith(self._thread_name))
        held, self._held = self._held, []
        if not self.abandoned and not self.runtime.forked:
            for buffer in held:
                self.runtime.free(buffer)

    def __del__(self) -> None:
        if hasattr(self, "_held"):
            self.close()

    def _each(self, one: Callable[[int], Any]) -> list[Any]:
        return list(self._threads.map(one, range(self.plan.ranks)))

    def _users(self, rank: int, buffer: int) -> list[Gpu]:
        """The GPUs whose engines read or write a buffer by this plan; its owner always can."""
        copies, issuer = self.plan.copies[self.chosen], self.plan.issuer[self.chosen]
        used = (copies["src_rank"] == rank) & (copies["src_buffer"] == buffer)
        if buffer == RECEIVE:
            used |= copies["dst_rank"] == rank
        return [self.gpus[user] for user in sorted({rank, *issuer[used].tolist()})]

    def _room(self, rank: int, nbytes: int, users: Sequence[Gpu]) -> Buffer:
        buffer = self.runtime.allocate(self.gpus[rank], max(nbytes, 1))
        self._held.append(buffer)
        self.runtime.allow(buffer, users)
        return buffer

    def _stage(self, rank: int) -> tuple[Buffer, np.ndarray]:
        largest = max(self.plan.src_nbytes[rank], self.plan.dst_nbytes[rank] + 2 * GUARD_NBYTES)
        buffer = self.runtime.allocate(self.runtime.cpus[0], min(_STAGING_NBYTES, largest))
        self._held.append(buffer)
        self.runtime.allow(buffer, [self.gpus[rank]])
        return buffer, np.frombuffer(buffer.view(), np.uint8)

    def _pattern(self, iteration: int) -> list[np.ndarray]:
        if self._sent is None or self._sent[0] != iteration:
            self._sent = None  # not two of them at a time
            made = self._each(lambda rank: pattern(rank, self.plan.src_nbytes[rank], iteration))
            self._sent = (iteration, made)
        return self._sent[1]

    def _write(self, rank: int, address: int, data: np.ndarray | None, nbytes: int | None = None) -> None:
        """Put bytes into a GPU's memory; without ``data`` poison."""
        view = self._staging[rank][1]
        size = nbytes if nbytes is not None else 0 if data is None else len(data)
        if data is None:
            view[:size] = POISON
        for start in range(0, size, len(view)):
            count = min(len(view), size - start)
            if data is not None:
                view[:count] = data[start : start + count]
            self._across(rank, address + start, count, _HOST_IN, LIMIT_S)

    def _read(self, rank: int, address: int, nbytes: int, limit_s: float = LIMIT_S) -> Any:
        """What lies in a GPU's memory, part by part: where each begins, and its bytes until the next is asked for."""
        view = self._staging[rank][1]
        for start in range(0, nbytes, len(view)):
            count = min(len(view), nbytes - start)
            view[:count] = 0  # no byte of a pattern nor poison: what does not come is not taken for what was there
            self._across(rank, address + start, count, _HOST_OUT, limit_s)
            yield start, view[:count]

    def _across(self, rank: int, address: int, nbytes: int, engine: int, limit_s: float) -> None:
        """Copy from a rank's staging to its GPU (by engine :data:`_HOST_IN`) or back, and wait for it."""
        done, staging = self.runtime.signal(1), self._staging[rank][0]
        ends = [(address, self.gpus[rank]), (staging.address, staging.agent)]
        (dst, dst_agent), (src, src_agent) = ends if engine == _HOST_IN else reversed(ends)
        way = "to" if engine == _HOST_IN else "from"
        try:
            self.runtime.copy(dst, dst_agent, src, src_agent, nbytes, done, engine)
            done.wait(limit_s, f"a copy of {nbytes} bytes {way} rank {rank}'s GPU by its engine {engine}")
        except BaseException:  # Ctrl-C too: the engine goes on
            self.abandon()
            raise
