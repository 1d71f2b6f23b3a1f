"""Judging: predictors that are right have an error of 0, and every configuration is predicted as it was run."""

import json

import numpy as np
import pandas as pd
import pytest
from replay_cases import NODE, SCENARIOS, SUITE, SWEPT, isolated_rows, suite_rows, sweep_rows, write
from typer.testing import CliRunner

from c3lib import judge as judging
from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.figures import judged as figures
from c3lib.figures import style
from c3lib.hardware import load_node
from c3lib.judge import cases, judge, predict_rows, scorecard, verdicts
from c3lib.measured import read_measured
from c3lib.strategy import STRATEGIES

longer = lambda rows: rows[["gemm_alone_s", "own_alone_s"]].max(axis=1)  # noqa: E731
serial = lambda rows: rows["gemm_alone_s"] + rows["own_alone_s"]  # noqa: E731


def judged(folder, *, sweep=None, **changed):
    rows = suite_rows(**changed)
    write(folder, rows)
    if sweep is not None:
        write(folder, sweep_rows(rows, sweep), "sweep")
        write(folder, isolated_rows(lambda blocks: 1 / min(blocks, 4)), "isolated")
    return judge(NODE.name, SUITE, folder)


def errors(table, predictor, way="isolated"):
    return table.loc[(table["predictor"] == predictor) & (table["way"] == way), "error"]


@pytest.fixture(scope="module")
def perfect(tmp_path_factory):
    """Measured is exactly what the model gives for its own choice of split, in the median of three repetitions."""
    return judged(tmp_path_factory.mktemp("perfect"))


@pytest.mark.parametrize("way", judging.WAYS)
def test_a_perfect_model_has_no_error(perfect, way):
    """Blocks and withheld SMs are read from the rows: the model's own choice is not asked for."""
    assert np.abs(errors(perfect, "model", way)).max() < 1e-9
    assert np.abs(errors(perfect, "max", way)).max() > 0.05
    assert len(errors(perfect, "model", way)) == len(SCENARIOS) * len(STRATEGIES)


@pytest.mark.parametrize(("predictor", "truth"), [("max", longer), ("sum", serial)])
def test_a_naive_rule_that_is_right_has_no_error(tmp_path, predictor, truth):
    found = judged(tmp_path, concurrent_s=truth)
    assert np.abs(errors(found, predictor)).max() < 1e-9
    assert np.abs(errors(found, "model")).max() > 0.01


def test_the_error_is_signed_and_relative_to_what_was_measured(tmp_path):
    found = judged(tmp_path, concurrent_s=lambda rows: 2 * serial(rows))
    assert errors(found, "sum").to_numpy() == pytest.approx(-0.5)


def test_isolated_times_are_inputs_in_one_way_and_the_models_own_in_the_other(tmp_path):
    """A GPU on which everything takes 3 times as long as the constants say, with the same contention."""
    times = ("gemm_alone_s", "collective_alone_s", "own_alone_s", "concurrent_s")
    slow = {name: (lambda rows, name=name: 3 * rows[name]) for name in times}
    found = judged(tmp_path, **slow)
    for predictor in judging.PREDICTORS:
        alone = errors(judged(tmp_path), predictor, "constants")
        assert errors(found, predictor, "constants").to_numpy() == pytest.approx((1 + alone.to_numpy()) / 3 - 1)
    given = errors(found, "max")
    assert given.to_numpy() == pytest.approx(errors(judged(tmp_path), "max").to_numpy())


def test_more_thread_blocks_or_withheld_sms_change_the_prediction(perfect):
    rows = perfect[(perfect["predictor"] == "model") & (perfect["way"] == "isolated")]
    base = rows[(rows["strategy"] == "c3_sp") & (rows["bound"] == "compute")]
    time_s = predict_rows(base, NODE)
    assert (predict_rows(base.assign(blocks=64), NODE) > time_s * 1.001).any()
    assert (predict_rows(base.assign(sms_granted=64), NODE) > time_s * 1.001).any()
    assert (predict_rows(base.assign(first="gemm"), NODE) > time_s * 1.001).any()


def test_the_order_of_rows_makes_no_difference(perfect):
    rows = perfect[(perfect["predictor"] == "model") & (perfect["way"] == "isolated")]
    shuffled = rows.sample(frac=1, random_state=0)
    assert predict_rows(shuffled, NODE) == pytest.approx(shuffled["predicted_s"].to_numpy(), rel=1e-9)


# --- the sweep ---


def test_every_configuration_of_the_sweep_is_a_case(tmp_path):
    found = judged(tmp_path, sweep=serial)
    rows = found[(found["table"] == "sweep") & (found["predictor"] == "sum") & (found["way"] == "isolated")]
    assert len(rows) == len(SCENARIOS) * 2 * len(SWEPT)
    assert set(zip(rows["blocks"], rows["sms_granted"], strict=True)) == set(SWEPT)
    assert (rows["repetitions"] == 3).all()


def test_isolated_times_of_blocks_that_the_suite_did_not_run_follow_the_isolated_table(tmp_path):
    """There 128 MiB take 1 / 2 s by 2 blocks and 1 / 4 s by 4 and more: so many seconds for each byte."""
    judged(tmp_path, sweep=serial)
    found = cases(NODE.name, SUITE, tmp_path)
    known = found[found["table"] == "suite"].set_index(["scenario", "blocks"]).index
    swept = found[(found["table"] == "sweep") & ~found.set_index(["scenario", "blocks"]).index.isin(known)]
    expected = swept["total_bytes"] / 2**27 / np.minimum(swept["blocks"], 4)
    assert swept["own_alone_s"].to_numpy() == pytest.approx(expected.to_numpy())
    assert {2, 4} <= set(swept["blocks"])


def test_a_sweep_of_another_suite_is_left_out(tmp_path):
    judged(tmp_path, sweep=serial)
    table, _ = read_measured(NODE.name, "sweep", tmp_path)
    write(tmp_path, table.assign(suite="another"), "sweep")
    assert set(judge(NODE.name, SUITE, tmp_path)["table"]) == {"suite"}


def test_blocks_that_were_never_measured_alone_are_named(tmp_path):
    judged(tmp_path, sweep=serial)
    table, _ = read_measured(NODE.name, "isolated", tmp_path)
    write(tmp_path, table[table["blocks"] != 2], "isolated")
    with pytest.raises(C3Error, match=r"isolated\.csv: has no transfer alone by 2 thread blocks"):
        judge(NODE.name, SUITE, tmp_path)


def test_unverified_rows_judge_nothing(tmp_path):
    with pytest.raises(C3Error, match="under conccl failed its byte check, so it judges nothing"):
        judged(tmp_path, verified=lambda rows: rows["strategy"] != "conccl")


def test_unverified_isolated_times_judge_nothing(tmp_path):
    judged(tmp_path, sweep=serial)
    table, _ = read_measured(NODE.name, "isolated", tmp_path)
    write(tmp_path, table.assign(verified=table["blocks"] != 8), "isolated")
    with pytest.raises(C3Error, match=r"isolated\.csv: holds rows that failed their check, so it judges nothing"):
        judge(NODE.name, SUITE, tmp_path)


# --- a library's kernels on two GPUs ---


NVLINK, NVLINK_SUITE = load_node("h200_2"), "conccl30_nvlink"


def nvlink_rows(library="nccl", **changed):
    return suite_rows(node=NVLINK, suite=NVLINK_SUITE, library=library, **changed)


def nvlink_sweep(rows, folder, twice_at):
    """A sweep of NCCL's blocks: 2 alone take ``twice_at`` times as long as more. SM kernels take ever longer."""
    write(folder, rows, NVLINK_SUITE, NVLINK.name)
    write(folder, sweep_rows(rows, serial).assign(transport="nccl", batched=False), "sweep", NVLINK.name)
    alone = pd.concat(
        [
            isolated_rows(lambda blocks: twice_at if blocks == 2 else 1, "nccl"),
            isolated_rows(lambda blocks: 7 * blocks),
        ]
    )
    # The library's own number of blocks, and what its partitions leave of it: as fast as 32.
    own = set(rows["blocks"]) | {library.default_cus for library in NVLINK.library.values()}
    more = [alone[alone["blocks"] == 32].assign(blocks=count) for count in sorted(own - {0, *alone["blocks"]})]
    write(folder, pd.concat([alone, *more]).assign(node=NVLINK.name), "isolated", NVLINK.name)


def test_a_librarys_kernels_are_predicted_as_kernels_on_sms(tmp_path):
    write(tmp_path, nvlink_rows(), NVLINK_SUITE, NVLINK.name)
    found = judge(NVLINK.name, NVLINK_SUITE, tmp_path)
    assert set(found["transport"]) == {"copy_engine", "nccl"}
    assert (found["ranks"] == 2).all()
    assert np.abs(errors(found, "model")).max() < 1e-9
    scores = scorecard(found)
    assert {"NCCL", "copy engine"} <= set(scores.loc[scores["by"] == "transport", "group"])
    assert "blocks" in scores.loc[scores["group"] == "NCCL", "worst_case"].iloc[0]


def test_a_library_without_blocks_is_predicted_as_copy_engines():
    rows = nvlink_rows(repeats=1)
    engine = rows[rows["strategy"] == "conccl"]
    time_s = predict_rows(engine, NVLINK)
    assert predict_rows(engine.assign(transport="nccl_zero_cta"), NVLINK) == pytest.approx(time_s, rel=1e-12)
    for transport in ("nccl_registered", "nccl_zero_cta"):  # which falls back to kernels where it has no copies
        by_sms = engine.assign(transport=transport, blocks=16, first="gemm")
        assert (predict_rows(by_sms, NVLINK) > time_s * 1.01).any()
    with pytest.raises(C3Error, match="by nccl needs the blocks that ran, not 0"):
        predict_rows(engine.assign(transport="nccl"), NVLINK)


@pytest.mark.parametrize("slower", [2, 3])
def test_a_sweep_of_the_librarys_blocks_follows_the_library_alone(tmp_path, slower):
    """Not our SM kernel, which the isolated table holds as well."""
    nvlink_sweep(nvlink_rows(), tmp_path, slower)
    found = cases(NVLINK.name, NVLINK_SUITE, tmp_path)
    swept = found[(found["table"] == "sweep") & ~found["blocks"].isin(nvlink_rows(repeats=1)["blocks"])]
    assert 2 in set(swept["blocks"])
    expected = swept["total_bytes"] / 2**27 * np.where(swept["blocks"] == 2, slower, 1)
    assert swept["own_alone_s"].to_numpy() == pytest.approx(expected.to_numpy())


def test_each_collective_follows_its_own_where_that_was_measured(tmp_path):
    nvlink_sweep(nvlink_rows(), tmp_path, 2)
    table, _ = read_measured(NVLINK.name, "isolated", tmp_path)
    other = table[table["transport"] == "nccl"].assign(collective="all-to-all", transfer_s=5.0)
    write(tmp_path, pd.concat([table, other]), "isolated", NVLINK.name)
    found = cases(NVLINK.name, NVLINK_SUITE, tmp_path)
    swept = found[(found["table"] == "sweep") & (found["blocks"] == 2)]
    expected = swept["total_bytes"] / 2**27 * np.where(swept["collective"] == "all-to-all", 5, 2)
    assert swept["own_alone_s"].to_numpy() == pytest.approx(expected.to_numpy())


@pytest.mark.parametrize("transport", ["nccl_unclustered", "sm_kernel"])
def test_kernels_that_are_launched_singly_find_the_room_that_was_left_them(transport):
    rows = nvlink_rows(repeats=1)
    rows = rows[(rows["strategy"] == "c3_rp") & (rows["bound"] == "compute")].assign(blocks=16, sms_granted=16)
    clustered = predict_rows(rows, NVLINK)
    assert clustered == pytest.approx(predict_rows(rows.assign(transport="nccl_registered"), NVLINK), rel=1e-12)
    assert (predict_rows(rows.assign(transport=transport), NVLINK) < 0.95 * clustered).all()


def test_an_unknown_transport_is_refused(tmp_path):
    write(tmp_path, nvlink_rows(library="oneccl"), NVLINK_SUITE, NVLINK.name)
    with pytest.raises(C3Error, match="transport"):
        read_measured(NVLINK.name, NVLINK_SUITE, tmp_path)


# --- the scorecard ---


def test_scores_by_hand():
    """Two scenarios, one run in two ways: the mean counts each scenario once, the median each configuration."""
    rows = pd.DataFrame(
        {
            "table": ["suite", "suite", "sweep"],
            "scenario": ["a", "b", "b"],
            "strategy": ["conccl", "c3_rp", "c3_rp"],
            "transport": ["copy_engine", "sm_kernel", "sm_kernel"],
            "blocks": [0, 4, 8],
            "sms_granted": [0, 0, 8],
            "partition": ["none", "none", "sm target"],
            "bound": ["compute", "memory", "memory"],
            "length_class": ["G-long", "C-long", "C-long"],
            "held_out": [False, True, True],
            "way": "isolated",
            "predictor": "model",
            "error": [-0.1, 0.2, -0.4],
        }
    )
    scores = scorecard(rows).set_index("group")
    everything = scores.loc["all"]
    assert everything["mean"] == pytest.approx((0.1 + 0.3) / 2)
    assert everything["median"] == pytest.approx(0.2)
    assert everything["bias"] == pytest.approx((-0.1 - 0.1) / 2)
    assert (everything["configurations"], everything["scenarios"]) == (3, 2)
    assert everything["worst"] == pytest.approx(0.4)
    assert everything["worst_case"] == "b c3_rp (8 blocks, 8 SMs withheld)"
    assert scores.loc["suite", "mean"] == pytest.approx(0.15)
    assert scores.loc["SM kernel", "mean"] == pytest.approx(0.2)
    assert scores.loc["copy engine", "worst_case"] == "a conccl"
    assert scores.loc["memory-bound, C-long", "mean"] == pytest.approx(0.2)
    assert scores.loc["sweep, SM target", "mean"] == pytest.approx(0.4)
    assert scores.loc["held out", "mean"] == pytest.approx(0.3)
    assert "held out" not in set(scorecard(rows.assign(held_out=False))["group"])
    assert "c3_sp" not in scores.index
    found = {row["group"]: row["met"] for row in verdicts(scorecard(rows))}
    assert found == {"all": False, "copy engine": False}
    better = scorecard(rows.assign(error=[0.04, 0.08, 0.08]))
    assert all(row["met"] for row in verdicts(better))


def test_intervals_hold_the_mean_and_the_worst_is_the_largest(tmp_path):
    scores = scorecard(judged(tmp_path, concurrent_s=longer))
    assert (scores["low"] <= scores["mean"] + 1e-12).all()
    assert (scores["mean"] <= scores["high"] + 1e-12).all()
    assert (scores[["median", "p90"]].max(axis=1) <= scores["worst"] + 1e-12).all()
    wanted = {"all", "suite", "copy engine", "SM kernel", *STRATEGIES}
    assert wanted <= set(scores["group"])


# --- the shell ---


@pytest.fixture
def measured_there(tmp_path, monkeypatch):
    write(tmp_path, suite_rows())
    found = judge(NODE.name, SUITE, tmp_path)
    monkeypatch.setattr(judging, "judge", lambda node, suite: found)


def test_the_shell_says_what_is_modelled_and_what_measured(measured_there):
    result = CliRunner().invoke(app, ["judge"])
    assert result.exit_code == 0, result.output
    for words in ("Isolated times given", "From constants alone", "copy engine", "c3_sp_rp", "compute-bound, G-long"):
        assert words in result.stdout
    assert "Target, isolated times given, copy engine: at most 4%; 0.0%: met." in result.stdout
    content = json.loads(CliRunner().invoke(app, ["judge", "--json"]).stdout)
    assert content["evidence"] == {"predicted_s": "modelled", "measured_s": "measured"}
    assert len(content["rows"]) == 180 * len(judging.PREDICTORS) * len(judging.WAYS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--node", "h200_2", "--suite", "conccl30"], "nothing called 'conccl30' was measured on h200_2"),
        (["--node", "mi300x_8"], "judge: no suite was measured on mi300x_8, but on h200_1, h200_2; say --node"),
        (["--node", "h300"], "unknown node 'h300'"),
        (
            ["--node", "h200_2", "--suite", "conccl30_host"],
            "suite conccl30_host: its transfers were sized for nodes of topology host, and h200_2 is of topology "
            "switch; use --suite conccl30_nvlink",
        ),
    ],
)
def test_nothing_measured_is_one_sentence(arguments, message):
    result = CliRunner().invoke(app, ["judge", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"c3: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(("node", "suite"), [("h200_1", "conccl30_host"), ("h200_2", "conccl30_nvlink")])
def test_without_a_suite_the_one_that_was_measured_there_is_judged(node, suite, monkeypatch, perfect):
    asked = []
    monkeypatch.setattr(judging, "judge", lambda *what: asked.append(what) or perfect)
    result = CliRunner().invoke(app, ["judge", "--node", node])
    assert result.exit_code == 0, result.output
    assert asked == [(node, suite)]
    assert result.stdout.startswith(f"{suite} on {node}")


def test_of_several_suites_one_has_to_be_said(tmp_path):
    for name in ("conccl30_host", "mine", "sweep"):
        (tmp_path / NODE.name).mkdir(exist_ok=True)
        (tmp_path / NODE.name / f"{name}.csv").touch()
    with pytest.raises(
        C3Error, match=r"several suites were measured on h200_1; say --suite and one of conccl30_host, "
    ):
        judging.measured_suite(NODE.name, tmp_path)
    with pytest.raises(C3Error, match=r"no suite was measured on h200_2, but on h200_1; say --node"):
        judging.measured_suite("h200_2", tmp_path)
    with pytest.raises(C3Error, match=r"no suite was measured on h200_2, but on no node"):
        judging.measured_suite("h200_2", tmp_path / "empty")


def test_a_table_of_other_ranks_than_the_nodes_is_refused(tmp_path):
    write(tmp_path, nvlink_rows(repeats=1).assign(ranks=8), NVLINK_SUITE, NVLINK.name)
    with pytest.raises(C3Error, match=r"conccl30_nvlink\.csv: column ranks must be 2, as node h200_2 has them, not 8"):
        cases(NVLINK.name, NVLINK_SUITE, tmp_path)


# --- figures ---


@pytest.fixture(scope="module")
def with_sweep(tmp_path_factory):
    return judged(tmp_path_factory.mktemp("sweep"), sweep=longer)


def drawn_errors(rows):
    return figures.errors(rows, scorecard(rows))


@pytest.mark.parametrize("draw", [figures.ratios, drawn_errors], ids=lambda draw: draw.__name__)
def test_figures_say_that_two_kinds_of_evidence_are_compared_and_whose_view_it_is(draw, with_sweep, perfect):
    stamp = style.stamp_of(draw(with_sweep))
    assert stamp.startswith("modelled against measured · h200_1 · ")
    assert stamp.endswith("one rank's view over the host link")
    assert style.stamp_of(draw(perfect))  # without a sweep


def test_a_panel_is_headed_by_its_error_and_shows_every_case(with_sweep):
    figure = figures.ratios(with_sweep)
    scores = scorecard(with_sweep).set_index(["way", "group", "predictor"])
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles[4] == f"model: {scores.loc[('isolated', 'SM kernel', 'model'), 'mean']:.1%} off"
    assert titles[0] == f"max(Tg, Tc): {scores.loc[('isolated', 'copy engine', 'max'), 'mean']:.1%} off"
    rows = with_sweep[(with_sweep["way"] == "isolated") & (with_sweep["predictor"] == "model")]
    drawn = [sum(len(line.get_xdata()) for line in axis.lines if line.get_ls() == "None") for axis in figure.axes]
    assert drawn[1] == (rows["transport"] == "copy_engine").sum()
    assert drawn[4] == (rows["transport"] == "sm_kernel").sum()


def test_a_figure_refuses_rows_without_a_byte_check(perfect):
    with pytest.raises(C3Error, match="failed the byte check"):
        figures.ratios(perfect.assign(verified=False))


def test_the_finding_names_the_targets_and_a_naive_rule_that_does_better(tmp_path, perfect):
    text = figures.finding(scorecard(perfect))
    assert "the model misses 180 measured concurrent times by 0.0% on average" in text
    assert "Target over all, at most 8%: 0.0%, met." in text
    assert "naive" not in text
    beaten = figures.finding(scorecard(judged(tmp_path, concurrent_s=serial)))
    assert "**missed**" in beaten
    assert "A naive rule does better for c3_base" in beaten


def test_the_finding_names_where_a_naive_rule_is_as_good(perfect):
    """The model is off by 1 % and 3 % in turn, a naive rule by a little more than the mean of these everywhere."""
    turn = perfect["scenario"].map({scenario.name: place % 2 for place, scenario in enumerate(SCENARIOS)})
    naive = np.where(perfect["predictor"] == "max", 0.0202, 0.5)
    rows = perfect.assign(error=np.where(perfect["predictor"] == "model", 0.01 + 0.02 * turn, naive))
    assert figures.finding(scorecard(rows)).endswith(
        f"No better than a naive rule, within the interval: {', '.join(STRATEGIES)}."
    )
    clear = rows.assign(error=rows["error"].mask(rows["predictor"] == "max", 0.04))
    assert "naive" not in figures.finding(scorecard(clear))
