"""A trace of 500 MB is analysed within 60 s and 1 GiB on one core, plain or gzipped, and rightly.

The limit holds for the time of the core, which other programs on the machine do not change; the wall's is shown too.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import synthetic_trace as made

from c3lib.files import ROOT

LIMIT_S, LIMIT_NBYTES = 60, 2**30


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_500_mb_within_60_s_and_1_gib_on_one_core(benchmark, tmp_path, name):
    path = tmp_path / name
    steps = made.write(path, 500_000_000)
    found = benchmark.pedantic(_analysed, (path,), rounds=1)
    (device,) = found["devices"]
    step_s, half = made.STEP_US * 1e-6, steps / 2
    assert device["activities"] == 2.5 * steps
    assert device["gemm_s"] == pytest.approx(half * (made.GEMM_US + made.BESIDE_US) * 1e-6)
    assert device["communication"]["time_s"] == pytest.approx(half * made.GATHER_US * 1e-6)
    assert device["communication"]["exposed_s"] == pytest.approx(half * 1e-4)  # between the GEMM and the next kernel
    assert device["span_s"] == pytest.approx(steps * step_s - 3e-4)
    (overlap,) = device["overlaps"]
    assert overlap["gemm_slowdown"] == pytest.approx(made.BESIDE_US / made.GEMM_US)
    assert overlap["transfer_slowdown"] is None


def _analysed(path: Path) -> dict:
    """What the command answers, in a process of its own on one core, held against both limits."""
    command = [sys.executable, "-m", "c3lib", "trace", "analyze", str(path), "--json"]
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    ) as running:
        assert running.stdout is not None
        start, text = time.perf_counter(), running.stdout.read()
        _, status, used = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
    assert running.returncode == 0
    core_s, wall_s = used.ru_utime + used.ru_stime, time.perf_counter() - start
    print(f"{path.name}: {core_s:.1f} s of the core, {wall_s:.1f} s, {used.ru_maxrss / 1024:.0f} MiB")
    assert core_s <= LIMIT_S
    assert used.ru_maxrss * 1024 <= LIMIT_NBYTES
    return json.loads(text)
