"""The timed region: GEMM and transfer queued behind their gates, released together, both intervals on one clock.

Copies by SDMA engines are timed by the engines, on the clock of AMD's runtime; kernels by HIP events, which are put on
that clock at the moment when the host opens the gate (see :class:`c3lib.amd.work.HipWork`).
"""

from __future__ import annotations

from typing import Sequence

from c3lib.amd.driver import QUEUES_WAIT
from c3lib.amd.work import LIMIT_S, Work
from c3lib.errors import C3Error
from c3lib.region import Times

GATE = (
    "a signal that SDMA engines wait for, and a flag that HIP streams wait for, by packets in their queues, as "
    f"{QUEUES_WAIT}=1 asks of HIP; the host opens both"
)

NOTHING = (float("nan"), float("nan"))


def timed(gemm: Work | None, transfer: Work | None, gemm_first: bool = True, limit_s: float = LIMIT_S) -> Times:
    """Run one region; times are seconds since the first of the two was released.

    Raises:
        C3Error: nothing to run, a refusal of the library, or work that did not end within ``limit_s``.
    """
    parts = {"gemm": gemm, "transfer": transfer}
    order = ("gemm", "transfer") if gemm_first else ("transfer", "gemm")
    works = [work for name in order if (work := parts[name]) is not None]
    if not works:
        raise C3Error("amd: a region needs a GEMM, a transfer or both")
    for work in works:
        work.ready()
    running: list[Work] = []
    try:
        _submit(works, running)
        for work in works:
            work.wait(limit_s)
            running.remove(work)
    except BaseException:  # Ctrl-C too: GPUs go on, whichever of the two failed
        for work in running:
            work.give_up()
        raise
    found = {}
    for name, part in parts.items():
        late_s = part.released_s - works[0].released_s if part is not None else 0.0
        start_s, end_s = part.times() if part is not None else NOTHING
        found[name] = (start_s + late_s, end_s + late_s)
    return Times(*found["gemm"], *found["transfer"])


def _submit(works: Sequence[Work], running: list[Work]) -> None:
    """Submit all, then open every gate. ``running`` gets each that may have begun, the one that fails too."""
    submitted: list[Work] = []
    try:
        for work in works:
            running.append(work)
            work.submit()
            submitted.append(work)
    finally:
        _release(submitted)


def _release(works: Sequence[Work]) -> None:
    """Open every gate, in order, whatever happens: nothing may stay behind one."""
    if works:
        try:
            works[0].release()
        finally:
            _release(works[1:])
