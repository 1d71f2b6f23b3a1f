"""What a program becomes on a GPU's two queues, what that costs, and the tidy rows of it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c3lib.errors import C3Error
from c3lib.ficco import FINER, SCHEDULES, Problem, build
from c3lib.ficco.sets import Row, load_problems
from c3lib.finer import COLUMNS, exposed_s, schedule_rows
from c3lib.hardware import load_node
from c3lib.model import kernels
from c3lib.model.order import Exchange, Kernel, order_of
from c3lib.model.pieces import TRANSPORTS, kernel_batch, lanes, one_way
from c3lib.model.pipeline import Timeline, simulate
from c3lib.model.shared_gpu import MECHANISMS, Mechanisms

MESH, SWITCH, HOST = (load_node(name) for name in ("mi300x_8", "h200_8", "h200_1"))
NODES = pytest.mark.parametrize("node", [MESH, SWITCH, HOST], ids=lambda node: node.name)
G, M, N, K = 8, 8 * 4096, 2048, 8192
EVEN = Problem.all_gather(M, N, K, G)
SHARD, PIECE = M // G * K * 2, M // G // G * K * 2  # bytes


def order(schedule, problem=EVEN, node=MESH):
    return order_of(build(schedule, problem), node, "dma")


def timed(schedule, node=MESH, transport="dma", problem=EVEN, **more):
    return lanes([build(schedule, problem)], node, transport, **more)[0]


def rows_of(problem, node, **more):
    return schedule_rows(node, [Row("x", problem, "made")], **more).set_index(["transport", "schedule"])


# --- what a program becomes ---


def test_serial_is_one_exchange_of_everything_and_one_gemm():
    groups, exchanges = order("serial")
    assert exchanges == [Exchange(SHARD, 7 * SHARD, 7)]
    assert [(group.kernels, group.waits) for group in groups] == [((Kernel(M, N, K, 2, False, 0),), 1)]


def test_shards_come_from_one_peer_at_a_time():
    groups, exchanges = order("shard_p2p")
    assert exchanges == [Exchange(SHARD, SHARD, 1)] * 7
    assert [group.waits for group in groups] == list(range(8))  # the own shard waits for nothing
    assert {group.kernels for group in groups} == {(Kernel(M // G, N, K, 2, False, 0),)}


def test_fused_pieces_are_gathered_multiplied_and_scattered():
    groups, exchanges = order("uniform_fused_1d")
    assert exchanges == [Exchange(PIECE, 7 * PIECE, 7)] * 8
    gathered = Kernel(0, 1, 1, 2, False, 2 * PIECE)  # the own piece, read and written
    scattered = Kernel(0, 1, 1, 2, False, 2 * (M // G) * N * 2)  # the step's rows of the result
    multiplied = Kernel(M // G, N, K, 2, False, 0)
    steps = [[(gathered,), (multiplied,), (scattered,)]] * 8
    assert [group.kernels for group in groups] == [kernels for step in steps for kernels in step]
    multiplications = [group.waits for group in groups if group.kernels == (multiplied,)]
    assert multiplications == list(range(1, 9))
    assert groups[0].waits == 0


def test_unfused_pieces_are_a_gemm_each_and_move_nothing():
    groups, exchanges = order("hetero_unfused_1d")
    assert exchanges == [Exchange(PIECE, 7 * PIECE, 7)] * 8
    assert groups[0] == ((Kernel(M // G, N, K, 2, False, 0),), 0)
    assert [group.waits for group in groups[1:]] == list(range(1, 9))
    assert {group.kernels for group in groups[1:]} == {(Kernel(M // G // G, N, K, 2, False, 0),) * 7}


def test_slices_of_k_add_to_the_result_from_the_second_on():
    groups, exchanges = order("uniform_fused_2d")
    assert exchanges == [Exchange(PIECE, 7 * PIECE, 7)] * 8
    assert [group.kernels[0].accumulate for group in groups] == [False] + [True] * 7
    assert {group.kernels[0][:3] for group in groups} == {(M, N, K // G)}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", [Problem.all_gather, Problem.all_to_all])
@pytest.mark.parametrize(("m", "k"), [(M, K), (1000, 77), (13, 5)])
def test_every_byte_and_every_operation_is_there_once(schedule, kind, m, k):
    problem = kind(m, 33, k, G)
    groups, exchanges = order(schedule, problem)
    assert sum(item.nbytes for item in exchanges) == problem.received_nbytes(0)
    work = sum(kernel.m * kernel.n * kernel.k for group in groups for kernel in group.kernels)
    assert work == problem.m[0] * 33 * k
    assert max(group.waits for group in groups) == len(exchanges)


# --- uneven exchanges ---

HOT = Problem.all_to_all(1, 512, 1024, 4, rows=[[64] * 4, [8] * 4, [8] * 4, [8] * 4])


def test_over_a_mesh_the_busiest_link_sets_the_time():
    _, (exchange,) = order("serial", HOT)
    assert exchange == Exchange(8 * 2048, 3 * 8 * 2048, 3)  # rank 0 itself receives little
    _, (exchange,) = order_of(build("serial", HOT, 1), MESH, "dma")
    assert exchange == Exchange(64 * 2048, (64 + 8 + 8) * 2048, 3)


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "shard_p2p"])
@pytest.mark.parametrize("rank", range(4))
def test_behind_a_switch_all_wait_for_the_busiest_port(schedule, rank):
    """Rank 0 gives 64 rows to each of three: no schedule takes those out of its port faster."""
    _, exchanges = order_of(build(schedule, HOT, rank), SWITCH, "dma")
    assert sum(item.nbytes for item in exchanges) == 3 * 64 * 2048


@pytest.mark.parametrize("senders", [1, 2, 3])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_schedule_beats_the_ideal_where_few_give_and_all_fetch(senders, transport):
    """A rank whose turn at the busy port comes late has waited out the turns of the others."""
    rows = [[2048] * 8] * senders + [[0] * 8] * (8 - senders)
    found = rows_of(Problem.all_to_all(1, 4096, 8192, 8, rows=rows), SWITCH, transports=(transport,))
    assert (found["speedup"] <= found["ideal"] * (1 + 1e-9)).all()


def test_one_peer_at_a_time_shares_no_port():
    for rank in range(4):
        _, exchanges = order_of(build("shard_p2p", HOT, rank), SWITCH, "dma")
        assert [item.nbytes for item in exchanges] == [64 * 2048] * 3  # in every step somebody reads rank 0


def test_the_slowest_rank_is_the_time_of_a_row():
    problem = Problem.all_to_all(1, 2048, 4096, 4, rows=[[4096, 0, 0, 0]] + [[4096, 256, 256, 256]] * 3)
    found = rows_of(problem, MESH, transports=("dma",))
    slowest = max(simulate(lanes([build("serial", problem, rank)], MESH, "dma")[0]).time_s for rank in range(4))
    assert found.loc[("dma", "serial"), "time_s"] == slowest
    assert found.loc[("dma", "serial"), "m"] == 4 * 4096
    even = rows_of(Problem.all_to_all(sum(map(sum, problem.rows)) // 4, 2048, 4096, 4), MESH, transports=("dma",))
    assert (found["time_s"] > even["time_s"]).all()


def test_the_slowest_rank_need_not_be_the_one_with_most_rows():
    """Rank 0 has more to multiply, all its own; rank 1 waits for one link of a mesh. Rank 2 has little of both."""
    rows = [[6000, 4096, 64], [64, 64, 64], [64, 64, 64]]
    problem = Problem.all_to_all(1, 256, 8192, 3, rows=rows)
    assert problem.busiest == 0
    found = rows_of(problem, MESH, transports=("dma",))
    for schedule in SCHEDULES:
        programs = [build(schedule, problem, rank) for rank in range(3)]
        times = [simulate(both).time_s for both in lanes(programs, MESH, "dma")]
        assert times.index(max(times)) == 1
        assert found.loc[("dma", schedule), "time_s"] == max(times), schedule
        assert found.loc[("dma", schedule), "memory_bytes"] == max(item.peak_nbytes for item in programs)
    alone = lanes([build("serial", problem, 1)], MESH, "dma")[0]
    assert (found["gemm_s"] == alone.launch_s[0] + alone.kernel_s[0]).all()
    assert (found["exchange_s"] == alone.start_s[0] + alone.exchange_s[0]).all()
    assert found.loc[("dma", "serial"), "loss_free_s"] == pytest.approx(found["serial_s"].iloc[0])


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_receives_nothing_only_multiplies(transport):
    alone = Problem.all_to_all(1, 512, 512, 2, rows=[[512, 0], [0, 512]])
    found = rows_of(alone, SWITCH, transports=(transport,))
    assert (found["exchange_s"] == 0).all()
    assert found.loc[(transport, "hetero_fused_1d"), "time_s"] == found.loc[(transport, "serial"), "time_s"]
    assert (found["speedup"] <= 1).all()


# --- what it costs ---


def test_one_peer_uses_one_link_of_a_mesh_and_the_whole_port_of_a_switch():
    for node, penalty in ((MESH, 7), (SWITCH, 1), (HOST, 1)):
        whole, one = timed("serial", node), timed("shard_p2p", node)
        assert sum(one.exchange_s) == pytest.approx(penalty * sum(whole.exchange_s)), node.name


def test_bytes_arrive_at_the_rate_of_one_direction():
    """A host link is faster while nothing goes back; a link between GPUs is not."""
    seconds = sum(timed("serial", HOST).exchange_s)
    assert seconds == pytest.approx(7 * SHARD / (HOST.link.dma_one_way_gbs * 1e9))
    assert timed("serial", SWITCH).exchange_s[0] == pytest.approx(
        7 * SHARD / (SWITCH.link.count * SWITCH.link.dma_gbs * 1e9)
    )
    assert one_way(MESH).link == MESH.link
    copied = timed("serial", HOST, "cu").exchange_s[0]
    assert copied == pytest.approx(7 * SHARD / (HOST.link.cu_one_way_gbs * 1e9))
    faster = HOST.with_constant("link.dma_gbs", 60)  # never slower than with traffic both ways
    assert one_way(faster).link.dma_gbs == 60


def test_copies_over_a_host_link_arrive_one_by_one():
    """By a DMA engine a kernel waits for its own piece alone, and only a step's first copy pays for the start."""
    steps, each = (order_of(build("hetero_unfused_1d", EVEN), HOST, by) for by in ("cu", "dma"))
    assert [group.waits for group in each[0]] == list(range(1 + G * (G - 1)))
    assert [group.waits for group in steps[0]] == list(range(1 + G))
    assert each[1] == [Exchange(PIECE, PIECE, 1, queued=peer > 0) for _ in range(G) for peer in range(G - 1)]
    fused = order_of(build("hetero_fused_1d", EVEN), HOST, "dma")[0]
    assert sorted({group.waits for group in fused}) == [(G - 1) * step for step in range(1 + G)]
    first, behind = timed("serial", HOST).start_s[:2]
    assert (first, behind) == pytest.approx(
        ((HOST.dma.copy_us + HOST.dma.command_us) * 1e-6, HOST.dma.command_us * 1e-6)
    )


@NODES
def test_cu_driven_exchanges_take_cus_from_the_kernels_and_engines_do_not(node):
    """Beside nothing as well: the kernels leave free what saturates the links from first to last."""
    reserved = node.library["all-gather"].saturation_cus
    gemm = kernels.gemm_batch([M // G], [N], [K], [2], node)
    by_cu, by_dma = (timed("shard_p2p", node, transport) for transport in TRANSPORTS)
    for found, cus in ((by_cu, node.gpu.cus - reserved), (by_dma, node.gpu.cus)):
        alone = max(kernels.compute_time_s(gemm, cus, node)[0], kernels.memory_time_s(gemm, cus, node)[0])
        assert found.kernel_s[0] == pytest.approx(alone)
    scarce = node.with_constant("all-gather.cu_gbs", 0.01)  # so that CUs and not links set the pace
    own, default = (timed(name, scarce, "cu").exchange_s[0] for name in ("hetero_fused_1d", "serial"))
    library = node.library["all-gather"]
    piece_share = PIECE / SHARD
    assert own / piece_share == pytest.approx(default * library.default_cus / min(reserved, library.default_cus))
    serial = timed("serial", node, "cu")
    assert serial.kernel_s == pytest.approx(timed("serial", node, "dma").kernel_s)
    rate = min(library.default_cus * library.cu_gbs, kernels.link_gbs(one_way(node), 7, "cu")) * 1e9
    assert serial.exchange_s[0] == pytest.approx(7 * SHARD / rate)


@NODES
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_is_faster_beside_the_other(node, transport, schedule):
    found = timed(schedule, node, transport)
    assert all(both >= alone for both, alone in zip(found.beside_s, found.kernel_s, strict=True))
    assert all(0 < share <= 1 for share in found.slowed)
    off = timed(schedule, node, transport, on=Mechanisms(**dict.fromkeys(MECHANISMS, False)))
    assert off.beside_s == pytest.approx(off.kernel_s)
    assert off.slowed == pytest.approx([1] * len(off.slowed))


@NODES
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_group_of_kernels_has_one_launch(node, schedule):
    assert timed(schedule, node).launch_s == pytest.approx(
        [node.gpu.launch_us * 1e-6] * len(order(schedule, node=node)[0])
    )


@NODES
def test_a_gemm_that_is_added_reads_and_writes_the_result_once_more(node):
    """At the end of its tiles, so in time whatever bounds it."""
    sizes = (8192, 4096, 1024)
    parts = [Kernel(*sizes, 2, adds, 0) for adds in (False, True)]
    plain, added = (kernels.gemm_time_s(kernel_batch([part], node), node.gpu.cus, node)[0] for part in parts)
    again_s = sizes[0] * sizes[1] * 2 / (node.gpu.hbm_gbs * 1e9)
    assert again_s < added - plain < 4 * again_s
    batch = kernel_batch(parts, node)
    assert batch.nbytes[1] - batch.nbytes[0] == sizes[0] * sizes[1] * 2


@NODES
def test_rows_moved_within_the_gpu_cost_their_bytes(node):
    nbytes = 2**30
    batch = kernel_batch([Kernel(0, 1, 1, 2, False, nbytes)], node)
    at_peak_s = nbytes / (node.gpu.hbm_gbs * 1e9)
    seconds = kernels.gemm_time_s(batch, node.gpu.cus, node)[0] - kernels.gemm_launch_s(batch, node)[0]
    assert at_peak_s <= seconds <= at_peak_s / (1 - node.interference.requestor_thrash) * (1 + 1e-9)
    assert kernels.compute_time_s(batch, node.gpu.cus, node)[0] == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_batch_is_its_programs_one_by_one(transport):
    programs = [build(name, row.problem) for row in load_problems("ficco16", G)[::5] for name in SCHEDULES]
    together = lanes(programs, MESH, transport)
    for program, both in zip(programs, together, strict=True):
        for found, expected in zip(
            vars(lanes([program], MESH, transport)[0]).values(), vars(both).values(), strict=True
        ):
            assert found == pytest.approx(expected, rel=1e-9)


@given(st.sampled_from(list(SCHEDULES)), st.sampled_from(["dma", "cu"]), st.floats(0.2, 0.95), st.data())
@settings(max_examples=25, deadline=None)
def test_a_slower_link_never_speeds_anything_up(schedule, transport, factor, data):
    node = data.draw(st.sampled_from([MESH, SWITCH]))
    m, n, k = (data.draw(st.integers(64, 2**high)) for high in (15, 12, 13))
    problem = Problem.all_gather(m, n, k, G)
    slow = node.with_constants({f"link.{key}": getattr(node.link, key) * factor for key in ("dma_gbs", "cu_gbs")})
    times = [simulate(timed(schedule, there, transport, problem)).time_s for there in (node, slow)]
    assert times[1] >= times[0] * (1 - 2e-2)  # beside a slower exchange a kernel is slowed less, but for longer


# --- the tidy rows ---


@NODES
def test_rows_say_what_the_schedules_take(node):
    found = rows_of(EVEN, node)
    assert list(found.reset_index()[list(COLUMNS)].columns) == list(COLUMNS)
    assert (found["evidence"] == "modelled").all()
    for (transport, schedule), row in found.iterrows():
        timeline = simulate(timed(schedule, node, transport))
        assert row["time_s"] == timeline.time_s
        assert row["serial_s"] == found.loc[(transport, "serial"), "time_s"]
        assert row["serial_s"] == pytest.approx(row["gemm_s"] + row["exchange_s"], rel=1e-12)
        assert row["time_s"] >= max(row["kernel_busy_s"], row["exchange_busy_s"]) * (1 - 1e-12)
        assert row["exposed_s"] <= row["exchange_busy_s"] * (1 + 1e-12)
        assert row["waiting"] == ("exchange" if row["exchange_busy_s"] > row["kernel_busy_s"] else "gemm")
        assert row["ideal"] == pytest.approx(row["serial_s"] / max(row["gemm_s"], row["exchange_s"]))
        assert row["loss_free_s"] <= row["serial_s"] * (1 + 1e-12) or schedule == "shard_p2p"
        assert row["fits"]
    serial = found.xs("serial", level="schedule")
    assert (serial["speedup"] == 1).all()
    assert serial["loss_free_s"].to_numpy() == pytest.approx(serial["time_s"].to_numpy())


def test_exposed_time_is_bytes_moving_beside_no_kernel():
    timeline = Timeline(((1, 2), (3, 5), (5, 6)), ((0, 1.5), (1.5, 4), (7, 8)))
    assert exposed_s(timeline) == pytest.approx(1 + 1 + 1)
    assert exposed_s(Timeline(((0, 1),), ())) == 0


def test_memory_that_does_not_suffice_is_marked_and_refused_with_what_is_missing():
    """Row g13 with every rank computing all columns: C alone is more than the GPU has."""
    row = next(row for row in load_problems("ficco16", G) if row.name == "g13")
    assert rows_of(row.problem, MESH)["fits"].all()
    whole = replace(row.problem, n=row.problem.n * G)
    found = rows_of(whole, MESH)
    assert not found["fits"].any()
    capacity = MESH.gpu.hbm_capacity_gb * 1e9
    with pytest.raises(C3Error, match=r"needs .* of memory and has .*: .* are missing"):
        build("serial", whole, memory_nbytes=capacity)
    assert (found["memory_bytes"] > capacity).all()


def test_what_cannot_be_scheduled_is_one_sentence():
    with pytest.raises(C3Error, match="8 ranks, but node h200_2 has 2"):
        rows_of(EVEN, load_node("h200_2"))
    with pytest.raises(C3Error, match="no problem"):
        schedule_rows(MESH, [])
    with pytest.raises(C3Error, match="transport"):
        rows_of(EVEN, MESH, transports=("rdma",))
    with pytest.raises(C3Error, match="schedule"):
        rows_of(EVEN, MESH, schedules=("fastest",))
    with pytest.raises(C3Error, match="schedules: expected the names of one or more, got none"):
        rows_of(EVEN, MESH, schedules=())
    with pytest.raises(C3Error, match="transports: expected the names of one or more, got none"):
        rows_of(EVEN, MESH, transports=())


def test_chosen_schedules_only_and_no_serial_unless_asked_for():
    found = rows_of(EVEN, MESH, schedules=FINER[:1], transports=("dma",))
    assert list(found.index) == [("dma", FINER[0])]
    assert found["serial_s"].iloc[0] == rows_of(EVEN, MESH).loc[("dma", "serial"), "time_s"]
