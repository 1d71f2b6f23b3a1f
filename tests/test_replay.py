"""Replay gives back what was measured, to the last bit, and says what was not."""

import pandas as pd
import pytest
from replay_cases import NODE, SCENARIOS, SUITE, suite_rows, write

from c3lib import experiment
from c3lib.backends.base import open_backend
from c3lib.backends.replay import Replay
from c3lib.errors import C3Error
from c3lib.experiment import run_suite, summarise
from c3lib.figures import ladder, partition, style, taxonomy
from c3lib.hardware import load_node
from c3lib.schema import RESULTS
from c3lib.strategy import STRATEGIES, strategy
from c3lib.workload import Collective, Gemm, Scenario

ROWS = suite_rows()
ELSEWHERE = run_suite("mi300x_8", strategies=["conccl"])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of measured tables that ``run_suite`` replays from."""
    write(tmp_path, ROWS)
    monkeypatch.setattr(experiment, "open_backend", lambda name, node, suite: Replay(node, suite, tmp_path))
    return tmp_path


def replay(**more):
    return run_suite(NODE, SUITE, backend="replay", **{"repeats": 3, **more})


def test_every_row_comes_back_as_it_was_measured(folder):
    found = replay()
    keys = ["scenario", "strategy", "repetition"]
    wanted = ROWS[[*RESULTS.columns]].set_index(keys).loc[list(zip(*(found[key] for key in keys), strict=True))]
    times = ["gemm_alone_s", "collective_alone_s", "gemm_end_s", "collective_end_s", "concurrent_s", "cus_taken"]
    pd.testing.assert_frame_equal(found.set_index(keys)[times], wanted[times], check_exact=True)
    assert len(found) == len(ROWS)
    assert set(found["evidence"]) == {"measured"}
    assert set(found["backend"]) == {"replay"}
    assert set(found["path"]) == {"traced"}
    assert found["verified"].all()


def test_a_replay_draws_nothing_by_chance(folder):
    pd.testing.assert_frame_equal(replay(seed=0), replay(seed=1), check_exact=True)


def test_fewer_repeats_are_the_first_ones(folder):
    few = replay(repeats=1)
    assert set(few["repetition"]) == {0}
    assert len(few) == len(SCENARIOS) * len(STRATEGIES)


def test_a_row_that_failed_its_byte_check_stays_marked(tmp_path):
    write(tmp_path, suite_rows(verified=lambda rows: rows["strategy"] != "conccl"))
    backend = Replay(NODE, SUITE, tmp_path)
    assert not backend.run(SCENARIOS, strategy("conccl"), 0).verified.any()
    assert backend.run(SCENARIOS, strategy("c3_sp"), 0).verified.all()


def test_several_scenarios_at_once_are_in_their_order(folder):
    backwards = SCENARIOS[::-1]
    found = Replay(NODE, SUITE, folder).run(backwards, strategy("conccl"), 1)
    rows = ROWS[(ROWS["strategy"] == "conccl") & (ROWS["repetition"] == 1)].set_index("scenario")
    assert found.concurrent_s.tolist() == rows.loc[[s.name for s in backwards], "concurrent_s"].tolist()


def test_the_means_are_those_of_the_measured_rows(folder):
    """By hand: the median over three repetitions is the middle one, which has the model's own times."""
    model = summarise(run_suite(NODE, SUITE)).set_index("strategy")["fraction_of_ideal"]
    replayed = summarise(replay()).set_index("strategy")["fraction_of_ideal"]
    pd.testing.assert_series_equal(replayed, model, rtol=1e-9)


def test_it_is_a_backend_by_name():
    with pytest.raises(C3Error, match=r"nothing called 'conccl30' was measured on h200_2"):
        open_backend("replay", load_node("h200_2"), "conccl30")


@pytest.mark.parametrize(
    ("kept", "asked", "message"),
    [
        (lambda r: r["repetition"] < 2, {}, r"conccl30_host.csv: '.+' under \w+ was measured 2 times, so repeats must"),
        (lambda r: r["strategy"] != "c3_sp", {"strategies": ["c3_sp"]}, r"was not measured under c3_sp; there is c3_b"),
        (lambda r: r["scenario"] != SCENARIOS[0].name, {}, rf"scenario '{SCENARIOS[0].name}' was not measured$"),
    ],
)
def test_what_was_not_measured_is_one_sentence(folder, kept, asked, message):
    write(folder, ROWS[kept(ROWS)])
    with pytest.raises(C3Error, match=message):
        replay(**asked)


def test_scenarios_of_no_suite_cannot_be_replayed(folder):
    with pytest.raises(C3Error, match="needs a suite by its name"):
        run_suite(NODE, SCENARIOS, backend="replay")


def test_a_scenario_that_changed_since_is_refused(folder):
    first = SCENARIOS[0]
    changed = Scenario(first.name, Gemm(64, 64, 64), Collective(first.collective.kind, 4096, NODE.ranks))
    with pytest.raises(C3Error, match=r"was measured as 8192x8192x8192 .+ the suite now says 64x64x64 bf16 .+ 4096 8$"):
        Replay(NODE, SUITE, folder).run([changed], strategy("conccl"), 0)


def test_a_repetition_that_stands_twice_is_refused(folder):
    write(folder, pd.concat([ROWS, ROWS.iloc[:1]]))
    with pytest.raises(C3Error, match="stands there twice"):
        Replay(NODE, SUITE, folder)


# --- figures of repeated rows ---


@pytest.mark.parametrize("strategies", [["conccl"], list(STRATEGIES)], ids=["one strategy", "all"])
def test_figures_count_scenarios_whatever_the_repetitions(folder, strategies):
    rows = replay(strategies=strategies)
    once = rows[rows["repetition"] == 1]  # the median
    assert len(taxonomy.one_each(rows)) == len(SCENARIOS)
    assert taxonomy.finding(rows) == taxonomy.finding(once)
    assert taxonomy.finding_ideal(rows) == taxonomy.finding_ideal(once)
    assert ladder.finding_scenarios(rows, strategies) == ladder.finding_scenarios(once, strategies)


def test_a_scenario_on_a_border_has_the_class_of_its_medians(folder):
    rows = replay(strategies=["conccl"])
    first = rows["scenario"] == SCENARIOS[0].name
    gemm_s = [1.0, 1.16, 1.20]  # times the collective's: G-long in two of three repetitions
    rows.loc[first, "gemm_alone_s"], rows.loc[first, "collective_alone_s"] = gemm_s, 1.0
    rows.loc[first, "length_class"] = ["GC-equal", "G-long", "G-long"]
    assert taxonomy.one_each(rows)["length_class"].iloc[0] == "G-long"
    assert taxonomy.one_each(rows)["ideal"].iloc[0] == pytest.approx(1 + 1 / 1.16)
    table = partition.with_rule(replay(strategies=["c3_base", "c3_sp"]))
    assert len(table) == 2 * len(SCENARIOS)
    figure = ladder.per_scenario(rows, ["conccl"])
    drawn = [line for line in figure.axes[0].lines if line.get_label() == "conccl"]
    assert len(drawn[0].get_xdata()) == len(SCENARIOS) / 2


def test_every_stamp_of_the_node_says_whose_view_it_is(folder):
    stamp = style.stamp_of(ladder.ladder(replay(repeats=1)))
    assert stamp.startswith("measured · h200_1 · ")
    assert stamp.count("one rank's view over the host link") == 1
    other = style.stamp_of(ladder.ladder(ELSEWHERE))
    assert "host link" not in other
