"""Compile C sources of the AMD layers, the model of the kernel driver among them, with gcc and the system's headers."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from get_runtime import HOME, NotObtained, only_one

SOURCES = Path(__file__).with_name("model")
FLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-shared", "-pthread")
NEEDS = "apt-get install gcc libc6-dev linux-libc-dev"


def gcc() -> str:
    """Path of gcc. Raises :class:`NotObtained` where there is none."""
    compiler = shutil.which("gcc")
    if not compiler:
        raise NotObtained(f"gcc not found; on Debian: {NEEDS}")
    return compiler


def model(flags: Sequence[str] = ()) -> Path:
    """The model as a shared object to preload. Raises :class:`NotObtained` where there is no compiler or header."""
    # kfd_ioctl.h includes a header of libdrm of which it uses no more than the integer types.
    stub = HOME / "stub"
    (stub / "drm").mkdir(parents=True, exist_ok=True)
    (stub / "drm/drm.h").write_text("#include <linux/types.h>\n")
    return compiled("model.so", SOURCES, [stub], [*flags, "-ldl"])


def compiled(name: str, sources: Path, includes: Sequence[Path] = (), flags: Sequence[str] = ()) -> Path:
    """All .c files of a folder as one shared object ``name``, compiled once for each content of the folder."""
    compiler = gcc()
    files = sorted(path for path in sources.iterdir() if path.suffix in (".c", ".h"))
    text = b"".join(path.read_bytes() for path in files) + repr((includes, flags, FLAGS)).encode()
    out = HOME / "compiled" / hashlib.sha256(text).hexdigest()[:12] / name
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        with only_one("compile"):
            fresh = out.with_name(f"{name}.{os.getpid()}")
            units = [str(path) for path in files if path.suffix == ".c"]
            command = [compiler, *FLAGS, *(f"-I{folder}" for folder in includes), *units, "-o", str(fresh), *flags]
            done = subprocess.run(command, capture_output=True, text=True)
            if "No such file or directory" in done.stderr:
                raise NotObtained(f"gcc lacks a header: {done.stderr.splitlines()[0]}; on Debian: {NEEDS}")
            if done.returncode:
                raise RuntimeError(f"gcc could not compile {sources.name}/:\n{done.stderr}")
            fresh.rename(out)
    return out
