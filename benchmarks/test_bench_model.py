"""Speed and memory of the model, of plans and of the import; each test holds a target of its own."""

import subprocess
import sys

import pytest

from c3lib.files import ROOT
from c3lib.hardware import load_node
from c3lib.heuristics import score_split
from c3lib.model.blame import blame_s
from c3lib.model.kernels import batch
from c3lib.model.sensitivity import tornado
from c3lib.model.sweep import sweep
from c3lib.model.timeline import timeline
from c3lib.strategy import STRATEGIES
from c3lib.suites import load_suite, random_suite
from c3lib.transfer import prove
from c3lib.transfer.builders import build_plan

NODE = load_node("mi300x_8")
SUITE = load_suite("conccl30", NODE.ranks)
MANY = random_suite(4096, NODE)

PEAK_MIB = 1024
"""Of the process, for all strategies over 100,000 scenarios."""


def test_evaluations_a_second(benchmark):
    """At least 200,000 (scenario x strategy) a second on one core, the partition sweeps of the oracles included.

    The best of 20 rounds: what a core does while it has nothing else to do.
    """
    benchmark.pedantic(sweep, (MANY, NODE), rounds=20, warmup_rounds=1)
    benchmark.extra_info["evaluations_per_s"] = per_s = len(MANY) * len(STRATEGIES) / benchmark.stats.stats.min
    assert per_s >= 200_000


def test_peak_memory_of_100_000_scenarios(benchmark):
    """At most 1 GiB, measured on a process of its own: NumPy's, Python's and the list of scenarios together."""
    script = (
        "import resource\n"
        "from c3lib.hardware import load_node\n"
        "from c3lib.model.sweep import sweep\n"
        "from c3lib.suites import random_suite\n"
        "node = load_node('mi300x_8')\n"
        "assert sweep(random_suite(100_000, node), node).time_s.shape == (100_000, 6)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    result = benchmark.pedantic(_python, (script,), rounds=1)
    benchmark.extra_info["peak_mib"] = peak_mib = int(result) * (1 if sys.platform != "darwin" else 1 / 1024) / 1024
    assert peak_mib <= PEAK_MIB


def test_blame_of_a_suite(benchmark):
    """30 scenarios x 6 strategies x 128 sets of mechanisms in at most 0.5 s."""
    gemm, collective = batch(SUITE, NODE)
    benchmark(lambda: [blame_s(gemm, collective, NODE, how) for how in STRATEGIES.values()])
    assert benchmark.stats.stats.median <= 0.5


def test_tornado_of_every_constant(benchmark):
    """At most 5 s: `c3 model params` waits for it."""
    benchmark.pedantic(tornado, (NODE,), rounds=1)
    assert benchmark.stats.stats.median <= 5


def test_timeline(benchmark):
    """At most 50 ms."""
    benchmark(timeline, SUITE[0], NODE, "c3_base")
    assert benchmark.stats.stats.median <= 0.05


def test_scores_of_the_split_rule(benchmark):
    """300 scenarios against the sweep in at most 1 s."""
    benchmark(score_split, MANY[:300], NODE)
    assert benchmark.stats.stats.median <= 1


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_making_a_plan(benchmark, kind):
    """Eight ranks in at most 20 ms, whatever the size."""
    benchmark(build_plan, kind, 2**30, NODE.ranks)
    assert benchmark.stats.stats.median <= 0.02


def test_proving_a_plan(benchmark):
    """Every byte of an all-gather of 16 MiB (128 MiB written) compared in at most 10 s."""
    plan = build_plan("all-gather", 16 * 2**20, NODE.ranks)
    benchmark.pedantic(prove, (plan,), rounds=1)
    assert benchmark.stats.stats.median <= 10


def test_import(benchmark):
    """`import c3lib` in at most 0.2 s, interpreter start not counted."""
    script = "import time; start = time.perf_counter(); import c3lib; print(time.perf_counter() - start)"
    seconds = benchmark.pedantic(_python, (script,), rounds=3)
    assert float(seconds) <= 0.2


def _python(script: str) -> str:
    """What a Python of its own prints."""
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
