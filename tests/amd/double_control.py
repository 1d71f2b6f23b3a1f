"""What the double has beyond AMD's library: faults on request, engines held, a journal of what was copied."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple


class Fault(IntEnum):
    """Kinds of fault; ``double/control.c`` has the same numbers."""

    NONE = 0
    SUBMIT_ERROR = 1  # the submit call fails
    ENGINE_ERROR = 2  # the signal turns negative
    HANG = 3  # the engine stops at the copy
    CORRUPT = 4  # one bit of the destination is wrong
    DROP = 5  # the signal counts down, nothing is copied
    NO_MEMORY = 6  # an allocation fails
    BUSY = 7  # the engine is never idle


class Outcome(IntEnum):
    """How a copy of the journal ended."""

    COPIED = 0
    FAILED = 1
    HUNG = 2
    CORRUPTED = 3
    DROPPED = 4
    NO_ACCESS = 5


class Done(NamedTuple):
    """An entry of the journal: ``engine`` -1 is a kernel on compute units, times are ticks."""

    gpu: int
    engine: int
    outcome: Outcome
    dst: int
    src: int
    nbytes: int
    start: int
    end: int


class _Entry(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("gpu", "engine", "outcome", "epoch")),
        *((name, ctypes.c_uint64) for name in ("dst", "src", "nbytes", "start", "end")),
    )


class Control:
    """The controls of a double that this process has loaded."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.c3double_fault.argtypes = [ctypes.c_int] * 4
        self._library.c3double_hold.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_bool]
        self._library.c3double_journal.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self._library.c3double_journal.restype = ctypes.c_uint64

    def fault(self, kind: Fault, gpu: int = -1, engine: int = -1, nth: int = 0) -> None:
        """Let a fault befall the ``nth`` event (from 0) that fits; -1 fits any. It replaces the one before."""
        self._library.c3double_fault(kind, gpu, engine, nth)

    @contextmanager
    def held(self, gpu: int, engine: int) -> Iterator[None]:
        """An engine that does nothing meanwhile."""
        self._library.c3double_hold(gpu, engine, True)
        try:
            yield
        finally:
            self._library.c3double_hold(gpu, engine, False)

    def reset(self) -> None:
        """No fault, no engine held; copies that wait or hang are forgotten, and the journal is empty."""
        self._library.c3double_reset()

    def journal(self) -> list[Done]:
        """All copies since the last reset, in the order in which they ended (or hung)."""
        count = self._library.c3double_journal(None, 0)
        entries = (_Entry * count)()
        count = min(count, self._library.c3double_journal(entries, count))
        return [
            Done(e.gpu, e.engine, Outcome(e.outcome), e.dst, e.src, e.nbytes, e.start, e.end) for e in entries[:count]
        ]
