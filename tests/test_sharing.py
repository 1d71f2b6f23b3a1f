"""The law of sharing: grants in closed form, and the fixed point of the queued rates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib.model.sharing import queued_rates, waterfill

demands = st.lists(st.floats(0, 100), min_size=1, max_size=5).map(np.array)


@pytest.mark.parametrize(
    ("demand", "capacity", "grant"),
    [
        ([3, 4], 10, [3, 4]),
        ([8, 8], 10, [5, 5]),
        ([2, 12], 10, [2, 8]),
        ([12, 2], 10, [8, 2]),
        ([9, 1, 9], 10, [4.5, 1, 4.5]),
        ([0, 20], 10, [0, 10]),
        ([5, 5], 0, [0, 0]),
        ([7], 10, [7]),
    ],
)
def test_grants_by_hand(demand, capacity, grant):
    assert waterfill(np.array(demand, float), capacity) == pytest.approx(np.array(grant))


@given(demands, st.floats(0, 200))
def test_grants_are_max_min_fair(demand, capacity):
    grant = waterfill(demand, capacity)
    assert (grant <= demand + 1e-9).all()
    assert grant.sum() == pytest.approx(min(capacity, demand.sum()), abs=1e-9)
    cut = grant < demand - 1e-9
    # Whoever is cut gets no less than anybody else: nobody could be given more without taking from a poorer one.
    assert not cut.any() or (grant[cut].min() >= grant.max() - 1e-9)


@given(demands, st.floats(0, 200), st.randoms(use_true_random=False))
def test_order_of_tasks_is_irrelevant(demand, capacity, random):
    order = list(range(len(demand)))
    random.shuffle(order)
    assert waterfill(demand[order], capacity) == pytest.approx(waterfill(demand, capacity)[order], abs=1e-9)


def test_the_demand_is_left_as_it_was():
    demand = np.array([[8.0, 1.0], [8.0, 1.0]])
    waterfill(demand, 10)
    assert demand.tolist() == [[8.0, 1.0], [8.0, 1.0]]


def pair(*values):
    return np.array(values, float)[:, None]


def test_no_queueing_leaves_the_smaller_of_units_and_path():
    rate = queued_rates(pair(2, 5), pair(3, 4), pair(1, 1), (0, 0), 10)
    assert rate[:, 0] == pytest.approx([2, 4])


def test_one_that_does_not_wait_slows_the_other_only():
    """Closed form: a DMA engine moves 4 of 10 bytes a second, the kernel falls by 1 + 2.5 x 0.4 = 2."""
    rate = queued_rates(pair(6, 4), pair(np.inf, np.inf), pair(1, 1), (2.5, 0), 10)
    assert rate[:, 0] == pytest.approx([3, 4])


def test_equal_kernels_meet_at_the_root_of_the_quadratic():
    """r = u / (1 + q r / C) with u = 6, q / C = 1: r^2 + r - 6 = 0, r = 2."""
    rate = queued_rates(pair(6, 6), pair(np.inf, np.inf), pair(1, 1), (10, 10), 10)
    assert rate[:, 0] == pytest.approx([2, 2], rel=1e-6)


def test_slack_in_the_units_is_lost_first():
    """Units for 8, a path for 4: queueing by 1 + 1 halves the units to 4, and the rate does not move."""
    rate = queued_rates(pair(8, 10), pair(4, np.inf), pair(1, 1), (1, 0), 10)
    assert rate[:, 0] == pytest.approx([4, 10])


rates = st.floats(0.01, 100)


waiting = st.just(0.0) | st.floats(0, 5)


@given(rates, rates, rates, rates, st.tuples(waiting, waiting))
def test_rates_solve_their_own_equation(first, second, first_path, second_path, coefficients):
    units, path, traffic, capacity = pair(first, second), pair(first_path, second_path), pair(1, 2), 50.0
    rate = queued_rates(units, path, traffic, coefficients, capacity)
    load = (rate * traffic)[::-1] / capacity
    again = np.minimum(path, units / (1 + np.array(coefficients)[:, None] * load))
    assert rate == pytest.approx(again, rel=1e-6)


def test_a_rate_that_queueing_leaves_next_to_nothing_keeps_its_digits():
    """u / (1 + q r / C) = r with q = C: 10^9 units beside 17 of another; and the other way round."""
    units = pair(1e9, 17)
    for turn in (slice(None), slice(None, None, -1)):
        rate = queued_rates(units[turn], pair(np.inf, np.inf), pair(1, 1), (10, 10), 10)[turn]
        assert rate == pytest.approx(units / (1 + rate[::-1]), rel=1e-9, abs=0)


two_tasks = st.lists(
    st.tuples(*[st.floats(0, 1e4)] * 2, *[rates | st.just(np.inf)] * 2, rates, rates), min_size=1, max_size=5
)


@given(two_tasks, st.tuples(waiting, waiting))
def test_two_tasks_in_closed_form_solve_their_own_equation(cases, coefficients):
    """From no queueing to where it leaves next to nothing, in a batch of any size."""
    units, path, traffic = np.array(cases).T.reshape(3, 2, -1)
    rate = queued_rates(units, path, traffic, coefficients, 50.0)
    load = (rate * traffic)[::-1] / 50.0
    again = np.minimum(path, units / (1 + np.array(coefficients)[:, None] * load))
    assert rate == pytest.approx(again, rel=1e-6, abs=1e-9)


@given(rates, rates, rates, rates, st.tuples(waiting, waiting))
def test_two_tasks_in_closed_form_are_where_iteration_goes(first, second, first_path, second_path, coefficients):
    """A third task that does nothing makes it iterate."""
    parts = pair(first, second), pair(first_path, second_path), pair(1, 2)
    more = [np.vstack([part, [[0.0]]]) for part in parts]
    found = queued_rates(*parts, coefficients, 500.0)
    assert found == pytest.approx(queued_rates(*more, (*coefficients, 0), 500.0)[:2], rel=1e-6)
    demand = parts[0]
    assert waterfill(demand, 50.0) == pytest.approx(waterfill(more[0], 50.0)[:2])
