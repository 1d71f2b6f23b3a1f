"""Strategies over many scenarios, in chunks."""

import numpy as np
import pytest
from model_cases import MI300X, random_batch, random_scenarios

from c3lib.errors import C3Error
from c3lib.model.contention import predict
from c3lib.model.sweep import sweep
from c3lib.strategy import STRATEGIES, strategy


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
def test_chunks_change_nothing(chunk):
    result = sweep(random_scenarios(MI300X, 40, seed=5), MI300X, chunk=chunk)
    assert result.strategies == tuple(STRATEGIES)
    gemm, collective = random_batch(MI300X, 40, seed=5)
    for column, how in enumerate(STRATEGIES.values()):
        whole = predict(gemm, collective, MI300X, how)
        np.testing.assert_allclose(result.time_s[:, column], whole.time_s, rtol=1e-8)
        np.testing.assert_array_equal(result.gemm_alone_s, whole.gemm_alone_s)
        np.testing.assert_array_equal(result.collective_alone_s, whole.collective_alone_s)


def test_only_the_strategies_asked_for_in_their_order():
    result = sweep(random_scenarios(MI300X, 5, seed=1), MI300X, ["conccl_rp", "c3_base"])
    assert result.strategies == ("conccl_rp", "c3_base")
    base = predict(*random_batch(MI300X, 5, seed=1), MI300X, strategy("c3_base"))
    np.testing.assert_allclose(result.time_s[:, 1], base.time_s, rtol=1e-8)
    np.testing.assert_array_equal(result.cus_taken[:, 1], base.cus_taken)


def test_nothing_in_nothing_out():
    assert sweep([], MI300X).time_s.shape == (0, 6)


def test_bad_arguments_are_refused():
    with pytest.raises(C3Error, match="sweep: chunk must be a whole number of at least 1"):
        sweep([], MI300X, chunk=0)
    with pytest.raises(C3Error, match="unknown strategy 'fast'"):
        sweep([], MI300X, ["fast"])
