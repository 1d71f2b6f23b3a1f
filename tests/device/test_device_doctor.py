"""``c3 doctor`` on GPUs: it names them, proves their copy engines, and says what NCCL runs on."""

import gc
from typing import Any

import pytest

from c3lib.backends.cuda import CudaBackend
from c3lib.cuda.device import Cuda
from c3lib.cuda.nccl_library import load_library, version_of, version_text
from c3lib.doctor import diagnose
from c3lib.doctor.ask import ask
from c3lib.doctor.nvidia import PROBES
from c3lib.hardware import load_node


@pytest.fixture(scope="module")
def page(cuda: Cuda) -> dict[str, Any]:
    """The page of this machine, made once, without what earlier tests left in the GPUs' memory."""
    gc.collect()
    cuda.torch.cuda.empty_cache()
    return diagnose()[0]


def says(page: dict[str, Any], topic: str) -> str:
    return "\n".join(f"{line['state']} {line['says']}" for line in page["found"] if line["topic"] == topic)


def test_gpus_and_driver_are_named(page: dict[str, Any], cuda: Cuda) -> None:
    assert page["vendor"] == "nvidia"
    assert page["hardware"] is True
    assert len(page["gpus"]) == cuda.torch.cuda.device_count()
    assert page["gpus"][0] == {"name": cuda.name, "cus": cuda.sms, "memory_nbytes": cuda.memory_nbytes}
    assert cuda.driver_version in says(page, "driver")
    assert [line for line in page["found"] if line["state"] == "?"] == []


def test_copy_engines_are_counted_and_their_path_proved(page: dict[str, Any], cuda: Cuda) -> None:
    assert f"ok {cuda.copy_engines} on each GPU" in says(page, "copy engines")
    proved = says(page, "copy path")
    assert "no " not in [line[:3] for line in proved.splitlines()], proved
    assert "host to GPU 0, GPU 0 to host" in proved


def test_nccl_is_named_by_its_version(page: dict[str, Any]) -> None:
    assert f"ok {version_text(version_of(load_library()))}: " in says(page, "NCCL")


def test_the_command_that_it_names_suits_these_gpus(page: dict[str, Any], cuda: Cuda) -> None:
    words = page["next"].split()
    assert words[:3] == ["c3", "measure", "--node"]
    if page["nodes"]:
        node = load_node(words[3])
        assert CudaBackend.check_node(node) <= cuda.torch.cuda.device_count()
        assert node.gpu.cus == cuda.sms


def test_between_gpus_copies_take_engines_and_zero_ctas_take_no_block(
    page: dict[str, Any], cudas: tuple[Cuda, ...]
) -> None:
    assert "GPU 0 to GPU 1" in says(page, "copy path")
    assert "ok zero CTAs: ran on no thread block" in says(page, "NCCL")
    assert "thread blocks" in says(page, "NCCL")


def test_hidden_gpus_are_a_sentence(cuda: Cuda) -> None:
    answer = ask(f"{PROBES}:by_cuda", limit_s=50, environment={"CUDA_VISIBLE_DEVICES": "-1"})
    assert answer.facts == ()
    assert answer.failure.startswith("backend cuda: no NVIDIA GPU here")
