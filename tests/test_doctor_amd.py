"""``c3 doctor`` of AMD GPUs, from facts made by hand: what each kind of machine is told, and what it lacks."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from c3lib.amd import rccl
from c3lib.doctor import amd, packages, page
from c3lib.doctor.amd_probe import by_hip, by_rccl, by_tools
from c3lib.doctor.finding import STATES, Answer, Gpu, Reading
from c3lib.doctor.verdict import EXPLAIN, judge
from c3lib.errors import C3Error
from c3lib.hardware import load_node, node_names

NODES = [load_node(name) for name in node_names()]
MI300X = Gpu("AMD Instinct MI300X", 304, 192 << 30)

RUNTIME = {
    "kind": "runtime", "library": "/opt/rocm/lib/libhsa-runtime64.so.1", "build": "1.18.0", "extension": "1.14",
    "driver": "1.18", "missing": {}, "stand_ins": [],
}  # fmt: skip
GPU = {
    "kind": "gpu", "index": 0, "name": MI300X.name, "architecture": "gfx942", "cus": 304, "xccs": 8,
    "memory_nbytes": MI300X.memory_nbytes, "host_engines": 2, "peer_engines": 14,
}  # fmt: skip
PAIR = {"kind": "pair", "from": 0, "to": 1, "accepted": 0xFFFC, "preferred": 4, "link": "XGMI"}
PROOF = {"kind": "proof", "name": "0:0:host", "masks": [0xFFFC, 0xFFF8, 0xFFFC], "failure": ""}
FILES = (
    {"kind": "versions", "rocm": "7.12.0-10", "amdgpu": "6.16.6"},
    {"kind": "partition", "card": "card1", "compute": "SPX", "memory": "NPS1"},
    {"kind": "node", "node": 2, "cus": 304, "xccs": 8, "peer_links": 7, "recommended": 7},
)
HIP = {"kind": "hip", "version": 71252802, "gpus": 8}
ZERO_CTA = "RCCL 2.28.9 has windows and a policy of zero CTAs; not measured here"
RCCL = {"kind": "rccl", "version": "2.28.9", "path": "/v/torch/lib/librccl.so.1", "zero_cta": ZERO_CTA}
TOOLS = tuple({"kind": "tool", "name": name, "path": f"/usr/bin/{name}"} for name in ("rocprofv3", "amd-smi"))


def answers(gpus: int = 8, **changes) -> dict[str, Answer]:
    """What the probes of a node in order say."""
    numbers = range(gpus)
    pairs = [{**PAIR, "from": a, "to": b} for a in numbers for b in numbers if a != b]
    proofs = [{**PROOF, "name": f"{g}:{e}:host"} for g in numbers for e in (0, 1)]
    proofs += [{**PROOF, "name": f"{g}:{e}:peer"} for g in numbers for e in range(2, 16)] if gpus > 1 else []
    return {
        "runtime": Answer((RUNTIME, *({**GPU, "index": g} for g in numbers), *pairs)),
        "engines": Answer(tuple(proofs)),
        "files": Answer(FILES),
        "hip": Answer(({**HIP, "gpus": gpus},)),
        "rccl": Answer((RCCL,)),
        "tools": Answer(TOOLS),
    } | changes


def with_failed(answer: Answer, failure: str, *names: str) -> Answer:
    """The proofs, those of these engines failed."""
    return replace(answer, facts=tuple(f | ({"failure": failure} if f["name"] in names else {}) for f in answer.facts))


def says(reading: Reading) -> str:
    return "\n".join(f"{line.topic} {line.state} {line.says}" for line in reading.lines)


def test_a_node_in_order_fits_its_file_and_can_be_measured():
    reading = amd.read(**answers())
    assert reading.gpus == (MI300X,) * 8
    assert set(reading.lacks) == {"zero_cu", "link_counters", "energy"}  # of AMD's, c3lib measures none
    assert [line.says for line in reading.lines if line.state != "ok"] == [ZERO_CTA]
    for part in ("8x AMD Instinct MI300X (gfx942), 304 CUs, 192 GiB", "SPX with memory NPS1", "ROCm 7.12.0-10",
                 "amdgpu 6.16.6, KFD 1.18", "engines 2-15 of 8 GPUs to the peer", "XGMI 56", "7.12.52802, sees 8 GPUs",
                 "2.28.9 (/v/torch/lib/librccl.so.1)", "rocprofv3, amd-smi", "56 of 56 pairs"):  # fmt: skip
        assert part in says(reading)
    verdict = judge(reading, "", "", NODES)
    assert verdict.nodes == ("mi300x_8",)
    assert verdict.next == "c3 measure --node mi300x_8 --suite conccl30"
    able = {ability.what: ability.can for ability in verdict.abilities}
    assert able["a GEMM beside collectives between GPUs"]
    text = page.text(reading, reading.lines, [], verdict)
    assert text.startswith("This machine: 8x AMD Instinct MI300X\n")
    assert {line.state for line in reading.lines} <= set(STATES)


HANG = "a copy of 64 bytes on it did not end within 0.5 s: an engine hangs"


def test_engines_that_hang_are_one_line_and_the_others_are_used():
    odd = [f"{gpu}:{engine}:peer" for gpu in range(8) for engine in range(3, 16, 2)]  # as reported of the MI308X
    reading = amd.read(**answers(engines=with_failed(answers()["engines"], HANG, *odd)))
    assert "no to the peer, engine 3 of GPU 0, engine 5 of GPU 0, engine 7 of GPU 0" in says(reading)
    assert f"and 52 more: {HANG}" in says(reading)
    assert "engines 2, 4, 6, 8, 10, 12, 14 of 8 GPUs to the peer" in says(reading)
    assert "peers" not in reading.lacks


def test_a_gpu_without_any_engine_to_its_peer_lacks_it():
    names = [f"3:{engine}:peer" for engine in range(2, 16)]
    reading = amd.read(**answers(engines=with_failed(answers()["engines"], "kernels copy", *names)))
    assert reading.lacks["peers"] == "no SDMA engine of GPU 3 to the peer: kernels copy"
    assert "engines" not in reading.lacks
    verdict = judge(reading, "", "", NODES)
    assert verdict.nodes == ()
    assert not any(ability.can for ability in verdict.abilities[1:] if "between" in ability.what)


def test_probe_of_engines_that_was_stopped_keeps_what_it_proved():
    whole = answers()["engines"]
    cut = Answer(whole.facts[:16], "no answer within 120 s")  # the host's engines of all GPUs
    reading = amd.read(**answers(engines=cut))
    assert reading.lacks["peers"].endswith("no answer within 120 s")
    assert "SDMA path ? no answer" in says(reading)
    assert "engines 0-1 of 8 GPUs to the host" in says(reading)


def able(reading: Reading) -> dict[str, tuple[bool, str]]:
    """Whether each thing to measure can be, and why not."""
    return {ability.what: (ability.can, ability.why_not) for ability in judge(reading, "", "", NODES).abilities}


COLLECTIVES, ZERO_CU = "a GEMM beside collectives between GPUs", "the vendor's library without compute units"


def test_rccl_without_compute_units_is_not_measured_whatever_rccl_can():
    reading = amd.read(**answers())
    assert able(reading)[ZERO_CU] == (False, ZERO_CTA)
    assert able(reading)[COLLECTIVES] == (True, "")
    assert judge(reading, "", "", NODES).first == ""


FEW = Answer(({**HIP, "gpus": 4},))


@pytest.mark.parametrize(
    ("changes", "thing", "words"),
    [
        ({"hip": Answer(failure="the package hip is not installed")}, "hip", "the package hip is not installed"),
        ({"hip": Answer(failure="amd: two copies of HIP")}, "hip", "amd: two copies of HIP"),
        ({"hip": FEW}, "hip", "HIP sees 4 of the 8 GPUs that AMD's runtime lists; unset HIP_VISIBLE_DEVICES"),
        (
            {"lacking": "torch 2.13.0+cpu is not built for AMD GPUs"},
            "packages",
            "torch 2.13.0+cpu is not built for AMD",
        ),
        ({"rccl": Answer(failure="rccl: not found")}, "library", "rccl: not found"),
    ],
)
def test_what_backend_hip_refuses_cannot_be_measured(changes, thing, words):
    reading = amd.read(**answers(**changes))
    assert reading.lacks[thing].startswith(words)
    can, why_not = able(reading)[COLLECTIVES]
    assert not can
    assert why_not.startswith(words)
    assert not able(reading)[ZERO_CU][0]
    verdict = judge(reading, "", "", NODES)
    assert verdict.first.startswith(f"nothing can be measured here: {words}")
    assert verdict.next == EXPLAIN


def test_packages_that_are_wrong_are_asked_for_and_lacking(monkeypatch):
    monkeypatch.setattr(packages, "versions", lambda vendor: {"torch": "2.13.0+cpu", "hip-python": None})
    monkeypatch.setattr(packages, "torch_vendor", lambda: "")
    lacks = amd.examine(lambda probe, *_, limit_s: Answer(failure="no library")).lacks
    assert lacks["packages"].startswith("packages are missing: hip-python; ")
    assert lacks["packages"].endswith("; torch 2.13.0+cpu is not built for AMD GPUs")


def test_partitions_are_told_and_fit_no_file():
    found = answers(64)
    cpx = [{**fact, "cus": 38, "xccs": 1, "peer_engines": 0} for fact in found["runtime"].of("gpu")]
    pairs = [{**fact, "accepted": 3, "preferred": 0} for fact in found["runtime"].of("pair")]
    files = Answer((FILES[0], {**FILES[1], "compute": "CPX", "memory": "NPS4"}))
    reading = amd.read(**answers(64, runtime=Answer((RUNTIME, *cpx, *pairs)), files=files))
    assert "partition note CPX with memory NPS4: each GPU counts as several" in says(reading)
    assert "4032 pairs: 0-1 (mask 0x3)" in says(reading)
    assert "engine numbers are names only" in says(reading)
    verdict = judge(reading, "", "", NODES)
    assert verdict.nodes == ()
    assert "mi300x_8.toml" in verdict.first


@pytest.mark.parametrize("probe", ["runtime", "engines", "files", "hip", "rccl", "tools"])
def test_a_probe_that_failed_is_told_and_the_page_stands(probe):
    reading = amd.read(**answers(**{probe: Answer(failure="the probe was ended by SIGSEGV")}))
    text = page.text(reading, reading.lines, [], judge(reading, "", "", NODES))
    assert ("the probe was ended by SIGSEGV" in text) == (probe != "files")
    if probe == "runtime":
        assert reading.gpus == ()
        assert judge(reading, "", "", NODES).next == EXPLAIN


def test_one_gpu_has_no_peers():
    reading = amd.read(**answers(1))
    assert reading.lacks["peers"] == "it takes two GPUs"
    assert "links" not in {line.topic for line in reading.lines}


def test_an_old_runtime_says_what_is_done_without():
    old = {**RUNTIME, "missing": {"hsa_amd_memory_get_preferred_copy_engine": "engines are chosen by us"}}
    whole = answers()["runtime"]
    reading = amd.read(**answers(runtime=replace(whole, facts=(old, *whole.facts[1:]))))
    assert "without hsa_amd_memory_get_preferred_copy_engine" in says(reading)


# --- engines that end the probe ---


def test_an_engine_that_ends_its_process_is_named_and_the_rest_go_on():
    asked = []

    def ask(probe, *tried, limit_s):
        asked.append(tried)
        todo = [name for name in ("0:2:peer", "0:3:peer", "0:4:peer") if name not in tried]
        facts = []
        for name in todo:
            facts.append({"kind": "trying", "name": name})
            if name == "0:3:peer":
                return Answer(tuple(facts), "the probe was ended by SIGABRT while proving engine 3 of GPU 0")
            facts.append({**PROOF, "name": name})
        return Answer(tuple(facts))

    answer = amd._all_engines(lambda probe, *arguments: ask(probe, *arguments, limit_s=1))
    assert [(fact["name"], fact["failure"][:26]) for fact in answer.of("proof")] == [
        ("0:2:peer", ""), ("0:3:peer", "the probe was ended by SIG"), ("0:4:peer", ""),
    ]  # fmt: skip
    assert asked == [(), ("0:2:peer", "0:3:peer")]
    assert answer.failure == ""


def test_engines_that_all_end_their_process_do_not_go_on_for_ever():
    def answer(probe, *tried):
        name = f"0:{len(tried)}:peer"
        return Answer(({"kind": "trying", "name": name},), "the probe was ended by SIGABRT")

    found = amd._all_engines(answer)
    assert len(found.of("proof")) == amd.TRIES
    assert "the others were not tried" in found.failure


def test_a_probe_that_fails_before_any_engine_is_not_asked_again():
    asked = []
    found = amd._all_engines(lambda probe, *tried: asked.append(tried) or Answer(failure="no memory"))
    assert (asked, found.failure) == ([()], "no memory")


def test_without_a_runtime_no_engine_is_asked_for():
    asked = []
    amd.examine(lambda probe, *a, limit_s: asked.append(probe.rpartition(":")[2]) or Answer(failure="no library"))
    assert asked == ["by_runtime", "by_files", "by_hip", "by_rccl", "by_tools"]


# --- probes of libraries, with stand-ins ---


def hip_module(monkeypatch, **functions):
    package, inner = ModuleType("hip"), SimpleNamespace(**functions)
    package.hip = inner
    monkeypatch.setitem(sys.modules, "hip", package)


def test_hip_tells_its_version_and_gpus(monkeypatch):
    hip_module(monkeypatch, hipRuntimeGetVersion=lambda: (0, 71252802), hipGetDeviceCount=lambda: (0, 8))
    assert list(by_hip()) == ["asking HIP", HIP]
    hip_module(monkeypatch, hipRuntimeGetVersion=lambda: (0, 71252802), hipGetDeviceCount=lambda: (100, 0))
    assert list(by_hip())[-1]["gpus"] == 0


def test_hip_without_a_library_or_with_an_error_is_a_sentence(monkeypatch):
    def refuse():
        raise RuntimeError("failed to dlopen 'b'libamdhip64.so''\nmore")

    hip_module(monkeypatch, hipRuntimeGetVersion=refuse)
    with pytest.raises(C3Error, match=r"^hip: libamdhip64.so is not found; install ROCm or set ROCM_PATH$"):
        list(by_hip())
    hip_module(monkeypatch, hipRuntimeGetVersion=lambda: (1, 0), hipGetDeviceCount=lambda: (0, 0))
    with pytest.raises(C3Error, match=r"^hip: asking HIP .* failed: 1$"):
        list(by_hip())


def test_hip_of_two_libraries_is_refused_as_by_the_backend(monkeypatch):
    def refuse():
        raise C3Error("amd: this process has two copies of HIP")

    hip_module(monkeypatch, hipRuntimeGetVersion=lambda: (0, 71252802), hipGetDeviceCount=lambda: (0, 8))
    monkeypatch.setattr("c3lib.amd.hip.require_one_library", refuse)
    with pytest.raises(C3Error, match="two copies of HIP"):
        list(by_hip())


def test_rccl_and_tools_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    rccl.load_library.cache_clear()
    with pytest.raises(C3Error, match=r"^rccl: librccl.so.1 is neither loaded by torch nor found; install PyTorch"):
        list(by_rccl())
    (tmp_path / "rocprofv3").write_text("#!/bin/sh\n")
    (tmp_path / "rocprofv3").chmod(0o755)
    assert [fact["name"] for fact in by_tools() if fact["path"]] == ["rocprofv3"]
