"""explain: sums and bounds that must hold whatever the constants, and texts that follow from the numbers."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import c3lib
from c3lib.errors import C3Error
from c3lib.explain import Outcome, explain
from c3lib.hardware import load_node
from c3lib.model.contention import predict
from c3lib.model.kernels import batch
from c3lib.model.shared_gpu import MECHANISMS
from c3lib.strategy import STRATEGIES
from c3lib.terminal import to_json
from c3lib.workload import Collective, Gemm, Scenario

MIB = 2**20
GEMM, COLLECTIVE = Gemm(8192, 8192, 8192), Collective("all-gather", 896 * MIB, 8)
MEMORY_BOUND = Gemm(64, 106496, 16384)


def outcome(explanation, name: str) -> Outcome:
    return next(row for row in explanation.outcomes if row.strategy == name)


def test_one_row_a_strategy_with_the_agreed_columns():
    table = explain(GEMM, COLLECTIVE).table
    assert list(table["strategy"]) == list(STRATEGIES)
    numbers = ["time_s", "speedup", "fraction_of_ideal", "gemm_slowdown", "collective_slowdown", "cus_taken", "lost_s"]
    assert list(table.columns) == ["strategy", "oracle", *numbers, *(f"blame_{name}_s" for name in MECHANISMS)]
    assert list(table["oracle"]) == [how.oracle for how in STRATEGIES.values()]


@settings(max_examples=25)
@given(
    st.sampled_from(["mi300x_8", "h200_8"]),
    st.tuples(*[st.integers(1, 20000)] * 3),
    st.sampled_from(["all-gather", "all-to-all"]),
    st.integers(1, 4096 * MIB),
)
def test_the_numbers_of_a_row_belong_together(node, dims, kind, nbytes):
    result = explain(Gemm(*dims), Collective(kind, nbytes, 8), node)
    serial = result.gemm_alone_s + result.collective_alone_s
    longer = max(result.gemm_alone_s, result.collective_alone_s)
    for row in result.outcomes:
        assert row.speedup == pytest.approx(serial / row.time_s)
        assert row.lost_s == pytest.approx(row.time_s - longer, abs=1e-12)
        assert sum(row.blame_s.values()) == pytest.approx(row.lost_s, rel=0.01, abs=1e-9)
        ends = (row.gemm_slowdown * result.gemm_alone_s, row.collective_slowdown * result.collective_alone_s)
        assert row.time_s == pytest.approx(max(ends))
        assert (row.fraction_of_ideal - 1) * (result.ideal - 1) == pytest.approx(row.speedup - result.ideal, abs=1e-6)
    assert not result.best.oracle
    assert result.best.time_s == min(row.time_s for row in result.outcomes if not row.oracle)


def test_the_sweep_is_the_models_own():
    node = load_node("mi300x_8")
    for gemm, kind in ((GEMM, "all-gather"), (MEMORY_BOUND, "all-to-all"), (Gemm(1536, 18432, 16384), "all-to-all")):
        collective = Collective(kind, 256 * MIB, 8)
        result = explain(gemm, collective, node)
        parts = batch([Scenario("same", gemm, collective)], node)
        for name, how in STRATEGIES.items():
            assert outcome(result, name).time_s == pytest.approx(predict(*parts, node, how).time_s[0], rel=1e-9)


def test_advice_names_the_fastest_real_strategy_and_its_gain():
    result = explain(GEMM, COLLECTIVE)
    assert result.advice.startswith(f"Use {result.best.strategy}: {result.best.speedup:.2f}x over serial")
    assert result.advice.count(". ") == 0


def test_advice_follows_the_nodes_constants():
    """An engine that takes long to start makes DMA the wrong choice, and the blame says so."""
    slow = load_node("mi300x_8").with_constant("dma.copy_us", 5000.0)
    result = explain(GEMM, COLLECTIVE, slow)
    assert result.best.strategy == "c3_sp"
    row = outcome(result, "conccl")
    assert row.blame_s["launch"] > 0.9 * row.lost_s
    assert "start-up" in next(line for line in str(result).splitlines() if line.startswith("conccl "))


def test_advice_against_overlap_where_it_is_a_loss():
    node = load_node("mi300x_8").with_constant("interference.memory_queueing", 30.0)
    node = node.with_constant("dma.copy_us", 50000.0)
    result = explain(GEMM, Collective("all-to-all", 256 * MIB, 8), node)
    assert all(row.speedup < 1 for row in result.outcomes if not row.oracle)
    assert result.advice.startswith("Do not overlap")
    assert f"{result.best.time_s / result.serial_s:.2f}x as long" in result.advice


def test_advice_for_a_collective_too_short_to_matter():
    assert "too short to matter" in explain(Gemm(16384, 28672, 8192), Collective("all-to-all", 16384, 8)).advice


def test_nothing_to_send():
    result = explain(GEMM, Collective("all-gather", 0, 8))
    assert result.advice.startswith("Nothing to overlap")
    assert result.ideal == 1
    assert math.isnan(result.outcomes[0].fraction_of_ideal)
    assert json.loads(to_json(result.to_dict()))["strategies"][0]["fraction_of_ideal"] is None


@pytest.mark.parametrize("gemm", [GEMM, MEMORY_BOUND, Gemm(1, 1, 1), Gemm(100000, 100000, 100000)], ids=str)
@pytest.mark.parametrize("nbytes", [0, 1, 896 * MIB, 2**50])
def test_text_fits_100_columns_and_marks_oracles_and_evidence(gemm, nbytes):
    text = str(explain(gemm, Collective("all-to-all", nbytes, 8)))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert "(modelled)" in text.replace("\n", " ")
    marked = {line.split()[0] for line in lines if " * " in line}
    assert marked == {name for name, how in STRATEGIES.items() if how.oracle}
    assert "nan" not in text
    assert "-0.000" not in text


def test_shares_in_the_text_are_those_of_the_blame():
    result = explain(GEMM, COLLECTIVE)
    row = outcome(result, "c3_base")
    line = next(line for line in str(result).splitlines() if line.startswith("c3_base"))
    assert f"dispatch order {row.blame_s['dispatch'] / row.lost_s * 100:.0f}" in line
    assert "evicted" not in line  # 0 %: does not matter


def test_the_packages_name_can_be_called_again_and_again():
    """The first use loads the module, which Python then binds to the same name."""
    assert (
        str(c3lib.explain(GEMM, COLLECTIVE)) == str(c3lib.explain(GEMM, COLLECTIVE)) == str(explain(GEMM, COLLECTIVE))
    )


def test_more_ranks_than_the_node_has():
    with pytest.raises(C3Error, match="16 ranks, but node mi300x_8 has 8"):
        explain(GEMM, Collective("all-gather", MIB, 16))


def test_unknown_node():
    with pytest.raises(C3Error, match="unknown node 'mi300'"):
        explain(GEMM, COLLECTIVE, "mi300")
