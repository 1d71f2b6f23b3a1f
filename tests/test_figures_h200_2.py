"""Figures on the tables of two H200s: one GPU's figures draw them too, and what a glance must not misread."""

import re

import between_tables as made
import measured_tables
import numpy as np
import pytest

from c3lib.book import run
from c3lib.errors import C3Error
from c3lib.figures import (
    clusters,
    link_use,
    measured,
    measured_c3,
    measured_curves,
    measured_energy,
    measured_gain,
    measured_overlap,
    measured_scenarios,
    measured_sizes,
    memory_limit,
    style,
    training_step,
    wire_bytes,
)
from c3lib.files import ROOT
from c3lib.measured import read_measured

SUITE = "conccl30_nvlink"
TABLES = {name: read_measured("h200_2", name)[0] for name in (SUITE, "isolated", "break_even", "order", "energy")}

# What notebook 10 calls: table, figures, findings.
CALLS = {
    "ladder": (SUITE, [measured_c3.ladder, measured_c3.by_bound], [measured_c3.finding_ladder]),
    "versus": (
        SUITE,
        [measured_scenarios.versus, measured_scenarios.per_scenario],
        [measured_scenarios.finding_versus, measured_c3.finding_rest],
    ),
    "gemm": ("isolated", [measured_curves.gemm_by_sms], [measured_curves.finding_gemm]),
    "blocks": ("isolated", [measured_curves.rate_by_blocks], [measured_curves.finding_blocks]),
    "sizes": ("isolated", [measured_sizes.rate_by_size, measured_sizes.latency], [measured_sizes.finding_latency]),
    "link": (SUITE, [], [lambda rows: measured_scenarios.finding_link(rows, TABLES["isolated"])]),
    "gain": ("break_even", [measured_gain.gain], [measured_gain.finding_break_even]),
    "order": (
        "order",
        [measured_overlap.order],
        [measured_overlap.finding_order, measured_overlap.finding_waiting, measured_overlap.finding_directions],
    ),
    "energy": ("energy", [measured_energy.energy], [lambda rows: measured_energy.finding_energy(rows, TABLES[SUITE])]),
}


def texts(figure):
    return [text.get_text() for axis in figure.axes for text in (*axis.texts, axis.xaxis.label, axis.yaxis.label)]


# --- notebooks 10 and 11 on two GPUs ---


@pytest.mark.parametrize("name", CALLS)
def test_what_notebook_10_calls_takes_the_tables_of_two_gpus(name):
    table, draws, finds = CALLS[name]
    for draw in draws:
        assert "h200_2" in style.stamp_of(draw(TABLES[table]))
    for find in finds:
        assert not re.search(r"\bnan\b", find(TABLES[table]))


def test_where_counters_were_not_read_notebook_11_says_so_in_one_sentence(tmp_path):
    with pytest.raises(
        C3Error, match=r"nothing called 'premise' was measured on h200_2, which has [^.]*; it was measured on h200_1$"
    ):
        read_measured("h200_2", "premise")
    with pytest.raises(C3Error, match="was measured on h200_2, which has nothing; nor was it on any other node"):
        read_measured("h200_2", "premise", tmp_path)


@pytest.mark.notebooks
def test_notebook_10_runs_on_two_gpus(tmp_path):
    chosen = {"machine": "h200_2", "measured_suite": SUITE}
    result = run(ROOT / "notebooks" / "10_h200_c3.ipynb", tmp_path / "out", tmp_path / "build", chosen)
    assert sum(file.suffix == ".svg" for file in result.published) == 12


# --- transfers alone ---


def test_a_library_is_one_line_by_size_with_the_blocks_that_it_chose():
    table = measured_sizes.by_size(made.isolated())
    assert set(table["line"]) == {"NCCL", "SM kernel, 32 blocks", "copy engine, batched", "bare copies"}
    nccl = table[table["line"] == "NCCL"].set_index("total_bytes")["median"]
    assert nccl[2**29] == pytest.approx(2**29 / (10e-6 + 2**29 / made.RATES["nccl"] / 1e9) / 1e9)
    assert measured_sizes.by_size(made.isolated(), "one").empty


def test_blocks_needed_are_told_of_our_kernel_and_of_nccl_but_bare_copies_are_not_the_link():
    rows = TABLES["isolated"]
    ours, library = (measured_curves.blocks_needed(rows, name=name).iloc[0] for name in ("SM kernel", "NCCL"))
    alone = rows[(rows["total_bytes"] == 2**29) & (rows["collective"] == "all-gather")]
    rates = (alone["link_bytes"] / alone["transfer_s"] / 1e9).groupby([alone["transport"], alone["batched"]]).median()
    assert ours["link_gbs"] == library["link_gbs"] == rates["copy_engine"].max() < rates["bare_copy"].max()
    assert ours["best_share"] > library["best_share"]
    text = measured_curves.finding_blocks(rows)
    assert "; the SM kernel reaches 95% of that with 32 blocks" in text
    assert "; NCCL never reaches 95% of that" in text
    shown = texts(measured_curves.rate_by_blocks(rows))
    assert any("on 0 SMs" in text for text in shown)
    assert any(text.startswith("NCCL ") for text in shown)


def test_link_use_names_the_sizes_at_which_the_target_is_reached():
    text = link_use.finding(TABLES["isolated"])
    shares = link_use.rates(TABLES["isolated"]).query("transport == 'copy_engine'").set_index("total_bytes")["use"]
    assert shares[2**30] < link_use.ALL_OF_IT < shares[2**32]
    assert f"it is reached at 4 GiB (0.9595 at 256 MiB, 0.9782 at 512 MiB, {shares[2**30]:.4f} at 1 GiB" in text
    slow = made.isolated()
    slow.loc[slow["transport"] == "copy_engine", "transfer_s"] *= 2
    assert "reached at no size tried" in link_use.finding(slow)


# --- one word per thing ---


def test_the_opponent_has_the_name_of_what_moves_its_bytes():
    for rows, name in ((made.suite(), "best NCCL configuration"), (measured_tables.suite(), "best SM kernel")):
        assert measured_scenarios.best_name(rows) == name
        assert f"time with the {name} over time with conccl_rp" in texts(measured_scenarios.versus(rows))
        assert f"ends before the {name}" in measured_scenarios.finding_versus(rows)
    assert "SM kernel" not in measured_scenarios.finding_versus(made.suite()) + measured_c3.finding_ladder(made.suite())
    assert "Best SM-kernel strategy" in measured_c3.finding_ladder(measured_tables.suite())


def test_variants_of_a_library_share_its_name():
    rows = made.suite()
    swept = rows["strategy"] == "c3_rp"
    assert measured.mover(rows.assign(transport=rows["transport"].mask(swept, "nccl_unclustered"))) == "NCCL"


def test_no_marker_of_the_key_stands_among_the_points():
    figure = measured_scenarios.versus(TABLES[SUITE])
    heights = {text.get_text(): text.get_position()[1] for text in figure.axes[0].texts if "GEMM" in text.get_text()}
    assert len(heights) == 2
    assert all(height > 1 for height in heights.values())


# --- break-even ---


def test_where_every_size_gains_there_is_no_circle_and_the_panel_says_so():
    figure = measured_gain.gain(TABLES["break_even"])
    assert not [line for axis in figure.axes for line in axis.lines if line.get_markersize() == 10]
    assert texts(figure).count("copy engine: no size tried loses, all gain") == 2
    assert "NCCL: 1 of 8 sizes tried loses, 1 gains" in texts(figure)
    assert [line for axis in measured_gain.gain(measured_tables.break_even()).axes for line in axis.lines
            if line.get_markersize() == 10]  # fmt: skip


def test_intervals_are_cut_with_arrows_and_panels_far_apart_have_their_own_scales():
    figure = measured_gain.gain(TABLES["break_even"])
    table = measured_gain.gain_by_size(TABLES["break_even"])
    parts = sorted(table.groupby("gemm"), key=lambda each: each[1]["gemm_alone_s"].iloc[0])
    for axis, (gemm, part) in zip(figure.axes, parts, strict=True):
        arrows = [line for line in axis.lines if line.get_marker() == 7]
        assert sum(len(line.get_xdata()) for line in arrows) == (part["low"] < measured_gain.FLOOR).sum(), gemm
        assert axis.get_ylim()[0] > measured_gain.FLOOR * 100 - 5
    left, right = (axis.get_ylim() for axis in figure.axes)
    assert np.ptp(left) > measured_gain.APART * np.ptp(right)
    same = measured_gain.gain(measured_tables.break_even())
    assert len({axis.get_ylim() for axis in same.axes}) == 1


# --- the rest ---


def test_a_change_within_its_interval_is_grey():
    rows, _ = read_measured("h200_2", "fsdp_step")
    told = {text.get_text(): text for axis in training_step.step_times(rows).axes for text in axis.texts}
    unsure, sure = told[" (-9.3 %)"], told[" (-8.0 %)"]
    assert (unsure.get_color(), unsure.get_weight()) == (style.GREY, "normal")
    assert (sure.get_color(), sure.get_weight()) == ("black", "bold")
    assert "grey: not beyond its interval" in told
    assert "grey: not beyond its interval" not in texts(training_step.step_times(made.fsdp_step()))


def test_an_arm_that_would_not_run_is_missed_with_its_reason():
    rows, origin = read_measured("h200_2", "fsdp_step")
    assert "**Missing: NCCL, zero CTAs**, which did not run: `DistBackendError" in training_step.finding(rows, origin)
    assert "Missing" not in training_step.finding(rows, {})


def test_the_line_of_the_memory_limit_is_called_no_limit():
    shown = " ".join(texts(memory_limit.memory_limit(made.suite()))).replace("\n", " ")
    assert shown.count("all bytes at the GEMM's own rate") == 2
    assert "limit" not in shown


def test_no_line_joins_numbers_of_blocks():
    figure = clusters.clusters(TABLES["order"])
    points = [line for axis in figure.axes for line in axis.lines if str(line.get_label()).startswith("NCCL")]
    assert len(points) == 8
    assert {line.get_linestyle() for line in points} == {"None"}


def test_a_gemm_raises_what_crosses_the_wire_for_every_transfer_that_takes_sms_or_waits():
    rows, _ = read_measured("h200_2", "links")
    found = wire_bytes.raised(wire_bytes.named(rows)).groupby("engines_only")["raised"]
    assert found.all().to_dict() == {False: True, True: False}
    assert found.any().to_dict() == {False: True, True: False}
    text = wire_bytes.finding(rows)
    assert "for 14 of 14 transfers that took SMs or waited for them, and for 0 of 5 that did neither" in text
    assert "stores by SMs" not in text
    assert "for 3 of 3 that did neither" in wire_bytes.finding(made.links(0))  # there a GEMM raises all


def test_energy_names_what_moved_other_than_in_the_suite():
    text = measured_energy.finding_energy(TABLES["energy"], TABLES[SUITE])
    assert "c3_rp by NCCL, no clusters in 5 of 6 scenarios (in the suite by NCCL)" in text
    assert "c3_sp_rp by NCCL, no clusters in 6 of 6" in text
    assert "c3_base by" not in text
    assert "Not what" not in measured_energy.finding_energy(TABLES["energy"])
    energy, suite = (read_measured("h200_1", name)[0] for name in ("energy", "conccl30_host"))
    assert "Not what" not in measured_energy.finding_energy(energy, suite)
