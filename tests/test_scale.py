"""Suites scaled to another node."""

import pytest
from model_cases import NODES

from c3lib.model import kernels
from c3lib.model.scale import MIB, cells, scaled
from c3lib.suites import load_suite

PAPER, HOST = NODES["mi300x_8"], NODES["h200_1"]
MEASURED_ALONE = {
    "gpu.matrix_efficiency": 0.78,
    "link.cu_gbs": 17.2,
    "all-gather.default_cus": 24,
    "all-gather.saturation_cus": 32,
    "all-gather.cu_gbs": 11.8,
    "all-gather.latency_us": 14,
    "all-to-all.default_cus": 16,
    "all-to-all.saturation_cus": 16,
    "all-to-all.cu_gbs": 21,
    "all-to-all.latency_us": 14,
}
"""What was known of NVIDIA's library between two H200s when the suite for it was made."""


def two_h200s_measured_alone():
    node = NODES["h200_2"]
    for key, value in MEASURED_ALONE.items():
        node = node.with_constant(key, value)
    return node


MADE_FOR = {"conccl30_host": HOST, "conccl30_nvlink": two_h200s_measured_alone()}
SUITE = load_suite("conccl30", PAPER.ranks)


def ratios(scenarios, node):
    gemm, collective = kernels.batch(scenarios, node)
    return kernels.library_time_s(collective, node) / kernels.gemm_time_s(gemm, node.gpu.cus, node)


@pytest.mark.parametrize("node", MADE_FOR.values(), ids=lambda node: node.name)
def test_ratios_of_isolated_times_are_kept_but_for_rounding(node):
    found = scaled(SUITE, PAPER, node)
    gemm, collective = kernels.batch(found, node)
    rate = kernels.cu_collective_gbs(collective, kernels.library_field(collective, node, "default_cus"), node)
    half_mib_s = 0.5 * MIB * (node.ranks - 1) / node.ranks / (rate * 1e9)
    allowed = half_mib_s / kernels.gemm_time_s(gemm, node.gpu.cus, node)
    assert (abs(ratios(found, node) - ratios(SUITE, PAPER)) <= 1.01 * allowed).all()


def test_a_node_scaled_to_itself_keeps_whole_mebibytes():
    whole = [scenario for scenario in SUITE if scenario.collective.nbytes % MIB == 0]
    assert [found.collective for found in scaled(whole, PAPER, PAPER)] == [one.collective for one in whole]


@pytest.mark.parametrize("suite", MADE_FOR)
def test_the_suites_of_other_nodes_are_conccl30_scaled(suite):
    """The files were made by this rule, before the H200's constants were measured to their last digit."""
    node = MADE_FOR[suite]
    kept = load_suite(suite, node.ranks)
    made = scaled(SUITE, PAPER, node)
    assert [(one.name, one.gemm) for one in kept] == [(one.name, one.gemm) for one in made]
    for one, other in zip(kept, made, strict=True):
        assert one.collective.nbytes == pytest.approx(other.collective.nbytes, rel=0.03, abs=MIB)


@pytest.mark.parametrize("suite", MADE_FOR)
def test_sizes_are_whole_shards_of_16_bytes_and_fit_into_memory(suite):
    """Send and receive buffer of every rank's GPU and three operand sets of the GEMM, as the GPU backend holds them."""
    node = MADE_FOR[suite]
    for one in load_suite(suite, node.ranks):
        assert one.collective.nbytes % (16 * node.ranks) == 0, one.name
        assert 2 * one.collective.nbytes + 3 * one.gemm.nbytes < 0.5 * node.gpu.hbm_capacity_gb * 1e9, one.name


@pytest.mark.parametrize("suite", MADE_FOR)
def test_every_cell_stays_filled(suite):
    assert len(cells(SUITE, PAPER)) == 12
    assert cells(load_suite(suite, MADE_FOR[suite].ranks), MADE_FOR[suite]) == cells(SUITE, PAPER)


@pytest.mark.parametrize(
    ("suite", "says"), [("conccl30_host", "one host link"), ("conccl30_nvlink", "NVLink between two")]
)
def test_origins_say_what_the_size_was_made_for(suite, says):
    origins = {one.name: one.origin for one in SUITE}
    for one in load_suite(suite, MADE_FOR[suite].ranks):
        assert one.origin == f"{origins[one.name]}; size for {says}"
