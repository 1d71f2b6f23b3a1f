"""What a program of :mod:`c3lib.ficco` becomes on a GPU's two queues: groups of kernels, and exchanges, in order.

No times yet: :mod:`c3lib.model.pieces` gives them. What a schedule would take without losses needs no more than this.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from c3lib.ficco.graph import COPY, GEMM, Program, Task
from c3lib.ficco.problem import Problem
from c3lib.ficco.schedules import build
from c3lib.hardware import Node
from c3lib.model.pipeline import Lanes


class Kernel(NamedTuple):
    """One kernel of a program: a GEMM, or with ``m`` 0 rows that are moved within the GPU (``n``, ``k`` 1)."""

    m: int
    n: int
    k: int
    size: int  # bytes of an element
    accumulate: bool
    moved_nbytes: int  # read and written


class Exchange(NamedTuple):
    """One piece from every peer: bytes from the busiest peer, bytes of the busiest port, number of peers.

    Over a host link, which carries one copy of a DMA engine after another, an exchange is one copy, and ``queued`` if
    it stands in the engine's queue behind another of its step.
    """

    most_nbytes: int
    nbytes: int
    peers: int
    queued: bool = False


NO_EXCHANGE = Exchange(0, 0, 1)
"""Stands for the exchange of a rank that receives nothing."""


class Group(NamedTuple):
    """Kernels that run one after another and wait for the same exchanges; ``waits``: how many must have ended."""

    kernels: tuple[Kernel, ...]
    waits: int


def order_of(program: Program, node: Node, transport: str) -> tuple[list[Group], list[Exchange]]:
    """A program's kernels and exchanges in the order in which its two queues run them.

    Moves of a step between the same kernels are launched as one kernel. Behind a switch uneven ranks go step by step:
    an exchange carries what the node's busiest port carries in that step, a sender's to all who fetch from it included,
    and a rank waits out steps in which only others fetch (an upper bound: without a barrier ranks slip past one
    another). Over a mesh every pair has a link to itself. Over a
    host link copies of a DMA engine arrive one by one, and a kernel that needs only one of them need not wait for more.
    """
    one_by_one = node.topology == "host" and transport == "dma"
    size = program.problem.element_nbytes
    ports = _busiest_ports(program.schedule, program.problem) if node.topology == "switch" else {}
    groups: list[Group] = []
    steps: dict[int, list[Task]] = {}
    needs: list[int] = []  # of each task: exchanges that must have ended before, through all that it waits for
    parts: list[Task] = []
    key: tuple = ()
    copies = 0
    for task in program.tasks:
        waits = 0
        if task.op == COPY:
            for others in range(len(steps), task.step if ports else 0):
                steps[others] = []
            steps.setdefault(task.step, []).append(task)
            copies += 1
            needs.append(copies if one_by_one else len(steps))
            continue
        for index in task.after:
            if needs[index] > waits:
                waits = needs[index]
        needs.append(waits)
        if (task.op, task.step, waits) != key:
            if parts:
                groups.append(Group(_kernels(parts, size), key[2]))
            parts, key = [], (task.op, task.step, waits)
        parts.append(task)
    groups.append(Group(_kernels(parts, size), key[2]))
    exchanges = []
    for step, tasks in steps.items():
        sizes = [task.a.rows * task.a.cols * size for task in tasks]
        if one_by_one:
            exchanges += [Exchange(nbytes, nbytes, 1, queued=place > 0) for place, nbytes in enumerate(sizes)]
            continue
        exchanges.append(Exchange(max(sizes, default=0), ports.get(step, sum(sizes)), max(1, len(sizes))))
    return groups, exchanges


def _kernels(parts: list[Task], size: int) -> tuple[Kernel, ...]:
    if parts[0].op == GEMM:
        return tuple(Kernel(part.a.rows, part.out.cols, part.a.cols, size, part.accumulate, 0) for part in parts)
    moved = sum(part.a.rows * part.a.cols for part in parts)
    return (Kernel(0, 1, 1, size, False, 2 * moved * size),)


@lru_cache(maxsize=128)
def _busiest_ports(schedule: str, problem: Problem) -> dict[int, int]:
    """Bytes of the busiest port of all ranks in each step, in or out; none told where ranks are alike."""
    ports: dict[tuple[int, str, int], int] = {}
    for rank in range(problem.ranks if not problem.even else 0):
        for task in build(schedule, problem, rank).of(COPY):
            for port in ((task.step, "out", task.a.rank), (task.step, "in", rank)):
                ports[port] = ports.get(port, 0) + task.a.elements * problem.element_nbytes
    found: dict[int, int] = {}
    for (step, _, _), nbytes in ports.items():
        found[step] = max(found.get(step, 0), nbytes)
    return found


def loss_free(program: Program, gemm_s: float, exchange_s: float, node: Node, transport: str) -> Lanes:
    """The program's lanes if nothing were lost: each GEMM has its share of the whole GEMM's time, each exchange its
    share of the whole one's bytes, neither slows the other, and launches, moves and starts cost nothing.

    What remains of a schedule then is its order, and how many links it uses: over a mesh an exchange with one peer has
    one link where the whole exchange has all of them.
    """
    groups, exchanges = order_of(program, node, transport)
    work = [sum(kernel.m * kernel.n * kernel.k for kernel in group.kernels) for group in groups]
    kept = [(flops / sum(work) * gemm_s, group.waits) for flops, group in zip(work, groups, strict=True) if flops]
    kernel_s, waits = zip(*kept, strict=True)
    whole = order_of(build("serial", program.problem, program.rank), node, transport)[1]
    bytes_s = exchange_s / sum(_carried(item, node) for item in whole) if whole else 0.0
    moved_s = tuple(_carried(item, node) * bytes_s for item in exchanges)
    nothing = (0.0,) * len(kept)
    return Lanes(kernel_s, kernel_s, nothing, waits, (1.0,) * len(kept), moved_s, (0.0,) * len(moved_s))


def _carried(exchange: Exchange, node: Node) -> float:
    """Bytes of the busiest link of a mesh, or of the port that all peers share."""
    return float(exchange.most_nbytes if node.topology == "mesh" else exchange.nbytes)
