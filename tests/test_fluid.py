"""The event loop: closed forms first, then conservation on random graphs and laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c3lib.errors import C3Error
from c3lib.model import fluid, sharing


def constant(*rates):
    return lambda running: np.broadcast_to(np.array(rates, float), running.shape)


def shared(capacity, demand):
    """Tasks that want ``demand`` each of one resource; work is measured in the resource's unit."""

    def law(running):
        wanted = np.where(running, demand, 0.0).T
        return sharing.waterfill(wanted, capacity).T

    return law


@pytest.mark.parametrize(
    ("work", "delay", "after", "rates", "ends"),
    [
        ([6], [0], [()], [2], [3]),
        ([6], [1], [()], [2], [4]),
        ([6, 4], [0, 0], [(), ()], [2, 4], [3, 1]),
        ([6, 4], [0, 0], [(), (0,)], [2, 4], [3, 4]),
        ([6, 4], [1, 0.5], [(), (0,)], [2, 4], [4, 5.5]),
        ([2, 2, 2], [0, 0, 0], [(), (), (0, 1)], [1, 2, 4], [2, 1, 2.5]),
        ([0], [0], [()], [1], [0]),
        ([0], [3], [()], [1], [3]),
        ([0, 0, 5], [0, 0, 0], [(), (0,), (1,)], [1, 1, 1], [0, 0, 5]),
        ([4, 0, 4], [0, 1, 0], [(), (0,), (1,)], [1, 1, 1], [4, 5, 9]),
    ],
    ids=[
        "single",
        "delay",
        "independent",
        "chain",
        "chain delays",
        "join",
        "no work",
        "only delay",
        "empty chain",
        "gap",
    ],
)
def test_closed_forms(work, delay, after, rates, ends):
    result = fluid.run(np.array([work], float), np.array([delay], float), after, constant(*rates))
    assert result.end_s[0] == pytest.approx(ends)


def test_one_fully_shared_resource_gives_the_sum():
    """Two tasks that each use a whole resource: together they take as long as one after the other."""
    result = fluid.run(np.array([[3.0, 5.0]]), np.zeros((1, 2)), [(), ()], shared(1.0, 1.0))
    assert result.end_s[0] == pytest.approx([6.0, 8.0])  # the short one at half rate, then the rest alone


def test_a_resource_with_room_for_both_gives_the_maximum():
    result = fluid.run(np.array([[3.0, 5.0]]), np.zeros((1, 2)), [(), ()], shared(2.0, 1.0))
    assert result.end_s[0].max() == 5.0


@pytest.mark.parametrize("after", [[(1,), (0,)], [(0,)], [(), (2,), (1,)]])
def test_a_cycle_is_an_error(after):
    tasks = len(after)
    with pytest.raises(C3Error, match="cycle"):
        fluid.run(np.ones((1, tasks)), np.zeros((1, tasks)), after, constant(*[1.0] * tasks))


@pytest.mark.parametrize("rate", [0.0, np.nan])
def test_a_starved_task_is_an_error(rate):
    with pytest.raises(C3Error, match="cannot finish"):
        fluid.run(np.array([[1.0, 1.0]]), np.zeros((1, 2)), [(), ()], constant(1.0, rate))


def test_starving_until_another_ends_is_no_error():
    def law(running):
        return np.stack([running[:, 0], ~running[:, 0]], -1).astype(float)

    assert fluid.run(np.array([[2.0, 3.0]]), np.zeros((1, 2)), [(), ()], law).end_s[0] == pytest.approx([2, 5])


def test_nothing_recorded_unless_asked():
    assert fluid.run(np.ones((1, 1)), np.zeros((1, 1)), [()], constant(1.0)).intervals == []


@st.composite
def graphs(draw):
    tasks = draw(st.integers(1, 6))
    amounts = st.just(0.0) | st.floats(0.01, 100)
    table = lambda: np.array(draw(st.lists(st.lists(amounts, min_size=tasks, max_size=tasks), min_size=3, max_size=3)))  # noqa: E731
    after = [draw(st.sets(st.integers(0, task - 1))) if task else set() for task in range(tasks)]
    demand = np.array(draw(st.lists(st.floats(0.1, 10), min_size=tasks, max_size=tasks)))
    return table(), table(), [tuple(sorted(wait)) for wait in after], demand


@settings(max_examples=60)
@given(graphs())
def test_work_is_conserved_and_order_kept(graph):
    work, delay, after, demand = graph
    result = fluid.run(work, delay, after, shared(4.0, demand), record=True)
    done = sum(np.where(span.running, span.rate, 0) * (span.end_s - span.start_s)[:, None] for span in result.intervals)
    assert np.broadcast_to(done, work.shape) == pytest.approx(work, rel=1e-9, abs=1e-9)
    for task, waits in enumerate(after):
        begin = result.end_s[:, list(waits)].max(axis=1) if waits else np.zeros(len(work))
        assert result.start_s[:, task] == pytest.approx(begin + delay[:, task], rel=1e-9)
    assert (result.end_s >= result.start_s).all()
    for span in result.intervals:
        assert (np.where(span.running, span.rate, 0).sum(axis=1) <= 4.0 + 1e-9).all()


@settings(max_examples=40)
@given(graphs())
def test_a_batch_is_its_runs_one_by_one(graph):
    work, delay, after, demand = graph
    together = fluid.run(work, delay, after, shared(4.0, demand)).end_s
    for row in range(len(work)):
        one = slice(row, row + 1)
        alone = fluid.run(work[one], delay[one], after, shared(4.0, demand)).end_s
        assert together[row] == pytest.approx(alone[0], rel=1e-12, abs=1e-12)
