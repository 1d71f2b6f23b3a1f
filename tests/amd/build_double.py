"""Compile our double of AMD's library against AMD's header; :exc:`NotObtained` where the header or gcc is lacking."""

from __future__ import annotations

from pathlib import Path

from build_model import compiled
from get_runtime import header_folder, runtime_root

NAME = "libhsa-runtime64.so.1"
SOURCES = Path(__file__).with_name("double")
FLAGS = ("-fvisibility=hidden", f"-Wl,-soname,{NAME}")


def double(release: int | None = None) -> Path:
    """The double; ``release`` is the one of ROCm that it stands for: 5 (no engines to choose), 6 (none preferred)."""
    flags = [*FLAGS, *([f"-DRELEASE={release}", "-Wno-unused-function"] if release else [])]
    return compiled(NAME, SOURCES, [header_folder(runtime_root())], flags)
