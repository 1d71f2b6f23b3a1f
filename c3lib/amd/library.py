"""The library itself: found, loaded, declared from the table; its status codes become sentences."""

from __future__ import annotations

import ctypes
import os
from ctypes.util import find_library
from pathlib import Path
from typing import Any, Callable

from c3lib.amd import table
from c3lib.amd.table import FUNCTIONS, HSA_STATUS_SUCCESS
from c3lib.errors import C3Error

NAME = "libhsa-runtime64.so.1"
INSTALL = "install ROCm 6.1 or newer (AMD's packages, or Debian 13's libhsa-runtime64-1)"

DOUBLE_MARK = "c3double_reset"
"""A function that only the tests' double of the library has: what it says is no measurement."""


class Library:
    """The loaded library: its functions as attributes, under the header's names and with the table's types.

    ``missing`` names optional functions that it does not have, each with what is done without. Calling a function
    gives its raw status; :meth:`check` turns one into an exception.

    Raises:
        C3Error: it cannot be loaded, or lacks a function without which nothing can be done.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path, self._handle = _load(path)
        lacking = [name for name in FUNCTIONS if not hasattr(self._handle, name)]
        if needed := [name for name in lacking if not FUNCTIONS[name].without]:
            raise C3Error(
                f"amd: {self.path} is too old or not AMD's library: it has no {', '.join(needed)}; "
                f"{INSTALL}, or name another library"
            )
        self.missing = {name: FUNCTIONS[name].without for name in lacking}
        self.is_double = hasattr(self._handle, DOUBLE_MARK)
        for name, function in FUNCTIONS.items():
            if name not in self.missing:
                call = getattr(self._handle, name)
                call.restype, call.argtypes = function.result, list(function.parameters.values())
                setattr(self, name, call)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in FUNCTIONS:
            raise C3Error(f"amd: {self.path} has no {name}: {FUNCTIONS[name].without}")
        raise AttributeError(f"{name} is not in the table of AMD's functions")

    def check(self, status: int, what: str) -> None:
        """Raises :class:`C3Error` with AMD's own text, unless ``status`` is success."""
        if status != HSA_STATUS_SUCCESS:
            raise C3Error(f"amd: {what} failed: {self.text(status)}")

    def text(self, status: int) -> str:
        """What the library says of a status: its name, number and AMD's words."""
        said = ctypes.c_char_p()
        known = self._handle.hsa_status_string(status & 0xFFFFFFFF, ctypes.byref(said)) == HSA_STATUS_SUCCESS
        words = said.value.decode(errors="replace") if known and said.value else "a status it has no text for"
        return f"{words.rstrip('. ')} (status {status & 0xFFFFFFFF:#x})"


def _load(path: str | Path | None) -> tuple[str, ctypes.CDLL]:
    tried = []
    for candidate in [str(path)] if path is not None else candidates():
        try:
            return candidate, ctypes.CDLL(candidate)
        except OSError as error:
            tried.append(f"{candidate} ({error})" if Path(candidate).exists() else candidate)
    raise C3Error(f"amd: no usable {NAME}, tried {', '.join(tried)}; {INSTALL}")


def candidates() -> list[str]:
    """Where the library is looked for, in order.

    First of all the copy that this process has already (PyTorch brings its own): two of them in one process would
    share the driver's state without knowing of each other. Then what the system's loader finds, which
    ``LD_LIBRARY_PATH`` changes; then ROCm's folder.
    """
    found = [loaded] if (loaded := already_loaded()) else []
    folders = [os.environ[name] for name in ("ROCM_PATH", "ROCM_HOME") if os.environ.get(name)] + ["/opt/rocm"]
    if find_library("hsa-runtime64") is None:
        found += [str(Path(folder, "lib", NAME)) for folder in folders if Path(folder, "lib", NAME).exists()]
    return [*found, NAME]


def already_loaded(stem: str = "libhsa-runtime64") -> str | None:
    """The path of the library that this process has loaded, if it has; ``stem``: how its file's name begins."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = (line.split(maxsplit=5)[5] for line in lines if f"/{stem}" in line)
    return next(paths, None)


def enum_name(value: int, prefix: str) -> str:
    """The header's name of a value, among those of the table that begin with ``prefix``; else the number."""
    names = (name for name, number in table.CONSTANTS.items() if number == value and name.startswith(prefix))
    return next(names, f"{value:#x}")
