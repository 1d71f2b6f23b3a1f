"""What the tasks of finer-grain schedules cost: programs of :mod:`c3lib.ficco` as two lanes of timed operations.

A rank runs its kernels one after another on one queue and its exchanges, a piece from every peer at a time, on another.
Times of each operation, alone and beside the other lane, come from the isolated curves and the law of sharing that
every strategy of the model uses (:class:`c3lib.model.shared_gpu.SharedGpu`); nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from c3lib.errors import unknown
from c3lib.ficco.graph import COPY, GEMM, Program, Task
from c3lib.ficco.problem import Problem
from c3lib.ficco.schedules import build
from c3lib.hardware import COLLECTIVES, Node
from c3lib.model import kernels
from c3lib.model.kernels import CollectiveBatch, GemmBatch
from c3lib.model.pipeline import Lanes
from c3lib.model.shared_gpu import Mechanisms, SharedGpu
from c3lib.strategy import STRATEGIES

TRANSPORTS = ("cu", "dma")


class Kernel(NamedTuple):
    """One kernel of a program: a GEMM, or with ``m`` 0 rows that are moved within the GPU."""

    m: int
    n: int
    k: int
    size: int  # bytes of an element
    accumulate: bool
    moved_nbytes: int


class Exchange(NamedTuple):
    """One piece from every peer: bytes from the busiest peer, bytes from all of them, number of peers."""

    most_nbytes: int
    nbytes: int
    peers: int


NO_EXCHANGE = Exchange(0, 0, 1)


class Group(NamedTuple):
    """Kernels that run one after another and wait for the same exchanges; ``waits``: how many must have ended."""

    kernels: tuple[Kernel, ...]
    waits: int


def one_way(node: Node) -> Node:
    """The node as its links are while bytes only arrive: a host link is faster then than both ways at once."""
    link = node.link
    faster = {"dma_gbs": max(link.dma_gbs, link.dma_one_way_gbs), "cu_gbs": max(link.cu_gbs, link.cu_one_way_gbs)}
    return replace(node, link=replace(link, **faster))


def order_of(program: Program, node: Node | None = None) -> tuple[list[Group], list[Exchange]]:
    """A program's kernels and exchanges in the order in which its two queues run them.

    Ranks go step by step: behind a switch (told by ``node``) an exchange carries what the busiest port of those in it
    carries in that step, a sender's to all who fetch from it included.
    """
    size = program.problem.element_nbytes
    groups: list[tuple[tuple, list[Kernel]]] = []
    steps: dict[int, list[Task]] = {}
    needs: list[int] = []  # of each task: exchanges that must have ended before, through all that it waits for
    for task in program.tasks:
        if task.op == COPY:
            steps.setdefault(task.step, []).append(task)
            needs.append(len(steps))
            continue
        waits = 0
        for index in task.after:
            if needs[index] > waits:
                waits = needs[index]
        needs.append(waits)
        moved = 0 if task.op == GEMM else 2 * task.a.elements * size  # read and written
        kernel = Kernel(task.a.rows if not moved else 0, task.out.cols, task.a.cols, size, task.accumulate, moved)
        key = (task.op, task.step, waits)
        if groups and groups[-1][0] == key:
            groups[-1][1].append(kernel)
        else:
            groups.append((key, [kernel]))
    sent = _sent_nbytes(program.schedule, program.problem) if node is not None and node.topology == "switch" else {}
    exchanges = []
    for step, tasks in steps.items():
        sizes = [task.a.elements * size for task in tasks]
        port = max((sent.get((task.a.rank, step), 0) for task in tasks), default=0) if sent else 0
        exchanges.append(Exchange(max(sizes), max(sum(sizes), port), len(sizes)))
    return [Group(tuple(_merged(parts)), key[2]) for key, parts in groups], exchanges


@lru_cache(maxsize=128)
def _sent_nbytes(schedule: str, problem: Problem) -> dict[tuple[int, int], int]:
    """Bytes that each rank gives in each step, all who fetch from it together; none told where ranks are alike."""
    found: dict[tuple[int, int], int] = {}
    for rank in range(problem.ranks if not problem.even else 0):
        for task in build(schedule, problem, rank).of(COPY):
            key = (task.a.rank, task.step)
            found[key] = found.get(key, 0) + task.a.elements * problem.element_nbytes
    return found


def _merged(parts: list[Kernel]) -> list[Kernel]:
    """Moves of one step as the one kernel that they are launched as."""
    if parts[0].moved_nbytes:
        return [parts[0]._replace(moved_nbytes=sum(part.moved_nbytes for part in parts))]
    return parts


def lanes(programs: Sequence[Program], node: Node, transport: str, on: Mechanisms = Mechanisms()) -> list[Lanes]:
    """Programs as lanes; ``transport`` is ``"cu"`` or ``"dma"``, ``on`` which mechanisms act.

    CU-driven exchanges run on ``saturation_cus`` CUs that the kernels leave free throughout; where nothing runs beside
    anything (``serial``) both have all they can use. Over a mesh an exchange takes as long as its largest piece; behind
    a switch or over a host link all pieces share the port. A kernel is slowed as beside the program's largest exchange.

    Raises:
        C3Error: an unknown transport.
    """
    if transport not in TRANSPORTS:
        raise unknown("transport", transport, TRANSPORTS)
    node = one_way(node)
    orders = [order_of(program, node) for program in programs]
    kernel_at: dict[_Beside, int] = {}  # every different kernel beside every kind of exchange is evaluated once
    exchange_at: dict[_Exchanged, int] = {}
    wanted = []
    for program, (groups, exchanges) in zip(programs, orders, strict=True):
        kind = COLLECTIVES.index(program.problem.kind)
        overlaps = program.schedule != "serial" and bool(exchanges)
        largest = max(exchanges, key=lambda item: (item.nbytes, item.peers), default=NO_EXCHANGE)
        beside = [[_Beside(kernel, largest, kind, overlaps) for kernel in group.kernels] for group in groups]
        moved = [_Exchanged(exchange, kind, overlaps) for exchange in exchanges]
        for kernel in chain.from_iterable(beside):
            kernel_at.setdefault(kernel, len(kernel_at))
        for exchange in moved:
            exchange_at.setdefault(exchange, len(exchange_at))
        wanted.append((beside, [group.waits for group in groups], moved))
    rates = _rates(list(kernel_at), node, transport, on)
    costs = _costs(list(exchange_at), node, transport)
    found = []
    for beside, waits, moved in wanted:
        rows = [_group(rates, [kernel_at[kernel] for kernel in kernels_]) for kernels_ in beside]
        alone_s, beside_s, launch_s, slowed = zip(*rows, strict=True)
        exchange_s, start_s = (
            zip(*(costs[exchange_at[exchange]] for exchange in moved), strict=True) if moved else ((), ())
        )
        found.append(Lanes(alone_s, beside_s, launch_s, tuple(waits), slowed, exchange_s, start_s))
    return found


def _group(rates: _Rates, at: list[int]) -> tuple[float, float, float, float]:
    """Kernels one after another: alone, beside, launch of the first, and what they leave the exchange on average."""
    if len(at) == 1:
        only = at[0]
        return rates.alone_s[only], rates.beside_s[only], rates.launch_s[only], rates.slowed[only]
    beside_s = sum(rates.beside_s[index] for index in at)
    slowed = sum(rates.slowed[index] * rates.beside_s[index] for index in at) / beside_s
    return sum(rates.alone_s[index] for index in at), beside_s, rates.launch_s[at[0]], slowed


def loss_free(program: Program, gemm_s: float, exchange_s: float, node: Node) -> Lanes:
    """The program's lanes if nothing were lost: each GEMM has its share of the whole GEMM's time, each exchange its
    share of the whole one's bytes, neither slows the other, and launches, moves and starts cost nothing.

    What remains of a schedule then is its order, and how many links it uses: over a mesh an exchange with one peer has
    one link where the whole exchange has all of them.
    """
    groups, exchanges = order_of(program, node)
    work = [sum(kernel.m * kernel.n * kernel.k for kernel in group.kernels) for group in groups]
    kept = [(flops / sum(work) * gemm_s, group.waits) for flops, group in zip(work, groups, strict=True) if flops]
    kernel_s, waits = zip(*kept, strict=True)
    whole = order_of(build("serial", program.problem, program.rank), node)[1]
    bytes_s = exchange_s / sum(_carried(item, node) for item in whole) if whole else 0.0
    moved_s = tuple(_carried(item, node) * bytes_s for item in exchanges)
    nothing = (0.0,) * len(kept)
    return Lanes(kernel_s, kernel_s, nothing, waits, (1.0,) * len(kept), moved_s, (0.0,) * len(moved_s))


def _carried(exchange: Exchange, node: Node) -> float:
    """Bytes of the busiest link of a mesh, or of the port that all peers share."""
    return float(exchange.most_nbytes if node.topology == "mesh" else exchange.nbytes)


class _Beside(NamedTuple):
    kernel: Kernel
    exchange: Exchange
    kind: int  # index of the collective
    overlaps: bool


class _Exchanged(NamedTuple):
    exchange: Exchange
    kind: int
    overlaps: bool


class _Rates(NamedTuple):
    alone_s: list[float]
    beside_s: list[float]
    slowed: list[float]
    launch_s: list[float]


def _rates(places: list[_Beside], node: Node, transport: str, on: Mechanisms) -> _Rates:
    """Each kernel alone and beside an exchange, and what it does to the exchange."""
    gemm = kernel_batch([place.kernel for place in places], node)
    exchange = _collective(places, node)
    how = STRATEGIES["conccl" if transport == "dma" else "c3_sp_rp"]
    overlaps = np.array([place.overlaps for place in places])
    reserved = np.where(overlaps, _reserved(exchange, node), 0.0) if transport == "cu" else np.zeros(len(places))
    law = SharedGpu(gemm, exchange, node, how, reserved, on)
    alone = law.collective_only.collective_rate
    slowed = np.divide(law.late.collective_rate, alone, out=np.ones_like(alone), where=alone > 0)
    return _Rates(
        (1 / law.gemm_only.gemm_rate).tolist(),
        (1 / law.late.gemm_rate).tolist(),
        slowed.tolist(),
        kernels.gemm_launch_s(gemm, node).tolist(),
    )


def _costs(places: list[_Exchanged], node: Node, transport: str) -> list[tuple[float, float]]:
    """Time of each exchange's bytes, and what it costs without them."""
    if not places:
        return []
    collective = _collective(places, node)
    if transport == "dma":
        start = kernels.dma_latency_s(collective, node)
        gbs = kernels.link_gbs(node, collective.peers, "dma")
    else:
        start = kernels.cu_collective_latency_s(collective, node)
        default = kernels.library_field(collective, node, "default_cus")
        overlaps = np.array([place.overlaps for place in places])
        cus = np.where(overlaps, np.minimum(_reserved(collective, node), default), default)
        gbs = kernels.cu_collective_gbs(collective, cus, node)
    seconds = 1 / kernels.transfers_per_s(gbs, collective)
    return list(zip(seconds.tolist(), start.tolist(), strict=True))


def _reserved(exchange: CollectiveBatch, node: Node) -> NDArray:
    """CUs that a CU-driven exchange is given: what saturates its links."""
    return kernels.library_field(exchange, node, "saturation_cus")


def _collective(places: Sequence[_Beside | _Exchanged], node: Node) -> CollectiveBatch:
    """Exchanges as collectives: on a mesh every peer's link takes as long as the one with most to carry."""
    mesh = node.topology == "mesh"
    items = [place.exchange for place in places]
    sent = [float(item.most_nbytes * item.peers if mesh else item.nbytes) for item in items]
    kinds = np.array([place.kind for place in places])
    return CollectiveBatch(kinds, np.array(sent), np.array([float(item.peers) for item in items]))


def kernel_batch(parts: Sequence[Kernel], node: Node) -> GemmBatch:
    """Kernels as arrays for the isolated curves; moves have no matrix work.

    A GEMM that is added to a result reads the result once more and writes it once more than a GEMM over all of K would,
    at the end of every tile, when its CU has no matrix work to hide that behind::

        time = matrix work + 2 m n element_bytes / memory bandwidth

    No constant is fitted to this; on one H200 it gives the cost of 8 slices of K within about a tenth (table
    ``ficco_losses``).
    """
    m, n, k, size, adds, moved = (np.array(values, float) for values in zip(*parts, strict=True))
    batch = kernels.gemm_batch(np.maximum(m, 1), n, k, size, node)
    again, is_gemm = adds * m * n * size, moved == 0
    matrix_flops = node.gpu.matrix_tflops * 1e12 * 2 / size
    # As a share of the matrix work, 2 m n k operations, which for a given K depends on nothing else.
    tile_end = 1 + adds * size * matrix_flops / (node.gpu.hbm_gbs * 1e9 * k)
    return replace(
        batch,
        nbytes=np.where(is_gemm, batch.nbytes + again, moved),
        beyond_l2_bytes=np.where(is_gemm, batch.beyond_l2_bytes + again, moved),
        memory_bound=batch.memory_bound | ~is_gemm,
        workgroups=np.where(is_gemm, batch.workgroups, node.gpu.cus),
        wave_time_s=np.where(is_gemm, batch.wave_time_s * tile_end, 0.0),
        tile_time_s=np.where(is_gemm, batch.tile_time_s * tile_end, 0.0),
    )
