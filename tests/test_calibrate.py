"""Calibration: what stands in the node's file is what the reported numbers give, and it uses two rungs only."""

import pytest
from model_cases import H200, MI300X, NODES

from c3lib.errors import C3Error
from c3lib.files import DATA
from c3lib.model import calibrate as module
from c3lib.model.calibrate import calibrate, mean_fraction_of_ideal
from c3lib.schema import CLAIMS, read_csv


@pytest.fixture(scope="module")
def claims():
    return read_csv(DATA / "reported" / "claims.csv", CLAIMS).set_index("id")


@pytest.fixture(scope="module")
def reported(claims):
    """Value by claim id; of an interval its middle."""
    return claims["value"].fillna((claims["low"] + claims["high"]) / 2).dropna().to_dict()


@pytest.fixture(scope="module")
def found(reported):
    return calibrate(MI300X, reported)


def test_the_coefficients_in_the_node_file_are_the_calibrated_ones(found):
    """To the four digits that stand there; nobody turned them by hand."""
    for key, value in found.items():
        assert MI300X.constants[key].value == pytest.approx(value, rel=5e-4), key


def test_calibration_starts_from_nothing(found, reported):
    """Its result does not depend on the coefficients that the node came with."""
    other = MI300X
    for key, value in (("memory_queueing", 0.5), ("dispatch_share", 0.9), ("requestor_thrash", 0.2)):
        other = other.with_constant(f"interference.{key}", value)
    assert calibrate(other, reported) == pytest.approx(found, rel=1e-4)


@pytest.mark.parametrize(("name", "claim"), [("c3_sp", module.QUEUEING_RUNG), ("c3_base", module.DISPATCH_RUNG)])
def test_the_rungs_are_met(name, claim, reported):
    assert mean_fraction_of_ideal(MI300X, name) == pytest.approx(reported[claim], abs=1e-3)


def test_thrash_is_one_less_the_mean_of_the_reported_slowdowns(found):
    assert found["interference.requestor_thrash"] == pytest.approx(1 - (0.95 + 0.975 + 0.95) / 3)


def test_every_claim_named_by_a_constant_exists(claims):
    for node in NODES.values():
        for constant in node.constants.values():
            for claim in (constant.calibrated_on or "").split():
                assert claim in claims.index, f"{node.name}: {constant.key}"


def test_at_most_two_rungs_of_the_ladder_are_used_and_none_of_them_is_a_dma_rung():
    used = {claim for constant in MI300X.constants.values() for claim in (constant.calibrated_on or "").split()}
    rungs = {claim for claim in used if claim.startswith("conccl.fraction_of_ideal.")}
    assert rungs == {module.QUEUEING_RUNG, module.DISPATCH_RUNG}
    assert not any("speedup" in claim or ".conccl" in claim[len("conccl.") :] for claim in used)


def test_constants_set_by_calibration_say_so(found):
    for key in found:
        assert MI300X.constants[key].calibrated_on
        assert MI300X.constants[key].evidence == "modelled"


def test_a_missing_claim_is_named(reported):
    less = {claim: value for claim, value in reported.items() if claim != module.DISPATCH_RUNG}
    with pytest.raises(C3Error, match=module.DISPATCH_RUNG):
        calibrate(MI300X, less)


def test_a_rung_out_of_reach_is_named(reported):
    with pytest.raises(C3Error, match=r"no interference.memory_queueing in .* brings c3_sp to the reported 0.99"):
        calibrate(MI300X, {**reported, module.QUEUEING_RUNG: 0.99})


def test_nothing_measured_was_calibrated_on_a_paper():
    assert not any(constant.calibrated_on for constant in H200.constants.values())
