"""Which finer-grain schedule to take: closed forms against the model, thresholds, and what the choice is worth."""

import re
import subprocess
import sys
from dataclasses import replace
from math import isfinite

import numpy as np
import pandas as pd
import pytest
from ficco_cases import problems
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import NODES, gemms, node_list

from c3lib.errors import C3Error
from c3lib.ficco import FINER, SCHEDULES, Problem
from c3lib.ficco.sets import Row, load_problems, random_problems
from c3lib.files import ROOT
from c3lib.measured import read_measured
from c3lib.model import kernels
from c3lib.model.order import Kernel as Part
from c3lib.model.pieces import TRANSPORTS, kernel_batch
from c3lib.schedule_choice import case_of, choose, thresholds
from c3lib.schedule_costs import RULES, pipeline
from c3lib.schedule_machine import NOTHING, Kernel, Machine, Work
from c3lib.schedule_score import (
    LOSS_TARGET,
    RIGHT_TARGET,
    by_shape,
    misjudged,
    model_times,
    score,
    score_measured,
    summary,
)
from c3lib.workload import DTYPE_BYTES

MESH, SWITCH = NODES["mi300x_8"], NODES["h200_8"]
TALL = Problem.all_gather(131072, 2048, 16384, 8)
UNSEEN = 20261130
"""Seed of what the rule is scored on; it was written while other seeds were looked at (101 to 103)."""

PAGE = ROOT / "docs" / "finer_grain.md"

transports = st.sampled_from(TRANSPORTS)


# --- closed forms ---


def _plain(seconds):
    return Kernel(seconds, seconds, 1.0)


@pytest.mark.parametrize(("gemm_s", "exchange_s"), [(8.0, 8.0), (16.0, 4.0), (2.0, 24.0)])
def test_without_losses_the_two_chains_take_what_their_formulas_say(gemm_s, exchange_s):
    g, c = gemm_s / 8, exchange_s / 8
    uniform = pipeline("uniform", NOTHING, _plain(g), 8, c, 0.0, 0.0)
    assert uniform.time_s == pytest.approx(c + 7 * max(g, c) + g)
    hetero = pipeline("hetero", _plain(g), _plain(7 * g / 8), 8, c, 0.0, 0.0)
    assert hetero.time_s == pytest.approx(max(g, c) + 7 * max(7 * g / 8, c) + 7 * g / 8)
    assert (uniform.begin_s, hetero.begin_s) == (pytest.approx(c), 0.0)


def test_steps_wait_for_the_first_exchange_where_the_own_shard_ends_before_it():
    assert pipeline("x", _plain(0.1), _plain(2.0), 3, 1.0, 0.0, 0.0).time_s == pytest.approx(1.0 + 3 * 2.0)


def test_what_the_last_peer_gives_follows_the_last_exchange():
    assert pipeline("x", NOTHING, _plain(1.0), 4, 3.0, 0.0, 0.0, last_s=0.25).time_s == pytest.approx(12.25)
    host = NODES["h200_1"]
    for last in (4096, 8192):
        rows = [(8192,) * 4, (8192,) * 4, (8192,) * 4, (last, 1, 1, 1)]
        problem = Problem.all_to_all(0, 2048, 4096, 4, rows=rows)
        estimate = RULES["shard_p2p"](case_of(problem, host, "dma")).time_s
        assert estimate == pytest.approx(_simulated(problem, host, "dma", "shard_p2p"), rel=0.005)


def test_beside_an_exchange_a_kernel_waits_for_memory_or_has_what_is_left_of_it():
    machine = Machine(SWITCH, "dma", "all-gather", 2)
    share = 2 * SWITCH.link.count * SWITCH.link.dma_gbs / SWITCH.gpu.hbm_gbs
    units = machine.beside(Work(1.0, 1.0, 1.0), 7)
    assert units == pytest.approx((1.0, 1 + SWITCH.interference.memory_queueing * share, 1.0))
    streams = machine.beside(Work(1.0, SWITCH.gpu.hbm_gbs * 1e9, 1.0), 7)
    assert streams.beside_s == pytest.approx(1 / (1 - share))


def test_copying_cus_beyond_what_the_link_drains_slow_the_gemm_by_their_square():
    host = NODES["h200_1"]
    flooded = host.with_constant("interference.flood_cus", host.library["all-gather"].saturation_cus / 2)
    calm, slow = (Machine(node, "cu", "all-gather", 2).beside(Work(1.0, 1.0, 1.0), 7) for node in (host, flooded))
    assert slow.beside_s == pytest.approx(4 * calm.beside_s)


def test_starts_lengthen_exchanges_and_launches_only_what_waits():
    slow = pipeline("x", NOTHING, _plain(1.0), 4, 3.0, 0.5, 0.25)
    assert slow.time_s == pytest.approx(4 * 3.5 + 0.25 + 1.0)
    assert slow.waits_for == "the exchange"
    fast = pipeline("x", _plain(2.0), _plain(1.0), 4, 0.1, 0.05, 0.25)
    assert fast.time_s == pytest.approx(0.25 + 2.0 + 4 * 1.0)
    assert fast.waits_for == "the GEMM"


def test_a_kernel_beside_exchanges_is_slowed_until_the_last_one_ends():
    # Alone 2 s, beside 4 s; bytes move from 0 to 4 s, in which half of the 8 s of work is done.
    cost = pipeline("x", Kernel(4.0, 8.0, 1.0), Kernel(2.0, 4.0, 1.0), 2, 2.0, 0.0, 0.0)
    assert cost.time_s == pytest.approx(4.0 + (8.0 - 2.0))


@given(gemms, node_list, transports, st.sampled_from(("all-gather", "all-to-all")))
def test_kernels_take_what_the_isolated_curves_say(gemm, node, transport, kind):
    size = DTYPE_BYTES[gemm.dtype]
    machine = Machine(node, transport, kind, size)
    part = Part(gemm.m, gemm.n, gemm.k, size, False, 0)
    for cus in (node.gpu.cus, machine.left_cus):
        for adds in (False, True):
            batch = kernel_batch([part._replace(accumulate=adds)], node)
            limits = kernels.compute_time_s(batch, cus, node), kernels.memory_time_s(batch, cus, node)
            found = machine.gemm(gemm.m, gemm.n, gemm.k, cus, adds)
            assert found.alone_s == pytest.approx(float(np.maximum(*limits)[0]), rel=1e-9)
            assert found.nbytes == pytest.approx(float(batch.nbytes[0]))
            assert found.beyond_l2_bytes == pytest.approx(float(batch.beyond_l2_bytes[0]), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([MESH, SWITCH, NODES["h200_1"]]), transports)
def test_serial_is_exact_and_every_cost_is_finite(problem, node, transport):
    costs = {name: rule(case_of(problem, node, transport)) for name, rule in RULES.items()} if _moves(problem) else {}
    if not costs:
        assert choose(problem, node, transport).schedule == "serial"
        return
    assert all(isfinite(cost.time_s) and cost.time_s > 0 for cost in costs.values())
    assert costs["serial"].time_s == pytest.approx(_simulated(problem, node, transport), rel=1e-9)
    assert choose(problem, node, transport).costs[0].time_s == min(cost.time_s for cost in costs.values())


def _moves(problem):
    rank = problem.busiest
    return problem.m[rank] > problem.rows[rank][rank]


def _simulated(problem, node, transport, schedule="serial"):
    return float(model_times(node, [Row("x", problem, "")], transport, (schedule,)).loc["x", schedule])


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_closed_forms_lie_near_the_simulated_times(name, transport):
    rows = random_problems(25, NODES[name], seed=UNSEEN + 1)
    times = model_times(NODES[name], rows, transport)
    for row in rows:
        case = case_of(row.problem, NODES[name], transport)
        estimates = [RULES[schedule](case).time_s for schedule in times]
        np.testing.assert_allclose(estimates, times.loc[row.name], rtol=0.1, err_msg=row.name)


def test_every_schedule_has_a_rule():
    assert set(RULES) == set(SCHEDULES)
    assert all(rule(case_of(TALL, MESH, "dma")).schedule == name for name, rule in RULES.items())


# --- thresholds ---


def test_thresholds_are_formulas_of_the_constants():
    at = thresholds(TALL, MESH, "dma")
    gpu, dma = MESH.gpu, MESH.dma
    assert at.ridge == pytest.approx(gpu.matrix_tflops * 1e3 / gpu.hbm_gbs)
    assert at.balance == pytest.approx(gpu.matrix_tflops * 1e12 / (7 * MESH.link.dma_gbs * 1e9))
    start_s = 1e-6 * (dma.copy_us + 7 * dma.command_us + 6 * dma.engine_us)
    assert at.piece_nbytes == pytest.approx(start_s * MESH.link.dma_gbs * 1e9)
    assert (at.peer_penalty, at.held_cus) == (7, 0)
    assert thresholds(TALL, SWITCH).peer_penalty == 1
    assert thresholds(TALL, MESH, "cu").held_cus == MESH.library["all-gather"].saturation_cus


@pytest.mark.parametrize(
    ("key", "factor", "field", "grows"),
    [
        ("dma.copy_us", 10, "piece_nbytes", True),
        ("link.dma_gbs", 0.5, "balance", True),
        ("gpu.matrix_efficiency", 0.5, "balance", False),
        ("gpu.hbm_efficiency", 0.5, "ridge", True),
    ],
)
def test_thresholds_move_with_the_constants(key, factor, field, grows):
    changed = MESH.with_constant(key, MESH.constants[key].value * factor)
    before, after = (getattr(thresholds(TALL, node), field) for node in (MESH, changed))
    assert (after > before) if grows else (after < before)


def test_slower_starts_make_the_cut_coarser():
    exchanges = {"serial": 1, "shard_p2p": 7}
    problem = Problem.all_gather(16384, 2048, 8192, 8)
    counts = []
    for copy_us in (1, 20, 200, 5000):
        chosen = choose(problem, MESH.with_constant("dma.copy_us", copy_us)).schedule
        counts.append(exchanges.get(chosen, 8))
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (8, 1)


def test_a_mesh_makes_peer_to_peer_steps_a_loss_and_a_switch_does_not():
    switched = replace(MESH, topology="switch")
    on_mesh, behind_switch = (
        {cost.schedule: cost.time_s for cost in choose(TALL, node).costs} for node in (MESH, switched)
    )
    assert on_mesh["shard_p2p"] > on_mesh["serial"]
    assert behind_switch["shard_p2p"] < behind_switch["serial"]
    assert choose(TALL, SWITCH).schedule == "shard_p2p"
    assert choose(TALL, MESH).schedule in FINER


@settings(max_examples=40)
@given(
    st.integers(0, 24), transports, st.sampled_from(list(NODES)), st.sampled_from(["start", "link", "memory", "units"])
)
def test_a_slower_machine_makes_nothing_faster(index, transport, name, what):
    node = NODES[name]
    problem = random_problems(25, node, seed=UNSEEN + 2)[index].problem
    one_way = f"link.{transport}_one_way_gbs"
    keys = {
        "start": ("dma.copy_us", "all-gather.latency_us", "all-to-all.latency_us"),
        "link": (f"link.{transport}_gbs", one_way),
        "memory": ("gpu.hbm_efficiency",),
        "units": ("gpu.matrix_efficiency",),
    }[what]
    factor = 2 if what == "start" else 0.7
    slower = node.with_constants({key: node.constants[key].value * factor for key in keys})
    for rule in RULES.values():
        before, after = (rule(case_of(problem, one, transport)).time_s for one in (node, slower))
        # What runs slower disturbs the other lane less: that may win back a little of what is lost.
        assert after >= before * (1 - 0.02)


# --- the choice ---


def test_the_reason_names_sizes_thresholds_and_what_the_next_lacks():
    choice = choose(TALL, MESH)
    flops_per_byte = 2 * 131072 * 2048 * 16384 / (2 * (131072 * 16384 + 16384 * 2048 + 131072 * 2048))
    assert choice.schedule == "hetero_fused_1d"
    sizes = (f"{flops_per_byte:.0f} flop/B", "ridge 127", "3.5 GiB", "64 MiB", "M 131072 and K 16384")
    times = (f"{choice.costs[0].time_s * 1e3:.3f} ms", f"Next is {choice.costs[1].schedule}", "7 times as long")
    for part in sizes + times:
        assert part in choice.reason
    assert "hold 32 of 304 CUs" in choose(TALL, MESH, "cu").reason
    assert str(choice) == choice.reason


def test_only_what_is_allowed_is_chosen():
    assert choose(TALL, MESH, among=("serial",)).reason.endswith("No other schedule was allowed.")
    assert choose(TALL, SWITCH, among=FINER).schedule in FINER
    assert [cost.schedule for cost in choose(TALL, SWITCH, among=FINER).costs] != list(SCHEDULES)


def test_without_bytes_there_is_nothing_to_overlap():
    lonely = Problem.all_to_all(0, 64, 64, 2, rows=((8, 0), (0, 8)))
    assert choose(lonely, MESH).schedule == "serial"
    assert "nothing to overlap" in choose(lonely, MESH).reason
    assert choose(lonely, MESH, among=FINER).schedule == FINER[0]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"transport": "tcp"}, "unknown transport 'tcp'"),
        ({"among": ("serail",)}, "did you mean 'serial'"),
        ({"among": ()}, "among: expected the names of one or more schedules"),
        ({"among": "serial"}, "among: expected"),
        ({"node": NODES["h200_2"]}, "8 ranks, but node h200_2 has 2"),
    ],
)
def test_what_cannot_be_chosen_is_said(more, says):
    with pytest.raises(C3Error, match=says.replace("(", r"\(")):
        choose(**({"problem": TALL, "node": MESH} | more))


def test_choosing_needs_no_simulator():
    code = """
import sys
from c3lib.ficco import Problem
from c3lib.hardware import load_node
from c3lib.schedule_choice import choose
print(choose(Problem.all_gather(4096, 512, 4096, 8), load_node("mi300x_8"), "cu").reason)
names = ("pieces", "pipeline", "order", "contention", "shared_gpu", "sharing", "fluid")
loaded = [name for name in names if f"c3lib.model.{name}" in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "flop/B" in done.stdout


# --- the score ---


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_unseen_scenarios_meet_the_reported_targets(name, transport):
    node = NODES[name]
    table = summary(score(node, random_problems(300, node, seed=UNSEEN), transport)).set_index("policy")
    rule = table.loc["rule"]
    assert rule["problems"] == 300
    assert rule["right"] >= RIGHT_TARGET
    assert rule["right_low"] >= 0.75
    assert rule["loss_when_wrong"] <= LOSS_TARGET
    assert rule["loss"] <= table.loc[["single", "serial", "by_shape"], "loss"].min() + 1e-3
    assert table.loc["exhaustive", "right"] == 1
    told = re.search(rf"^\| `{name}` \| {transport} \| ([\d.]+) \(", PAGE.read_text(encoding="utf-8"), re.M)
    assert told is not None
    assert float(told[1]) == pytest.approx(100 * rule["right"], abs=1), "docs/finer_grain.md tells another share"
    assert table.loc["exhaustive", "loss"] == 0


@pytest.mark.parametrize("name", NODES)
def test_the_sixteen_rows_meet_the_targets_too(name):
    table = summary(score(NODES[name], load_problems("ficco16", NODES[name].ranks), among=FINER)).set_index("policy")
    assert table.loc["rule", "right"] >= RIGHT_TARGET
    assert table.loc["rule", "loss_when_wrong"] <= LOSS_TARGET


def test_constants_that_are_off_cost_little():
    rows = random_problems(60, MESH, seed=UNSEEN + 3)
    truth = misjudged(MESH, 0.25, seed=1)
    exact, off = (summary(score(MESH, rows, truth=node)).set_index("policy").loc["rule"] for node in (None, truth))
    assert off["right"] <= exact["right"]
    assert off["loss"] <= 0.03


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_uneven_exchanges_are_judged_by_the_slowest_rank(transport):
    rng, rows = np.random.default_rng(UNSEEN), []
    for row in random_problems(8, SWITCH, seed=UNSEEN + 5):
        m, ranks = max(row.problem.m), row.problem.ranks
        given = rng.dirichlet([4.0] * ranks, size=ranks) * m / ranks + 1
        uneven = Problem.all_to_all(0, row.problem.n, row.problem.k, ranks, rows=given.astype(int).tolist())
        rows.append(Row(row.name, uneven, ""))
    table = summary(score(SWITCH, rows, transport)).set_index("policy")
    assert table.loc["rule", "loss"] <= 0.03
    assert table.loc["rule", "loss"] <= table.loc["serial", "loss"]


def test_the_truth_is_what_is_simulated_and_the_node_what_the_rule_knows():
    rows = random_problems(3, MESH, seed=UNSEEN + 4)
    slower = MESH.with_constant("gpu.matrix_efficiency", MESH.gpu.matrix_efficiency / 4)
    known, real = (score(MESH, rows, truth=node) for node in (MESH, slower))
    assert (real["best_s"] > known["best_s"]).all()
    assert list(real.loc[real["policy"] == "rule", "chosen"]) == list(known.loc[known["policy"] == "rule", "chosen"])


def test_misjudged_is_repeatable_and_possible():
    first, again = (misjudged(MESH, 0.5, seed=3) for _ in range(2))
    assert first.link == again.link
    assert first.link != MESH.link
    assert first.link.dma_gbs <= first.link.peak_gbs
    assert first.gpu.matrix_efficiency <= 1
    assert misjudged(MESH, 0.0, seed=3).gpu == MESH.gpu
    with pytest.raises(C3Error, match=r"spread must lie in 0 to 0\.9, not 1"):
        misjudged(MESH, 1, seed=0)


def test_sizes_alone_decide_by_three_tests():
    assert by_shape(Problem.all_gather(1024, 512, 8192, 8), SWITCH, "dma") == "uniform_fused_2d"
    assert by_shape(TALL, SWITCH, "dma") == "shard_p2p"
    assert by_shape(Problem.all_gather(4096, 512, 8192, 8), SWITCH, "dma") == "shard_p2p"
    assert by_shape(TALL, MESH, "dma") == "hetero_fused_1d"
    assert by_shape(TALL, MESH, "dma", ("serial", "shard_p2p")) == "serial"


def _measured(seconds=(1.0, 1.2, 1.5), **more):
    """Two problems; of the first ``serial`` is fastest unless told otherwise, of the second the others by far."""
    rows = []
    for problem, times in (("a", seconds), ("b", (2.0, 1.0, 1.001))):
        for schedule, time_s in zip(("serial", "shard_p2p", "uniform_fused_2d"), times, strict=True):
            for repetition in range(5):
                rows.append(
                    {"problem": problem, "transport": "copy_engine", "schedule": schedule, "repetition": repetition,
                     "time_s": time_s * (1 + 0.01 * (repetition - 2)), "collective": "all-gather", "m": 8192,
                     "n": 8192, "k": 8192, "dtype": "bf16", "ranks": 8, "pieces": 8, "verified": True,
                     "lanes": "both"} | more
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_measured_medians_decide():
    found = score_measured(NODES["h200_1"], _measured())
    rule = found[found["policy"] == "rule"].set_index("problem")
    chosen = choose(Problem.all_gather(8192, 8192, 8192, 8), NODES["h200_1"], among=tuple(SCHEDULES)[:2] + FINER[3:])
    assert set(rule["chosen"]) == {chosen.schedule} == {"shard_p2p"}
    assert rule.loc["a", "loss"] == pytest.approx(0.2)
    assert not rule.loc["a", "right"]
    assert rule.loc["b", "right"]
    assert rule.loc["b", "best"] == "shard_p2p"
    assert not rule.loc["a", "undecided"]
    assert rule.loc["b", "undecided"]
    assert set(found["evidence"]) == {"measured"}
    singles = found[found["policy"] == "single"]
    assert set(singles["chosen"]) == {"shard_p2p"}  # 1.2 and 1.0 times the best; serial 1.0 and 2.0
    assert summary(found).set_index("policy").loc["rule", "right"] == 0.5


def test_what_nobody_would_notice_is_near_and_not_right():
    rule = score_measured(NODES["h200_1"], _measured((1.0, 1.005, 2.0))).query("policy == 'rule' and problem == 'a'")
    assert (bool(rule["right"].iloc[0]), bool(rule["near"].iloc[0])) == (False, True)


def test_what_one_gpu_measured_is_told_as_it_is():
    """The page's shares are those of the published table; they are no target: the one by SM kernel misses it."""
    table = summary(score_measured(NODES["h200_1"], read_measured("h200_1", "ficco")[0]))
    rules = table[table["policy"] == "rule"].set_index("transport")
    for transport, path in (("dma", "copy engine"), ("cu", "SM kernel")):
        told = re.search(rf"^\| {path} \| (\d+) of (\d+) \|", PAGE.read_text(encoding="utf-8"), re.M)
        assert told is not None
        here = rules.loc[transport]
        assert (round(here["right"] * here["problems"]), here["problems"]) == (int(told[1]), int(told[2]))
        assert here["loss"] < table.query("policy == 'serial' and transport == @transport")["loss"].item()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (_measured().drop(columns=["pieces", "m"]), "measured table: missing column m, pieces"),
        (_measured(verified=False), "were not verified"),
        (_measured(transport="carrier"), "transport must be one of copy_engine, sm_kernel, not 'carrier'"),
        (_measured(lanes="kernels"), "holds no schedule with both lanes"),
        (_measured().iloc[:0], "holds no schedule with both lanes"),
    ],
)
def test_what_cannot_be_scored_is_said(table, says):
    with pytest.raises(C3Error, match=says):
        score_measured(NODES["h200_1"], table)


def test_nothing_to_score_is_said():
    with pytest.raises(C3Error, match="no problem to score"):
        score(MESH, [])
    with pytest.raises(C3Error, match="rows: each problem needs a name of its own, 'x' is there more than once"):
        score(MESH, [Row("x", TALL, ""), Row("y", TALL, ""), Row("x", TALL, "")])
    with pytest.raises(C3Error, match="no row to summarise"):
        summary(score(MESH, [Row("x", TALL, "")]).iloc[:0])
    with pytest.raises(C3Error, match="unknown transport"):
        score(MESH, [Row("x", TALL, "")], "tcp")
