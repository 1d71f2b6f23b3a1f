"""Where cutting does not pay: what a coarser schedule does better, and the smallest piece."""

import math

import pandas as pd
import pytest

from c3lib.cutting import K, against_coarser, balanced_n, sized, smallest_piece
from c3lib.errors import C3Error
from c3lib.ficco import FINER
from c3lib.ficco.sets import load_problems
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node

MESH, SWITCH, HOST = (load_node(name) for name in ("mi300x_8", "h200_8", "h200_1"))


def table(problem="x", **times):
    about = {"node": "n", "evidence": "modelled", "problem": problem, "transport": "dma"}
    return pd.DataFrame([{**about, "schedule": name, "time_s": seconds} for name, seconds in times.items()])


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"serial": 4, "shard_p2p": 3, "hetero_fused_1d": 2}, (2, 1.5, "none")),
        ({"serial": 4, "shard_p2p": 1, "hetero_fused_1d": 2}, (2, 0.5, "shard_p2p")),
        ({"serial": 1, "shard_p2p": 4, "hetero_fused_1d": 2}, (0.5, 2, "serial")),
        (
            {"serial": 1, "shard_p2p": 1, "hetero_fused_1d": 2, "uniform_fused_1d": 4},
            (0.5, 0.5, "serial and shard_p2p"),
        ),
        ({"serial": 2, "uniform_fused_2d": 2}, (1, math.nan, "none")),
    ],
)
def test_what_beats_the_best_finer_schedule(times, expected):
    row = against_coarser(table(**times)).iloc[0]
    found = [row["over_serial"], row["over_shard"]]
    assert found == pytest.approx(expected[:2], nan_ok=True)
    assert row["loses_to"] == expected[2]


def test_repetitions_count_by_their_median():
    rows = pd.concat([table(serial=3, hetero_fused_1d=seconds) for seconds in (1, 2, 90)])
    assert against_coarser(rows)["over_serial"].item() == 1.5


def test_nothing_finer_to_compare_is_refused():
    with pytest.raises(C3Error, match="x by dma: holds no finer-grain schedule"):
        against_coarser(table(serial=1, shard_p2p=1))


def test_the_topology_argument_has_two_sides():
    """Over a mesh peer-to-peer steps lose; behind a switch they lose nothing, and the coarser cut wins by engines."""
    rows = load_problems("ficco16", 8)
    mesh, switch = (against_coarser(schedule_rows(node, rows, ("dma",))) for node in (MESH, SWITCH))
    assert len(mesh) == len(switch) == len(rows)
    assert mesh["loses_to"].str.contains("shard_p2p").sum() < switch["loses_to"].str.contains("shard_p2p").sum()
    assert (mesh["over_serial"] > 1).all()


@pytest.mark.parametrize("node", [MESH, SWITCH, HOST], ids=lambda node: node.name)
@pytest.mark.parametrize("transport", ["dma", "cu"])
def test_below_the_smallest_piece_cutting_gains_next_to_nothing(node, transport):
    border = smallest_piece(node, transport)
    assert border % (2 * K) == 0
    n = balanced_n(node)

    def gain(nbytes):
        rows = schedule_rows(node, [sized(node, nbytes, n)], [transport], FINER)
        assert rows["piece_bytes"].iloc[0] == nbytes
        return rows["speedup"].max() - 1

    assert gain(int(border)) > 0.02
    if border > 2 * K:
        assert gain(int(border) - 2 * K) <= 0.02


@pytest.mark.parametrize(("island", "border"), [(2**17, 2**20 - 6 * K), (0, 2**20 - 6 * K), (0, 2**14), (0, 2**30)])
def test_a_size_that_pays_below_others_that_do_not_is_no_border(monkeypatch, island, border):
    """Waves of tiles make single sizes fast; the border is where all larger ones pay, to a row of A."""

    def made_up(node, rows, transports, schedules):
        sizes = [row.problem.piece_nbytes for row in rows]
        return pd.DataFrame(
            {"piece_bytes": sizes, "speedup": [1.1 if s >= border or s == island else 1 for s in sizes]}
        )

    monkeypatch.setattr("c3lib.cutting.balanced_n", lambda node, kind: 256)
    monkeypatch.setattr("c3lib.cutting.schedule_rows", made_up)
    assert smallest_piece(MESH, "dma") == (border if border < 2**30 else math.inf)


def test_what_a_copy_costs_moves_the_smallest_piece_and_free_copies_remove_it():
    slow, fast = (
        MESH.with_constants({f"dma.{key}": factor * getattr(MESH.dma, key) for key in ("copy_us", "engine_us")})
        for factor in (8, 0.125)
    )
    assert smallest_piece(fast, "dma") < smallest_piece(MESH, "dma") < smallest_piece(slow, "dma")
    assert smallest_piece(MESH.with_constant("dma.copy_us", 1e6), "dma") == math.inf


def test_sized_problems_are_balanced_when_large():
    rows = schedule_rows(MESH, [sized(MESH, 2**27, balanced_n(MESH))], ("dma",), ("serial",))
    assert rows["gemm_s"].item() == pytest.approx(rows["exchange_s"].item(), rel=0.1)


def test_no_schedule_has_no_smallest_piece():
    with pytest.raises(C3Error, match="schedules: expected the names of one or more, got none"):
        smallest_piece(MESH, "dma", schedules=[])
