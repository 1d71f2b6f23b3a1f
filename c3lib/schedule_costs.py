"""What each finer-grain schedule would take, in closed form: a rule a schedule, a few divisions a rule.

Every schedule is a chain of exchanges and a chain of kernels (:func:`pipeline`). Six things tell the schedules apart:

1. a GEMM runs in whole waves of tiles: M/8, 7M/64 and M/64 rows each leave other CUs idle;
2. a peer-to-peer step has one link of a mesh, an exchange with all peers has all of them;
3. every exchange has a cost of its own, and every kernel that found its queue empty a launch;
4. a uniform schedule waits for its first exchange, a hetero one multiplies its own shard meanwhile;
5. cut along K, the result is read and written in every step; cut along M, B is read in every step, and where pieces
   are gathered the result is moved once more;
6. beside an exchange a kernel is slower: it waits longer for memory, and CU-driven exchanges hold CUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from c3lib.ficco.problem import Problem
from c3lib.hardware import Node
from c3lib.schedule_machine import NOTHING, Kernel, Machine


class Cost(NamedTuple):
    """What a schedule would take, seconds.

    ``begin_s``: before the first kernel. ``kernel_s``: all kernels, some of it beside exchanges. ``exchange_s``: until
    the last exchange has ended. ``last_s``: kernels that wait for the last exchange.
    """

    schedule: str
    time_s: float
    begin_s: float
    kernel_s: float
    exchange_s: float
    last_s: float

    @property
    def waits_for(self) -> str:
        """What sets the pace: ``the exchange`` when nothing but the last kernels follows it, or ``the GEMM``."""
        return "the exchange" if self.time_s <= self.exchange_s + self.last_s else "the GEMM"


class Case:
    """A problem as one rank sees it, on one machine: sizes in rows, columns and bytes."""

    def __init__(self, problem: Problem, node: Node, transport: str, rank: int):
        self.own_rows = problem.rows[rank][rank]
        ring = (*problem.rows[rank + 1 :], *problem.rows[:rank])
        self.far = [row[rank] for row in ring if row[rank]]  # by peer, in the order of peer-to-peer steps
        self.peers, self.far_rows, self.most = len(self.far), sum(self.far), max(self.far, default=0)
        self.port_rows = self.single_rows = self.far_rows
        if node.topology == "switch" and not problem.even:
            self.port_rows, self.single_rows = _busiest_ports(problem)
        self.m, self.n, self.k = self.own_rows + self.far_rows, problem.n, problem.k
        self.steps = max(1, min(problem.pieces, self.most))
        self.slices = min(problem.pieces, self.k)
        self.machine = Machine(node, transport, problem.kind, problem.element_nbytes)

    def fetch_s(self, cuts: float, copying_cus: int) -> float:
        """Seconds that the bytes of one of so many exchanges take: by the fullest link of a mesh, or by the port."""
        rows = self.most * self.peers if self.machine.mesh else self.port_rows
        return rows / cuts * self.k * self.machine.size / self.machine.rate(self.peers, copying_cus)

    def gemm(self, rows: float, peers: int = 0) -> Kernel:
        """A GEMM of some rows beside an exchange."""
        here = self.machine
        return here.beside(here.gemm(rows, self.n, self.k, here.left_cus), peers or self.peers)

    def gemms(self, cuts: int, peers: int = 0) -> Kernel:
        """A GEMM for what each peer gives in one of so many cuts."""
        if min(self.far) == self.most:
            return self.gemm(self.most / cuts, peers).times(self.peers)
        return together(*(self.gemm(rows / cuts, peers) for rows in self.far))

    def slice(self, adds: bool) -> Kernel:
        """A GEMM of all rows and a slice of K beside an exchange."""
        here = self.machine
        return here.beside(here.gemm(self.m, self.n, self.k / self.slices, here.left_cus, adds), self.peers)

    def moved(self, elements: float) -> Kernel:
        """A gather or a scatter of so many elements beside an exchange."""
        if not elements:
            return NOTHING
        here = self.machine
        return here.beside(here.moves(elements * here.size, here.left_cus), self.peers)

    def own(self) -> Kernel:
        """The GEMM of the own shard."""
        return self.gemm(self.own_rows) if self.own_rows else NOTHING

    def exchanged(self, schedule: str, own: Kernel, step: Kernel, cuts: int, last_s: float = 0.0) -> Cost:
        """A schedule whose exchanges are with all peers."""
        here = self.machine
        fetch_s = self.fetch_s(cuts, here.copying_cus)
        return pipeline(schedule, own, step, cuts, fetch_s, here.start_s(self.peers), here.launch_s, last_s)


def serial(case: Case) -> Cost:
    """All bytes over all links with all the CUs that the library takes, then the GEMM on all CUs."""
    here = case.machine
    fetch_s = here.start_s(case.peers) + case.fetch_s(1, here.default_cus) if case.far_rows else 0.0
    gemm_s = here.launch_s + here.gemm(case.m, case.n, case.k, here.gpu.cus).alone_s
    return Cost("serial", fetch_s + gemm_s, fetch_s, gemm_s, fetch_s, gemm_s)


def shard_p2p(case: Case) -> Cost:
    """A shard from one peer at a time: few starts, large GEMMs, one link of a mesh."""
    here = case.machine
    fetch_s = case.single_rows / case.peers * case.k * here.size / here.rate(1, here.copying_cus)
    step, last_s = case.gemms(1, 1).times(1 / case.peers), case.gemm(case.far[-1], 1).alone_s
    chains = case.own(), step, case.peers, fetch_s, here.start_s(1), here.launch_s
    return pipeline("shard_p2p", *chains, last_s)


def uniform_fused_1d(case: Case) -> Cost:
    """The first exchange exposed; own pieces gathered and the result scattered."""
    rows = case.m / case.steps
    parts = case.gemm(rows), case.moved(case.own_rows / case.steps * case.k), case.moved(rows * case.n)
    return case.exchanged("uniform_fused_1d", NOTHING, together(*parts), case.steps)


def hetero_fused_1d(case: Case) -> Cost:
    """The first exchange under the own shard's GEMM; steps of peers' pieces, their results scattered."""
    rows = case.far_rows / case.steps
    step = together(case.gemm(rows), case.moved(rows * case.n))
    return case.exchanged("hetero_fused_1d", case.own(), step, case.steps)


def hetero_unfused_1d(case: Case) -> Cost:
    """The first exchange under the own shard's GEMM; a small GEMM a piece, as soon as it is there, nothing moved."""
    gemms, here = case.gemms(case.steps), case.machine
    if not here.one_by_one:
        return case.exchanged("hetero_unfused_1d", case.own(), gemms, case.steps)
    each = 1 / case.peers
    fetch_s, start_s = case.fetch_s(case.steps, 0) * each, here.start_s(case.peers) * each
    chains = case.own(), gemms.times(each), case.steps * case.peers, fetch_s, start_s, here.launch_s
    return pipeline("hetero_unfused_1d", *chains, case.gemm(case.far[-1] / case.steps).alone_s)


def uniform_fused_2d(case: Case) -> Cost:
    """The first exchange exposed; all rows in every GEMM, all but the first added to the result."""
    slices, first = case.slices, case.slice(False)
    added = case.slice(True) if slices > 1 else first
    step = together(first, added.times(slices - 1)).times(1 / slices)
    return case.exchanged("uniform_fused_2d", NOTHING, step, slices, added.alone_s)


RULES: Mapping[str, Callable[[Case], Cost]] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (serial, shard_p2p, uniform_fused_1d, hetero_fused_1d, hetero_unfused_1d, uniform_fused_2d)
    }
)


def together(*parts: Kernel) -> Kernel:
    """Kernels that run one after another."""
    alone_s = beside_s = slowed_s = 0.0
    for part in parts:
        alone_s += part.alone_s
        beside_s += part.beside_s
        slowed_s += part.slowed * part.beside_s
    return Kernel(alone_s, beside_s, slowed_s / beside_s)


def pipeline(
    schedule: str,
    own: Kernel,
    step: Kernel,
    steps: int,
    fetch_s: float,
    start_s: float,
    launch_s: float,
    last_s: float = 0.0,
) -> Cost:
    """Two chains of equal steps: a step's kernels wait for its exchange, those of the own shard for nothing.

    ``fetch_s``: bytes of an exchange, alone; ``start_s``: what it costs without them; ``last_s``: the last step's
    kernels where they are not like the others. Kernels slow exchanges while they run beside them. Then either exchanges
    set the time, and the last step's kernels follow them; or kernels do, and what is left of them after the last
    exchange runs alone.
    """
    early = own.beside_s > 0
    moving_s = fetch_s / step.slowed  # while kernels run
    moving = moving_s / (moving_s + start_s)
    own_s, step_s = _beside_starts(own, moving), _beside_starts(step, moving)
    kernels_s, alone_s = own_s + steps * step_s, own.alone_s + steps * step.alone_s
    # Exchanges lose time while a kernel runs: all kernels but the last step's, or all exchanges but an exposed first.
    busy_s = min((kernels_s - step_s) * moving, (steps - (not early)) * moving_s)
    exchange_s = steps * (fetch_s + start_s) + busy_s * (1 - step.slowed)
    first_s = start_s + fetch_s + min(own.beside_s, fetch_s / own.slowed) * (1 - own.slowed)
    begin_s = launch_s + (0.0 if early else first_s)
    left = min(1.0, 1 - (exchange_s - begin_s) / kernels_s)  # of all kernels when the last exchange ends
    # The own shard may end before the first exchange does; then the steps' kernels start with that.
    left_of_steps = 1 - (exchange_s - first_s - launch_s) / (steps * step_s)
    last_s = launch_s + (last_s or step.alone_s)
    after_s = max(last_s, left * alone_s, left_of_steps * steps * step.alone_s)
    kernel_s = kernels_s - max(0.0, left) * (kernels_s - alone_s)
    return Cost(schedule, exchange_s + after_s, begin_s, kernel_s, exchange_s, last_s)


def _beside_starts(part: Kernel, moving: float) -> float:
    """Seconds of a kernel beside exchanges whose bytes move for that share of the time; meanwhile it is not slowed."""
    return 1 / (moving / part.beside_s + (1 - moving) / part.alone_s) if part.alone_s else 0.0


def _busiest_ports(problem: Problem) -> tuple[int, int]:
    """Rows of the port, of any rank and in or out, that carries most: in an exchange with all, and summed over the
    peer-to-peer steps of a ring."""
    rows, ranks = problem.rows, range(problem.ranks)
    kept = [rows[rank][rank] for rank in ranks]
    ports = [sum(row) - own for row, own in zip(rows, kept, strict=True)]
    ports += [total - own for total, own in zip(problem.m, kept, strict=True)]
    single = sum(max(rows[(dst + step) % problem.ranks][dst] for dst in ranks) for step in ranks[1:])
    return max(ports), single
