"""Decomposition and contention losses of GEMM and exchange on the model."""

import math

import numpy as np
import pytest

from c3lib.errors import C3Error
from c3lib.ficco import Problem, build
from c3lib.ficco.sets import Row, load_problems
from c3lib.hardware import load_node
from c3lib.model import kernels
from c3lib.model.losses import AXES, COLUMNS, loss_rows
from c3lib.model.pieces import TRANSPORTS, lanes, one_way

MESH, SWITCH, HOST = (load_node(name) for name in ("mi300x_8", "h200_8", "h200_1"))
NODES = pytest.mark.parametrize("node", [MESH, SWITCH, HOST], ids=lambda node: node.name)
PROBLEM = Problem.all_gather(8 * 8192, 2048, 8192, 8)


def losses(node, problem=PROBLEM, **more):
    return loss_rows(node, [Row("x", problem, "made")], **more).set_index(
        ["loss", "operation", "transport", "axis", "ways"]
    )


@NODES
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_cutting_an_exchange_costs_its_start_once_more_for_every_further_piece(node, transport):
    found = losses(node)
    sent = 7 * 8192 * 8192 * 2
    batch = kernels.CollectiveBatch(np.array([0]), np.array([sent], float), np.array([7.0]))
    whole_s = kernels.own_time_s(batch, one_way(node), transport)[0]
    start = kernels.dma_latency_s if transport == "dma" else kernels.cu_collective_latency_s
    for ways in (8, 64):
        row = found.loc[("decomposition", "exchange", transport, "none", ways)]
        assert row["value"] == pytest.approx((ways - 1) * start(batch, node)[0] / whole_s)
        assert row["piece_bytes"] == 8192 * 8192 * 2 / ways


def test_pieces_that_fill_every_wave_lose_nothing():
    """152 x 2 tiles of 256 are one round of the 304 CUs, 38 on each die; so are those of the whole, eight times."""
    full = losses(MESH, Problem.all_gather(8 * 152 * 256, 512, 8192, 8))
    assert full.loc[("decomposition", "gemm", "none", "m", 8), "value"] == pytest.approx(0, abs=1e-9)
    half = full.loc[("decomposition", "gemm", "none", "m", 64), "value"]
    assert half > 0.05  # an eighth of the tiles leaves CUs idle, whichever tile is taken


@NODES
def test_cutting_k_costs_the_result_once_more_at_every_slice_but_the_first(node):
    """Whatever else: each slice reads and writes C at memory speed when nothing hides it, and no slice is faster."""
    found = losses(node)
    result_s = PROBLEM.m[0] * PROBLEM.n * 2 / (node.gpu.hbm_gbs * 1e9)
    for ways in (8, 64):
        row = found.loc[("decomposition", "gemm", "none", "k", ways)]
        assert (ways - 1) * result_s <= row["cut_s"] - row["whole_s"] <= 4 * (ways - 1) * result_s


@NODES
@pytest.mark.parametrize("axis", AXES)
def test_more_pieces_lose_more(node, axis):
    found = losses(node, ways=(2, 8, 64, 512))["value"]
    of_axis = [found["decomposition", "gemm", "none", axis, ways] for ways in (2, 8, 64, 512)]
    assert of_axis == sorted(of_axis)
    assert of_axis[0] > -1e-9


@NODES
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_contention_of_a_schedules_own_pieces_is_that_of_its_lanes(node, transport):
    """Alone is with all that each can use: every CU (as with engines), the library's number (as in ``serial``)."""
    found = losses(node).loc[("contention", slice(None), transport, "m", 8)]["value"]
    program, serial = build("uniform_fused_1d", PROBLEM), build("serial", PROBLEM)
    both, whole = lanes([program, serial], node, transport)
    at = 1  # gathered, then multiplied
    alone_s = lanes([program], node, "dma")[0].kernel_s[at]
    assert found["gemm"] == pytest.approx(both.beside_s[at] / alone_s - 1)
    assert found["exchange"] == pytest.approx(both.exchange_s[0] / both.slowed[at] / (whole.exchange_s[0] / 8) - 1)


@NODES
def test_a_gemm_beside_a_cu_driven_exchange_loses_the_cus_too(node):
    found = losses(node)
    by_cu, by_dma = (
        found.loc[("contention", "gemm", transport, "none", 1), "value"].item() for transport in TRANSPORTS
    )
    reserved = node.library["all-gather"].saturation_cus
    assert by_cu > by_dma
    batch = kernels.gemm_batch([PROBLEM.m[0]], [PROBLEM.n], [PROBLEM.k], [2], node)
    fewer, every = (kernels.compute_time_s(batch, node.gpu.cus - cus, node)[0] for cus in (reserved, 0))
    assert by_cu >= fewer / every - 1


@NODES
def test_without_queueing_in_memory_engines_cost_a_compute_bound_gemm_nothing(node):
    calm = node.with_constants({"interference.memory_queueing": 0, "interference.copy_queueing": 0})
    assert losses(calm).loc[("contention", "gemm", "dma", "none", 1), "value"].item() == pytest.approx(0, abs=1e-9)


@NODES
def test_losses_of_the_sixteen_rows_are_all_there(node):
    rows = load_problems("ficco16", 8)
    found = loss_rows(node, rows)
    assert list(found.columns) == list(COLUMNS)
    assert found["value"].map(math.isfinite).all()
    # GEMM: 3 axes, 2 cuts; exchange: 2 cuts a transport; contention: those and the whole, both operations, a transport.
    assert len(found) == 16 * (3 * 2 + 2 * 2 + 2 * 2 * (3 * 2 + 1))
    assert (found[found["loss"] == "contention"]["value"] > -1e-9).all()
    assert (found["value"] - (found["cut_s"] / found["whole_s"] - 1)).abs().max() == 0


def test_fewer_rows_than_ways_are_as_many_pieces_as_rows():
    found = losses(MESH, Problem.all_gather(16, 64, 64, 8))
    row = found.loc[("decomposition", "gemm", "none", "m", 64)]
    assert row["piece_m"] == 1
    again = losses(MESH, Problem.all_gather(16, 64, 64, 8), ways=(16,))
    assert row["cut_s"] == again.loc[("decomposition", "gemm", "none", "m", 16), "cut_s"]


def test_a_rank_that_receives_nothing_has_no_contention():
    found = losses(SWITCH, Problem.all_to_all(1, 512, 512, 2, rows=[[512, 0], [0, 512]])).reset_index()
    assert set(found["loss"]) == {"decomposition"}
    assert set(found["operation"]) == {"gemm"}


def test_what_cannot_be_cut_is_one_sentence():
    with pytest.raises(C3Error, match="no problem to cut"):
        loss_rows(MESH, [])
    with pytest.raises(C3Error, match="at least 2 pieces, not 1"):
        losses(MESH, ways=(8, 1))
