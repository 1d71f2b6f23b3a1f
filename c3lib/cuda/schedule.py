"""Schedules of finer-grain overlap on one GPU: a program's kernels and exchanges on a stream each, behind one gate.

Topology ``host``: the peers' rows come from pinned host memory over the host link. Kernels wait for the operation that
brings what they read, by an event; copies wait for nothing but one another. The harness owns every event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from c3lib.cuda.device import Cuda, said_clearly
from c3lib.cuda.exchange import Exchange
from c3lib.cuda.health import read_health
from c3lib.cuda.lane import KernelLane
from c3lib.cuda.matrices import Matrices
from c3lib.cuda.partition import streams
from c3lib.cuda.path import Proof, prove_path
from c3lib.cuda.region import Gate, wait_for
from c3lib.cuda.source import launch
from c3lib.cuda.streams import new_event
from c3lib.errors import C3Error
from c3lib.region import NO_TRANSFER, Check, Region, Times

LINK_GBS = 45.0
"""How fast a host link is at least when a proof says how long it looks at held SMs."""

LATE_S = 0.01


@dataclass(frozen=True)
class How:
    """How a schedule is run: ``blocks`` thread blocks of the SM kernel (0: copy engines), ``withheld`` SMs that the
    GEMMs are told to leave free."""

    blocks: int = 0
    withheld: int = 0

    @property
    def transport(self) -> str:
        """Who moves the bytes."""
        return "sm_kernel" if self.blocks else "copy_engine"


@dataclass(frozen=True)
class Run:
    """A region of a schedule, and when each exchange step ended, in seconds after the gate opened."""

    region: Region
    step_ends_s: tuple[float, ...]


class Schedule:
    """One schedule of a problem whose matrices are set up.

    Raises:
        C3Error: an unknown schedule, or a program that this executor does not run.
    """

    def __init__(self, cuda: Cuda, gate: Gate, matrices: Matrices, schedule: str, how: How = How()):
        self.cuda, self.gate, self.matrices, self.how = cuda, gate, matrices, how
        self.program = matrices.programs[schedule]
        with said_clearly(f"setting up {self.program}"):
            self.exchange = Exchange(cuda, self.program, matrices, how.blocks)
            self.lane = KernelLane(cuda, self.program, matrices, self.exchange.brings)
        self._kernel_stream, self._copy_stream = streams(cuda, 0, True)  # copies have the highest priority
        self._events: dict[Any, Any] = {}
        self._warm: set[tuple] = set()
        self._proof: Proof | None = None

    def _event(self, what: Any) -> Any:
        if what not in self._events:
            self._events[what] = new_event(self.cuda, timed=True)
        return self._events[what]

    def proof(self) -> Proof:
        """Which path the exchanges take, and how that was established: by all of them, once."""
        if self._proof is None:
            self.matrices.prepare(self.program, 0)
            self.exchange.ready(0)
            self._proof = prove_path([self.cuda], self.exchange, self.exchange.nbytes / (LINK_GBS * 1e9))
        return self._proof

    def run(
        self,
        turn: int,
        *,
        kernels: bool = True,
        exchanges: bool = True,
        drop: int | None = None,
        unwaited: bool = False,
    ) -> Run:
        """One region; ``turn`` is the iteration, which says which data are used.

        Without ``exchanges`` all data lie where they belong from the beginning. Negative controls: ``drop`` leaves out
        the copy of that number; ``unwaited`` lets no kernel wait, and delays the exchanges by :data:`LATE_S`.

        Raises:
            C3Error: the device failed or hangs, or the exchanges did not take the path of the transport's name.
        """
        proof = self.proof() if exchanges else Proof(NO_TRANSFER, 0)
        exchange = self.exchange
        if drop is not None:
            exchange = Exchange(self.cuda, self.program, self.matrices, self.how.blocks, drop)
        how = (kernels, exchanges, drop, unwaited)
        if how not in self._warm:  # the first launch of a kernel loads it, which waits for the device
            self._ready(exchange, turn, not exchanges)
            self._enqueue(exchange, *how)
            self.cuda.torch.cuda.synchronize(self.cuda.index)
            self._warm.add(how)
        self._ready(exchange, turn, not exchanges)
        before = read_health([self.cuda])
        with said_clearly(f"running {self.program}"):
            with self.gate.guarded():
                self.gate.shut([self._kernel_stream])
                self._enqueue(exchange, *how)
            for name in [("kernels", "end")] * kernels + [("exchanges", "end")] * exchanges:
                wait_for(self._event(name), name[0])
        after = read_health([self.cuda])
        times = Times(*self._span("kernels", kernels), *self._span("exchanges", exchanges))
        steps = tuple(self._since(place) for place in exchange.step_ends) if exchanges else ()
        check = self.matrices.check_arrived(self.program, turn) if exchanges else Check(0, 0, "")
        right = not kernels or self.matrices.right(self.program, turn)
        if exchanges and self.how.blocks and drop is None and exchange.told()[0] != self.how.blocks:
            raise C3Error(f"sm_kernel: {exchange.told()[0]} of {self.how.blocks} blocks ran in {self.program}")
        return Run(Region(times, check, right, self.how.withheld, proof.blocks, before, after, proof.path), steps)

    def _ready(self, exchange: Exchange, turn: int, arrived: bool) -> None:
        self.matrices.prepare(self.program, turn, arrived)
        exchange.ready(turn)
        self.cuda.torch.cuda.synchronize(self.cuda.index)

    def _enqueue(self, exchange: Exchange, kernels: bool, exchanges: bool, drop: int | None, unwaited: bool) -> None:
        """Both lanes: the exchanges first, so that every event has been recorded when a kernel is told to wait."""
        on, copies = self._kernel_stream, self._copy_stream
        on.record(self._event("opened"))
        if exchanges:
            copies.wait(self._event("opened"))
            if unwaited:
                launch(self.cuda, copies, "pause", 1, 1, np.uint64(round(LATE_S * 1e9)))
            copies.record(self._event(("exchanges", "start")))
            marked = self.lane.awaited | set(exchange.step_ends)
            for place, operation in enumerate(exchange.operations):
                operation.enqueue(copies)
                if place in marked:
                    copies.record(self._event(place))
            copies.record(self._event(("exchanges", "end")))
        if kernels:
            waits = exchanges and not unwaited
            self.lane.enqueue(
                on,
                self.cuda.sms - self.how.withheld if self.how.withheld else 0,
                lambda place: on.wait(self._event(place)) if waits else None,
                lambda: on.record(self._event(("kernels", "start"))),
            )
            on.record(self._event(("kernels", "end")))

    def _since(self, what: Any) -> float:
        return (self._event(what) - self._event("opened")) / 1e3

    def _span(self, lane: str, there: bool) -> tuple[float, float]:
        return (self._since((lane, "start")), self._since((lane, "end"))) if there else (float("nan"),) * 2

    def controls(self) -> str:
        """Negative controls: a dropped copy and kernels that do not wait; what fired, for the provenance.

        Raises:
            C3Error: one went unnoticed, so no check of this run means anything.
        """
        drop = len(self.program.of("copy")) // 2
        dropped = self.run(1, drop=drop).region
        if dropped.check.verified or dropped.gemm_right:
            raise C3Error(f"negative control: {self.program}: copy {drop} dropped, and a check did not notice")
        early = self.run(2, unwaited=True).region
        if not early.check.verified or early.gemm_right:
            raise C3Error(f"negative control: {self.program}: GEMMs that waited for nothing came out right")
        whole = self.run(3).region
        if not whole.verified:
            raise C3Error(f"negative control: {self.program} is wrong with nothing left out: {whole.check.first}")
        return f"copy {drop} dropped, {dropped.check.wrong_nbytes} bytes wrong: noticed; no GEMM waited: noticed"
