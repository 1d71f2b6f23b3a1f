"""Which resource is to blame: the lost time of a scenario, split over the ways in which one kernel slows the other.

Each mechanism can be switched off in the model. The split is the Shapley value of the lost time: a mechanism's average
effect over all orders of switching them on, so that it does not depend on an order and sums to the loss exactly.
"""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c3lib.hardware import Node
from c3lib.model.contention import best_split, predict
from c3lib.model.kernels import CollectiveBatch, GemmBatch
from c3lib.model.shared_gpu import MECHANISMS, Mechanisms
from c3lib.strategy import Strategy

BLAME_TITLES = {
    "cu": "compute units taken from the GEMM or the collective",
    "hbm": "memory bandwidth shared",
    "queueing": "memory latency under the other's traffic",
    "cache": "cached tiles evicted by CU-driven copies",
    "link": "link rate of the transport",
    "launch": "start and completion cost of the transport",
    "dispatch": "waiting for workgroup slots behind the GEMM",
}


Batch = TypeVar("Batch", GemmBatch, CollectiveBatch)


def _subsets() -> tuple[NDArray, NDArray]:
    """All subsets of the mechanisms, bool ``(2**n, n)``, and the Shapley weights ``(n, 2**n)`` of their values."""
    n = len(MECHANISMS)
    on = np.array([[bool(code >> bit & 1) for bit in range(n)] for code in range(2**n)])
    weights = np.zeros((n, 2**n))
    for mechanism in range(n):
        others = [bit for bit in range(n) if bit != mechanism]
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for chosen in combinations(others, size):
                code = sum(1 << bit for bit in chosen)
                weights[mechanism, code | 1 << mechanism] += weight
                weights[mechanism, code] -= weight
    return on, weights


_ON, _WEIGHTS = _subsets()


def _repeat(part: Batch, times: int) -> Batch:
    return type(part)(**{name: np.repeat(value, times, axis=-1) for name, value in vars(part).items()})


def blame_s(
    gemm: GemmBatch, collective: CollectiveBatch, node: Node, strategy: Strategy, *, cus: ArrayLike | None = None
) -> dict[str, NDArray]:
    """Seconds of lost time by mechanism, each ``(batch,)``; they sum to ``time - max(Tg, Tc)``.

    A negative value is a gain: withholding CUs from a memory-bound GEMM can speed it up, and a DMA engine can drive a
    link faster than the library does.
    """
    if cus is None and strategy.partition == "sweep":
        cus = best_split(gemm, collective, node, strategy)
    batch, subsets = gemm.nbytes.shape[0], len(_ON)
    if cus is not None:
        cus = np.repeat(np.broadcast_to(np.asarray(cus, float), (batch,)), subsets)
    switches = Mechanisms(*(np.tile(_ON[:, bit], batch) for bit in range(len(MECHANISMS))))
    prediction = predict(_repeat(gemm, subsets), _repeat(collective, subsets), node, strategy, cus=cus, on=switches)
    values = prediction.time_s.reshape(batch, subsets)
    return {name: values @ _WEIGHTS[bit] for bit, name in enumerate(MECHANISMS)}
