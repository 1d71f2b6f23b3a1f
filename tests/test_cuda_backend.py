"""The rows of the GPU backend, with a stand-in for the rig: which times they are made of, checked by hand."""

from types import SimpleNamespace

import pytest
from model_cases import H200

from c3lib.backends.cuda import CudaBackend
from c3lib.cuda.buffers import Check
from c3lib.cuda.health import Health
from c3lib.cuda.region import Times
from c3lib.cuda.setting import NO_TRANSFER, Region
from c3lib.errors import C3Error
from c3lib.strategy import STRATEGIES
from c3lib.workload import Collective, Gemm, Scenario

NAN = float("nan")
HEALTH = Health(1980.0, 3201.0, 400.0, 40.0, 1.0)
MEMORY_BOUND = Scenario("x", Gemm(64, 106496, 16384), Collective("all-gather", 2**20, 8))


class Rig:
    """A GEMM alone takes 4 s, the library's kernel 3 s, copy engines 2 s, GEMM and copy engines together 5 s."""

    def __init__(self, wrong=0):
        self.wrong, self.settings, self.buffers = wrong, [], SimpleNamespace(link_nbytes=14)

    def load(self, gemm, plan):
        assert len(plan)

    def run(self, setting, gemm=True, transfer=True):
        alone_s = 3.0 if setting.blocks else 2.0
        times = {(True, False): (0, 4, NAN, NAN), (False, True): (NAN, NAN, 0, alone_s), (True, True): (0, 5, 0, 2.5)}
        self.settings.append((setting, gemm, transfer))
        check = Check(14, self.wrong, "") if transfer else Check(0, 0, "")
        path = "proved" if transfer else NO_TRANSFER
        return Region(
            Times(*times[gemm, transfer]), check, True, setting.withheld, setting.blocks, HEALTH, HEALTH, path
        )


def backend(rig):
    made = CudaBackend.__new__(CudaBackend)
    made.node, made.rig, made.sweeps, made._chosen = H200, rig, [], {}
    return made


def test_a_row_by_hand():
    """Against own time: serial 6 s in 5 s of a possible 4: (1.2 - 1) / (1.5 - 1)."""
    rig = Rig()
    times = backend(rig).run([MEMORY_BOUND], STRATEGIES["conccl_rp"], 0)
    assert (times.gemm_alone_s, times.collective_alone_s, times.more["own_alone_s"]) == ([4], [3], [2])
    assert (times.gemm_end_s, times.collective_end_s, times.concurrent_s) == ([5], [2.5], [5])
    assert times.more["own_fraction"][0] == pytest.approx(0.4)
    assert times.more["overlap_s"] == [2.5]
    assert times.cus_taken == times.more["sms_asked"] == [H200.gpu.spare_cus]
    assert times.path == ["proved"]
    assert times.verified.all()


def test_the_gemm_alone_has_the_whole_gpu_and_the_library_its_default_blocks():
    rig = Rig()
    backend(rig).run([MEMORY_BOUND], STRATEGIES["conccl_rp"], 0)
    alone = next(setting for setting, gemm, transfer in rig.settings if gemm and not transfer)
    library = next(setting for setting, gemm, _ in rig.settings if not gemm and setting.blocks)
    assert alone.withheld == 0
    assert library.blocks == H200.library["all-gather"].default_cus


def test_one_wrong_byte_in_any_of_the_four_regions_is_enough():
    assert not backend(Rig(wrong=1)).run([MEMORY_BOUND], STRATEGIES["conccl"], 0).verified.any()


def test_a_collective_that_moves_nothing_is_refused():
    empty = Scenario("empty", MEMORY_BOUND.gemm, Collective("all-gather", 0, 8))
    with pytest.raises(C3Error, match="scenario empty: a collective of 0 bytes moves nothing to measure"):
        backend(Rig()).open(empty)
