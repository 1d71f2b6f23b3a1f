"""All that is used of AMD's HSA library: functions, structs and constants, under the names of its header.

This is the one table. The runtime declares its calls from it, and ``tests/amd/test_l0_abi.py`` compares it with AMD's
header: arity, parameter names, widths, signs, pointers, struct layout and every constant. A name that is wrong here is
found there, on any machine.
"""

from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_char_p, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from typing import Any, Mapping

# --- structs: a handle is one, passed by value, so that ctypes refuses a plain number in its place ---


class hsa_agent_t(Structure):
    _fields_ = (("handle", c_uint64),)


class hsa_signal_t(Structure):
    _fields_ = (("handle", c_uint64),)


class hsa_amd_memory_pool_t(Structure):
    _fields_ = (("handle", c_uint64),)


class hsa_amd_profiling_async_copy_time_t(Structure):
    _fields_ = (("start", c_uint64), ("end", c_uint64))


class hsa_amd_memory_pool_link_info_t(Structure):
    _fields_ = (
        ("min_latency", c_uint32),
        ("max_latency", c_uint32),
        ("min_bandwidth", c_uint32),
        ("max_bandwidth", c_uint32),
        ("atomic_support_32bit", c_bool),
        ("atomic_support_64bit", c_bool),
        ("coherent_support", c_bool),
        ("link_type", c_uint32),
        ("numa_distance", c_uint32),
    )


STRUCTS: tuple[type[Structure], ...] = (
    hsa_agent_t,
    hsa_signal_t,
    hsa_amd_memory_pool_t,
    hsa_amd_profiling_async_copy_time_t,
    hsa_amd_memory_pool_link_info_t,
)

# --- constants ---

HSA_STATUS_SUCCESS = 0x0
HSA_STATUS_INFO_BREAK = 0x1
HSA_STATUS_ERROR = 0x1000
HSA_STATUS_ERROR_INVALID_ARGUMENT = 0x1001
HSA_STATUS_ERROR_INVALID_ALLOCATION = 0x1003
HSA_STATUS_ERROR_INVALID_AGENT = 0x1004
HSA_STATUS_ERROR_INVALID_SIGNAL = 0x1006
HSA_STATUS_ERROR_OUT_OF_RESOURCES = 0x1008
HSA_STATUS_ERROR_NOT_INITIALIZED = 0x100B
HSA_STATUS_ERROR_INVALID_MEMORY_POOL = 40
HSA_STATUS_ERROR_MEMORY_FAULT = 43

HSA_SYSTEM_INFO_VERSION_MAJOR = 0
HSA_SYSTEM_INFO_VERSION_MINOR = 1
HSA_SYSTEM_INFO_TIMESTAMP = 2
HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY = 3
HSA_AMD_SYSTEM_INFO_BUILD_VERSION = 0x200
HSA_AMD_SYSTEM_INFO_EXT_VERSION_MAJOR = 0x207
HSA_AMD_SYSTEM_INFO_EXT_VERSION_MINOR = 0x208

HSA_DEVICE_TYPE_CPU = 0
HSA_DEVICE_TYPE_GPU = 1

HSA_AGENT_INFO_NAME = 0
HSA_AGENT_INFO_NODE = 16
HSA_AGENT_INFO_DEVICE = 17
HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT = 0xA002
HSA_AMD_AGENT_INFO_BDFID = 0xA006
HSA_AMD_AGENT_INFO_PRODUCT_NAME = 0xA009
HSA_AMD_AGENT_INFO_DOMAIN = 0xA00F
HSA_AMD_AGENT_INFO_NUM_SDMA_ENG = 0xA10A
HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG = 0xA10B
HSA_AMD_AGENT_INFO_NUM_XCC = 0xA111

HSA_AMD_SEGMENT_GLOBAL = 0
HSA_AMD_MEMORY_POOL_INFO_SEGMENT = 0
HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS = 1
HSA_AMD_MEMORY_POOL_INFO_SIZE = 2
HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED = 5
HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT = 1
HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED = 2
HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED = 4

HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS = 0
HSA_AMD_AGENT_MEMORY_POOL_INFO_NUM_LINK_HOPS = 1
HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO = 2
HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED = 0
HSA_AMD_LINK_INFO_TYPE_PCIE = 2
HSA_AMD_LINK_INFO_TYPE_XGMI = 4

HSA_SIGNAL_CONDITION_LT = 2
HSA_WAIT_STATE_BLOCKED = 0
HSA_WAIT_STATE_ACTIVE = 1

HSA_AMD_SDMA_ENGINE_0 = 0x1
HSA_AMD_SDMA_ENGINE_15 = 0x8000

CONSTANTS: dict[str, int] = {name: value for name, value in globals().items() if name.startswith("HSA_")}

# --- functions ---

hsa_status_t = c_uint32  # enums of the header are unsigned and of 32 bits
hsa_signal_value_t = c_int64

AGENT_CALLBACK = CFUNCTYPE(hsa_status_t, hsa_agent_t, c_void_p)
POOL_CALLBACK = CFUNCTYPE(hsa_status_t, hsa_amd_memory_pool_t, c_void_p)


@dataclass(frozen=True)
class Function:
    """A function of the library: what it returns, and its parameters by the header's names, in order.

    ``without`` says what is done where it is missing; an empty one means that nothing can be done.
    """

    result: Any
    parameters: Mapping[str, Any]
    without: str = ""


def _status(without: str = "", /, **parameters: Any) -> Function:
    return Function(hsa_status_t, parameters, without)


_COPY = {
    "dst": c_void_p,
    "dst_agent": hsa_agent_t,
    "src": c_void_p,
    "src_agent": hsa_agent_t,
    "size": c_size_t,
    "num_dep_signals": c_uint32,
    "dep_signals": POINTER(hsa_signal_t),
    "completion_signal": hsa_signal_t,
}

FUNCTIONS: dict[str, Function] = {
    "hsa_init": _status(),
    "hsa_shut_down": _status(),
    "hsa_status_string": _status(status=hsa_status_t, status_string=POINTER(c_char_p)),
    "hsa_system_get_info": _status(attribute=c_uint32, value=c_void_p),
    "hsa_iterate_agents": _status(callback=AGENT_CALLBACK, data=c_void_p),
    "hsa_agent_get_info": _status(agent=hsa_agent_t, attribute=c_uint32, value=c_void_p),
    "hsa_amd_agent_iterate_memory_pools": _status(agent=hsa_agent_t, callback=POOL_CALLBACK, data=c_void_p),
    "hsa_amd_memory_pool_get_info": _status(memory_pool=hsa_amd_memory_pool_t, attribute=c_uint32, value=c_void_p),
    "hsa_amd_agent_memory_pool_get_info": _status(
        agent=hsa_agent_t, memory_pool=hsa_amd_memory_pool_t, attribute=c_uint32, value=c_void_p
    ),
    "hsa_amd_memory_pool_allocate": _status(
        memory_pool=hsa_amd_memory_pool_t, size=c_size_t, flags=c_uint32, ptr=POINTER(c_void_p)
    ),
    "hsa_amd_memory_pool_free": _status(ptr=c_void_p),
    "hsa_amd_agents_allow_access": _status(
        num_agents=c_uint32, agents=POINTER(hsa_agent_t), flags=POINTER(c_uint32), ptr=c_void_p
    ),
    "hsa_signal_create": _status(
        initial_value=hsa_signal_value_t,
        num_consumers=c_uint32,
        consumers=POINTER(hsa_agent_t),
        signal=POINTER(hsa_signal_t),
    ),
    "hsa_signal_destroy": _status(signal=hsa_signal_t),
    "hsa_signal_load_scacquire": Function(hsa_signal_value_t, {"signal": hsa_signal_t}),
    "hsa_signal_store_screlease": Function(None, {"signal": hsa_signal_t, "value": hsa_signal_value_t}),
    "hsa_signal_wait_scacquire": Function(
        hsa_signal_value_t,
        {
            "signal": hsa_signal_t,
            "condition": c_uint32,
            "compare_value": hsa_signal_value_t,
            "timeout_hint": c_uint64,
            "wait_state_hint": c_uint32,
        },
    ),
    "hsa_amd_memory_async_copy_on_engine": _status(**_COPY, engine_id=c_uint32, force_copy_on_sdma=c_bool),
    "hsa_amd_memory_copy_engine_status": _status(
        dst_agent=hsa_agent_t, src_agent=hsa_agent_t, engine_ids_mask=POINTER(c_uint32)
    ),
    "hsa_amd_memory_get_preferred_copy_engine": _status(
        "engines are chosen from those that are idle, one for each peer",
        dst_agent=hsa_agent_t,
        src_agent=hsa_agent_t,
        recommended_ids_mask=POINTER(c_uint32),
    ),
    "hsa_amd_profiling_async_copy_enable": _status(enable=c_bool),
    "hsa_amd_profiling_get_async_copy_time": _status(
        signal=hsa_signal_t, time=POINTER(hsa_amd_profiling_async_copy_time_t)
    ),
}


@dataclass(frozen=True)
class Table:
    """The table as a value, so that a test can seed a mistake in a copy of it."""

    functions: Mapping[str, Function] = field(default_factory=lambda: FUNCTIONS)
    structs: tuple[type[ctypes.Structure], ...] = STRUCTS
    constants: Mapping[str, int] = field(default_factory=lambda: CONSTANTS)
