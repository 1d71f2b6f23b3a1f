"""Isolated curves: how long a GEMM or a collective takes alone, as a function of CUs and size.

Everything is vectorised over scenarios: arguments and results broadcast as NumPy arrays. Curves come from the node's
constants and the tile table below, never from a concurrent measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c3lib.hardware import COLLECTIVES, Node
from c3lib.workload import DTYPE_BYTES, Scenario

TILES = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (32, 64), (16, 128))
"""Output tiles (rows, columns) that a BLAS library picks from; ours, with typical sizes of hipBLASLt and cuBLAS."""

TILE_EFFICIENCY = {256: 1.0, 128: 0.95, 64: 0.9, 32: 0.8, 16: 0.7}
"""Matrix rate of a tile over that of the largest, by its shorter side (modelled: shorter pipelines, less reuse)."""

_ROWS, _COLUMNS = (
    np.array(side, float)[:, None] for side in zip(*TILES, strict=True)
)  # (tiles, 1): batches lie on the last axis
_EFFICIENCY = np.array([TILE_EFFICIENCY[min(tile)] for tile in TILES])[:, None]

BYTES_PER_LINK_BYTE = 2.0
"""Memory traffic of a transfer on each GPU: every byte sent is read once, every byte received is written once."""


@dataclass(frozen=True)
class GemmBatch:
    """GEMMs on one node: arrays ``(batch,)``; two hold a row for each tile of :data:`TILES`.

    ``stretch``: factor on every isolated time; 1 unless :func:`c3lib.model.stretch.stretched` set it.
    """

    nbytes: NDArray  # compulsory memory traffic
    memory_bound: NDArray  # bool, as Gemm.bound: operational intensity below the GPU's ridge
    workgroups: NDArray  # of the kernel that the library runs on all CUs
    waves: NDArray  # rounds in which all CUs run them
    tile_time_s: NDArray  # one of these workgroups on one CU
    beyond_l2_bytes: NDArray  # see gemm_batch
    die_tiles: NDArray  # (tiles, batch): workgroups of the fullest die
    wave_time_s: NDArray  # (tiles, batch): one tile on one CU while all CUs are busy
    stretch: Any = 1.0

    def __post_init__(self) -> None:
        _fill_stretch(self, self.nbytes)


@dataclass(frozen=True)
class CollectiveBatch:
    """Collectives as arrays of shape ``(scenarios,)``; ``kind`` indexes :data:`c3lib.hardware.COLLECTIVES`.

    ``stretch``: factor on every isolated time; 1 unless :func:`c3lib.model.stretch.stretched` set it.
    """

    kind: NDArray
    sent_bytes: NDArray
    peers: NDArray
    stretch: Any = 1.0

    def __post_init__(self) -> None:
        _fill_stretch(self, self.sent_bytes)


def _fill_stretch(part: Any, like: NDArray) -> None:
    """One factor each, whatever was given."""
    object.__setattr__(part, "stretch", np.broadcast_to(np.asarray(part.stretch, float), np.shape(like)))


def gemm_batch(m: ArrayLike, n: ArrayLike, k: ArrayLike, element_bytes: ArrayLike, node: Node) -> GemmBatch:
    """Arrays for GEMMs of the given dimensions (elements) and element size (bytes).

    Traffic beyond the L2 caches (on MI300X: into the Infinity Cache): the CUs of a die work on a square block of tiles
    at a time and share its rows and columns through their L2, so of the workgroups' reads one in ``sqrt(CUs a die)``
    leaves it (ours: perfect sharing inside a die, none between dies), and never less than the compulsory traffic.
    """
    m, n, k, size = (np.asarray(value, float) for value in np.broadcast_arrays(m, n, k, element_bytes))
    gpu = node.gpu
    tiles = np.ceil(m / _ROWS) * np.ceil(n / _COLUMNS)
    die_tiles = np.ceil(tiles / gpu.dies)
    # Matrix units run narrower types faster and wider ones slower, in proportion to their width.
    rate = gpu.matrix_tflops * 1e12 / gpu.cus * (2 / size) * _EFFICIENCY
    wave_time_s = 2 * _ROWS * _COLUMNS * k / rate
    waves, times = _tile_times_s(die_tiles, wave_time_s, gpu.cus, node)
    # Equally fast tiles: the first, whatever rounding says, or a changed clock could change the tile.
    best = (times <= times.min(axis=0) * (1 + 1e-9)).argmax(axis=0)
    pick = lambda table: table[best, np.arange(best.size)]  # noqa: E731
    nbytes = size * (m * k + k * n + m * n)
    reads = size * k * pick(tiles * (_ROWS + _COLUMNS))
    return GemmBatch(
        nbytes=nbytes,
        memory_bound=2 * m * n * k / nbytes < gpu.ridge,
        workgroups=pick(tiles),
        waves=pick(waves),
        tile_time_s=pick(wave_time_s),
        beyond_l2_bytes=np.maximum(nbytes, reads / np.sqrt(gpu.cus / gpu.dies)),
        die_tiles=die_tiles,
        wave_time_s=wave_time_s,
    )


def batch(scenarios: Sequence[Scenario], node: Node) -> tuple[GemmBatch, CollectiveBatch]:
    """Scenarios as arrays."""
    gemms = [scenario.gemm for scenario in scenarios]
    collectives = [scenario.collective for scenario in scenarios]
    return (
        gemm_batch(
            [gemm.m for gemm in gemms],
            [gemm.n for gemm in gemms],
            [gemm.k for gemm in gemms],
            [DTYPE_BYTES[gemm.dtype] for gemm in gemms],
            node,
        ),
        CollectiveBatch(
            kind=np.array([COLLECTIVES.index(item.kind) for item in collectives], int),
            sent_bytes=np.array([item.sent_bytes for item in collectives], float),
            peers=np.array([item.ranks - 1 for item in collectives], float),
        ),
    )


def _tile_times_s(die_tiles: NDArray, wave_time_s: NDArray, cus: ArrayLike, node: Node) -> tuple[NDArray, NDArray]:
    """Waves and time of the matrix work for each tile on ``cus`` compute units, ``(tiles, batch)``."""
    gpu = node.gpu
    # Workgroups are dealt to the dies in turn, so the fullest die sets the time; a part of a CU holds no workgroup.
    waves = np.ceil(die_tiles / np.maximum(1, np.floor(np.asarray(cus, float) / gpu.dies + 1e-9)))
    return waves, waves_time_s(die_tiles, waves, wave_time_s, node)


def waves_time_s(die_tiles: NDArray, waves: NDArray, wave_time_s: NDArray, node: Node) -> NDArray:
    """Time of so many rounds; power-limited chips clock higher while fewer CUs work, on average over the rounds."""
    gpu, times = node.gpu, waves * wave_time_s
    if gpu.clock_gain:
        times /= 1 + gpu.clock_gain * (1 - np.minimum(die_tiles * gpu.dies / (waves * gpu.cus), 1))
    return times


def compute_time_s(gemm: GemmBatch, cus: ArrayLike, node: Node) -> NDArray:
    """Time of the matrix work alone: rounds of workgroups times the time of one, for the tile that is fastest there.

    A library picks the tile for the CUs it is given; that keeps a single badly filled wave from doubling the time.
    """
    return _tile_times_s(gemm.die_tiles, gemm.wave_time_s, cus, node)[1].min(axis=0) * gemm.stretch


def gemm_memory_gbs(cus: ArrayLike, node: Node) -> NDArray:
    """Memory bandwidth that a GEMM on ``cus`` compute units can draw: by CUs, by memory, less requestor thrash.

    Thrash is gone once a partition step (one CU a die) is withheld: the form behind Fig. 5a of arXiv 2412.14335, where
    memory-bound GEMMs run up to 10 % *faster* with 8 CUs fewer.
    """
    gpu = node.gpu
    cus = np.asarray(cus, float)
    crowd = np.clip(1 - (gpu.cus - cus) / gpu.cus_step, 0, 1)
    return np.minimum(cus * gpu.cu_hbm_gbs, gpu.hbm_gbs) * (1 - node.interference.requestor_thrash * crowd)


def memory_time_s(gemm: GemmBatch, cus: ArrayLike, node: Node, extra_bytes: ArrayLike = 0.0) -> NDArray:
    """Time of a GEMM's memory traffic alone; ``extra_bytes`` are re-reads on top of the compulsory traffic."""
    return (gemm.nbytes + np.asarray(extra_bytes, float)) / (gemm_memory_gbs(cus, node) * 1e9) * gemm.stretch


def gemm_launch_s(gemm: GemmBatch, node: Node) -> NDArray:
    """Time until a GEMM's first workgroup runs."""
    return node.gpu.launch_us * 1e-6 * gemm.stretch


def gemm_time_s(gemm: GemmBatch, cus: ArrayLike, node: Node) -> NDArray:
    """Isolated GEMM time: launch plus the longer of compute and memory (roofline)."""
    work = np.maximum(compute_time_s(gemm, cus, node), memory_time_s(gemm, cus, node))
    return gemm_launch_s(gemm, node) + work


def link_gbs(node: Node, peers: ArrayLike, transport: str) -> NDArray:
    """Bandwidth out of one GPU over all its links in use, one direction."""
    links = np.minimum(peers, node.link.count) if node.topology == "mesh" else node.link.count
    return np.asarray(links * (node.link.dma_gbs if transport == "dma" else node.link.cu_gbs), float)


def library_field(collective: CollectiveBatch, node: Node, name: str) -> NDArray:
    """A constant of the collective library for each scenario's kind."""
    return np.array([getattr(node.library[kind], name) for kind in COLLECTIVES], float)[collective.kind]


def transfers_per_s(gbs: ArrayLike, collective: CollectiveBatch) -> NDArray:
    """Whole transfers a second at a rate; inf where there is nothing to send."""
    sent_bytes = collective.sent_bytes
    rate = np.broadcast_to(np.asarray(gbs, float) * 1e9 / collective.stretch, sent_bytes.shape)
    return np.divide(rate, sent_bytes, out=np.full(sent_bytes.shape, np.inf), where=sent_bytes > 0)


def cu_collective_gbs(collective: CollectiveBatch, cus: ArrayLike, node: Node) -> NDArray:
    """Rate of a CU-driven collective, bytes sent a second: by its CUs or by the links."""
    return np.minimum(cus * library_field(collective, node, "cu_gbs"), link_gbs(node, collective.peers, "cu"))


def cu_collective_latency_s(collective: CollectiveBatch, node: Node) -> NDArray:
    """Time of a CU-driven collective without its bytes; 0 where there is nothing to send."""
    latency_s = library_field(collective, node, "latency_us") * 1e-6 * collective.stretch
    return np.where(collective.sent_bytes > 0, latency_s, 0.0)


def cu_collective_time_s(collective: CollectiveBatch, cus: ArrayLike, node: Node) -> NDArray:
    """Isolated time of a CU-driven collective, ``t0 + s / B``."""
    rate = transfers_per_s(cu_collective_gbs(collective, cus, node), collective)
    return cu_collective_latency_s(collective, node) + 1 / rate


def library_time_s(collective: CollectiveBatch, node: Node) -> NDArray:
    """Isolated time as the vendor's library runs it by default: the ``Tc`` of every metric."""
    return cu_collective_time_s(collective, library_field(collective, node, "default_cus"), node)


def dma_engines(collective: CollectiveBatch, node: Node) -> NDArray:
    """Engines that a flat plan uses: one a peer, as far as there are engines."""
    return np.minimum(collective.peers, node.dma.peer_engines)


def dma_latency_s(collective: CollectiveBatch, node: Node) -> NDArray:
    """Time of a DMA collective without its bytes: a copy, a command for each peer, a start for each further engine."""
    engines = dma_engines(collective, node)
    cost_us = node.dma.copy_us + node.dma.command_us * collective.peers + node.dma.engine_us * (engines - 1)
    return np.where(collective.sent_bytes > 0, cost_us * 1e-6 * collective.stretch, 0.0)


def dma_collective_time_s(collective: CollectiveBatch, node: Node) -> NDArray:
    """Isolated time of a DMA collective, ``t0 + s / B``."""
    rate = transfers_per_s(link_gbs(node, collective.peers, "dma"), collective)
    return dma_latency_s(collective, node) + 1 / rate


def own_time_s(collective: CollectiveBatch, node: Node, transport: str, blocks: ArrayLike | None = None) -> NDArray:
    """Isolated time by a strategy's own transport, ``"cu"`` (with ``blocks`` thread blocks) or ``"dma"``."""
    if transport == "dma":
        return dma_collective_time_s(collective, node)
    return library_time_s(collective, node) if blocks is None else cu_collective_time_s(collective, blocks, node)
