"""Streams and events of the GPUs, and the barrier between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from c3lib.cuda.device import Cuda, checked

Streams = Sequence[Any]
"""A stream of cuda.core for each GPU of the node."""


def new_stream(cuda: Cuda, *, high: bool = False, context: Any = None) -> Any:
    """A stream of cuda.core, of the lowest or the highest priority, on the whole GPU or in a green context."""
    least, most = stream_priorities(cuda)
    options = cuda.core.StreamOptions(nonblocking=True, priority=most if high else least)
    with cuda.current():
        return (context or cuda.device).create_stream(options=options)


def stream_priorities(cuda: Cuda) -> tuple[int, int]:
    """Numbers of the lowest and the highest priority of a stream."""
    with cuda.current():
        return tuple(checked(cuda, cuda.driver.cuCtxGetStreamPriorityRange(), "reading the stream priorities"))


def new_event(cuda: Cuda, *, timed: bool = False) -> Any:
    """An event of cuda.core."""
    with cuda.current():
        return cuda.device.create_event(options=cuda.core.EventOptions(timing_enabled=timed))


class Barrier:
    """All GPUs' streams wait for one another, by events and so without an SM; with one GPU there is nothing to do.

    Before the copies it stands for "my buffers are ready", after them for "all that you get from me has arrived".
    """

    def __init__(self, cudas: Sequence[Cuda]):
        self._here = [new_event(cuda) for cuda in cudas] if len(cudas) > 1 else []

    def enqueue(self, streams: Streams) -> None:
        """Whatever is put on the streams from here on waits for all that is on any of them."""
        for stream, event in zip(streams, self._here, strict=False):
            stream.record(event)
        for place, stream in enumerate(streams):
            for other, event in enumerate(self._here):
                if other != place:
                    stream.wait(event)
