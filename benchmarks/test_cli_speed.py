"""What only lists or helps must answer at once: at most half a second, interpreter start included."""

import subprocess
import sys

import pytest

from c3lib.files import ROOT


@pytest.mark.parametrize("words", [["--help"], ["nodes"]], ids=" ".join)
def test_light_commands_take_at_most_half_a_second(benchmark, words):
    command = [sys.executable, "-m", "c3lib", *words]
    benchmark.pedantic(subprocess.run, (command,), {"cwd": ROOT, "capture_output": True, "check": True}, rounds=10)
    assert benchmark.stats.stats.min <= 0.5
