"""Proof of path: a transfer that ends while every SM is held by other blocks cannot have used an SM."""

from __future__ import annotations

import time
from typing import Any, Callable

import numpy as np

from c3lib.cuda.device import Cuda, checked, said_clearly
from c3lib.cuda.source import launch
from c3lib.cuda.transport import new_event, new_stream
from c3lib.errors import C3Error

HELD_NS = 4_000_000_000  # the hold gives up by itself after this, so that no test can hang a GPU
RULE = "every SM held"


def ends_while_sms_are_held(cuda: Cuda, enqueue: Callable[[Any], None], wait_s: float) -> bool:
    """Hold every SM with a block that leaves no room, enqueue, and look whether it ends within ``wait_s``.

    Raises:
        C3Error: the SMs could not all be held, so nothing would be proved.
    """
    torch = cuda.torch
    arrived = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    released = torch.zeros(1, dtype=torch.int32, device="cuda")  # in its own memory: polling takes nothing of the link
    torch.cuda.synchronize()
    holder, stream = new_stream(cuda), new_stream(cuda)
    done, held = new_event(cuda), new_event(cuda)
    opener, blocks = new_stream(cuda), 2 * cuda.sms
    with said_clearly("holding every SM"):
        try:
            # Two blocks an SM: together all of its thread slots and all of its shared memory (1 KiB a block is the
            # driver's own).
            shared = (cuda.device.properties.max_shared_memory_per_block_optin + 1024) // 2 - 1024
            launch(
                cuda, holder, "hold", blocks, 1024,
                np.uint64(released.data_ptr()), np.uint64(arrived.data_ptr()), np.uint64(HELD_NS), shared=shared,
            )  # fmt: skip
            holder.record(held)
            if not _until(lambda: int(arrived[0]) == blocks, 1.0):
                raise C3Error(f"path: only {int(arrived[0])} of {blocks} holding blocks found room; nothing is proved")
            enqueue(stream)
            stream.record(done)
            ended = _until(lambda: done.is_done, wait_s)
            if held.is_done:
                raise C3Error("path: the SMs were given back before the transfer was looked at; nothing is proved")
        finally:
            value = cuda.driver.cuStreamWriteValue32(int(opener.handle), released.data_ptr(), 1, 0)
            checked(cuda, value, "giving the SMs back (cuStreamWriteValue32)")
            checked(cuda, cuda.driver.cuCtxSynchronize(), "waiting for the end of the proof")
    return ended


def _until(true: Callable[[], bool], limit_s: float) -> bool:
    limit = time.monotonic() + limit_s
    while time.monotonic() < limit:
        if true():
            return True
    return true()


def prove_path(cuda: Cuda, transport: Any, alone_s: float) -> str:
    """Which path a transport takes, and how that was established, for the ``path`` of a row.

    ``alone_s`` is the transfer's time on an idle GPU. Raises :class:`C3Error` when the transport did not take the path
    that its name says.
    """
    stream = new_stream(cuda)
    for _ in range(2):  # once on a free GPU: loading a kernel for the first time waits for the device
        transport.ready()
        cuda.torch.cuda.synchronize()
        transport.enqueue(stream)
        stream.sync()
    transport.ready()
    cuda.torch.cuda.synchronize()
    used_no_sm = ends_while_sms_are_held(cuda, transport.enqueue, 0.02 + 4 * alone_s)
    if transport.name == "copy_engine":
        if not used_no_sm:
            raise C3Error("copy_engine: the transfer did not end while every SM was held, so it ran on SMs")
        return f"copy engine: ended while all {cuda.sms} SMs were held"
    blocks, sms = transport.told()
    if used_no_sm or blocks != transport.blocks:
        raise C3Error(f"sm_kernel: {blocks} of {transport.blocks} blocks ran, and held SMs did not stop it")
    return f"SM kernel: {blocks} blocks reported from {sms} SMs; did not end while all {cuda.sms} SMs were held"
