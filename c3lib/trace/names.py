"""What an activity of a GPU is, from its category and its name.

Names are those of NVIDIA's and AMD's libraries, Triton's and torch's kernels, as profilers demangle them. What a name
does not say is not guessed: an unknown kernel is a kernel, RCCL's generic one a collective without a kind.
"""

from __future__ import annotations

import re

CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
"""Categories of a trace, in small letters, that run on a GPU; those without gpu_ are of torch before 1.13."""

GEMM, KERNEL, COLLECTIVE = "gemm", "kernel", "collective"
PEER_COPY, HOST_COPY, LOCAL_COPY, FILL = "peer copy", "host copy", "local copy", "fill"
ROLES = (GEMM, KERNEL, COLLECTIVE, PEER_COPY, HOST_COPY, LOCAL_COPY, FILL)
COMPUTE = (GEMM, KERNEL)
COMMUNICATION = (COLLECTIVE, PEER_COPY)

# Kernels whose names have a GEMM's words in them without being one: attention, convolution, Triton's pointwise and
# reducing kernels (named after the operators around them), the sum over a split K.
_NO_GEMM = re.compile(
    r"flash|fmha|attention|attn|fprop|dgrad|wgrad|conv\d|convolve|cudnn|implicit_gemm"
    r"|^triton_(poi|red|per|for|foreach)_|splitkreduce|postgsu|reduce_kernel|elementwise_kernel",
    re.IGNORECASE,
)
_GEMM = re.compile(
    r"gemm|gemv|cutlass::(device_)?kernel|cutlass_\d|nvjet|(?<![a-z])cijk_|xmma|tensorop|hipblaslt|wvsplitk"
    r"|fused_moe_kernel|^triton_(tem_.*)?(add|baddb|b)?mm|(?<![a-z])matmul|_mm_kernel|^(ampere|volta|turing|sm\d+)_.*mma",
    re.IGNORECASE,
)
# Repetitions have an end: a hostile name must not take time in proportion to its length squared.
_LIBRARY = re.compile(
    r"^(void )?(\w+::)*(nccl\w*kernel|rccl\w*kernel|msccl\w*kernel)"
    r"|cross_device_reduce|(one|two)_?shot_?all_?reduce|multimem_\w{0,40}(all_?reduce|all_?gather|reduce_scatter)"
    r"|all_?reduce\w{0,40}(1|2)_?stage|deep_ep::(inter|intra)node|nvshmem\w{0,40}(put|get|alltoall)",
    re.IGNORECASE,
)
_KINDS = (  # order matters: "all_reduce" holds "reduce"
    ("all-gather", r"all[-_]?gather"),
    ("reduce-scatter", r"reduce[-_]?scatter"),
    ("all-reduce", r"all[-_]?reduce|cross_device_reduce"),
    ("all-to-all", r"all[-_]?to[-_]?all|deep_ep"),
    ("broadcast", r"broadcast"),
    ("send-recv", r"send|recv"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("barrier", r"barrier"),
    ("reduce", r"reduce"),
)
_KIND = [(kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS]

ELEMENT_NBYTES = {
    "bfloat16": 2, "half": 2, "float": 4, "double": 8, "byte": 1, "char": 1, "bool": 1, "short": 2, "int": 4,
    "long": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "float16": 2, "float32": 4, "float64": 8, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
}  # fmt: skip
"""Bytes of an element by the name that torch has for its type, in small letters."""

GEMM_DTYPES = {"bfloat16": "bf16", "half": "fp16", "float": "fp32"} | dict.fromkeys(
    (name for name in ELEMENT_NBYTES if name.startswith("float8")), "fp8"
)
"""What torch calls the elements of a GEMM, and what :class:`c3lib.workload.Gemm` does."""

MATMULS = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::linear": 0,
    "aten::_scaled_mm": 0,
}
"""Operators that launch a GEMM, and which of their inputs is its first factor."""


def role(category: str, name: str) -> str:
    """One of :data:`ROLES`, for a value of :data:`CATEGORIES`."""
    if category == "memset":
        return FILL
    if category == "memcpy":
        return _copy(name)
    if _LIBRARY.search(name):
        return COLLECTIVE
    return GEMM if _GEMM.search(name) and not _NO_GEMM.search(name) else KERNEL


def kind(name: str) -> str:
    """Which collective a kernel's name or the profiler's ``Collective name`` means; empty where it says none."""
    told = name.split("(")[0]
    return next((known for known, pattern in _KIND if pattern.search(told)), "")


def _copy(name: str) -> str:
    """By direction: ``Memcpy PtoP (Device -> Device)`` of CUDA, ``CopyDeviceToHost`` and the like of ROCm."""
    if re.search(r"PtoP|PeerToPeer", name):
        return PEER_COPY
    return HOST_COPY if re.search(r"HtoD|DtoH|HostToDevice|DeviceToHost", name) else LOCAL_COPY
