"""What the probes of AMD's driver, GPUs, SDMA engines and libraries mean: answers in, lines and what is lacking out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from c3lib.doctor import packages
from c3lib.doctor.finding import Answer, Fact, Gpu, Line, Reading, some

PROBES = "c3lib.doctor.amd_probe"
LIMITS_S = {"by_files": 10, "by_runtime": 150, "by_engines": 180, "by_hip": 90, "by_rccl": 90, "by_tools": 10}
"""The longest that a probe may take. torch alone, which comes first, can take a minute to load from a cold disk."""

TRIES = 8
"""How often engines are proved anew after one of them ended the process."""


def examine(ask: Callable[..., Answer]) -> Reading:
    """Ask all probes, each only where the ones before leave a point to it."""

    def answer(probe: str, *arguments: str) -> Answer:
        return ask(f"{PROBES}:{probe}", *arguments, limit_s=LIMITS_S[probe])

    runtime = answer("by_runtime")
    engines = _all_engines(answer) if runtime.of("gpu") else Answer()
    files, hip, rccl, tools = (answer(probe) for probe in ("by_files", "by_hip", "by_rccl", "by_tools"))
    return read(runtime, engines, files, hip, rccl, tools, "; ".join(packages.wrong("amd")))


def _all_engines(answer: Callable[..., Answer]) -> Answer:
    """Proofs of all engines; one that ends or blocks the process gets a proof that says so, and the rest go on."""
    facts: list[Fact] = []
    for _ in range(TRIES):
        said = answer("by_engines", *(fact["name"] for fact in facts if fact["kind"] == "proof"))
        proofs = said.of("proof")
        facts += proofs
        under_way = [fact["name"] for fact in said.of("trying")][len(proofs) :]
        if not said.failure or not under_way:
            return Answer(tuple(facts), said.failure)
        facts.append({"kind": "proof", "name": under_way[0], "masks": None, "failure": said.failure})
    return Answer(tuple(facts), f"engines ended the probe {TRIES} times; the others were not tried")


def read(
    runtime: Answer, engines: Answer, files: Answer, hip: Answer, rccl: Answer, tools: Answer, lacking: str = ""
) -> Reading:
    """Lines and lacks of a machine from what its probes found.

    ``lacking``: what is wrong with the packages. No probe runs a GEMM or asks torch for a GPU, so none would notice.
    """
    told, gpus = runtime.one("runtime"), runtime.of("gpu")
    lacks = {"packages": lacking} if lacking else {}
    said = [
        *_versions(runtime, files),
        *_hip(hip, len(gpus), lacks),
        *_gpus(runtime, files, lacks),
        *_pairs(runtime, files),
    ]
    said += [*_engines(runtime, engines, lacks), *_rccl(rccl, lacks), *_tools(tools, lacks)]
    return Reading(
        "amd",
        tuple(Gpu(gpu["name"], gpu["cus"], gpu["memory_nbytes"]) for gpu in gpus),
        tuple(said),
        lacks,
        "; ".join(told.get("stand_ins", ())),
    )


def _versions(runtime: Answer, files: Answer) -> list[Line]:
    said, told, versions = [], runtime.one("runtime"), files.one("versions")
    names = {"rocm": "ROCm", "amdgpu": "amdgpu"}
    have = [f"{name} {versions[key]}" for key, name in names.items() if versions.get(key)]
    have += [f"KFD {told['driver']}"] if told.get("driver") else []
    if have:
        said.append(Line("driver", "ok", ", ".join(have)))
    if told:
        lacking = f"; without {', '.join(told['missing'])}" if told["missing"] else ""
        about = f"{told['library']}, build {told['build']}, AMD extension {told['extension']}{lacking}"
        said.append(Line("runtime", "ok", about))
    if runtime.failure:
        said.append(Line("runtime", "?" if told else "no", runtime.failure))
    return said


def _hip(hip: Answer, gpus: int, lacks: dict[str, str]) -> list[Line]:
    found = hip.one("hip")
    if not found:
        lacks["hip"] = hip.failure or "HIP was not found"
        return [Line("HIP", "no", lacks["hip"])]
    about = f"{_hip_version(found['version'])}, sees {found['gpus']} GPUs"
    if found["gpus"] < gpus:
        lacks["hip"] = (
            f"HIP sees {found['gpus']} of the {gpus} GPUs that AMD's runtime lists; unset HIP_VISIBLE_DEVICES"
        )
        return [Line("HIP", "no", f"{about}: {lacks['hip']}")]
    return [Line("HIP", "ok", about)]


def _hip_version(number: int) -> str:
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def _gpus(runtime: Answer, files: Answer, lacks: dict[str, str]) -> list[Line]:
    gpus, said = runtime.of("gpu"), []
    kinds = Counter(
        (gpu["name"], gpu["architecture"], gpu["cus"], gpu["memory_nbytes"], gpu["host_engines"], gpu["peer_engines"])
        for gpu in gpus
    )
    for (name, architecture, cus, nbytes, host, peer), count in kinds.items():
        about = f"{count}x {name} ({architecture}), {cus} CUs, {nbytes / 2**30:.0f} GiB"
        said.append(Line("GPUs", "ok", f"{about}, SDMA engines: {host} for the host, {peer} for peers"))
    if len(kinds) > 1:
        said.append(Line("GPUs", "note", "GPUs of several kinds: choose equal ones with ROCR_VISIBLE_DEVICES"))
    if not gpus:
        lacks["gpu"] = runtime.failure or "AMD's runtime lists no GPU"
        said += [] if runtime.failure else [Line("GPUs", "no", lacks["gpu"])]
    if len(gpus) < 2:
        lacks["peers"] = "it takes two GPUs"
    modes = sorted({(fact["compute"], fact["memory"]) for fact in files.of("partition")})
    for compute, memory in modes:
        whole = compute == "SPX"
        about = f"{compute}{f' with memory {memory}' if memory else ''}"
        hint = "" if whole else ": each GPU counts as several, with fewer CUs and engines; node files are for SPX"
        said.append(Line("partition", "ok" if whole else "note", about + hint))
    if not modes and gpus:
        said.append(Line("partition", "?", "the driver does not tell its partition mode"))
    return said


def _pairs(runtime: Answer, files: Answer) -> list[Line]:
    pairs, said = runtime.of("pair"), []
    links = Counter(pair["link"] for pair in pairs)
    if links:
        joined = ", ".join(f"{link} {count}" for link, count in links.items())
        said.append(Line("links", "ok", f"ordered pairs of GPUs joined by: {joined}"))
    masks = Counter(pair["accepted"] for pair in pairs)
    for mask, count in masks.items():
        numbers = [engine for engine in range(mask.bit_length()) if mask >> engine & 1]
        state = "ok" if numbers else "no"
        said.append(Line("peer engines", state, f"{count} pairs: {_ranges(numbers) or 'none idle'} (mask {mask:#x})"))
    preferred = sum(pair["preferred"] != 0 for pair in pairs)
    if pairs:
        named = sum(node["recommended"] for node in files.of("node"))
        rest = "" if preferred or named else ": engine numbers are names only, the driver may choose another engine"
        about = f"one is preferred for {preferred} of {len(pairs)} pairs; the driver names one for {named} links{rest}"
        said.append(Line("peer engines", "ok" if preferred or named else "note", about))
    return said


def _engines(runtime: Answer, engines: Answer, lacks: dict[str, str]) -> list[Line]:
    said, proofs = [], engines.of("proof")
    for side, thing in (("host", "engines"), ("peer", "peers")):
        mine = [proof for proof in proofs if proof["name"].endswith(side)]
        good: dict[str, list[int]] = {}
        failed: dict[str, list[str]] = {}  # engines by what they failed of: one cause can stop all of them
        for proof in mine:
            gpu, engine, _ = proof["name"].split(":")
            if proof["failure"]:
                failed.setdefault(proof["failure"], []).append(f"engine {engine} of GPU {gpu}")
            else:
                good.setdefault(gpu, []).append(int(engine))
        for numbers, count in Counter(map(tuple, good.values())).items():
            where = f"engines {_ranges(numbers)} of {count} GPU{'s' * (count > 1)}"
            said.append(Line("SDMA path", "ok", f"{where} to the {side}: busy while a copy was held, idle after it"))
        for failure, names in failed.items():
            said.append(Line("SDMA path", "no", f"to the {side}, {some(names)}: {failure}"))
        without = [gpu["index"] for gpu in runtime.of("gpu") if str(gpu["index"]) not in good]
        if without:
            why = next(iter(failed), "") or engines.failure or "none was tried"
            lacks.setdefault(thing, f"no SDMA engine of GPU {without[0]} to the {side}: {why}")
    if engines.failure:
        said.append(Line("SDMA path", "?", engines.failure))
    return said


def _ranges(numbers: Sequence[int]) -> str:
    """2, 3, 4, 7 as ``2-4, 7``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _rccl(rccl: Answer, lacks: dict[str, str]) -> list[Line]:
    found = rccl.one("rccl")
    if not found:
        lacks["library"] = lacks["zero_cu"] = rccl.failure or "RCCL was not found"
        return [Line("RCCL", "no", lacks["library"])]
    lacks["zero_cu"] = found["zero_cta"]  # whatever RCCL can, backend hip does not measure it so
    return [Line("RCCL", "ok", f"{found['version']} ({found['path']})"), Line("RCCL", "note", found["zero_cta"])]


def _tools(tools: Answer, lacks: dict[str, str]) -> list[Line]:
    paths: dict[str, Any] = {fact["name"]: fact["path"] for fact in tools.of("tool")}
    there = [name for name, path in paths.items() if path]
    lacks["link_counters"] = lacks["energy"] = "c3lib does not read these counters of AMD GPUs"
    if not any(name.startswith("rocprof") for name in there):
        lacks["profiler"] = tools.failure or "AMD's profiler rocprofv3 is not on the PATH"
    said = [Line("counters", "ok", f"on the PATH: {', '.join(there)}")] if there else []
    return said + ([Line("counters", "note", lacks["profiler"])] if "profiler" in lacks else [])
