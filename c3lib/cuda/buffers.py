"""The bytes of a transfer plan on this machine: each rank's buffers on its GPU, or a peer's in pinned host memory.

On topology ``host`` rank 0 is the GPU and its peers lie in host memory; on the others every rank has a GPU. Every byte
sent is a function of source rank, offset and iteration; destinations are poisoned before and compared whole after each
run. GPUs do both with the rule of :func:`c3lib.transfer.pattern`: what lies in host memory is read back over the link
and compared there.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from c3lib.cuda.device import Cuda, said_clearly
from c3lib.cuda.source import launch
from c3lib.errors import C3Error
from c3lib.region import Check
from c3lib.transfer import HOST_IN, HOST_OUT, POISON, RECEIVE, SEND, TransferPlan, pieces

DIRECTIONS = {"in": (HOST_IN,), "out": (HOST_OUT,), "both": (HOST_IN, HOST_OUT)}
_SCRATCH = 1 << 26  # bytes moved between GPU and host memory at a time when filling and checking

Room = Callable[[int, int], Any]
"""Takes a rank and a number of bytes, gives a uint8 tensor on that rank's GPU."""


class Issue(NamedTuple):
    """A copy as it is issued: addresses, bytes, engine of the rank that issues it, and the step it belongs to."""

    source: int
    target: int
    nbytes: int
    engine: int
    issuer: int = 0
    step: int = 0


class Buffers:
    """Send and receive buffers of every rank for one plan.

    ``cudas`` has the GPU of each rank (of rank 0 alone on topology ``host``); ranks may share one. ``direction`` says
    which copies of a plan of topology ``host`` count: into the GPU, out of it, or both. ``room`` allocates in another
    way than torch does.

    Raises:
        C3Error: too few or too many GPUs for the plan, a direction where there is none, a plan that moves nothing over
            a link, too little memory.
    """

    def __init__(self, cudas: Sequence[Cuda], plan: TransferPlan, direction: str = "both", *, room: Room | None = None):
        host = plan.topology == "host"
        wanted = 1 if host else plan.ranks
        if len(cudas) != wanted:
            raise C3Error(
                f"{plan}: topology {plan.topology!r} needs {wanted} GPU{'s' * (wanted > 1)} here, not {len(cudas)}; on "
                "'host' the peers' buffers lie in pinned host memory"
            )
        if not host and direction != "both":
            raise C3Error(f"{plan}: direction {direction!r} is of topology 'host'; between GPUs it is 'both'")
        counts = np.isin(plan.copies["engine"], DIRECTIONS[direction]) if host else ~plan.is_local
        self.chosen = np.flatnonzero(counts)
        if not len(self.chosen):
            raise C3Error(f"{plan}: moves nothing over the link (direction {direction!r}), so there is nothing to time")
        self.local = np.flatnonzero(plan.is_local)
        self.link_nbytes = int(plan.copies["nbytes"][self.chosen].sum())
        self.cudas, self.plan, self.direction = list(cudas), plan, direction
        self._on_host = [host and rank > 0 for rank in range(plan.ranks)]
        room = room or self._room

        def allocated(nbytes: int, rank: int) -> Any:
            if self._on_host[rank]:
                return cudas[0].torch.empty(max(nbytes, 1), dtype=cudas[0].torch.uint8, pin_memory=True)
            return room(rank, max(nbytes, 1))

        with said_clearly(f"allocating the buffers of {plan}"):
            self.send = [allocated(nbytes, rank) for rank, nbytes in enumerate(plan.src_nbytes)]
            self.receive = [allocated(nbytes, rank) for rank, nbytes in enumerate(plan.dst_nbytes)]
            self._scratch = self._room(0, min(_SCRATCH, max(*plan.src_nbytes, *plan.dst_nbytes, 1)) if host else 1)
            self._wrong = [
                cuda.torch.empty(2, dtype=cuda.torch.int64, device=f"cuda:{cuda.index}") for cuda in self.cudas
            ]

    @property
    def pair_nbytes(self) -> int:
        """Bytes over the busiest link, one direction: what a rate is worked out from."""
        table = self.plan.nbytes_per_pair.copy()
        np.fill_diagonal(table, 0)
        return int(max(table.sum(axis=0).max(), table.sum(axis=1).max()))

    def address(self, rank: int, buffer: int) -> int:
        """Where a buffer of a rank lies, an address that GPUs and copy engines understand."""
        return (self.send if buffer == SEND else self.receive)[rank].data_ptr()

    def copies(self, drop: int | None = None) -> list[Issue]:
        """The copies that count, in plan order. ``drop`` leaves out one of them (an index into this list), for a
        negative control."""
        found, issuer = [], self.plan.issuer
        for place, index in enumerate(self.chosen.tolist()):
            c = self.plan[index]
            if place != drop:
                source = self.address(c.src_rank, c.src_buffer) + c.src_offset
                target = self.address(c.dst_rank, RECEIVE) + c.dst_offset
                found.append(Issue(source, target, c.nbytes, c.engine, int(issuer[index]), c.step))
        return found

    def prepare(self, iteration: int) -> None:
        """Fill the send buffers with this iteration's pattern, poison the receive buffers, do the local copies.

        A rank's own shard is put in place here, before any clock runs: a collective that works in place moves it never.
        """
        with said_clearly("filling buffers"):
            for rank, nbytes in enumerate(self.plan.src_nbytes):
                if nbytes and (not self._on_host[rank] or self.direction != "out"):
                    self._fill(rank, nbytes, iteration)
            for rank, nbytes in enumerate(self.plan.dst_nbytes):
                if nbytes and self._counts(rank):
                    self._poison(rank, nbytes)
            for index in self.local.tolist():
                c = self.plan[index]
                source = self.send[c.src_rank][c.src_offset : c.src_offset + c.nbytes]
                self.receive[c.dst_rank][c.dst_offset : c.dst_offset + c.nbytes].copy_(source)
            self._wait()

    def _wait(self) -> None:
        for cuda in self.cudas:
            cuda.torch.cuda.synchronize(cuda.index)

    def _room(self, rank: int, nbytes: int) -> Any:
        cuda = self.cudas[rank]
        return cuda.torch.empty(nbytes, dtype=cuda.torch.uint8, device=f"cuda:{cuda.index}")

    def _counts(self, rank: int) -> bool:
        if self.plan.topology != "host":
            return True
        return self.direction in ("both", "out" if self._on_host[rank] else "in")

    def _near(self, rank: int) -> int:
        """Which of ``cudas`` fills and checks the buffers of a rank."""
        return 0 if self._on_host[rank] else rank

    def _seed(self, rank: int, iteration: int) -> np.uint64:
        return np.uint64((rank << 32) + iteration + 1)

    def _poison(self, rank: int, nbytes: int) -> None:
        if not self._on_host[rank]:
            self.receive[rank].fill_(POISON)
            return
        self._scratch.fill_(POISON)
        for first in range(0, nbytes, len(self._scratch)):
            part = self.receive[rank][first : min(first + len(self._scratch), nbytes)]
            part.copy_(self._scratch[: len(part)], non_blocking=True)

    def _fill(self, rank: int, nbytes: int, iteration: int) -> None:
        cuda = self.cudas[self._near(rank)]
        target = self._pattern_room(nbytes) if self._on_host[rank] else self.send[rank]
        launch(
            cuda, cuda.device.default_stream, "fill", 4 * cuda.sms, 256,
            np.uint64(target.data_ptr()), np.uint64(nbytes), self._seed(rank, iteration),
        )  # fmt: skip
        if self._on_host[rank]:
            self.send[rank][:nbytes].copy_(target[:nbytes], non_blocking=True)

    def _pattern_room(self, nbytes: int) -> Any:
        if len(self._scratch) < nbytes:
            self._scratch = self._room(0, nbytes)
        return self._scratch

    def check(self, iteration: int) -> Check:
        """Compare every received byte with the definition of the collective (not with the plan's copies)."""
        plan = self.plan
        wanted = pieces(plan.kind, plan.nbytes, plan.ranks, plan.topology)
        compared, wrong_nbytes, first = 0, 0, ""
        with said_clearly("checking received bytes"):
            self._wait()
            for rank, parts in enumerate(wanted):
                if self._counts(rank):
                    size = sum(part.nbytes for part in parts)
                    count, at = self._compare(rank, size, parts, iteration)
                    compared, wrong_nbytes = compared + size, wrong_nbytes + count
                    if count and not first:
                        first = f"{plan}: {count} bytes of rank {rank} are wrong, the first at {at}"
        return Check(compared, wrong_nbytes, first)

    def _compare(self, rank: int, size: int, parts: Sequence[Any], iteration: int) -> tuple[int, int]:
        """How many bytes of a rank are wrong, and the first of them."""
        cuda, wrong = self.cudas[self._near(rank)], self._wrong[self._near(rank)]
        got = self.receive[rank]
        if self._on_host[rank]:
            got = self._pattern_room(size)
            got[:size].copy_(self.receive[rank][:size], non_blocking=True)
        wrong[0], wrong[1] = 0, -1  # -1: the largest unsigned number
        offset = 0
        for part in parts:
            if part.nbytes:
                launch(
                    cuda, cuda.device.default_stream, "compare", 4 * cuda.sms, 256,
                    np.uint64(got.data_ptr() + offset), np.uint64(part.nbytes),
                    self._seed(part.src_rank, iteration), np.uint64(part.src_offset), np.uint64(offset),
                    np.uint64(wrong.data_ptr()),
                )  # fmt: skip
            offset += part.nbytes
        count, at = wrong.tolist()
        return count, at
