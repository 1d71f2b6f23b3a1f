"""Backend hip: whether the GPUs that are there are the node's, by what they say of themselves; none takes part."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from model_cases import H200, MI300X

from c3lib.amd.agents import Gpu
from c3lib.amd.table import hsa_agent_t, hsa_amd_memory_pool_t
from c3lib.backends import hip
from c3lib.errors import C3Error

THERE = Gpu(
    0, "gfx942", 1, hsa_agent_t(), hsa_amd_memory_pool_t(), product="AMD Instinct MI300X", pci="0000:10:00.0",
    cus=304, xccs=8, host_engines=2, peer_engines=14, memory_nbytes=192 << 30,
)  # fmt: skip


@pytest.fixture
def found(monkeypatch):
    """``found(gpus)``: the backend of an MI300X node on a machine of these GPUs."""

    def found(gpus):
        rig = SimpleNamespace(gpus=gpus, gpu=gpus[0], runtime=SimpleNamespace(is_hardware=True))
        monkeypatch.setattr(hip, "Rig", lambda ranks: rig)
        return hip.HipBackend(MI300X)

    return found


def test_the_gpus_of_the_node_are_taken(found):
    assert found([replace(THERE, index=index) for index in range(8)]).evidence == "measured"


@pytest.mark.parametrize("which", [0, 7])
@pytest.mark.parametrize(
    ("other", "has"),
    [
        ({"product": "AMD Instinct MI325X", "memory_nbytes": 256 << 30}, "304 CUs on 8 XCDs and 275 GB"),
        ({"memory_nbytes": 48 << 30}, "304 CUs on 8 XCDs and 52 GB"),  # a quarter of it, as in NPS4
        ({"cus": 38, "xccs": 1, "memory_nbytes": 24 << 30}, "38 CUs on 1 XCDs and 26 GB"),  # a partition, as in CPX
        ({"xccs": 0}, "304 CUs on 0 XCDs and 206 GB"),  # the library does not say, and masks need to know
        ({"xccs": 4}, "304 CUs on 4 XCDs and 206 GB"),
        ({"cus": 228}, "228 CUs on 8 XCDs and 206 GB"),
    ],
)
def test_another_gpu_is_refused(found, which, other, has):
    gpus = [replace(THERE, index=index) for index in range(8)]
    gpus[which] = replace(gpus[which], **other)
    with pytest.raises(C3Error) as caught:
        found(gpus)
    assert str(caught.value) == (
        f"backend hip: GPU {which} ({gpus[which].product}) has {has}, node mi300x_8 has 304 on 8 and 192 GB; "
        "name the node of this GPU with --node, and use whole GPUs (SPX, NPS1)"
    )


def test_a_gpu_is_known_by_what_it_says_of_itself():
    assert MI300X.gpu.is_like(304, 192 << 30)  # as the doctor asks, of either vendor
    assert MI300X.gpu.is_like(304, 192 * 10**9, 8)
    assert H200.gpu.is_like(132, 143_771 << 20)
    assert not H200.gpu.is_like(132, 80 << 30)  # an H100
    assert not MI300X.gpu.is_like(304, 0)
