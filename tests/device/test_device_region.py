"""The timed region: what it counts and what it does not, under every arm, and that no wait is without an end."""

import random
import statistics
import time
from itertools import pairwise

import pytest
from device_cases import ARMS, MIB, buffers_of, each_arm, gemm_s, only, pause, run, transfer_s, transport

from c3lib.cuda import region
from c3lib.cuda.gemm import SETS, Operands
from c3lib.cuda.health import read_health
from c3lib.cuda.region import timed
from c3lib.cuda.streams import new_event, new_stream
from c3lib.errors import C3Error
from c3lib.hardware import load_node
from c3lib.suites import load_suite
from c3lib.transfer import HOST_IN, HOST_OUT
from c3lib.workload import Gemm

pytestmark = pytest.mark.device

PAUSE_S = 0.02
LATE_S = 0.005  # what a pause may read longer than it is
EMPTY_S = 20e-6  # the floor: an empty workload reads less than this
LINK_GBS = 64  # PCIe 5.0 x16, one way: what no transfer over this link can beat


def ready(cuda, mover):
    """As before every region: the transport ready, the device idle."""
    mover.ready()
    cuda.torch.cuda.synchronize()


@each_arm
@pytest.mark.parametrize("gemm_first", [True, False])
def test_m1_a_long_kernel_reads_long_under_every_arm(cuda, gate, arm, gemm_first):
    mover = transport(arm, cuda, buffers_of(cuda, 8 * MIB))
    one, two = new_stream(cuda), new_stream(cuda)
    run(cuda, mover, two)
    wait = pause(cuda, PAUSE_S)
    ready(cuda, mover)
    beside = timed(gate, ([one], wait), ([two], mover.enqueue), gemm_first)
    assert 0.99 * PAUSE_S <= beside.gemm_end_s - beside.gemm_start_s < PAUSE_S + LATE_S
    assert 0 < beside.transfer_end_s - beside.transfer_start_s < PAUSE_S / 2  # one thread waits; nobody waits for it

    ready(cuda, mover)
    behind = timed(gate, None, ([two], lambda streams: (wait(streams), mover.enqueue(streams))))
    assert 0.99 * PAUSE_S <= behind.transfer_end_s - behind.transfer_start_s < PAUSE_S + LATE_S


@pytest.mark.parametrize("arm", ["copy_engine", "copy_engine batched"])
@pytest.mark.parametrize("long_way", ["in", "out"])
def test_m1_the_end_stamp_waits_for_both_directions(cuda, gate, arm, long_way):
    """The long direction is that of the second stream, so a stamp after the first would read a few microseconds."""
    torch, nbytes = cuda.torch, 64 * MIB
    rooms = [
        torch.empty(2 * nbytes, dtype=torch.uint8, **where) for where in ({"device": "cuda"}, {"pin_memory": True})
    ]
    gpu, host = (room.data_ptr() for room in rooms)
    short_in, long_in = ((host, gpu, size, HOST_IN) for size in (64, nbytes))
    short_out, long_out = ((gpu + nbytes, host + nbytes, size, HOST_OUT) for size in (64, nbytes))
    pair = (short_out, long_in) if long_way == "in" else (short_in, long_out)
    assert transfer_s(cuda, gate, transport(arm, cuda, only(cuda, *pair))) > nbytes / (LINK_GBS * 1e9)


def test_m2_an_empty_workload_reads_less_than_the_floor(cuda, gate):
    one, two = new_stream(cuda), new_stream(cuda)
    found = [timed(gate, ([one], lambda stream: None), ([two], lambda stream: None)) for _ in range(9)]
    assert statistics.median(times.gemm_end_s - times.gemm_start_s for times in found) < EMPTY_S
    assert statistics.median(times.transfer_end_s - times.transfer_start_s for times in found) < EMPTY_S
    assert statistics.median(times.end_s for times in found) < 5 * EMPTY_S


@each_arm
def test_m3_enqueueing_is_not_counted(cuda, gate, arm):
    """A transfer whose enqueueing takes 30 ms longer takes as long as before."""
    mover = transport(arm, cuda, buffers_of(cuda, 64 * MIB))
    stream = new_stream(cuda)
    plain = transfer_s(cuda, gate, mover, stream)
    slow = []
    for _ in range(5):  # the first bytes over a link that has been idle for so long can be late: the best of some
        ready(cuda, mover)
        late = timed(gate, None, ([stream], lambda on: (time.sleep(0.015), mover.enqueue(on), time.sleep(0.015))))
        slow.append(late.transfer_end_s - late.transfer_start_s)
    assert min(slow) == pytest.approx(plain, rel=0.1)


@each_arm
def test_m3_twice_as_many_copies_of_the_same_bytes_take_the_same_time(cuda, gate, arm):
    few, many = buffers_of(cuda, 7 * 16 * MIB, 7), buffers_of(cuda, 13 * 8 * MIB, 13)
    assert (few.link_nbytes, 2 * len(few.chosen)) == (many.link_nbytes, len(many.chosen))
    movers = [transport(arm, cuda, buffers) for buffers in (few, many)]
    rounds = [[transfer_s(cuda, gate, mover, repeats=3) for mover in movers] for _ in range(5)]  # in turn: clocks drift
    few_s, many_s = map(min, zip(*rounds, strict=True))
    assert many_s == pytest.approx(few_s, rel=0.05)


def test_m4_the_overlap_of_two_pauses_is_their_intersection(cuda, gate):
    one, two = new_stream(cuda), new_stream(cuda)
    beside = timed(gate, ([one], pause(cuda, PAUSE_S)), ([two], pause(cuda, PAUSE_S / 2)))
    assert beside.overlap_s == pytest.approx(PAUSE_S / 2, abs=1e-3)
    assert beside.end_s == beside.gemm_end_s
    behind = timed(gate, ([one], pause(cuda, PAUSE_S)), ([one], pause(cuda, PAUSE_S / 2)))
    assert behind.overlap_s == 0
    assert behind.transfer_start_s >= behind.gemm_end_s
    assert behind.end_s == pytest.approx(1.5 * PAUSE_S, abs=LATE_S)
    alone = timed(gate, ([one], pause(cuda, PAUSE_S)), None)
    assert alone.overlap_s == 0


@each_arm
@pytest.mark.parametrize("gemm_first", [True, False])
def test_the_intervals_lie_in_the_region_and_both_start_with_it(cuda, gate, arm, gemm_first):
    mover = transport(arm, cuda, buffers_of(cuda, 8 * MIB))
    one, two = new_stream(cuda), new_stream(cuda)
    run(cuda, mover, two)
    for _ in range(5):
        ready(cuda, mover)
        times = timed(gate, ([one], pause(cuda, 0.001)), ([two], mover.enqueue), gemm_first)
        for start, end in (
            (times.gemm_start_s, times.gemm_end_s),
            (times.transfer_start_s, times.transfer_end_s),
        ):
            assert 0 <= start < 1e-4
            assert start < end <= times.end_s


@each_arm
@pytest.mark.parametrize("gemm_first", [True, False])
def test_who_is_first_gets_the_sms(cuda, gate, arm, gemm_first):
    """Beside a kernel that fills every SM, only an SM kernel that comes second waits; copy engines never do."""
    mover = transport(arm, cuda, buffers_of(cuda, 8 * MIB))
    one, two = new_stream(cuda), new_stream(cuda)
    run(cuda, mover, two)
    fills = pause(cuda, PAUSE_S, grid=2 * cuda.sms, block=1024)  # 2048 threads on every SM
    fills([one])
    one.sync()
    waits = arm.startswith("sm_kernel") and gemm_first
    for _ in range(3):
        ready(cuda, mover)
        times = timed(gate, ([one], fills), ([two], mover.enqueue), gemm_first)
        assert (times.transfer_end_s > 0.9 * PAUSE_S) == waits


def test_m5_the_same_arm_twice_comes_out_equal(cuda, gate):
    """Interleaved and shuffled by seed, medians of nine; clocks, power and temperature are there to be recorded."""
    before = read_health([cuda])
    operands = Operands(cuda, Gemm(4096, 4096, 4096))
    mover = transport("copy_engine", cuda, buffers_of(cuda, 32 * MIB))
    one, two = new_stream(cuda), new_stream(cuda)
    gemm_s(cuda, gate, operands, stream=one)
    run(cuda, mover, two)
    found = {"a": [], "b": []}
    shuffled = random.Random(0)
    for turn in range(9):
        for arm in shuffled.sample(sorted(found), 2):
            times = timed(gate, ([one], lambda on, turn=turn: operands.enqueue(on[0], turn)), ([two], mover.enqueue))
            found[arm].append((times.gemm_end_s - times.gemm_start_s, times.transfer_end_s - times.transfer_start_s))
    for a, b in zip(zip(*found["a"], strict=True), zip(*found["b"], strict=True), strict=True):
        assert statistics.median(a) == pytest.approx(statistics.median(b), rel=0.03)
    after = read_health([cuda])
    for state in (before, after):
        assert state.sm_mhz > 0
        assert state.power_w > 0
        assert state.temperature_c > 0
    assert after.energy_j >= before.energy_j


def test_m6_operands_are_random_normal_and_constants_would_be_noticed(cuda):
    operands = Operands(cuda, Gemm(1024, 1024, 1024))
    assert operands.is_random()
    operands._sets[0][0].fill_(1.0)
    assert not operands.is_random()


def test_m15_between_two_runs_of_an_operand_set_lies_more_than_the_l2(cuda):
    l2_nbytes = cuda.torch.cuda.get_device_properties(cuda.device.device_id).L2_cache_size
    assert l2_nbytes > 1 << 20
    node = load_node("h200_1")
    for scenario in load_suite("conccl30_host", node.ranks):
        assert (SETS - 1) * scenario.gemm.nbytes > l2_nbytes, scenario.name
    operands = Operands(cuda, Gemm(1024, 1024, 1024))
    rooms = sorted((room.data_ptr(), room.nbytes) for set_ in operands._sets for room in set_)
    assert len(rooms) == 3 * SETS
    assert all(start + size <= after for (start, size), (after, _) in pairwise(rooms))


def test_m16_the_gate_changes_no_time(cuda, gate):
    """Against two events around a GEMM that follows another one: no gate, and no enqueueing in between either."""
    operands = Operands(cuda, Gemm(8192, 8192, 4096))
    stream = new_stream(cuda)
    gated = gemm_s(cuda, gate, operands, stream=stream, repeats=9)
    found = []
    for turn in range(9):
        start, end = new_event(cuda, timed=True), new_event(cuda, timed=True)
        operands.enqueue(stream, turn + 1)
        stream.record(start)
        operands.enqueue(stream, turn)
        stream.record(end)
        stream.sync()
        found.append((end - start) / 1e3)
    assert gated == pytest.approx(statistics.median(found), rel=0.1)


@pytest.mark.parametrize("arm", ARMS)
def test_f14_both_directions_run_at_the_same_time_and_two_clocks_agree(cuda, gate, arm):
    nbytes = 2 * 128 * MIB
    one_way = sum(
        transfer_s(cuda, gate, transport(arm, cuda, buffers_of(cuda, nbytes, 2, direction=direction)))
        for direction in ("in", "out")
    )
    mover, stream = transport(arm, cuda, buffers_of(cuda, nbytes, 2)), new_stream(cuda)
    both = transfer_s(cuda, gate, mover, stream)
    assert both < 0.8 * one_way  # 1 were one after the other

    found = []
    for _ in range(5):
        ready(cuda, mover)
        start = time.perf_counter()
        mover.enqueue([stream])
        stream.sync()
        found.append(time.perf_counter() - start)
    assert statistics.median(found) == pytest.approx(both, rel=0.1)


# --- nothing waits for ever ---


def test_f17_a_kernel_that_outlasts_the_limit_is_named_and_the_next_region_works(cuda, gate, monkeypatch):
    stream = new_stream(cuda)
    with monkeypatch.context() as patch:
        patch.setattr(region, "LIMIT_S", 0.1)
        with pytest.raises(C3Error, match=r"the gemm has not ended after 0\.1 s; the device hangs or is lost"):
            timed(gate, ([stream], pause(cuda, 0.5)), None)
    stream.sync()
    times = timed(gate, ([stream], pause(cuda, PAUSE_S)), None)
    assert times.gemm_end_s == pytest.approx(PAUSE_S, abs=LATE_S)


def test_f17_an_enqueue_that_waits_for_the_device_ends_in_a_sentence(cuda, gate, monkeypatch):
    """As the first launch of a kernel does, which loads it. The gate opens by itself, and works afterwards."""
    stream = new_stream(cuda)
    with monkeypatch.context() as patch:
        patch.setattr(region, "ENQUEUE_LIMIT_S", 0.3)
        start = time.monotonic()
        with pytest.raises(C3Error, match=r"enqueueing took over 0\.3 s behind a shut gate"):
            timed(gate, ([stream], lambda on: cuda.torch.cuda.synchronize()), None)
        assert time.monotonic() - start < 5
    times = timed(gate, ([stream], pause(cuda, PAUSE_S)), None)
    assert times.gemm_end_s == pytest.approx(PAUSE_S, abs=LATE_S)


def test_the_gate_opens_when_enqueueing_fails_and_works_afterwards(cuda, gate):
    stream = new_stream(cuda)

    def fails(on):
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        timed(gate, ([stream], fails), None)
    stream.sync()
    times = timed(gate, ([stream], pause(cuda, PAUSE_S)), None)
    assert times.gemm_end_s == pytest.approx(PAUSE_S, abs=LATE_S)
