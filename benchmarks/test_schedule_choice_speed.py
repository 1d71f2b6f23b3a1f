"""Choosing a finer-grain schedule is cheap enough for a compiler."""

import pytest

from c3lib.ficco.sets import random_problems
from c3lib.hardware import load_node
from c3lib.schedule_choice import choose

TARGET_US = 100
"""A choice, all six schedules considered, on one core that has nothing else to do."""


@pytest.mark.parametrize("transport", ["dma", "cu"])
@pytest.mark.parametrize("name", ["mi300x_8", "h200_8"])
def test_a_choice_takes_at_most_100_us(benchmark, name, transport):
    node = load_node(name)
    problems = [row.problem for row in random_problems(20, node, seed=1)]

    def every():
        for problem in problems:
            choose(problem, node, transport)

    benchmark.pedantic(every, rounds=100, warmup_rounds=1)
    benchmark.extra_info["choice_us"] = each_us = benchmark.stats.stats.min / len(problems) * 1e6
    assert each_us <= TARGET_US
