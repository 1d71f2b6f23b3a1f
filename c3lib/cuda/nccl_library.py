"""NCCL's library by ctypes: found, its version checked, every refusal of it told in its own words."""

from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Iterator

from c3lib.errors import C3Error

SONAME = "libnccl.so.2"
OLDEST = 22800
"""NCCL 2.28: the first with zero CTAs, ``ncclAlltoAll`` and all fields of :class:`Config`."""
UNSET = -(2**31)  # NCCL_CONFIG_UNDEF_INT: NCCL chooses
MAGIC = 0xCAFEBEEF
UINT8 = 1  # ncclUint8
SYMMETRIC = 1  # NCCL_WIN_COLL_SYMMETRIC
POLICY_ZERO = 2  # NCCL_CTA_POLICY_ZERO


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``: what the ranks of one clique share."""

    _fields_ = (("internal", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    """``ncclConfig_t`` as of NCCL 2.28. Later ones only add fields: NCCL takes an older size and version as it is."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("netName", ctypes.c_char_p),
        ("splitShare", ctypes.c_int),
        ("trafficClass", ctypes.c_int),
        ("commName", ctypes.c_char_p),
        ("collnetEnable", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("shrinkShare", ctypes.c_int),
        ("nvlsCTAs", ctypes.c_int),
        ("nChannelsPerNetPeer", ctypes.c_int),
        ("nvlinkCentricSched", ctypes.c_int),
    )


def new_config(**chosen: int) -> Config:
    """A config with everything left to NCCL but what is chosen."""
    config = Config(size=ctypes.sizeof(Config), magic=MAGIC, version=OLDEST)
    for name, kind in Config._fields_[3:]:
        if kind is ctypes.c_int:
            setattr(config, name, chosen.pop(name, UNSET))
    if chosen:
        raise C3Error(f"nccl: no number of a communicator's config is called {', '.join(sorted(chosen))}")
    return config


_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_PROTOTYPES: dict[str, tuple] = {
    "ncclGetVersion": (ctypes.POINTER(_INT),),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRankConfig": (ctypes.POINTER(_POINTER), _INT, UniqueId, _INT, ctypes.POINTER(Config)),
    "ncclCommDestroy": (_POINTER,),
    "ncclMemAlloc": (ctypes.POINTER(_POINTER), _SIZE),
    "ncclMemFree": (_POINTER,),
    "ncclCommWindowRegister": (_POINTER, _POINTER, _SIZE, ctypes.POINTER(_POINTER), _INT),
    "ncclCommWindowDeregister": (_POINTER, _POINTER),
    "ncclAllGather": (_POINTER, _POINTER, _SIZE, _INT, _POINTER, _POINTER),
    "ncclAlltoAll": (_POINTER, _POINTER, _SIZE, _INT, _POINTER, _POINTER),
    "ncclSend": (_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclRecv": (_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}


@cache
def load_library() -> Any:
    """NCCL as torch loaded it, else of its wheel, else of the system.

    Raises:
        C3Error: it is nowhere, or older than 2.28.
    """
    # With NVLS NCCL makes multicast objects over all GPUs, which can put a shared host's GPUs out of service.
    # A value that the user set stands. NCCL reads it when the first communicator is made.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    library = declare(_open_library())
    require_version(library)
    return library


def declare(library: Any) -> Any:
    """Tell ctypes the types of the functions that a library has; also of AMD's RCCL, which has the same interface."""
    for name, kind in (("ncclGetErrorString", _INT), ("ncclGetLastError", _POINTER)):
        getattr(library, name).argtypes, getattr(library, name).restype = (kind,), ctypes.c_char_p
    for name, kinds in _PROTOTYPES.items():
        if hasattr(library, name):  # an older one lacks some
            getattr(library, name).argtypes, getattr(library, name).restype = kinds, _INT
    return library


def _open_library() -> Any:
    import torch  # noqa: F401 -- brings its own NCCL: two of them in one process would not know of each other

    tries: list[tuple[str, int]] = [(SONAME, os.RTLD_NOW | os.RTLD_NOLOAD)]
    try:
        wheel = find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # not even a package called nvidia
        wheel = None
    for folder in (wheel and wheel.submodule_search_locations) or ():
        tries.append((str(Path(folder) / "lib" / SONAME), os.RTLD_NOW))
    for name, mode in [*tries, (SONAME, os.RTLD_NOW)]:
        try:
            return ctypes.CDLL(name, mode=mode)
        except OSError:
            continue
    raise C3Error(f"nccl: {SONAME} is neither loaded by torch nor found; install torch for CUDA or nvidia-nccl-cu13")


def version_of(library: Any) -> int:
    """The library's version, 22809 for 2.28.9."""
    found = ctypes.c_int()
    call(library, "reading its version", "ncclGetVersion", ctypes.byref(found))
    return found.value


def version_text(version: int) -> str:
    """22809 as 2.28.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def require_version(library: Any, oldest: int = OLDEST) -> None:
    """Raises :class:`C3Error` for a library older than ``oldest``."""
    version = version_of(library)
    if version < oldest:
        needs = "zero CTAs and ncclAlltoAll need" if oldest == OLDEST else "what is used of it needs"
        brings = ", which torch 2.11 brings" if oldest == OLDEST else ""
        raise C3Error(f"nccl: this is NCCL {version_text(version)}; {needs} at least {version_text(oldest)}{brings}")


def call(library: Any, doing: str, name: str, *arguments: Any) -> None:
    """Call a function of NCCL. Raises :class:`C3Error` with NCCL's own words for any status but success."""
    status = getattr(library, name)(*arguments)
    if status:
        said = library.ncclGetErrorString(status).decode(errors="replace")
        more = (library.ncclGetLastError(None) or b"").decode(errors="replace").strip()
        raise C3Error(f"nccl: {doing} failed in {name}: {said}" + (f" ({more})" if more else ""))


@contextmanager
def group(library: Any, doing: str) -> Iterator[None]:
    """Calls for several ranks as one, which one thread needs: it would wait in the first rank's call for the others.

    The group is ended on an error within it too, or every later call would only be queued.
    """
    call(library, doing, "ncclGroupStart")
    try:
        yield
    except BaseException:
        library.ncclGroupEnd()  # says the error that is under way again
        raise
    call(library, doing, "ncclGroupEnd")
