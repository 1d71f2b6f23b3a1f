"""Metrics: their identities in closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib import metrics

times = st.floats(1e-6, 1e3)


@pytest.mark.parametrize(
    ("gemm_s", "collective_s", "ideal"), [(1, 1, 2), (3, 1, 4 / 3), (1, 3, 4 / 3), (1, 0, 1), (2, 2.3, 4.3 / 2.3)]
)
def test_ideal_by_hand(gemm_s, collective_s, ideal):
    assert metrics.ideal_speedup(gemm_s, collective_s) == pytest.approx(ideal)


@given(times, times)
def test_ideal_lies_between_one_and_two_and_mirrors(gemm_s, collective_s):
    ideal = metrics.ideal_speedup(gemm_s, collective_s)
    assert 1 <= ideal <= 2
    assert ideal == metrics.ideal_speedup(collective_s, gemm_s)


@given(times, times)
def test_perfect_overlap_is_one_and_serial_is_zero(gemm_s, collective_s):
    ideal = metrics.ideal_speedup(gemm_s, collective_s)
    if ideal < 1 + 1e-6:
        return
    for concurrent, fraction in ((max(gemm_s, collective_s), 1.0), (gemm_s + collective_s, 0.0)):
        realised = metrics.realised_speedup(gemm_s, collective_s, concurrent)
        assert metrics.fraction_of_ideal(realised, ideal) == pytest.approx(fraction, abs=1e-9)


@given(times, times, st.floats(0.0, 1.0))
def test_worse_than_serial_is_negative(gemm_s, collective_s, more):
    slow = (gemm_s + collective_s) * (1.001 + more)
    realised = metrics.realised_speedup(gemm_s, collective_s, slow)
    fraction = metrics.fraction_of_ideal(realised, metrics.ideal_speedup(gemm_s, collective_s))
    assert np.isnan(fraction) or fraction < 0


def test_fraction_by_hand():
    assert metrics.fraction_of_ideal(1.13, 1.62) == pytest.approx(0.13 / 0.62)


def test_fraction_of_an_ideal_of_one_is_undefined():
    assert np.isnan(metrics.fraction_of_ideal(1.0, 1.0))
    assert np.isnan(metrics.fraction_of_mean_ideal([1.0, 1.0], [1.0, 1.0]))


def test_fraction_of_means_is_not_the_mean_of_fractions():
    realised, ideal = np.array([1.1, 1.5]), np.array([1.2, 2.0])
    assert metrics.fraction_of_mean_ideal(realised, ideal) == pytest.approx(0.3 / 0.6)
    assert metrics.fraction_of_ideal(realised, ideal) == pytest.approx([0.5, 0.5])
    assert metrics.fraction_of_mean_ideal([1.0, 2.0], [1.2, 2.0]) == pytest.approx(0.5 / 0.6)


def test_lost_time_by_hand():
    assert metrics.lost_time([2.0, 1.0], [1.0, 3.0], [2.5, 3.0]) == pytest.approx([0.5, 0.0])


@given(st.lists(st.floats(0, 1), min_size=3, max_size=30), st.integers(0, 5))
def test_interval_holds_the_mean_and_repeats_by_seed(values, seed):
    if np.ptp(values) < 1e-3:
        return
    low, high = metrics.bootstrap_interval(values, seed=seed)
    assert min(values) - 1e-9 <= low <= np.mean(values) <= high <= max(values) + 1e-9
    assert (low, high) == metrics.bootstrap_interval(values, seed=seed)


@pytest.mark.parametrize("values", [[0.4], [0.4, 0.4, 0.4]])
def test_interval_of_equal_values_is_the_value(values):
    assert metrics.bootstrap_interval(values) == pytest.approx((0.4, 0.4))


def test_interval_of_a_normal_sample_is_near_the_closed_form():
    sample = np.random.default_rng(3).normal(10.0, 2.0, 400)
    low, high = metrics.bootstrap_interval(sample)
    half = 1.96 * sample.std(ddof=1) / 20
    assert low == pytest.approx(sample.mean() - half, abs=0.05)
    assert high == pytest.approx(sample.mean() + half, abs=0.05)


def test_interval_of_the_mean_of_many_values_is_near_the_closed_form_too():
    sample = np.random.default_rng(2).normal(10.0, 1.0, 400)
    low, high = metrics.mean_interval(sample)
    assert (high - low) / 2 == pytest.approx(1.96 * sample.std() / 20, rel=0.1)
    assert (low + high) / 2 == pytest.approx(sample.mean(), abs=0.02)
    assert metrics.mean_interval(sample) == (low, high)
    assert metrics.mean_interval([0.5, 0.5]) == (0.5, 0.5)


def test_intervals_of_shares_by_hand():
    low, high = metrics.share_interval(81, 100)
    assert (round(low, 3), round(high, 3)) == (0.722, 0.875)
    assert metrics.share_interval(10, 10) == (pytest.approx(0.722, abs=1e-3), 1.0)
    assert metrics.share_interval(0, 10) == (0.0, pytest.approx(0.278, abs=1e-3))
