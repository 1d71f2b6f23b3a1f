"""The event loop: tasks of a graph progress at rates that change only when one starts or ends.

Vectorised over a leading batch of independent runs of the same graph; time is exact (no time step).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from c3lib.errors import C3Error

Law = Callable[[NDArray], NDArray]
"""Maps the running tasks, bool ``(batch, tasks)``, to their rates, work per second, same shape."""


@dataclass(frozen=True)
class Interval:
    """A span in which no task started or ended: times ``(batch,)``, running tasks and rates ``(batch, tasks)``."""

    start_s: NDArray
    end_s: NDArray
    running: NDArray
    rate: NDArray


@dataclass(frozen=True)
class Run:
    """When each task started and ended, ``(batch, tasks)`` in seconds, and the intervals if they were asked for."""

    start_s: NDArray
    end_s: NDArray
    intervals: list[Interval] = field(default_factory=list)


def run(work: NDArray, delay_s: NDArray, after: Sequence[Sequence[int]], law: Law, *, record: bool = False) -> Run:
    """Run a task graph.

    Args:
        work: amount of work of each task, ``(batch, tasks)``; a task without work ends as soon as it starts.
        delay_s: latency between the end of the last predecessor and the start of the task, ``(batch, tasks)``.
        after: for each task the tasks it waits for.
        law: rates of the running tasks; a running task must get a rate above 0.
        record: keep every interval.

    Raises:
        C3Error: the graph has a cycle, or the law starves a running task for ever.
    """
    work, delay_s = np.broadcast_arrays(np.asarray(work, float), np.asarray(delay_s, float))
    batch, tasks = work.shape
    left = work.copy()
    waits = np.zeros((tasks, tasks), bool)
    for task, predecessors in enumerate(after):
        waits[task, list(predecessors)] = True
    now = np.zeros(batch)
    start = np.full((batch, tasks), np.inf)
    end = np.full((batch, tasks), np.inf)
    start[:, ~waits.any(1)] = delay_s[:, ~waits.any(1)]
    intervals: list[Interval] = []

    for _ in range(3 * tasks + 1):
        # Everything that is due now: ends of tasks without work left, then the starts that these ends allow.
        for _ in range(tasks):
            done = (start <= now[:, None]) & (left <= 0) & np.isinf(end)
            if not done.any():
                break
            end = np.where(done, now[:, None], end)
            ready = np.isinf(start) & ~(np.isinf(end)[:, None, :] & waits).any(-1)
            start = np.where(ready, now[:, None] + delay_s, start)
        if np.isfinite(end).all():
            return Run(start, end, intervals)
        running = (start <= now[:, None]) & (left > 0)
        rate = np.where(running, law(running), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            finish = np.where(running, left / rate, np.inf)
        begin = np.where(start > now[:, None], start - now[:, None], np.inf)
        step = np.minimum(finish, begin).min(axis=-1)
        finished = np.isfinite(end).all(-1)
        if not np.isfinite(step[~finished]).all():
            raise C3Error("task graph cannot finish: a cycle, or a running task with rate 0")
        step = np.where(finished, 0.0, step)
        # The task that sets the step ends exactly, whatever rounding says.
        left = np.where(running & (finish <= step[:, None]), 0.0, np.maximum(left - rate * step[:, None], 0.0))
        starts_now = begin <= step[:, None]
        later = now + step
        start = np.where(starts_now, later[:, None], start)
        if record:
            intervals.append(Interval(now, later, running, rate))
        now = later
    raise C3Error("task graph cannot finish: more events than its tasks allow")
