"""The tornado: which constants matter at all, closed cases, and bounds."""

import pytest
from model_cases import NODES

from c3lib.errors import C3Error
from c3lib.experiment import run_suite, summarise
from c3lib.hardware import load_node
from c3lib.model.sensitivity import BEST, IDLE, headline, tornado, used_keys
from c3lib.strategy import STRATEGIES

MI300X = load_node("mi300x_8")


def moved(table):
    return {
        key
        for key, rows in table.groupby("key")
        if (rows[["low", "high"]].sub(rows["base"], axis=0) != 0).any(axis=None)
    }


def test_constants_called_idle_move_nothing_on_any_node():
    for name in ("mi300x_8", "h200_1"):
        assert moved(tornado(load_node(name), keys=sorted(IDLE))) == set()


def test_used_and_idle_are_all_constants():
    assert set(used_keys(MI300X)) | IDLE == set(MI300X.constants)
    assert set(used_keys(MI300X)) & IDLE == set()


def test_the_headline_constants_move_their_rungs_the_way_they_must():
    keys = ["interference.memory_queueing", "interference.dispatch_share", "link.dma_gbs"]
    table = tornado(MI300X, keys=keys).set_index(["key", "metric"])
    queueing = table.loc[("interference.memory_queueing", "c3_sp")]
    assert queueing["low"] > queueing["base"] > queueing["high"]
    share = table.loc[("interference.dispatch_share", "c3_base")]
    assert share["low"] < share["base"] < share["high"]
    for metric in ("conccl", "conccl_rp"):  # dispatch order is nothing to a DMA engine
        row = table.loc[("interference.dispatch_share", metric)]
        assert row["low"] == row["base"] == row["high"]
    assert table.loc[("link.dma_gbs", "c3_sp"), "low"] == table.loc[("link.dma_gbs", "c3_sp"), "base"]


def test_values_are_swung_and_kept_possible():
    table = tornado(MI300X, swing=0.5, keys=["gpu.hbm_efficiency", "gpu.cus", "dma.copy_us"])
    one = table.drop_duplicates("key").set_index("key")
    assert (one.loc["gpu.hbm_efficiency", "low_value"], one.loc["gpu.hbm_efficiency", "high_value"]) == (0.445, 1.0)
    assert one.loc["gpu.cus", "low_value"] == 152
    assert one.loc["gpu.cus", "high_value"] == 456
    assert one.loc["dma.copy_us", "high_value"] == pytest.approx(1.5 * MI300X.dma.copy_us)


def test_base_is_the_headline():
    table = tornado(MI300X, keys=["dma.copy_us"]).set_index("metric")
    assert dict(table["base"]) == headline(MI300X)
    assert set(table.index) == {*STRATEGIES, BEST}


@pytest.mark.parametrize("swing", [0, 1, -0.1, 2])
def test_swing_out_of_range_is_refused(swing):
    with pytest.raises(C3Error, match="swing must lie between 0 and 1"):
        tornado(MI300X, swing=swing)


def test_unknown_key_is_named():
    with pytest.raises(C3Error, match=r"gpu\.cu'"):
        tornado(MI300X, keys=["gpu.cu"])


def test_headlines_are_those_of_the_experiment():
    rows = summarise(run_suite("mi300x_8")).set_index("strategy")
    found = headline(MI300X)
    for name in STRATEGIES:
        assert found[name] == pytest.approx(rows.loc[name, "fraction_of_ideal"], rel=1e-12)
    assert found[BEST] == pytest.approx(rows.loc[["conccl", "conccl_rp"], "speedup_max"].max(), rel=1e-12)


def test_the_larger_the_swing_the_wider_the_bar():
    key = ["interference.memory_queueing"]
    wide, narrow = (tornado(MI300X, swing, keys=key).set_index("metric").loc["conccl"] for swing in (0.4, 0.1))
    assert wide["low"] > narrow["low"] > narrow["base"] > narrow["high"] > wide["high"]


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_a_switch_is_not_moved_by_a_share(node):
    """Turned over, resident GEMM kernels would look like the MI300X's most sensitive number."""
    rows = tornado(node, keys=["gpu.resident_gemm"])
    assert (rows["low_value"] == rows["value"]).all()
    assert (rows["high_value"] == rows["value"]).all()
    assert (rows["high"] == rows["base"]).all()
