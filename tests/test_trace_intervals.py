"""Arithmetic of intervals against counting every point of the line."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from c3lib.trace.intervals import covered, groups, together, within

intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda one: (one[0], sum(one))), max_size=12)


def arrays(some):
    return np.array([one for one, _ in some], np.int64), np.array([two for _, two in some], np.int64)


def points(some):
    """How many of the intervals run from each whole number to the next."""
    return [sum(start <= point < end for start, end in some) for point in range(50)]


@given(intervals, st.integers(1, 4))
def test_covered_is_where_so_many_run(some, least):
    spans = covered(*arrays(some), least=least)
    inside = points(list(zip(*spans, strict=True)))
    assert inside == [int(count >= least) for count in points(some)]
    assert spans.length == sum(inside)
    assert (spans.end > spans.start).all()
    assert (spans.start[1:] > spans.end[:-1]).all()  # as few spans as there can be


@given(intervals, intervals)
def test_the_union_of_two(one, other):
    spans = together(covered(*arrays(one)), covered(*arrays(other)))
    assert spans.length == sum(bool(a or b) for a, b in zip(points(one), points(other), strict=True))


@given(intervals, intervals)
def test_within_is_what_of_each_interval_lies_in_the_spans(some, asked):
    inside = points(some)
    expected = [sum(count > 0 for count in inside[start:end]) for start, end in asked]
    assert within(covered(*arrays(some)), *arrays(asked)).tolist() == expected


def test_nanoseconds_since_1970_are_exact():
    start, end = np.array([1_790_857_026_000_000_001]), np.array([1_790_857_026_000_000_004])
    assert covered(start, end).length == 3
    assert within(covered(start, end), start + 1, end + 5).tolist() == [2]


@given(st.lists(st.integers(-3, 3), max_size=12))
def test_groups_are_the_places_of_each_value(key):
    found = {one: places.tolist() for one, places in groups(np.array(key, np.int64)).items()}
    assert found == {one: [place for place, value in enumerate(key) if value == one] for one in sorted(set(key))}
