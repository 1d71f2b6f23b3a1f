"""What it costs the CPU to submit a transfer of many copies, while the gate is shut so that none of them runs."""

from pathlib import Path

import pytest

from c3lib.transfer.builders import build_plan

COPIES = 56
SHARD_NBYTES = 64 * 1024
MOST_S = 1.5e-6
"""For each copy of a batch, all else that one transfer takes (two calls, the joining of two streams) included."""


@pytest.fixture(scope="module")
def cuda():
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU")
    from c3lib.cuda.device import open_device

    return open_device()


@pytest.mark.parametrize("how", ["plain", "batched"])
def test_submit_cost_of_a_copy(benchmark, cuda, how):
    """A batch: at most 1.5 us a copy, amortised over an all-gather among 29 ranks. One by one: told, not judged."""
    from c3lib.cuda.buffers import Buffers
    from c3lib.cuda.region import Gate
    from c3lib.cuda.streams import new_stream
    from c3lib.cuda.transport import CopyEngine

    buffers = Buffers([cuda], build_plan("all-gather", 29 * SHARD_NBYTES, 29, "host"))
    engine, gate, stream = CopyEngine(buffers, batched=how == "batched"), Gate([cuda]), new_stream(cuda)
    assert engine.copies == COPIES
    buffers.prepare(1)
    engine.enqueue([stream])  # once without a gate: what is done the first time may wait for the device
    stream.sync()

    def next_turn() -> None:
        gate.open()
        stream.sync()
        gate.shut([stream])

    try:
        benchmark.pedantic(engine.enqueue, ([stream],), setup=next_turn, rounds=50, warmup_rounds=5)
    finally:
        gate.open()
        stream.sync()
    assert buffers.check(1).verified  # what was submitted did run
    benchmark.extra_info["us_per_copy"] = benchmark.stats.stats.median / COPIES * 1e6
    if how == "batched":
        assert benchmark.stats.stats.median / COPIES <= MOST_S
