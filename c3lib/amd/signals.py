"""Signals: how a copy says that it is done, and how one waits for it without ever hanging."""

from __future__ import annotations

import time
from ctypes import byref
from typing import TYPE_CHECKING, Any

from c3lib.amd import table as t
from c3lib.errors import C3Error

if TYPE_CHECKING:
    from c3lib.amd.copies import Copy
    from c3lib.amd.runtime import Runtime

_SLICE_S = 0.05
"""One wait of the library never takes longer, so that Ctrl-C works: in there, Python cannot act on it."""

_SPIN_S = 0.0005
"""For so long a wait keeps its core busy, which answers sooner; then it lets go of it."""


_abandoned: list[Any] = []
"""What copies that never ended may still touch: kept for as long as the process lives."""


class TookTooLong(C3Error):
    """A wait ended before what it waited for did. What was submitted may still run: its memory is not free."""


class Signal:
    """A number that copies count down by one each, and on which other copies can depend.

    A new signal that counts N copies starts at N (:meth:`Runtime.signal`); a copy that failed leaves it negative. The
    value that copies *depend* on is 0: a gate is a signal of 1 that nobody counts down, opened by :meth:`set`.

    A signal is destroyed when it is collected, but never while copies may still count it down.
    """

    def __init__(self, runtime: Runtime, value: int) -> None:
        self._runtime, self._hsa = runtime, runtime.library
        self.initial = value
        self.submitted: list[Copy] = []  # copies that it counts: kept, with all they need, until they are done
        self.handle = t.hsa_signal_t()
        status = self._hsa.hsa_signal_create(value, 0, None, byref(self.handle))
        self._hsa.check(status, f"making a signal of {value}")

    @property
    def value(self) -> int:
        """What it is now."""
        self._runtime.require_here()
        return self._hsa.hsa_signal_load_scacquire(self.handle)

    def set(self, value: int) -> None:
        """Give it a value; copies that depend on it go when that is 0. It then counts ``value`` copies."""
        if self.value == 0:
            self._settle()
        self.initial = value
        self._hsa.hsa_signal_store_screlease(self.handle, value)

    def wait(self, limit_s: float, what: str) -> None:
        """Wait until it is 0, that is, until all copies that it counts are done; a limit below 0 is as 0.

        Raises:
            TookTooLong: it was not after ``limit_s`` seconds.
            C3Error: a copy failed. Both name ``what`` was waited for (a noun: ``"the all-gather's copies"``).
        """
        self._runtime.require_here()
        frequency, start_s = self._runtime.ticks_per_s, time.monotonic()
        state, slice_s = t.HSA_WAIT_STATE_ACTIVE, max(0.0, min(_SPIN_S, limit_s))
        while True:
            value = self._hsa.hsa_signal_wait_scacquire(
                self.handle, t.HSA_SIGNAL_CONDITION_LT, 1, int(slice_s * frequency), state
            )
            if value == 0:
                return self._settle()
            if value < 0:
                raise C3Error(f"amd: {what} failed: an engine reported an error, its signal reads {value}")
            left_s = start_s + limit_s - time.monotonic()
            if left_s <= 0:
                raise TookTooLong(
                    f"amd: {what} did not end within {limit_s:g} s: {value} of {self.initial} still to come; an engine "
                    "hangs, a buffer's access was not granted, or what it depends on never came"
                )
            state, slice_s = t.HSA_WAIT_STATE_BLOCKED, min(_SLICE_S, left_s)

    def _settle(self) -> None:
        """What was submitted is done: it takes no room in any queue."""
        done, self.submitted = self.submitted, []
        for copy in done:
            copy.settle()

    def times(self) -> tuple[float, float]:
        """When the copy that it counted began and ended, by the engine's clock: seconds since the runtime was opened.

        Raises:
            C3Error: the copy is not done, or it counted several (there is room for the times of one only).
        """
        if self.initial != 1:
            raise C3Error(f"amd: a signal that counted {self.initial} copies holds no times; give each copy its own")
        if (value := self.value) != 0:
            raise C3Error(f"amd: the copy has no times yet, its signal reads {value}")
        found = t.hsa_amd_profiling_async_copy_time_t()
        status = self._hsa.hsa_amd_profiling_get_async_copy_time(self.handle, byref(found))
        self._hsa.check(status, "reading when a copy began and ended")
        return self._runtime.seconds(found.start), self._runtime.seconds(found.end)

    def destroy(self) -> None:
        """Give it back. One that copies may still count down is left to the process instead."""
        handle, self.handle = self.handle, t.hsa_signal_t()
        if not handle.handle or self._runtime.forked:
            return
        if self._hsa.hsa_signal_load_scacquire(handle) > 0:
            _abandoned.append((handle, self.submitted))
        else:
            self._hsa.hsa_signal_destroy(handle)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.destroy()
