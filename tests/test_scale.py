"""Suites scaled to another node."""

import pytest
from model_cases import NODES

from c3lib.model import kernels
from c3lib.model.scale import MIB, cells, scaled
from c3lib.suites import load_suite

PAPER, HOST = NODES["mi300x_8"], NODES["h200_1"]
SUITE = load_suite("conccl30", PAPER.ranks)


def ratios(scenarios, node):
    gemm, collective = kernels.batch(scenarios, node)
    return kernels.library_time_s(collective, node) / kernels.gemm_time_s(gemm, node.gpu.cus, node)


def test_ratios_of_isolated_times_are_kept_but_for_rounding():
    found = scaled(SUITE, PAPER, HOST)
    half_mib_s = 0.5 * MIB * 7 / 8 / (HOST.link.cu_gbs * 1e9)
    gemm, _ = kernels.batch(found, HOST)
    allowed = half_mib_s / kernels.gemm_time_s(gemm, HOST.gpu.cus, HOST)
    assert (abs(ratios(found, HOST) - ratios(SUITE, PAPER)) <= 1.01 * allowed).all()


def test_a_node_scaled_to_itself_keeps_whole_mebibytes():
    whole = [scenario for scenario in SUITE if scenario.collective.nbytes % MIB == 0]
    assert [found.collective for found in scaled(whole, PAPER, PAPER)] == [one.collective for one in whole]


def test_the_suite_for_the_host_link_is_conccl30_scaled():
    """Its file was made by this rule, before the H200's constants were measured to their last digit."""
    kept = load_suite("conccl30_host", HOST.ranks)
    made = scaled(SUITE, PAPER, HOST)
    assert [(one.name, one.gemm) for one in kept] == [(one.name, one.gemm) for one in made]
    for one, other in zip(kept, made, strict=True):
        assert one.collective.nbytes == pytest.approx(other.collective.nbytes, rel=0.03, abs=MIB)


def test_every_cell_stays_filled():
    assert len(cells(SUITE, PAPER)) == len(cells(load_suite("conccl30_host", HOST.ranks), HOST)) == 12
