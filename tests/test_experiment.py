"""The runner: order, repetition and seeds with a noisy stand-in backend; summaries by hand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from model_cases import H200, MI300X, cases

from c3lib import experiment
from c3lib.backends.base import Timings, backend_names, open_backend
from c3lib.backends.modelled import Modelled
from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.errors import C3Error
from c3lib.experiment import run_suite, summarise
from c3lib.schema import RESULTS, check
from c3lib.strategy import STRATEGIES
from c3lib.suites import load_suite
from c3lib.workload import Collective, Gemm, Scenario

SUITE = load_suite("conccl30", 8)[:4]


class Noisy:
    """A backend whose answer depends on scenario and repetition only, and which notes in which order it ran."""

    name, evidence, deterministic = "noisy", "measured", False

    def __init__(self, node):
        self.ran = []

    def run(self, scenarios, strategy, repetition):
        assert len(scenarios) == 1
        self.ran.append((scenarios[0].name, strategy.name, repetition))
        gemm = np.array([1e-3 * (1 + len(scenarios[0].name))])
        return Timings(gemm, gemm / 2, gemm, gemm, gemm * (1.1 + repetition / 10), gemm * 0, np.array([True]), "noisy")


@pytest.fixture
def noisy(monkeypatch):
    backend = Noisy(MI300X)
    monkeypatch.setattr(experiment, "open_backend", lambda name, node, suite: backend)
    return backend


def test_arms_are_shuffled_by_seed_and_rows_are_not(noisy):
    names = ["conccl", "c3_sp"]
    frames, orders = [], []
    for seed in (0, 0, 1):
        noisy.ran.clear()
        frames.append(run_suite(MI300X, SUITE, names, "noisy", repeats=3, seed=seed))
        orders.append(list(noisy.ran))
    arms = {(scenario.name, name, turn) for scenario in SUITE for name in names for turn in range(3)}
    assert orders[0] == orders[1] != orders[2]
    assert len(orders[0]) == 24
    assert set(orders[0]) == arms
    assert orders[0] != sorted(orders[0])
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0], check_exact=True)
    expected = [(scenario.name, name, turn) for scenario in SUITE for name in names for turn in range(3)]
    assert list(zip(frames[0]["scenario"], frames[0]["strategy"], frames[0]["repetition"], strict=True)) == expected


def test_repetitions_are_interleaved(noisy):
    """No arm runs all its repetitions in a row: heat would favour somebody (M5)."""
    run_suite(MI300X, SUITE, ["c3_sp", "conccl"], "noisy", repeats=9)
    turns = [turn for *_, turn in noisy.ran]
    assert len(set(turns[: len(turns) // 3])) > 3


def test_the_model_runs_once_whatever_is_asked():
    frame = run_suite(suite=SUITE, repeats=9)
    assert len(frame) == len(SUITE) * len(STRATEGIES)
    assert (frame["repetition"] == 0).all()
    assert (frame["evidence"] == "modelled").all()
    assert not frame["verified"].any()


def test_two_runs_give_the_same_bytes():
    first, second = (run_suite().to_csv(index=False) for _ in range(2))
    assert first == second


@settings(max_examples=20)
@given(cases())
def test_rows_fit_the_schema_and_state_both_sizes(case):
    node, scenarios = case
    named = [Scenario(str(i), scenario.gemm, scenario.collective) for i, scenario in enumerate(scenarios)]
    frame = run_suite(node, named)
    assert len(check(frame, RESULTS, "x")) == len(frame) == len(named) * len(STRATEGIES)
    over = frame["rank_bytes"] * frame["ranks"] - frame["total_bytes"]
    assert over.between(0, frame["ranks"] - 1).all()
    both = np.maximum(frame["gemm_end_s"], frame["collective_end_s"])
    assert np.allclose(frame["concurrent_s"], both, rtol=1e-12)
    assert np.allclose(frame["speedup"] * frame["concurrent_s"], frame["gemm_alone_s"] + frame["collective_alone_s"])


def test_the_row_of_one_scenario_by_hand():
    row = run_suite(suite=[Scenario("a", Gemm(8192, 8192, 8192), Collective("all-gather", 2**28, 8))]).iloc[0]
    assert (row["gemm"], row["dtype"], row["bound"], row["collective"]) == (
        "8192x8192x8192",
        "bf16",
        "compute",
        "all-gather",
    )
    assert (row["total_bytes"], row["rank_bytes"], row["ranks"]) == (2**28, 2**25, 8)
    assert (row["suite"], row["backend"], row["path"]) == ("ad hoc", "model", "model")
    assert row["collective_alone_s"] == pytest.approx(6e-6 + 7 * 2**25 / 336e9)
    assert row["unstable_ideal"] == (row["ideal"] < 1.05)


def test_an_empty_collective_has_no_slowdown():
    row = run_suite(suite=[Scenario("a", Gemm(64, 64, 64), Collective("all-gather", 0, 8))]).iloc[0]
    assert np.isnan(row["collective_slowdown"])
    assert np.isnan(row["fraction_of_ideal"])
    assert row["unstable_ideal"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"node": "mi300x_9"}, r"unknown node 'mi300x_9' \(did you mean 'mi300x_8'\?\)"),
        ({"suite": "conccl3"}, "unknown suite 'conccl3'"),
        ({"strategies": ["conccl_pr"]}, "unknown strategy 'conccl_pr'"),
        ({"backend": "cuda9"}, "unknown backend 'cuda9'"),
        ({"repeats": 0}, "repeats must be"),
        ({"repeats": True}, "repeats must be"),
        ({"repeats": 2.0}, "repeats must be"),
        ({"suite": []}, "at least one scenario"),
        ({"strategies": []}, "at least one scenario and one strategy"),
        ({"suite": SUITE[:1] * 2}, "scenario 'synthetic-8192-ag' is given 2 times"),
        ({"strategies": ["c3_sp", "c3_sp"]}, "strategy 'c3_sp' is given 2 times"),
        ({"node": "h200_2", "suite": SUITE}, "8 ranks, but node h200_2 has 2"),
    ],
)
def test_wrong_arguments_are_one_sentence(wrong, message):
    with pytest.raises(C3Error, match=message):
        run_suite(**wrong)


def test_backends():
    assert "model" in backend_names()
    assert isinstance(open_backend("model", H200), Modelled)


def frame_of(*rows):
    columns = ["scenario", "strategy", "repetition", "fraction_of_ideal", "speedup", "ideal"]
    same = {
        "node": "n",
        "suite": "s",
        "backend": "b",
        "evidence": "modelled",
        "oracle": False,
        "collective": "all-gather",
        "verified": True,
    }
    return pd.DataFrame([dict(zip(columns, row, strict=True)) for row in rows]).assign(**same)


def test_summary_by_hand():
    """Median over repetitions, then the mean over scenarios."""
    rows = frame_of(
        ("a", "x", 0, 0.1, 1.1, 2.0),
        ("a", "x", 1, 0.2, 1.2, 2.0),
        ("a", "x", 2, 0.9, 1.9, 2.0),
        ("b", "x", 0, 0.4, 1.2, 1.5),
        ("a", "w", 0, 0.5, 1.5, 2.0),
    )
    table = summarise(rows)
    assert table["strategy"].tolist() == ["x", "w"]  # order of appearance
    x = table.iloc[0]
    assert (x["scenarios"], x["fraction_of_ideal"], x["speedup"]) == (2, pytest.approx(0.3), pytest.approx(1.2))
    assert (x["speedup_max"], x["ideal"]) == (pytest.approx(1.2), pytest.approx(1.75))
    assert x["fraction_of_means"] == pytest.approx(0.2 / 0.75)
    assert x["low"] <= 0.3 <= x["high"]
    assert (x["evidence"], bool(x["oracle"])) == ("modelled", False)
    w = table.iloc[1]
    assert (w["low"], w["high"]) == (0.5, 0.5)


def test_scenarios_without_an_ideal_leave_the_mean_alone():
    table = summarise(frame_of(("a", "x", 0, np.nan, 1.0, 1.0), ("b", "x", 0, 0.5, 1.5, 2.0)))
    assert (table["fraction_of_ideal"][0], table["scenarios"][0]) == (0.5, 2)
    nothing = summarise(frame_of(("a", "x", 0, np.nan, 1.0, 1.0)))
    assert nothing[["fraction_of_ideal", "low", "high", "fraction_of_means"]].isna().all(axis=None)


def test_groups_can_be_finer():
    rows = run_suite(suite=SUITE + load_suite("conccl30", 8)[15:18], strategies=["c3_sp"])
    table = summarise(rows, by=("strategy", "collective"))
    assert table["collective"].tolist() == ["all-gather", "all-to-all"]
    assert table["scenarios"].tolist() == [4, 3]


@pytest.mark.parametrize("column", ["node", "suite", "backend", "evidence"])
def test_what_must_not_be_averaged_is_not(column):
    """M9: two nodes are never averaged; nor are two kinds of evidence. Kept apart, each has its own mean."""
    one = frame_of(("a", "x", 0, 0.2, 1.2, 2.0))
    both = pd.concat([one, one.assign(**{column: "measured", "fraction_of_ideal": 0.6})], ignore_index=True)
    with pytest.raises(C3Error, match=f"a mean over more than one {column}: "):
        summarise(both)
    assert summarise(both, by=(column, "strategy"))["fraction_of_ideal"].tolist() == [0.2, 0.6]


@pytest.mark.parametrize("evidence", ["measured", NOT_A_MEASUREMENT])
@pytest.mark.parametrize("value", [False, None, float("nan")])
def test_wrong_bytes_have_no_mean(evidence, value):
    rows = frame_of(("a", "x", 0, 0.2, 1.2, 2.0), ("b", "x", 0, 0.4, 1.2, 1.5), ("b", "y", 0, 0.4, 1.2, 1.5))
    rows = rows.assign(evidence=evidence).astype({"verified": object})
    assert summarise(rows)["scenarios"].tolist() == [2, 1]
    rows.loc[1, "verified"] = value
    with pytest.raises(C3Error, match=f"^results: 1 {evidence} rows failed the byte check, first b under x$"):
        summarise(rows)
    assert summarise(rows.assign(evidence="modelled"))["scenarios"].tolist() == [2, 1]  # a model moves no bytes


def test_the_ladder_of_the_suite():
    """The headline figures; a change of the model shows here first (docs/model_card.md)."""
    means = summarise(run_suite()).set_index("strategy")["fraction_of_ideal"]
    expected = {
        "c3_base": 0.210,
        "c3_sp": 0.420,
        "c3_rp": 0.398,
        "c3_sp_rp": 0.423,
        "conccl": 0.703,
        "conccl_rp": 0.722,
    }
    assert means.to_dict() == pytest.approx(expected, abs=5e-4)
