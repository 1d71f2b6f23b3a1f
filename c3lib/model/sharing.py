"""The law of sharing: what each of several running tasks gets of a resource that all of them want."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def waterfill(demand: NDArray, capacity: float) -> NDArray:
    """Max-min fair grant of one resource. ``demand`` has shape ``(tasks, ...)``; the grant has the same.

    Small demands are met in full and the rest is split evenly among the others: what a memory system does whose queues
    are served in turn. The grants sum to ``min(capacity, total demand)`` and none exceeds its demand.
    """
    if len(demand) == 2:  # in closed form, as this is most of what the model shares
        return np.minimum(demand, np.maximum(capacity / 2, capacity - demand[::-1]))
    order = np.argsort(demand, axis=0)
    ranked = np.take_along_axis(demand, order, 0)
    tasks = len(demand)
    left = np.full(demand.shape[1:], float(capacity))
    for position in range(tasks):
        ranked[position] = np.minimum(ranked[position], left / (tasks - position))
        left = left - ranked[position]
    grant = np.empty_like(ranked)
    np.put_along_axis(grant, order, ranked, 0)
    return grant


def flood_share(copying_cus: ArrayLike, flood_cus: ArrayLike) -> NDArray:
    """What is left of a GEMM's rate beside a copy that keeps more requests in flight than its link drains.

    Every copying CU keeps a fixed number of bytes in flight. Up to ``flood_cus`` CUs the link and its queues take them;
    beyond, they back up into the memory system that the GEMM uses too, and its requests pass at the pace of the link::

        share = min(1, (flood_cus / copying_cus)^2)

    Empirical (measured on one H200, table ``order``): the threshold is a node's constant, the square is the same for
    compute- and memory-bound GEMMs. ``flood_cus`` 0 means that there is no such limit.
    """
    copying, limit = np.asarray(copying_cus, float), np.asarray(flood_cus, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((limit > 0) & (copying > limit), (limit / copying) ** 2, 1.0)


def queued_rates(
    by_units: NDArray,
    by_path: NDArray,
    traffic: NDArray,
    coefficients: Sequence[ArrayLike],
    capacity: float,
) -> NDArray:
    """Rates of tasks that slow one another through memory latency, shape ``(tasks, ...)``.

    A kernel on CUs keeps a bounded number of loads in flight, so what its CUs can do falls in proportion to latency,
    and latency grows with the traffic of the others (first order)::

        rate_i = min(by_path_i, by_units_i / (1 + coefficient_i * sum_{j != i} rate_j * traffic_j / capacity))

    Args:
        by_units: rate that a task's CUs or engine sustain with an idle memory system.
        by_path: rate that links allow; inf where there is none.
        traffic: memory traffic of the whole task, bytes.
        coefficients: how much each task waits for its loads (DMA engines: 0), numbers or arrays of the shape ``...``.
        capacity: memory bandwidth, B/s.

    The rates are the fixed point: of two tasks in closed form, of more by iteration (each pass shrinks the error
    several times).
    """
    if len(by_units) == 2:
        return _two_queued_rates(by_units, by_path, traffic, coefficients, capacity)
    rate = np.minimum(by_units, by_path)
    load_factor = np.stack(np.broadcast_arrays(*(np.asarray(waits) / capacity for waits in coefficients)))
    load_factor = load_factor.reshape(load_factor.shape + (1,) * (rate.ndim - load_factor.ndim))
    # Each scenario stops at its own pass: its result must not depend on what else is in the batch.
    done = np.zeros(np.broadcast_shapes(rate.shape, load_factor.shape)[1:], bool)
    for _ in range(200):
        load = rate * traffic
        others = load.sum(axis=0) - load
        following = np.minimum(by_path, by_units / (1 + load_factor * others))
        settled = np.all(np.abs(following - rate) <= 1e-9 * rate, axis=0)
        rate = np.where(done, rate, following)
        done = done | settled
        if done.all():
            break
    return rate


def _two_queued_rates(
    by_units: NDArray, by_path: NDArray, traffic: NDArray, coefficients: Sequence[ArrayLike], capacity: float
) -> NDArray:
    """:func:`queued_rates` of two tasks.

    Without paths, with ``u`` by units, ``a`` what a unit of the other's rate adds to the first's latency and ``b`` what
    one of the first's adds to the other's, the first rate solves ``b x^2 + (1 + a u_other - b u) x - u = 0``, whose
    roots have opposite signs. Each rate falls as the other grows, so a path that is below that solution binds.
    """
    first, other = by_units
    a, b = (np.asarray(waits) / capacity * load for waits, load in zip(coefficients, traffic[::-1], strict=True))
    linear = 1 + a * other - b * first
    root = np.sqrt(linear * linear + 4 * b * first)
    with np.errstate(divide="ignore", invalid="ignore"):  # the form that does not subtract two equal numbers
        free = np.where(linear >= 0, 2 * first / (linear + root), (root - linear) / (2 * b))
    rate = np.minimum(free, by_path[0])
    second = np.minimum(other / (1 + b * rate), by_path[1])
    return np.stack(np.broadcast_arrays(np.minimum(first / (1 + a * second), by_path[0]), second))
