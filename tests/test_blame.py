"""Blame: shares sum to the loss, and a mechanism that cannot act is not blamed."""

from math import factorial

import numpy as np
import pytest
from hypothesis import given, settings
from model_cases import MI300X, NODES, cases, random_batch, strategy_list

from c3lib.model import blame
from c3lib.model.blame import BLAME_TITLES, blame_s
from c3lib.model.contention import predict
from c3lib.model.kernels import batch
from c3lib.model.shared_gpu import MECHANISMS, Mechanisms
from c3lib.strategy import STRATEGIES, strategy
from c3lib.suites import load_suite
from c3lib.workload import Collective, Gemm, Scenario

every_node = pytest.mark.parametrize("node", NODES.values(), ids=NODES)
every_strategy = pytest.mark.parametrize("how", STRATEGIES.values(), ids=STRATEGIES)


def lost(result):
    return result.time_s - np.maximum(result.gemm_alone_s, result.collective_alone_s)


@settings(max_examples=30)
@given(cases(most=2), strategy_list)
def test_blame_sums_to_the_loss(case, how):
    node, scenarios = case
    pair = batch(scenarios, node)
    result = predict(*pair, node, how)
    assert sum(blame_s(*pair, node, how).values()) == pytest.approx(lost(result), abs=float(1e-9 * result.time_s.max()))


@every_node
@every_strategy
def test_blame_sums_to_the_loss_of_many(node, how):
    pair = random_batch(node, 30, 11)
    result = predict(*pair, node, how)
    assert (np.abs(sum(blame_s(*pair, node, how).values()) - lost(result)) <= 1e-9 * result.time_s).all()


@pytest.mark.parametrize(
    ("name", "idle"),
    [
        ("conccl", {"cu", "cache", "dispatch"}),
        ("conccl_rp", {"cache", "dispatch"}),
        ("c3_sp", {"link", "launch", "dispatch"}),
        ("c3_sp_rp", {"link", "launch", "dispatch"}),
        ("c3_base", {"link", "launch"}),
    ],
)
@every_node
def test_what_cannot_act_is_not_blamed(node, name, idle):
    pair = random_batch(node, 30, 12)
    shares, time = blame_s(*pair, node, strategy(name)), predict(*pair, node, strategy(name)).time_s
    for mechanism in idle:
        assert (np.abs(shares[mechanism]) <= 1e-12 * time).all(), mechanism


def test_what_acts_is_blamed():
    """On conccl30: dispatch for the GEMM-first strategy, CUs for a partition, memory latency for all."""
    pair = batch(load_suite("conccl30", 8), MI300X)
    shares = {
        name: {key: value.mean() for key, value in blame_s(*pair, MI300X, how).items()}
        for name, how in STRATEGIES.items()
    }
    assert max(shares["c3_base"], key=shares["c3_base"].get) in ("dispatch", "queueing")
    assert shares["c3_base"]["dispatch"] > 0.1 * sum(shares["c3_base"].values())
    assert shares["c3_sp"]["cu"] > 0
    assert all(share["queueing"] > 0 for share in shares.values())
    assert shares["conccl"]["launch"] > 0


@pytest.mark.parametrize(
    ("mechanism", "key", "value"),
    [
        ("queueing", "interference.memory_queueing", 0.0),
        ("cache", "interference.cache_pollution", 0.0),
        ("dispatch", "interference.dispatch_share", 1.0),
    ],
)
def test_a_coefficient_without_effect_takes_its_blame_away(mechanism, key, value):
    pair = batch(load_suite("conccl30", 8), MI300X)
    node = MI300X.with_constant(key, value)
    assert blame_s(*pair, node, strategy("c3_base"))[mechanism] == pytest.approx(0, abs=1e-15)


@every_strategy
def test_a_single_mechanism_takes_all_of_what_it_does_alone(how):
    """With all coefficients of the others off, the share is the loss itself."""
    node = MI300X.with_constant("interference.memory_queueing", 0).with_constant("interference.cache_pollution", 0)
    pair = batch([Scenario("x", Gemm(8192, 8192, 8192), Collective("all-gather", 2**30, 8))], node)
    shares = blame_s(*pair, node, how)
    acting = [name for name, share in shares.items() if abs(share[0]) > 1e-12]
    if len(acting) == 1:
        on = Mechanisms(**{name: name in acting for name in MECHANISMS})
        assert shares[acting[0]] == pytest.approx(lost(predict(*pair, node, how, on=on)))
    assert sum(shares.values()) == pytest.approx(lost(predict(*pair, node, how)))


def test_shapley_weights_of_an_additive_and_of_a_joint_game():
    """A sum gives each its own part; a game that pays only when all are there pays all the same."""
    on, weights = blame._ON, blame._WEIGHTS
    parts = np.arange(1.0, len(MECHANISMS) + 1)
    assert weights @ (on @ parts) == pytest.approx(parts)
    assert weights @ on.all(axis=1).astype(float) == pytest.approx(1 / len(MECHANISMS))


def test_shapley_weight_of_a_pair_game():
    """Two mechanisms that pay only together share evenly, whatever the other five do."""
    on, weights = blame._ON, blame._WEIGHTS
    shares = weights @ (on[:, 0] & on[:, 3]).astype(float)
    assert shares == pytest.approx([0.5, 0, 0, 0.5, 0, 0, 0], abs=1e-12)
    assert np.abs(weights).max() == pytest.approx(1 / len(MECHANISMS))
    assert np.abs(weights).min() == pytest.approx(factorial(3) * factorial(3) / factorial(7))


def test_every_mechanism_has_a_title():
    assert tuple(BLAME_TITLES) == MECHANISMS
