"""The contention model's oracles: limits, conservation, what may never get faster, and where intuition is wrong.

Hypothesis draws odd shapes; thousands of random scenarios in one vectorised call look for rare ones.
"""

import inspect
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import MI300X, NODES, cases, random_batch, strategy_list

from c3lib.errors import C3Error
from c3lib.model import contention, fluid, kernels
from c3lib.model.contention import predict
from c3lib.model.kernels import CollectiveBatch, GemmBatch, batch
from c3lib.model.shared_gpu import COLLECTIVE, HEAD, MECHANISMS, TAIL, Mechanisms
from c3lib.model.stretch import stretched
from c3lib.strategy import STRATEGIES, strategy
from c3lib.suites import load_suite
from c3lib.workload import Collective, Gemm, Scenario

OFF = Mechanisms(**dict.fromkeys(MECHANISMS, False))
MANY = 1000
every_node = pytest.mark.parametrize("node", NODES.values(), ids=NODES)
every_strategy = pytest.mark.parametrize("how", STRATEGIES.values(), ids=STRATEGIES)


def only(*names):
    return Mechanisms(**{name: name in names for name in MECHANISMS})


def rows(part, index):
    return type(part)(**{name: value[..., index] for name, value in vars(part).items()})


def simulated(prediction):
    law = prediction.law
    return fluid.run(law.work, law.delay_s, [(), (HEAD,), ()], law, record=True)


# Limits ------------------------------------------------------------------------------------------------------------


@given(cases(), strategy_list)
def test_no_shared_resource_gives_the_maximum(case, how):
    node, scenarios = case
    result = predict(*batch(scenarios, node), node, how, on=OFF)
    assert result.time_s == pytest.approx(np.maximum(result.gemm_alone_s, result.collective_alone_s), rel=1e-12)


@every_node
@every_strategy
def test_no_shared_resource_gives_the_maximum_of_thousands(node, how):
    result = predict(*random_batch(node, MANY, 1), node, how, on=OFF)
    assert result.time_s == pytest.approx(np.maximum(result.gemm_alone_s, result.collective_alone_s), rel=1e-12)


def test_slots_held_by_the_gemm_give_the_sum():
    """Dispatch is the only mechanism, the GEMM is first and holds all slots but in its last wave of very many."""
    node = MI300X.with_constant("interference.dispatch_share", 0)
    pair = Scenario("x", Gemm(65536, 65536, 4096), Collective("all-to-all", 2**33, 8))
    result = predict(*batch([pair], node), node, strategy("c3_base"), on=only("dispatch"))
    alone = result.gemm_alone_s + result.collective_alone_s
    last_wave = result.gemm_alone_s * result.law.work[:, TAIL]
    assert result.time_s <= alone
    assert result.time_s == pytest.approx(alone, abs=float(last_wave[0] + 20e-6))
    assert last_wave < 0.01 * result.gemm_alone_s


def test_memory_bandwidth_that_both_need_in_full_gives_the_sum():
    """Memory bandwidth is the only mechanism; each alone saturates it: a memory-bound GEMM, and links as fast."""
    node = MI300X.with_constant("link.peak_gbs", 1e4).with_constant("interference.requestor_thrash", 0)
    fast = node.gpu.hbm_gbs / 2 / 7  # every byte sent is read once and one received is written
    node = node.with_constant("link.cu_gbs", fast).with_constant("all-gather.cu_gbs", 1e4)
    pair = Scenario("x", Gemm(16, 106496, 16384), Collective("all-gather", 2**33, 8))
    result = predict(*batch([pair], node), node, strategy("c3_sp"), on=only("hbm"))
    assert result.time_s == pytest.approx(result.gemm_alone_s + result.collective_alone_s, rel=1e-2)
    assert result.law.late.memory_share == pytest.approx(1.0)


def test_no_overlap_percentage_can_be_typed():
    """M17: whatever predict takes is a scenario, node, strategy, split, blocks or switch; nothing is a percentage."""
    taken = ["gemm", "collective", "node", "strategy", "cus", "blocks", "on"]
    assert list(inspect.signature(predict).parameters) == taken
    assert not any("overlap" in key for key in MI300X.constants)
    with pytest.raises(TypeError, match="overlap"):
        predict(*random_batch(MI300X, 1, 0), MI300X, strategy("c3_sp"), overlap=0.5)


# Conservation ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(cases(), strategy_list)
def test_work_is_conserved_and_nothing_is_overcommitted(case, how):
    node, scenarios = case
    result = predict(*batch(scenarios, node), node, how)
    run = simulated(result)
    done = sum(np.where(span.running, span.rate, 0) * (span.end_s - span.start_s)[:, None] for span in run.intervals)
    assert done[:, HEAD] + done[:, TAIL] == pytest.approx(1.0, rel=1e-9)
    assert done[:, COLLECTIVE] == pytest.approx([float(scenario.collective.sent_bytes > 0) for scenario in scenarios])
    for phase in (result.law.early, result.law.late, result.law.gemm_only, result.law.collective_only):
        assert (phase.memory_share <= 1 + 1e-9).all()
        assert (phase.gemm_cus + phase.collective_cus <= node.gpu.cus + 1e-9).all()


@settings(max_examples=60)
@given(cases(), strategy_list)
def test_written_out_loop_is_the_event_loop(case, how):
    node, scenarios = case
    result = predict(*batch(scenarios, node), node, how)
    run = simulated(result)
    assert result.gemm_end_s == pytest.approx(run.end_s[:, TAIL], rel=1e-9)
    assert result.collective_end_s == pytest.approx(run.end_s[:, COLLECTIVE], rel=1e-9)
    assert (result.time_s == np.maximum(result.gemm_end_s, result.collective_end_s)).all()


@every_node
@every_strategy
def test_written_out_loop_is_the_event_loop_for_thousands(node, how):
    result = predict(*random_batch(node, MANY, 2), node, how)
    end = simulated(result).end_s
    assert result.gemm_end_s == pytest.approx(end[:, TAIL], rel=1e-9)
    assert result.collective_end_s == pytest.approx(end[:, COLLECTIVE], rel=1e-9)


# Bounds ------------------------------------------------------------------------------------------------------------


@every_node
@every_strategy
def test_no_kernel_beats_its_own_lower_bound(node, how):
    """Alone on all CUs without thrash, and at the better of the two link rates without any start-up."""
    gemm, collective = random_batch(node, MANY, 3)
    result = predict(gemm, collective, node, how)
    free = node.with_constant("interference.requestor_thrash", 0)
    assert (result.gemm_end_s >= kernels.gemm_time_s(gemm, node.gpu.cus, free) * (1 - 1e-9)).all()
    link = kernels.link_gbs(node, collective.peers, how.transport) * 1e9
    assert (result.collective_end_s >= collective.sent_bytes / link * (1 - 1e-9)).all()


@every_node
@pytest.mark.parametrize(
    ("name", "allowed"), [("c3_base", 0.1), ("c3_rp", 0.1), ("c3_sp", 0.05), ("c3_sp_rp", 0.05), ("conccl", 1e-9)]
)
def test_overlap_is_at_most_a_little_worse_than_serial(node, name, allowed):
    """A DMA collective costs at most its longer start-up. A CU-driven one can cost more than serial on MI300X only:
    two kernels that wait for each other's memory traffic lose a few percent (6 to 8 % was the worst of 60000)."""
    gemm, collective = random_batch(node, MANY, 4)
    result = predict(gemm, collective, node, strategy(name))
    serial = result.gemm_alone_s + result.collective_alone_s
    if strategy(name).transport == "dma":
        longer = kernels.dma_latency_s(collective, node) - kernels.cu_collective_latency_s(collective, node)
        serial = serial + np.maximum(longer, 0)
    assert (result.time_s <= serial * (1 + allowed)).all()


def test_withholding_cus_from_a_gemm_that_needs_them_costs_more_than_serial():
    """They stay withheld to the end, beside next to nothing (F18): the rule of conccl_rp leaves such a GEMM alone."""
    node = NODES["h200_2"]
    pair = Scenario("x", Gemm(4168, 81, 44294, "fp32"), Collective("all-gather", 52, 2))
    forced = predict(*batch([pair], node), node, strategy("conccl_rp"), cus=node.gpu.spare_cus)
    serial = forced.gemm_alone_s + forced.collective_alone_s
    assert forced.time_s > 1.05 * serial
    assert predict(*batch([pair], node), node, strategy("conccl_rp")).time_s < 1.05 * serial


# What may never get faster -----------------------------------------------------------------------------------------


@every_node
@every_strategy
@pytest.mark.parametrize("key", ["gpu.hbm_efficiency", "gpu.hbm_peak_gbs"])
def test_less_memory_bandwidth_never_speeds_anything_up(node, how, key):
    gemm, collective = random_batch(node, MANY, 5)
    worse = node.with_constant(key, node.constants[key].value * 0.75)
    before, after = (predict(gemm, collective, which, how).time_s for which in (node, worse))
    assert (after >= before * (1 - 1e-9)).all()


@every_node
@pytest.mark.parametrize("how", [how for how in STRATEGIES.values() if not how.oracle], ids=lambda how: how.name)
def test_a_slower_link_never_lets_the_collective_end_sooner(node, how):
    """Nor the whole, but for bursts: a fast link can fill the memory that a compute-bound GEMM just fits in, a slower
    one does not (at most 4 %, and nothing once memory bandwidth is not shared)."""
    gemm, collective = random_batch(node, MANY, 6)
    for key in ("link.dma_gbs", "link.cu_gbs"):
        worse = node.with_constant(key, node.constants[key].value * 0.6)
        before, after = (predict(gemm, collective, which, how) for which in (node, worse))
        assert (after.collective_end_s >= before.collective_end_s * (1 - 1e-8)).all()
        assert (after.time_s >= before.time_s * 0.96).all()
        before, after = (predict(gemm, collective, which, how, on=Mechanisms(hbm=False)) for which in (node, worse))
        assert (after.time_s >= before.time_s * (1 - 1e-4)).all()


def test_faster_matrix_units_can_slow_the_whole():
    """An honest counter-example: a faster GEMM moves more bytes a second, so a collective that outlasts it waits more
    for memory. The GEMM itself never ends later."""
    pair = [Scenario("x", Gemm(90, 11921, 2621, "fp32"), Collective("all-gather", 27878239, 8))]
    slow = MI300X.with_constant("gpu.matrix_peak_tflops", 1307.4 * 0.75)
    fast, slower = (predict(*batch(pair, node), node, strategy("c3_sp")) for node in (MI300X, slow))
    assert fast.time_s > 1.05 * slower.time_s
    assert fast.gemm_end_s < slower.gemm_end_s


@settings(max_examples=60)
@given(cases(), st.sampled_from(["c3_base", "c3_sp", "conccl"]), st.floats(0.3, 0.95))
def test_slower_matrix_units_never_let_the_gemm_end_sooner(case, name, factor):
    node, scenarios = case
    slow = node.with_constant("gpu.matrix_peak_tflops", node.gpu.matrix_peak_tflops * factor)
    before, after = (predict(*batch(scenarios, which), which, strategy(name)) for which in (node, slow))
    assert (after.gemm_end_s >= before.gemm_end_s * (1 - 1e-8)).all()


# Order and batches -------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(cases(most=6), strategy_list, st.randoms(use_true_random=False))
def test_order_and_batching_are_irrelevant(case, how, random):
    node, scenarios = case
    together = predict(*batch(scenarios, node), node, how).time_s
    order = list(range(len(scenarios)))
    random.shuffle(order)
    assert predict(*batch([scenarios[i] for i in order], node), node, how).time_s.tolist() == together[order].tolist()
    alone = [predict(*batch([scenario], node), node, how).time_s[0] for scenario in scenarios]
    assert together == pytest.approx(alone, rel=1e-8)  # a batch stops its fixed point where its slowest row does


def test_an_empty_batch_is_empty():
    gemm, collective = random_batch(MI300X, 2, 0)
    nothing = slice(0, 0)
    for how in STRATEGIES.values():
        assert predict(rows(gemm, nothing), rows(collective, nothing), MI300X, how).time_s.shape == (0,)


# Partitions and dispatch -------------------------------------------------------------------------------------------


@every_node
def test_the_sweep_declines_and_doubles_to_half_of_the_gpu(node):
    step, half = node.gpu.cus_step, node.gpu.cus / 2
    sweep = contention.split_sweep(node)
    assert sweep == (0, *(step * 2**i for i in range(20) if step * 2**i < half))
    assert contention.split_sweep(MI300X) == (0, 8, 16, 32, 64, 128)


@every_node
@pytest.mark.parametrize("name", ["c3_rp", "c3_sp_rp"])
def test_an_oracle_is_the_best_of_its_sweep(node, name):
    gemm, collective = random_batch(node, 300, 7)
    how = strategy(name)
    sweep = contention.sweep_times_s(gemm, collective, node, how)
    result = predict(gemm, collective, node, how)
    assert result.time_s == pytest.approx(sweep.min(-1), rel=1e-8)
    unpartitioned = predict(gemm, collective, node, replace(how, partition="none"))
    assert (result.time_s <= unpartitioned.time_s * (1 + 1e-8)).all()


def test_cus_withheld_from_memory_bound_gemms_only():
    gemm, _ = batch([Scenario("x", Gemm(m, 8192, 8192), Collective("all-gather", 0, 8)) for m in (16, 8192)], MI300X)
    assert contention.withheld_cus(gemm, MI300X).tolist() == [8, 0]


def test_a_strategy_without_partition_takes_no_cus():
    with pytest.raises(C3Error, match="c3_sp has no partition"):
        predict(*random_batch(MI300X, 1, 0), MI300X, strategy("c3_sp"), cus=8)


def test_what_each_kernel_holds():
    pair = batch([Scenario("x", Gemm(8192, 8192, 8192), Collective("all-gather", 2**30, 8))], MI300X)
    held = {}
    for name in ("c3_base", "c3_sp", "conccl"):
        early = predict(*pair, MI300X, strategy(name)).law.early
        held[name] = (float(early.gemm_cus[0]), float(early.collective_cus[0]))
    share = MI300X.interference.dispatch_share * 64
    assert held == {"c3_base": (304 - share, share), "c3_sp": (240, 64), "conccl": (304, 0)}
    split = predict(*pair, MI300X, strategy("c3_rp"), cus=128)
    assert (split.law.gemm_only.gemm_cus, split.law.late.gemm_cus, split.law.late.collective_cus) == (176, 176, 64)
    assert split.cus_taken == 128


@pytest.mark.parametrize("mechanism", ["cu", "hbm", "queueing", "link", "launch", "dispatch"])
def test_every_mechanism_acts_somewhere(mechanism):
    """F8: a switch that moves nothing is a switch that is not connected. (``cache`` is the next test.)"""
    moved = False
    for node in NODES.values():
        pair = random_batch(node, 1000, 8)
        for how in STRATEGIES.values():
            without = predict(*pair, node, how, on=replace(Mechanisms(), **{mechanism: False})).time_s
            moved |= not np.allclose(without, predict(*pair, node, how).time_s, rtol=1e-6)
    assert moved


def test_cache_acts_only_where_evicted_tiles_outlast_the_matrix_work():
    """Connected, but idle with the nodes' coefficients: reuse goes with compute-bound GEMMs, which have bandwidth to
    spare for the re-reads (docs/model_card.md). A coefficient twenty times larger shows."""
    how, without = strategy("c3_sp"), replace(Mechanisms(), cache=False)
    pair = batch(load_suite("conccl30", 8), MI300X)
    heavy = MI300X.with_constant("interference.cache_pollution", 10)
    assert (predict(*pair, MI300X, how).time_s == predict(*pair, MI300X, how, on=without).time_s).all()
    assert (predict(*pair, heavy, how).time_s > 1.05 * predict(*pair, heavy, how, on=without).time_s).any()


def test_batches_are_what_the_model_reads():
    gemm, collective = random_batch(MI300X, 3, 0)
    assert isinstance(gemm, GemmBatch)
    assert isinstance(collective, CollectiveBatch)
    assert gemm.nbytes.shape == collective.sent_bytes.shape == (3,)


def test_a_gemm_too_small_for_the_gpu_leaves_its_slots_to_the_second_kernel():
    """One workgroup of 304 slots: a collective launched second has all the CUs that it wants."""
    pair = batch([Scenario("x", Gemm(16, 64, 4096), Collective("all-gather", 2**30, 8))], MI300X)
    early = predict(*pair, MI300X, strategy("c3_base")).law.early
    assert pair[0].workgroups[0] < 304 - 64
    assert early.collective_cus[0] == 64


@every_node
@every_strategy
def test_a_scenario_takes_the_same_time_whatever_it_is_batched_with(node, how):
    gemm, collective = random_batch(node, 60, 11)
    together = predict(gemm, collective, node, how).time_s
    alone = [predict(rows(gemm, [i]), rows(collective, [i]), node, how).time_s[0] for i in range(60)]
    assert together.tolist() == alone


@every_node
@pytest.mark.parametrize("name", ["conccl", "conccl_rp"])
def test_dma_engines_do_not_wait_for_memory(node, name):
    """With bandwidth itself not shared, a GEMM cannot delay them at all."""
    gemm, collective = random_batch(node, MANY, 12)
    ends = predict(gemm, collective, node, strategy(name), on=Mechanisms(hbm=False)).collective_end_s
    assert ends == pytest.approx(kernels.dma_collective_time_s(collective, node), rel=1e-12)


def test_the_library_does_wait_for_memory():
    result = predict(*random_batch(MI300X, MANY, 12), MI300X, strategy("c3_sp"), on=Mechanisms(hbm=False))
    assert (result.collective_end_s > result.collective_alone_s * 1.01).any()


# --- what was measured: thread blocks and isolated times of its own ---


@every_node
@pytest.mark.parametrize("name", ["c3_base", "c3_sp"])
def test_blocks_take_the_place_of_the_librarys_default(node, name):
    gemm, collective = random_batch(node, MANY, 13)
    default = kernels.library_field(collective, node, "default_cus")
    own = predict(gemm, collective, node, strategy(name))
    same = predict(gemm, collective, node, strategy(name), blocks=default)
    assert same.time_s.tolist() == own.time_s.tolist()
    two = predict(gemm, collective, node, strategy(name), blocks=2)
    assert two.law.wanted_cus.tolist() == [2] * MANY
    alone = kernels.cu_collective_time_s(collective, 2, node)
    assert (two.collective_end_s >= alone * (1 - 1e-9)).all()


def test_blocks_are_refused_where_nothing_runs_on_cus():
    with pytest.raises(C3Error, match="conccl runs no collective on CUs, so blocks cannot be given"):
        predict(*random_batch(MI300X, 3, 0), MI300X, strategy("conccl"), blocks=2)


@every_node
@pytest.mark.parametrize(("name", "transport"), [("c3_sp", "cu"), ("conccl", "dma")])
def test_given_isolated_times_bound_the_concurrent_one(node, name, transport):
    """Without anything shared it is the longer of the two exactly."""
    gemm, collective = random_batch(node, MANY, 14)
    rng = np.random.default_rng(0)
    alone_s, own_s = 10 ** rng.uniform(-5, -2, (2, MANY))
    own_s = np.where(collective.sent_bytes > 0, own_s, 0.0)
    pair = stretched(gemm, collective, node, alone_s, own_s, transport)
    nothing_shared = predict(*pair, node, strategy(name), on=only("link", "launch"))
    assert nothing_shared.time_s == pytest.approx(np.maximum(alone_s, own_s), rel=1e-9)
    assert nothing_shared.gemm_alone_s == pytest.approx(alone_s, rel=1e-12)
