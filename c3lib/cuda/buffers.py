"""The bytes of a transfer plan on this machine: rank 0 in GPU memory, its peers in pinned host memory.

Every byte sent is a function of source rank, offset and iteration; destinations are poisoned before and compared whole
after each run. The GPU does both with the rule of :func:`c3lib.transfer.pattern`: what lies in host memory is read
back over the link and compared there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from c3lib.cuda.device import Cuda, said_clearly
from c3lib.cuda.source import launch
from c3lib.errors import C3Error
from c3lib.transfer import HOST_IN, HOST_OUT, POISON, RECEIVE, SEND, TransferPlan, pieces

DIRECTIONS = {"in": (HOST_IN,), "out": (HOST_OUT,), "both": (HOST_IN, HOST_OUT)}
_SCRATCH = 1 << 26  # bytes moved between GPU and host memory at a time when filling and checking


@dataclass(frozen=True)
class Check:
    """Outcome of a byte check: how many bytes were compared and how many were wrong, and where the first one is."""

    compared_nbytes: int
    wrong_nbytes: int
    first: str

    @property
    def verified(self) -> bool:
        """True when something was compared and every byte was right."""
        return self.compared_nbytes > 0 and self.wrong_nbytes == 0


class Buffers:
    """Send and receive buffers of every rank for one plan of topology ``host``.

    ``direction`` says which of the plan's copies count: into the GPU, out of it, or both. Raises :class:`C3Error` for a
    plan of another topology and when memory does not suffice.
    """

    def __init__(self, cuda: Cuda, plan: TransferPlan, direction: str = "both"):
        if plan.topology != "host":
            raise C3Error(
                f"{plan}: topology {plan.topology!r} needs several GPUs; one GPU measures 'host', its peers' buffers "
                "in pinned host memory"
            )
        self.chosen = np.flatnonzero(np.isin(plan.copies["engine"], DIRECTIONS[direction]))
        if not len(self.chosen):
            raise C3Error(f"{plan}: moves nothing over the link (direction {direction!r}), so there is nothing to time")
        self.local = np.flatnonzero(plan.is_local)
        self.link_nbytes = int(plan.copies["nbytes"][self.chosen].sum())
        self.cuda, self.plan, self.direction = cuda, plan, direction
        self._stream = cuda.device.default_stream
        torch = cuda.torch

        def room(nbytes: int, rank: int) -> Any:
            where: dict = {"device": "cuda"} if rank == 0 else {"pin_memory": True}
            return torch.empty(max(nbytes, 1), dtype=torch.uint8, **where)

        with said_clearly(f"allocating the buffers of {plan}"):
            self.send = [room(nbytes, rank) for rank, nbytes in enumerate(plan.src_nbytes)]
            self.receive = [room(nbytes, rank) for rank, nbytes in enumerate(plan.dst_nbytes)]
            largest = max([*plan.src_nbytes, *plan.dst_nbytes, 1])
            self._scratch = torch.empty(min(_SCRATCH, largest), dtype=torch.uint8, device="cuda")
            self._wrong = torch.empty(2, dtype=torch.int64, device="cuda")

    def address(self, rank: int, buffer: int) -> int:
        """Where a buffer of a rank lies, an address that GPU and copy engines understand."""
        return (self.send if buffer == SEND else self.receive)[rank].data_ptr()

    def copies(self, drop: int | None = None) -> list[tuple[int, int, int, int]]:
        """``(source address, destination address, bytes, engine)`` of each copy of the chosen direction, in order.

        ``drop`` leaves out one of them (an index into this list), for a negative control.
        """
        found = []
        for place, index in enumerate(self.chosen.tolist()):
            c = self.plan[index]
            if place != drop:
                source = self.address(c.src_rank, c.src_buffer) + c.src_offset
                found.append((source, self.address(c.dst_rank, RECEIVE) + c.dst_offset, c.nbytes, c.engine))
        return found

    def prepare(self, iteration: int) -> None:
        """Fill the send buffers with this iteration's pattern, poison the receive buffers, do the local copies.

        A rank's own shard is put in place here, before any clock runs: a collective that works in place moves it never.
        """
        with said_clearly("filling buffers"):
            for rank, nbytes in enumerate(self.plan.src_nbytes):
                if nbytes and (rank == 0 or "in" in self._ways):
                    self._fill(rank, nbytes, iteration)
            for rank, nbytes in enumerate(self.plan.dst_nbytes):
                if nbytes and self._counts(rank):
                    if rank == 0:
                        self.receive[0].fill_(POISON)
                    else:
                        self._scratch.fill_(POISON)
                        for first in range(0, nbytes, len(self._scratch)):
                            part = self.receive[rank][first : min(first + len(self._scratch), nbytes)]
                            part.copy_(self._scratch[: len(part)], non_blocking=True)
            for index in self.local.tolist():
                c = self.plan[index]
                source = self.send[c.src_rank][c.src_offset : c.src_offset + c.nbytes]
                self.receive[c.dst_rank][c.dst_offset : c.dst_offset + c.nbytes].copy_(source)
            self.cuda.torch.cuda.synchronize()

    @property
    def _ways(self) -> tuple[str, ...]:
        return ("in", "out") if self.direction == "both" else (self.direction,)

    def _counts(self, rank: int) -> bool:
        return ("in" if rank == 0 else "out") in self._ways

    def _seed(self, rank: int, iteration: int) -> np.uint64:
        return np.uint64((rank << 32) + iteration + 1)

    def _fill(self, rank: int, nbytes: int, iteration: int) -> None:
        target = self._pattern_room(nbytes) if rank else self.send[0]
        launch(
            self.cuda, self._stream, "fill", 4 * self.cuda.sms, 256,
            np.uint64(target.data_ptr()), np.uint64(nbytes), self._seed(rank, iteration),
        )  # fmt: skip
        if rank:
            self.send[rank][:nbytes].copy_(target[:nbytes], non_blocking=True)

    def _pattern_room(self, nbytes: int) -> Any:
        if len(self._scratch) < nbytes:
            self._scratch = self.cuda.torch.empty(nbytes, dtype=self.cuda.torch.uint8, device="cuda")
        return self._scratch

    def check(self, iteration: int) -> Check:
        """Compare every received byte with the definition of the collective (not with the plan's copies)."""
        compared, first = 0, ""
        plan = self.plan
        wanted = pieces(plan.kind, plan.nbytes, plan.ranks, plan.topology)
        wrong_nbytes = 0
        with said_clearly("checking received bytes"):
            for rank, parts in enumerate(wanted):
                if not self._counts(rank):
                    continue
                size = sum(part.nbytes for part in parts)
                got = self.receive[rank]
                if rank:
                    got = self._pattern_room(size)
                    got[:size].copy_(self.receive[rank][:size], non_blocking=True)
                self._wrong[0], self._wrong[1] = 0, -1  # -1: the largest unsigned number
                offset = 0
                for part in parts:
                    if part.nbytes:
                        launch(
                            self.cuda, self._stream, "compare", 4 * self.cuda.sms, 256,
                            np.uint64(got.data_ptr() + offset), np.uint64(part.nbytes),
                            self._seed(part.src_rank, iteration), np.uint64(part.src_offset), np.uint64(offset),
                            np.uint64(self._wrong.data_ptr()),
                        )  # fmt: skip
                    offset += part.nbytes
                count, at = self._wrong.tolist()
                compared += size
                wrong_nbytes += count
                if count and not first:
                    first = f"{plan}: {count} bytes of rank {rank} are wrong, the first at {at}"
        return Check(compared, wrong_nbytes, first)
