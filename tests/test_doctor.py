"""``c3 doctor``: probes that hang, crash or lie are one sentence, and each kind of machine gets the right page."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from c3lib import doctor
from c3lib.cli import app
from c3lib.doctor import ask as asking
from c3lib.doctor import environment, machine, nvidia, packages, page
from c3lib.doctor.ask import ask
from c3lib.doctor.child import said
from c3lib.doctor.finding import STATES, Answer, Gpu, Line, Reading
from c3lib.doctor.machine import Machine, look
from c3lib.doctor.verdict import EXPLAIN, SUITES, THINGS, fitting, judge
from c3lib.errors import C3Error
from c3lib.files import ROOT
from c3lib.hardware import load_node, node_names
from c3lib.suites import suite_names

NODES = [load_node(name) for name in node_names()]
H200 = Gpu("NVIDIA H200", 132, 150_110_011_392)
MI300X = Gpu("gfx942", 304, 192 << 30)

# --- probes in processes of their own ---

PROBES = """
import os, signal, time

def right(word):
    yield {"kind": "word", "word": word, "set": os.environ.get("C3_DOCTOR_TEST")}
    print("what a library prints")
    os.write(1, b"{not json")
    yield {"kind": "end of it", "failure": "of an engine"}

def hangs():
    yield {"kind": "before"}
    yield "waiting for engine 3"
    time.sleep(600)

def hangs_with_a_child():
    yield {"kind": "child", "pid": os.fork() or (time.sleep(600), 0)[1]}
    time.sleep(600)

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    yield {}

def crashes():
    yield "opening the GPU"
    os.kill(os.getpid(), signal.SIGSEGV)

def leaves():
    yield {"kind": "before"}
    os._exit(7)

def raises():
    yield {"kind": "before"}
    raise ValueError("no such engine\\\\nsecond line")

def refuses():
    from c3lib.errors import C3Error
    raise C3Error("backend cuda: no GPU")
    yield

def lacks():
    import a_package_that_is_not_there
    yield

def kernel():
    yield {"kind": "not for JSON", "value": object()}
"""


@pytest.fixture(autouse=True)
def probes(tmp_path, monkeypatch):
    """A module of probes that children can import."""
    (tmp_path / "stand_in_probes.py").write_text(PROBES.replace("\\\\", "\\"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def asked(name: str, *arguments: str, limit_s: float = 20, **more) -> Answer:
    return ask(f"stand_in_probes:{name}", *arguments, limit_s=limit_s, **more)


def test_facts_arrive_whole_whatever_a_library_prints():
    answer = asked("right", "copy", environment={"C3_DOCTOR_TEST": "here"})
    assert answer == Answer(
        ({"kind": "word", "word": "copy", "set": "here"}, {"kind": "end of it", "failure": "of an engine"})
    )


def test_a_probe_that_hangs_is_stopped_and_what_it_had_found_is_kept():
    start = time.monotonic()
    answer = asked("hangs", limit_s=1.5)
    assert time.monotonic() - start < 5
    assert answer.facts == ({"kind": "before"},)
    assert answer.failure == "no answer within 1.5 s while waiting for engine 3, so the probe was stopped"


def test_nothing_of_a_probe_that_hangs_is_left():
    pid = asked("hangs_with_a_child", limit_s=1.5).one("child")["pid"]
    ends = time.monotonic() + 5
    while time.monotonic() < ends and _runs(pid):
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_probe_that_ignores_signals_is_stopped_too():
    assert asked("deaf", limit_s=1).failure == "no answer within 1 s, so the probe was stopped"


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("crashes", "the probe was ended by SIGSEGV while opening the GPU"),
        ("leaves", "the probe ended with status 7"),
        ("raises", "ValueError: no such engine"),
        ("refuses", "backend cuda: no GPU"),
        ("lacks", "the package a_package_that_is_not_there is not installed"),
    ],
)
def test_every_end_but_the_right_one_is_one_sentence(name, failure):
    answer = asked(name)
    assert answer.failure == failure
    assert len(answer.facts) == (name in ("leaves", "raises"))


def test_a_probe_that_does_not_exist_or_breaks_its_child_is_told_by_its_last_line():
    assert "AttributeError" in asked("nowhere").failure
    assert "not JSON serializable" in asked("kernel").failure


def test_a_child_that_cannot_be_started_is_a_sentence(monkeypatch):
    def refuse(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(asking.subprocess, "Popen", refuse)
    assert asked("right", "x").failure == "the probe could not be started: Cannot allocate memory"


def test_a_process_that_cannot_be_ended_is_said_so():
    answer = asking._answer(b'{"doing": "x"}\n{not JSON\n{"ki', False, False, None, 3, "")
    assert answer.failure.endswith("its process cannot be ended: it waits inside the kernel driver")


def test_what_a_probe_says_is_closed_by_its_end():
    assert list(said(iter(["x", {"kind": "y", "failure": "z"}]))) == [
        {"doing": "x"},
        {"fact": {"kind": "y", "failure": "z"}},
        {"end": True},
    ]

    def wrong():
        raise C3Error("why")
        yield

    assert list(said(wrong())) == [{"failure": "why"}]


# --- what the operating system shows ---


def tree(root, *, vendor="", kind="0x030200", control="", closed=()):
    """A machine's files: one GPU on the bus, a driver's control file, files that may not be opened."""
    if vendor:
        device = root / "sys/bus/pci/devices/0000:05:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    for name in (control, *closed):
        if name:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return look(root)


@pytest.mark.parametrize(
    ("shown", "vendor", "reason"),
    [
        ({}, "", "no GPU here"),
        ({"vendor": "0x8086"}, "", "no GPU here"),
        ({"vendor": "0x10de", "kind": "0x040300"}, "", "no GPU here"),  # the sound device of a graphics card
        ({"vendor": "0x10de"}, "nvidia", "1 NVIDIA GPU stands on the PCI bus, but there is no /dev/nvidiactl"),
        ({"vendor": "0x1002", "kind": "0x120000"}, "amd", "1 AMD GPU stands on the PCI bus, but there is no /dev/kfd"),
        ({"vendor": "0x10de", "control": "dev/nvidiactl"}, "nvidia", ""),
        ({"control": "dev/kfd"}, "amd", ""),  # a container may hide the bus
        ({"vendor": "0x10de", "control": "dev/kfd"}, "amd", ""),  # whose driver is there counts
    ],
)
def test_what_is_in_the_way_of_a_driver_is_one_sentence(tmp_path, shown, vendor, reason):
    found = tree(tmp_path, **shown)
    assert found.vendor == vendor
    assert machine.blocked(found).startswith(reason)
    assert bool(machine.blocked(found)) == bool(reason)


@pytest.mark.parametrize(("control", "name"), [("dev/kfd", "/dev/kfd"), ("dev/nvidiactl", "/dev/nvidiactl")])
def test_a_device_file_without_permission_is_named(tmp_path, monkeypatch, control, name):
    monkeypatch.setattr(machine.os, "access", lambda path, mode: not str(path).endswith(control))
    found = tree(tmp_path, control=control, closed=("dev/dri/renderD128", "dev/nvidia0"))
    reason = machine.blocked(found)
    assert reason.startswith("no permission to open")
    assert name in reason
    assert ("render and video" in reason) == (control == "dev/kfd")


def test_gpus_of_others_are_a_note_and_no_hindrance(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.os, "access", lambda path, mode: path.name != "renderD129")
    found = tree(tmp_path, control="dev/kfd", closed=("dev/dri/renderD128", "dev/dri/renderD129"))
    assert machine.blocked(found) == ""
    assert [line.state for line in machine.lines(found)] == ["ok", "note"]
    monkeypatch.setattr(machine.os, "access", lambda path, mode: not path.name.startswith("render"))
    found = tree(tmp_path, control="dev/kfd")
    assert "renderD128 and 1 more" in machine.blocked(found)


def test_folders_that_cannot_be_read_are_no_error(tmp_path):
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices").write_text("not a folder")
    assert look(tmp_path).vendor == ""


def test_missing_and_wrong_packages_are_named(monkeypatch):
    have = {"torch": "2.13.0+cpu", "cuda-core": "1.2"}
    monkeypatch.setattr(packages, "versions", lambda vendor: dict.fromkeys(packages.PACKAGES[vendor]) | have)
    monkeypatch.setattr(packages, "torch_vendor", lambda: "")
    text = " / ".join(line.says for line in packages.lines("nvidia"))
    assert "missing: cuda-bindings, nvidia-ml-py" in text
    assert "torch 2.13.0+cpu is not built for NVIDIA GPUs" in text


@pytest.mark.parametrize(
    ("text", "vendor"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.43484'\n", "amd"),
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "nvidia"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ""),
        ('from typing import Optional\ncuda = None\nhip = "7.2"\n', "amd"),
    ],
)
def test_whose_torch_it_is_stands_in_its_file_of_versions(monkeypatch, tmp_path, text, vendor):
    monkeypatch.setattr(packages, "find_spec", lambda name: SimpleNamespace(origin=str(tmp_path / "__init__.py")))
    (tmp_path / "version.py").write_text(f"__version__ = '2.11.0'\n{text}")
    monkeypatch.setattr(packages, "versions", lambda vendor: dict.fromkeys(packages.PACKAGES[vendor], "2.11.0"))
    assert packages.torch_vendor() == vendor
    for whose in ("amd", "nvidia"):
        assert (packages.wrong(whose) == []) == (whose == vendor)


def test_torch_that_is_not_there_is_nobodys(monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    assert packages.torch_vendor() == ""


# --- environment ---


def test_no_variable_set_is_said_once():
    (line,) = environment.lines("nvidia", {"PATH": "/bin", "HSA_ENABLE_SDMA": "0"})
    assert line.state == "ok"


@pytest.mark.parametrize(
    ("vendor", "name", "value", "state"),
    [
        ("nvidia", "CUDA_VISIBLE_DEVICES", "1", "note"),
        ("nvidia", "CUDA_VISIBLE_DEVICES", "", "no"),
        ("nvidia", "CUDA_DEVICE_MAX_CONNECTIONS", "32", "note"),
        ("nvidia", "CUDA_DEVICE_MAX_CONNECTIONS", "1", "no"),
        ("nvidia", "CUDA_LAUNCH_BLOCKING", "1", "no"),
        ("nvidia", "NCCL_CTA_POLICY", "2", "note"),
        ("nvidia", "NCCL_A_NEW_ONE", "2", "note"),
        ("nvidia", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "note"),
        ("amd", "HSA_ENABLE_SDMA", "0", "no"),
        ("amd", "HSA_ENABLE_SDMA", "1", "note"),
        ("amd", "HSA_ENABLE_PEER_SDMA", " 0 ", "no"),
        ("amd", "HSA_CU_MASK", "0:0-37", "note"),
        ("", "HSA_ENABLE_SDMA", "0", "no"),
    ],
)
def test_each_variable_that_is_set_gets_a_line(vendor, name, value, state):
    (line,) = environment.lines(vendor, {name: value})
    assert (line.topic, line.state) == (name, state)
    assert line.says.startswith(f"{name}={value}: ")
    assert bool(environment.refused(vendor, {name: value})) == (state == "no")


# --- NVIDIA: facts in, lines and lacks out ---

DRIVER = {"kind": "driver", "version": "580.95.05", "cuda": 13000, "gpus": 2}
NVML_GPU = {
    "kind": "gpu", "index": 0, "name": "NVIDIA H200", "memory_nbytes": H200.memory_nbytes, "programs": 0, "mig": False,
    "nvlinks": 18, "pcie_generation": 5, "pcie_width": 16, "link_counters": True, "energy": True,
}  # fmt: skip
TORCH = {"kind": "torch", "version": "2.11.0+cu130", "cuda": "13.0"}
SEEN = {
    "kind": "seen", "index": 0, "name": "NVIDIA H200", "sms": 132, "memory_nbytes": H200.memory_nbytes,
    "capability": "9.0", "copy_engines": 3, "why_not": "",
}  # fmt: skip
COPIED = {"kind": "copied", "what": "host to GPU 0", "peers": False, "engine": True, "why_not": ""}
NCCL = {"kind": "nccl", "version": "2.28.9"}
RAN = {"kind": "ran", "variant": "nccl", "blocks": 24, "path": "AllGather x2 of 24 blocks", "why_not": ""}
COUNTERS = {"kind": "counters", "profiler": "/usr/bin/ncu", "root": False, "admin_only": False}


def answers(gpus: int = 2, **changes) -> dict[str, Answer]:
    """What the probes of a machine in order say."""
    numbers = range(gpus)
    copies = [{**COPIED, "what": what} for g in numbers for what in (f"host to GPU {g}", f"GPU {g} to host")]
    copies += [{**COPIED, "peers": True, "what": f"GPU {a} to GPU {b}"} for a in numbers for b in numbers if a != b]
    ran = [RAN, {**RAN, "variant": "nccl_zero_cta", "blocks": 0, "path": "Memcpy PtoP x4"}] if gpus > 1 else []
    return {
        "nvml": Answer(({**DRIVER, "gpus": gpus}, *({**NVML_GPU, "index": g} for g in numbers))),
        "cuda": Answer((TORCH, *({**SEEN, "index": g} for g in numbers), *copies)),
        "nccl": Answer((NCCL, *ran)),
        "counters": Answer((COUNTERS,)),
    } | changes


def changed(answer: Answer, kind: str, place: int = 0, **values) -> Answer:
    """An answer with one of its facts changed."""
    facts, wanted = list(answer.facts), answer.of(kind)[place]
    facts[facts.index(wanted)] = {**wanted, **values}
    return replace(answer, facts=tuple(facts))


def says(reading: Reading) -> str:
    return "\n".join(f"{line.topic} {line.state} {line.says}" for line in reading.lines)


def test_two_h200s_in_order_lack_nothing_and_fit_their_node():
    reading = nvidia.read(**answers(2))
    assert reading.lacks == {}
    assert reading.gpus == (H200, H200)
    assert {line.state for line in reading.lines} == {"ok"}
    for part in ("580.95.05, CUDA 13.0", "2x NVIDIA H200, 132 SMs, 140 GiB", "3 on each GPU", "18 NVLinks", "2.28.9",
                 "GPU 1 to GPU 0", "zero CTAs: ran on no thread block", "ncu"):  # fmt: skip
        assert part in says(reading)
    verdict = judge(reading, "", "", NODES)
    assert verdict.nodes[:2] == ("h200_2", "h200_1")
    assert verdict.next == "c3 measure --node h200_2 --suite conccl30_nvlink"
    assert verdict.first == ""
    assert all(ability.can for ability in verdict.abilities)


def test_one_h200_is_one_ranks_view_and_says_what_takes_two():
    verdict = judge(nvidia.read(**answers(1)), "", "", NODES)
    assert verdict.nodes == ("h200_1",)
    assert verdict.next == "c3 measure --node h200_1 --suite conccl30_host"
    assert {ability.why_not for ability in verdict.abilities if not ability.can} == {"it takes two GPUs"}


def test_eight_of_them_fit_the_largest_node_first_and_one_line_says_all_their_copies():
    reading = nvidia.read(**answers(8))
    assert judge(reading, "", "", NODES).nodes == ("h200_8", "h200_2", "h200_1")
    assert "8x NVIDIA H200" in says(reading)
    assert "and 52 more" in says(reading)
    assert len(reading.lines) < 20


@pytest.mark.parametrize(
    ("probe", "kind", "place", "values", "lacking", "words"),
    [
        ("cuda", "copied", 0, {"engine": False}, {"engines"}, "did not end while every SM was held"),
        ("cuda", "copied", 1, {"engine": None, "why_not": "path: nothing is proved"}, {"engines"}, "nothing is proved"),
        ("cuda", "copied", 4, {"engine": None, "why_not": "GPU 0 cannot reach GPU 1"}, {"peers"}, "cannot reach"),
        ("cuda", "copied", 5, {"engine": True, "why_not": "bytes did not arrive"}, {"peers"}, "did not arrive"),
        ("cuda", "seen", 1, {"why_not": "GPU 1 is in use", "copy_engines": None}, {"peers"}, "GPU 1 is in use"),
        ("nccl", "ran", 1, {"blocks": 16}, {"zero_cu"}, "zero CTAs: ran on 16 thread blocks"),
        ("nccl", "ran", 1, {"why_not": "nccl: windows failed"}, {"zero_cu"}, "windows failed"),
        ("nccl", "ran", 0, {"why_not": "nccl: unhandled"}, {"library"}, "unhandled"),
        ("nvml", "gpu", 1, {"link_counters": False}, {"link_counters"}, "does not tell NVLink traffic"),
        ("nvml", "gpu", 0, {"energy": False}, {"energy"}, "does not tell energy"),
        ("nvml", "gpu", 0, {"mig": True}, set(), "GPU 0 is in MIG mode"),
        ("nvml", "gpu", 1, {"programs": 2}, set(), "GPU 1: 2 other programs"),
        ("nvml", "driver", 0, {"cuda": 12040}, set(), "12.8 or newer"),
        ("nvml", "driver", 0, {"gpus": 8}, set(), "6 more that this process does not see"),
        ("counters", "counters", 0, {"profiler": None}, {"profiler"}, "not on the PATH"),
        ("counters", "counters", 0, {"admin_only": True}, {"profiler"}, "root only"),
        ("counters", "counters", 0, {"admin_only": True, "root": True}, set(), "by ncu"),
    ],
)
def test_each_fault_is_told_and_takes_what_rests_on_it(probe, kind, place, values, lacking, words):
    found = answers(2)
    found[probe] = changed(found[probe], kind, place, **values)
    reading = nvidia.read(**found)
    assert words in says(reading)
    assert set(reading.lacks) == lacking


@pytest.mark.parametrize("probe", ["nvml", "cuda", "nccl", "counters"])
def test_a_probe_that_failed_is_a_line_and_the_page_stands(probe):
    reading = nvidia.read(**answers(2, **{probe: Answer(failure="no answer within 20 s, so the probe was stopped")}))
    assert "no answer within 20 s" in says(reading)
    assert reading.lacks
    assert page.text(reading, reading.lines, [], judge(reading, "", "", NODES))


def test_a_probe_cut_short_keeps_what_it_had_proved():
    whole = answers(2)["cuda"]
    cut = Answer(whole.facts[:5], "no answer within 150 s while copying from GPU 1 to GPU 0, so the probe was stopped")
    reading = nvidia.read(**answers(2, cuda=cut))
    assert "host to GPU 0, GPU 0 to host" in says(reading)
    assert reading.lacks["peers"] == cut.failure
    assert "engines" not in reading.lacks


def test_gpus_that_differ_are_told():
    found = answers(2)
    found["cuda"] = changed(found["cuda"], "seen", 1, name="NVIDIA H100", memory_nbytes=85 << 30)
    reading = nvidia.read(**found)
    assert "several kinds" in says(reading)
    assert "h200_2" not in judge(reading, "", "", NODES).nodes


def test_probes_are_asked_only_for_gpus_that_open():
    asked = []

    def ask(probe, *arguments, limit_s):
        asked.append((probe.rpartition(":")[2], arguments))
        return answers(2)["cuda"] if probe.endswith("by_cuda") else Answer(failure="x")

    nvidia.examine(ask)
    assert asked == [("by_nvml", ()), ("by_cuda", ()), ("by_nccl", ("2",)), ("by_counters", ())]
    asked.clear()
    nvidia.examine(lambda probe, *a, limit_s: asked.append(probe) or Answer(failure="x"))
    assert not any("nccl" in probe for probe in asked)


# --- verdict ---


def test_things_and_suites_are_those_that_exist():
    assert set(SUITES.values()) <= set(suite_names())
    assert set(SUITES) >= {node.topology for node in NODES}
    lacks = dict.fromkeys(THINGS, "gone")
    assert not any(ability.can for ability in judge(Reading("nvidia", (H200,), (), lacks), "", "", NODES).abilities[1:])


@pytest.mark.parametrize(
    ("gpu", "count", "vendor", "names"),
    [
        (H200, 1, "nvidia", ["h200_1"]),
        (H200, 2, "nvidia", ["h200_2", "h200_1"]),
        (replace(H200, memory_nbytes=85 << 30), 8, "nvidia", []),  # an H100 has as many SMs
        (replace(H200, cus=114), 8, "nvidia", []),
        (MI300X, 8, "amd", ["mi300x_8"]),
        (MI300X, 7, "amd", []),
        (replace(MI300X, memory_nbytes=256 << 30), 8, "amd", []),  # MI325X
        (replace(MI300X, cus=38), 64, "amd", []),  # CPX
        (H200, 2, "amd", []),
    ],
)
def test_a_node_fits_by_vendor_cus_memory_and_number(gpu, count, vendor, names):
    assert [node.name for node in fitting(Reading(vendor, (gpu,) * count), NODES)][: len(names) or None] == names


def test_gpus_that_cannot_reach_one_another_fit_a_node_of_one():
    reading = Reading("nvidia", (H200, H200), (), {"peers": "cannot reach"})
    assert [node.name for node in fitting(reading, NODES)] == ["h200_1"]


def test_without_a_fitting_node_the_way_to_one_is_told():
    verdict = judge(Reading("nvidia", (replace(H200, cus=78),)), "", "", NODES)
    assert "h200_1.toml" in verdict.first
    assert verdict.next == "c3 measure --node NAME --suite conccl30_host"


@pytest.mark.parametrize("argument", ["blocked", "refused", "stand_in"])
def test_what_is_in_the_way_forbids_everything_but_the_model(argument):
    reading = Reading("amd", (MI300X,) * 8, stand_in="the double" if argument == "stand_in" else "")
    blocked, refused = ("because" if argument == name else "" for name in ("blocked", "refused"))
    verdict = judge(reading, blocked, refused, NODES)
    assert [ability.can for ability in verdict.abilities] == [True] + [False] * (len(verdict.abilities) - 1)
    assert "nothing can be measured here" in verdict.first
    assert verdict.next == EXPLAIN
    assert "c3 measure" not in page.text(reading, [], [], verdict)


# --- the page and the command ---


def test_page_holds_every_line_within_its_width():
    reading = nvidia.read(**answers(8))
    found = [*reading.lines, Line("x", "?", "a long sentence " * 20)]
    text = page.text(reading, found, environment.lines("nvidia", {}), judge(reading, "", "", NODES))
    assert max(map(len, text.splitlines())) <= page.WIDE
    flat = "".join(text.split())
    for line in found:
        assert line.state in STATES
        assert "".join(line.says.split()[:3]) in flat


def test_command_runs_without_a_gpu_and_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "look", lambda: look(tmp_path))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "no GPU here" in result.stdout
    content = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert content["hardware"] is False
    assert content["next"] == EXPLAIN
    assert CliRunner().invoke(app, EXPLAIN.split()[1:]).exit_code == 0


def test_the_command_it_names_is_one_that_there_is():
    words = judge(nvidia.read(**answers(2)), "", "", NODES).next.split()
    result = CliRunner().invoke(app, [*words[1:], "--experiment", "none of them"])
    assert "unknown experiment of h200_2" in result.stderr  # node and suite were taken


def test_without_a_driver_nothing_heavy_is_imported():
    code = "import sys; from c3lib.doctor import diagnose; from c3lib.doctor.machine import look; import pathlib"
    code += "; diagnose(look(pathlib.Path('/nowhere'))); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"numpy", "pandas", "torch", "hip"} & set(done.stdout.split()) == set()


def test_a_driver_that_answers_nothing_still_gives_a_page(monkeypatch):
    monkeypatch.setattr("c3lib.doctor.ask.ask", lambda *_, **__: Answer(failure="no answer within 1 s"))
    content, text = doctor.diagnose(THERE, {})
    assert content["hardware"] is False
    assert "no answer within 1 s" in text
    assert content["next"] == EXPLAIN


THERE = Machine({"nvidia": 2}, {"nvidia": True}, {"nvidia": ()}, {"nvidia": False})


def test_page_of_a_machine_in_order_names_the_command(monkeypatch):
    monkeypatch.setattr(nvidia, "examine", lambda ask: nvidia.read(**answers(2)))
    content, text = doctor.diagnose(THERE, {"NCCL_NVLS_ENABLE": "0"})
    assert content["hardware"] is True
    assert content["next"] == "c3 measure --node h200_2 --suite conccl30_nvlink"
    assert "NCCL_NVLS_ENABLE=0: " in text
    assert text.startswith("This machine: 2x NVIDIA H200\n")
    _, text = doctor.diagnose(THERE, {"CUDA_LAUNCH_BLOCKING": "1"})
    assert "Nothing can be measured here: CUDA_LAUNCH_BLOCKING=1: nothing would overlap." in text


def test_gpus_that_no_backend_measures_are_told(monkeypatch):
    monkeypatch.setattr(nvidia, "examine", lambda ask: nvidia.read(**answers(2)))
    monkeypatch.setattr("c3lib.backends.base.backend_names", lambda: ["model"])
    content, _ = doctor.diagnose(THERE, {})
    assert content["first"] == (
        "nothing can be measured here: this c3lib has no backend cuda, which would measure these GPUs"
    )
    assert content["next"] == EXPLAIN


def test_a_fault_of_ours_in_reading_costs_lines_and_not_the_page(monkeypatch):
    monkeypatch.setattr(nvidia, "examine", lambda ask: {}["a key that a new driver left out"])
    content, text = doctor.diagnose(THERE, {})
    assert "KeyError" in text
    assert content["next"] == EXPLAIN


def test_a_broken_node_file_is_a_line(monkeypatch, tmp_path):
    def broken(name):
        raise C3Error(f"{name}.toml: broken")

    monkeypatch.setattr("c3lib.hardware.load_node", broken)
    _, text = doctor.diagnose(look(tmp_path), {})
    assert "h200_1.toml: broken" in text
