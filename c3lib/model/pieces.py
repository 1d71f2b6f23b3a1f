"""What the tasks of finer-grain schedules cost: programs of :mod:`c3lib.ficco` as two lanes of timed operations.

A rank runs its kernels one after another on one queue and its exchanges, a piece from every peer at a time, on another.
Times of each operation, alone and beside the other lane, come from the isolated curves and the law of sharing that
every strategy of the model uses (:class:`c3lib.model.shared_gpu.SharedGpu`); nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from c3lib.errors import unknown
from c3lib.ficco.graph import COPY, GEMM, Program
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


class Group(NamedTuple):
    """Kernels that run one after another and wait for the same exchanges; ``waits``: how many must have ended."""

    kernels: tuple[Kernel, ...]
    waits: int


def one_way(node: Node) -> Node:
    """The node as its links are while bytes only arrive: a host link is faster then than both ways at once."""
    link = node.link
    faster = {"dma_gbs": max(link.dma_gbs, link.dma_one_way_gbs), "cu_gbs": max(link.cu_gbs, link.cu_one_way_gbs)}
    return replace(node, link=replace(link, **faster))


def order_of(program: Program) -> tuple[list[Group], list[Exchange]]:
    """A program's kernels and exchanges in the order in which its two queues run them."""
    size = program.problem.element_nbytes
    groups: list[tuple[tuple, list[Kernel]]] = []
    steps: dict[int, list[int]] = {}
    needs: list[int] = []  # of each task: exchanges that must have ended before, through all that it waits for
    for task in program.tasks:
        waits = max((needs[index] for index in task.after), default=0)
        if task.op == COPY:
            steps.setdefault(task.step, []).append(task.a.elements * size)
            needs.append(len(steps))
            continue
        needs.append(waits)
        moved = 0 if task.op == GEMM else 2 * task.a.elements * size  # read and written
        kernel = Kernel(task.a.rows if not moved else 0, task.out.cols, task.a.cols, size, task.accumulate, moved)
        key = (task.op, task.step, waits)
        if groups and groups[-1][0] == key:
            groups[-1][1].append(kernel)
        else:
            groups.append((key, [kernel]))
    exchanges = [Exchange(max(sizes), sum(sizes), len(sizes)) for sizes in steps.values()]
    return [Group(tuple(_merged(parts)), key[2]) for key, parts in groups], exchanges


def _merged(parts: list[Kernel]) -> list[Kernel]:
    """Moves of one step as the one kernel that they are launched as."""
    if parts[0].moved_nbytes:
        return [parts[0]._replace(moved_nbytes=sum(part.moved_nbytes for part in parts))]
    return parts


def lanes(programs: Sequence[Program], node: Node, transport: str, on: Mechanisms = Mechanisms()) -> list[Lanes]:
    """Programs as lanes; ``transport`` is ``"cu"`` or ``"dma"``, ``on`` which mechanisms act.

    CU-driven exchanges run on ``saturation_cus`` CUs that the kernels leave free throughout; where nothing runs beside
    anything (``serial``) both have all they can use. Over a mesh an exchange takes as long as its largest piece; behind
    a switch or over a host link all pieces share the port.

    Raises:
        C3Error: an unknown transport.
    """
    if transport not in TRANSPORTS:
        raise unknown("transport", transport, TRANSPORTS)
    node = one_way(node)
    orders = [order_of(program) for program in programs]
    kinds = np.array([COLLECTIVES.index(program.problem.kind) for program in programs])
    overlaps = np.array([program.schedule != "serial" for program in programs])
    places: dict[tuple, int] = {}  # every different kernel of every kind of exchange is evaluated once
    for (groups, exchanges), kind, overlap in zip(orders, kinds, overlaps, strict=True):
        for group in groups:
            for kernel in group.kernels:
                places.setdefault((kernel, exchanges[0], int(kind), bool(overlap)), len(places))
    rates = _rates(list(places), node, transport, on)

    found = []
    costs = iter(_exchanges([exchanges for _, exchanges in orders], kinds, overlaps, node, transport))
    for (groups, exchanges), kind, overlap in zip(orders, kinds, overlaps, strict=True):
        rows = []
        for group in groups:
            at = [places[kernel, exchanges[0], int(kind), bool(overlap)] for kernel in group.kernels]
            beside = sum(rates.beside_s[index] for index in at)
            slowed = sum(rates.slowed[index] * rates.beside_s[index] for index in at) / beside
            rows.append((sum(rates.alone_s[index] for index in at), beside, rates.launch_s[at[0]], group.waits, slowed))
        cost = [next(costs) for _ in exchanges]
        found.append(Lanes(*zip(*rows, strict=True), *zip(*cost, strict=True)))
    return found


def loss_free(program: Program, gemm_s: float, exchange_s: float, node: Node) -> Lanes:
    """The program's lanes if nothing were lost: each GEMM has its share of the whole GEMM's time, each exchange its
    share of the whole one's bytes, neither slows the other, and launches, moves and starts cost nothing.

    What remains of a schedule then is its order, and how many links it uses: over a mesh an exchange with one peer has
    one link where the whole exchange has all of them.
    """
    groups, exchanges = order_of(program)
    work = [sum(kernel.m * kernel.n * kernel.k for kernel in group.kernels) for group in groups]
    kept = [(flops / sum(work) * gemm_s, group.waits) for flops, group in zip(work, groups, strict=True) if flops]
    kernel_s, waits = zip(*kept, strict=True)
    whole = order_of(build("serial", program.problem, program.rank))[1]
    bytes_s = exchange_s / sum(_carried(item, node) for item in whole) if whole else 0.0
    moved_s = tuple(_carried(item, node) * bytes_s for item in exchanges)
    nothing = (0.0,) * len(kept)
    return Lanes(kernel_s, kernel_s, nothing, waits, (1.0,) * len(kept), moved_s, (0.0,) * len(moved_s))


def _carried(exchange: Exchange, node: Node) -> float:
    """Bytes of the busiest link of a mesh, or of the port that all peers share."""
    return float(exchange.most_nbytes if node.topology == "mesh" else exchange.nbytes)


class _Rates(NamedTuple):
    alone_s: list[float]
    beside_s: list[float]
    slowed: list[float]
    launch_s: list[float]


def _rates(places: list[tuple], node: Node, transport: str, on: Mechanisms) -> _Rates:
    """Each kernel alone and beside an exchange, and what it does to the exchange."""
    parts = [kernel for kernel, *_ in places]
    gemm = kernel_batch(parts, node)
    exchange = _collective([exchange for _, exchange, *_ in places], [kind for _, _, kind, _ in places], node)
    overlap = np.array([overlaps for *_, overlaps in places])
    how = STRATEGIES["conccl" if transport == "dma" else "c3_sp_rp"]
    reserved = np.where(overlap & (transport == "cu"), _reserved(exchange, node), 0.0)
    law = SharedGpu(gemm, exchange, node, how, reserved, on)
    return _Rates(
        (1 / law.gemm_only.gemm_rate).tolist(),
        (1 / law.late.gemm_rate).tolist(),
        (law.late.collective_rate / law.collective_only.collective_rate).tolist(),
        kernels.gemm_launch_s(gemm, node).tolist(),
    )


def _reserved(exchange: CollectiveBatch, node: Node) -> NDArray:
    """CUs that a CU-driven exchange is given: what saturates its links."""
    return kernels.library_field(exchange, node, "saturation_cus")


def _collective(exchanges: Sequence[Exchange], kinds: Sequence[int] | NDArray, node: Node) -> CollectiveBatch:
    """Exchanges as collectives: on a mesh every peer's link takes as long as the one with most to carry."""
    mesh = node.topology == "mesh"
    sent = [float(item.most_nbytes * item.peers if mesh else item.nbytes) for item in exchanges]
    return CollectiveBatch(np.asarray(kinds), np.array(sent), np.array([float(item.peers) for item in exchanges]))


def _exchanges(
    rows: list[list[Exchange]], kinds: NDArray, overlaps: NDArray, node: Node, transport: str
) -> list[tuple[float, float]]:
    """Time of each exchange's bytes and what it costs without them, in order."""
    lengths = [len(row) for row in rows]
    collective = _collective([exchange for row in rows for exchange in row], np.repeat(kinds, lengths), node)
    if transport == "dma":
        start = kernels.dma_latency_s(collective, node)
        gbs = kernels.link_gbs(node, collective.peers, "dma")
    else:
        start = kernels.cu_collective_latency_s(collective, node)
        default = kernels.library_field(collective, node, "default_cus")
        cus = np.where(np.repeat(overlaps, lengths), np.minimum(_reserved(collective, node), default), default)
        gbs = kernels.cu_collective_gbs(collective, cus, node)
    seconds = 1 / kernels.transfers_per_s(gbs, collective)
    return list(zip(seconds.tolist(), start.tolist(), strict=True))


def kernel_batch(parts: Sequence[Kernel], node: Node) -> GemmBatch:
    """Kernels as arrays for the isolated curves. Added to a result, a GEMM reads it once more; moves have no matrix
    work."""
    m, n, k, size, adds, moved = (np.array(values, float) for values in zip(*parts, strict=True))
    batch = kernels.gemm_batch(np.maximum(m, 1), n, k, size, node)
    again, is_gemm = adds * m * n * size, moved == 0
    return replace(
        batch,
        nbytes=np.where(is_gemm, batch.nbytes + again, moved),
        beyond_l2_bytes=np.where(is_gemm, batch.beyond_l2_bytes + again, moved),
        memory_bound=batch.memory_bound | ~is_gemm,
        workgroups=np.where(is_gemm, batch.workgroups, node.gpu.cus),
        wave_time_s=np.where(is_gemm, batch.wave_time_s, 0.0),
        tile_time_s=np.where(is_gemm, batch.tile_time_s, 0.0),
    )
