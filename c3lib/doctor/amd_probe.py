"""Probes of AMD's driver, its GPUs, SDMA engines and libraries; each runs in a process of its own.

See :mod:`c3lib.doctor.ask`.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from c3lib.doctor.packages import torch_vendor
from c3lib.errors import C3Error

WAIT_S = 0.5
"""How long a copy of some bytes may take: thousands of times what it needs."""
XGMI = 11  # HSA_IOLINKTYPE_XGMI: how the driver's topology names a link between GPUs

Said = Iterator[dict[str, Any] | str]


def by_files(root: str = "/") -> Said:
    """Versions, partition modes and the driver's topology, as files below ``root`` tell them."""
    base = Path(root)
    yield {
        "kind": "versions",
        "rocm": _text(base / "opt/rocm/.info/version"),
        "amdgpu": _text(base / "sys/module/amdgpu/version"),
    }
    for card in _sorted(base / "sys/class/drm"):
        if mode := _text(card / "device/current_compute_partition"):
            memory = _text(card / "device/current_memory_partition")
            yield {"kind": "partition", "card": card.name, "compute": mode, "memory": memory}
    for node in _sorted(base / "sys/class/kfd/kfd/topology/nodes"):
        told = _properties(node / "properties")
        if not told.get("simd_count"):
            continue  # a CPU
        links = [_properties(link / "properties") for link in _sorted(node / "io_links")]
        to_peers = [link for link in links if link.get("type") == XGMI]
        yield {
            "kind": "node",
            "node": int(node.name) if node.name.isdigit() else -1,
            "cus": told["simd_count"] // max(1, told.get("simd_per_cu", 1)),
            "xccs": told.get("num_xcc", 0),
            "peer_links": len(to_peers),
            "recommended": sum(link.get("recommended_sdma_engine_id_mask", 0).bit_count() == 1 for link in to_peers),
        }


def _sorted(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir(), key=lambda path: (len(path.name), path.name))
    return []


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""


def _properties(path: Path) -> dict[str, int]:
    words = [line.split() for line in _text(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) == 2 and line[1].isdigit()}


def _torch_first() -> Generator[str, None, Path | None]:
    """Load torch where it is built for AMD's GPUs, and give its folder.

    So does whoever measures: such a torch brings its own copies of AMD's libraries, and those are to be looked at.
    """
    if torch_vendor() != "amd":
        return None
    yield "loading torch"
    import torch

    return Path(torch.__file__).parent


def by_runtime() -> Said:
    """AMD's runtime, its GPUs, and for each pair of neighbours which engines may copy and which is preferred."""
    yield from _torch_first()
    yield "opening AMD's runtime"
    from c3lib.amd import driver
    from c3lib.amd.runtime import open_runtime

    runtime = open_runtime()
    yield {
        "kind": "runtime",
        "library": runtime.library.path,
        "build": runtime.build,
        "extension": ".".join(map(str, runtime.extension)),
        "driver": (kfd := driver.version()) and ".".join(map(str, kfd)),
        "missing": dict(runtime.missing),
        "stand_ins": list(runtime.stand_ins),
    }
    for gpu in runtime.gpus:
        yield {
            "kind": "gpu",
            "index": gpu.index,
            "name": gpu.product or gpu.name,
            "architecture": gpu.name,
            "cus": gpu.cus,
            "xccs": gpu.xccs,
            "memory_nbytes": gpu.memory_nbytes,
            "host_engines": gpu.host_engines,
            "peer_engines": gpu.peer_engines,
        }
    for gpu in runtime.gpus:
        for peer in runtime.gpus:
            if peer != gpu:
                yield f"asking for the engines from {gpu} to {peer}"
                yield {
                    "kind": "pair",
                    "from": gpu.index,
                    "to": peer.index,
                    "accepted": runtime.idle_engines(peer, gpu),
                    "preferred": runtime.preferred_engine(peer, gpu),
                    "link": runtime.link(gpu, peer),
                }


def by_engines(*tried: str) -> Said:
    """Prove every engine of every GPU once, but those that were ``tried`` (``gpu:engine:host`` or ``...:peer``).

    It is said which engine comes next, so that one that ends or blocks the process is known.
    """
    yield from _torch_first()
    from c3lib.amd.engines import prove_engine
    from c3lib.amd.runtime import open_runtime

    runtime = open_runtime()
    for gpu in runtime.gpus:
        peer = runtime.gpus[(gpu.index + 1) % len(runtime.gpus)]
        todo: list[tuple[int, Any, str]] = [(engine, runtime.cpus[0], "host") for engine in range(gpu.host_engines)]
        if peer != gpu:  # a partition without engines of its own for peers uses those that face the host
            numbers = range(gpu.host_engines, gpu.engines) if gpu.peer_engines else range(gpu.host_engines)
            todo += [(engine, peer, "peer") for engine in numbers]
        for engine, target, side in todo:
            name = f"{gpu.index}:{engine}:{side}"
            if name not in tried:
                yield f"proving engine {engine} of GPU {gpu.index}"
                yield {"kind": "trying", "name": name}
                proof = prove_engine(runtime, target, gpu, engine, WAIT_S)
                masks = [proof.before, proof.held, proof.after]
                yield {"kind": "proof", "name": name, "masks": masks, "failure": proof.failure}


def by_hip() -> Said:
    """HIP's version and how many GPUs it sees, by the library that measuring uses."""
    folder = yield from _torch_first()
    from c3lib.amd.hip import require_one_library, torchs_library

    yield "asking HIP"
    try:
        with torchs_library(folder) if folder else nullcontext():
            from hip import hip

            error, version = hip.hipRuntimeGetVersion()
            counted, count = hip.hipGetDeviceCount()
    except RuntimeError as refused:
        why = next(iter(str(refused).splitlines()), "")
        what = "is not found; install ROCm or set ROCM_PATH" if "dlopen" in why else f"does not do as it should: {why}"
        raise C3Error(f"hip: libamdhip64.so {what}") from refused
    for code in (error, counted):
        if int(code) not in (0, 100):  # hipSuccess, hipErrorNoDevice
            raise C3Error(f"hip: asking HIP for its version and GPUs failed: {code}")
    require_one_library()
    yield {"kind": "hip", "version": int(version), "gpus": int(count)}


def by_rccl() -> Said:
    """RCCL's version, where it lies, and why it is not measured without compute units."""
    yield from _torch_first()
    yield "loading RCCL"
    from c3lib.amd.library import already_loaded
    from c3lib.amd.rccl import load_library, zero_cta
    from c3lib.cuda.nccl_library import version_of, version_text

    library = load_library()
    version = version_text(version_of(library))
    path = already_loaded("librccl") or library._name
    yield {"kind": "rccl", "version": version, "path": path, "zero_cta": zero_cta(library)}


def by_tools() -> Said:
    """AMD's profilers and monitors on the PATH."""
    for name in ("rocprofv3", "rocprof", "amd-smi", "rocm-smi"):
        yield {"kind": "tool", "name": name, "path": shutil.which(name)}
