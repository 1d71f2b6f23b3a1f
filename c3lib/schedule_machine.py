"""A node's constants as the rules for finer-grain schedules need them: what one exchange or one kernel takes.

Plain arithmetic on single numbers, for a program that has microseconds and cannot measure. It follows the isolated
curves of :mod:`c3lib.model.kernels` (a test holds the two together) and, for kernels beside exchanges, the first order
of the law of sharing; but for the table of tiles it shares no code with what simulates a schedule.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import NamedTuple

from c3lib.hardware import Node
from c3lib.model.kernels import BYTES_PER_LINK_BYTE, TILE_EFFICIENCY, TILES

_TILES = sorted(((TILE_EFFICIENCY[min(tile)], *tile) for tile in TILES), key=lambda row: -row[0])


class Work(NamedTuple):
    """A kernel alone: seconds, its compulsory memory traffic in bytes, and what of its reads passes the L2 caches."""

    alone_s: float
    nbytes: float
    beyond_l2_bytes: float


class Kernel(NamedTuple):
    """Seconds of a kernel, or of several in a row, alone and beside an exchange; ``slowed``: the exchange's rate beside
    it over its rate alone."""

    alone_s: float
    beside_s: float
    slowed: float

    def times(self, count: float) -> Kernel:
        """So many of it, one after another; a fraction: one of several equal parts."""
        return Kernel(self.alone_s * count, self.beside_s * count, self.slowed)


NOTHING = Kernel(0.0, 0.0, 1.0)


class Machine:
    """One node, with one transport, one kind of collective and one element size (bytes)."""

    def __init__(self, node: Node, transport: str, kind: str, element_nbytes: int):
        gpu, library, link, sharing = node.gpu, node.library[kind], node.link, node.interference
        self.gpu, self.dma, self.size = gpu, node.dma, element_nbytes
        self.mesh, self.by_cu = node.topology == "mesh", transport == "cu"
        # A host link carries one copy of a DMA engine after another; elsewhere pieces of a step arrive together.
        self.one_by_one = node.topology == "host" and not self.by_cu
        self.hbm_bytes_s = gpu.hbm_gbs * 1e9
        self.cu_flops = gpu.matrix_tflops * 1e12 / gpu.cus * 2 / element_nbytes
        self.launch_s = gpu.launch_us * 1e-6
        self.links, self.default_cus = link.count, library.default_cus
        reached = (link.cu_one_way_gbs or link.cu_gbs) if self.by_cu else (link.dma_one_way_gbs or link.dma_gbs)
        self.link_bytes_s, self.cu_bytes_s = reached * 1e9, library.cu_gbs * 1e9
        self.latency_s = library.latency_us * 1e-6
        # CU-driven exchanges hold what saturates their links as long as anything overlaps.
        self.held_cus = library.saturation_cus if self.by_cu else 0
        self.copying_cus = min(self.held_cus, library.default_cus)
        self.left_cus = gpu.cus - self.held_cus
        self._memory = {cus: self._memory_bytes_s(cus, sharing.requestor_thrash) for cus in (gpu.cus, self.left_cus)}
        self.queueing = sharing.memory_queueing
        self.copy_queueing = sharing.copy_queueing or sharing.memory_queueing
        flood = self.copying_cus / sharing.flood_cus if self.by_cu and sharing.flood_cus else 0.0
        self.flooded = max(1.0, flood) ** 2  # times longer beside more copying CUs than the link drains
        # Share of the memory's bandwidth that the copying CUs would take if nothing held them up.
        self._copies = BYTES_PER_LINK_BYTE * self.copying_cus * self.cu_bytes_s / self.hbm_bytes_s
        self._tiles: dict[tuple[float, int], tuple[float, float]] = {}
        self._paths: dict[int, float] = {}

    def rate(self, peers: int, copying_cus: int) -> float:
        """Bytes a second into this rank from so many peers at once: on a mesh a link a peer, else all by one port."""
        links = self.link_bytes_s * (min(peers, self.links) if self.mesh else self.links)
        return min(links, copying_cus * self.cu_bytes_s) if self.by_cu else links

    def start_s(self, peers: int) -> float:
        """What an exchange with so many peers costs without its bytes."""
        if self.by_cu:
            return self.latency_s
        dma = self.dma
        engines = 1 if self.one_by_one else min(peers, dma.peer_engines)
        return (dma.copy_us + dma.command_us * peers + dma.engine_us * (engines - 1)) * 1e-6

    def _memory_bytes_s(self, cus: int, thrash: float) -> float:
        """Memory bandwidth that a kernel on so many CUs draws: by CUs or by memory, less what a crowd of them costs."""
        crowd = min(1.0, max(0.0, 1 - (self.gpu.cus - cus) / self.gpu.cus_step))
        return min(cus * self.gpu.cu_hbm_gbs * 1e9, self.hbm_bytes_s) * (1 - thrash * crowd)

    def gemm(self, m: float, n: int, k: float, cus: int, adds: bool = False) -> Work:
        """A GEMM on ``cus`` CUs (all, or those left beside exchanges).

        Whole waves of the fastest tile, or its traffic at the memory's rate if that is longer. Added to a result
        (``adds``) it reads and writes that at the end of every tile, behind the matrix work: the shorter K, the more.
        The reads of tiles are those of the tile that the library picks for the whole GPU; a die's CUs share rows and
        columns of a square of tiles.
        """
        gpu = self.gpu
        column_s, read = self._tiled(m, n, cus)
        compute_s = column_s * k
        if cus < gpu.cus:
            read = self._tiled(m, n, gpu.cus)[1]
        again = self.size * m * n if adds else 0
        if adds:
            compute_s *= 1 + self.size * self.cu_flops * gpu.cus / (self.hbm_bytes_s * k)
        nbytes = self.size * (m * k + k * n + m * n)
        beyond = max(nbytes, self.size * k * read / sqrt(gpu.cus / gpu.dies)) + again
        nbytes += again
        return Work(max(compute_s, nbytes / self._memory[cus]), nbytes, beyond)

    def _tiled(self, m: float, n: int, cus: int) -> tuple[float, float]:
        """Seconds of the matrix work for one column of A, with the fastest tile; rows and columns that its tiles read.

        A machine serves one problem, so ``n`` is always the same.
        """
        found = self._tiles.get((m, cus))
        if found:
            return found
        dies, all_cus, gain, element_s = self.gpu.dies, self.gpu.cus, self.gpu.clock_gain, 2 / self.cu_flops
        of_a_die = cus // dies
        perfect_s = m * n * element_s / (of_a_die * dies * (1 + gain * (1 - of_a_die * dies / all_cus)))
        best_s, read, gain_a_tile = inf, 0.0, gain * dies / all_cus
        for efficiency, rows, columns in _TILES:
            if perfect_s / efficiency >= best_s:
                break  # no tile beats CUs that are never idle: most GEMMs need a look at one or two
            tiles = (-m // rows) * (-n // columns)
            die_tiles = -(-tiles // dies)
            waves = -(-die_tiles // of_a_die)
            seconds = waves * rows * columns * element_s / efficiency
            if gain:  # the fewer of the chip's CUs work, on average over the waves, the higher it clocks
                seconds /= 1 + gain - gain_a_tile * die_tiles / waves
            if seconds < best_s:
                best_s, read = seconds, tiles * (rows + columns)
        self._tiles[m, cus] = best_s, read
        return best_s, read

    def moves(self, nbytes: float, cus: int) -> Work:
        """A kernel that moves so many bytes within this rank's memory: read once, written once."""
        return Work(2 * nbytes / self._memory[cus], 2 * nbytes, 2 * nbytes)

    def beside(self, work: Work, peers: int) -> Kernel:
        """The kernel while an exchange with so many peers runs.

        A kernel waits longer for its loads the more of the memory's bandwidth the exchange uses, and CU-driven copies
        likewise; DMA engines wait for nothing. What one leaves of the memory, the other has, at least half.
        """
        path = share = self._path(peers)
        if self.by_cu:
            kernel_share = work.beyond_l2_bytes / (work.alone_s * (1 + self.queueing * path) * self.hbm_bytes_s)
            share = min(path, self._copies / (1 + self.copy_queueing * kernel_share))
        slower_s = work.alone_s * (1 + self.queueing * share) * self.flooded
        left = max(0.5, 1 - share) * self.hbm_bytes_s
        return Kernel(work.alone_s, max(slower_s, work.nbytes / left), share / path)

    def _path(self, peers: int) -> float:
        """Share of the memory's bandwidth that an exchange with so many peers takes at the most."""
        if peers not in self._paths:
            rate = self.rate(peers, self.copying_cus)
            self._paths[peers] = BYTES_PER_LINK_BYTE * rate / self.hbm_bytes_s
        return self._paths[peers]
