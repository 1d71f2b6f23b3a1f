"""Speedups, the fraction of ideal, and intervals. All functions take scalars or NumPy arrays of times in seconds.

Source of the formulas: arXiv 2412.14335 as read in ``docs/metrics.md``: ideal ``I = (Tg + Tc) / max(Tg, Tc)``, realised
``S = (Tg + Tc) / Tc3``, fraction of ideal ``F = (S - 1) / (I - 1)``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

UNSTABLE_IDEAL = 1.05
"""Below this ideal speedup F divides by next to nothing; such scenarios are flagged (facts section 1)."""


def ideal_speedup(gemm_time_s: ArrayLike, collective_time_s: ArrayLike) -> NDArray:
    """Speedup over serial if neither kernel slowed the other, between 1 and 2."""
    gemm, collective = np.asarray(gemm_time_s, float), np.asarray(collective_time_s, float)
    return (gemm + collective) / np.maximum(gemm, collective)


def realised_speedup(gemm_time_s: ArrayLike, collective_time_s: ArrayLike, concurrent_time_s: ArrayLike) -> NDArray:
    """Serial time over the time until both, started together, are done."""
    return (np.asarray(gemm_time_s, float) + collective_time_s) / np.asarray(concurrent_time_s, float)


def fraction_of_ideal(realised: ArrayLike, ideal: ArrayLike) -> NDArray:
    """``(S - 1) / (I - 1)``: 1 is perfect overlap, 0 is serial, negative is worse than serial; NaN where I is 1."""
    gain = np.asarray(ideal, float) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gain > 0, (np.asarray(realised, float) - 1) / gain, np.nan)


def fraction_of_mean_ideal(realised: ArrayLike, ideal: ArrayLike) -> float:
    """F of the means, ``(mean S - 1) / (mean I - 1)``: robust where I is near 1, NaN at 1."""
    gain = float(np.mean(np.asarray(ideal, float))) - 1
    return (float(np.mean(np.asarray(realised, float))) - 1) / gain if gain > 0 else float("nan")


def lost_time(gemm_time_s: ArrayLike, collective_time_s: ArrayLike, concurrent_time_s: ArrayLike) -> NDArray:
    """Seconds that the concurrent run takes beyond the longer of the two alone."""
    return np.asarray(concurrent_time_s, float) - np.maximum(gemm_time_s, collective_time_s)


def bootstrap_interval(values: ArrayLike, *, seed: int = 0, confidence: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval (BCa, ``scipy.stats.bootstrap``) of the mean; the value itself twice where all are equal."""
    sample = np.asarray(values, float)
    if sample.size < 2 or np.ptp(sample) <= 1e-12 * np.abs(sample).max():
        return (float(sample.mean()), float(sample.mean()))
    from scipy.stats import bootstrap

    result = bootstrap((sample,), np.mean, confidence_level=confidence, rng=np.random.default_rng(seed))
    return (float(result.confidence_interval.low), float(result.confidence_interval.high))


def median_interval(values: ArrayLike, *, seed: int = 0, confidence: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval (percentile, 2000 resamples) of the median of some repetitions."""
    sample = np.asarray(values, float)
    # By hand: figures of measured data need hundreds of these, and scipy's costs twenty times as much.
    picked = np.random.default_rng(seed).integers(sample.size, size=(2000, sample.size))
    tail = 50 * (1 - confidence)
    low, high = np.percentile(np.median(sample[picked], axis=1), (tail, 100 - tail))
    return float(low), float(high)


def mean_interval(values: ArrayLike, *, seed: int = 0, confidence: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval (percentile, 2000 resamples) of the mean of many values: :func:`bootstrap_interval` at a tenth
    of its time."""
    sample = np.asarray(values, float)
    picked = np.random.default_rng(seed).integers(sample.size, size=(2000, sample.size))
    tail = 50 * (1 - confidence)
    low, high = np.percentile(sample[picked].mean(axis=1), (tail, 100 - tail))
    return float(low), float(high)


def share_interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: sensible at 0 and at 1 too, where a bootstrap has no width."""
    share, z = hits / count, 1.96
    middle, spread = share + z * z / (2 * count), z * np.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    scale = 1 + z * z / count
    return max(0.0, float((middle - spread) / scale)), min(1.0, float((middle + spread) / scale))
