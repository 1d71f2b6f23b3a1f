"""L2: backend hip over AMD's own library and the model of the driver: the same rows, and no measurement either."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from run_real import Real
from topology import Topology

from c3lib.constants import NOT_A_MEASUREMENT
from c3lib.files import ROOT
from c3lib.strategy import STRATEGIES

LIMIT_S = 150


def test_all_strategies_run_over_amds_own_library_with_every_byte_compared(real_runtime: Real, tmp_path: Path) -> None:
    arguments = ["run", "--backend", "hip", "--suite", "no_gpu", "--repeats", "1", "--json"]
    environment = {**real_runtime.environment(tmp_path, Topology()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*real_runtime.command(), "-m", "c3lib", *arguments], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 4 * len(STRATEGIES)
    assert {row["evidence"] for row in rows} == {NOT_A_MEASUREMENT}
    assert all(row["verified"] for row in rows)
    assert all(row["path"].startswith("not a measurement (") and "double" not in row["path"] for row in rows)
    assert all("each left the mask of idle ones (0xfffc)" in row["path"] for row in rows)
