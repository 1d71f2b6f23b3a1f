"""L1: opening the runtime, and all that can be in the way: one sentence each. Memory, signals and links on the double.

What depends on how the library is started runs in a process of its own; the rest shares one.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from ctypes import byref, c_uint32
from pathlib import Path
from typing import Any

import build_double
import pytest
from double_control import Control, Fault

from c3lib.amd import driver, library, signals
from c3lib.amd import runtime as runtime_module
from c3lib.amd import table as t
from c3lib.amd.agents import Gpu
from c3lib.amd.runtime import Runtime, open_runtime
from c3lib.amd.signals import TookTooLong
from c3lib.errors import C3Error
from c3lib.files import ROOT

SOON_S = 5.0


@pytest.fixture(scope="module")
def runtime(double) -> Iterator[Runtime]:
    opened = open_runtime(double)
    Control(double).reset()
    yield opened
    Control(double).reset()
    runtime_module._opened = None  # whoever comes next in this process opens what it wants


def in_a_process(code: str, path: Path | None, **variables: str) -> Any:
    """What ``code`` gives for ``answer`` in a Python of its own, in which ``path`` is the library's."""
    program = (
        "import json\nfrom c3lib.amd.runtime import open_runtime\nfrom c3lib.errors import C3Error\n"
        f"path = {str(path) if path else None!r}\ntry:\n"
        + "".join(f"    {line}\n" for line in code.splitlines())
        + "except C3Error as error:\n    answer = str(error)\nprint(json.dumps(answer))\n"
    )
    changing = ("HSA_", "ROCR_", "ROCM_", "LD_", "C3_DOUBLE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(changing)} | variables
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OPEN = "answer = len(open_runtime(path).gpus)"

# --- what can be in the way ---


def test_no_library():
    assert in_a_process(OPEN, None, ROCM_PATH="/nowhere") == (
        "amd: no usable libhsa-runtime64.so.1, tried libhsa-runtime64.so.1; "
        "install ROCm 6.1 or newer (AMD's packages, or Debian 13's libhsa-runtime64-1)"
    )


def test_something_else_in_its_place(tmp_path):
    (tmp_path / library.NAME).write_text("not a library")
    assert f"tried {tmp_path / library.NAME} (" in in_a_process(OPEN, tmp_path / library.NAME)


def test_a_library_of_rocm_5_is_too_old():
    said = in_a_process(OPEN, build_double.double(release=5))
    assert "hsa_amd_memory_async_copy_on_engine, hsa_amd_memory_copy_engine_status; install ROCm 6.1 or newer" in said


def test_a_library_of_rocm_6_prefers_no_engine_and_says_what_is_done_without():
    path = build_double.double(release=6)
    code = "r = open_runtime(path); answer = [r.missing, r.preferred_engine(r.gpus[1], r.gpus[0])]"
    missing, preferred = in_a_process(code, path)
    assert list(missing) == ["hsa_amd_memory_get_preferred_copy_engine"]
    assert "one for each peer" in missing["hsa_amd_memory_get_preferred_copy_engine"]
    assert preferred == 0
    said = in_a_process("open_runtime(path).library.hsa_amd_memory_get_preferred_copy_engine", path)
    assert said.endswith(
        f"has no {next(iter(missing))}: engines are chosen from those that are idle, one for each peer"
    )


def test_no_driver(double):
    said = in_a_process(OPEN, double, C3_DOUBLE_DRIVER="0")
    if driver.DEVICE.exists():
        assert said.startswith("amd: AMD's runtime did not start: ")
    else:
        assert said.startswith("amd: AMD's runtime did not start: there is no /dev/kfd: ")


def test_no_permission_to_use_the_driver(tmp_path, monkeypatch):
    device = tmp_path / "kfd"
    device.touch()
    monkeypatch.setattr(driver, "DEVICE", device)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may open everything
    assert driver.why_no_driver().startswith(f"no permission to open {device}: add this user to its group (render")


def test_a_second_library_in_one_process(runtime, tmp_path):
    with pytest.raises(C3Error, match=r"this process has opened .* and cannot open .*other\.so too"):
        open_runtime(tmp_path / "other.so")
    assert open_runtime() is runtime


def test_the_copy_that_the_process_has_loaded_is_taken_before_any_other(double):
    code = "import ctypes; ctypes.CDLL(path); answer = open_runtime().library.path"
    assert in_a_process(code, double, ROCM_PATH="/nowhere") == str(double.resolve())


def test_the_loader_s_path_finds_it(double):
    assert in_a_process(OPEN, None, LD_LIBRARY_PATH=str(double.parent)) == 8


def test_folder_of_rocm_finds_it(double, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / library.NAME).symlink_to(double)
    assert in_a_process(OPEN, None, ROCM_PATH=str(tmp_path)) == 8


@pytest.mark.parametrize("name", driver.DISABLING)
def test_engines_that_the_environment_turns_off_are_refused(name):
    with pytest.raises(C3Error, match=f"{name}=0 has .* done by kernels on compute units, not by SDMA engines"):
        driver.require_engines({name: "0"})
    driver.require_engines({name: "1"})
    driver.require_engines({})


def test_what_changes_the_path_is_recorded():
    variables = {"HSA_ENABLE_SDMA_GANG": "1", "HIP_VISIBLE_DEVICES": "0,1", "HOME": "/root"}
    assert driver.environment(variables) == {"HSA_ENABLE_SDMA_GANG": "1", "HIP_VISIBLE_DEVICES": "0,1"}


# --- evidence ---


def test_the_double_is_never_hardware(runtime):
    assert not runtime.is_hardware
    assert runtime.stand_ins[0] == "the library is the tests' double of AMD's"
    assert "no hardware" in runtime.build


def test_a_file_in_the_driver_s_place_is_not_the_driver(tmp_path, monkeypatch):
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(driver, "DEVICE", tmp_path / "kfd")
    assert f"{tmp_path / 'kfd'} is not the device file of the driver kfd" in driver.stand_ins()
    monkeypatch.setattr(driver, "DEVICE", Path("/dev/null"))  # a device, of another driver
    assert "/dev/null is not the device file of the driver kfd" in driver.stand_ins()
    assert driver.version() is None


def test_a_preloaded_stand_in_is_seen(tmp_path):
    source, preload = tmp_path / "preload.c", tmp_path / "preload.so"
    source.write_text("int ioctl(int fd, unsigned long request, ...) { (void)fd; (void)request; return -1; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(preload)], check=True)
    code = "from c3lib.amd import driver; answer = driver.stand_ins()"
    seen = in_a_process(code, None, LD_PRELOAD=str(preload))
    assert f"ioctl() is answered by {preload}, not by the C library" in seen
    assert not any("ioctl" in reason for reason in in_a_process(code, None))


def test_the_model_that_amd_s_own_library_can_be_told_to_use_is_seen(monkeypatch):
    monkeypatch.delenv("HSA_MODEL_LIB", raising=False)
    assert not any("HSA_MODEL_LIB" in reason for reason in driver.stand_ins())
    monkeypatch.setenv("HSA_MODEL_LIB", "libmodel.so")
    assert "HSA_MODEL_LIB has AMD's library use a model of the driver" in driver.stand_ins()


# --- processes ---


def _spawned(path: str, results: Any) -> None:
    gpus = open_runtime(path).gpus
    results.put(len(gpus))


def test_each_spawned_process_opens_its_own(double, runtime):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=_spawned, args=(str(double), results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [8, 8]
    for worker in workers:
        worker.join(SOON_S)


@pytest.mark.parametrize(
    "use",
    [
        "signal.value", "signal.set(0)", "signal.wait(0.1, 'it')", "signal.times()", "r.now_s()",
        "r.prepare(64, gpus[1], 128, gpus[0], 64, signal, 4)",
    ],
)  # fmt: skip
def test_nothing_of_the_library_is_used_after_a_fork(double, use):
    code = f"""
import os
r = open_runtime(path); gpus, signal, called = r.gpus, r.signal(1), []
for name in ("hsa_signal_load_scacquire", "hsa_signal_store_screlease", "hsa_signal_wait_scacquire",
             "hsa_system_get_info"):
    setattr(r.library, name, lambda *a, name=name: called.append(name) or 0)
read, write = os.pipe()
if not os.fork():
    try: {use}
    except C3Error as error: os.write(write, f"{{error}}; {{called}}".encode())
    os._exit(0)
os.wait(); os.close(write); answer = os.read(read, 1000).decode()
"""
    said = in_a_process(code, double)
    assert "was opened before this process was forked" in said
    assert said.endswith("; []")


def test_a_copy_made_ready_before_a_fork_is_refused_after_it(double):
    code = """
import os
r = open_runtime(path); near, far = (r.allocate(gpu, 64) for gpu in r.gpus[:2]); r.allow(far, [r.gpus[0]])
ready = r.prepare(far.address, far.agent, near.address, near.agent, 64, r.signal(1), 4)
read, write = os.pipe()
if not os.fork():
    try: ready.submit()
    except C3Error as error: os.write(write, str(error).encode())
    os._exit(0)
os.wait(); os.close(write); answer = os.read(read, 1000).decode()
"""
    assert "was opened before this process was forked" in in_a_process(code, double)


# --- who is there ---


def test_gpus_tell_who_they_are(runtime):
    gpu = runtime.gpus[3]
    assert (gpu.index, gpu.name, gpu.node, gpu.pci, gpu.cus, gpu.xccs) == (3, "gfx942", 4, "0000:13:00.0", 304, 8)
    assert (gpu.host_engines, gpu.peer_engines, gpu.engines, gpu.memory_nbytes) == (2, 14, 16, 192 << 30)
    assert (str(gpu), str(runtime.cpus[0])) == ("GPU 3", "CPU 0")


def test_ticks_are_not_taken_for_nanoseconds(runtime):
    assert runtime.ticks_per_s == 100_000_000
    first_s = runtime.now_s()
    with pytest.raises(TookTooLong):
        runtime.signal(1).wait(0.2, "nothing")
    assert 0.2 <= runtime.now_s() - first_s < SOON_S


def test_one_engine_is_preferred_for_each_peer(runtime):
    gpus = runtime.gpus
    for src in gpus:
        masks = [runtime.preferred_engine(dst, src) for dst in gpus if dst is not src]
        assert sorted(masks) == [1 << 2 * k for k in range(1, 8)]
    assert runtime.preferred_engine(gpus[0], runtime.cpus[0]) == 0


def test_none_is_preferred_where_the_driver_recommends_none(double):
    code = "r = open_runtime(path); answer = r.preferred_engine(r.gpus[1], r.gpus[0])"
    assert in_a_process(code, double, C3_DOUBLE_RECOMMENDS="0") == 0
    assert in_a_process(code, double, C3_DOUBLE_GPUS="4") == 0
    assert in_a_process(code, double) == 1 << 2


# --- memory ---


def test_what_cannot_be_allocated_or_touched_is_named(runtime):
    gpu = runtime.gpus[0]
    with pytest.raises(C3Error, match="a buffer of 0 bytes on GPU 0; expected 1 or more"):
        runtime.allocate(gpu, 0)
    buffer = runtime.allocate(gpu, 64)
    with pytest.raises(C3Error, match="memory of GPU 0 is not for the CPU to touch"):
        buffer.view()
    runtime.free(buffer)
    with pytest.raises(C3Error, match="freeing 64 bytes of GPU 0 failed: HSA_STATUS_ERROR_INVALID_ALLOCATION"):
        runtime.free(buffer)
    with pytest.raises(C3Error, match="opening memory of GPU 0 to GPU 1, GPU 2 failed: HSA_STATUS_ERROR"):
        runtime.allow(buffer, runtime.gpus[1:3])


def test_host_memory_is_not_that_for_kernel_arguments(runtime):
    """The double lists that pool first, so whoever takes the first fine-grained one is found out."""
    cpu, flags = runtime.cpus[0], c_uint32()
    ask = runtime.library.hsa_amd_memory_pool_get_info
    assert ask(cpu.pool, t.HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, byref(flags)) == 0
    assert flags.value == t.HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED
    buffer = runtime.allocate(cpu, 1 << 16)
    view = buffer.view()
    assert len(view) == buffer.nbytes
    view[:] = bytes(1 << 16)
    assert bytes(view) == bytes(1 << 16)
    runtime.free(buffer)


def test_a_copy_that_has_no_engine_is_named(runtime):
    gpu, cpu, signal = runtime.gpus[0], runtime.cpus[0], runtime.signal(1)
    with pytest.raises(C3Error, match="from CPU 0 to CPU 0 has no GPU whose engine could do it"):
        runtime.prepare(64, cpu, 128, cpu, 64, signal, 0)
    with pytest.raises(C3Error, match="GPU 0 has no engine -1; expected 0 to 15"):
        runtime.prepare(64, gpu, 128, cpu, 64, signal, -1)
    signal.set(0)


def test_a_copy_within_a_gpu_is_done_by_the_engine_that_it_names(runtime, double):
    gpu, control = runtime.gpus[0], Control(double)
    buffers, signal = [runtime.allocate(gpu, 4096) for _ in range(2)], runtime.signal(1)
    runtime.copy(buffers[0].address, gpu, buffers[1].address, gpu, 4096, signal, 3)
    signal.wait(SOON_S, "the copy")
    assert control.journal()[-1].engine == 3


# --- signals ---


def copied(runtime: Runtime, signal: Any, engine: int = 4) -> None:
    near, far = (runtime.allocate(gpu, 4096) for gpu in runtime.gpus[:2])
    runtime.allow(far, [near.agent])
    assert isinstance(near.agent, Gpu)
    runtime.copy(far.address, far.agent, near.address, near.agent, 4096, signal, engine)


def test_times_of_copies(runtime):
    signal, before_s = runtime.signal(1), runtime.now_s()
    with pytest.raises(C3Error, match="the copy has no times yet, its signal reads 1"):
        signal.times()
    copied(runtime, signal)
    signal.wait(SOON_S, "the copy")
    start_s, end_s = signal.times()
    assert before_s <= start_s <= end_s <= runtime.now_s()


def test_a_limit_below_nothing_is_nothing(runtime):
    signal = runtime.signal(1)
    threading.Timer(2.0, signal.set, [0]).start()  # so that a wait without an end has one
    start_s = time.monotonic()
    with pytest.raises(TookTooLong, match="the gate did not end within -1 s"):
        signal.wait(-1.0, "the gate")
    assert time.monotonic() - start_s < 1.0


def test_a_signal_that_copies_may_still_count_down_is_never_given_back(runtime, double):
    control = Control(double)
    control.fault(Fault.HANG, gpu=0, engine=4)
    hung, done = runtime.signal(1), runtime.signal(1)
    copied(runtime, done, 6)
    done.wait(SOON_S, "the copy")
    copied(runtime, hung, 4)
    handles = hung.handle, done.handle
    gc.collect()
    kept = len(signals._abandoned)
    del hung, done
    gc.collect()
    assert len(signals._abandoned) == kept + 1
    destroy = runtime.library.hsa_signal_destroy
    assert [destroy(handle) for handle in handles] == [0, 0x1001]  # the one was still there, the other not
    control.reset()


def test_a_status_without_a_text_keeps_its_number(runtime):
    assert runtime.library.text(0x7777) == "a status it has no text for (status 0x7777)"
    assert runtime.library.text(0x1004).startswith("HSA_STATUS_ERROR_INVALID_AGENT")
