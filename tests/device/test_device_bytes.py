"""Every way in which bytes can be wrong is noticed, and every arm moves every size exactly."""

import numpy as np
import pytest
from device_cases import ARMS, MIB, buffers_of, each_arm, moved, only, run, transfer_s, transport
from hypothesis import given, settings
from hypothesis import strategies as st

from c3lib.cuda.buffers import DIRECTIONS, Buffers
from c3lib.cuda.gemm import Operands
from c3lib.cuda.rig import Rig
from c3lib.cuda.setting import Setting
from c3lib.cuda.sm_kernel import CHUNK_NBYTES
from c3lib.cuda.streams import new_stream
from c3lib.transfer import HOST_IN, KINDS, POISON, execute_on_host, pattern
from c3lib.transfer.builders import build_plan
from c3lib.workload import Gemm

pytestmark = pytest.mark.device

SHARDS = (1, 7, 15, 17, 4099, 65537, CHUNK_NBYTES - 1, CHUNK_NBYTES, CHUNK_NBYTES + 1, 3 * CHUNK_NBYTES + 1, 1_000_003)
LINK_GBS = 64  # PCIe 5.0 x16, one way: what no transfer over this link can beat
BY_CHANCE = 127 / 128  # share of bytes that differ when the wrong ones arrive: patterns have 128 values


@each_arm
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("kind", "ranks"), [("all-gather", 2), ("all-gather", 5), ("all-to-all", 5)])
def test_f1_dropped_copy_is_noticed(cuda, arm, direction, kind, ranks):
    """Exactly the dropped copy's bytes are wrong, and the first of them is named."""
    buffers = buffers_of(cuda, 100_003, ranks, kind, direction)
    for drop, index in enumerate(buffers.chosen.tolist()):
        copy = buffers.plan[index]
        moved(arm, cuda, buffers, drop, drop)
        check = buffers.check(drop)
        assert not check.verified
        assert check.wrong_nbytes == copy.nbytes
        assert f"of rank {copy.dst_rank} are wrong, the first at {copy.dst_offset}" in check.first


def test_f1_the_armed_control_of_a_run_fires(cuda):
    rig = Rig()
    rig.load(plan=build_plan("all-gather", 8 * MIB, 4, "host"))
    for setting in (Setting(), Setting(batched=False), Setting(blocks=8)):
        assert rig.negative_control(setting).endswith(f" dropped, {2 * MIB} bytes wrong: noticed")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_f2_untouched_and_zeroed_buffers_fail(cuda, direction):
    buffers = buffers_of(cuda, 300_007, 3, "all-to-all", direction)
    buffers.prepare(0)
    assert buffers.check(0).wrong_nbytes == buffers.link_nbytes > 0  # all but the shard that never moves
    for receive in buffers.receive:
        receive.zero_()
    check = buffers.check(0)
    assert check.wrong_nbytes == check.compared_nbytes >= buffers.link_nbytes
    for send in buffers.send[: 1 if direction == "out" else None]:
        assert int(send.min()) >= 128  # no zero, and no poison


@each_arm
def test_f3_two_chunks_in_each_others_place_fail_and_so_do_constants(cuda, arm):
    shard = 65536
    buffers = buffers_of(cuda, 4 * shard)
    moved(arm, cuda, buffers)
    assert buffers.check(0).verified
    got = buffers.receive[0]
    got[shard : 3 * shard] = got[shard : 3 * shard].view(2, shard).flip(0).reshape(-1)
    assert buffers.check(0).wrong_nbytes == pytest.approx(2 * shard * BY_CHANCE, rel=0.01)
    for receive in buffers.receive:
        receive.fill_(1)
    check = buffers.check(0)
    assert check.wrong_nbytes == check.compared_nbytes


@each_arm
def test_f3_the_bytes_of_another_iteration_fail(cuda, arm):
    buffers = buffers_of(cuda, 4 * 65536)
    moved(arm, cuda, buffers, 3)
    stale = buffers.check(4)
    assert stale.wrong_nbytes == pytest.approx(stale.compared_nbytes * BY_CHANCE, rel=0.01)


@each_arm
@pytest.mark.parametrize("kind", KINDS)
def test_f4_data_from_the_wrong_peer_fails(cuda, arm, kind):
    shard = 65536
    buffers = buffers_of(cuda, 4 * shard, 4, kind, "in")
    buffers.prepare(0)
    buffers.send[1], buffers.send[2] = buffers.send[2], buffers.send[1]
    run(cuda, transport(arm, cuda, buffers))
    assert buffers.check(0).wrong_nbytes == pytest.approx(2 * shard * BY_CHANCE, rel=0.01)


@pytest.mark.parametrize("arm", [*ARMS, "sm_kernel 1", "sm_kernel 200"])
@pytest.mark.parametrize("shard", SHARDS)
def test_f5_every_size_is_exact(cuda, arm, shard):
    """Three ranks and one byte more than three shards, so shards differ and lie at odd addresses."""
    for kind in KINDS:
        for direction in DIRECTIONS:
            buffers = buffers_of(cuda, 3 * shard + 1, 3, kind, direction)
            moved(arm, cuda, buffers, shard)
            check = buffers.check(shard)
            assert check.verified, f"{kind} {direction}: {check.first}"


@pytest.fixture(scope="module")
def large(cuda):
    """A quarter of a GiB and one byte each way, in one copy each way."""
    return buffers_of(cuda, 2 * (256 * MIB + 1), 2)


@pytest.mark.parametrize("arm", [*ARMS, "sm_kernel 1"])
def test_f5_f17_one_copy_of_a_quarter_gib_is_exact_and_ends(cuda, arm, large):
    moved(arm, cuda, large)
    check = large.check(0)
    assert check.verified, check.first
    assert check.compared_nbytes == 3 * (256 * MIB + 1)  # two shards on rank 0, one on its peer


@each_arm
@pytest.mark.parametrize("offset", [0, 1, 8, 16])
@pytest.mark.parametrize("nbytes", [1, 17, 4099, CHUNK_NBYTES + 1])
def test_f5_nothing_is_written_beside_the_destination(cuda, arm, offset, nbytes):
    torch = cuda.torch
    source = torch.from_numpy(pattern(1, nbytes)).pin_memory()
    target = torch.full((nbytes + 64,), POISON, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    run(cuda, transport(arm, cuda, only(cuda, (source.data_ptr(), target.data_ptr() + offset, nbytes, HOST_IN))))
    wanted = np.full(nbytes + 64, POISON, np.uint8)
    wanted[offset : offset + nbytes] = pattern(1, nbytes)
    assert np.array_equal(target.cpu().numpy(), wanted)


@each_arm
def test_f9_the_bytes_of_the_rate_are_those_verified_at_the_destination(cuda, gate, arm):
    buffers = buffers_of(cuda, 64 * MIB, 4, direction="in")
    local = int(buffers.plan.copies["nbytes"][buffers.local].sum())
    seconds = transfer_s(cuda, gate, transport(arm, cuda, buffers))
    moved(arm, cuda, buffers, 1)
    check = buffers.check(1)
    assert check.verified
    assert check.compared_nbytes - local == buffers.link_nbytes
    assert 1 < buffers.link_nbytes / seconds / 1e9 < LINK_GBS
    moved(arm, cuda, buffers, 2, drop=0)
    dropped = buffers.check(2)
    assert dropped.compared_nbytes - dropped.wrong_nbytes - local == buffers.link_nbytes - 16 * MIB


@pytest.mark.parametrize("iteration", [0, 5, 2**31])
@pytest.mark.parametrize("nbytes", [1, 7, 8, 9, 4099, 65537, 1_000_003])
def test_f11_the_gpus_fill_is_the_hosts_pattern(cuda, nbytes, iteration):
    buffers = buffers_of(cuda, nbytes, 3, "all-to-all")
    buffers.prepare(iteration)
    for rank, size in enumerate(buffers.plan.src_nbytes):
        assert np.array_equal(buffers.send[rank][:size].cpu().numpy(), pattern(rank, size, iteration))


@settings(max_examples=60)
@given(
    arm=st.sampled_from(ARMS),
    kind=st.sampled_from(KINDS),
    ranks=st.integers(2, 6),
    nbytes=st.integers(2, 3 * CHUNK_NBYTES),
    iteration=st.integers(0, 9),
)
def test_f11_the_gpu_and_the_host_run_random_plans_alike(cuda, arm, kind, ranks, nbytes, iteration):
    plan = build_plan(kind, nbytes, ranks, "host")
    buffers = Buffers([cuda], plan)
    moved(arm, cuda, buffers, iteration)
    for rank, wanted in enumerate(execute_on_host(plan, iteration)):
        assert np.array_equal(buffers.receive[rank][: len(wanted)].cpu().numpy(), wanted)
    assert buffers.check(iteration).verified


@pytest.mark.parametrize("sms", [0, 32])
def test_f19_a_gemm_that_did_not_run_or_is_wrong_in_one_place_is_noticed(cuda, sms):
    operands = Operands(cuda, Gemm(512, 1024, 2048))
    stream = new_stream(cuda)
    for turn in range(3):
        operands.poison(turn)
        assert not operands.right(turn)
        cuda.torch.cuda.synchronize()
        operands.enqueue(stream, turn, sms)
        stream.sync()
        assert operands.right(turn)
        operands._sets[turn][2][3, 5] += 100
        assert not operands.right(turn)
        operands._sets[turn][2].zero_()
        assert not operands.right(turn)


def test_f20_payloads_are_aligned_where_the_baseline_is_timed(cuda):
    buffers = buffers_of(cuda, 4 * MIB)
    for address in [room.data_ptr() for room in (*buffers.send, *buffers.receive)]:
        assert address % 16 == 0
    for source, target, nbytes, *_ in buffers.copies():
        assert (source % 16, target % 16, nbytes % 16) == (0, 0, 0)


def test_f20_a_misaligned_payload_slows_the_sm_kernel(cuda, gate):
    """So it may not stand in a comparison; it is exact all the same (F5)."""
    torch = cuda.torch
    source = torch.empty(32 * MIB + 1, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    aligned, odd = (
        transfer_s(
            cuda,
            gate,
            transport("sm_kernel 8", cuda, only(cuda, (source.data_ptr() + at, target.data_ptr(), 32 * MIB, HOST_IN))),
        )
        for at in (0, 1)
    )
    assert odd > 1.2 * aligned
