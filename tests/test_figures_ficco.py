"""Figures of finer-grain overlap on the model: derived numbers against closed forms, every node, the same bytes."""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest

from c3lib.errors import C3Error
from c3lib.ficco import FINER, SCHEDULES, Problem, build
from c3lib.ficco.graph import GEMM
from c3lib.ficco.sets import PAPER_SET, Row, load_problems
from c3lib.figures import ficco_design, ficco_pieces, ficco_speedups, ficco_topology, style
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node
from c3lib.model.order import order_of

NODES = ("mi300x_8", "h200_8", "h200_2", "h200_1")
SOME = ("g2", "g4", "g14")


@cache
def rows_of(node):
    machine = load_node(node)
    problems = [row for row in load_problems(PAPER_SET, machine.ranks) if row.name in SOME]
    return schedule_rows(machine, problems)


@cache
def swept(node):
    return ficco_pieces.size_rows(node).query("piece_bytes in (16384, 1048576, 67108864)")


# name: (rows of a node, figure, finding or None)
FIGURES = {
    "cuts": (lambda n: ficco_design.cut_rows(n, ficco_design.choose(n, "g4")), ficco_design.cuts, None),
    "timelines": (
        lambda n: ficco_design.timeline_rows(n, ficco_design.choose(n, "g4")),
        ficco_design.timelines,
        ficco_design.finding_timelines,
    ),
    "by_count": (
        lambda n: ficco_pieces.count_rows(n, ficco_design.choose(n, "g4")),
        ficco_pieces.by_count,
        ficco_pieces.finding_count,
    ),
    "by_size": (swept, ficco_pieces.by_size, ficco_pieces.finding_size),
    "speedups": (rows_of, ficco_speedups.speedups, ficco_speedups.finding),
    "topology": (lambda n: ficco_topology.topology_rows([n]), ficco_topology.topology, ficco_topology.finding),
}


@cache
def table_of(name, node):
    return FIGURES[name][0](node)


def words(figure):
    return [text.get_text() for axis in figure.axes for text in axis.texts]


# --- every figure ---


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_stamped_and_finds_something_on_every_node(name, node):
    rows, (_, draw, find) = table_of(name, node), FIGURES[name]
    stamp = style.stamp_of(draw(rows))
    assert stamp.startswith("modelled · ")
    assert node in stamp
    assert ("reported" in stamp) == (name == "topology" and node == "mi300x_8")
    if find:
        text = find(rows)
        assert re.search(r"\d", text), "a finding without a number"
        assert "modelled" in text
        assert not re.search(r"\bnan\b", text, re.I), text


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_rows_give_the_same_bytes(name, tmp_path):
    draw = FIGURES[name][1]
    made = [style.save(draw(table_of(name, "h200_2")), "a", tmp_path / turn) for turn in ("first", "second")]
    assert made[0].svg.read_bytes() == made[1].svg.read_bytes()
    assert made[0].png.read_bytes() == made[1].png.read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_no_figure_and_no_finding_takes_rows_that_may_not_be_shown(name):
    table, (_, draw, find) = table_of(name, "mi300x_8"), FIGURES[name]
    for function in filter(None, (draw, find)):
        with pytest.raises(C3Error, match="verified"):
            function(table.assign(evidence="measured"))
        with pytest.raises(C3Error, match="evidence"):
            function(table.drop(columns="evidence"))
        with pytest.raises(C3Error, match="no rows"):
            function(table.iloc[:0])


@pytest.mark.parametrize("lacks", SCHEDULES)
def test_a_problem_without_some_schedule_is_named(lacks):
    rows = rows_of("h200_1")
    part = rows[(rows["problem"] != "g4") | (rows["transport"] != "cu") | (rows["schedule"] != lacks)]
    for function in (ficco_speedups.speedups, ficco_speedups.finding):
        with pytest.raises(C3Error, match=f"figure: g4 by cu has no row of schedule {lacks}$"):
            function(part)


def test_schedules_have_colours_and_markers_of_their_own():
    assert list(style.SCHEDULE) == list(style.SCHEDULE_MARKER) == list(SCHEDULES)
    assert len(set(style.SCHEDULE.values())) == len(set(style.SCHEDULE_MARKER.values())) == len(SCHEDULES)


# --- the design space ---


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
@pytest.mark.parametrize(("m", "k", "ranks", "pieces"), [(64, 32, 4, 4), (37, 13, 3, 5), (9, 5, 2, 8)])
def test_the_blocks_that_a_schedule_multiplies_tile_a_once(kind, m, k, ranks, pieces):
    build_one = Problem.all_gather if kind == "all-gather" else Problem.all_to_all
    table = ficco_design.cut_rows("mi300x_8", Row("x", build_one(m, 8, k, ranks, pieces=pieces), ""))
    for name, part in table.groupby("schedule"):
        seen = np.zeros((m, k), int)
        for block in part.itertuples():
            top, left = round(block.row * m), round(block.col * k)
            seen[top : top + round(block.rows * m), left : left + round(block.cols * k)] += 1
        assert (seen == 1).all(), name
        program = build(name, build_one(m, 8, k, ranks, pieces=pieces))
        assert part["gemm"].nunique() == len(program.of(GEMM))
        assert (part["step"] == ficco_design.OWN).any() == (name.startswith("hetero") or name == "shard_p2p")


def test_timelines_hold_every_kernel_and_exchange_within_the_time_of_their_schedule():
    row = ficco_design.choose("mi300x_8", "g4")
    machine = load_node("mi300x_8")
    table = ficco_design.timeline_rows("mi300x_8", row, "cu")
    times = schedule_rows(machine, [row], ["cu"]).set_index("schedule")
    for name, part in table.groupby("schedule"):
        groups, exchanges = order_of(build(name, row.problem, row.problem.busiest), machine, "cu")
        assert (part["op"] != "exchange").sum() == sum(len(group.kernels) for group in groups)
        assert (part["op"] == "exchange").sum() == len(exchanges)
        assert part["end_s"].max() == pytest.approx(times.loc[name, "time_s"])
        kernels = part[part["lane"] == "kernel"]
        assert (kernels["end_s"] - kernels["start_s"]).sum() == pytest.approx(times.loc[name, "kernel_busy_s"])
        assert (kernels["start_s"].to_numpy()[1:] >= kernels["end_s"].to_numpy()[:-1] - 1e-12).all()


def test_a_schedule_beyond_the_axis_is_told_by_an_arrow_with_its_time():
    rows = ficco_design.timeline_rows("mi300x_8", ficco_design.choose("mi300x_8", "g2"))
    late = rows.groupby("schedule")["end_s"].max()["shard_p2p"] * 1e3
    assert late > ficco_design.BEYOND * rows["serial_s"].iloc[0] * 1e3, "the case must have one beyond it"
    assert any(text.startswith(f"→ {late:.1f} ms") for text in words(ficco_design.timelines(rows)))


def test_no_name_chooses_the_problem_with_most_to_overlap_and_a_wrong_one_is_named():
    machine = load_node("h200_8")
    table = schedule_rows(machine, load_problems(PAPER_SET, 8), ["dma"], ["serial"]).set_index("problem")
    assert ficco_design.choose("h200_8").name == table["ideal"].idxmax()
    with pytest.raises(C3Error, match="unknown problem 'g99'"):
        ficco_design.choose("h200_8", "g99")


# --- speedups ---


def made_up(**speedups):
    """Rows of one problem whose speedups are given by schedule."""
    table = rows_of("h200_8").query("problem == 'g2'").copy()
    table["speedup"] = table["schedule"].map({"serial": 1.0, **dict.fromkeys(SCHEDULES, 0.9), **speedups})
    return table.assign(time_s=table["serial_s"] / table["speedup"], fits=True)


def test_the_best_is_of_the_finer_schedules_that_fit_and_where_all_lose_it_is_said():
    table = made_up(shard_p2p=1.5, uniform_fused_1d=1.2, hetero_fused_1d=1.3)
    assert set(ficco_speedups.best(table)["schedule"]) == {"hetero_fused_1d"}
    full = table.assign(fits=table["schedule"] != "hetero_fused_1d")
    assert set(ficco_speedups.best(full)["schedule"]) == {"uniform_fused_1d"}
    assert "full" in words(ficco_speedups.speedups(full))
    text = ficco_speedups.finding(table)
    assert "Shard level beats them all on **1 problem** (g2)" in text
    assert "beats serial" not in text
    losing = ficco_speedups.finding(made_up(uniform_fused_1d=0.95))
    assert "No finer-grain schedule beats serial on **1 problem** (g2)" in losing
    nowhere = made_up().assign(fits=False)
    assert "no problem fits the memory" in ficco_speedups.finding(nowhere)
    assert ficco_speedups.speedups(nowhere)


def test_every_cell_of_the_table_is_the_speedup_of_its_row():
    table = rows_of("mi300x_8")
    shown = words(ficco_speedups.speedups(table))
    for row in table[table["schedule"] != "serial"].itertuples():
        assert f"{row.speedup:.2f}" in shown
    summary = ficco_speedups.summary(table).set_index(["transport", "schedule"])
    mine = table[(table["transport"] == "cu") & (table["schedule"] == "shard_p2p")]
    assert summary.loc[("cu", "shard_p2p"), "mean"] == pytest.approx(mine["speedup"].mean())
    assert summary.loc[("cu", "shard_p2p"), "slower_than_serial"] == (mine["speedup"] < 1).sum()


def test_everywhere_is_the_same_count_for_each_node():
    table = ficco_speedups.everywhere(["h200_8", "h200_2"]).set_index(["node", "transport"])
    mine = ficco_speedups.rows("h200_8").query("transport == 'cu'")
    speedup = mine.pivot(index="problem", columns="schedule", values="speedup")
    finest = speedup[list(FINER)].max(axis=1)
    row = table.loc[("h200_8", "cu")]
    assert row["best"] == pytest.approx(finest.max())
    assert row["behind_serial"] == (finest < 1).sum()
    assert row["behind_shard"] == (finest < speedup["shard_p2p"]).sum()
    assert len(table) == 4


# --- topology ---


def test_peer_to_peer_steps_use_one_link_of_a_mesh_and_the_whole_port_elsewhere():
    table = ficco_topology.topology_rows(problem_set=PAPER_SET).set_index("node")
    assert table.loc["mi300x_8", "penalty"].between(6.5, 7 + 1e-9).all()  # a link of seven, less what starting costs
    for node in ("h200_8", "h200_1"):
        assert table.loc[node, "penalty"].between(1 - 1e-9, 1.1).all()
    text = ficco_topology.finding(table.reset_index())
    assert "reported: up to 3.9" in text
    assert "above the reported value" in text


# --- how finely to cut ---


def test_large_pieces_take_a_gemm_about_as_long_as_their_exchange():
    for node in NODES:
        table = ficco_pieces.size_rows(node)
        last = table[(table["piece_bytes"] == table["piece_bytes"].max()) & (table["transport"] == "dma")]
        assert (last["gemm_s"] / last["exchange_s"]).between(0.7, 1.4).all(), node
        assert set(table["piece_bytes"]) == set(ficco_pieces.SIZES)


@pytest.mark.parametrize(
    ("best", "expected"),
    [([0.9, 1.1, 1.2], 2.0), ([1.1, 0.9, 1.2], 4.0), ([1.1, 1.2, 1.3], 1.0), ([1.2, 1.3, 1.01], np.inf)],
)
def test_the_smallest_piece_is_that_from_which_all_larger_ones_pay(best, expected):
    rows = pd.DataFrame({"piece_bytes": [1, 2, 4], "speedup": best}).assign(transport="dma", schedule=FINER[0])
    worse = rows.assign(schedule=FINER[1], speedup=0.5)
    assert ficco_pieces.smallest(pd.concat([rows, worse]), "dma") == expected


def test_more_pieces_are_the_same_problem_cut_finer():
    table = ficco_pieces.count_rows("h200_8", ficco_design.choose("h200_8", "g4"))
    sizes = table.drop_duplicates("pieces").set_index("pieces")["piece_bytes"]
    assert list(sizes.index) == list(ficco_pieces.COUNTS)
    assert (sizes * sizes.index == sizes[1]).all()
    assert table["serial_s"].groupby(table["transport"]).nunique().eq(1).all()
