"""What backend hip is made of, with stand-ins for HIP: order behind a gate, masks, times, sentences, RCCL's records."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict
from types import ModuleType, SimpleNamespace

import hip_stand_ins
import pytest
from hip_stand_ins import Bindings, Torch

from c3lib.amd import driver, hip, rccl, rig, work
from c3lib.amd.gemm import CpuGemm, HipGemm
from c3lib.amd.health import read_health
from c3lib.amd.mask import CuMask
from c3lib.amd.region import timed
from c3lib.amd.rig import Rig
from c3lib.amd.setting import Setting
from c3lib.amd.work import CpuWork, HipWork
from c3lib.backends.base import open_backend
from c3lib.backends.hip import HipBackend
from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.hardware import load_node
from c3lib.strategy import STRATEGIES
from c3lib.transfer import SEND
from c3lib.transfer.builders import build_plan
from c3lib.workload import Collective, Gemm, Scenario

RUNTIME = SimpleNamespace(now_s=time.monotonic)
PLACES = ["0000:05:00.0", "0000:26:00.0"]
MASK = CuMask.without(8, cus=304, xcds=8)


class Gpu(SimpleNamespace):
    def __str__(self) -> str:
        return f"GPU {self.index}"


GPUS = [Gpu(index=index, pci=place) for index, place in enumerate(PLACES)]


@pytest.fixture
def opened(monkeypatch):
    """``opened(places, fails)``: HIP over stand-ins, and hip-python's."""

    def make(places=PLACES, fails=None):
        bindings, module = Bindings(places, fails), ModuleType("hip")
        module.hip = bindings
        monkeypatch.setitem(sys.modules, "hip", module)
        monkeypatch.setattr(hip, "rocm_torch", Torch)
        return hip.Hip(GPUS), bindings

    return make


# --- HIP ---


def test_gpus_are_found_by_where_they_are_not_by_number(opened):
    assert opened(places=PLACES[::-1])[0].indices == [1, 0]


def test_a_masked_stream_has_the_words_of_its_mask(opened):
    there, bindings = opened()
    stream = there.stream(1, MASK)
    assert ("hipExtStreamCreateWithCUMask", 10, list(MASK.words)) in bindings.said
    assert (stream.handle, stream.index, stream.mask) == (4096, 1, MASK)


def test_streams_are_made_once_for_each_user(opened):
    there, bindings = opened()
    for mask in (MASK, None):
        works = [HipGemm(RUNTIME, there, Gemm(size, 8, 8)).work(1, mask) for size in (8, 16)]
        first, second = (work.streams for work in works)
        assert all(one is other for one, other in zip(first, second, strict=True))
        assert first[0] is not first[1]
        assert there.stream(0, mask, user="rccl") is not first[0]
    made = [said for said in bindings.said if said[0] == "hipExtStreamCreateWithCUMask"]
    assert len(made) == 3  # the GEMM's on two GPUs, and RCCL's on one


def test_a_mask_that_does_not_read_back_is_refused(opened):
    there, bindings = opened()
    bindings._value = lambda name, arguments: 4096  # nothing is written into the words that are read back
    with pytest.raises(C3Error, match="asked for a stream of 296 of 304 CUs"):
        there.stream(0, MASK)


@pytest.mark.parametrize(
    ("places", "fails", "words"),
    [
        (PLACES[:1], {}, r"HIP does not list GPU 1 \(0000:26:00.0\); unset HIP_VISIBLE_DEVICES"),
        (PLACES, {"hipGetDeviceCount": RuntimeError("failed to dlopen")}, "counting GPUs failed in hipGetDeviceCount"),
        (PLACES, {"hipRuntimeGetVersion": 3}, "reading its version failed in hipRuntimeGetVersion: 3"),
    ],
)
def test_what_hip_lacks_is_one_sentence(opened, places, fails, words):
    with pytest.raises(C3Error, match=words) as caught:
        opened(places, fails)
    assert "\n" not in str(caught.value)


def test_torch_for_something_else_is_refused():
    with pytest.raises(C3Error, match=r"PyTorch .* here is not built for ROCm"):
        hip.rocm_torch()


def test_two_copies_of_the_library_are_refused(tmp_path):
    line = "7f00-7f01 r-xp 00000000 08:01 {} {}/libamdhip64.so.6\n"
    maps = tmp_path / "maps"
    maps.write_text(line.format(1, "/opt/rocm/lib") * 2 + "7f02-7f03 rw-p 00000000 00:00 0\n")
    hip.require_one_library(maps)
    maps.write_text(line.format(1, "/opt/rocm/lib") + line.format(2, "/v/torch/lib"))
    with pytest.raises(C3Error, match=r"two copies of HIP, /opt/rocm/lib/.* and /v/torch/lib/"):
        hip.require_one_library(maps)


# --- work and region ---


def hip_work(there, said, after=None):
    streams = [there.stream(rank) for rank in range(2)]
    for flag in map(there.flag, range(2)):

        def opens(flag=flag):
            there.torch.log.append(("flag", "opens"))
            hip.Flag.open(flag)

        flag.open = opens
    return HipWork(RUNTIME, there, streams, lambda on: there.torch.log.append(("enqueue", said)), said, after)


def test_kernels_are_queued_behind_a_flag_and_timed_from_the_event_just_behind_it(opened):
    there, bindings = opened()
    made = hip_work(there, "gemm")
    made.submit()
    queued = list(there.torch.log)
    first, second = ("whole 0 0", "records"), ("whole 1 0", "records")
    assert queued == [first, first, second, second, ("enqueue", "gemm"), first, second]
    waits = [said[2:4] for said in bindings.said if said[0] == "hipStreamWaitValue64"]
    assert waits == [(there.flag(rank).address, 1) for rank in range(2)]  # and the turn that is waited for
    made.release()
    made.wait()
    assert there.torch.log[-2:] == [("flag", "opens")] * 2
    assert made.times() == (0.001, 0.004)  # opened at 0 and 2, begun at 1 and 3, ended at 4 and 5


def test_the_gate_is_shut_for_every_run_until_it_is_opened(opened):
    there, bindings = opened()
    made = hip_work(there, "gemm")
    for run in range(3):
        made.submit()
        assert bindings.open_gates() == [True, True] * run + [False, False]
        made.release()
        assert all(bindings.open_gates())


def test_what_is_launched_second_waits_for_the_first_ones_event_and_has_no_gate(opened):
    there, bindings = opened()
    first = hip_work(there, "rccl")
    second = hip_work(there, "gemm", after=first)
    for made in (first, second):
        made.submit()
    assert sum(said[0] == "hipStreamWaitValue64" for said in bindings.said) == 2
    waited = [what[2] for what in there.torch.log if what[1] == "waits for"]
    assert waited == first.opened == second.opened
    first.release()
    second.release()
    assert second.released_s == first.released_s
    assert sum(what == ("flag", "opens") for what in there.torch.log) == 2


def test_queueing_that_waits_for_the_gate_opens_it_and_is_told(opened, monkeypatch):
    monkeypatch.setattr(work, "ENQUEUE_LIMIT_S", 0.05)
    there, _ = opened()
    made = hip_work(there, "gemm")
    made._enqueue = lambda on: time.sleep(0.3)
    with pytest.raises(C3Error, match=r"queueing gemm took over 0\.05 s behind a shut gate"):
        made.submit()
    assert ("flag", "opens") in there.torch.log


def test_queueing_of_the_second_kernel_opens_the_gate_of_the_first(opened, monkeypatch):
    monkeypatch.setattr(work, "ENQUEUE_LIMIT_S", 0.05)
    there, bindings = opened()
    first = hip_work(there, "rccl")
    second = hip_work(there, "gemm", after=first)

    def enqueue(on):  # it waits for the GPU, as a first launch may
        until_s = time.monotonic() + 5
        while not all(bindings.open_gates()) and time.monotonic() < until_s:
            time.sleep(0.001)
        assert all(bindings.open_gates())
        time.sleep(0.05)

    second._enqueue = enqueue
    with pytest.raises(C3Error, match=r"queueing gemm took over 0\.05 s behind a shut gate"):
        timed(second, first, gemm_first=False)


def test_a_gate_that_cannot_be_shut_everywhere_is_open_everywhere(opened, monkeypatch):
    there, bindings = opened()
    made, wait_for = hip_work(there, "gemm"), there.wait_for
    monkeypatch.setattr(there, "wait_for", lambda stream, flag: wait_for(stream, flag) if not stream.index else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.submit()
    assert bindings.open_gates() == [True]


def test_all_streams_are_waited_for_with_a_limit(opened, monkeypatch):
    there, _ = opened()
    there.stream(1, MASK)
    there.stream(0)
    there.synchronize()
    assert [what[0] for what in there.torch.log] == ["default 0", "default 1", "masked 1", "whole 0 0"]
    made = hip_work(there, "gemm")
    monkeypatch.setattr(hip_stand_ins.Event, "query", lambda self: not self.of.startswith("masked"))
    with pytest.raises(C3Error, match=r"what was queued before has not ended after 0\.02 s; the GPU hangs"):
        there.synchronize(0.02)
    monkeypatch.setattr(hip.Hip.synchronize, "__defaults__", (0.02,))
    monkeypatch.setattr(work, "_hanging", [])
    with pytest.raises(C3Error, match="has not ended after"):
        made.ready()
    with pytest.raises(C3Error, match="has not ended after"):
        made.warm()
    assert work._hanging == [made]


def test_a_kernel_that_hangs_is_named(opened):
    there, _ = opened()
    made = hip_work(there, "GEMM 8x8x8")
    with pytest.raises(C3Error, match=r"GEMM 8x8x8 has not ended after 0\.05 s"):
        made.wait(0.05)


class Part:
    """Takes from 1 s to 2 s after its release; notes what is done to it."""

    def __init__(self, name, log, released_s, fails=""):
        self.name, self.log, self.released_s, self.fails = name, log, released_s, fails

    def __getattr__(self, step):
        def noted(*_):
            self.log.append(f"{step} {self.name}")
            if step == self.fails:
                raise C3Error(f"{self.name} cannot {step}")

        return noted

    def times(self):
        return 1.0, 2.0


@pytest.mark.parametrize("gemm_first", [True, False])
def test_a_region_counts_from_the_first_release(gemm_first):
    log = []
    gemm, transfer = Part("gemm", log, 10.0 if gemm_first else 10.25), Part("sdma", log, 10.25 if gemm_first else 10.0)
    times = timed(gemm, transfer, gemm_first)
    order = ["gemm", "sdma"] if gemm_first else ["sdma", "gemm"]
    assert log == [f"{step} {name}" for step in ("ready", "submit", "release", "wait") for name in order]
    late = (times.transfer_start_s, times.transfer_end_s) if gemm_first else (times.gemm_start_s, times.gemm_end_s)
    assert late == (1.25, 2.25)
    assert (times.end_s, times.overlap_s) == (2.25, 0.75)


def test_a_kernel_alone_leaves_the_other_one_unknown():
    times = timed(None, Part("sdma", [], 0.0))
    assert math.isnan(times.gemm_end_s)
    assert (times.end_s, times.overlap_s) == (2.0, 0.0)
    with pytest.raises(C3Error, match="a region needs a GEMM, a transfer or both"):
        timed(None, None)


@pytest.mark.parametrize("fails", ["submit", "release"])
def test_no_gate_stays_shut_when_something_fails(fails):
    log = []
    parts = [Part("gemm", log, 0.0, fails if fails == "release" else ""), Part("sdma", log, 0.0, fails)]
    with pytest.raises(C3Error, match=f"cannot {fails}"):
        timed(*parts)
    released = {line for line in log if line.startswith("release")}
    assert released == ({"release gemm"} if fails == "submit" else {"release gemm", "release sdma"})
    assert log[-2:] == ["give_up gemm", "give_up sdma"]  # what failed may have begun


@pytest.mark.parametrize(("who", "left"), [("gemm", ["gemm", "sdma"]), ("sdma", ["sdma"])])
def test_what_nobody_waits_for_any_more_is_given_up(who, left):
    log = []
    parts = [Part(name, log, 0.0, "wait" if name == who else "") for name in ("gemm", "sdma")]
    with pytest.raises(C3Error, match=f"{who} cannot wait"):
        timed(*parts)
    assert [line for line in log if line.startswith("give_up")] == [f"give_up {name}" for name in left]


def test_kernels_that_hang_keep_what_they_touch(opened, monkeypatch):
    monkeypatch.setattr(work, "_hanging", [])
    there, kept = opened()[0], []
    made = HipWork(RUNTIME, there, [there.stream(0)], lambda on: None, "rccl", abandon=lambda: kept.append("buffers"))
    monkeypatch.setattr(made, "submit", lambda: None)  # its events never come
    with pytest.raises(C3Error, match=r"rccl has not ended after 0\.01 s"):
        timed(None, made, limit_s=0.01)
    assert (work._hanging, kept) == ([made], ["buffers"])
    monkeypatch.setattr(there, "synchronize", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.warm()
    assert kept == ["buffers"] * 2


def test_the_stand_in_waits_for_its_gate_and_hands_errors_on():
    made = CpuWork(RUNTIME, lambda: time.sleep(0.02), "a nap")
    made.ready()
    made.submit()
    time.sleep(0.05)
    made.release()
    made.wait()
    start_s, end_s = made.times()
    assert start_s >= 0
    assert end_s - start_s >= 0.02
    failing = CpuWork(RUNTIME, lambda: 1 / 0, "a division")
    failing.ready()
    failing.submit()
    failing.release()
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    with pytest.raises(C3Error, match=r"a wait has not ended after 0\.01 s"):
        CpuWork(RUNTIME, lambda: None, "a wait").wait(0.01)


# --- GEMM ---


@pytest.mark.parametrize("on_hip", [True, False])
def test_a_gemm_that_did_not_run_is_noticed(opened, on_hip):
    there, gemm = opened()[0], Gemm(32, 48, 64)
    launcher = HipGemm(RUNTIME, there, gemm) if on_hip else CpuGemm(RUNTIME, 2, gemm)
    launcher.poison(1)
    assert not launcher.right(1)
    made = launcher.work(1, MASK if on_hip else None)
    made._enqueue(made.streams) if on_hip else made._run()
    assert launcher.right(1)
    if on_hip:
        assert [stream.mask for stream in made.streams] == [MASK, MASK]


# --- RCCL ---


def test_records_tell_kernels_and_workgroups():
    kernel = {"cat": "kernel", "name": "ncclDevKernel_Generic", "args": {"grid": [28, 2, 1]}}
    assert rccl.kernels_of([kernel, {"cat": "gpu_memcpy", "name": "CopyDeviceToDevice"}]) == [
        ("ncclDevKernel_Generic", 56)
    ]
    with pytest.raises(C3Error, match="recorded no kernel; nothing is proved"):
        rccl.kernels_of([{"name": "a mark"}])
    with pytest.raises(C3Error, match="record of ncclDevKernel_Generic has no grid"):
        rccl.kernels_of([{**kernel, "args": {}}])


def test_zero_ctas_are_said_to_be_there_or_not():
    def library(number, *functions):
        def version(pointer):
            pointer._obj.value = number
            return 0

        return SimpleNamespace(ncclGetVersion=version, **dict.fromkeys(functions))

    assert rccl.zero_cta(library(22203)) == "RCCL 2.22.3 has no policy of zero CTAs; it comes with ROCm 7.12"
    assert "RCCL 2.28.3 has windows and a policy of zero CTAs" in rccl.zero_cta(
        library(22803, "ncclCommWindowRegister")
    )


class Clique:
    """Notes what RCCL is asked for."""

    version = "2.22.3"

    def __init__(self):
        self.asked = []

    def all_gather(self, *arguments):
        self.asked.append(("all_gather", *arguments))

    def exchange(self, *arguments):
        self.asked.append(("exchange", *arguments))


def rccl_of(opened, monkeypatch, kind, drop=None, mask=None, nbytes=1024):
    """RCCL's transport of a plan of 2 ranks whose buffers lie at 1000, 2000 (send) and 5000, 6000 (receive)."""
    there, clique, opened_to = opened()[0], Clique(), []
    monkeypatch.setattr(rccl, "clique", lambda hip: clique)
    monkeypatch.setattr(rccl, "recorded", lambda hip, run: [run(), ("ncclDevKernel", 28), ("ncclDevKernel", 28)][1:])
    buffers = SimpleNamespace(
        abandon=lambda: None, plan=build_plan(kind, nbytes, 2, "mesh"), open_to_all=lambda: opened_to.append("all"),
        address=lambda rank, buffer: (1000 if buffer == SEND else 5000) + 1000 * rank,
    )  # fmt: skip
    made = rccl.Rccl(RUNTIME, there, buffers, mask, high=True, drop=drop)
    assert opened_to == ["all"]
    return made, clique.asked[-1]


@pytest.mark.parametrize(("drop", "count"), [(None, 512), (0, 496)])
def test_rccl_gathers_in_place_and_falls_short_in_the_control(opened, monkeypatch, drop, count):
    made, asked = rccl_of(opened, monkeypatch, "all-gather", drop)
    assert asked == ("all_gather", [5000, 6000 + count], [5000, 6000], count, [1, 1])
    assert made.blocks == 28
    assert made.path == "RCCL 2.22.3: ncclDevKernel x 2, 28 workgroups a GPU (profiler's records)"


def test_rccl_exchanges_blocks_with_peers_on_the_cus_of_its_mask(opened, monkeypatch):
    made, asked = rccl_of(opened, monkeypatch, "all-to-all", mask=CuMask.of(8, cus=304, xcds=8))
    assert asked == ("exchange", [1000, 2000], [5000, 6000], 512, 512, [4096, 4097])
    assert made.path.startswith("RCCL 2.22.3 on 8 of 304 CUs, 1 on each of 8 XCDs: ")


def test_buffers_are_kept_when_rccl_may_still_touch_them(opened, monkeypatch):
    made, _ = rccl_of(opened, monkeypatch, "all-gather")
    kept = []
    made._buffers.abandon = lambda: kept.append(True)
    made.work(None).give_up()
    assert kept == [True]


def test_rccl_needs_equal_shards(opened, monkeypatch):
    with pytest.raises(C3Error, match="rccl needs equal shards, so a number of bytes that 2 divides"):
        rccl_of(opened, monkeypatch, "all-gather", nbytes=1025)


# --- the backend ---


@pytest.mark.parametrize(("node", "words"), [("h200_2", "node h200_2 is nvidia; it measures AMD GPUs")])
def test_a_node_of_another_vendor_is_refused(node, words):
    with pytest.raises(C3Error, match=f"backend hip: {words}"):
        open_backend("hip", load_node(node))


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("c3_base", Setting("rccl", gemm_first=True)),
        ("c3_sp", Setting("rccl", gemm_first=False, high=True)),
        ("conccl", Setting(gemm_first=False)),
        ("conccl_rp", Setting(gemm_first=False, withheld=8)),
    ],
)
def test_how_each_strategy_is_run(name, setting):
    made = HipBackend.__new__(HipBackend)
    made.node = load_node("mi300x_8")
    scenario = Scenario("x", Gemm(64, 106496, 16384), Collective("all-gather", 2**28, 8))
    assert made.setting(scenario, STRATEGIES[name]) == setting
    assert Setting(**json.loads(json.dumps(asdict(setting)))) == setting  # as a journal keeps it


@pytest.mark.parametrize("first", ["gemm", "collective"])
def test_a_sweep_tries_powers_of_two_and_none(first):
    made = HipBackend.__new__(HipBackend)
    made.node = load_node("mi300x_8")
    tried = made.swept(first)
    assert [setting.withheld for setting in tried] == [0, 8, 16, 32, 64, 128]
    assert {setting.gemm_first for setting in tried} == {first == "gemm"}
    assert [setting.high for setting in tried] == [first != "gemm"] + [False] * 5  # a masked stream has no priority


@pytest.mark.parametrize(("evidence", "marks"), [(NOT_A_MEASUREMENT, ["not a measurement"]), ("measured", [])])
def test_a_figure_of_what_no_gpu_ran_is_marked_all_over(evidence, marks):
    figure, _ = style.canvas()
    style.stamp(figure, evidence, "mi300x_8", "4 scenarios")
    assert [text.get_text() for text in figure.texts if text.get_gid() == "watermark"] == marks
    assert style.stamp_of(figure).startswith(evidence)


# --- the rig ---


@pytest.mark.parametrize("withheld", [0, 8, 152])
def test_gemm_and_rccl_share_no_cu(withheld):
    made = Rig.__new__(Rig)
    made.gpu = SimpleNamespace(cus=304, xccs=8)
    masks = [made.mask(Setting("rccl", gemm_first=False, withheld=withheld), gemm=gemm) for gemm in (True, False)]
    if not withheld:
        assert masks == [None, None]
    else:
        assert [mask.count for mask in masks] == [304 - withheld, withheld]
        assert masks[0].bits & masks[1].bits == 0


def test_buffers_that_were_given_up_are_not_used_again(monkeypatch):
    plan, closed = build_plan("all-gather", 1024, 2), []
    monkeypatch.setattr(rig, "Buffers", lambda *_: SimpleNamespace(abandoned=False, close=lambda: closed.append(True)))
    made = Rig.__new__(Rig)
    made.runtime = made.gpus = made.hip = made._gemm = made._buffers = None
    made._transports, made._warm, made._plan = {}, set(), ""
    made.load(plan=plan)
    first = made.buffers
    made.load(plan=plan)
    assert made.buffers is first
    first.abandoned = True
    made._transports["sdma"] = "of the first"
    made.load(plan=plan)
    assert made.buffers is not first
    assert (closed, made._transports) == ([True], {})


def test_queues_wait_without_a_kernel_or_the_rig_is_not_opened(monkeypatch):
    for value in ("0", "", "false"):
        with pytest.raises(C3Error, match=f"GPU_STREAMOPS_CP_WAIT={value} has HIP's streams wait by kernels"):
            driver.have_queues_wait(False, {"GPU_STREAMOPS_CP_WAIT": value})
    with pytest.raises(C3Error, match="HIP was started before GPU_STREAMOPS_CP_WAIT was set"):
        driver.have_queues_wait(True, {})
    driver.have_queues_wait(True, {"GPU_STREAMOPS_CP_WAIT": "1"})

    def opens():  # HIP may start with AMD's runtime
        assert driver.environment()["GPU_STREAMOPS_CP_WAIT"] == "1"
        raise C3Error("no runtime")

    monkeypatch.setenv("GPU_STREAMOPS_CP_WAIT", "1")  # so that it is put back
    monkeypatch.delenv("GPU_STREAMOPS_CP_WAIT")
    monkeypatch.setattr(rig, "open_runtime", opens)
    with pytest.raises(C3Error, match="no runtime"):
        Rig(2)
    monkeypatch.setenv("GPU_STREAMOPS_CP_WAIT", "0")
    with pytest.raises(C3Error, match="GPU_STREAMOPS_CP_WAIT=0"):
        Rig(2)


# --- health ---


def test_health_is_of_the_slowest_the_hottest_and_all_together(tmp_path):
    for gpu, (mhz, watts, degrees) in zip(GPUS, [(2100, 600, 50), (1900, 650, 62)], strict=True):
        folder = tmp_path / gpu.pci / "hwmon" / "hwmon3"
        folder.mkdir(parents=True)
        (folder / "freq1_input").write_text(f"{mhz}000000\n")
        (folder / "power1_input").write_text(f"{watts}000000\n")
        (folder / "temp2_input").write_text(f"{degrees}000\n")
    health = read_health(GPUS, tmp_path)
    assert (health.sm_mhz, health.power_w, health.temperature_c) == (1900, 1250, 62)
    assert math.isnan(health.memory_mhz)
    assert math.isnan(health.energy_j)
