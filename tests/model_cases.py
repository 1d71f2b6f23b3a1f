"""Scenarios and nodes that the tests of the model draw: what several test modules share."""

import numpy as np
from hypothesis import strategies as st

from c3lib.hardware import COLLECTIVES, load_node, node_names
from c3lib.model.kernels import batch
from c3lib.strategy import STRATEGIES
from c3lib.workload import DTYPE_BYTES, Collective, Gemm, Scenario

NODES = {name: load_node(name) for name in node_names()}
MI300X, H200 = NODES["mi300x_8"], NODES["h200_1"]

# Small numbers are as likely as large ones, and powers of two do not hide the odd ones.
dimensions = st.integers(0, 16).flatmap(lambda power: st.integers(2**power, 2 ** (power + 1)))
sizes = st.just(0) | st.integers(0, 32).flatmap(lambda power: st.integers(2**power, 2 ** (power + 1)))
gemms = st.builds(Gemm, dimensions, dimensions, dimensions, st.sampled_from(sorted(DTYPE_BYTES)))
node_list = st.sampled_from(list(NODES.values()))
strategy_list = st.sampled_from(list(STRATEGIES.values()))


def scenarios(node, least=0):
    """A scenario on ``node``; with ``least`` the collective has at least so many bytes."""
    collective = st.builds(
        Collective, st.sampled_from(COLLECTIVES), sizes.map(lambda n: max(n, least)), st.just(node.ranks)
    )
    return st.builds(Scenario, st.just("x"), gemms, collective)


@st.composite
def cases(draw, least=0, most=4):
    """``(node, scenarios)``."""
    node = draw(node_list)
    return node, draw(st.lists(scenarios(node, least), min_size=1, max_size=most))


def random_scenarios(node, count, seed):
    """Many scenarios at once, for properties that a vectorised call can check on thousands: sizes log-uniform."""
    rng = np.random.default_rng(seed)
    kinds, types = rng.integers(len(COLLECTIVES), size=count), rng.integers(len(DTYPE_BYTES), size=count)
    edges = (2 ** rng.uniform(0, 17, (count, 3))).astype(int)
    nbytes = (2 ** rng.uniform(0, 33, count)).astype(int) * (rng.uniform(size=count) > 0.02)
    names = sorted(DTYPE_BYTES)
    return [
        Scenario(str(i), Gemm(*edges[i], names[types[i]]), Collective(COLLECTIVES[kinds[i]], nbytes[i], node.ranks))
        for i in range(count)
    ]


def random_batch(node, count, seed):
    """:func:`random_scenarios` as the arrays that the model takes."""
    return batch(random_scenarios(node, count, seed), node)
