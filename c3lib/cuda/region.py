"""The timed region: a gate keeps all streams shut while work is enqueued, then releases them together.

The gate is a flag in pinned host memory on which, on every GPU, the stream of the kernel launched first waits (a stream
memory operation, so no SM is taken); the other stream waits for an event that the first records just before its kernel.
Times are those of each GPU since its own stream passed the gate. All events belong to this module.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

from c3lib.cuda.device import Cuda, checked, said_clearly
from c3lib.cuda.streams import Streams, new_event
from c3lib.errors import C3Error
from c3lib.region import Times

GATE = "stream memory operation on a host flag"
LIMIT_S = 20.0
"""A region that has not ended by then is reported as hanging."""

ENQUEUE_LIMIT_S = 5.0

Enqueue = Callable[[Streams], None]
Work = tuple[Streams, Enqueue]
"""A stream for each GPU, and what enqueues the work on them."""


class Gate:
    """A flag that streams wait for. Reused: every opening waits for the next number."""

    def __init__(self, cudas: Sequence[Cuda]):
        self.cudas = cudas
        self._flag = cudas[0].torch.zeros(1, dtype=cudas[0].torch.int32, pin_memory=True)
        self._turn = 0

    def shut(self, streams: Streams) -> None:
        """Make a stream of each GPU wait for the next opening."""
        self._turn += 1
        for cuda, stream in zip(self.cudas, streams, strict=True):
            equal = int(cuda.driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ)
            with cuda.current():
                found = cuda.driver.cuStreamWaitValue32(int(stream.handle), self._flag.data_ptr(), self._turn, equal)
            checked(cuda, found, "shutting the gate (cuStreamWaitValue32)")

    def open(self) -> None:
        """Release whoever waits."""
        self._flag[0] = self._turn

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Opens the gate at the end, whatever happens, and after :data:`ENQUEUE_LIMIT_S` if the work never gets there.

        Something that waits for the whole device while a stream waits for the gate (loading a kernel for the first
        time does) would otherwise wait for ever. Raises :class:`C3Error` when that happened.
        """
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.open()

        timer = threading.Timer(ENQUEUE_LIMIT_S, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self.open()
        if late.is_set():
            raise C3Error(
                f"cuda: enqueueing took over {ENQUEUE_LIMIT_S:g} s behind a shut gate: something there waits for the "
                "device; run it once without a gate first"
            )


def timed(gate: Gate, gemm: Work | None, transfer: Work | None, gemm_first: bool = True) -> Times:
    """Run one region; each kernel is given as its streams, one a GPU, and what enqueues it there.

    Raises:
        C3Error: the device failed, or the region did not end within :data:`LIMIT_S`.
    """
    order = [("gemm", gemm), ("transfer", transfer)] if gemm_first else [("transfer", transfer), ("gemm", gemm)]
    parts = [(name, *part) for name, part in order if part is not None]
    opened = [new_event(cuda, timed=True) for cuda in gate.cudas]
    marks = {name: [[new_event(cuda, timed=True) for cuda in gate.cudas] for _ in range(2)] for name, *_ in parts}
    with said_clearly(f"running {' beside '.join(name for name, *_ in parts)}"):
        with gate.guarded():
            for place, (name, streams, enqueue) in enumerate(parts):
                if place == 0:
                    gate.shut(streams)
                for stream, event, mark in zip(streams, opened, marks[name][0], strict=True):
                    stream.record(event) if place == 0 else stream.wait(event)
                    stream.record(mark)
                enqueue(streams)
                for stream, mark in zip(streams, marks[name][1], strict=True):
                    stream.record(mark)
        for name, (_, ends) in marks.items():
            for end in ends:
                wait_for(end, name)
    found = {}
    for name, (starts, ends) in marks.items():
        since = [[(mark - zero) / 1e3 for mark, zero in zip(each, opened, strict=True)] for each in (starts, ends)]
        found[name] = min(since[0]), max(since[1])
    nothing = (float("nan"), float("nan"))
    return Times(*found.get("gemm", nothing), *found.get("transfer", nothing))


def wait_for(event: Any, name: str) -> None:
    """Wait for an event. Raises :class:`C3Error`, which names what has not ended, after :data:`LIMIT_S`."""
    limit = time.monotonic() + LIMIT_S
    while not event.is_done:
        if time.monotonic() > limit:
            raise C3Error(f"cuda: the {name} has not ended after {LIMIT_S:g} s; the device hangs or is lost")
