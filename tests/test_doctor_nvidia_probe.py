"""Probes of NVIDIA GPUs with stand-ins for NVML, the driver and its copies: what they yield, in order or in trouble."""

import ctypes
import sys
from contextlib import nullcontext
from enum import IntEnum
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from c3lib.cuda import device, nccl_library, path, rig, streams
from c3lib.doctor import nvidia, nvidia_probe
from c3lib.doctor.ask import ask
from c3lib.doctor.finding import Answer
from c3lib.errors import C3Error

CODES = IntEnum("CODES", {"CUDA_SUCCESS": 0, "CUDA_ERROR_ILLEGAL_ADDRESS": 700})


def answer(probe) -> Answer:
    """What a probe yields, without what it says it does."""
    return Answer(tuple(word for word in probe if isinstance(word, dict)))


# --- NVML ---


class NVMLError(Exception):
    pass


def fake_nvml(monkeypatch, *refused: str) -> None:
    """A module ``pynvml`` of two GPUs, that refuses some of its calls."""
    nvml = ModuleType("pynvml")
    told = {
        "nvmlInit": None, "nvmlDeviceGetCount": 2, "nvmlSystemGetCudaDriverVersion": 13000,
        "nvmlSystemGetDriverVersion": b"580.95.05", "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150 << 30), "nvmlDeviceGetMigMode": [0, 0],
        "nvmlDeviceGetNvLinkState": 1, "nvmlDeviceGetComputeRunningProcesses": [object()],
        "nvmlDeviceGetFieldValues": [SimpleNamespace(nvmlReturn=0)], "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16, "nvmlDeviceGetTotalEnergyConsumption": 1,
    }  # fmt: skip

    def calling(name, value):
        def call(*arguments):
            if name in refused or (name == "nvmlDeviceGetNvLinkState" and arguments[1] >= 18):
                raise NVMLError(name)
            return value

        return call

    for name, value in told.items():
        setattr(nvml, name, calling(name, value))
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.NVMLError, nvml.NVML_NVLINK_MAX_LINKS, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = NVMLError, 36, 138
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def test_nvml_tells_driver_links_and_counters(monkeypatch):
    fake_nvml(monkeypatch)
    found = answer(nvidia_probe.by_nvml())
    assert found.one("driver") == {"kind": "driver", "version": "580.95.05", "cuda": 13000, "gpus": 2}
    assert found.of("gpu")[1] == {
        "kind": "gpu", "index": 1, "name": "NVIDIA H200", "memory_nbytes": 150 << 30, "programs": 1, "mig": False,
        "nvlinks": 18, "pcie_generation": 5, "pcie_width": 16, "link_counters": True, "energy": True,
    }  # fmt: skip


def test_what_nvml_does_not_tell_is_none_and_the_rest_stands(monkeypatch):
    everything = [f"nvmlDeviceGet{name}" for name in (
        "Name", "MemoryInfo", "MigMode", "NvLinkState", "ComputeRunningProcesses", "FieldValues",
        "CurrPcieLinkGeneration", "CurrPcieLinkWidth", "TotalEnergyConsumption",
    )]  # fmt: skip
    fake_nvml(monkeypatch, "nvmlSystemGetCudaDriverVersion", *everything)
    found = answer(nvidia_probe.by_nvml())
    gpu = found.of("gpu")[0]
    assert {gpu[key] for key in ("name", "memory_nbytes", "mig", "programs", "pcie_generation")} == {None}
    assert (gpu["nvlinks"], gpu["link_counters"], gpu["energy"]) == (0, False, False)
    reading = nvidia.read(found, Answer(), Answer(), Answer())  # and the page can be made of it
    assert "no NVLinks active, PCIe not told" in " / ".join(line.says for line in reading.lines)


# --- the GPUs and their copies, with host memory for that of GPUs ---


class Tensor:
    """Bytes that the copies below really move."""

    def __init__(self):
        self.bytes = np.zeros(nvidia_probe.SHARD_NBYTES, np.uint8)

    def data_ptr(self):
        return self.bytes.ctypes.data

    def fill_(self, value):
        self.bytes[:] = value

    def zero_(self):
        self.bytes[:] = 0

    def __eq__(self, value):
        return self.bytes == value


def gpu(index: int, *, copies: bool = True, code=CODES.CUDA_SUCCESS):
    """A stand-in for an open GPU, whose driver copies or only says so."""

    def copy(target, source, nbytes, stream):
        if copies:
            ctypes.memmove(target, source, nbytes)
        return (code,)

    torch = SimpleNamespace(
        uint8="uint8", zeros=lambda *_, **__: Tensor(), cuda=SimpleNamespace(synchronize=lambda index: None)
    )
    driver = SimpleNamespace(cuMemcpyAsync=copy)
    return SimpleNamespace(index=index, torch=torch, driver=driver, copy_engines=3, current=nullcontext)


@pytest.fixture
def machine(monkeypatch):
    """``machine(gpus)``: a machine of these GPUs (an error for one that cannot be opened), facts of ``by_cuda``."""

    def machine(*gpus, held=True, reach=True) -> Answer:
        torch = ModuleType("torch")
        seen = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132, total_memory=150 << 30, major=9, minor=0)
        torch.__version__, torch.version = "2.11.0+cu130", SimpleNamespace(cuda="13.0")
        torch.cuda = SimpleNamespace(device_count=lambda: len(gpus), get_device_properties=lambda index: seen)
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr(device, "require_gpu", lambda count=1: None)

        def opened(index):
            if isinstance(gpus[index], Exception):
                raise gpus[index]
            return gpus[index]

        def enable(one, others):
            if not reach:
                raise C3Error(f"backend cuda: GPU {one.index} cannot reach the memory of GPU {others[0].index}")

        def hold(cudas, enqueue, wait_s):
            if isinstance(held, Exception):
                raise held
            enqueue([stream for _ in cudas])
            return held

        stream = SimpleNamespace(handle=1, sync=lambda: None)
        monkeypatch.setattr(device, "open_device", opened)
        monkeypatch.setattr(device, "enable_peers", enable)
        monkeypatch.setattr(path, "ends_while_sms_are_held", hold)
        monkeypatch.setattr(streams, "new_stream", lambda cuda: stream)
        return answer(nvidia_probe.by_cuda())

    return machine


def test_all_ways_of_two_gpus_are_proved(machine):
    found = machine(gpu(0), gpu(1))
    assert [(fact["index"], fact["sms"], fact["copy_engines"]) for fact in found.of("seen")] == [
        (0, 132, 3), (1, 132, 3),
    ]  # fmt: skip
    copies = found.of("copied")
    assert [fact["what"] for fact in copies] == [
        "host to GPU 0", "GPU 0 to host", "host to GPU 1", "GPU 1 to host", "GPU 0 to GPU 1", "GPU 1 to GPU 0",
    ]  # fmt: skip
    assert {(fact["engine"], fact["why_not"]) for fact in copies} == {(True, "")}
    assert nvidia.read(Answer(), found, Answer(), Answer()).lacks.keys().isdisjoint({"gpu", "engines", "peers"})


def test_a_gpu_in_use_is_told_and_the_other_is_proved(machine):
    found = machine(C3Error("backend cuda: GPU 0 is in use"), gpu(1))
    assert [fact["why_not"] for fact in found.of("seen")] == ["backend cuda: GPU 0 is in use", ""]
    assert [fact["what"] for fact in found.of("copied")] == ["host to GPU 1", "GPU 1 to host"]
    lacks = nvidia.read(Answer(), found, Answer(), Answer()).lacks
    assert lacks["peers"] == "backend cuda: GPU 0 is in use"
    assert "engines" not in lacks


@pytest.mark.parametrize(
    ("gpus", "how", "engine", "words"),
    [
        ([gpu(0)], {"held": False}, False, ""),
        ([gpu(0)], {"held": C3Error("path: nothing is proved")}, None, "path: nothing is proved"),
        ([gpu(0, copies=False)], {}, True, "bytes of a copy from host to GPU 0 did not arrive"),
        ([gpu(0, code=CODES.CUDA_ERROR_ILLEGAL_ADDRESS)], {}, None, "ILLEGAL_ADDRESS"),
    ],
)
def test_a_copy_that_is_not_as_it_should_be(machine, gpus, how, engine, words):
    found = machine(*gpus, **how)
    first = found.of("copied")[0]
    assert first["engine"] is engine
    assert words in first["why_not"]
    assert "engines" in nvidia.read(Answer(), found, Answer(), Answer()).lacks


def test_gpus_that_cannot_reach_one_another(machine):
    copies = [fact for fact in machine(gpu(0), gpu(1), reach=False).of("copied") if fact["peers"]]
    assert [fact["why_not"] for fact in copies] == [
        "backend cuda: GPU 0 cannot reach the memory of GPU 1", "backend cuda: GPU 1 cannot reach the memory of GPU 0",
    ]  # fmt: skip


# --- NCCL and counters ---


def test_nccl_tells_its_version_and_what_ran(monkeypatch):
    class Rig:
        def __init__(self, gpus):
            self.gpus = gpus

        def load(self, plan, registered):
            assert (plan.ranks, plan.topology, registered) == (self.gpus, "switch", True)

        def proof(self, setting):
            if setting.library == "nccl_zero_cta":
                raise C3Error("nccl: windows failed")
            return path.Proof("AllGather x2 of 24 blocks", 24)

    monkeypatch.setattr(nccl_library, "load_library", lambda: "library")
    monkeypatch.setattr(nccl_library, "version_of", lambda library: 22809)
    monkeypatch.setattr(rig, "Rig", Rig)
    assert answer(nvidia_probe.by_nccl("1")).facts == ({"kind": "nccl", "version": "2.28.9"},)
    ran = answer(nvidia_probe.by_nccl("2")).of("ran")
    assert [(fact["variant"], fact["blocks"], fact["why_not"]) for fact in ran] == [
        ("nccl", 24, ""), ("nccl_zero_cta", None, "nccl: windows failed"),
    ]  # fmt: skip


def test_the_profiler_is_looked_for_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert answer(nvidia_probe.by_counters()).one("counters")["profiler"] is None
    (tmp_path / "ncu").write_text("#!/bin/sh\n")
    (tmp_path / "ncu").chmod(0o755)
    assert answer(nvidia_probe.by_counters()).one("counters")["profiler"] == str(tmp_path / "ncu")


@pytest.mark.parametrize("probe", ["by_nvml", "by_cuda"])
def test_without_a_gpu_each_real_probe_ends_with_a_sentence(probe):
    """On a machine without one, in a process of its own as ``c3 doctor`` does it."""
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"}
    found = ask(f"c3lib.doctor.nvidia_probe:{probe}", limit_s=100, environment=hidden)
    if probe == "by_nvml" and not found.failure:  # NVML heeds no such variable
        assert found.one("driver")["gpus"] > 0
        return
    assert found.failure
    assert "\n" not in found.failure
    assert "Traceback" not in found.failure
