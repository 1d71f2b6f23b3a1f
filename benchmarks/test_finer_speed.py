"""Speed of finer-grain overlap on the model; each test holds a target of its own."""

import pytest

from c3lib.ficco import SCHEDULES, Problem, build
from c3lib.ficco.sets import load_problems
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node
from c3lib.model.losses import loss_rows
from c3lib.model.pieces import TRANSPORTS, lanes
from c3lib.model.pipeline import simulate

NODE = load_node("mi300x_8")
PROBLEM = Problem.all_gather(131072, 2048, 16384, ranks=8)
NODES = ("mi300x_8", "h200_8", "h200_1")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_schedule_graph(benchmark, schedule, transport):
    """8 ranks x 8 steps, from sizes to a timeline, in at most 1 ms: build, what it becomes, times, event loop.

    Ranks are alike, so one of them is simulated. The best round: what a core does while it has nothing else to do.
    """
    benchmark(lambda: simulate(lanes([build(schedule, PROBLEM)], NODE, transport)[0]))
    assert benchmark.stats.stats.min <= 1e-3


def test_every_row_schedule_transport_and_node(benchmark):
    """16 rows x 6 schedules x 2 transports x 3 nodes in at most 2 s."""
    nodes = [load_node(name) for name in NODES]
    benchmark.pedantic(lambda: [schedule_rows(node, load_problems("ficco16", node.ranks)) for node in nodes], rounds=3)
    assert benchmark.stats.stats.median <= 2


def test_every_loss_of_every_row(benchmark):
    """16 rows on 3 nodes in at most 2 s."""
    nodes = [load_node(name) for name in NODES]
    benchmark.pedantic(lambda: [loss_rows(node, load_problems("ficco16", node.ranks)) for node in nodes], rounds=3)
    assert benchmark.stats.stats.median <= 2
