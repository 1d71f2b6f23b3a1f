"""Run a transfer plan on AMD's runtime, the shortest way: what the scenarios of both layers use to move bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from c3lib.amd.runtime import Buffer, Runtime
from c3lib.transfer import POISON, Copy, TransferPlan, send_buffers, verify

GUARD_NBYTES = 64
LIMIT_S = 20.0
HOST_IN, HOST_OUT = 0, 1


@dataclass(frozen=True)
class Place:
    """``nbytes`` within a buffer, ``offset`` bytes after its start, with guard bytes on both sides."""

    buffer: Buffer
    offset: int
    nbytes: int

    @property
    def address(self) -> int:
        return self.buffer.address + self.offset


def every_second_peer_engine(copy: Copy) -> int:
    """Engines 2, 4, ... of a GPU with 14 for its peers: one a peer, of which the first for copies within the GPU."""
    return 2 + 2 * max(0, copy.engine)


def any_host_engine(copy: Copy) -> int:
    """Engines 0 and 1, all there are where no engine faces the peers."""
    return max(0, copy.engine) % 2


def run_plan(
    runtime: Runtime,
    plan: TransferPlan,
    engine_of: Callable[[Copy], int] = every_second_peer_engine,
    shift: int = 0,
    drop: int | None = None,
) -> dict[str, Any]:
    """Run ``plan`` on the first GPUs and compare every byte, those around the receive buffers included.

    ``shift`` moves all buffers off their alignment; ``drop`` leaves one copy out, which must then be noticed.
    """
    gpus, cpu = runtime.gpus[: plan.ranks], runtime.cpus[0]
    sends = send_buffers(plan)
    largest = max(*plan.src_nbytes, *plan.dst_nbytes) + 2 * GUARD_NBYTES
    staging = runtime.allocate(cpu, largest)
    runtime.allow(staging, gpus)
    host = np.frombuffer(staging.view(), np.uint8)

    def place(rank: int, nbytes: int) -> Place:
        buffer = runtime.allocate(gpus[rank], nbytes + 2 * GUARD_NBYTES + shift)
        runtime.allow(buffer, gpus)
        return Place(buffer, GUARD_NBYTES + shift, nbytes)

    def across(rank: int, inwards: bool, at: int, nbytes: int) -> None:
        signal = runtime.signal(1)
        ends = [(at, gpus[rank]), (staging.address, cpu)] if inwards else [(staging.address, cpu), (at, gpus[rank])]
        runtime.copy(*ends[0], *ends[1], nbytes, signal, HOST_IN if inwards else HOST_OUT)
        signal.wait(LIMIT_S, "a copy between host and GPU")

    from_, to = [
        [place(rank, nbytes) for rank, nbytes in enumerate(sizes)] for sizes in (plan.src_nbytes, plan.dst_nbytes)
    ]
    for rank in range(plan.ranks):
        if plan.src_nbytes[rank]:
            host[: plan.src_nbytes[rank]] = sends[rank]
            across(rank, True, from_[rank].address, plan.src_nbytes[rank])
        guarded = plan.dst_nbytes[rank] + 2 * GUARD_NBYTES
        host[:guarded] = POISON
        across(rank, True, to[rank].address - GUARD_NBYTES, guarded)

    done = 0
    for step in range(plan.steps):
        indices = [index for index in np.flatnonzero(plan.copies["step"] == step).tolist() if index != drop]
        signal = runtime.signal(len(indices))
        for copy in (plan[index] for index in indices):
            source = (from_ if copy.src_buffer == 0 else to)[copy.src_rank]
            dst_gpu, src_gpu = gpus[copy.dst_rank], gpus[copy.src_rank]
            if plan.mode == "pull":  # the agent given as source is the one whose engine works
                dst_gpu, src_gpu = src_gpu, dst_gpu
            runtime.copy(
                to[copy.dst_rank].address + copy.dst_offset, dst_gpu, source.address + copy.src_offset, src_gpu,
                copy.nbytes, signal, engine_of(copy),
            )  # fmt: skip
        signal.wait(LIMIT_S, f"step {step} of {plan}")
        done += len(indices)

    received, guards_whole = [], True
    for rank in range(plan.ranks):
        guarded = plan.dst_nbytes[rank] + 2 * GUARD_NBYTES
        across(rank, False, to[rank].address - GUARD_NBYTES, guarded)
        got = host[:guarded].copy()
        guards_whole &= bool((got[:GUARD_NBYTES] == POISON).all() and (got[-GUARD_NBYTES:] == POISON).all())
        received.append(got[GUARD_NBYTES:-GUARD_NBYTES])
    outcome = verify(plan, received, sends=sends)
    for held in [staging, *(held.buffer for held in from_ + to)]:
        runtime.free(held)
    return {
        "plan": str(plan), "copies": done, "verified": outcome.verified, "right_nbytes": outcome.verified_nbytes,
        "guards_whole": guards_whole,
    }  # fmt: skip
