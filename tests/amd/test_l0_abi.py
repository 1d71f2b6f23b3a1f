"""L0: the ctypes table agrees with AMD's header, and a comparison that would miss a mistake is itself found out.

Proves names, arity, parameter order, widths, signs, pointers, struct layout and constants; proves nothing of what the
functions do.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Mapping
from ctypes import (
    CDLL,
    CFUNCTYPE,
    POINTER,
    Structure,
    c_int32,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import abi
import pytest

from c3lib.amd import table as t
from c3lib.amd.table import Function, Table

TABLE = Table()
COPY = "hsa_amd_memory_async_copy_on_engine"
STATUS = "hsa_amd_memory_copy_engine_status"


@pytest.fixture(scope="module")
def header(hsa_include: Path) -> abi.Header:
    return abi.read_header(hsa_include)


def test_the_table_agrees_with_the_header(header):
    assert abi.differences(TABLE, header) == []


def test_the_header_is_new_enough_and_lacks_only_what_is_optional(header):
    assert header.extension >= (1, 4)  # the first with copies on chosen engines and their status
    optional = {name for name, function in t.FUNCTIONS.items() if function.without}
    assert abi.absent(TABLE, header) <= optional
    assert len(set(t.FUNCTIONS) & set(header.functions)) >= len(t.FUNCTIONS) - len(optional)


def test_the_table_names_what_it_uses_once():
    assert set(t.CONSTANTS) == {name for name in vars(t) if name.startswith("HSA_")}
    callbacks = [kind for function in t.FUNCTIONS.values() for kind in function.parameters.values()]
    used = {kind for kind in callbacks if isinstance(kind, type) and issubclass(kind, Structure)}
    pointed = {getattr(kind, "_type_", None) for kind in callbacks}
    assert used <= set(t.STRUCTS)
    assert {kind for kind in pointed if isinstance(kind, type) and issubclass(kind, Structure)} <= set(t.STRUCTS)


def test_newer_headers_agree_too(hsa_include):
    """Triton, where it is installed, brings a header that has every function of the table."""
    triton = find_spec("triton")
    folders = [Path(place) / "backends/amd/include" for place in (triton and triton.submodule_search_locations) or ()]
    headers = [abi.read_header(folder) for folder in [hsa_include, *filter(Path.is_dir, folders)]]
    assert [abi.differences(TABLE, header) for header in headers] == [[]] * len(headers)
    assert [abi.absent(TABLE, header) for header in headers if header.extension >= (1, 14)] == [set()] * len(folders)


def exported(library: Path) -> set[str]:
    handle = CDLL(str(library))
    return {name for name in t.FUNCTIONS if hasattr(handle, name)}


def test_the_double_exports_every_function_of_the_table(double):
    assert exported(double) == set(t.FUNCTIONS)


def test_amd_s_library_exports_all_that_is_not_optional(real_runtime):
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(real_runtime.library)], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    assert {name for name, function in t.FUNCTIONS.items() if not function.without} <= names


# --- Seeded mistakes: each is put into a copy of the table, and must be found in one sentence that names it. ---------


def function(name: str, change: Callable[[dict[str, Any]], Mapping[str, Any]], result: Any = ...) -> Table:
    """The table with another parameter list of one function, or another result."""
    old = t.FUNCTIONS[name]
    new = Function(old.result if result is ... else result, change(dict(old.parameters)), old.without)
    return dataclasses.replace(TABLE, functions={**t.FUNCTIONS, name: new})


def retyped(name: str, **types: Any) -> Table:
    assert set(types) <= set(t.FUNCTIONS[name].parameters)
    return function(name, lambda parameters: parameters | types)


def reordered(name: str, *names: str) -> Table:
    assert sorted(names) == sorted(t.FUNCTIONS[name].parameters)
    return function(name, lambda parameters: {key: parameters[key] for key in names})


def constant(name: str, value: int) -> Table:
    assert t.CONSTANTS[name] != value
    return dataclasses.replace(TABLE, constants={**t.CONSTANTS, name: value})


def struct(name: str, *fields: tuple[str, Any], pack: int = 0) -> Table:
    """The table with other fields for one struct."""
    body: dict[str, Any] = {"_pack_": pack, "_layout_": "ms"} if pack else {}
    made = type(Structure)(name, (Structure,), {**body, "_fields_": fields})
    others = tuple(kind for kind in t.STRUCTS if kind.__name__ != name)
    assert len(others) == len(t.STRUCTS) - 1
    return dataclasses.replace(TABLE, structs=(*others, made))


class hsa_queue_t(Structure):
    """A handle of another kind, as wide as an agent's."""

    _fields_ = (("handle", c_uint64),)


def dropped(name: str, parameter: str) -> Table:
    return function(name, lambda p: {key: kind for key, kind in p.items() if key != parameter})


LINK, LINK_FIELDS = "hsa_amd_memory_pool_link_info_t", t.hsa_amd_memory_pool_link_info_t._fields_
TIME = "hsa_amd_profiling_async_copy_time_t"
WAIT = "hsa_signal_wait_scacquire"

MISTAKES: dict[str, tuple[str, Table]] = {
    "width: size of a copy in 32 bits": (COPY, retyped(COPY, size=c_uint32)),
    "width: count of dependencies in 64 bits": (COPY, retyped(COPY, num_dep_signals=c_size_t)),
    "width: the flag in 32 bits": (COPY, retyped(COPY, force_copy_on_sdma=c_int32)),
    "width: what a signal holds": (WAIT, function(WAIT, dict, result=c_int32)),
    "width: the mask behind a pointer": (STATUS, retyped(STATUS, engine_ids_mask=POINTER(c_uint16))),
    "sign: what a signal is compared with": (WAIT, retyped(WAIT, compare_value=c_uint64)),
    "sign: how long a wait may take": (WAIT, retyped(WAIT, timeout_hint=c_int64)),
    "sign: a status": ("hsa_init", function("hsa_init", dict, result=c_int32)),
    "result: nothing instead of a status": ("hsa_init", function("hsa_init", dict, result=None)),
    "order: the two agents": (STATUS, reordered(STATUS, "src_agent", "dst_agent", "engine_ids_mask")),
    "order: the two addresses, alike by type": (
        COPY,
        reordered(
            COPY, "src", "dst_agent", "dst", "src_agent", "size", "num_dep_signals", "dep_signals", "completion_signal",
            "engine_id", "force_copy_on_sdma",
        ),
    ),
    "order: size and flags of an allocation": (
        "hsa_amd_memory_pool_allocate",
        reordered("hsa_amd_memory_pool_allocate", "memory_pool", "flags", "size", "ptr"),
    ),
    "arity: no flag that forces an engine": (COPY, dropped(COPY, "force_copy_on_sdma")),
    "arity: one parameter too many": ("hsa_init", function("hsa_init", lambda _: {"flags": c_uint32})),
    "pointer: an address where the address of one is due": (
        "hsa_amd_memory_pool_allocate",
        retyped("hsa_amd_memory_pool_allocate", ptr=c_void_p),
    ),
    "pointer: one level too many": (STATUS, retyped(STATUS, engine_ids_mask=POINTER(POINTER(c_uint32)))),
    "struct: a handle of another kind": (STATUS, retyped(STATUS, dst_agent=hsa_queue_t)),
    "struct: a number in a handle's place": (COPY, retyped(COPY, completion_signal=c_uint64)),
    "callback: a pointer to the agent": (
        "hsa_iterate_agents",
        retyped("hsa_iterate_agents", callback=CFUNCTYPE(c_uint32, POINTER(t.hsa_agent_t), c_void_p)),
    ),
    "callback: nothing returned": (
        "hsa_iterate_agents",
        retyped("hsa_iterate_agents", callback=CFUNCTYPE(None, t.hsa_agent_t, c_void_p)),
    ),
    "callback: of pools given to agents": (
        "hsa_iterate_agents",
        retyped("hsa_iterate_agents", callback=t.POOL_CALLBACK),
    ),
    "callback: without data": (
        "hsa_amd_agent_iterate_memory_pools",
        retyped(
            "hsa_amd_agent_iterate_memory_pools", callback=CFUNCTYPE(c_uint32, t.hsa_amd_memory_pool_t)
        ),
    ),
    "layout: begin and end in 32 bits": (TIME, struct(TIME, ("start", c_uint32), ("end", c_uint32))),
    "layout: begin and end changed places": (TIME, struct(TIME, ("end", c_uint64), ("start", c_uint64))),
    "layout: a field missing": (LINK, struct(LINK, *LINK_FIELDS[:-1])),
    "layout: no gap before a field": (
        LINK,
        struct(LINK, *LINK_FIELDS, pack=1),
    ),
    "layout: another sign": (
        LINK,
        struct(LINK, ("min_latency", c_int32), *LINK_FIELDS[1:]),
    ),
    "constant: engines of peers": ("NUM_SDMA_XGMI_ENG", constant("HSA_AMD_AGENT_INFO_NUM_SDMA_XGMI_ENG", 0xA10A)),
    "constant: the bit of an engine": ("HSA_AMD_SDMA_ENGINE_15", constant("HSA_AMD_SDMA_ENGINE_15", 15)),
    "constant: less than": ("HSA_SIGNAL_CONDITION_LT", constant("HSA_SIGNAL_CONDITION_LT", 1)),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_seeded_mistake_is_found(header, mistake):
    name, wrong = MISTAKES[mistake]
    found = abi.differences(wrong, header)
    assert len(found) == 1
    assert name in found[0]


@pytest.mark.parametrize("wrong_name", ["function", "struct", "constant"])
def test_a_misspelt_name_is_found(header, wrong_name):
    changed = {
        "function": dataclasses.replace(TABLE, functions={"hsa_amd_agents_alow_access": t.FUNCTIONS["hsa_init"]}),
        "struct": dataclasses.replace(TABLE, structs=(type(Structure)("hsa_agents_t", (Structure,), {}),)),
        "constant": dataclasses.replace(TABLE, constants={"HSA_STATUS_ERROR_INVALID_SINGAL": 0x1006}),
    }[wrong_name]
    assert len(abi.absent(changed, header) - abi.absent(TABLE, header)) == 1


def test_a_header_that_does_not_parse_is_no_agreement(tmp_path):
    (tmp_path / "hsa").mkdir()
    (tmp_path / "hsa" / "hsa.h").write_text("typedef struct hsa_agent_s { uint64_t handle } hsa_agent_t;")
    with pytest.raises(ValueError, match="does not parse"):
        abi.read_header(tmp_path)
