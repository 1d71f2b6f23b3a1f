"""Rows as they are published: whole, proved, and refused when what they time did not run."""

import pytest
from device_cases import MIB, pause

from c3lib.cuda.gemm import Operands
from c3lib.cuda.rig import Rig
from c3lib.errors import C3Error
from c3lib.experiment import run_suite
from c3lib.hardware import load_node
from c3lib.results import publishable
from c3lib.workload import Collective, Gemm, Scenario

pytestmark = pytest.mark.device

NODE = load_node("h200_1")
SUITE = [
    Scenario("compute", Gemm(4096, 4096, 8192), Collective("all-gather", 24 * MIB, NODE.ranks)),
    Scenario("memory", Gemm(64, 28672, 8192), Collective("all-to-all", 32 * MIB, NODE.ranks)),
]
STRATEGIES = ("c3_base", "conccl", "conccl_rp")


def measured(cuda, suite=SUITE, strategies=STRATEGIES, repeats=3):
    """Rows of this GPU, if it is the node's."""
    if cuda.sms != NODE.gpu.cus:
        pytest.skip(f"rows are those of node {NODE.name}, and {cuda.name} is another GPU")
    return run_suite(NODE, suite, strategies, "cuda", repeats)


def test_rows_are_verified_proved_and_tell_both_sides(cuda):
    rows = measured(cuda)
    assert len(publishable(rows)) == len(SUITE) * len(STRATEGIES) * 3
    assert set(rows["evidence"]) == {"measured"}
    for _, row in rows.iterrows():
        by_kernel = row["strategy"] == "c3_base"
        assert row["path"].startswith("SM kernel: " if by_kernel else "copy engine: "), row["path"]
        assert row["transport"] == ("sm_kernel" if by_kernel else "copy_engine")
        # M7, M4: the GEMM beside the collective, and whether they met at all.
        assert min(row["gemm_alone_s"], row["collective_alone_s"], row["own_alone_s"]) > 0
        assert 0 < row["overlap_s"] <= row["concurrent_s"] == max(row["gemm_end_s"], row["collective_end_s"])
        # F1: faster than its longer part is what a transfer that never ran would be.
        assert row["concurrent_s"] > 0.8 * max(row["gemm_alone_s"], row["own_alone_s"])
        # F13: granted beside asked.
        assert row["sms_granted"] >= row["sms_asked"] >= 0
        # M5: the state of the GPU.
        assert row["sm_mhz"] > 0
        assert row["power_w"] > 0
    trimmed = rows[(rows["strategy"] == "conccl_rp") & (rows["scenario"] == "memory")]
    assert (trimmed["sms_asked"] == NODE.gpu.spare_cus).all()


@pytest.mark.parametrize("strategy", ["c3_base", "conccl"])
def test_f1_a_row_whose_copy_was_dropped_is_refused_by_every_figure(cuda, monkeypatch, strategy):
    whole = Rig.transport
    monkeypatch.setattr(Rig, "transport", lambda rig, setting, drop=None: whole(rig, setting, 0))
    rows = measured(cuda, SUITE[:1], [strategy], 1)
    assert not rows["verified"].any()
    with pytest.raises(C3Error, match=r"1 measured rows failed the byte check, first compute under"):
        publishable(rows)


def test_f19_a_row_whose_gemm_never_ran_is_refused_by_every_figure(cuda, monkeypatch):
    busy = pause(cuda, 1e-4)  # takes time like a GEMM and computes nothing
    monkeypatch.setattr(Operands, "enqueue", lambda operands, stream, turn, sms=0: busy([stream]))
    rows = measured(cuda, SUITE[:1], ["conccl"], 1)
    assert not rows["verified"].any()
    with pytest.raises(C3Error, match=r"1 measured rows failed"):
        publishable(rows)
