"""Claims: every one is answered by computing, each tolerance has a reason, and the answers follow the node."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from c3lib import claims, schema
from c3lib.claims import COLUMNS, EVALUATORS, calibrated_on, claims_table, count, evaluator, load_claims
from c3lib.claims.context import Context
from c3lib.claims.finer import Finer
from c3lib.errors import C3Error
from c3lib.ficco import FINER
from c3lib.hardware import load_node
from c3lib.suites import load_suite

NODE = load_node("mi300x_8")
REPORTED = load_claims().query("paper in @claims.PAPERS").set_index("id")
TABLE = claims_table().set_index("id")


@pytest.fixture(autouse=True)
def few_unseen(monkeypatch):
    """The table above has all of them; what tests change about the node shows in a few as well, much sooner."""
    monkeypatch.setattr("c3lib.claims.finer.UNSEEN", 10)


@pytest.fixture(scope="module")
def context():
    return Context(NODE, "conccl30", dict(REPORTED["value"]))


@pytest.fixture(scope="module")
def finer():
    return Finer(NODE)


# --- coverage and form ---


def test_every_claim_has_an_evaluator_and_a_verdict():
    assert list(TABLE.index) == list(REPORTED.index)
    assert set(REPORTED.index) == set(EVALUATORS)
    assert set(TABLE["verdict"]) <= {"reproduced", "missed", "calibrated", "input", "not covered"}
    # What only a device can answer is not answered by a model, and says why; everything else is.
    silent = TABLE[TABLE["verdict"] == "not covered"]
    assert list(silent.index) == ["conccl.repetitions"]
    assert "deterministic" in silent["why"].iloc[0]
    assert TABLE.drop(silent.index)["modelled"].notna().all()


def test_columns_are_the_agreed_ones():
    assert list(claims_table().columns) == list(COLUMNS)


def test_every_tolerance_has_a_reason_and_every_missed_claim_a_cause():
    assert all(len(how.because) > 10 for how in EVALUATORS.values())
    missed = TABLE[TABLE["verdict"] == "missed"]
    assert (missed["why"].str.len() > 20).all()
    # Only a target that cannot be hit by rounding may be exact.
    assert all(how.tolerance >= 0 for how in EVALUATORS.values())


def test_reported_is_written_as_it_was_reported():
    shown = TABLE["reported"]
    assert shown["conccl.fraction_of_ideal.c3_sp"] == "0.42"
    assert shown["conccl.mb_gemm_slowdown.lost_8_cus"] == "0.90 to 1.00"
    assert shown["conccl.saturation_cus.ag"] == "32"
    assert shown["conccl.rp_heuristic.max_loss"] == "0.015"
    assert shown["conccl.order.a2a_minus_ag_gain"] == "above 0.00"


# --- status ---


def test_calibrated_is_what_the_nodes_file_says_and_what_follows_from_it():
    named = {word for constant in NODE.constants.values() for word in (constant.calibrated_on or "").split()}
    assert calibrated_on(NODE) == named
    follows = {name for name, how in EVALUATORS.items() if named & set(how.follows_from) or how.in_view}
    assert set(TABLE.index[TABLE["status"] == "calibrated"]) == (named & set(TABLE.index)) | follows
    assert "conccl.speedup.mean.c3_base" in follows


def test_status_follows_the_nodes_file():
    constants = {key: replace(constant, calibrated_on=None) for key, constant in NODE.constants.items()}
    key = "interference.memory_queueing"
    constants[key] = replace(constants[key], calibrated_on="conccl.speedup.max conccl.fraction_of_ideal.conccl_rp")
    table = claims_table(replace(NODE, constants=constants)).set_index("id")
    calibrated = set(table.index[table["status"] == "calibrated"])
    rung, best = "conccl.fraction_of_ideal.conccl_rp", "conccl.speedup.max"
    in_view = {name for name, how in EVALUATORS.items() if how.in_view}  # whatever the node says
    assert in_view >= {"conccl.rp_heuristic.hits", "ficco.heuristic.hit_fraction_unseen"}
    assert calibrated - in_view == {rung, best, "conccl.gap_to_ideal.conccl_rp"}  # the gap is the rung's complement


def test_a_choice_made_with_the_result_in_view_is_no_prediction():
    hits = TABLE.loc["conccl.rp_heuristic.hits"]
    assert hits["status"] == "calibrated"
    assert "random scenarios are the fair score" in hits["why"]


def test_at_most_two_rungs_of_the_ladder_are_calibrated():
    ladder = TABLE[TABLE.index.str.startswith("conccl.fraction_of_ideal.")]
    assert (ladder["status"] == "calibrated").sum() <= 2


# --- verdicts ---


def test_verdict_is_deviation_against_tolerance():
    for claim_id, row in TABLE[TABLE["verdict"] != "not covered"].iterrows():
        rule = EVALUATORS[claim_id].rule
        deviation, most = row["deviation"], row["tolerance"] + 1e-9
        agrees = {
            "near": abs(deviation) <= most,
            "at least": deviation >= -most,
            "at most": deviation <= most,
            "above": row["modelled"] > REPORTED.loc[claim_id, "low"],
        }[rule]
        good = {"predicted": "reproduced"}.get(row["status"], row["status"])
        assert row["verdict"] == (good if agrees else "missed"), claim_id


def test_deviation_is_modelled_less_reported_or_the_distance_from_an_interval():
    values = REPORTED["value"].dropna().index.drop("conccl.repetitions")
    np.testing.assert_allclose(
        TABLE.loc[values, "deviation"], TABLE.loc[values, "modelled"] - REPORTED["value"][values]
    )
    inside = TABLE.loc["conccl.mb_gemm_slowdown.lost_8_cus"]
    assert 0.9 <= inside["modelled"] <= 1.0
    assert inside["deviation"] == 0
    slower = claims_table(NODE.with_constant("interference.requestor_thrash", 0.2)).set_index("id")
    outside = slower.loc["conccl.mb_gemm_slowdown.lost_8_cus"]
    assert outside["deviation"] == pytest.approx(outside["modelled"] - 0.9)
    assert outside["verdict"] == "missed"


def test_an_ordering_must_be_strict():
    """Where the library drives both collectives alike, all-to-all gains just what all-gather gains: not more."""
    node = NODE
    for name in ("default_cus", "saturation_cus", "cu_gbs", "latency_us"):
        node = node.with_constant(f"all-to-all.{name}", getattr(NODE.library["all-gather"], name))
    row = claims_table(node).set_index("id").loc["conccl.order.a2a_minus_ag_gain"]
    assert row["modelled"] == 0
    assert row["verdict"] == "missed"


def test_counts_add_up():
    numbers = count(claims_table())
    assert numbers["claims"] == len(TABLE) == numbers["predicted"] + numbers["calibrated"] + numbers["input"]
    assert numbers["predicted"] == numbers["reproduced"] + numbers["missed"] + numbers["not_covered"]
    assert numbers["other_machine"] == 0
    assert 1 <= numbers["restated"] < numbers["reproduced"]


# --- closed forms ---


def test_isolated_answers_in_closed_form(context):
    library, link = NODE.library["all-gather"], NODE.link.count * NODE.link.cu_gbs * 1e9
    # bw(s) = 0.8 of the plateau where the start-up time is a fifth of the whole: s / B = 4 t0.
    sent = 4 * library.latency_us * 1e-6 * link
    assert context.latency_bound_below_mib("all-gather") == pytest.approx(sent * 8 / 7 / 2**20, rel=0.02)
    dma_us = NODE.dma.copy_us + 7 * NODE.dma.command_us + 6 * NODE.dma.engine_us
    assert context.worst_small_ratio() == pytest.approx(dma_us / library.latency_us, rel=0.001)
    # (td + x) / (tl + x) = 4 where x = (td - 4 tl) / 3.
    sent = (dma_us - 4 * library.latency_us) / 3 * 1e-6 * link
    assert context.slowed_below_mib(4.0) == pytest.approx(sent * 8 / 7 / 2**20, rel=0.02)
    assert context.slowed_below_mib(5.0) == 0
    # (td + x) / (tl + x) = 1.1 where x = (td - 1.1 tl) / 0.1; then the next power of two.
    size = (dma_us - 1.1 * library.latency_us) / 0.1 * 1e-6 * link * 8 / 7 / 2**20
    assert context.parity_from_mib() == 2 ** math.ceil(math.log2(size))


def test_saturation_is_where_the_links_are_full(context):
    for kind, library in NODE.library.items():
        full = NODE.link.count * NODE.link.cu_gbs / library.cu_gbs
        assert context.saturation_cus(kind) == 2 ** math.ceil(math.log2(full))


def test_inputs_are_found_in_the_code_not_echoed(context, monkeypatch):
    assert context.default_cus("all-to-all") == NODE.library["all-to-all"].default_cus
    assert context.long_ratio("G-long") == context.long_ratio("C-long") == 1.15
    monkeypatch.setattr("c3lib.workload.LONG_RATIO", 1.3)
    assert context.long_ratio("G-long") == 1.3
    monkeypatch.setattr("c3lib.heuristics.EFFICIENCY", 0.5)
    assert context.heuristic_efficiency() == 0.5


def test_finer_grain_answers_are_those_of_the_sixteen_rows(finer):
    from c3lib.ficco.sets import load_problems
    from c3lib.finer import schedule_rows
    from c3lib.schedule_choice import choose

    rows = load_problems("ficco16", 8)
    found = schedule_rows(NODE, rows, ("dma",), FINER).pivot(index="problem", columns="schedule", values="speedup")
    chosen = [found.loc[row.name, choose(row.problem, NODE, "dma", FINER).schedule] for row in rows]
    assert finer.largest_chosen() == max(chosen)
    assert finer.gemm_rows() == len(rows) == 16
    assert finer.schedules() == 4


def test_one_peer_at_a_time_costs_the_links_that_stand_idle(finer):
    """Seven links against one, less what the starts of seven plans of one copy differ from one plan of seven."""
    assert 6.5 < finer.largest_penalty() < 7
    slow_start = Finer(NODE.with_constant("dma.copy_us", 2000))  # then both are starts, seven to one, and more so
    assert slow_start.largest_penalty() > finer.largest_penalty()
    assert Finer(load_node("h200_8")).largest_penalty() == pytest.approx(1, abs=0.05)


def test_what_has_no_claim_is_no_evaluator():
    assert evaluator("speedup.max") is evaluator("conccl.speedup.max") is not evaluator("ficco.speedup.max")
    with pytest.raises(C3Error, match=r"did you mean 'ficco\.speedup\.max'"):
        evaluator("ficco.speedup.mx")


def test_bounds_of_the_suite_split_it(context):
    bounds = {scenario.gemm.bound(NODE.gpu) for scenario in load_suite("conccl30", 8)}
    assert bounds == {"compute", "memory"}
    assert context.gemm_slowdown("compute", 64) > 304 / 240 - 0.05 > 1 > context.gemm_slowdown("memory", 8)


# --- nothing is hard-coded ---


@pytest.mark.parametrize(
    ("key", "factor", "moves"),
    [
        ("interference.memory_queueing", 2, ["fraction_of_ideal.conccl", "speedup.max", "gap_to_ideal.conccl_rp"]),
        ("interference.dispatch_share", 3, ["fraction_of_ideal.c3_base", "speedup.a2a.c3_base"]),
        ("interference.requestor_thrash", 2, ["mb_gemm_slowdown.lost_8_cus", "mb_gemm_slowdown.lost_64_cus"]),
        ("all-gather.cu_gbs", 0.5, ["saturation_cus.ag"]),
        ("all-to-all.cu_gbs", 0.5, ["saturation_cus.a2a"]),
        ("all-to-all.default_cus", 1.25, ["default_cus.a2a"]),
        ("all-gather.latency_us", 2, ["latency_bound_below.ag", "small_size_slowdown"]),
        ("dma.engine_us", 3, ["rccl_parity_from", "rccl_parity_ratio", "small_size_slowdown_below"]),
        ("gpu.spare_cus", 2, ["conccl_rp.cus_withheld"]),
        ("gpu.matrix_efficiency", 0.5, ["cb_gemm_slowdown.lost_32_cus", "speedup.mean.c3_base"]),
        ("link.dma_gbs", 0.5, ["ficco.potential_speedup", "ficco.speedup.max"]),
    ],
)
def test_answers_follow_the_nodes_constants(key, factor, moves):
    value = NODE.constants[key].value * factor
    changed = claims_table(NODE.with_constant(key, int(value) if value == int(value) else value)).set_index("id")
    for name in moves:
        name = name if name in EVALUATORS else f"conccl.{name}"
        before, after = TABLE.loc[name, "modelled"], changed.loc[name, "modelled"]
        assert after != pytest.approx(before, rel=1e-6), name


def test_other_nodes_say_that_they_are_other_machines():
    table = claims_table("h200_8")
    judged = table[table["status"] != "input"]
    assert set(judged["verdict"]) == {"other machine"}  # neither a chance agreement nor a difference counts
    assert judged["why"].str.contains("h200_8 is another machine").all()
    assert count(table)["reproduced"] == count(table)["missed"] == 0


def test_no_number_of_the_table_stands_in_the_source():
    """Modelled values to four digits must not be typed anywhere in the package's claims."""
    folder = claims.__path__[0]
    from pathlib import Path

    text = "".join(path.read_text() for path in Path(folder).glob("*.py"))
    typed = set(re.findall(r"\d+\.\d{3,}", text))
    assert not typed & {f"{value:.{digits}f}" for value in TABLE["modelled"] for digits in (3, 4, 5)}


# --- bad input ---


def test_damaged_claims_file_is_named(tmp_path, monkeypatch):
    from c3lib.claims import table

    (tmp_path / "reported").mkdir()
    (tmp_path / "reported" / "claims.csv").write_text("id,paper\nx,conccl\n")
    monkeypatch.setattr(table, "DATA", tmp_path)
    with pytest.raises(C3Error, match=r"claims\.csv: column figure is missing"):
        load_claims()


def test_claim_without_evaluator_is_shown_as_not_covered(monkeypatch):
    from c3lib.claims import table

    more = load_claims()
    more.loc[len(more)] = {**more.iloc[0].to_dict(), "id": "conccl.new"}
    monkeypatch.setattr(table, "load_claims", lambda: schema.check(more, schema.CLAIMS, "more"))
    row = claims_table().set_index("id").loc["conccl.new"]
    assert row["verdict"] == "not covered"
    assert math.isnan(row["modelled"])


def test_unknown_claim_unknown_suite():
    with pytest.raises(C3Error, match=r"did you mean 'conccl\.speedup\.max'"):
        claims.require_claim(claims_table(), "conccl.speedup.mx")
    with pytest.raises(C3Error, match="unknown suite"):
        claims_table(suite="conccl31")
