"""Losses, the heuristic and measured finer-grain overlap in figures: known factors come out, wrong rows are refused."""

import json
import re
import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import ficco_tables as made
import numpy as np
import pandas as pd
import pytest

from c3lib import measured as store
from c3lib.book import run
from c3lib.errors import C3Error
from c3lib.ficco import SCHEDULES, Problem
from c3lib.ficco.sets import Row
from c3lib.figures import ficco_heuristic, ficco_judged, ficco_losses, ficco_losses_measured, ficco_measured, style
from c3lib.files import ROOT
from c3lib.finer_measured import best, reduced
from c3lib.model.losses import loss_rows
from c3lib.results import write_table
from c3lib.schedule_score import score_measured


def written(folder, **tables):
    """The tables as measured ones under a folder."""
    for name, table in tables.items():
        path = store.table_path("h200_1", name, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(table, path, device="NVIDIA H200")


NODES = ("mi300x_8", "h200_2", "h200_1")


@cache
def table_of(name):
    if name == "judged":
        with TemporaryDirectory() as folder:
            written(Path(folder), ficco=made.schedules())
            return ficco_judged.judged("h200_1", Path(folder))
    if name == "schedules":
        return reduced(made.schedules())
    if name == "losses":
        return ficco_losses_measured.reduced(made.losses())
    return made.schedules() if name == "raw" else ficco_heuristic.score_rows("mi300x_8", 12)


# --- every figure ---

# name: (rows, figure, finding)
MODELLED = {
    "decomposition": (ficco_losses.rows, ficco_losses.decomposition, ficco_losses.finding_decomposition),
    "contention": (ficco_losses.rows, ficco_losses.contention, ficco_losses.finding_contention),
    "shares": (lambda n: ficco_heuristic.score_rows(n, 8), ficco_heuristic.shares, ficco_heuristic.finding),
    "confusion": (lambda n: ficco_heuristic.score_rows(n, 8), ficco_heuristic.confusion, None),
    "unsure": (lambda n: ficco_heuristic.unsure_rows(n, 4), ficco_heuristic.unsure, ficco_heuristic.finding_unsure),
}
MEASURED = {
    "speedups": ("schedules", ficco_measured.speedups, ficco_measured.finding),
    "errors": ("judged", ficco_judged.errors, ficco_judged.finding),
    "losses": ("losses", ficco_losses_measured.both, ficco_losses_measured.finding),
    "choices": ("raw", None, ficco_heuristic.finding_measured),
}


def told(text):
    assert re.search(r"\d", text), "a finding without a number"
    assert not re.search(r"\b(nan|inf)\b", text, re.I), text
    return text


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("name", MODELLED)
def test_every_modelled_figure_is_stamped_and_finds_something_on_every_node(name, node):
    rows, draw, find = MODELLED[name]
    table = rows(node)
    stamp = style.stamp_of(draw(table))
    assert stamp.startswith("modelled · ")
    assert node in stamp
    assert ("reported" in stamp) == (name == "shares" and node == "mi300x_8")
    if find:
        assert "modelled" in told(find(table))
    with pytest.raises(C3Error, match="verified"):
        draw(table.assign(evidence="measured"))
    with pytest.raises(C3Error, match="no rows"):
        draw(table.iloc[:0])


@pytest.mark.parametrize("name", MEASURED)
def test_measured_figures_say_so_and_that_it_is_one_ranks_view(name, tmp_path):
    table, draw, find = MEASURED[name]
    assert "measured" in told(find(table_of(table)))
    if draw:
        figures = [draw(table_of(table)) for _ in range(2)]
        assert "measured" in style.stamp_of(figures[0])
        assert "modelled" in style.stamp_of(figures[0])
        assert "one rank's view over the host link" in style.stamp_of(figures[0])
        made_by = [
            style.save(figure, "a", tmp_path / str(turn)).svg.read_bytes() for turn, figure in enumerate(figures)
        ]
        assert made_by[0] == made_by[1]


def test_no_row_whose_result_was_not_checked_is_reduced():
    for table, reduce in ((made.schedules(), reduced), (made.losses(), ficco_losses_measured.reduced)):
        wrong = table.copy()
        wrong.loc[len(wrong) // 2, "verified"] = False
        with pytest.raises(C3Error, match="byte check"):
            reduce(wrong)
        with pytest.raises(C3Error, match="no rows"):
            reduce(table.iloc[:0])
    for name in ("speedups", "losses"):
        table, draw, find = MEASURED[name]
        for function in (draw, find):
            with pytest.raises(C3Error, match="byte check"):
                function(table_of(table).assign(verified=False))


# --- schedules that ran ---


def _set(column, value, **where):
    """Changes a table: ``column`` becomes ``value`` in the first row that is as ``where`` says."""

    def change(rows):
        mine = np.logical_and.reduce([rows[name] == told for name, told in where.items()])
        rows = rows.astype({column: object}) if isinstance(value, str) else rows.copy()
        rows.loc[rows.index[mine][0], column] = value
        return rows

    return change


FIRST = {"problem": "g14-r1", "lanes": "both", "transport": "sm_kernel", "schedule": "shard_p2p"}
DAMAGED = {
    "a schedule that nobody knows": (_set("schedule", "fastest", **FIRST), "schedule must be one of .*, not 'fastest'"),
    "a collective that nobody knows": (
        lambda rows: rows.assign(collective=rows["collective"].where(rows["problem"] != "g14-r1", "broadcast")),
        "collective must be one of all-gather, all-to-all, not 'broadcast'",
    ),
    "another transport": (_set("transport", "pigeon", **FIRST), "transport must be one of .*, not 'pigeon'"),
    "no time": (_set("time_s", 0.0, **FIRST), r"time_s must be above 0, not 0\.0"),
    "time that went back": (_set("time_s", -1.0, **FIRST), r"time_s must be above 0, not -1\.0"),
    "time without end": (_set("time_s", float("inf"), **FIRST), "time_s must be above 0, not inf"),
    "a time that is not there": (_set("time_s", float("nan"), **FIRST), "time_s must be above 0, not nan"),
    "two shapes": (_set("n", 1, **FIRST), "n must be the same in all rows of a problem, not 1"),
    "two numbers of pieces": (_set("pieces", 3, **FIRST), "pieces must be the same in all rows of a problem, not 3"),
    "two dtypes": (_set("dtype", "fp8", **FIRST), "dtype must be the same in all rows of a problem, not 'fp8'"),
    "one rank": (
        lambda rows: rows.assign(ranks=rows["ranks"].where(rows["problem"] != "g14-r1", 1)),
        "columns collective, m, n, k, dtype, ranks, pieces: ranks: .* needs 2 to 64, not 1",
    ),
    "a run that is there twice": (
        lambda rows: pd.concat([rows, rows[np.logical_and.reduce([rows[k] == v for k, v in FIRST.items()])][:1]]),
        "repetition must name each run once, not 0",
    ),
    "a repetition without serial": (
        lambda rows: rows[
            (rows["problem"] != "g14-r1") | (rows["schedule"] != "serial") | (rows["repetition"] != 3)
            | (rows["transport"] != "sm_kernel")
        ],
        "repetition must be one in which serial ran too, not 3",
    ),
    "no serial": (
        lambda rows: rows[(rows["problem"] != "g14-r1") | (rows["schedule"] != "serial")],
        "repetition must be one in which serial ran too, not 0",
    ),
    "nothing but serial": (
        lambda rows: rows[(rows["problem"] != "g14-r1") | (rows["schedule"] == "serial")],
        "column schedule: nothing but serial by some transport",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_table_is_refused_in_one_sentence_by_all_who_read_it(damage):
    change, says = DAMAGED[damage]
    rows = change(table_of("raw"))
    node = ficco_losses.load_node(made.NODE)
    for read in (reduced, lambda table: score_measured(node, table), ficco_heuristic.finding_measured):
        with pytest.raises(C3Error, match=rf"^measured table.*: g14-r1.*: {says}"):
            read(rows)


@pytest.mark.parametrize(("lane", "by"), [("kernels", "none"), ("exchanges", "sm_kernel")])
def test_a_lane_that_was_not_measured_alone_is_named(lane, by):
    rows = made.schedules()
    mine = (rows["problem"] == "g14-r1") & (rows["lanes"] == lane) & (rows["schedule"] == "serial")
    says = f"measured table of h200_1: g14-r1: column lanes: no {lane} alone under serial, by transport {by}$"
    with pytest.raises(C3Error, match=says):
        reduced(rows[~mine | (rows["transport"] != by)])


def test_a_table_without_finer_grain_schedules_says_so():
    rows = made.schedules()
    table = reduced(rows[rows["schedule"].isin(("serial", "shard_p2p"))])
    assert best(table).empty
    text = ficco_measured.finding(table)
    assert "copy engine: no finer-grain schedule was measured" in text
    assert ficco_measured.speedups(table)


def test_speedups_are_those_of_the_repetitions_and_the_models_error_is_the_factor_put_in():
    table = table_of("schedules")
    assert len(table) == len(made.PROBLEMS) * len(made.TRANSPORTS) * len(SCHEDULES)
    assert table["speedup"].to_numpy() == pytest.approx(table["model_speedup"].to_numpy())
    assert (table["low"] - 1e-12 <= table["speedup"]).all()
    assert (table["speedup"] <= table["high"] + 1e-12).all()
    # The median repetition is 1.02 times as slow as the first, whose times are the model's over 1.05.
    assert (table["model_time_s"] / table["time_s"]).to_numpy() == pytest.approx(1.05 / 1.02)
    assert table["of_ideal"].to_numpy() == pytest.approx((table["speedup"] / table["ideal"]).to_numpy())
    assert (table["loss_free"] <= table["ideal"] + 1e-9).all()
    text = ficco_judged.finding(table_of("judged"))
    assert re.search(
        r"From constants alone, the model misses \d+ .* by 2\.9%\*\* on average \(\+2\.9 % on balance", text
    )


def test_a_missed_target_and_a_schedule_that_loses_are_said():
    table = table_of("schedules")
    off = table_of("judged").copy()
    assert "at most 10% with lanes given; met" in ficco_judged.finding(off.assign(error=0.05))
    assert "**missed**" in ficco_judged.finding(off.assign(error=0.5))
    lost = table.copy()
    small, finer = lost["problem"] == "piece-64KiB", lost["schedule"] != "serial"
    lost.loc[small & finer, ["speedup", "low", "high"]] = 0.5
    assert "**No finer-grain schedule beats serial on piece-64KiB**" in ficco_measured.finding(lost)
    far = table.assign(of_ideal=0.95)
    assert "**not on" not in ficco_measured.finding(far)
    assert "reaches 0.9 of the ideal speedup on 0" in ficco_measured.finding(table.assign(of_ideal=0.5))


def test_copy_engine_against_sm_kernel_is_their_ratio():
    table = table_of("schedules").copy()
    of = table["transport"] == "sm_kernel"
    table.loc[of, "time_s"] = 1.25 * table.loc[~of, "time_s"].to_numpy()
    assert "The SM kernel takes 1.250 times as long" in ficco_measured.finding(table)
    one = ficco_measured.finding(table[~of])
    assert "SM kernel" not in one
    assert ficco_measured.speedups(table[~of])


def test_the_best_is_the_fastest_finer_grain_schedule():
    for row in best(table_of("schedules")).itertuples():
        part = table_of("schedules").query("problem == @row.problem and transport == @row.transport")
        assert row.time_s == part[~part["schedule"].isin(("serial", "shard_p2p"))]["time_s"].min()


def test_the_whole_table_is_saved_and_the_best_are_shown(tmp_path):
    table = table_of("schedules")
    shown = ficco_measured.publish_table(table, "a", tmp_path)
    assert len(shown) == len(made.PROBLEMS) * len(made.TRANSPORTS)
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1 + len(table)


def test_where_nothing_was_measured_the_command_that_does_it_is_told(tmp_path):
    reads = [("ficco", ficco_measured.table), ("ficco", ficco_judged.judged)]
    for experiment, read in (*reads, ("ficco_losses", ficco_losses_measured.losses)):
        found = read("h200_1", tmp_path)
        assert f"c3 measure --node h200_1 --experiment {experiment}" in found
        assert ficco_measured.publish(found, "a", tmp_path) is found
        assert ficco_measured.publish_table(found, "a", tmp_path) is found
        assert ficco_measured.finding(found) is ficco_judged.finding(found) is found
        assert ficco_losses_measured.finding(found) is ficco_heuristic.finding_measured(found) is found
    with pytest.raises(C3Error, match="unknown node 'h300'"):
        ficco_measured.table("h300", tmp_path)


# --- losses ---


def test_measured_losses_are_the_models_and_what_was_added():
    table = table_of("losses")
    of_gemm = table[(table["operation"] == "gemm") | (table["loss"] == "contention")]
    assert of_gemm["model"].notna().all()
    exact = of_gemm[of_gemm["loss"] == "decomposition"]
    assert (exact["value"] - exact["model"]).to_numpy() == pytest.approx(0.02)
    gemms = table[(table["loss"] == "contention") & (table["operation"] == "gemm")]
    assert (gemms["value"] - gemms["model"]).to_numpy() == pytest.approx(0.02)
    assert set(gemms["axis"]) == {"none", "m", "k"}
    shard = table[(table["operation"] == "exchange") & (table["loss"] == "decomposition")].set_index(["axis", "ways"])
    assert shard.loc[("k", 64), "value"].to_numpy() == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: pd.concat([rows, rows.iloc[7:8]]), "g1, gemm cut .* column repetition names a run that is there"),
        (
            lambda rows: rows.assign(time_s=rows["time_s"].where(rows.index != 7, 0.0)),
            "g1, .* time_s must be above 0: 0",
        ),
        (lambda rows: rows.assign(time_s=rows["time_s"].where(rows.index != 7)), "g1, .* time_s must be above 0: nan"),
        (lambda rows: rows[(rows["beside"] == "nothing") & (rows["parts"] == 1)], "no run that is cut, or beside"),
        (lambda rows: rows[rows["beside"] != "nothing"], "no run that is cut, or beside another, has one"),
    ],
)
def test_a_damaged_table_of_losses_is_refused(change, says):
    with pytest.raises(C3Error, match=f"^measured table of losses of h200_1: {says}"):
        ficco_losses_measured.reduced(change(made.losses(problems=("g1",))))


def test_a_loss_without_what_it_is_compared_with_is_left_out():
    rows = made.losses(problems=("g1",))
    whole = (rows["measured"] == "gemm") & (rows["cut"] == "none") & (rows["beside"] == "nothing")
    table = ficco_losses_measured.reduced(rows[~whole])
    of_gemm = table[table["operation"] == "gemm"]
    assert set(of_gemm["loss"]) == {"contention"}
    assert set(of_gemm["axis"]) == {"m", "k"}


def test_a_median_of_losses_has_its_interval_and_says_how_many_rows_leave_it_open():
    table = table_of("losses").copy()
    mine = (table["loss"] == "decomposition") & (table["operation"] == "gemm")
    mine &= (table["axis"] == "m") & (table["ways"] == 8)
    assert mine.sum() == 3
    table.loc[mine, ["value", "low", "high"]] = [[0.010, -0.02, 0.03], [0.013, 0.0, 0.02], [0.030, 0.01, 0.04]]
    text = ficco_losses_measured.finding(table)
    # Of three values, any may be the median of a resample.
    assert "GEMM in 8 along M (rows): +1.3 % [+1.0 %, +3.0 %] in the median (2 of 3 intervals hold 0)" in text
    for count, words in ((1, "1 of 3 intervals holds 0"), (0, "none of 3 intervals holds 0")):
        table.loc[mine, "low"] = [-0.02] * count + [0.01] * (3 - count)
        assert words in ficco_losses_measured.finding(table)
    shard = table[(table["operation"] == "exchange") & (table["axis"] == "k") & (table["ways"] == 64)]
    table.loc[shard.index, ["low", "high"]] = [0.04, 0.07]
    assert "+5.0 % [+4.0 %, +7.0 %] in 64 along K" in ficco_losses_measured.finding(table)


def test_losses_below_nothing_are_counted_with_the_clock():
    """Of GEMMs cut in 8 along M the first took 5 % less at a higher clock; each repetition of it alike."""
    rows = made.losses()
    assert "below 0" not in ficco_losses_measured.finding(ficco_losses_measured.reduced(rows))
    whole = (rows["measured"] == "gemm") & (rows["beside"] == "nothing") & (rows["cut"] == "none")
    cut = (rows["measured"] == "gemm") & (rows["beside"] == "nothing") & (rows["cut"] == "m") & (rows["parts"] == 8)
    for problem, less, mhz in (("g1", 0.95, 1400.0), ("g2", 0.98, 1500.0)):
        own = rows["problem"] == problem
        rows.loc[own & cut, "time_s"] = rows.loc[own & whole, "time_s"].to_numpy() * less
        rows.loc[own & whole, "sm_mhz"] = 1500.0
        rows.loc[own & cut, "sm_mhz"] = mhz
    table = ficco_losses_measured.reduced(rows)
    mine = table[(table["loss"] == "decomposition") & (table["axis"] == "m") & (table["ways"] == 8)].set_index(
        "problem"
    )
    assert mine.loc["g1", ["value", "slowest_mhz", "fastest_mhz", "clock"]].tolist() == pytest.approx(
        [-0.05, 1400, 1500, 14 / 15]
    )
    count = (table["operation"] == "gemm").sum()
    text = ficco_losses_measured.finding(table)
    assert f"2 of {count} losses of GEMMs lie below 0, 2 with the whole interval (the lowest -5.0 %)" in text
    assert "from 1400 to 1980 MHz between runs, and on 0 of those 2 it was higher with the loss than without" in text
    table.loc[(table["problem"] == "g2") & (table["value"] < 0), "clock"] = 1.1
    assert "on 1 of those 2 it was higher" in ficco_losses_measured.finding(table)


def test_findings_of_modelled_losses_name_the_largest():
    rows = ficco_losses.rows("h200_8")
    part = ficco_losses.decomposed(rows).query("axis == 'm' and ways == 64")
    worst = part.loc[part["value"].idxmax()]
    text = ficco_losses.finding_decomposition(rows)
    assert f"at most +{worst['value'] * 100:.0f} % ({worst['problem']})" in text
    nothing = rows.assign(value=np.where(rows["loss"] == "contention", 0.0, rows["value"]))
    assert "nothing longer" in ficco_losses.finding_contention(nothing)
    assert set(ficco_losses.contended(rows)["ways"]) == {8}
    assert len(ficco_losses.table(rows)) == len(rows) == len(loss_rows_of("h200_8"))


def test_losses_without_an_exchange_or_without_a_cut_are_refused():
    node = ficco_losses.load_node("mi300x_8")
    lonely = [[64 * (src == dst) for dst in range(8)] for src in range(8)]
    rows = loss_rows(node, [Row("alone", Problem.all_to_all(0, 64, 64, 8, rows=lonely), "")])
    assert ficco_losses.decomposition(rows)
    for function in (ficco_losses.contention, ficco_losses.finding_contention):
        with pytest.raises(C3Error, match=r"losses: expected some of a GEMM cut along M, .* and an exchange, got none"):
            function(rows)
    beside = ficco_losses.rows("mi300x_8").query("loss == 'contention'")
    for function in (ficco_losses.decomposition, ficco_losses.finding_decomposition):
        with pytest.raises(C3Error, match="losses: expected some of a GEMM that is cut, got none"):
            function(beside)


def loss_rows_of(node):
    machine = ficco_losses.load_node(node)
    return loss_rows(machine, ficco_losses.load_problems("ficco16", machine.ranks))


# --- the heuristic ---


def test_the_confusion_counts_every_problem_once_and_ties_stand_on_the_diagonal():
    rows = table_of("scored")
    mine = rows[rows["policy"] == "rule"]
    figure = ficco_heuristic.confusion(rows)
    for axis, (_, part) in zip(figure.axes, mine.groupby("transport", sort=False), strict=True):
        counts = [int(text.get_text()) for text in axis.texts]
        assert sum(counts) == len(part)
        diagonal = sum(int(t.get_text()) for t in axis.texts if t.get_position()[0] == t.get_position()[1])
        assert diagonal == part["right"].sum()


def test_misses_are_the_worst_first_and_none_where_all_is_right():
    rows = table_of("scored").copy()
    rows["loss"] = np.linspace(0.2, 0.1, len(rows))
    found = ficco_heuristic.misses(rows.assign(right=False), 3)
    assert list(found["loss"]) == sorted(found["loss"], reverse=True)
    assert len(found) == 3
    assert ficco_heuristic.misses(rows.assign(right=True)).empty


def test_the_heuristic_is_beside_the_reported_value_only_on_the_papers_node():
    rows = table_of("scored")
    right = rows.assign(right=True, near=True, loss=0.0)
    assert "both reached" in ficco_heuristic.finding(right)
    assert "**not both reached**" in ficco_heuristic.finding(rows.assign(right=False, loss=0.3))
    assert "reported:" not in ficco_heuristic.finding(rows.assign(node="h200_8"))


def test_choices_against_measured_times_count_problems_and_name_what_is_lost():
    rows = made.schedules()
    text = ficco_heuristic.finding_measured(rows)
    assert text.count(f" of {len(made.PROBLEMS)}** problems") == 2
    # Whatever the rule picks for the first problem, another schedule now takes half of the time.
    slower = rows.copy()
    fast = (slower["problem"] == "g2-r1") & (slower["schedule"] == "uniform_fused_2d") & (slower["lanes"] == "both")
    slower.loc[fast, "time_s"] *= 0.5
    assert re.search(r"g2-r1: \w+ for uniform_fused_2d, [\d.]+ % lost", ficco_heuristic.finding_measured(slower))


# --- notebooks ---


@pytest.fixture
def project(tmp_path):
    """The notebooks beside a data folder in which our tables are the measured ones."""
    for name in ("notebooks", "data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("measured"))
    written(tmp_path / "data" / "measured", ficco=made.schedules(), ficco_losses=made.losses())
    return tmp_path


@pytest.mark.notebooks
@pytest.mark.parametrize(("name", "figures"), [("21_ficco_losses", 3), ("22_ficco_speedups", 5)])
def test_a_notebook_shows_what_was_measured(name, figures, project, tmp_path):
    code = f"import c3lib.files as f; from pathlib import Path; f.DATA = Path({str(project / 'data')!r})"
    path = project / "notebooks" / f"{name}.ipynb"
    book = json.loads(path.read_text())
    first = next(cell for cell in book["cells"] if "from c3lib.figures" in "".join(cell["source"]))
    first["source"] = [code + "\n", *first["source"]]
    path.write_text(json.dumps(book))
    result = run(path, tmp_path / "out", tmp_path / "build")
    assert sum(file.suffix == ".svg" for file in result.published) == figures
