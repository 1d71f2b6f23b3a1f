"""Handles of collectives under way, as ``torch.distributed`` gives them: ``wait()`` and ``is_completed()``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from c3lib.collectives.board import poll
from c3lib.errors import C3Error


class HostWork(dist.Work):
    """A collective of CPU tensors: run by the caller, or by a thread of its own, after the one before it."""

    def __init__(self, body: Callable[[], None], before: HostWork | None):
        super().__init__()
        self._body: Callable[[], None] | None = body  # holds the tensors until it is over
        self._before = before
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run_here(self) -> None:
        """Run to the end. Raises what the collective raises; Ctrl-C ends it."""
        if self._before is not None:
            self._before.settle()
        self._run()
        if self._error is not None:
            raise self._error

    def run_beside(self) -> None:
        """Run in a thread, which never keeps the program from ending."""
        threading.Thread(target=self._follow, name="c3lib collective", daemon=True).start()

    def _follow(self) -> None:
        if self._before is not None:
            self._before._over.wait()
        self._run()

    def _run(self) -> None:
        body, self._body = self._body, None
        assert body is not None
        try:
            body()
        except BaseException as error:
            self._error = error
        finally:
            del body  # before anyone hears of the end: ranks that reuse memory have to find it free alike
            self._before = None
            self._over.set()

    def is_completed(self) -> bool:
        """Whether it is over, in success or not; never waits."""
        return self._over.is_set()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end: the output is whole then, the input free. ``timeout`` 0 means that of the collective.

        Raises:
            C3Error: a peer does not come, calls another collective, or ``timeout`` has passed.
        """
        if (limit_s := timeout.total_seconds()) > 0:
            poll(self._over.is_set, limit_s, lambda: f"timeout: the collective is not over after {limit_s:g} s")
        self.settle()
        if self._error is not None:
            raise self._error
        return True

    def settle(self) -> None:
        """Wait for the end, good or bad; Ctrl-C is heard."""
        _until(self._over)


class CudaWork(dist.Work):
    """A collective of tensors on a GPU, enqueued: its end is that of ``events`` on this machine."""

    def __init__(self, device: torch.device, events: list[Any]):
        super().__init__()
        self._device, self._events = device, events

    def is_completed(self) -> bool:
        """Whether the GPU is done with it; never waits."""
        return all(event.query() for event in self._events)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the current stream wait for the end; the host goes on at once, so there is nothing to time out.

        Raises:
            C3Error: a ``timeout`` is given.
        """
        if timeout > timedelta(0):
            raise C3Error("timeout: a stream waits without end; wait on the host with c3lib.collectives.check(timeout)")
        stream = torch.cuda.current_stream(self._device)
        for event in self._events:
            stream.wait_event(event)
        return True


def _until(event: threading.Event) -> None:
    while not event.wait(0.1):  # in short pieces, so that Ctrl-C is heard
        pass
