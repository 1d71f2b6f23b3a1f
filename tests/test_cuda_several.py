"""The CUDA layer over two and three make-believe GPUs: who waits for whom, whose memory and clock, whose bytes."""

import ctypes
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from make_believe_gpus import Gpus

from c3lib.cuda import nccl, path, region, rig, sm_kernel, source
from c3lib.cuda.buffers import Buffers
from c3lib.cuda.nccl import Nccl
from c3lib.cuda.path import Proof
from c3lib.cuda.region import Gate, timed
from c3lib.cuda.rig import Rig
from c3lib.cuda.setting import Setting
from c3lib.cuda.sm_kernel import SmKernel
from c3lib.cuda.streams import Barrier, new_stream
from c3lib.cuda.transport import CopyEngine
from c3lib.errors import C3Error
from c3lib.region import Health
from c3lib.transfer import POISON, execute_on_host, pattern
from c3lib.transfer.builders import BUILDERS, build_plan
from c3lib.workload import Gemm

SEEDS = range(5)
NBYTES = 2003  # of no shape: shards differ
MOVERS = {
    "copies": CopyEngine,
    "batches": lambda buffers: CopyEngine(buffers, batched=True),
    "sm_kernel": lambda buffers: SmKernel(buffers, 3),
}


@pytest.fixture(autouse=True)
def kernels_by_name(monkeypatch):
    """Nothing is compiled, and a standstill is told soon."""
    names = ("fill", "compare", "copy")
    for module in (source, sm_kernel):
        monkeypatch.setattr(module, "kernels", lambda cuda: dict(zip(names, names, strict=True)))
    monkeypatch.setattr(region, "LIMIT_S", 0.5)


def buffers_on(gpus, kind="all-gather", algorithm="flat", mode="push", nbytes=NBYTES):
    return Buffers(list(gpus), build_plan(kind, nbytes, len(gpus.gpus), "switch", algorithm, mode))


def streams_of(gpus):
    return [new_stream(cuda) for cuda in gpus]


def put_turn(buffers, streams, turn):
    """On each rank's stream: its bytes of this turn, its own shard in place, and nothing else received."""
    plan = buffers.plan
    for rank, stream in enumerate(streams):

        def fill(rank=rank):
            buffers.send[rank].array[: plan.src_nbytes[rank]] = pattern(rank, plan.src_nbytes[rank], turn)
            buffers.receive[rank].array.fill(POISON)
            for copy in (plan[index] for index in buffers.local.tolist()):
                if copy.dst_rank == rank:
                    own = buffers.send[rank].array[copy.src_offset :][: copy.nbytes]
                    buffers.receive[rank].array[copy.dst_offset :][: copy.nbytes] = own

        stream.put(fill)


def look_at(stream, tensor, found, name):
    stream.put(lambda: found.append((*name, tensor.array.copy())))


# --- transports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mover", MOVERS)
@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("builder", sorted(BUILDERS))
@pytest.mark.parametrize("ranks", [2, 3])
def test_any_order_that_streams_allow_gives_the_same_bytes(builder, mode, mover, ranks):
    """Turn after turn in the same memory, no host between them: each is seen whole by what each rank runs next."""
    plan = build_plan(builder[0], NBYTES, ranks, "switch", builder[1], mode)
    wanted = [execute_on_host(plan, turn) for turn in range(3)]
    for seed in SEEDS:
        gpus = Gpus(ranks, seed)
        buffers = Buffers(list(gpus), plan)
        moved, streams, barrier, found = MOVERS[mover](buffers), streams_of(gpus), Barrier(list(gpus)), []
        moved.ready()
        for turn in range(3):
            put_turn(buffers, streams, turn)
            if mover == "sm_kernel":  # starts at once, as it says
                barrier.enqueue(streams)
            moved.restart(streams)
            moved.enqueue(streams)
            for rank, stream in enumerate(streams):
                look_at(stream, buffers.receive[rank], found, (turn, rank))
        gpus.drain()
        assert len(found) == 3 * ranks
        for turn, rank, seen in found:
            right = wanted[turn][rank]
            assert np.array_equal(seen[: len(right)], right), f"seed {seed}, turn {turn}, rank {rank}"


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("late", [0, 1])
def test_bare_copies_wait_for_nobody_and_others_do(bare, late):
    gpus = Gpus(2)
    buffers = buffers_on(gpus)
    buffers.prepare(0)
    streams, mover, opened = streams_of(gpus), CopyEngine(buffers, bare=bare), []
    assert mover.name == ("bare_copy" if bare else "copy_engine")
    streams[late].put(ready=lambda: 0.0 if opened else None)
    mover.enqueue(streams)
    gpus.run_what_may()
    issuer = 1 - late  # pushes into the memory of the late one
    assert (POISON not in buffers.receive[late].array) is bare
    assert not streams[issuer].queue if bare else streams[issuer].queue
    opened.append(True)
    gpus.drain()
    assert buffers.check(0).verified


def test_bare_copies_have_one_step():
    gpus = Gpus(3)
    with pytest.raises(C3Error, match="bare copies have one step, this plan has 2"):
        CopyEngine(buffers_on(gpus, "all-to-all", "pairwise"), bare=True)
    assert CopyEngine(buffers_on(gpus, "all-to-all"), bare=True).copies == 6


# --- the region -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [0, 1])
def test_m3_the_gate_is_shut_on_every_gpu_and_times_are_from_the_first_start_to_the_last_end(other):
    """One GPU comes 10 ms late to its own gate; its clock starts there. By hand, in ms since each one's gate."""
    gpus = Gpus(2, eager=True)
    gate, seen, one = Gate(list(gpus)), [], 1 - other
    gemm_streams, transfer_streams = streams_of(gpus), streams_of(gpus)
    gemm_streams[other].put(lasts_s=10e-3)
    transfer_streams[one].put(lasts_s=3e-3)
    lasts_s = {"gemm": {one: 4e-3, other: 1e-3}, "transfer": {one: 2e-3, other: 7e-3}}

    def work(name):
        def enqueue(streams):
            for gpu, stream in enumerate(streams):
                stream.put(lambda: seen.append(gate._flag[0]), lasts_s=lasts_s[name][gpu])

        return enqueue

    times = timed(gate, (gemm_streams, work("gemm")), (transfer_streams, work("transfer")))
    assert seen == [1, 1, 1, 1]
    found = (times.gemm_start_s, times.gemm_end_s, times.transfer_start_s, times.transfer_end_s)
    assert found == pytest.approx((0, 4e-3, 0, 7e-3))


# --- buffers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "nbytes"), [("all-gather", 6), ("all-to-all", 6)])
def test_the_busiest_link_may_be_one_that_sends_or_one_that_receives(kind, nbytes):
    """7 bytes among 3 ranks. All-gather: rank 0 sends its 3 twice; all-to-all: it receives 3 twice. Else 4 or 5."""
    assert buffers_on(Gpus(3), kind, nbytes=7).pair_nbytes == nbytes


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_prepared_buffers_are_ready_on_every_gpu(kind):
    """Each GPU fills its own memory, and nobody has to wait afterwards."""
    for seed in SEEDS:
        gpus = Gpus(3, seed)
        buffers = buffers_on(gpus, kind)
        for turn in (0, 1):
            buffers.prepare(turn)
            assert not any(cuda.device.default_stream.queue for cuda in gpus)
            for rank, nbytes in enumerate(buffers.plan.src_nbytes):
                assert np.array_equal(buffers.send[rank].array[:nbytes], pattern(rank, nbytes, turn))


def test_f2_bytes_of_an_earlier_run_of_the_same_turn_are_poisoned_on_every_rank():
    gpus = Gpus(3)
    buffers = buffers_on(gpus)
    buffers.prepare(0)
    CopyEngine(buffers).enqueue(streams_of(gpus))
    gpus.drain()
    assert buffers.check(0).verified
    buffers.prepare(0)
    assert buffers.check(0).wrong_nbytes == buffers.link_nbytes


@pytest.mark.parametrize("rank", range(3))
def test_f1_one_wrong_byte_on_any_rank_is_found_and_named(rank):
    gpus = Gpus(3)
    buffers = buffers_on(gpus, "all-to-all")
    buffers.prepare(5)
    CopyEngine(buffers).enqueue(streams_of(gpus))
    gpus.drain()
    buffers.receive[rank].array[17] ^= 1
    check = buffers.check(5)
    assert check.compared_nbytes == sum(buffers.plan.dst_nbytes)
    assert check.wrong_nbytes == 1
    assert check.first.endswith(f"1 bytes of rank {rank} are wrong, the first at 17")


def test_what_is_on_other_streams_is_over_before_bytes_are_compared():
    for seed in SEEDS:
        gpus = Gpus(3, seed)
        buffers = buffers_on(gpus)
        buffers.prepare(0)
        CopyEngine(buffers).enqueue(streams_of(gpus))
        assert buffers.check(0).verified


# --- NCCL and the rig -------------------------------------------------------------------------------------------------


class Clique:
    """A library that gathers by one operation on each rank's stream, and counts its windows."""

    made: ClassVar = []
    machine: ClassVar = None

    def __init__(self, cudas, variant="nccl", blocks=0):
        self.cudas, self.variant, self.blocks, self.windows, self.rooms = list(cudas), variant, blocks, [], []
        self.windowed = variant in nccl.WINDOWED
        Clique.made.append(self)

    def allocate(self, rank, nbytes):
        self.rooms.append(self.machine.zeros(nbytes, np.uint8, f"cuda:{rank}"))
        return self.rooms[-1]

    def register(self, tensors):
        self.windows.append(tuple(tensor.data_ptr() for tensor in tensors))

    def unregister(self, tensors):
        self.windows.remove(tuple(tensor.data_ptr() for tensor in tensors))

    def all_gather(self, sends, receives, nbytes, handles):
        for rank, handle in enumerate(handles):

            def gather(rank=rank):
                for peer, start in enumerate(sends):
                    ctypes.memmove(receives[rank] + peer * nbytes, start, nbytes)

            self.machine.streams[handle - 101].put(gather)

    def close(self):
        self.windows.clear()


def test_what_connecting_received_is_poisoned_again_on_every_rank():
    for seed in SEEDS:
        gpus = Gpus(2, seed)
        Clique.machine = gpus
        buffers = buffers_on(gpus, nbytes=64)
        Nccl(Clique(gpus), buffers, in_place=False)
        gpus.drain()
        assert all((room.array == POISON).all() for room in buffers.receive)


class Operands:
    """A GEMM that is right unless its GPU is told otherwise."""

    wrong: ClassVar = set()

    def __init__(self, cuda, gemm, seed):
        self.cuda, self.gemm = cuda, gemm

    def poison(self, turn):
        pass

    def enqueue(self, stream, turn, sms):
        stream.put(lasts_s=1e-3)

    def right(self, turn):
        return self.cuda.index not in self.wrong


@pytest.fixture
def rig_of(monkeypatch):
    """A rig on some GPUs; ``proofs`` notes of each proof the transport and the time it was given."""

    def make(count, seed=0):
        gpus, proofs = Gpus(count, seed), []

        def prove(cudas, transport, alone_s):
            proofs.append((transport.name, alone_s))
            return Proof(f"path of {transport.name}", getattr(transport, "blocks", 0))

        monkeypatch.setattr(rig, "open_devices", lambda wanted: tuple(gpus)[:wanted])
        monkeypatch.setattr(rig, "read_health", lambda cudas: Health(*[1.0] * 5))
        monkeypatch.setattr(rig, "prove_path", prove)
        monkeypatch.setattr(rig, "gc", SimpleNamespace(collect=lambda: 0))
        monkeypatch.setattr(rig, "Operands", Operands)
        monkeypatch.setattr(rig, "Clique", Clique)
        monkeypatch.setattr(Operands, "wrong", set())
        monkeypatch.setattr(Clique, "made", [])
        monkeypatch.setattr(Clique, "machine", gpus)
        made = Rig(count)
        made.proofs = proofs
        return made

    return make


def plan_of(nbytes=3 * 640, ranks=3):
    return build_plan("all-gather", nbytes, ranks, "switch")


@pytest.mark.parametrize("setting", [Setting(), Setting(batched=False), Setting(blocks=3), Setting(library="nccl")])
def test_a_region_of_several_gpus_is_verified(rig_of, setting):
    for seed in range(4):
        made = rig_of(3, seed)
        made.load(Gemm(512, 512, 512), plan_of())
        for _ in range(2):
            done = made.run(setting)
            assert done.verified
            assert done.check.compared_nbytes == 3 * 3 * 640


@pytest.mark.parametrize("gpu", range(3))
def test_the_rig_waits_for_every_gpu(rig_of, gpu):
    made = rig_of(3)
    stream = new_stream(made.cudas[gpu])
    stream.put()
    made.synchronize()
    assert not stream.queue


@pytest.mark.parametrize("gpu", range(3))
def test_f19_a_wrong_gemm_on_any_gpu_is_a_wrong_region(rig_of, gpu):
    made = rig_of(3)
    made.load(Gemm(512, 512, 512), plan_of())
    Operands.wrong.add(gpu)
    assert not made.run(Setting()).verified


def test_each_transport_has_its_own_proof(rig_of):
    made = rig_of(3)
    made.load(plan=plan_of())
    ways = [Setting(), Setting(library="nccl"), Setting(library="nccl_unclustered"), Setting(blocks=2)]
    for how in [*ways, *ways]:
        assert made.run(how, gemm=False).path == f"path of {how.transport}"
    assert [name for name, _ in made.proofs] == [how.transport for how in ways]


def test_the_proof_waits_for_the_busiest_link_not_for_all_of_them(rig_of):
    made = rig_of(3)
    made.load(plan=plan_of())
    made.run(Setting(), gemm=False)
    assert made.proofs == [("copy_engine", 2 * 640 / 20e9)]


def test_a_transfer_of_4_gib_on_8_gpus_is_waited_for_as_long_as_sms_are_held(monkeypatch):
    large = SimpleNamespace(plan=build_plan("all-gather", 1 << 32, 8, "switch"), prepare=lambda turn: None)
    large.pair_nbytes = Buffers.pair_nbytes.fget(large)
    large.link_nbytes = 8 * large.pair_nbytes
    one = SimpleNamespace(_proofs={}, buffers=large, turn=0, cudas=[], transport=lambda setting: None)
    waited = []
    monkeypatch.setattr(rig, "prove_path", lambda cudas, transport, alone_s: waited.append(0.02 + 4 * alone_s))
    Rig.proof(one, Setting())
    assert waited[0] < path.HELD_NS / 1e9 / 2


@pytest.mark.parametrize("first", [False, True])
def test_memory_is_the_librarys_where_it_is_to_be_registered_and_torchs_else(rig_of, first):
    made = rig_of(3)
    for registered in (first, not first, not first):
        made.load(plan=plan_of(), registered=registered)
        lent = [id(room) for clique in Clique.made for room in clique.rooms]
        rooms = [*made.buffers.send, *made.buffers.receive]
        assert [id(room) in lent for room in rooms] == [registered] * 6


# --- negative controls ------------------------------------------------------------------------------------------------

LEFT_OUT = {
    Setting(): "copy 3 dropped, 640 bytes wrong: noticed",
    Setting(batched=False, bare=True): "copy 3 dropped, 640 bytes wrong: noticed",
    Setting(blocks=3): "copy 3 dropped, 640 bytes wrong: noticed",
}


@pytest.mark.parametrize("setting", LEFT_OUT)
def test_f1_the_control_says_what_was_dropped(rig_of, setting):
    made = rig_of(3)
    made.load(plan=plan_of())
    assert made.negative_control(setting) == LEFT_OUT[setting]
    assert made.run(setting, gemm=False).verified


@pytest.mark.parametrize("variant", ["nccl", "nccl_registered"])
def test_f1_the_control_of_a_library_says_that_counts_were_short_and_gives_its_windows_back(rig_of, variant):
    made = rig_of(2)
    made.load(plan=plan_of(2 * 640, 2), registered=True)
    setting = Setting(library=variant)
    made.run(setting, gemm=False)
    windows = {clique.variant: list(clique.windows) for clique in Clique.made}
    said = made.negative_control(setting)
    # By hand: 16 poisoned bytes from before rank 1's shard go with it to both, and its last 32 do not reach rank 0.
    assert said == "every count 16 bytes short, 64 bytes wrong: noticed"
    assert {clique.variant: list(clique.windows) for clique in Clique.made} == windows
    assert bool(windows[variant]) is (variant in nccl.WINDOWED)
    assert made.run(setting, gemm=False).verified


def test_f1_windows_are_given_back_where_a_control_fails_too(rig_of, monkeypatch):
    made = rig_of(2)
    made.load(plan=plan_of(2 * 640, 2), registered=True)
    monkeypatch.setattr(nccl, "SHORT_NBYTES", 0)  # so that nothing is left out
    with pytest.raises(
        C3Error, match=r"negative control: nccl_registered: every count .* short, and the check did not"
    ):
        made.negative_control(Setting(library="nccl_registered"))
    assert len(Clique.made[0].windows) == 2  # of the transport that stays


@pytest.mark.parametrize("setting", LEFT_OUT)
def test_f1_a_check_that_notices_nothing_ends_the_run(rig_of, monkeypatch, setting):
    made, whole = rig_of(3), Buffers.copies
    made.load(plan=plan_of())
    monkeypatch.setattr(Buffers, "copies", lambda buffers, drop=None: whole(buffers))
    with pytest.raises(C3Error, match=f"negative control: {setting.transport}: copy 3 dropped, and the check did not"):
        made.negative_control(setting)
