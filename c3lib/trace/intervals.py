"""Exact arithmetic of intervals in whole numbers, vectorised: where at least so many run, how long, how much of it.

Whatever is done for each of many things is done by groups of sorted rows: a hostile trace has as many as rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


class Spans(NamedTuple):
    """Disjoint intervals ``[start, end)`` in order, none of them empty; arrays ``(spans,)``."""

    start: Times
    end: Times

    @property
    def length(self) -> int:
        """Of all of them together."""
        return int((self.end - self.start).sum())


def covered(start: Times, end: Times, least: int = 1) -> Spans:
    """Where at least ``least`` of the intervals ``[start, end)`` run at once; empty intervals run nowhere."""
    time = np.concatenate([start, end])
    change = np.concatenate([np.ones(start.size, np.int64), -np.ones(end.size, np.int64)])
    order = np.argsort(time, kind="stable")
    time, running = time[order], np.cumsum(change[order])
    # Of events at one time only the last tells what runs after it.
    last = np.append(time[1:] > time[:-1], True) if time.size else np.zeros(0, bool)
    time, inside = time[last], running[last] >= least
    before = np.append(False, inside[:-1]) if inside.size else inside
    return Spans(time[inside & ~before], time[~inside & before])


def together(one: Spans, other: Spans) -> Spans:
    """The union of two."""
    return covered(np.concatenate([one.start, other.start]), np.concatenate([one.end, other.end]))


def within(spans: Spans, start: Times, end: Times) -> Times:
    """How much of each interval ``[start, end)`` lies in the spans, ``(intervals,)``."""
    sums = np.append(0, np.cumsum(spans.end - spans.start))

    def before(time: Times) -> Times:
        begun = np.searchsorted(spans.start, time, side="right")
        if not spans.start.size:
            return np.zeros_like(time)
        beyond = np.maximum(0, spans.end[np.maximum(begun - 1, 0)] - time)  # of the span that the time falls into
        return sums[begun] - np.where(begun > 0, beyond, 0)

    return before(end) - before(start)


def groups(key: Times) -> dict[int, Times]:
    """The places of each value of ``key``, in order."""
    order = np.argsort(key, kind="stable")
    known, first = np.unique(key[order], return_index=True)
    ends = np.append(first[1:], key.size)[: first.size]  # of no values there are no groups
    return {one: order[begin:end] for one, begin, end in zip(known.tolist(), first, ends, strict=True)}
