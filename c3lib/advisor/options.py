"""What each strategy that a program can choose beforehand would take, by the contention model, over many pairs.

No oracle: where a strategy sets CUs aside, the rules of :mod:`c3lib.heuristics` and
:func:`c3lib.model.contention.withheld_cus` say how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from c3lib import heuristics
from c3lib.explain import NOTHING
from c3lib.hardware import COLLECTIVES, Node
from c3lib.model import kernels
from c3lib.model.contention import predict, withheld_cus
from c3lib.strategy import STRATEGIES, strategy
from c3lib.workload import Scenario

SERIAL = "serial"
"""The strategy of not overlapping: the GEMM, then the library's collective."""

SIZES = 2 ** np.arange(12, 33)
"""Total sizes at which break-even is looked for: 4 KiB to 4 GiB. A model that is off by a tenth earns no finer ones."""

ROUNDING = 1e-9
"""Times that differ by less than this share are equal."""


@dataclass(frozen=True)
class Options:
    """Seconds and CU counts: ``(pairs,)`` alone, ``(pairs, strategies)`` beside each other.

    ``cus``: CUs that the program withholds from the GEMM (0: none by its own doing).
    """

    strategies: tuple[str, ...]
    gemm_alone_s: NDArray
    collective_alone_s: NDArray  # by the vendor's library, as in every metric
    start_s: NDArray  # of that: what it takes without its bytes
    time_s: NDArray
    cus: NDArray

    def serial_s(self, groups: NDArray) -> NDArray:
        """One after the other, ``(groups,)``: every GEMM, and the collective that they are beside once as a whole."""
        once = np.zeros(int(groups.max(initial=-1)) + 1)
        np.maximum.at(once, groups, self.start_s)
        return total(self.gemm_alone_s + (self.collective_alone_s - self.start_s), groups) + once


def offered(names: Sequence[str] | None = None) -> tuple[str, ...]:
    """The strategies to choose from, in the order in which the simplest of equals comes first; default: all.

    Raises :class:`C3Error` for an unknown one.
    """
    chosen = {strategy(name).name for name in (STRATEGIES if names is None else names)}
    return tuple(name for name in STRATEGIES if name in chosen)


def options(scenarios: Sequence[Scenario], node: Node, names: Sequence[str], nbytes: NDArray | None = None) -> Options:
    """Every scenario under every strategy; with ``nbytes`` ``(pairs, sizes)``, each at these total sizes instead.

    With sizes, pairs are repeated: row ``pair * sizes + size``.
    """
    gemm, collective = kernels.batch(scenarios, node)
    ranks = np.array([scenario.collective.ranks for scenario in scenarios])
    if nbytes is not None:
        times = nbytes.shape[1]
        ranks = np.repeat(ranks, times)
        gemm = replace(gemm, **{name: np.repeat(value, times, axis=-1) for name, value in vars(gemm).items()})
        sent = (ranks - 1) * np.ceil(nbytes.ravel() / ranks)
        collective = kernels.CollectiveBatch(np.repeat(collective.kind, times), sent, ranks - 1.0)
    found = np.empty((2, len(ranks), len(names)))
    swept = any(strategy(name).partition == "sweep" for name in names)
    split = _split(scenarios, gemm, collective, ranks, node) if swept else None
    for column, name in enumerate(names):
        how = strategy(name)
        cus = {"sweep": split, "memory-bound": withheld_cus(gemm, node)}.get(how.partition)
        found[0, :, column] = predict(gemm, collective, node, how, cus=cus).time_s
        found[1, :, column] = 0 if cus is None else cus
    return Options(
        strategies=tuple(names),
        gemm_alone_s=kernels.gemm_time_s(gemm, node.gpu.cus, node),
        collective_alone_s=kernels.library_time_s(collective, node),
        start_s=kernels.cu_collective_latency_s(collective, node),
        time_s=found[0],
        cus=found[1].astype(int),
    )


def _split(
    scenarios: Sequence[Scenario],
    gemm: kernels.GemmBatch,
    collective: kernels.CollectiveBatch,
    ranks: NDArray,
    node: Node,
) -> NDArray:
    """CUs for the collective by the rule of :func:`c3lib.heuristics.cu_split`, for pairs that may be repeated."""
    times = len(ranks) // max(1, len(scenarios))
    gemm_s = np.repeat([heuristics.gemm_roofline_s(scenario.gemm, node) for scenario in scenarios], times)
    collective_s = heuristics.link_time_s(collective.sent_bytes, ranks, node)
    bounds = np.where(gemm.memory_bound, "memory", "compute").tolist()
    kinds = [COLLECTIVES[index] for index in collective.kind]
    return heuristics.split_for(gemm_s, collective_s, bounds, kinds, node)


def total(values: NDArray, groups: NDArray) -> NDArray:
    """Sums over the pairs of a group, ``(groups, ...)``; ``groups`` numbers each pair's from 0."""
    sums = np.zeros((int(groups.max(initial=-1)) + 1, *values.shape[1:]))
    np.add.at(sums, groups, values)
    return sums


def fastest(found: Options, groups: NDArray) -> NDArray:
    """The column of the strategy with the shortest time over each group, ``(groups,)``; of equals the simplest.

    A collective is run one way, so what runs beside pieces of the same one is decided together.
    """
    times = total(found.time_s, groups)
    return (times <= times.min(axis=1, keepdims=True) * (1 + ROUNDING)).argmax(axis=1)


def best(found: Options, groups: NDArray) -> NDArray:
    """:func:`fastest`, but -1 where that gains nothing over serial: ``(groups,)``."""
    pays = found.serial_s(groups) >= total(found.time_s, groups).min(axis=1) * (1 + NOTHING)
    sends = total(found.collective_alone_s, groups) > 0
    return np.where(pays & sends, fastest(found, groups), -1)


def break_even(
    scenarios: Sequence[Scenario], node: Node, names: Sequence[str], shares: NDArray, groups: NDArray
) -> tuple[NDArray, NDArray]:
    """The smallest of :data:`SIZES` from which overlap pays, and from which DMA is the better way; 0 where none does.

    Sizes are totals of a group, of which each pair has its ``shares``. Overlap pays where the fastest strategy gains
    over serial; DMA is better where it also beats every CU-driven one on offer.
    """
    found = options(scenarios, node, names, np.ceil(shares[:, None] * SIZES))
    at_size = (groups[:, None] * len(SIZES) + np.arange(len(SIZES))).ravel()
    gain = found.serial_s(at_size)[:, None] / total(found.time_s, at_size)
    gain = gain.reshape(-1, len(SIZES), len(names))
    dma = np.array([STRATEGIES[name].transport == "dma" for name in names])
    best_of = lambda those: gain[:, :, those].max(axis=2, initial=0.0)  # noqa: E731
    pays = gain.max(axis=2, initial=0.0) >= 1 + NOTHING
    return _first(pays), _first(pays & (best_of(dma) > best_of(~dma) * (1 + ROUNDING)))


def _first(good: NDArray) -> NDArray:
    return np.where(good.any(axis=1), SIZES[good.argmax(axis=1)], 0)
