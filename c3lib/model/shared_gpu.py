"""A GPU that a GEMM and a collective share under one strategy: who gets what while which tasks run.

The graph has three tasks: the GEMM up to its last wave (``head``), its last wave (``tail``), and the collective. While
the head runs, the GEMM still has workgroups to dispatch: that is when dispatch order matters. Rates follow from the
isolated curves (:mod:`c3lib.model.kernels`) and the law of sharing (:mod:`c3lib.model.sharing`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c3lib.hardware import Node
from c3lib.model import kernels, resident, sharing
from c3lib.model.kernels import CollectiveBatch, GemmBatch
from c3lib.strategy import Strategy

HEAD, TAIL, COLLECTIVE = range(3)


@dataclass(frozen=True)
class Mechanisms:
    """The ways in which one kernel slows the other; each can be switched off (False) to see what it costs.

    Values are bools or bool arrays ``(batch,)``. With all of them off the concurrent time is ``max(Tg, Tc)`` exactly.
    """

    cu: ArrayLike = True  # the GEMM runs on the CUs that are left to it
    hbm: ArrayLike = True  # memory bandwidth is shared
    queueing: ArrayLike = True  # memory latency grows under the other's traffic
    cache: ArrayLike = True  # CU-driven copies evict the GEMM's tiles
    link: ArrayLike = True  # the transport's link rate differs from the library's
    launch: ArrayLike = True  # the transport's start and completion cost differs from the library's
    dispatch: ArrayLike = True  # the kernel launched second waits for workgroup slots


MECHANISMS = tuple(item.name for item in fields(Mechanisms))


@dataclass(frozen=True)
class Phase:
    """What the two kernels do while the set of running tasks does not change; arrays ``(batch,)``.

    Rates are in whole kernels a second; a rate is 0 where the kernel does not run.
    """

    gemm_rate: NDArray
    collective_rate: NDArray
    gemm_cus: NDArray
    collective_cus: NDArray
    gemm_limit_s: tuple[NDArray, NDArray]  # isolated time by compute and by memory with these CUs
    memory_share: NDArray  # of reached memory bandwidth, both kernels


class SharedGpu:
    """One GPU under one strategy: the rates in each phase, and the graph's work and delays.

    Phases: ``early`` (head beside collective), ``late`` (tail beside collective), ``gemm_only``, ``collective_only``.
    """

    def __init__(
        self,
        gemm: GemmBatch,
        collective: CollectiveBatch,
        node: Node,
        strategy: Strategy,
        cus: NDArray,
        on: Mechanisms,
        blocks: ArrayLike | None = None,
    ):
        gpu, interference = node.gpu, node.interference
        self._gemm, self._collective, self._node = gemm, collective, node
        by_cu = strategy.transport == "cu"
        partitioned = cus > 0
        default = kernels.library_field(collective, node, "default_cus")
        if blocks is not None:
            default = np.broadcast_to(np.minimum(np.asarray(blocks, float), gpu.cus - 1), default.shape)
        # The library launches ``default`` workgroups; a partition wider than that leaves CUs idle.
        wanted = np.where(partitioned, np.minimum(cus, default), default) if by_cu else np.zeros_like(default)
        # While the GEMM still dispatches, a collective launched second has what arbitration, or a GEMM too small to
        # fill the GPU, leaves it. A partition is its own, if it starts there at all.
        scattered = resident.clustered(collective, node)
        spare = np.where(partitioned, 0, np.clip(resident.room_cus(gemm, collective, node), 0, wanted))
        waits = np.asarray(on.dispatch) & (~partitioned | scattered) & (by_cu and strategy.first == "gemm")
        early = np.where(waits, np.maximum(interference.dispatch_share * wanted, spare), wanted)
        # With the CU mechanism off, each kernel runs as if the other took nothing from it.
        keep = np.asarray(on.cu)
        own = np.where(keep, wanted, default)
        own_early = np.where(waits, early, own)
        if gpu.resident_gemm:
            # Workgroups that waited for resident ones to end share the first CUs that fall free, and stay there.
            own = np.where(waits & keep, np.maximum(spare, np.ceil(wanted / interference.waiting_per_cu)), own)

        link = kernels.link_gbs(node, collective.peers, "cu")
        latency = kernels.cu_collective_latency_s(collective, node)
        if not by_cu:
            # Without its own link rate it runs at the library's, which its CUs may hold below the links'.
            library = kernels.cu_collective_gbs(collective, default, node)
            link = np.where(on.link, kernels.link_gbs(node, collective.peers, "dma"), library)
            latency = np.where(on.launch, kernels.dma_latency_s(collective, node), latency)
        self.link_rate = kernels.transfers_per_s(link, collective)
        self._cu_driven = by_cu
        # A GEMM loads ahead of need, a copy has nothing but to wait; DMA engines do not wait at all.
        copy_queueing = interference.copy_queueing or interference.memory_queueing
        self._queueing = tuple(
            coefficient * np.asarray(on.queueing, float)
            for coefficient in (interference.memory_queueing, copy_queueing * by_cu)
        )
        self._flood_cus = np.where(on.queueing, interference.flood_cus, 0.0)
        self._share_hbm = np.asarray(on.hbm)
        # Served by the last-level cache until a CU-driven copy streams through it.
        reused = gemm.beyond_l2_bytes - gemm.nbytes
        evicted = interference.cache_pollution * reused * (np.asarray(on.cache) & by_cu)

        launch = kernels.gemm_launch_s(gemm, node)
        self.delay_s = np.stack(np.broadcast_arrays(launch, 0.0, latency), -1)
        # Resident workgroups leave no room before the kernel ends, others one wave earlier.
        head = np.where(gpu.resident_gemm, 1.0, (gemm.waves - 1) / gemm.waves)
        self.work = np.stack([head, 1 - head, (collective.sent_bytes > 0).astype(float)], -1)
        self.wanted_cus = wanted
        taken = np.where(partitioned, cus, wanted)
        taken_early = np.where(partitioned, cus, early)
        after = np.where(partitioned, cus, 0.0)  # a partition is not given back when the collective ends
        # Launched behind a collective that holds CUs, a resident kernel is cut for all, unless a partition is told.
        self._crowded = ~partitioned & bool(gpu.resident_gemm and by_cu and strategy.first == "collective")
        left = lambda count: np.where(keep, gpu.cus - count, gpu.cus)  # noqa: E731
        self.late = self._phase(left(taken), own, evicted)
        self.early = self._phase(left(taken_early), own_early, evicted) if np.any(waits) else self.late
        self.gemm_only = self._phase(left(after), None, 0.0)
        self.collective_only = self._phase(None, own, 0.0)

    def _phase(self, gemm_cus: NDArray | None, collective_cus: NDArray | None, evicted: ArrayLike) -> Phase:
        node, nothing = self._node, np.zeros_like(self._gemm.nbytes)
        limits = (nothing, nothing)
        by_units = [nothing, nothing]
        if gemm_cus is not None:
            limits = (
                kernels.compute_time_s(self._gemm, gemm_cus, node),
                kernels.memory_time_s(self._gemm, gemm_cus, node, evicted),
            )
            if np.any(self._crowded):
                crowded = resident.crowded_times_s(self._gemm, gemm_cus, node, evicted)
                compute, memory = (np.where(self._crowded, *pair) for pair in zip(crowded, limits, strict=True))
                limits = (compute, memory)
            by_units[0] = 1 / np.maximum(*limits)
        if collective_cus is not None:
            by_units[1] = self.link_rate
            if self._cu_driven:
                per_cu = kernels.library_field(self._collective, node, "cu_gbs")
                by_units[1] = kernels.transfers_per_s(collective_cus * per_cu, self._collective)
        sent = self._collective.sent_bytes * kernels.BYTES_PER_LINK_BYTE
        moves = sent > 0
        by_units[1] = np.where(moves, by_units[1], 0.0)
        capacity = node.gpu.hbm_gbs * 1e9
        rate = np.stack(by_units)
        if gemm_cus is not None and collective_cus is not None:
            if self._cu_driven:
                # What floods is what really copies: with the CU mechanism off a partition still has its few workgroups.
                copying = np.minimum(collective_cus, self.wanted_cus)
                by_units[0] = by_units[0] * sharing.flood_share(copying, self._flood_cus)
                rate = np.stack(by_units)
            by_path = np.stack([np.full_like(nothing, np.inf), self.link_rate])
            traffic = np.stack([self._gemm.beyond_l2_bytes, sent])
            rate = sharing.queued_rates(rate, by_path, traffic, self._queueing, capacity)
            nbytes = np.stack([self._gemm.nbytes + evicted, sent])
            demand = rate * nbytes
            granted = sharing.waterfill(demand, capacity)
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = np.where(self._share_hbm & (granted < demand), granted / nbytes, rate)
        elif collective_cus is not None:
            rate[1] = np.where(moves, np.minimum(rate[1], self.link_rate), 0.0)
        share = (rate[0] * (self._gemm.nbytes + evicted) + rate[1] * sent) / capacity
        held = np.broadcast_to(0.0 if collective_cus is None or not self._cu_driven else collective_cus, nothing.shape)
        cus = nothing if gemm_cus is None else np.broadcast_to(gemm_cus, nothing.shape)
        return Phase(rate[0], rate[1], cus, held, limits, share)

    def __call__(self, running: NDArray) -> NDArray:
        """Rates of head, tail and collective for :func:`c3lib.model.fluid.run`."""
        beside = running[:, COLLECTIVE]
        head, gemm = running[:, HEAD], running[:, HEAD] | running[:, TAIL]
        gemm_rate = np.where(
            beside, np.where(head, self.early.gemm_rate, self.late.gemm_rate), self.gemm_only.gemm_rate
        )
        alone = self.collective_only.collective_rate
        rate = np.where(gemm, np.where(head, self.early.collective_rate, self.late.collective_rate), alone)
        return np.stack([gemm_rate, gemm_rate, rate], -1)

    def end_times_s(self) -> tuple[NDArray, NDArray]:
        """When GEMM and collective end: the event loop of this graph written out, phase by phase.

        The same as :func:`c3lib.model.fluid.run` with this law (a test holds the two together), many times faster.
        """
        starts = [self.delay_s[:, HEAD], self.delay_s[:, COLLECTIVE]]
        alone = [self.gemm_only.gemm_rate, self.collective_only.collective_rate]
        work = [np.ones_like(starts[0]), self.work[:, COLLECTIVE]]
        now = np.maximum(*starts)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Whichever starts first runs alone until the other starts; an empty collective ends as it starts.
            alone_end = [
                start + np.where(todo > 0, todo / rate, 0.0)
                for start, todo, rate in zip(starts, work, alone, strict=True)
            ]
            left = [
                np.maximum(todo - (now - start) * rate, 0)
                for start, todo, rate in zip(starts, work, alone, strict=True)
            ]
            end = [np.where(finish <= now, finish, np.nan) for finish in alone_end]
            left = [np.where(np.isnan(finish), todo, 0.0) for finish, todo in zip(end, left, strict=True)]
            for phase, keep in ((self.early, 1 - self.work[:, HEAD]), (self.late, 0.0)):
                todo = np.maximum(left[0] - keep, 0)
                gemm_time = np.where(todo > 0, todo / phase.gemm_rate, 0.0)
                coll_time = np.where(left[1] > 0, left[1] / phase.collective_rate, 0.0)
                step = np.minimum(gemm_time, coll_time)
                now = now + step
                # The kernel that sets the step ends exactly, whatever rounding says.
                left = [
                    np.where(gemm_time <= coll_time, left[0] - todo, left[0] - step * phase.gemm_rate),
                    np.where(coll_time <= gemm_time, 0.0, left[1] - step * phase.collective_rate),
                ]
                end = [
                    np.where(np.isnan(finish) & (todo <= 0), now, finish)
                    for finish, todo in zip(end, left, strict=True)
                ]
            rest = [np.where(todo > 0, todo / rate, 0.0) for todo, rate in zip(left, alone, strict=True)]
        gemm_end, coll_end = (
            np.where(np.isnan(finish), now + more, finish) for finish, more in zip(end, rest, strict=True)
        )
        return gemm_end, coll_end
