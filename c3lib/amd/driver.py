"""The kernel's side, as far as a process can see it: the device file, its version, the environment, who stands between.

Whatever runs over a stand-in for the driver is no measurement, so this is also where that is found out.
"""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path
from typing import Mapping, MutableMapping

from c3lib.errors import C3Error

DEVICE = Path("/dev/kfd")

DISABLING = {"HSA_ENABLE_SDMA": "all copies", "HSA_ENABLE_PEER_SDMA": "copies between GPUs"}
"""Variables that, when 0, turn engines off without a word: kernels on compute units then do what they name."""

QUEUES_WAIT = "GPU_STREAMOPS_CP_WAIT"
"""Variable that has HIP's streams wait by a packet in their queue. Without it HIP launches a kernel that polls on a
compute unit until the gate opens, which takes from what is measured."""

RECORDED = (
    *DISABLING,
    "HSA_ENABLE_SDMA_GANG",
    "HSA_ENABLE_SDMA_RECOMMENDED_ENG",
    "HSA_REV_COPY_DIR",
    "HSA_ENABLE_SDMA_COPY_SIZE_OVERRIDE",
    "HSA_FORCE_SDMA_SIZE",
    "HSA_SDMA_ROUND_ROBIN",
    "HSA_CU_MASK",
    "ROC_GLOBAL_CU_MASK",
    "ROC_P2P_SDMA_SIZE",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_MAX_HW_QUEUES",
    QUEUES_WAIT,
)
"""Variables that change which path a copy takes or what a GPU is; rows of data keep those that are set."""

_INTERPOSED = ("open", "open64", "openat", "openat64", "ioctl", "mmap", "mmap64")
"""Calls by which AMD's library reaches the driver, and which a preloaded stand-in for it has to answer itself."""

_MODEL = "HSA_MODEL_LIB"
"""Variable by which ROCm 7's own library is told to use a model of the driver."""

_GET_VERSION = 0x80084B01  # AMDKFD_IOC_GET_VERSION of linux/kfd_ioctl.h: two uint32, major and minor


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of :data:`RECORDED` that are set, by name."""
    variables = os.environ if variables is None else variables
    return {name: variables[name] for name in RECORDED if name in variables}


def require_engines(variables: Mapping[str, str] | None = None) -> None:
    """Raises :class:`C3Error` when the environment turns copy engines off: copies would succeed, by kernels."""
    for name, what in DISABLING.items():
        if environment(variables).get(name, "").strip() == "0":
            raise C3Error(f"amd: {name}=0 has {what} done by kernels on compute units, not by SDMA engines; unset it")


def have_queues_wait(hip_has_started: bool, variables: MutableMapping[str, str] | None = None) -> None:
    """Set :data:`QUEUES_WAIT`, which HIP reads once, when it starts.

    Raises:
        C3Error: it is set to something else than 1, or HIP has started without it.
    """
    variables = os.environ if variables is None else variables
    value = variables.get(QUEUES_WAIT)
    if value is not None and value.strip() != "1":
        raise C3Error(
            f"amd: {QUEUES_WAIT}={value} has HIP's streams wait by kernels on compute units; unset it, or set it to 1"
        )
    if value is None and hip_has_started:
        raise C3Error(
            f"amd: HIP was started before {QUEUES_WAIT} was set, so its streams wait by kernels on compute units; "
            "export it as 1, or open backend hip before torch uses a GPU"
        )
    variables[QUEUES_WAIT] = "1"


def why_no_driver() -> str:
    """Why this process cannot use the AMD driver: one sentence, empty where it can."""
    if not DEVICE.exists():
        return f"there is no {DEVICE}: no AMD GPU, its driver (amdgpu) is not loaded, or a container hides it"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return (
            f"no permission to open {DEVICE}: add this user to its group (render; on some systems video), log in again"
        )
    return ""


def version() -> tuple[int, int] | None:
    """Major and minor of the driver's interface (KFD), None where it cannot be read."""
    import fcntl

    try:
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        answer = (ctypes.c_uint32 * 2)()
        fcntl.ioctl(device, _GET_VERSION, answer)
        return answer[0], answer[1]
    except OSError:
        return None
    finally:
        os.close(device)


def stand_ins() -> list[str]:
    """Why what is seen is not a real driver: one reason each, none where it is."""
    reasons = []
    try:
        is_device = stat.S_ISCHR(DEVICE.stat().st_mode)
    except OSError:
        is_device = False
    if not is_device or str(os.major(DEVICE.stat().st_rdev)) not in _majors():
        reasons.append(f"{DEVICE} is not the device file of the driver kfd")
    reasons += [
        f"{name}() is answered by {where}, not by the C library"
        for name in _INTERPOSED
        if not _is_libc(where := _provider(name))
    ]
    if os.environ.get(_MODEL):
        reasons.append(f"{_MODEL} has AMD's library use a model of the driver")
    return reasons


def _majors() -> set[str]:
    """Major numbers that the kernel gave to a driver called kfd."""
    try:
        lines = [line.split() for line in Path("/proc/devices").read_text().splitlines()]
    except OSError:
        return set()
    return {words[0] for words in lines if len(words) == 2 and words[1] == "kfd"}


class _Symbol(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def _provider(function: str) -> str:
    """Path of the library whose ``function`` this process calls."""
    process = ctypes.CDLL(None)
    dladdr = process.dladdr
    dladdr.argtypes, dladdr.restype = [ctypes.c_void_p, ctypes.POINTER(_Symbol)], ctypes.c_int
    found = _Symbol()
    address = ctypes.cast(getattr(process, function), ctypes.c_void_p)
    return found.file.decode() if dladdr(address, ctypes.byref(found)) and found.file else "nobody knows whom"


def _is_libc(path: str) -> bool:
    return Path(path).name.startswith(("libc.so", "libc-", "libpthread"))
