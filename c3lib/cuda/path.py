"""Proof of path: a transfer that ends while every SM is held by other blocks cannot have used an SM."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import numpy as np

from c3lib.cuda.activity import blocks as blocks_of
from c3lib.cuda.activity import recorded, summary
from c3lib.cuda.device import Cuda, checked, said_clearly
from c3lib.cuda.source import launch
from c3lib.cuda.streams import Streams, new_event, new_stream
from c3lib.errors import C3Error

HELD_NS = 4_000_000_000  # the hold gives up by itself after this, so that no test can hang a GPU


def ends_while_sms_are_held(cudas: Sequence[Cuda], enqueue: Callable[[Streams], None], wait_s: float) -> bool:
    """Hold every SM of every GPU with blocks that leave no room, enqueue, and look whether it ends within ``wait_s``.

    Raises:
        C3Error: the SMs could not all be held, so nothing would be proved.
    """
    streams, done = [new_stream(cuda) for cuda in cudas], [new_event(cuda) for cuda in cudas]
    holds = [_Hold(cuda) for cuda in cudas]
    with said_clearly("holding every SM"):
        try:
            for hold in holds:
                hold.start()
            for hold in holds:
                hold.require_all()
            enqueue(streams)
            for stream, event in zip(streams, done, strict=True):
                stream.record(event)
            ended = _until(lambda: all(event.is_done for event in done), wait_s)
            if any(hold.ended.is_done for hold in holds):
                raise C3Error("path: the SMs were given back before the transfer was looked at; nothing is proved")
        finally:
            for hold in holds:
                hold.release()
            for cuda in cudas:
                with cuda.current():
                    checked(cuda, cuda.driver.cuCtxSynchronize(), "waiting for the end of the proof")
    return ended


class _Hold:
    """Two blocks on every SM of a GPU: together all of its thread slots and all of its shared memory."""

    def __init__(self, cuda: Cuda):
        torch = cuda.torch
        self.cuda, self.blocks = cuda, 2 * cuda.sms
        self._arrived = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        # In the GPU's own memory: polling takes nothing of a link.
        self._released = torch.zeros(1, dtype=torch.int32, device=f"cuda:{cuda.index}")
        torch.cuda.synchronize(cuda.index)
        self._holder, self._opener, self.ended = new_stream(cuda), new_stream(cuda), new_event(cuda)

    def start(self) -> None:
        shared = (self.cuda.device.properties.max_shared_memory_per_block_optin + 1024) // 2  # 1 KiB is the driver's
        launch(
            self.cuda, self._holder, "hold", self.blocks, 1024, np.uint64(self._released.data_ptr()),
            np.uint64(self._arrived.data_ptr()), np.uint64(HELD_NS), shared=shared - 1024,
        )  # fmt: skip
        self._holder.record(self.ended)

    def require_all(self) -> None:
        if not _until(lambda: int(self._arrived[0]) == self.blocks, 1.0):
            there = int(self._arrived[0])
            raise C3Error(f"path: only {there} of {self.blocks} holding blocks found room; nothing is proved")

    def release(self) -> None:
        with self.cuda.current():
            value = self.cuda.driver.cuStreamWriteValue32(int(self._opener.handle), self._released.data_ptr(), 1, 0)
        checked(self.cuda, value, "giving the SMs back (cuStreamWriteValue32)")


def _until(true: Callable[[], bool], limit_s: float) -> bool:
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        if true():
            return True
    return true()


@dataclass(frozen=True)
class Proof:
    """Which path a transport took and how that was established, and the thread blocks that it ran on each GPU."""

    path: str
    blocks: int


def prove_path(cudas: Sequence[Cuda], transport: Any, alone_s: float) -> Proof:
    """Let a transport run while every SM is held; of a library, also ask the driver's records what ran.

    ``alone_s`` is the transfer's time on idle GPUs. Raises :class:`C3Error` when the transport did not take the path
    that its name says.
    """
    streams = [new_stream(cuda) for cuda in cudas]

    def ready() -> None:
        transport.ready()
        for cuda in cudas:
            cuda.torch.cuda.synchronize(cuda.index)

    for _ in range(2):  # once on free GPUs: loading a kernel for the first time waits for the device
        ready()
        transport.enqueue(streams)
        for stream in streams:
            stream.sync()
    ready()
    used_no_sm = ends_while_sms_are_held(cudas, transport.enqueue, 0.02 + 4 * alone_s)
    sms = f"all {cudas[0].sms} SMs" + (f" of each of {len(cudas)} GPUs" if len(cudas) > 1 else "")
    if transport.name in ("copy_engine", "bare_copy"):
        if not used_no_sm:
            raise C3Error(f"{transport.name}: the transfer did not end while every SM was held, so it ran on SMs")
        return Proof(f"copy engine: ended while {sms} were held", 0)
    if transport.name == "sm_kernel":
        blocks, on = transport.told()
        if used_no_sm or blocks != transport.blocks:
            raise C3Error(f"sm_kernel: {blocks} of {transport.blocks} blocks ran, and held SMs did not stop it")
        return Proof(f"SM kernel: {blocks} blocks reported from {on} SMs; did not end while {sms} were held", blocks)

    def once() -> None:
        transport.enqueue(streams)
        for stream in streams:
            stream.sync()

    ready()
    ran = recorded(once)
    if not ran:
        raise C3Error(f"{transport.name}: the driver's activity records show nothing; nothing is proved")
    ended = "ended" if used_no_sm else "did not end"
    return Proof(f"{summary(ran)} (activity records); {ended} while {sms} were held", blocks_of(ran))
