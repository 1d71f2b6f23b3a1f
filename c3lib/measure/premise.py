"""The premise test: memory traffic and L2 misses of a GEMM alone, beside copy engines, beside SM kernels.

NVIDIA's profiler (``ncu``) reads the counters of whole ranges and replays the program for each pass, so that the two
streams stay concurrent; clocks are left alone.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from c3lib.errors import C3Error
from c3lib.files import ROOT, read_text

COUNTERS = {
    "dram__bytes_read.sum": ("dram_read_bytes", "B"),
    "dram__bytes_write.sum": ("dram_write_bytes", "B"),
    "lts__t_sectors_lookup_hit.sum": ("l2_hit_sectors", "sectors of 32 B"),
    "lts__t_sectors_lookup_miss.sum": ("l2_miss_sectors", "sectors of 32 B"),
}
"""The profiler's names, and ours with their units."""

_SCALE = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "sector": 1}
LIMIT_S = 400


NO_PROFILER = "needs NVIDIA's profiler ncu (Nsight Compute) on the PATH; the other experiments do not"


def profiler() -> str | None:
    """Where NVIDIA's profiler is, if it is on the PATH."""
    return shutil.which("ncu")


def premise_rows(node: str) -> list[dict[str, Any]]:
    """One row a counter, arm, GEMM and repetition, by :mod:`c3lib.measure.counted` under the profiler.

    Raises:
        C3Error: no profiler, or it failed (its last line says why).
    """
    ncu = profiler()
    if ncu is None:
        raise C3Error(f"premise: {NO_PROFILER}")
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "ranges.jsonl")
        command = [ncu, "--replay-mode", "app-range", "--clock-control", "none", "--csv", "--print-units", "base"]
        command += ["--metrics", ",".join(COUNTERS), sys.executable, "-m", "c3lib.measure.counted", node, str(told)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                env={**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            raise C3Error(f"premise: the profiler was not done after {LIMIT_S} s") from None
        if done.returncode or not told.exists():
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line and not line.startswith("==")]
            raise C3Error(f"premise: the profiler failed: {lines[-1] if lines else f'status {done.returncode}'}")
        return merge(done.stdout, [json.loads(line) for line in read_text(told).splitlines()])


def merge(output: str, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The profiler's CSV (one line a counter and range) with what each range was.

    Raises:
        C3Error: a counter or a range is missing, or a unit is unknown.
    """
    lines = output.splitlines()
    start = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise C3Error("premise: the profiler printed no table")
    values: dict[tuple[str, str], float] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        name, unit, text = (str(row.get(f"Metric {part}")) for part in ("Name", "Unit", "Value"))
        if name not in COUNTERS:
            continue
        if unit not in _SCALE:
            raise C3Error(f"premise: the profiler gives {name} in {unit!r}, which is not known here")
        key = (str(row["ID"]), name)
        if not re.fullmatch(r"\d{1,3}(,\d{3})*|\d+", text) or key in values:
            raise C3Error(f"premise: the profiler gives {name} of range {key[0]} as {text!r}, not as one whole number")
        values[key] = int(text.replace(",", "")) * _SCALE[unit]
    if len(values) != len(told) * len(COUNTERS):
        raise C3Error(f"premise: the profiler counted {len(values)} values, {len(told) * len(COUNTERS)} were asked for")
    found = []
    for place, about in enumerate(told):
        for metric, (counter, unit) in COUNTERS.items():
            if (str(place), metric) not in values:
                raise C3Error(f"premise: the profiler gives no {metric} for range {place} ({about['arm']})")
            after = ("repetition", "verified", "path")
            head = {key: value for key, value in about.items() if key not in after}
            tail = {key: about[key] for key in after}
            found.append({**head, "counter": counter, "unit": unit, "value": float(values[str(place), metric]), **tail})
    return found
