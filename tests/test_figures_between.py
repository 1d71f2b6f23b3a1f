"""Figures and findings of several GPUs: derived numbers against closed forms, refusals, and notebooks end to end."""

import json
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
    measured_c3,
    measured_energy,
    measured_gain,
    memory_limit,
    one_local_copy,
    predicted_ladder,
    style,
    training_step,
    who_overlaps,
    wire_bytes,
)
from c3lib.files import ROOT
from c3lib.hardware import load_node
from c3lib.workload import Gemm

TABLES = {
    name: getattr(made, name)() for name in ("transports", "links", "isolated", "order", "suite", "energy", "fsdp_step")
}
TOLD = made.predicted(TABLES["suite"])

# name: (table, figure, findings)
FIGURES = {
    "all_gather": ("transports", lambda rows: who_overlaps.who(rows, "all-gather"), [who_overlaps.finding_who]),
    "all_to_all": ("transports", lambda rows: who_overlaps.who(rows, "all-to-all"), []),
    "one_local_copy": ("transports", one_local_copy.one_local_copy, [one_local_copy.finding]),
    "wire_bytes": ("links", wire_bytes.wire_bytes, [wire_bytes.finding]),
    "clusters": ("order", clusters.clusters, [clusters.finding]),
    "link_use": ("isolated", link_use.by_size, [link_use.finding]),
    "energy": ("energy", measured_energy.energy, [measured_energy.finding_energy]),
    "training_step": ("fsdp_step", training_step.step_times, [lambda rows: training_step.finding(rows, {})]),
    "memory_limit": ("suite", memory_limit.memory_limit, [memory_limit.finding]),
    "ladder": (
        "suite",
        lambda rows: predicted_ladder.beside(rows, TOLD, "0123456789"),
        [lambda rows: predicted_ladder.finding(rows, TOLD), predicted_ladder.finding_uneven],
    ),
}


# --- every figure ---


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_stamped_and_finds_something(name):
    table, draw, findings = FIGURES[name]
    stamp = style.stamp_of(draw(TABLES[table]))
    assert stamp.startswith("measured")
    assert "h200_2" in stamp
    for find in findings:
        text = find(TABLES[table])
        assert re.search(r"\d", text), "a finding without a number"
        assert not re.search(r"\bnan\b", text, re.I), text


@pytest.mark.parametrize("name", FIGURES)
def test_no_figure_and_no_finding_takes_what_may_not_be_shown(name):
    table, draw, findings = FIGURES[name]
    for column, value, said in (("verified", False, "byte check"), ("evidence", "modelled", "mixed")):
        rows = TABLES[table].copy()
        rows.loc[rows.index[rows["transport"] == "copy_engine"][0], column] = value
        for function in (draw, *findings):
            with pytest.raises(C3Error, match=said):
                function(rows)
    for function in (draw, *findings):
        with pytest.raises(C3Error, match="no rows"):
            function(TABLES[table][:0])


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_rows_in_another_order_give_the_same_bytes(name, tmp_path):
    table, draw, _ = FIGURES[name]
    rows = TABLES[table]
    one = style.save(draw(rows), "a", tmp_path / "one").svg.read_bytes()
    other = style.save(draw(rows.sample(frac=1, random_state=1)), "a", tmp_path / "other").svg.read_bytes()
    assert one == other


# --- who overlaps with what ---


def test_the_table_of_paths_says_how_each_way_ran():
    table = who_overlaps.paths(made.transports()).set_index(["collective", "name"])
    zero = table.loc["all-gather", "NCCL, zero CTAs, in place"]
    assert zero["ended_while_every_sm_was_held"]
    assert zero["compute-bound, gemm first"] == pytest.approx(0.88)
    moved = table.loc["all-to-all", "NCCL, zero CTAs, out of place"]
    assert not moved["ended_while_every_sm_was_held"]
    assert moved["ran"] == "Memcpy DtoD, Memcpy PtoP"
    assert table.loc["all-gather", "NCCL, out of place"]["blocks"] == "32"


def test_the_finding_sets_engines_beside_the_best_thread_blocks():
    text = who_overlaps.finding_who(made.transports(0))
    assert "compute-bound: without an SM 0.87 to 0.90 of ideal" in text
    assert "the best with SMs is NCCL, in place (all-gather, transfer launched first), 0.70" in text
    assert "Launched first is not always first" not in text


def test_a_launch_that_came_second_after_all_is_told():
    rows = made.transports(0)
    late = (rows["transport"] == "nccl") & rows["in_place"] & (rows["first"] == "transfer") & (rows["gemm"] != "none")
    rows.loc[late & (rows["repetition"] < 2), "region_s"] *= 2
    assert "Launched first is not always first: in 4 of 26 cases" in who_overlaps.finding_who(rows)


def test_a_collective_that_was_not_run_is_named():
    rows = made.transports()
    with pytest.raises(C3Error, match="no row of the collective 'all-to-all'"):
        who_overlaps.who(rows[rows["collective"] != "all-to-all"], "all-to-all")


def test_what_one_local_copy_costs_is_told_with_the_order_in_time():
    text = one_local_copy.finding(made.transports(0))
    assert "**out of place: 0.02** of ideal (0.02 to 0.02); records: Memcpy DtoD, Memcpy PtoP" in text
    assert "did not end" in text
    assert "**in place: 0.88**" in text
    assert "Our plan of copies: 0.90" in text
    gemm_s, serial_s = 1.4e-3, 2.4e-3
    late = (serial_s / (1 + 0.02 * (serial_s / gemm_s - 1)) - gemm_s) / made.MOVE_S
    assert f"it ends {late:.2f} of its time alone after the GEMM" in text


def test_without_zero_ctas_there_is_nothing_to_say_about_them():
    rows = made.transports()
    with pytest.raises(C3Error, match="no row of the transport nccl_zero_cta"):
        one_local_copy.one_local_copy(rows[rows["transport"] != "nccl_zero_cta"])


def test_the_wire_finding_tells_families_apart_and_claims_no_cause():
    text = wire_bytes.finding(made.links(0))
    assert "Copies by engine only 1.09 alone, 1.19 beside a GEMM" in text
    assert "our SM kernel 1.20 to 1.40 alone" in text
    assert "is not established" in text


# --- clusters ---


def test_blocks_that_find_room_only_singly_are_counted():
    text = clusters.finding(made.order(0))
    assert "In **4 of 4** cases NCCL finds the free SMs only if its blocks start singly" in text
    assert "NCCL, no clusters: blocks → fraction 4 → 0.55, 16 → 0.55; finds room in 2 of 2" in text
    assert "(copy engine, nothing left free: 0.90)" in text
    rows = made.order(0)
    same = rows["transport"].mask(rows["transport"] == "nccl_unclustered", "nccl")
    assert "only if its blocks start singly" not in clusters.finding(rows.assign(transport=same))


def test_where_no_sms_were_left_free_there_is_nothing_to_show():
    rows = made.order()
    with pytest.raises(C3Error, match="beside a GEMM that leaves SMs free"):
        clusters.clusters(rows[(rows["sms_asked"] == 0) | (rows["transport"] == "none")])


# --- a training step ---


def test_a_step_is_compared_with_that_by_nccl_of_the_same_repetition():
    table = training_step.steps(made.fsdp_step()).set_index(["tokens", "transport"])
    assert list(table.index[:3]) == [(1024, "none"), (1024, "copy_engine"), (1024, "nccl")]
    for tokens, longer in ((1024, 1), (2048, 2)):
        row = table.loc[tokens, "copy_engine"]
        assert row["median"] == pytest.approx(0.08 * longer)
        assert [row["ratio"], row["ratio_low"], row["ratio_high"]] == pytest.approx([0.8] * 3)
    text = training_step.finding(made.fsdp_step(), {})
    assert "copy engine 80.0 ms (-20.0 % [-20.0 %, -20.0 %]), 40% less on top of unsharded; unsharded 50.0 ms" in text


def test_a_saving_within_its_interval_is_not_called_one():
    rows = made.fsdp_step()
    slow = (rows["transport"] == "copy_engine") & (rows["repetition"] < 2)
    rows.loc[slow, "step_s"] *= 1.5
    assert training_step.finding(rows, {}).count("not beyond its interval") == 2


def test_a_repetition_without_nccl_is_named():
    rows = made.fsdp_step()
    with pytest.raises(C3Error, match="no step with NCCL of size half, repetition 0"):
        training_step.steps(rows[(rows["transport"] != "nccl") | (rows["size"] != "half")])


# --- link use ---


def test_link_use_is_the_time_of_bare_copies_over_that_of_the_others():
    table = link_use.rates(made.isolated()).set_index(["transport", "total_bytes"]).sort_index()
    size = 2**32
    bare_s, own_s = (start + size / made.RATES[name] / 1e9 for name, start in (("bare_copy", 2e-6), ("nccl", 10e-6)))
    assert table.loc[("nccl", size), "use"] == pytest.approx(bare_s / own_s)
    assert table.loc[("nccl", size), "gbs"] == pytest.approx(size / own_s / 1e9)
    assert table.loc["bare_copy"]["use"].eq(1).all()


def test_of_blocks_that_were_swept_only_the_usual_ones_are_drawn():
    table = link_use.rates(made.isolated()).set_index(["transport", "total_bytes"])["blocks"]
    assert table["nccl"].to_dict() == {2**14: 2, 2**22: 24, 2**26: 24, 2**29: 24, 2**32: 24}
    assert set(table["sm_kernel"]) == {32}


@pytest.mark.parametrize(("slower", "verdict"), [(1.0, "met"), (1.02, r"\*\*missed\*\*")])
def test_the_target_of_link_use_can_be_met_or_missed(slower, verdict):
    rows = made.isolated()
    rows.loc[rows["transport"] == "copy_engine", "transfer_s"] *= slower
    assert re.search(rf"0\.99 at the largest size: {verdict}", link_use.finding(rows))


def test_a_table_of_one_gpu_has_no_bare_copies():
    with pytest.raises(C3Error, match="needs bare copies"):
        link_use.rates(measured_tables.isolated())


# --- the limit by memory bandwidth ---


def limited(lasts=1.0, withheld=0):
    """The suite with the pair of every memory-bound GEMM at ``lasts`` times its limit by bandwidth."""
    rows = made.suite(0)
    nbytes = rows["gemm"].map(lambda name: Gemm.parse(name).nbytes)
    limit_s = np.maximum(rows["gemm_alone_s"] * (1 + rows["link_bytes"] / nbytes), rows["own_alone_s"])
    end_s = np.where(rows["bound"] == "memory", lasts * limit_s, rows["concurrent_s"])
    granted = np.where((rows["bound"] == "memory") & (rows["strategy"] == "conccl_rp"), withheld, 0)
    return rows.assign(concurrent_s=end_s, gemm_end_s=end_s, sms_granted=granted)


def test_the_limit_is_all_bytes_at_the_rate_of_the_gemm_alone():
    table = memory_limit.limits(limited())
    memory = table[table["bound"] == "memory"]
    assert np.allclose(memory["lasts"], memory["limit"])
    assert (memory["limit"] > 1).any()
    by_memory = memory["limit_s"] > memory["own_alone_s"]
    assert by_memory.any()
    assert not by_memory.all()
    assert np.allclose(memory["gemm_gbs"][by_memory], memory["both_gbs"][by_memory])
    row = memory.iloc[0]
    assert row["gemm_gbs"] == pytest.approx(2 * (64 * 16384 + 16384 * 106496 + 64 * 106496) / row["gemm_alone_s"] / 1e9)
    assert row["slowdown"] == pytest.approx(row["gemm_end_s"] / row["gemm_alone_s"] - 1)
    peak = load_node("h200_2").gpu.hbm_peak_gbs
    moved = row["link_bytes"] * min(1, row["gemm_end_s"] / row["collective_end_s"])
    assert row["share"] == pytest.approx(moved / row["gemm_end_s"] / 1e9 / peak)


def test_bandwidth_is_to_blame_only_where_the_pair_ends_at_the_limit():
    assert "in 6 of 6 scenarios: there **bandwidth explains the loss**" in memory_limit.finding(limited(withheld=64))
    assert "explains the loss" not in memory_limit.finding(limited(1.2))


def test_a_pair_that_beats_the_limit_shows_that_it_is_none():
    assert "no bound for conccl_rp" in memory_limit.finding(limited(0.95, withheld=64))
    assert "no bound for conccl_rp" not in memory_limit.finding(limited(1.0, withheld=64))


def test_slopes_are_slowdown_over_share_of_the_memory():
    table = memory_limit.limits(limited())
    for bound, slope in memory_limit.slopes(table).items():
        part = table[(table["bound"] == bound)]
        assert slope == pytest.approx((part["slowdown"] / part["share"]).median())


# --- the ladder and its prediction ---


def test_the_prediction_is_judged_by_times_and_by_rungs():
    table = predicted_ladder.rungs(made.suite(0), made.predicted(made.suite(0), 1.1)).set_index("strategy")
    assert np.allclose(table["error"], 0.1)
    assert np.allclose(table["bias"], 0.1)
    assert table.loc["conccl", "own"] == pytest.approx(0.95)
    assert table.loc["conccl_rp", "reported"] == pytest.approx(0.72)
    assert (table["predicted"] < table["library"]).all()
    assert table.loc["c3_sp", "setting"] == "NCCL, 32 blocks"


def test_the_finding_names_rungs_that_were_met_and_those_that_were_not():
    rows = made.suite(0)
    assert "Within 0.05: 6 of 6" in predicted_ladder.finding(rows, made.predicted(rows, 1.0))
    text = predicted_ladder.finding(rows, made.predicted(rows, 0.8))
    assert "Within 0.05: 0 of 6" in text
    assert "saw do too well" in text
    assert "saw do too badly" in predicted_ladder.finding(rows, made.predicted(rows, 1.3))


def test_a_prediction_must_be_one_and_of_the_same_suite():
    rows = made.suite()
    with pytest.raises(C3Error, match="measured rows and modelled ones"):
        predicted_ladder.rungs(rows, rows)
    for column, value in (("suite", "conccl30"), ("node", "h200_8")):
        with pytest.raises(C3Error, match="another suite or another node"):
            predicted_ladder.rungs(rows, made.predicted(rows).assign(**{column: value}))


def test_the_same_transfer_that_took_different_times_alone_is_told():
    rows = made.suite(0)
    same = rows["strategy"].isin(["conccl", "conccl_rp"])
    rows["high_priority"] = same
    assert predicted_ladder.finding_uneven(rows).startswith("No transfer alone differs")
    rows.loc[(rows["scenario"] == "compute-1-ag") & (rows["strategy"] == "conccl"), "own_alone_s"] *= 1.2
    text = predicted_ladder.finding_uneven(rows)
    assert f"in 1 of {rows['scenario'].nunique()} scenarios" in text
    assert "compute-1-ag: conccl " in text


# --- what the figures of one GPU make of a library ---


def test_the_ladder_names_what_moved_the_bytes():
    assert list(measured_c3.rungs(made.suite())["setting"].unique()) == [
        "NCCL, 32 blocks",
        "NCCL, 4 blocks",
        "copy engine",
    ]
    own = measured_c3.rungs(measured_tables.suite())["setting"]
    assert list(own.unique()) == ["SM kernel, 32 blocks", "SM kernel, 4 blocks", "copy engine"]


def test_variants_of_a_library_that_a_sweep_chose_from_share_its_name():
    rows = made.suite()
    swept = (rows["strategy"] == "c3_rp") & (rows["bound"] == "memory")
    table = measured_c3.rungs(rows.assign(transport=rows["transport"].mask(swept, "nccl_unclustered")))
    assert table.set_index("strategy").loc["c3_rp", "setting"] == "NCCL, 4 blocks"
    table = measured_c3.rungs(rows.assign(transport=rows["transport"].replace("nccl", "nccl_unclustered")))
    assert table.set_index("strategy").loc["c3_rp", "setting"] == "NCCL, no clusters, 4 blocks"


def test_a_library_is_one_line_whatever_blocks_it_takes_for_a_size():
    rows = measured_tables.break_even()
    kernel = (rows["blocks"] == 32) & (rows["transport"] == "sm_kernel")
    blocks = rows["blocks"].mask(kernel & (rows["total_bytes"] < 2**16), 2)
    rows = rows.assign(transport=rows["transport"].mask(kernel, "nccl"), blocks=blocks)
    lines = set(measured_gain.break_even(rows)["line"])
    assert lines == {"copy engine", "NCCL", "SM kernel, 4 blocks, 4 SMs withheld"}


# --- notebooks ---


@pytest.mark.notebooks
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("30_nvlink_c3", "was measured on h200_8, which has nothing"),
        ("31_who_overlaps_with_what", "was measured on h200_8, which has nothing"),
    ],
)
def test_on_a_node_that_was_not_measured_a_notebook_says_so(name, said, tmp_path):
    with pytest.raises(C3Error, match=said):
        run(ROOT / "notebooks" / f"{name}.ipynb", tmp_path / "out", tmp_path / "build", {"machine": "h200_8"})
    assert not (tmp_path / "out").exists()


@pytest.mark.notebooks
@pytest.mark.parametrize(("name", "figures"), [("30_nvlink_c3", 9), ("31_who_overlaps_with_what", 5)])
def test_a_notebook_shows_what_was_measured(name, figures, tmp_path):
    result = run(ROOT / "notebooks" / f"{name}.ipynb", tmp_path / "out", tmp_path / "build")
    assert sum(file.suffix == ".svg" for file in result.published) == figures
    book = json.loads((tmp_path / "build" / f"{name}.ipynb").read_text())
    assert "Measured on" in json.dumps(book)
