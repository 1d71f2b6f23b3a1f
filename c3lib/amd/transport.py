"""A transfer plan run by SDMA engines: copies queued behind a gate, step after step, each on its proven engine.

Nothing collective-specific. All copies of a step start when every copy of the step before is done: they depend on its
signals, so no host takes part. An engine works in order and waits at the head of its queue, so everything is submitted
in the order of the steps: what a copy depends on is never behind it on the same engine.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Sequence

from c3lib.amd.buffers import Buffers, Issue
from c3lib.amd.copies import QUEUE_PACKETS, Copy, packets
from c3lib.amd.engines import Engines
from c3lib.amd.signals import Signal, TookTooLong
from c3lib.errors import C3Error

LIMIT_S = 20.0
"""A transfer that has not ended by then is reported as hanging."""

_hanging: list[SdmaCopies] = []
"""Transfers that never ended: what their engines may still touch is kept for as long as the process lives."""


@dataclass(frozen=True)
class _Counted:
    """A signal and the copies that count it down."""

    signal: Signal
    issues: tuple[Issue, ...]


class SdmaCopies:
    """The copies of a plan on the engines that :func:`c3lib.amd.engines.choose_engines` proved. One run is::

        ready()    the gate is shut, signals are set anew: outside of every clock
        submit()   all copies are queued behind the gate
        release()  the gate opens
        wait()     until all are done; then times() says when

    One signal counts the copies of a step, so that the next step waits for one thing only; but the first copy of all on
    each engine, and the last, have a signal of their own, which keeps their times. More copies than an engine's queue
    has room for follow when the gate is open: ``behind_gate`` of the ``copies`` are queued before.

    ``drop`` leaves out one copy (an index into ``buffers.copies()``), for a negative control.

    Raises:
        C3Error: engines that were proven for another mode or number of ranks, or do not fit the plan.
    """

    name = "sdma"

    def __init__(self, buffers: Buffers, engines: Engines, drop: int | None = None) -> None:
        plan, runtime = buffers.plan, buffers.runtime
        if (engines.mode, engines.ranks) != (plan.mode, plan.ranks):
            raise C3Error(
                f"{plan}: it needs engines proven to {plan.mode} for {plan.ranks} ranks, these are to {engines.mode} "
                f"for {engines.ranks}"
            )
        self.buffers, self.engines = buffers, engines
        self.gate = runtime.signal(1)
        """Opens at 0; :meth:`release` sets it."""
        self.released_s = 0.0
        """When :meth:`release` opened the gate, by the runtime's clock."""
        issues = buffers.copies(drop)
        self.copies = len(issues)
        """Copies that one run submits."""
        steps = [list(step) for _, step in groupby(issues, key=lambda issue: issue.step)]
        self._steps: list[list[_Counted]] = []
        self._ready: list[Copy] = []
        self.behind_gate = self.copies
        waiting: Counter[tuple[int, int]] = Counter()
        before: Sequence[Signal] = (self.gate,)
        for number, step in enumerate(steps):
            counted = self._counted(step, number == 0, number == len(steps) - 1)
            signals = {issue: each.signal for each in counted for issue in each.issues}
            for issue in step:
                rank, engine = self._where(issue)
                waiting[rank, engine] += packets(issue.nbytes, len(before))
                if waiting[rank, engine] > QUEUE_PACKETS:
                    self.behind_gate = min(self.behind_gate, len(self._ready))
                self._ready.append(self._copy(issue, engine, signals[issue], before))
            self._steps.append(counted)
            before = [each.signal for each in counted]
        self._submitted = self.copies

    def ready(self) -> None:
        """Shut the gate and set the signals anew; the last run must have ended.

        Raises:
            C3Error: the buffers were given up.
        """
        self.buffers.require_kept()
        self.gate.set(1)
        for each in (each for step in self._steps for each in step):
            each.signal.set(len(each.issues))
        self._submitted = 0

    def submit(self) -> None:
        """Queue the copies behind the gate, as many as there is room for; returns at once.

        Raises:
            C3Error: the library refused a copy. Those before it are done without the gate; the run is over.
        """
        self._submit(self.behind_gate)

    def release(self) -> None:
        """Open the gate, then submit what had no room before. Raises as :meth:`submit`."""
        self.released_s = self.buffers.runtime.now_s()
        self.gate.set(0)
        self._submit(self.copies)

    def wait(self, limit_s: float = LIMIT_S) -> None:
        """Wait until all copies are done.

        Raises:
            C3Error: they were not within ``limit_s``, or an engine reported an error; names the step, and the copies
                that have not come, by rank and engine. The buffers are of no use then, and stay allocated.
        """
        until_s = time.monotonic() + limit_s
        try:
            for step in self._steps:
                for each in step:
                    self._await(each, until_s, limit_s, step)
        except BaseException:  # Ctrl-C too: the engines go on
            self.give_up()
            raise

    def _await(self, each: _Counted, until_s: float, limit_s: float, step: Sequence[_Counted]) -> None:
        which = self._say(each.issues[0]) if len(each.issues) == 1 else f"{len(each.issues)} copies"
        what = f"step {each.issues[0].step} of {self.buffers.plan}, {which},"
        try:
            each.signal.wait(max(0.0, until_s - time.monotonic()), what)
        except TookTooLong as error:
            raise TookTooLong(
                f"amd: {what} did not end within {limit_s:g} s, {each.signal.value} of {len(each.issues)} still to "
                f"come; an engine hangs, or a buffer's access was not granted; {self._missing(step)}"
            ) from error
        except C3Error as error:
            raise C3Error(f"{error}; {self._missing(step)}") from error

    def times(self) -> tuple[float, float]:
        """When the first copy began and the last one ended: seconds since :attr:`released_s`, by the engines' clock.

        NaN where ``drop`` left no copy.
        """
        if not self._steps:
            return float("nan"), float("nan")
        begun = min(each.signal.times()[0] for each in self._steps[0] if len(each.issues) == 1)
        ended = max(each.signal.times()[1] for each in self._steps[-1] if len(each.issues) == 1)
        return begun - self.released_s, ended - self.released_s

    def _counted(self, step: Sequence[Issue], first: bool, last: bool) -> list[_Counted]:
        """The signals of a step; of the first and the last step's those alone that keep the times."""
        queues: dict[tuple[int, int], list[Issue]] = {}
        for issue in step:
            queues.setdefault(self._where(issue), []).append(issue)
        alone = {queue[0] for queue in queues.values() if first} | {queue[-1] for queue in queues.values() if last}
        groups = [[issue] for issue in step if issue in alone]
        if rest := [issue for issue in step if issue not in alone]:
            groups.append(rest)
        return [_Counted(self.buffers.runtime.signal(len(group)), tuple(group)) for group in groups]

    def _where(self, issue: Issue) -> tuple[int, int]:
        """The rank whose engine copies, and the engine."""
        push = self.buffers.plan.mode == "push"
        copier, peer = (issue.src_rank, issue.dst_rank) if push else (issue.dst_rank, issue.src_rank)
        return copier, self.engines.of(copier, peer, issue.lane)

    def _copy(self, issue: Issue, engine: int, signal: Signal, depends: Sequence[Signal]) -> Copy:
        src, dst = self.buffers.gpus[issue.src_rank], self.buffers.gpus[issue.dst_rank]
        agents = (dst, src) if self.buffers.plan.mode == "push" else (src, dst)  # the second one's engine copies
        return self.buffers.runtime.prepare(
            issue.target, agents[0], issue.source, agents[1], issue.nbytes, signal, engine, depends
        )

    def _submit(self, until: int) -> None:
        try:
            for copy in self._ready[self._submitted : until]:
                copy.submit()
                self._submitted += 1
        except BaseException as error:
            self.gate.set(0)
            self.give_up()
            if isinstance(error, C3Error):
                raise C3Error(f"{self.buffers.plan}, copy {self._submitted} of {self.copies}: {error}") from error
            raise

    def give_up(self) -> None:
        """Engines may go on: the buffers are of no use any more, and never given back."""
        self.buffers.abandon()
        _hanging.append(self)

    def _say(self, issue: Issue) -> str:
        rank, engine = self._where(issue)
        return f"rank {issue.src_rank} to {issue.dst_rank} on engine {engine} of rank {rank}"

    def _missing(self, step: Sequence[_Counted]) -> str:
        """Which copies of a step have not come, by what lies in the receive buffers."""
        try:
            missing = self.buffers.untouched([issue for each in step for issue in each.issues])
        except C3Error as error:
            return f"what has come cannot be read: {error}"
        return "not there: " + ("; ".join(map(self._say, missing)) if missing else "nothing, all bytes have come")
