"""L1: ``c3 doctor`` beside a torch for ROCm: probes look at the libraries that it brings, as ``c3 measure`` does.

The torch is a stand-in that brings our double of AMD's runtime, and a HIP and an RCCL that know little but a version.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from c3lib.doctor import amd
from c3lib.doctor.ask import ask
from c3lib.doctor.finding import Answer

INIT = """
import ctypes, pathlib
for library in sorted((pathlib.Path(__file__).parent / "lib").iterdir()):
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
"""
HIP = """
int hipRuntimeGetVersion(int *version) { *version = 60443484; return 0; }
int hipGetDeviceCount(int *count) { *count = 3; return 0; }
"""
RCCL = """
int ncclGetVersion(int *version) { *version = 22203; return 0; }
const char *ncclGetErrorString(int status) { return "none"; }
const char *ncclGetLastError(void *clique) { return "none"; }
"""
HIP_PYTHON = """
import ctypes, os
library = ctypes.CDLL(os.path.join(os.environ.get("ROCM_PATH", "/nowhere"), "lib", "libamdhip64.so"))

def asked(function):
    found = ctypes.c_int()
    return function(ctypes.byref(found)), found.value

hipRuntimeGetVersion = lambda: asked(library.hipRuntimeGetVersion)
hipGetDeviceCount = lambda: asked(library.hipGetDeviceCount)
"""


@pytest.fixture
def torch(double: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a torch for ROCm, which children import, with ``hip`` of hip-python; no other ROCm is there."""
    folder, hip = tmp_path / "torch", tmp_path / "hip"
    (folder / "lib").mkdir(parents=True)
    hip.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "version.py").write_text("cuda = None\nhip = '6.4.43484'\n")
    (hip / "__init__.py").write_text("")
    (hip / "hip.py").write_text(HIP_PYTHON)
    shutil.copy(double, folder / "lib" / "libhsa-runtime64.so.1")
    for name, text in (("libamdhip64.so", HIP), ("librccl.so.1", RCCL)):
        source = tmp_path / f"{name}.c"
        source.write_text(text)
        out = folder / "lib" / name
        subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", str(source), "-o", str(out)], check=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("C3_DOUBLE_GPUS", "3")
    for name in ("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


def asked(probe: str, *arguments: str) -> Answer:
    answer = ask(f"{amd.PROBES}:{probe}", *arguments, limit_s=60)
    assert answer.failure == ""
    return answer


def test_the_runtime_is_that_of_torch(torch: Path) -> None:
    answer = asked("by_runtime")
    assert answer.one("runtime")["library"] == str(torch / "lib" / "libhsa-runtime64.so.1")
    assert len(answer.of("gpu")) == 3


def test_engines_are_proved_through_the_runtime_of_torch(torch: Path) -> None:
    every = [f"{gpu}:{engine}:{side}" for gpu in range(3) for engine in range(16) for side in ("host", "peer")]
    every.remove("1:4:peer")
    (proof,) = asked("by_engines", *every).of("proof")
    assert (proof["name"], proof["failure"]) == ("1:4:peer", "")


def test_hip_is_that_of_torch(torch: Path) -> None:
    assert asked("by_hip").facts == ({"kind": "hip", "version": 60443484, "gpus": 3},)


def test_rccl_is_that_of_torch(torch: Path) -> None:
    (found,) = asked("by_rccl").facts
    assert (found["version"], found["path"]) == ("2.22.3", str(torch / "lib" / "librccl.so.1"))
    assert found["zero_cta"] == "RCCL 2.22.3 has no policy of zero CTAs; it comes with ROCm 7.12"


@pytest.mark.parametrize("hip", ["None", "'6.4'"])
def test_torch_is_loaded_only_where_it_is_built_for_rocm(torch: Path, hip: str) -> None:
    (torch / "version.py").write_text(
        f"cuda = '13.0'\nhip = {hip}\n" if hip == "None" else f"cuda = None\nhip = {hip}\n"
    )
    (torch / "__init__.py").write_text("raise ImportError('this torch does not load')\n")
    failure = ask(f"{amd.PROBES}:by_rccl", limit_s=60).failure
    assert ("this torch does not load" in failure) == (hip != "None")
