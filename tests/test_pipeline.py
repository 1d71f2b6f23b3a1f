"""Two queues of one GPU: closed forms of the schedules first, then the general event loop and what must always hold."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c3lib.errors import C3Error
from c3lib.ficco import Problem, build
from c3lib.hardware import load_node
from c3lib.model import fluid
from c3lib.model.order import loss_free
from c3lib.model.pipeline import Lanes, simulate

MESH, SWITCH = load_node("mi300x_8"), load_node("h200_8")
TIMES = [(8.0, 8.0), (8.0, 2.0), (2.0, 8.0), (8.0, 7.5), (8.0, 7.0), (1.0, 0.1), (8.0, 0.0)]


def lanes(kernel_s, exchange_s, waits, beside=1.0, slowed=1.0, launch_s=0.0, start_s=0.0):
    """Lanes whose kernels take ``beside`` times as long while bytes move, and leave the exchange ``slowed``."""
    kernel_s, exchange_s = tuple(map(float, kernel_s)), tuple(map(float, exchange_s))
    count = len(kernel_s)
    beside_s = tuple(seconds * beside for seconds in kernel_s)
    starts, launches = (start_s,) * len(exchange_s), (launch_s,) * count
    return Lanes(kernel_s, beside_s, launches, tuple(waits), (slowed,) * count, exchange_s, starts)


# --- closed forms ---


@pytest.mark.parametrize(("gemm_s", "exchange_s"), TIMES)
@pytest.mark.parametrize("pieces", [1, 2, 8])
def test_uniform_pieces(gemm_s, exchange_s, pieces):
    """First piece exposed, last GEMM exposed, the longer lane in between."""
    g, c = gemm_s / pieces, exchange_s / pieces
    found = simulate(lanes([g] * pieces, [c] * pieces, range(1, pieces + 1)))
    assert found.time_s == pytest.approx(c + (pieces - 1) * max(g, c) + g)


@pytest.mark.parametrize(("gemm_s", "exchange_s"), TIMES)
def test_the_own_shard_first(gemm_s, exchange_s):
    """The published-form bound counts a barrier after the own shard; without one it is exact outside a narrow band."""
    own, g, c = gemm_s / 8, 7 * gemm_s / 64, exchange_s / 8
    found = simulate(lanes([own] + [g] * 8, [c] * 8, range(9))).time_s
    bound = max(own, c) + 7 * max(g, c) + g
    if g < c < own:
        assert max(gemm_s, exchange_s) <= found <= bound
    else:
        assert found == pytest.approx(bound)


@pytest.mark.parametrize(("gemm_s", "exchange_s"), TIMES)
@pytest.mark.parametrize(("node", "penalty"), [(SWITCH, 1), (MESH, 7)], ids=["switch", "mesh"])
def test_shards_from_one_peer_at_a_time(gemm_s, exchange_s, node, penalty):
    """On a mesh one peer means one link of seven, behind a switch the whole port."""
    program = build("shard_p2p", Problem.all_gather(8 * 64, 64, 64, 8))
    found = simulate(loss_free(program, gemm_s, exchange_s, node, "dma")).time_s
    assert found == pytest.approx(7 * max(gemm_s / 8, penalty * exchange_s / 7) + gemm_s / 8)


@pytest.mark.parametrize(("gemm_s", "exchange_s"), TIMES)
@pytest.mark.parametrize("kind", [Problem.all_gather, Problem.all_to_all])
def test_programs_without_losses_are_the_closed_forms(gemm_s, exchange_s, kind):
    """The same three from the graphs themselves, on either topology; serial is the sum."""
    problem = kind(8 * 64, 64, 64, 8)
    found = {
        name: [
            simulate(loss_free(build(name, problem), gemm_s, exchange_s, node, "dma")).time_s for node in (MESH, SWITCH)
        ]
        for name in ("serial", "uniform_fused_1d", "uniform_fused_2d", "hetero_fused_1d", "hetero_unfused_1d")
    }
    assert found["serial"] == pytest.approx([gemm_s + exchange_s] * 2)
    g, c = gemm_s / 8, exchange_s / 8
    for name in ("uniform_fused_1d", "uniform_fused_2d"):
        assert found[name] == pytest.approx([c + 7 * max(g, c) + g] * 2), name
    for name in ("hetero_fused_1d", "hetero_unfused_1d"):
        hetero = simulate(lanes([g] + [7 * g / 8] * 8, [c] * 8, range(9))).time_s
        assert found[name] == pytest.approx([hetero] * 2), name


def test_no_exchange_is_the_kernels_one_after_another():
    assert simulate(lanes([2, 3], [], [0, 0], launch_s=0.5)).time_s == 5.5  # one launch: the queue is never empty again


def test_serial_is_the_sum_of_everything():
    assert simulate(lanes([4], [3], [1], launch_s=0.5, start_s=0.25)).time_s == 7.75


def test_a_launch_is_paid_only_where_the_queue_was_empty():
    """Kernels of 1 s behind exchanges of 2 s find an empty queue each time; exchanges of 0.5 s fill it."""
    assert simulate(lanes([1] * 3, [2] * 3, [1, 2, 3], launch_s=0.125)).time_s == 3 * 2 + 0.125 + 1
    assert simulate(lanes([1] * 3, [0.5] * 3, [1, 2, 3], launch_s=0.125)).time_s == 0.5 + 0.125 + 3


def test_while_an_exchange_starts_no_byte_moves_and_no_kernel_is_slowed():
    found = simulate(lanes([1], [1], [0], beside=2, start_s=1))
    assert found.kernels == ((0, 1),)
    assert found.exchanges == ((1, 2),)


@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=6),
    st.lists(st.floats(0.01, 10), min_size=1, max_size=6),
    st.floats(0.05, 0.95),
)
def test_one_fully_shared_resource_gives_the_sum(kernel_s, exchange_s, share):
    """Whatever part of it either gets: nothing waits, so together they take as long as one after the other."""
    both = lanes(kernel_s, exchange_s, [0] * len(kernel_s), beside=1 / share, slowed=1 - share)
    assert simulate(both).time_s == pytest.approx(sum(kernel_s) + sum(exchange_s))


def test_a_kernel_that_waits_for_nothing_there_is_is_refused():
    with pytest.raises(C3Error, match="exchange 3 of 2"):
        simulate(lanes([1], [1, 1], [3]))


# --- random lanes ---

seconds = st.floats(1e-3, 1e3)


@st.composite
def random_lanes(draw, launch=True):
    kernels, exchanges = draw(st.integers(1, 7)), draw(st.integers(0, 7))
    several = lambda values, count: tuple(draw(st.lists(values, min_size=count, max_size=count)))  # noqa: E731
    kernel_s = several(seconds, kernels)
    slower = several(st.floats(1, 4), kernels)
    return Lanes(
        kernel_s,
        tuple(alone * factor for alone, factor in zip(kernel_s, slower, strict=True)),
        several(st.floats(0, 5), kernels) if launch else (0.0,) * kernels,
        tuple(sorted(several(st.integers(0, exchanges), kernels))),
        several(st.floats(0.1, 1), kernels),
        several(seconds, exchanges),
        several(st.floats(0, 5), exchanges),
    )


@given(random_lanes(launch=False))
@settings(max_examples=60, deadline=None)
def test_the_general_event_loop_says_the_same(both):
    """:mod:`c3lib.model.fluid` over the same graph: two chains, and a law of who runs beside whom."""
    kernels, exchanges = len(both.kernel_s), len(both.exchange_s)
    after = [
        [*([index - 1] if index else []), *([kernels + both.waits[index] - 1] if both.waits[index] else [])]
        for index in range(kernels)
    ] + [[kernels + index - 1] if index else [] for index in range(exchanges)]

    def law(running):
        running = running[0]
        rate = np.zeros(kernels + exchanges)
        computes, moves = running[:kernels], running[kernels:]
        for index in np.flatnonzero(computes):
            rate[index] = 1 / (both.beside_s if moves.any() else both.kernel_s)[index]
        for index in np.flatnonzero(moves):
            slowed = both.slowed[int(np.flatnonzero(computes)[0])] if computes.any() else 1
            rate[kernels + index] = slowed / both.exchange_s[index]
        return rate[None]

    delay = np.array([[0.0] * kernels + list(both.start_s)])
    expected = fluid.run(np.ones((1, kernels + exchanges)), delay, after, law)
    found = simulate(both)
    spans = np.array([*found.kernels, *found.exchanges])
    assert spans[:, 0] == pytest.approx(expected.start_s[0], rel=1e-9, abs=1e-9)
    assert spans[:, 1] == pytest.approx(expected.end_s[0], rel=1e-9, abs=1e-9)


@given(random_lanes())
@settings(max_examples=60, deadline=None)
def test_work_is_conserved_and_order_is_kept(both):
    found = simulate(both)
    for lane in (found.kernels, found.exchanges):
        assert all(start <= end for start, end in lane)
        assert all(end <= start for (_, end), (start, _) in pairwise(lane))
    for index, ((start, end), waits) in enumerate(zip(found.kernels, both.waits, strict=True)):
        assert waits == 0 or start >= found.exchanges[waits - 1][1]
        beside = sum(max(0, min(end, last) - max(start, first)) for first, last in found.exchanges)
        done = (end - start - beside) / both.kernel_s[index] + beside / both.beside_s[index]
        assert done == pytest.approx(1)
    for index, (start, end) in enumerate(found.exchanges):
        shares = [
            (max(0, min(end, last) - max(start, first)), slowed)
            for (first, last), slowed in zip(found.kernels, both.slowed, strict=True)
        ]
        beside = sum(together for together, _ in shares)
        moved = end - start - beside + sum(together * slowed for together, slowed in shares)
        assert moved == pytest.approx(both.exchange_s[index])


@given(random_lanes(), st.floats(1, 10))
@settings(max_examples=60, deadline=None)
def test_a_slower_link_ends_no_exchange_earlier(both, factor):
    """Of exchanges alone: beside kernels a slower link may slow them for longer or at better moments."""
    free = replace(both, beside_s=both.kernel_s, slowed=(1.0,) * len(both.slowed))
    slower = replace(free, exchange_s=tuple(item * factor for item in free.exchange_s))
    was, now = simulate(free), simulate(slower)
    for before, after in zip(was.exchanges + was.kernels, now.exchanges + now.kernels, strict=True):
        assert after[1] >= before[1] * (1 - 1e-9)
