"""What a timed region is made of: work that is queued behind a gate, released, waited for, and says when it ran.

:class:`c3lib.amd.transport.SdmaCopies` is of this shape; here are kernels on HIP streams, and what stands in for them
where there is no GPU.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Protocol, Sequence

from c3lib.amd.hip import LIMIT_S, Hip, Stream, wait_for_events
from c3lib.amd.runtime import Runtime
from c3lib.errors import C3Error

ENQUEUE_LIMIT_S = 5.0
"""So long kernels may take to be queued; then the gate opens, in case they are waiting for it."""


_hanging: list[HipWork] = []
"""Work that was given up: its streams and operands are kept for as long as the process lives."""


class Work(Protocol):
    """One of the two kernels of a region. ``released_s`` is on the runtime's clock, ``times()`` since then."""

    released_s: float

    def ready(self) -> None:
        """What has to be done before each run, outside of every clock."""

    def submit(self) -> None:
        """Queue the work behind its gate; returns before it runs."""

    def release(self) -> None:
        """Open the gate."""

    def wait(self, limit_s: float = LIMIT_S) -> None:
        """Wait until the work is done; raises :class:`C3Error` when it is not within ``limit_s``."""

    def give_up(self) -> None:
        """It may go on, unwatched: what it touches is never given back."""

    def times(self) -> tuple[float, float]:
        """When it began and ended: seconds since ``released_s``, the first of all GPUs and the last."""


class HipWork:
    """Kernels that ``enqueue`` puts on a stream of each rank.

    The gate is a flag that each stream's queue waits for. Behind it the stream records an event, taken to be at the
    moment when the host opened the gate: times are too early by as long as a queue takes to see host memory,
    some microseconds. With ``after``, streams wait for the events of that work instead: its kernels are launched first.
    ``abandon`` is called when the work is given up: memory that the kernels touch and nobody here owns is kept then.
    """

    def __init__(
        self,
        runtime: Runtime,
        hip: Hip,
        streams: Sequence[Stream],
        enqueue: Callable[[Sequence[Stream]], None],
        what: str,
        after: HipWork | None = None,
        abandon: Callable[[], None] | None = None,
    ) -> None:
        self._abandon = abandon
        self.released_s, self.released = 0.0, False
        self.streams, self.what = list(streams), what
        self._runtime, self._hip, self._enqueue, self._after = runtime, hip, enqueue, after
        self._flags = [] if after else [hip.flag(rank) for rank in range(len(streams))]
        event = hip.torch.cuda.Event
        self._marks = [[event(enable_timing=True) for _ in streams] for _ in range(2)]
        self.opened: list[Any] = after.opened if after else [event(enable_timing=True) for _ in streams]

    def warm(self) -> None:
        """Run the kernels without a gate: what is loaded or allocated for the first time may wait for the GPU."""
        try:
            self._enqueue(self.streams)
            self._hip.synchronize()
        except BaseException:
            self.give_up()
            raise

    def ready(self) -> None:
        """Wait until the GPUs have nothing to do."""
        self._hip.synchronize()

    def submit(self) -> None:
        """Shut the gate and queue the kernels. Raises :class:`C3Error` when that waits for the gate itself."""
        self.released = False
        late = threading.Timer(ENQUEUE_LIMIT_S, self._open_late)
        late.daemon = True
        late.start()
        try:
            self._shut()
            self._enqueue(self.streams)
        except BaseException:
            self.release()
            raise
        finally:
            late.cancel()
        if self.released:
            raise C3Error(
                f"amd: queueing {self.what} took over {ENQUEUE_LIMIT_S:g} s behind a shut gate: something there "
                "waits for the GPU; run it once without a gate first"
            )
        for rank, stream in enumerate(self.streams):
            self._marks[1][rank].record(stream.torch)

    def _shut(self) -> None:
        for rank, stream in enumerate(self.streams):
            if self._after is None:
                self._hip.wait_for(stream, self._flags[rank])
                self.opened[rank].record(stream.torch)
            else:
                stream.torch.wait_event(self.opened[rank])
            self._marks[0][rank].record(stream.torch)

    def _open_late(self) -> None:
        """Queueing takes too long: open the gate, which is that of the work before where there is one."""
        if self._after is not None:
            self._after.release()
        self.release()

    def release(self) -> None:
        """Open the gate of every stream; of work that follows another's, nothing is left to open."""
        self.released = True
        self.released_s = self._after.released_s if self._after else self._runtime.now_s()
        for flag in self._flags:
            flag.open()

    def wait(self, limit_s: float = LIMIT_S) -> None:
        """Wait for the last event of every stream."""
        wait_for_events(self._marks[1], limit_s, self.what)

    def give_up(self) -> None:
        """Keep what the kernels may still touch."""
        _hanging.append(self)
        if self._abandon is not None:
            self._abandon()

    def times(self) -> tuple[float, float]:
        """By HIP events."""
        starts, ends = (
            [zero.elapsed_time(mark) / 1e3 for zero, mark in zip(self.opened, marks, strict=True)]
            for marks in self._marks
        )
        return min(starts), max(ends)


class CpuWork:
    """A stand-in where there is no GPU: ``run`` on a thread of the host. What it shows is not a measurement."""

    def __init__(self, runtime: Runtime, run: Callable[[], None], what: str) -> None:
        self.released_s = 0.0
        self.what = what
        self._runtime, self._run = runtime, run
        self._open, self._done = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._interval = (float("nan"), float("nan"))

    def ready(self) -> None:
        """Shut the gate."""
        self._open.clear()
        self._done.clear()
        self._error = None

    def submit(self) -> None:
        """Start the thread, which waits for the gate."""
        threading.Thread(target=self._work, name="c3-stand-in", daemon=True).start()

    def _work(self) -> None:
        try:
            self._open.wait()
            start_s = self._runtime.now_s()
            self._run()
            self._interval = (start_s, self._runtime.now_s())
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def release(self) -> None:
        """Open the gate."""
        self.released_s = self._runtime.now_s()
        self._open.set()

    def wait(self, limit_s: float = LIMIT_S) -> None:
        """Wait for the thread; its error is raised here."""
        if not self._done.wait(limit_s):
            raise C3Error(f"amd: {self.what} has not ended after {limit_s:g} s")
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """Nothing to do: the thread keeps what it uses."""

    def times(self) -> tuple[float, float]:
        """By the runtime's clock."""
        return self._interval[0] - self.released_s, self._interval[1] - self.released_s
