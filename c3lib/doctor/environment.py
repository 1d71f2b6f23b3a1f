"""Environment variables that change which path bytes take, or when things run: what each does, and which are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from c3lib.doctor.finding import Line


@dataclass(frozen=True)
class Variable:
    """What a variable does; with one of the values ``wrong`` nothing that is measured would hold, for ``because``."""

    does: str
    wrong: tuple[str, ...] = ()
    because: str = ""


_SERIAL = "nothing would overlap"
_NOT_SDMA = "copies would run on compute units, and c3lib refuses them"

NVIDIA = {
    "CUDA_VISIBLE_DEVICES": Variable("which GPUs are seen, and their order", ("", "-1"), "no GPU is seen"),
    "CUDA_DEVICE_ORDER": Variable("how GPUs are numbered"),
    "CUDA_DEVICE_MAX_CONNECTIONS": Variable(
        "hardware queues; c3lib sets 32 where it is not set", ("1", "2", "4"), "streams would wait for one another"
    ),
    "CUDA_LAUNCH_BLOCKING": Variable("1 makes every launch wait for its end", ("1",), _SERIAL),
    "CUDA_MPS_PIPE_DIRECTORY": Variable("work may go through MPS and share the GPU with other programs"),
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": Variable("a share of the SMs only"),
    "CUDA_MODULE_LOADING": Variable("when kernels are loaded"),
    "CUBLAS_WORKSPACE_CONFIG": Variable("which GEMM kernels cuBLAS may choose"),
    "NVIDIA_TF32_OVERRIDE": Variable("precision of fp32 GEMMs"),
    "NCCL_CTA_POLICY": Variable("1 few thread blocks, 2 none (copy engines) for every communicator"),
    "NCCL_CGA_CLUSTER_SIZE": Variable("thread blocks that start together; 0: singly, which finds room beside a GEMM"),
    "NCCL_NVLS_ENABLE": Variable("NVLink multicast; c3lib sets 0 where it is not set"),
    "NCCL_MIN_CTAS": Variable("least thread blocks of a collective"),
    "NCCL_MAX_CTAS": Variable("most thread blocks of a collective"),
    "NCCL_P2P_DISABLE": Variable("1 takes the way through host memory", ("1",), "NCCL would not use the links"),
    "NCCL_P2P_LEVEL": Variable("between which GPUs NCCL goes directly"),
    "NCCL_P2P_USE_CUDA_MEMCPY": Variable("1 has NCCL copy by copy engine and wait by kernel"),
    "NCCL_WIN_ENABLE": Variable("0 forbids the windows that zero CTAs need", ("0",), "zero CTAs would not run"),
    "NCCL_CUMEM_ENABLE": Variable("0 forbids the memory that windows need", ("0",), "zero CTAs would not run"),
    "NCCL_ALGO": Variable("which algorithms NCCL may use"),
    "NCCL_PROTO": Variable("which protocols NCCL may use"),
    "PYTORCH_CUDA_ALLOC_CONF": Variable(
        "how torch cuts memory; expandable_segments cannot be shared between processes"
    ),
    "PYTORCH_ALLOC_CONF": Variable("as PYTORCH_CUDA_ALLOC_CONF"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Variable("1 makes every allocation wait for the GPU", ("1",), _SERIAL),
}

AMD = {
    "HSA_ENABLE_SDMA": Variable("0 switches the SDMA engines off", ("0",), _NOT_SDMA),
    "HSA_ENABLE_PEER_SDMA": Variable("0 switches them off between GPUs", ("0",), _NOT_SDMA),
    "HSA_ENABLE_SDMA_GANG": Variable("several engines may share one copy"),
    "HSA_ENABLE_SDMA_RECOMMENDED_ENG": Variable("whether the kernel driver's choice of engine is followed"),
    "HSA_REV_COPY_DIR": Variable("which GPU of a pair does the copying"),
    "HSA_ENABLE_SDMA_COPY_SIZE_OVERRIDE": Variable("how copies are cut into packets"),
    "HSA_FORCE_SDMA_SIZE": Variable("from which size engines are used"),
    "HSA_SDMA_ROUND_ROBIN": Variable("how engines are chosen"),
    "HSA_CU_MASK": Variable("compute units of every queue of the process, below any mask of a stream"),
    "ROC_GLOBAL_CU_MASK": Variable("compute units of every HIP stream"),
    "ROC_P2P_SDMA_SIZE": Variable("KiB up to which HIP copies to a peer by a kernel"),
    "ROCR_VISIBLE_DEVICES": Variable("which GPUs the runtime shows, and their order"),
    "HIP_VISIBLE_DEVICES": Variable("which of those HIP shows, and their order"),
    "GPU_MAX_HW_QUEUES": Variable(
        "hardware queues that HIP streams share", ("1",), "streams would wait for one another"
    ),
    "HIP_LAUNCH_BLOCKING": Variable("1 makes every launch wait for its end", ("1",), _SERIAL),
    "AMD_SERIALIZE_KERNEL": Variable("kernels wait for one another", ("1", "2", "3"), _SERIAL),
    "AMD_SERIALIZE_COPY": Variable("copies wait for one another", ("1", "2", "3"), _SERIAL),
    "HSA_OVERRIDE_GFX_VERSION": Variable("the GPU is taken for another"),
    "NCCL_CTA_POLICY": Variable("2: RCCL on copy engines, where it can"),
    "NCCL_MIN_NCHANNELS": Variable("least thread blocks of RCCL"),
    "NCCL_MAX_NCHANNELS": Variable("most thread blocks of RCCL"),
    "NCCL_P2P_DISABLE": Variable("1 takes the way through host memory", ("1",), "RCCL would not use the links"),
}

_KNOWN = {"nvidia": NVIDIA, "amd": AMD}
_PREFIXES = {"nvidia": ("NCCL_", "TORCH_NCCL_"), "amd": ("NCCL_", "RCCL_", "TORCH_NCCL_", "HSA_", "HSA_SDMA_")}


def lines(vendor: str, environment: Mapping[str, str]) -> list[Line]:
    """One line for each variable that is set; one in all where none is. ``vendor`` "" takes both vendors' lists."""
    vendors = [vendor] if vendor in _KNOWN else list(_KNOWN)
    known = {name: what for each in reversed(vendors) for name, what in _KNOWN[each].items()}
    prefixes = tuple({prefix for each in vendors for prefix in _PREFIXES[each]})
    found = []
    for name, value in sorted(environment.items()):
        if name in known:
            what = known[name]
            bad = value.strip() in what.wrong
            found.append(Line(name, "no" if bad else "note", f"{name}={value}: {what.because if bad else what.does}"))
        elif name.startswith(prefixes):
            found.append(Line(name, "note", f"{name}={value}: read by the vendor's library"))
    return found or [Line("environment", "ok", f"none of the {len(known)} variables that change the path is set")]


def refused(vendor: str, environment: Mapping[str, str]) -> str:
    """Why nothing could be measured with these variables; empty if it could."""
    return "; ".join(line.says for line in lines(vendor, environment) if line.state == "no")
