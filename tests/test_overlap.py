"""Tables of several GPUs reduced, against hand-made ones; predictions are read as they were committed."""

import json
import re
import subprocess

import between_tables as made
import pandas as pd
import pytest

from c3lib import overlap
from c3lib.errors import C3Error
from c3lib.files import ROOT
from c3lib.listings import WIDE, of_overlap
from c3lib.measured import TRANSPORTS, read_measured
from c3lib.predicted import FOLDER, kept, read_predicted
from c3lib.results import write_table

GEMM = "8192x8192x8192"


def by_hand(gemm_s=1.0, move_s=0.5, end_s=1.25, **more):
    """Three rows: a GEMM alone, a transfer alone, both at once; the two take unlike times, so neither stands in."""
    rows = made.transports(0).query("repetition == 0 and collective != 'all-to-all' and gemm != '64x106496x16384'")
    still = rows[rows["transport"] == "none"].iloc[:1].assign(gemm_s=gemm_s)
    moves = rows[(rows["transport"] == "nccl_zero_cta") & rows["in_place"]]
    alone = moves[moves["gemm"] == "none"].iloc[:1].assign(transfer_s=move_s)
    both = moves[(moves["gemm"] == GEMM) & (moves["first"] == "gemm")].iloc[:1]
    both = both.assign(gemm_s=1.1, transfer_s=end_s, region_s=end_s)
    return pd.concat([still, alone, both], ignore_index=True).assign(**more)


def test_the_fraction_is_taken_against_the_time_of_the_same_way_alone():
    pair = overlap.pairs(by_hand()).iloc[0]
    assert pair["fraction"] == pytest.approx((1.5 / 1.25 - 1) / (1.5 - 1))
    assert pair["gemm_slowdown"] == pytest.approx(1.1)
    assert pair["transfer_slowdown"] == pytest.approx(1.25 / 0.5)
    longer = overlap.pairs(by_hand(gemm_s=0.4, move_s=2.0, end_s=2.1)).iloc[0]
    assert longer["fraction"] == pytest.approx((2.4 / 2.1 - 1) / (2.4 / 2 - 1))
    assert (longer["gemm_slowdown"], longer["transfer_slowdown"]) == pytest.approx((1.1 / 0.4, 2.1 / 2))


def test_a_gemm_that_ran_alone_beside_both_collectives_counts_by_the_median_of_its_repetition():
    rows = by_hand()
    others = [rows.iloc[:1].assign(gemm_s=seconds, **more) for seconds, more in (
        (3.0, {}), (2.0, {}), (9.0, {"repetition": 1}), (9.0, {"gemm": "64x106496x16384"})
    )]  # fmt: skip
    pair = overlap.pairs(pd.concat([rows, *others], ignore_index=True)).iloc[0]
    assert pair["gemm_alone_s"] == 2  # of 1, 2 and 3: neither the least nor the mean of all
    assert pair["gemm_slowdown"] == pytest.approx(1.1 / 2)
    assert pair["fraction"] == pytest.approx((2.5 / 1.25 - 1) / (2.5 / 2 - 1))
    skewed = [rows.iloc[:1].assign(gemm_s=seconds) for seconds in (1.2, 8.0)]
    assert overlap.pairs(pd.concat([rows, *skewed])).iloc[0]["gemm_alone_s"] == 1.2  # the mean would be 3.4


def test_a_transfer_that_ran_alone_more_than_once_counts_by_the_median_of_its_repetition():
    rows = by_hand()
    others = [rows.iloc[1:2].assign(transfer_s=seconds) for seconds in (0.6, 8.0)]
    others.append(rows.iloc[1:2].assign(transfer_s=9.0, repetition=1))
    pair = overlap.pairs(pd.concat([rows, *others], ignore_index=True)).iloc[0]
    assert (pair["transfer_alone_s"], pair["transfer_slowdown"]) == pytest.approx((0.6, 1.25 / 0.6))


@pytest.mark.parametrize(
    "change", [{"in_place": False}, {"total_bytes": 7}, {"collective": "all-to-all"}, {"transport": "nccl_registered"}]
)
def test_another_way_alone_is_no_measure(change):
    rows = by_hand()
    for name, value in change.items():
        rows.loc[1, name] = value
    with pytest.raises(C3Error, match=f"{GEMM} runs beside nccl_zero_cta .* not both alone in repetition 0"):
        overlap.pairs(rows)


def test_a_library_may_take_other_blocks_beside_a_gemm_but_our_kernel_is_another_way():
    rows = by_hand(transport=["none", "nccl", "nccl"], blocks=[0, 24, 16])
    assert len(overlap.pairs(rows)) == 1
    with pytest.raises(C3Error, match="not both alone"):
        overlap.pairs(rows.assign(transport=["none", "sm_kernel", "sm_kernel"]))


def test_summaries_stand_in_the_order_of_the_transports_with_their_path():
    table = overlap.summary(made.transports())
    there = list(dict.fromkeys(table["transport"]))
    assert there == [name for name in TRANSPORTS if name in there]
    assert list(dict.fromkeys(table["collective"])) == ["all-gather", "all-to-all"]
    for row in table.itertuples():
        law = made.WAYS[row.transport, row.in_place, row.blocks]
        assert row.fraction == pytest.approx(law[row.first == "transfer"], abs=1e-6)
        assert row.low <= row.fraction <= row.high
        assert row.engines_only == (law[0] > 0.8)
    ran = table.drop_duplicates(["transport", "in_place"]).set_index(["transport", "in_place"])["ran"].to_dict()
    assert ran["nccl_zero_cta", False] == "Memcpy DtoD, Memcpy PtoP"
    assert ran["nccl", True] == "ncclDevKernel_X"
    assert ran["copy_engine", True] == "copy engine"


ENDED, WAITED = "ended while all 132 SMs were held", "did not end while all 132 SMs were held"


@pytest.mark.parametrize(
    ("transport", "blocks", "path", "only"),
    [
        ("nccl_zero_cta", 0, f"Memcpy PtoP x2 (activity records); {ENDED}", True),
        ("nccl_zero_cta", 0, f"Memcpy PtoP x2 (activity records); {WAITED}", False),
        ("nccl_zero_cta", 16, f"ncclSymkDevKernel x2 of 16 blocks (activity records); {ENDED}", False),
        ("nccl_zero_cta", 16, f"ncclSymkDevKernel x2 of 16 blocks (activity records); {WAITED}", False),
        ("copy_engine", 0, f"copy engine: {ENDED}", True),
        ("copy_engine", 0, f"copy engine: {WAITED}", False),
        ("bare_copy", 0, f"copy engine: {ENDED}", True),
        ("nccl", 0, f"ncclDevKernel_X x2; {ENDED}", False),
        ("nccl", 24, f"ncclDevKernel_X x2 of 24 blocks (activity records); {ENDED}", False),
        ("sm_kernel", 8, f"SM kernel: 8 blocks reported from 8 SMs; {ENDED}", False),
    ],
)
def test_on_engines_only_ran_what_has_no_block_and_ended_without_an_sm(transport, blocks, path, only):
    assert overlap.engines_only(pd.Series({"transport": transport, "blocks": blocks, "path": path})) is only


@pytest.mark.parametrize(
    ("way", "name"),
    [
        (("copy_engine", True, True, 0), "copy engine, batched"),
        (("sm_kernel", False, True, 8), "SM kernel, 8 blocks"),
        (("nccl", False, True, 0), "NCCL, in place"),
        (("nccl_zero_cta", False, False, 0), "NCCL, zero CTAs, out of place"),
    ],
)
def test_ways_have_names(way, name):
    assert overlap.name_of(*way) == name


def test_a_way_is_summed_up_over_the_gemms_of_a_bound():
    table = overlap.by_way(overlap.summary(made.transports(0))).set_index(["collective", "name"])
    way = table.loc["all-gather", "NCCL, out of place"]
    assert (way["blocks"], way["ran"], way["engines_only"]) == ("32", "ncclDevKernel_X", False)
    assert way["memory-bound, gemm first"] == pytest.approx(0)
    assert way["compute-bound, transfer first"] == pytest.approx(0.65)
    rows = made.transports(0)
    more = (rows["transport"] == "nccl") & (rows["gemm"] == GEMM) & ~rows["in_place"]
    rows = rows.assign(blocks=rows["blocks"].mask(more, 16))
    table = overlap.by_way(overlap.summary(rows)).set_index(["collective", "name"])
    assert table.loc["all-gather", "NCCL, out of place"]["blocks"] == "16–32"


def test_the_listing_tells_who_takes_no_sm_and_who_waits_for_one():
    text = of_overlap("title", overlap.by_way(overlap.summary(made.transports(0))))
    assert re.search(r"NCCL, zero CTAs, in place +none +0\.88 +0\.87 +0\.88 +0\.87 +Memcpy PtoP\n", text)
    assert re.search(r"NCCL, zero CTAs, out of place +waits +0\.02 +0\.02", text)
    assert re.search(r"SM kernel, 8 blocks +8 +-0\.30 +0\.60", text)
    assert max(map(len, text.splitlines())) <= WIDE


def test_wire_bytes_are_counted_over_the_payload():
    table = overlap.wire(made.links())
    for row in table.itertuples():
        law = made.WAYS[row.transport, row.in_place, row.blocks][2] + 0.1 * (row.gemm != "none")
        assert row.ratio == row.received == pytest.approx(law, rel=1e-3)
        assert row.low < row.ratio < row.high
        assert row.payload == 1


@pytest.mark.parametrize(("reduce", "rows"), [(overlap.summary, made.transports()), (overlap.wire, made.links())])
def test_what_no_figure_may_show_is_not_reduced(reduce, rows):
    broken = rows.copy()
    broken.loc[3, "verified"] = False
    with pytest.raises(C3Error, match="byte check"):
        reduce(broken)
    with pytest.raises(C3Error, match="no rows"):
        reduce(rows[:0])
    mixed = rows.copy()
    mixed.loc[3, "evidence"] = "modelled"
    with pytest.raises(C3Error, match="mixed"):
        reduce(mixed)


# --- predictions ---


def test_the_published_prediction_is_of_what_was_measured():
    rows, about = read_predicted("h200_2", "conccl30_nvlink")
    measured, _ = read_measured("h200_2", "conccl30_nvlink")
    assert set(rows["scenario"]) == set(measured["scenario"])
    assert set(rows["strategy"]) == set(measured["strategy"])
    assert len(about["commit"]) == 40


def test_the_prediction_stood_in_the_tree_that_was_measured():
    path = "data/predicted/h200_2/conccl30_nvlink.csv"
    _, about = read_measured("h200_2", "conccl30_nvlink")
    shown = subprocess.run(["git", "-C", str(ROOT), "show", f"{about['commit']}:{path}"], capture_output=True)
    if shown.returncode:
        pytest.skip("no git history here")
    assert shown.stdout == (ROOT / path).read_bytes()


def test_what_was_not_predicted_is_named():
    with pytest.raises(
        C3Error, match=r"'conccl30' was not predicted for h200_1 .* predicted were: .*h200_2/conccl30_nv"
    ):
        read_predicted("h200_1", "conccl30")
    with pytest.raises(C3Error, match="predicted were: nothing"):
        read_predicted("h200_1", "conccl30", FOLDER / "h200_2")


@pytest.mark.parametrize(("column", "value"), [("node", "h200_1"), ("suite", "conccl30"), ("evidence", "measured")])
def test_a_prediction_of_something_else_is_refused(column, value, tmp_path):
    rows = made.predicted(made.suite()).assign(**{column: value})
    write_table(rows, tmp_path / made.NODE / f"{made.SUITE}.csv")
    with pytest.raises(C3Error, match=f"column {column} must be"):
        read_predicted(made.NODE, made.SUITE, tmp_path)


def test_a_prediction_that_was_changed_afterwards_is_refused(tmp_path):
    path = write_table(made.predicted(made.suite()), tmp_path / made.NODE / f"{made.SUITE}.csv")
    read_predicted(made.NODE, made.SUITE, tmp_path)
    side = path.with_name(path.name + ".json")
    side.write_text(json.dumps({**json.loads(side.read_text()), "sha256": "0" * 64}))
    with pytest.raises(C3Error, match="differs from the table"):
        read_predicted(made.NODE, made.SUITE, tmp_path)


def test_how_a_prediction_was_kept_by_hand(tmp_path):
    """Scenario a: 10 % too long under one strategy, right under the other; b: 30 % too short under both."""
    measured = made.suite()
    names = list(dict.fromkeys(measured["scenario"]))[:2]
    rows = made.predicted(measured)
    rows = rows[rows["scenario"].isin(names) & rows["strategy"].isin(["c3_base", "conccl"])]
    times = measured.groupby(["scenario", "strategy"])["concurrent_s"].median()
    factor = {
        (names[0], "c3_base"): 1.1,
        (names[0], "conccl"): 1.0,
        (names[1], "c3_base"): 0.7,
        (names[1], "conccl"): 0.7,
    }
    keys = list(zip(rows["scenario"], rows["strategy"], strict=True))
    rows = rows.assign(concurrent_s=[times[key] * factor[key] for key in keys])
    write_table(rows, tmp_path / "predicted" / made.NODE / f"{made.SUITE}.csv", suite=made.SUITE)
    write_table(measured, tmp_path / "measured" / made.NODE / f"{made.SUITE}.csv", suite=made.SUITE)
    found = kept(made.NODE, made.SUITE, tmp_path / "predicted", tmp_path / "measured")
    assert found["mean"] == pytest.approx((0.05 + 0.3) / 2)
    assert not found["met"]
    assert kept(made.NODE, "another", tmp_path / "predicted", tmp_path / "measured") is None
