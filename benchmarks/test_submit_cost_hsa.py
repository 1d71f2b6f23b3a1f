"""What our binding costs the CPU for each copy it submits to AMD's library: on the double, which has no hardware.

The copies wait behind a shut gate meanwhile, so that nothing is timed but submitting them. It says nothing of a GPU.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "amd"))

COPIES = 56
"""Of an all-gather among 8 GPUs, 7 for each, one engine a peer."""

NBYTES = 64 * 1024
MOST_S = 3e-6


@pytest.fixture(scope="module")
def runtime():
    from build_double import double
    from get_runtime import COMMAND, NotObtained

    from c3lib.amd.runtime import open_runtime

    try:
        library = double()
    except NotObtained as error:
        pytest.skip(f"{error}; to obtain it: {COMMAND}")
    return open_runtime(library)


@pytest.mark.parametrize("how", ["prepared", "plain"])
def test_submit_cost_of_a_copy(benchmark, runtime, how):
    """At most 3 us a copy that was made ready before, as transports do it. Made ready each time: told, not judged."""
    gpus = runtime.gpus
    buffers = [runtime.allocate(gpu, NBYTES) for gpu in gpus]
    for buffer in buffers:
        runtime.allow(buffer, gpus)
    gate, done = runtime.signal(1), runtime.signal(COPIES)
    copies = [
        (buffers[dst].address, gpus[dst], buffers[src].address, gpus[src], NBYTES, done, 2 * (src ^ dst), (gate,))
        for src in range(8)
        for dst in range(8)
        if src != dst
    ]
    assert len(copies) == COPIES
    ready = [runtime.prepare(*copy) for copy in copies]

    def prepared() -> None:
        for copy in ready:
            copy.submit()

    def plain() -> None:
        for copy in copies:
            runtime.copy(*copy)

    def next_turn() -> None:
        gate.set(0)
        done.wait(10, "the copies of the turn before")
        gate.set(1)
        done.set(COPIES)

    submit = prepared if how == "prepared" else plain
    submit()  # once: each engine's queue is made at its first copy
    try:
        benchmark.pedantic(submit, setup=next_turn, rounds=200, warmup_rounds=10)
    finally:
        gate.set(0)
    done.wait(10, "the last turn's copies")  # what was submitted did run
    benchmark.extra_info["us_per_copy"] = benchmark.stats.stats.median / COPIES * 1e6
    if how == "prepared":
        assert benchmark.stats.stats.median / COPIES <= MOST_S
