"""Probes of NVIDIA's driver, its GPUs and NCCL; each runs in a process of its own (:mod:`c3lib.doctor.ask`)."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Any

from c3lib.errors import C3Error

SHARD_NBYTES = 1 << 20
WAIT_S = 0.5
"""How long a copy of 1 MiB may take while every SM is held: thousands of times what it needs."""

Said = Iterator[dict[str, Any] | str]


def by_nvml() -> Said:
    """The driver and every GPU as NVML tells them; what it does not tell is None."""
    import pynvml as nvml

    nvml.nvmlInit()

    def told(call: Callable, *arguments: Any) -> Any:
        try:
            value = call(*arguments)
        except nvml.NVMLError:
            return None
        return value.decode() if isinstance(value, bytes) else value

    count, cuda = nvml.nvmlDeviceGetCount(), told(nvml.nvmlSystemGetCudaDriverVersion)
    yield {"kind": "driver", "version": told(nvml.nvmlSystemGetDriverVersion), "cuda": cuda, "gpus": count}
    for index in range(count):
        yield f"asking NVML about GPU {index}"
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        memory, mig = told(nvml.nvmlDeviceGetMemoryInfo, gpu), told(nvml.nvmlDeviceGetMigMode, gpu)
        links = [told(nvml.nvmlDeviceGetNvLinkState, gpu, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS)]
        running = told(nvml.nvmlDeviceGetComputeRunningProcesses, gpu)
        counter = told(nvml.nvmlDeviceGetFieldValues, gpu, [(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF)])
        yield {
            "kind": "gpu",
            "index": index,
            "name": told(nvml.nvmlDeviceGetName, gpu),
            "memory_nbytes": memory and int(memory.total),
            "programs": None if running is None else len(running),
            "mig": None if mig is None else bool(mig[0]),
            "nvlinks": sum(state == 1 for state in links),
            "pcie_generation": told(nvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu),
            "pcie_width": told(nvml.nvmlDeviceGetCurrPcieLinkWidth, gpu),
            "link_counters": bool(counter) and counter[0].nvmlReturn == 0,
            "energy": told(nvml.nvmlDeviceGetTotalEnergyConsumption, gpu) is not None,
        }


def by_cuda() -> Said:
    """The GPUs that torch sees, which of them can be opened and reach which, and which copies need no SM."""
    yield "importing torch"
    from c3lib.cuda.device import open_device, require_gpu

    require_gpu()
    import torch

    yield {"kind": "torch", "version": torch.__version__, "cuda": torch.version.cuda}
    cudas = []
    for index in range(torch.cuda.device_count()):
        yield f"opening GPU {index}"
        seen = torch.cuda.get_device_properties(index)
        fact = {"kind": "seen", "index": index, "name": seen.name, "sms": seen.multi_processor_count}
        fact |= {"memory_nbytes": seen.total_memory, "capability": f"{seen.major}.{seen.minor}"}
        try:
            cudas.append(open_device(index))
            yield {**fact, "copy_engines": cudas[-1].copy_engines, "why_not": ""}
        except C3Error as error:
            yield {**fact, "copy_engines": None, "why_not": str(error)}
    for cuda in cudas:
        yield from _to_host(cuda)
    for one, other in permutations(cudas, 2):
        yield from _to_peer(one, other)


def _to_host(cuda: Any) -> Said:
    near, far = _bytes(cuda), cuda.torch.zeros(SHARD_NBYTES, dtype=cuda.torch.uint8, pin_memory=True)
    yield from _proved([cuda], near, far, f"host to GPU {cuda.index}")
    yield from _proved([cuda], far, near, f"GPU {cuda.index} to host")


def _to_peer(one: Any, other: Any) -> Said:
    from c3lib.cuda.device import enable_peers

    what = f"GPU {one.index} to GPU {other.index}"
    try:
        enable_peers(one, [other])
    except C3Error as error:
        yield {"kind": "copied", "what": what, "peers": True, "engine": None, "why_not": str(error)}
        return
    yield from _proved([one, other], _bytes(other), _bytes(one), what, peers=True)


def _bytes(cuda: Any) -> Any:
    return cuda.torch.zeros(SHARD_NBYTES, dtype=cuda.torch.uint8, device=f"cuda:{cuda.index}")


def _proved(cudas: list[Any], target: Any, source: Any, what: str, *, peers: bool = False) -> Said:
    """One copy, first with the SMs free and then with all of them held; the bytes must have arrived both times."""
    from c3lib.cuda.device import checked
    from c3lib.cuda.path import ends_while_sms_are_held
    from c3lib.cuda.streams import new_stream

    first = cudas[0]
    yield f"copying from {what}"

    def enqueue(streams: Any) -> None:
        copied = first.driver.cuMemcpyAsync(target.data_ptr(), source.data_ptr(), SHARD_NBYTES, int(streams[0].handle))
        checked(first, copied, f"a copy from {what}")

    def filled(value: int) -> None:
        source.fill_(value)
        target.zero_()
        for cuda in cudas:
            cuda.torch.cuda.synchronize(cuda.index)

    def arrived(value: int) -> bool:
        return bool((target == value).all())

    fact = {"kind": "copied", "what": what, "peers": peers, "engine": None, "why_not": ""}
    try:
        filled(85)
        stream = new_stream(first)
        with first.current():
            enqueue([stream])
        stream.sync()
        right = arrived(85)
        filled(170)
        with first.current():
            ended = ends_while_sms_are_held(cudas, enqueue, WAIT_S)
        right = right and arrived(170)
        wrong = "" if right else f"bytes of a copy from {what} did not arrive"
        yield {**fact, "engine": ended, "why_not": wrong}
    except C3Error as error:
        yield {**fact, "why_not": str(error)}


def by_nccl(gpus: str) -> Said:
    """NCCL's version; between several GPUs also what an all-gather runs on, by NCCL's choice and with zero CTAs."""
    yield "loading NCCL"
    from c3lib.cuda.nccl_library import load_library, version_of, version_text

    yield {"kind": "nccl", "version": version_text(version_of(load_library()))}
    if int(gpus) < 2:
        return
    from c3lib.cuda.rig import Rig
    from c3lib.cuda.setting import Setting
    from c3lib.transfer.builders import build_plan

    yield "opening the GPUs for NCCL"
    rig = Rig(int(gpus))
    rig.load(plan=build_plan("all-gather", int(gpus) * SHARD_NBYTES, int(gpus), "switch"), registered=True)
    for variant in ("nccl", "nccl_zero_cta"):
        yield f"running an all-gather by {variant}"
        fact = {"kind": "ran", "variant": variant, "blocks": None, "path": "", "why_not": ""}
        try:
            proof = rig.proof(Setting(library=variant))
            yield {**fact, "blocks": proof.blocks, "path": proof.path}
        except C3Error as error:
            yield {**fact, "why_not": str(error)}


def by_counters() -> Said:
    """NVIDIA's profiler, and whether counters are for root only."""
    profiler, told = shutil.which("ncu"), ""
    with suppress(OSError):
        told = Path("/proc/driver/nvidia/params").read_text()
    admin_only = re.search(r"^RmProfilingAdminOnly: (\d)", told, re.M)
    fact = {"kind": "counters", "profiler": profiler, "root": os.geteuid() == 0}
    yield {**fact, "admin_only": None if admin_only is None else admin_only[1] == "1"}
