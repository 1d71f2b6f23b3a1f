"""What the tasks of finer-grain schedules cost: programs of :mod:`c3lib.ficco` as two lanes of timed operations.

A rank runs its kernels one after another on one queue and its exchanges, a piece from every peer at a time, on another.
Times of each operation, alone and beside the other lane, come from the isolated curves and the law of sharing that
every strategy of the model uses (:class:`c3lib.model.shared_gpu.SharedGpu`); nothing here is fitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from c3lib.errors import unknown
from c3lib.ficco.graph import Program
from c3lib.hardware import COLLECTIVES, Node
from c3lib.model import kernels
from c3lib.model.kernels import CollectiveBatch, GemmBatch
from c3lib.model.order import NO_EXCHANGE, Exchange, Kernel, order_of
from c3lib.model.pipeline import Lanes
from c3lib.model.shared_gpu import Mechanisms, SharedGpu
from c3lib.strategy import STRATEGIES

TRANSPORTS = ("cu", "dma")


def one_way(node: Node) -> Node:
    """The node as its links are while bytes only arrive: a host link is faster then than both ways at once."""
    link = node.link
    faster: dict[str, Any] = {
        "dma_gbs": max(link.dma_gbs, link.dma_one_way_gbs),
        "cu_gbs": max(link.cu_gbs, link.cu_one_way_gbs),
    }
    return replace(node, link=replace(link, **faster))


def lanes(programs: Iterable[Program], node: Node, transport: str, on: Mechanisms = Mechanisms()) -> list[Lanes]:
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
    kernel_at: dict[Beside, int] = {}  # every different kernel beside every kind of exchange is evaluated once
    exchange_at: dict[Exchanged, int] = {}
    wanted = []
    for program in programs:  # none is kept: many programs at once are many objects
        groups, exchanges = order_of(program, node, transport)
        kind = COLLECTIVES.index(program.problem.kind)
        overlaps = program.schedule != "serial" and bool(exchanges)
        largest = max(exchanges, key=lambda item: (item.nbytes, item.peers), default=NO_EXCHANGE)
        beside = [[Beside(kernel, largest, kind, overlaps) for kernel in group.kernels] for group in groups]
        moved = [Exchanged(exchange, kind, overlaps) for exchange in exchanges]
        for kernel in chain.from_iterable(beside):
            kernel_at.setdefault(kernel, len(kernel_at))
        for exchange in moved:
            exchange_at.setdefault(exchange, len(exchange_at))
        wanted.append((beside, [group.waits for group in groups], moved))
    rates = rates_of(list(kernel_at), node, transport, on)
    costs = costs_of(list(exchange_at), node, transport)
    found = []
    for beside, waits, moved in wanted:
        rows = [_group(rates, [kernel_at[kernel] for kernel in kernels_]) for kernels_ in beside]
        alone_s, beside_s, launch_s, slowed = zip(*rows, strict=True)
        exchange_s, start_s = (
            zip(*(costs[exchange_at[exchange]] for exchange in moved), strict=True) if moved else ((), ())
        )
        found.append(Lanes(alone_s, beside_s, launch_s, tuple(waits), slowed, exchange_s, start_s))
    return found


def _group(rates: Rates, at: list[int]) -> tuple[float, float, float, float]:
    """Kernels one after another: alone, beside, launch of the first, and what they leave the exchange on average."""
    if len(at) == 1:
        only = at[0]
        return rates.alone_s[only], rates.beside_s[only], rates.launch_s[only], rates.slowed[only]
    beside_s = sum(rates.beside_s[index] for index in at)
    slowed = sum(rates.slowed[index] * rates.beside_s[index] for index in at) / beside_s
    return sum(rates.alone_s[index] for index in at), beside_s, rates.launch_s[at[0]], slowed


class Beside(NamedTuple):
    """A kernel and the exchange that it runs beside; where nothing ``overlaps``, both have the whole GPU."""

    kernel: Kernel
    exchange: Exchange
    kind: int  # index of the collective
    overlaps: bool


class Exchanged(NamedTuple):
    """An exchange; where it ``overlaps`` kernels it has the CUs that they leave free."""

    exchange: Exchange
    kind: int
    overlaps: bool


class Rates(NamedTuple):
    """Of each kernel: seconds alone and beside the exchange, launches, and the exchange's rate beside over alone."""

    alone_s: list[float]
    beside_s: list[float]
    slowed: list[float]
    launch_s: list[float]


def rates_of(places: list[Beside], node: Node, transport: str, on: Mechanisms) -> Rates:
    """Each kernel alone and beside an exchange, and what it does to the exchange."""
    gemm = kernel_batch([place.kernel for place in places], node)
    exchange = _collective(places, node)
    how = STRATEGIES["conccl" if transport == "dma" else "c3_sp_rp"]
    overlaps = np.array([place.overlaps for place in places])
    reserved = np.where(overlaps, _reserved(exchange, node), 0.0) if transport == "cu" else np.zeros(len(places))
    law = SharedGpu(gemm, exchange, node, how, reserved, on)
    alone = law.collective_only.collective_rate
    slowed = np.divide(law.late.collective_rate, alone, out=np.ones_like(alone), where=alone > 0)
    return Rates(
        (1 / law.gemm_only.gemm_rate).tolist(),
        (1 / law.late.gemm_rate).tolist(),
        slowed.tolist(),
        kernels.gemm_launch_s(gemm, node).tolist(),
    )


def costs_of(places: list[Exchanged], node: Node, transport: str) -> list[tuple[float, float]]:
    """Time of each exchange's bytes, and what it costs without them: behind another copy no more than its command."""
    if not places:
        return []
    collective = _collective(places, node)
    if transport == "dma":
        queued = np.array([place.exchange.queued for place in places])
        start = np.where(queued, node.dma.command_us * 1e-6, kernels.dma_latency_s(collective, node))
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


def _collective(places: Sequence[Beside | Exchanged], node: Node) -> CollectiveBatch:
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

    No constant is fitted to this. On one H200 (table ``ficco_losses``) it puts the time of 8 slices of K within 10 % on
    average, too long; of 64 within 15 %, too short.
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
