"""What the probes of NVIDIA's driver, GPUs and NCCL mean: answers in, lines and what is lacking out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from c3lib.doctor.finding import Answer, Fact, Gpu, Line, Reading, some

PROBES = "c3lib.doctor.nvidia_probe"
LIMITS_S = {"by_nvml": 20, "by_cuda": 150, "by_nccl": 150, "by_counters": 10}
"""The longest that a probe may take. torch alone can take a minute to load from a cold disk."""


def examine(ask: Callable[..., Answer]) -> Reading:
    """Ask all probes, each only where the ones before leave a point to it."""

    def answer(probe: str, *arguments: str) -> Answer:
        return ask(f"{PROBES}:{probe}", *arguments, limit_s=LIMITS_S[probe])

    nvml, cuda = answer("by_nvml"), answer("by_cuda")
    opened = [gpu for gpu in cuda.of("seen") if not gpu["why_not"]]
    nccl = answer("by_nccl", str(len(opened))) if opened else Answer()
    return read(nvml, cuda, nccl, answer("by_counters"))


def read(nvml: Answer, cuda: Answer, nccl: Answer, counters: Answer) -> Reading:
    """Lines and lacks of a machine from what its probes found."""
    seen = cuda.of("seen")
    gpus = tuple(Gpu(gpu["name"], gpu["sms"], gpu["memory_nbytes"]) for gpu in seen)
    lacks: dict[str, str] = {}
    said = [*_driver(nvml), *_gpus(nvml, cuda, lacks), *_links(nvml), *_copies(cuda, lacks)]
    said += [*_nccl(nccl, len(seen), lacks), *_counters(nvml, counters, lacks)]
    return Reading("nvidia", gpus, tuple(said), lacks)


def _driver(nvml: Answer) -> list[Line]:
    driver = nvml.one("driver")
    if not driver:
        return [Line("driver", "?", f"NVML: {nvml.failure or 'says nothing'}")]
    cuda = f", CUDA {driver['cuda'] // 1000}.{driver['cuda'] % 1000 // 10}" if driver["cuda"] else ""
    said = [Line("driver", "ok", f"{driver['version']}{cuda}")]
    if driver["cuda"] and driver["cuda"] < 12080:
        said.append(Line("driver", "no", "batched copies need a driver for CUDA 12.8 or newer"))
    if nvml.failure:
        said.append(Line("driver", "?", f"NVML: {nvml.failure}"))
    return said


def _gpus(nvml: Answer, cuda: Answer, lacks: dict[str, str]) -> list[Line]:
    seen, said = cuda.of("seen"), []
    if torch := cuda.one("torch"):
        said.append(Line("torch", "ok", f"{torch['version']} for CUDA {torch['cuda']}"))
    kinds = Counter((gpu["name"], gpu["sms"], gpu["memory_nbytes"]) for gpu in seen)
    for (name, sms, nbytes), count in kinds.items():
        said.append(Line("GPUs", "ok", f"{count}x {name}, {sms} SMs, {nbytes / 2**30:.0f} GiB"))
    if len(kinds) > 1:
        said.append(Line("GPUs", "note", "GPUs of several kinds: choose equal ones with CUDA_VISIBLE_DEVICES"))
    behind = nvml.one("driver").get("gpus", 0) - len(seen)
    if seen and behind > 0:
        said.append(Line("GPUs", "note", f"{behind} more that this process does not see (CUDA_VISIBLE_DEVICES)"))
    for gpu in nvml.of("gpu"):
        if gpu["mig"]:
            said.append(Line("partition", "no", f"GPU {gpu['index']} is in MIG mode: its copy engines are divided"))
        if gpu["programs"]:
            said.append(Line("other users", "note", f"GPU {gpu['index']}: {gpu['programs']} other programs use it"))
    if nvml.of("gpu") and not any(gpu["mig"] for gpu in nvml.of("gpu")):
        said.append(Line("partition", "ok", "none (no GPU is in MIG mode)"))
    closed = [gpu["why_not"] for gpu in seen if gpu["why_not"]]
    said += [Line("GPUs", "no", reason) for reason in closed]
    if cuda.failure:
        said.append(Line("GPUs", "?" if seen else "no", cuda.failure))
    if len(closed) == len(seen):
        lacks["gpu"] = closed[0] if closed else cuda.failure or "CUDA shows no GPU"
    if len(seen) - len(closed) < 2:
        lacks["peers"] = closed[0] if closed and len(seen) > 1 else "it takes two GPUs"
    return said


def _links(nvml: Answer) -> list[Line]:
    kinds = Counter(
        (gpu["nvlinks"], gpu["pcie_generation"], gpu["pcie_width"]) for gpu in nvml.of("gpu")
    )  # one line, not one for each of eight equal GPUs
    said = []
    for (nvlinks, generation, width), count in kinds.items():
        pcie = f"PCIe generation {generation} x{width} now" if generation else "PCIe not told"
        said.append(Line("links", "ok", f"{nvlinks or 'no'} NVLinks active, {pcie} (each of {count} GPUs)"))
    return said


def _copies(cuda: Answer, lacks: dict[str, str]) -> list[Line]:
    copies = cuda.of("copied")
    engines = sorted({gpu["copy_engines"] for gpu in cuda.of("seen") if gpu["copy_engines"] is not None})
    said = []
    if engines:
        count = " or ".join(map(str, engines))
        said.append(Line("copy engines", "ok", f"{count} on each GPU; CUDA chooses which, by the kind of copy"))
    for peers, thing, where in ((False, "engines", "over the host link"), (True, "peers", "between GPUs")):
        group = [copy for copy in copies if copy["peers"] is peers]
        proved = [copy for copy in group if copy["engine"] and not copy["why_not"]]
        if proved:
            names = some([copy["what"] for copy in proved])
            said.append(Line("copy path", "ok", f"copy engine, ended while every SM was held: {names}"))
        failed = [copy for copy in group if copy not in proved]
        for copy in failed:
            said.append(Line("copy path", "no", _why_not(copy)))
        if failed:
            lacks[thing] = _why_not(failed[0])
        elif not group:
            lacks.setdefault(thing, cuda.failure or f"no copy {where} was tried")
    return said


def _why_not(copy: Fact) -> str:
    if copy["why_not"]:
        return copy["why_not"]
    return f"{copy['what']}: the copy did not end while every SM was held, so it takes SMs"


def _nccl(nccl: Answer, gpus: int, lacks: dict[str, str]) -> list[Line]:
    found, said = nccl.one("nccl"), []
    if found:
        can = "can run on zero CTAs (copy engines) between GPUs"
        said.append(Line("NCCL", "ok", f"{found['version']}: {can}"))
    if nccl.failure:
        said.append(Line("NCCL", "?" if found else "no", nccl.failure))
    for thing, variant, name in (("library", "nccl", "its own choice"), ("zero_cu", "nccl_zero_cta", "zero CTAs")):
        ran = next((fact for fact in nccl.of("ran") if fact["variant"] == variant), None)
        if ran is None:
            reason = nccl.failure or ("it was not tried" if gpus > 1 else "it takes two GPUs")
            lacks[thing] = reason
        elif ran["why_not"]:
            lacks[thing] = ran["why_not"]
            said.append(Line("NCCL", "no", f"{name}: {ran['why_not']}"))
        else:
            on = f"{ran['blocks']} thread blocks" if ran["blocks"] else "no thread block"
            fell_back = thing == "zero_cu" and ran["blocks"]
            said.append(Line("NCCL", "no" if fell_back else "ok", f"{name}: ran on {on} ({ran['path']})"))
            if fell_back:
                lacks[thing] = f"asked for zero CTAs, NCCL ran {on}"
    return said


def _counters(nvml: Answer, counters: Answer, lacks: dict[str, str]) -> list[Line]:
    gpus, found, said = nvml.of("gpu"), counters.one("counters"), []
    for thing, key, name in (("link_counters", "link_counters", "NVLink traffic"), ("energy", "energy", "energy")):
        if gpus and all(gpu[key] for gpu in gpus):
            said.append(Line("counters", "ok", f"{name} (NVML)"))
        else:
            lacks[thing] = f"NVML does not tell {name}"
            said.append(Line("counters", "note" if gpus else "?", lacks[thing]))
    if not found:
        lacks["profiler"] = counters.failure or "not looked for"
    elif not found["profiler"]:
        lacks["profiler"] = "NVIDIA's profiler ncu (Nsight Compute) is not on the PATH"
    elif found["admin_only"] and not found["root"]:
        lacks["profiler"] = "ncu is there, but the driver gives counters to root only (RmProfilingAdminOnly is 1)"
    else:
        said.append(Line("counters", "ok", f"memory traffic and L2 by ncu ({found['profiler']})"))
    if reason := lacks.get("profiler"):
        said.append(Line("counters", "note", reason))
    return said
