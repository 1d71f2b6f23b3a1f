"""Figures and findings of measured data: derived numbers against closed forms, refusals, and notebooks end to end."""

import json
import re
import shutil

import measured_tables as made
import numpy as np
import pandas as pd
import pytest

from c3lib import measured as store
from c3lib.book import run
from c3lib.errors import C3Error
from c3lib.figures import (
    measured,
    measured_c3,
    measured_curves,
    measured_energy,
    measured_gain,
    measured_overlap,
    measured_scenarios,
    measured_sizes,
    premise,
    style,
)
from c3lib.files import ROOT
from c3lib.metrics import bootstrap_interval, median_interval
from c3lib.results import write_table

TABLES = {name: getattr(made, name)() for name in ("suite", "isolated", "order", "break_even", "energy", "premise")}

# name: (table, figure or None, findings)
FIGURES = {
    "ladder": ("suite", measured_c3.ladder, [measured_c3.finding_ladder]),
    "by_bound": ("suite", measured_c3.by_bound, []),
    "versus": ("suite", measured_scenarios.versus, [measured_scenarios.finding_versus]),
    "per_scenario": ("suite", measured_scenarios.per_scenario, [measured_c3.finding_rest]),
    "gemm_by_sms": ("isolated", measured_curves.gemm_by_sms, [measured_curves.finding_gemm]),
    "rate_by_blocks": ("isolated", measured_curves.rate_by_blocks, [measured_curves.finding_blocks]),
    "rate_by_size": ("isolated", measured_sizes.rate_by_size, []),
    "latency": ("isolated", measured_sizes.latency, [measured_sizes.finding_latency]),
    "gain": ("break_even", measured_gain.gain, [measured_gain.finding_break_even]),
    "order": (
        "order",
        measured_overlap.order,
        [
            measured_overlap.finding_order,
            measured_overlap.finding_waiting,
            measured_overlap.finding_directions,
            premise.finding_time,
        ],
    ),
    "energy": ("energy", measured_energy.energy, [measured_energy.finding_energy]),
    "counters": ("premise", premise.counters, [premise.finding_verdict]),
}


# --- every figure ---


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_stamped_and_finds_something(name):
    table, draw, findings = FIGURES[name]
    stamp = style.stamp_of(draw(TABLES[table]))
    assert stamp.startswith("measured · h200_1 · ")
    assert "one rank's view over the host link" in stamp
    for find in findings:
        text = find(TABLES[table])
        assert re.search(r"\d", text), "a finding without a number"
        assert not re.search(r"\bnan\b", text, re.I), text


@pytest.mark.parametrize("name", FIGURES)
def test_no_figure_and_no_finding_takes_an_unverified_row(name):
    table, draw, findings = FIGURES[name]
    rows = TABLES[table].copy()
    rows.loc[len(rows) // 2, "verified"] = False
    for function in (draw, *findings):
        with pytest.raises(C3Error, match="byte check"):
            function(rows)


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_rows_in_another_order_give_the_same_bytes(name, tmp_path):
    table, draw, _ = FIGURES[name]
    rows = TABLES[table]
    one = style.save(draw(rows), "a", tmp_path / "one").svg.read_bytes()
    other = style.save(draw(rows.sample(frac=1, random_state=1)), "a", tmp_path / "other").svg.read_bytes()
    assert one == other


# --- medians and pairs ---


def test_an_interval_of_the_median_holds_it_and_narrows_with_the_spread():
    wide, narrow = [1.0, 2, 3, 4, 5, 6, 7, 8, 9], [4.8, 4.9, 5, 5, 5, 5, 5, 5.1, 5.2]
    low, high = median_interval(wide)
    assert 1 < low < 5 < high < 9
    assert median_interval(narrow)[1] - median_interval(narrow)[0] < (high - low) / 10
    assert median_interval([3.0]) == median_interval([3.0] * 4) == (3.0, 3.0)
    assert median_interval(wide) == (low, high)  # same seed, same interval


def test_medians_leave_out_what_is_missing():
    rows = made.isolated()
    assert set(measured.medians(rows, ["gemm"], "gemm_s")["gemm"]) == set(made.GEMMS)


def test_a_gemm_beside_a_transfer_is_compared_with_both_alone_in_the_same_repetition():
    how = made.setting()
    rows = made.table(made.pair("order", "8192x8192x8192", how, 2**26, 0, saved=0.3, slower=1.25), "order")
    pair = measured.beside(rows).iloc[0]
    gemm_s, move_s = made.GEMMS["8192x8192x8192"][1], made.transfer_s(2**23 * 14, how)
    assert pair["saved"] == pytest.approx(0.3)
    assert pair["gemm_slowdown"] == pytest.approx(1.25)
    serial, longer = gemm_s + move_s, max(gemm_s, move_s)
    assert pair["fraction"] == pytest.approx((1 / 0.7 - 1) / (serial / longer - 1))


def test_a_pair_without_its_kernels_alone_is_named():
    rows = made.order()
    with pytest.raises(
        C3Error, match=r"order: .* runs beside sm_kernel \(.* of \d+ bytes\), but not both alone in repetition 0"
    ):
        measured.beside(rows[(rows["gemm"] != "none") | (rows["transport"] != "sm_kernel")])
    with pytest.raises(C3Error, match="not both alone in repetition 3"):
        measured.beside(rows[(rows["transport"] != "none") | (rows["repetition"] != 3)])


def test_a_gemm_on_fewer_sms_is_not_what_it_takes_alone():
    rows = made.order(jitter=0)
    fewer = rows[rows["transport"] == "none"].assign(sms_asked=64, sms_granted=64, partition="sm target")
    fewer["gemm_s"] *= 3
    both = pd.concat([rows, fewer], ignore_index=True)
    assert np.allclose(measured.beside(both)["saved"], measured.beside(rows)["saved"])


def test_the_origin_says_whether_the_control_fired():
    fired = {"device": "NVIDIA H200", "negative_control": {"copy_engine": "copy 7 dropped, 9 bytes wrong: noticed"}}
    assert "copy 7 dropped" in measured.finding_origin(fired)
    assert "**no negative control**" in measured.finding_origin({"device": "NVIDIA H200"})


# --- the ladder ---


def test_a_rung_is_the_mean_over_scenarios_of_the_medians_of_repetitions():
    rows = made.suite(jitter=0)
    high = rows["bound"] == "memory"
    rows.loc[(rows["strategy"] == "conccl") & high, "own_fraction"] = 0.75
    rows.loc[(rows["strategy"] == "conccl") & high & (rows["repetition"] == 0), "own_fraction"] = -9.0  # one bad run
    table = measured_c3.rungs(rows).set_index("strategy")
    assert list(table.index) == list(made.REACHED)
    assert table.loc["conccl", "own_fraction"] == pytest.approx((0.95 + 0.75) / 2)
    assert table.loc["conccl_rp", "own_fraction"] == pytest.approx(0.98)
    low, high = bootstrap_interval([0.95] * 6 + [0.75] * 6)
    assert table.loc["conccl", ["own_low", "own_high"]].tolist() == pytest.approx([low, high])
    split = measured_c3.rungs(rows, ("strategy", "bound")).set_index(["strategy", "bound"])["own_fraction"]
    assert split["conccl", "compute"] == pytest.approx(0.95)
    assert split["conccl", "memory"] == pytest.approx(0.75)


def test_by_library_time_a_faster_transport_counts_for_more():
    table = measured_c3.rungs(made.suite(jitter=0)).set_index("strategy")
    assert table.loc["c3_base", "fraction_of_ideal"] == pytest.approx(0.05)  # its transport is the library's
    # GEMM 1, library r, own 0.8 r in units of the GEMM: both definitions by hand, F = 0.98
    wanted = []
    for ratio in (0.6, 1.0, 1.6):
        own = 0.8 * ratio
        end = (1 + own) / (1 + 0.98 * ((1 + own) / max(1, own) - 1))
        wanted.append(((1 + ratio) / end - 1) / ((1 + ratio) / max(1, ratio) - 1))
    assert table.loc["conccl_rp", "fraction_of_ideal"] == pytest.approx(np.mean(wanted))


def test_the_best_sm_kernel_is_the_one_that_ends_first_in_each_scenario():
    rows = made.suite(jitter=0)
    chosen = measured_scenarios.best_sm(rows).groupby("scenario")["chosen"].first()
    assert set(chosen) == {"c3_rp"}
    first = rows["scenario"] == rows["scenario"].iloc[0]
    rows.loc[first & (rows["strategy"] == "c3_base"), "concurrent_s"] /= 10
    chosen = measured_scenarios.best_sm(rows).groupby("scenario")["chosen"].first()
    assert chosen[rows["scenario"].iloc[0]] == "c3_base"
    assert set(chosen.drop(rows["scenario"].iloc[0])) == {"c3_rp"}


def test_a_duel_is_won_by_who_ends_first_whatever_the_definition_of_ideal():
    rows = made.suite(jitter=0)
    rows.loc[rows["strategy"].isin(measured_c3.BY_SM), "concurrent_s"] = 3e-3
    rows.loc[rows["strategy"] == "conccl_rp", "concurrent_s"] = 2e-3
    table = measured_scenarios.duel(rows)
    assert table[["median", "low", "high"]].to_numpy() == pytest.approx(1.5)
    assert "in **12 of 12** scenarios and after it in 0" in measured_scenarios.finding_versus(rows)
    rows.loc[rows["strategy"] == "conccl_rp", "concurrent_s"] = 4e-3
    assert "in **0 of 12** scenarios and after it in 12" in measured_scenarios.finding_versus(rows)


def test_link_use_is_the_rate_beside_the_gemm_over_that_of_a_bare_transfer():
    rows, alone = made.suite(jitter=0), made.isolated(jitter=0)
    bare_gbs = made.link_of(2**27, "both", 14) / made.transfer_s(made.link_of(2**27, "both", 14), made.setting()) / 1e9
    rows["collective_end_s"] = rows["link_bytes"] / 60e9
    assert np.allclose(measured_scenarios.link_use(rows, alone)["median"], 60 / bare_gbs)
    assert f"{60 / bare_gbs:.3f} [{60 / bare_gbs:.3f}" in measured_scenarios.finding_link(rows, alone)


def test_the_rest_of_ideal_is_told_by_who_ends_last():
    rows = made.suite(jitter=0)
    mine = rows["strategy"] == "conccl_rp"
    rows = rows[mine].assign(
        gemm_alone_s=1.0, own_alone_s=0.8, gemm_end_s=1.05, collective_end_s=0.9, concurrent_s=1.05
    )
    rows["gemm_slowdown"] = 1.05
    slow = rows["bound"] == "memory"
    rows.loc[slow, ["collective_end_s", "concurrent_s"]] = 1.2
    table = measured_c3.losses(rows).set_index(["bound", "last"])
    assert table.loc[("compute", "GEMM"), ["lost", "transfer_slowdown"]].tolist() == pytest.approx([0.05, 1.125])
    assert table.loc[("memory", "transfer"), ["lost", "transfer_slowdown"]].tolist() == pytest.approx([0.2, 1.5])
    assert table["scenarios"].tolist() == [6, 6]


# --- kernels alone ---


def test_a_gemm_on_fewer_sms_takes_its_share_longer():
    table = measured_curves.gemm_curve(made.isolated())
    linear = table[table["bound"] == "compute"]
    assert np.allclose(linear["median"], 132 / (132 - linear["sms_granted"]))
    assert set(table.loc[table["partition"] == "green context", "sms_granted"]) == {32}
    assert "up to 64 SMs cost less than a hundredth" in measured_curves.finding_gemm(made.isolated())  # memory-bound


def test_blocks_needed_are_the_fewest_that_reach_the_share():
    rows = made.isolated(jitter=0)
    needed = measured_curves.blocks_needed(rows).set_index("direction")
    # A block moves 12 GB/s, the kernel at most 40 one way and 80 both: 4 of the blocks tried, and 8.
    assert needed["of_own"].tolist() == [4, 4, 8]
    assert needed["of_link"].isna().all()  # never 95 % of what a copy engine reaches
    assert np.allclose(needed["best_share"], 0.8, atol=0.01)
    assert measured_curves.blocks_needed(rows, 0.5).set_index("direction")["of_link"].tolist() == [4, 4, 8]
    # 24 GB/s of the link's 50 with 2 blocks, of 100 only with 4 (48 GB/s)
    assert measured_curves.blocks_needed(rows, 0.45).set_index("direction")["of_link"].tolist() == [2, 2, 4]
    assert "never reaches 95% of that" in measured_curves.finding_blocks(rows)


def test_start_up_times_and_rates_are_those_of_the_law():
    rows = made.isolated(jitter=0)
    table = measured_sizes.latency_table(rows).set_index(["line", "copies"])
    wire_us = 2**12 / 8 * 14 / 100e9 * 1e6
    assert table.loc[("copy engine, batched", 14), "start_us"] == pytest.approx(8 + wire_us, rel=1e-6)
    assert table.loc[("copy engine", 14), "start_us"] == pytest.approx(15 + wire_us, rel=1e-6)
    assert table.loc[("copy engine", 14), "rate_gbs"] == pytest.approx(100, rel=1e-3)
    assert table.loc[("copy engine, batched", 1), "rate_gbs"] == pytest.approx(50, rel=1e-3)
    half = table.loc[("copy engine, batched", 14), "half_bytes"]
    assert half / (made.START_S + half / 100e9) == pytest.approx(50e9, rel=0.02)
    assert "Batching saves 0.50 µs a copy" in measured_sizes.finding_latency(rows)
    worse = rows.assign(transfer_s=rows["transfer_s"] + 28e-6 * (rows["batched"] & (rows["copies"] == 14)))
    assert "Batching **costs** 1.50 µs a copy" in measured_sizes.finding_latency(worse)


# --- overlap ---


def test_break_even_is_the_end_of_the_last_size_without_a_sure_gain():
    table = measured_gain.break_even(made.break_even())
    assert set(table["break_even_bytes"]) == {2.0**20}
    assert set(table["losses"]) == {(2**12, 2**14, 2**16, 2**18)}
    holed = made.break_even(lambda size, how: 0.0 if size == 2**22 else 0.1)
    assert set(measured_gain.break_even(holed)["break_even_bytes"]) == {2.0**24}
    never = made.break_even(lambda size, how: -0.1 if how["blocks"] else 0.1)
    sizes = measured_gain.break_even(never).groupby("line")["break_even_bytes"].first()
    assert sizes["copy engine"] == 2**12
    assert np.isinf(sizes["SM kernel, 32 blocks"])
    assert "**gains at no size for certain**" in measured_gain.finding_break_even(never)


def test_a_gain_within_the_spread_of_repetitions_is_no_gain():
    rows = made.break_even(lambda size, how: 0.02)
    noise = rows["repetition"].map({0: 0.9, 1: 1.1, 2: 1.0, 3: 1.1, 4: 0.9})
    both = (rows["gemm"] != "none") & (rows["transport"] != "none")
    rows["region_s"] *= noise.where(both, 1)
    assert np.isinf(measured_gain.break_even(rows)["break_even_bytes"]).all()


def test_who_waits_is_the_part_of_the_second_kernel_that_runs_after_the_first():
    rows, how = [], made.setting(blocks=32, first="gemm")
    for repetition in range(2):
        rows += made.pair("order", "8192x8192x8192", how, 2**26, repetition)
    table = made.table(rows, "order")
    gemm_s, move_s = made.GEMMS["8192x8192x8192"][1], made.transfer_s(2**23 * 14, how)
    late = lambda end_s: measured_overlap.waiting(table.assign(region_s=end_s))["median"].item()  # noqa: E731
    assert late(gemm_s + move_s) == pytest.approx(1)
    assert late(gemm_s + move_s / 4) == pytest.approx(0.25)
    assert late(gemm_s) == 0


def test_the_order_finding_tells_who_should_be_first():
    rows = made.order(jitter=0)
    text = measured_overlap.finding_order(rows)
    assert "1 → 0.97 and 0.92" in text
    assert "64 → 0.05 and 0.00" in text
    late = (rows["first"] == "gemm") & (rows["blocks"] == 2) & (rows["gemm"] != "none")
    text = measured_overlap.finding_order(rows.assign(region_s=rows["region_s"] * np.where(late, 1.5, 1)))
    assert "Transfer first is better with 2 blocks" in text


def test_priority_counts_only_beyond_the_intervals():
    rows = made.order(jitter=0.01)
    assert measured_overlap.finding_order(rows).count("priority changes nothing beyond its interval") == 2
    late = (rows["first"] == "gemm") & (rows["blocks"] == 2) & rows["high_priority"] & (rows["bound"] == "compute")
    text = measured_overlap.finding_order(rows.assign(region_s=rows["region_s"] * np.where(late, 1.2, 1)))
    assert re.search(
        r"priority changes 1 of 14 beyond their intervals, at most by -0\.\d\d \(2 blocks, GEMM first\)", text
    )
    assert text.count("priority changes nothing") == 1


def test_two_groups_of_repetitions_are_told_apart():
    rows = made.order(jitter=0.01)
    assert measured_overlap.two_groups(rows).empty
    late = (rows["first"] == "gemm") & (rows["blocks"] == 2) & ~rows["high_priority"] & (rows["bound"] == "compute")
    late &= rows["repetition"] >= 3
    rows["region_s"] *= np.where(late, 1.5, 1)
    found = measured_overlap.two_groups(rows)
    assert found[["bound", "first", "blocks", "lower_count", "upper_count"]].to_numpy().tolist() == [
        ["compute", "gemm", 2, 2, 3]
    ]
    assert "compute-bound, GEMM first, 2 blocks: repetitions fall into" in measured_overlap.finding_order(rows)


def test_sizes_that_gain_and_lose_are_listed():
    sizes = [2**12, 2**14, 2**16, 2**18]
    assert measured_gain.ranges(sizes[1:3], sizes) == "16 KiB to 64 KiB"
    assert measured_gain.ranges([sizes[0], sizes[2], sizes[3]], sizes) == "4 KiB, 64 KiB to 256 KiB"
    text = measured_gain.finding_break_even(made.break_even(lambda size, how: -0.1 if size == 2**20 else 0.1))
    assert "gains for certain at 4 KiB to 256 KiB, 4 MiB to 64 MiB, **loses** for certain at 1 MiB" in text
    assert text.startswith("Launched: transfer first at high priority (c3_sp).")


def test_a_dip_is_below_both_neighbours_beyond_the_intervals():
    rows = made.isolated()
    assert measured_sizes.dips(rows).empty
    dip = (rows["total_bytes"] == 2**24) & (rows["copies"] == 14)
    rows["transfer_s"] *= np.where(dip, 2, 1)
    assert set(measured_sizes.dips(rows)["total_bytes"]) == {2**24}
    assert "At 16 MiB in total the rate dips with 4 of 4 transports" in measured_sizes.finding_latency(rows)


def test_what_rounds_to_nothing_has_no_sign():
    assert [measured.percent(share, 1) for share in (-0.0004, 0.0004, -0.001, 0.015)] == [
        "0.0 %", "0.0 %", "-0.1 %", "+1.5 %",
    ]  # fmt: skip
    assert measured.percent(0.015, 1, "") == "1.5 %"
    assert measured.percent(-0.015, 1, "") == "-1.5 %"


def test_above_one_within_the_interval_is_no_riddle():
    rows = made.suite({"conccl_rp": 1.0}, jitter=0)
    mine = rows["strategy"] == "conccl_rp"
    rows["own_fraction"] += np.where(mine, np.array([-0.1, 0.01, 0.02, -0.1, 0.1])[rows["repetition"]], 0)
    assert "exceeds 1 in 12 of 12 scenarios" in measured_c3.finding_ladder(rows)
    assert "; 12 are within their interval, which includes 1." in measured_c3.finding_ladder(rows)
    rows.loc[mine, "own_fraction"] = 1.02
    assert "; 12 are **unexplained**." in measured_c3.finding_ladder(rows)


def test_energy_is_relative_to_the_serial_run_of_the_same_scenario():
    rows = made.energy(jitter=0)
    rows.loc[rows["scenario"] == "thin-ag", "joules_per_run"] *= 7
    table = measured_energy.relative_energy(rows).set_index(["scenario", "strategy"])
    assert table.loc[("thin-ag", "conccl_rp"), "median"] == pytest.approx(0.88)
    assert table.loc[("big-ag", "c3_base"), ["median", "seconds"]].tolist() == pytest.approx([1.02, 1.02])
    assert "serial, copy engine 0.980 of the energy" in measured_energy.finding_energy(rows)
    assert measured_energy.finding_energy(rows).startswith("Mean over scenarios, relative to serial: conccl_rp 0.880")


# --- the premise ---


def test_the_transfers_own_traffic_is_subtracted():
    rows = made.premise(engine=0.004, kernel=0.1, jitter=0)
    table = premise.added(rows).set_index(["bound", "arm", "counter"])
    for counter, payload in (("dram_read_bytes", made.LINK_BYTES / 2), ("l2_miss_sectors", made.LINK_BYTES / 64)):
        engine = table.loc[("compute", "copy_engine", counter)]
        assert engine["most"] == pytest.approx(0.004)
        assert engine["least"] == pytest.approx(0.004 - max(0, payload - made.OWN) / made.COUNTED[counter])
        assert engine["extra"] == pytest.approx(0.004 * made.COUNTED[counter] + made.OWN)
        assert table.loc[("memory", "sm_kernel:32", counter), "most"] == pytest.approx(0.8)
    assert (table["most_low"] == table["most"]).all()  # no spread, no width
    # More of its own than the payload, as when the transfer reads lists: then that is all its own.
    more = premise.added(rows.assign(link_bytes=rows["link_bytes"] // 1000))
    assert np.allclose(more["least"], more["most"])


@pytest.mark.parametrize(
    ("engine", "jitter", "link_bytes", "verdict"),
    [
        (0.001, 0.001, 2**20, "holds"),
        (0.05, 0.001, 2**20, "refuted"),
        (-0.05, 0.001, 2**20, "holds"),
        (0.02, 0.01, 2**20, "undecided"),  # the spread straddles the limit
        (0.05, 0.001, 10**9, "undecided"),  # the payload may explain it, or not
    ],
)
def test_the_verdict_can_be_either(engine, jitter, link_bytes, verdict):
    rows = made.premise(engine=engine, jitter=jitter)
    rows["link_bytes"] = rows["link_bytes"].where(rows["link_bytes"] == 0, link_bytes)
    text = premise.finding_verdict(rows)
    assert [word for word in ("**holds**", "**refuted**", "**undecided**") if word in text] == [f"**{verdict}**"]
    assert "would have been refuted by more than 2% added" in text


def test_one_counter_beside_one_gemm_refutes_the_premise():
    rows = made.premise()
    assert "**holds**" in premise.finding_verdict(rows)
    worse = (rows["gemm"] == "64x106496x16384") & (rows["counter"] == "l2_miss_sectors")
    rows.loc[worse & (rows["arm"] == "gemm+copy_engine"), "value"] *= 1.1
    assert "the premise is **refuted**" in premise.finding_verdict(rows)


def test_where_the_bounds_coincide_one_number_is_told():
    rows = made.premise(engine=-0.00001, jitter=0)
    reads = premise.finding_verdict(rows.assign(link_bytes=2 * made.OWN))  # its payload is what it reads alone
    assert "device-memory reads 0.00 % [0.00 %, 0.00 %]" in reads
    assert "-0.0" not in reads
    assert "L2 serves the rest" not in reads
    assert "L2 serves the rest" in premise.finding_verdict(made.premise(jitter=0))  # it reads half of its payload


def test_the_sm_kernel_that_adds_least_stands_beside_the_most_that_one_adds():
    rows = made.premise(kernel=0.1, jitter=0).assign(link_bytes=0)
    text = premise.finding_verdict(rows)
    assert text.count("GEMM: 4 blocks add least, +10.0 % device-memory reads, +10.0 % L2 misses") == 2
    assert text.count("none adds more than +160.0 % device-memory reads, +160.0 % L2 misses (64 blocks)") == 2


def test_a_missing_arm_is_named():
    rows = made.premise()
    with pytest.raises(C3Error, match=r"premise: dram_read_bytes of arm 'sm_kernel:16' beside .* is missing"):
        premise.added(rows[rows["arm"] != "sm_kernel:16"])


def test_time_can_be_slowed_where_counters_say_nothing():
    text = premise.finding_time(made.order())
    assert "compute-bound 8192x8192x8192 is not slowed: 1.001x" in text
    assert "memory-bound 64x106496x16384 **is slowed**: 1.050x" in text


# --- notebooks ---


@pytest.fixture
def project(tmp_path):
    """The notebooks beside a data folder in which our tables are the measured ones."""
    for name in ("notebooks", "data"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("measured"))
    for name, table in TABLES.items():
        path = store.table_path("h200_1", "conccl30_host" if name == "suite" else name, tmp_path / "data" / "measured")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_table(table, path, device="NVIDIA H200", negative_control={"copy_engine": "noticed"})
    return tmp_path


@pytest.mark.notebooks
@pytest.mark.parametrize(("name", "figures"), [("10_h200_c3", 12), ("11_premise_counters", 1)])
def test_a_notebook_shows_what_was_measured(name, figures, project, tmp_path):
    code = f"import c3lib.files as f; from pathlib import Path; f.DATA = Path({str(project / 'data')!r})"
    path = project / "notebooks" / f"{name}.ipynb"
    book = json.loads(path.read_text())
    first = next(cell for cell in book["cells"] if "read_measured" in "".join(cell["source"]))
    first["source"] = [code + "\n", *first["source"]]
    path.write_text(json.dumps(book))
    result = run(path, tmp_path / "out", tmp_path / "build")
    assert sum(file.suffix == ".svg" for file in result.published) == figures


@pytest.mark.notebooks
@pytest.mark.parametrize("name", ["10_h200_c3", "11_premise_counters"])
def test_on_a_node_that_was_not_measured_a_notebook_says_so(name, tmp_path):
    with pytest.raises(C3Error, match="was measured on h200_8, which has nothing; it was measured on h200_1"):
        run(ROOT / "notebooks" / f"{name}.ipynb", tmp_path / "out", tmp_path / "build", {"machine": "h200_8"})
    assert not (tmp_path / "out").exists()
