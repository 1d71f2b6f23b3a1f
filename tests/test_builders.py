"""Builders of transfer plans: closed forms, arguments, and exactness over kinds, ranks, sizes, modes, topologies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES, load_node, node_names
from c3lib.transfer import (
    HOST_IN,
    HOST_OUT,
    KINDS,
    LOCAL,
    SEND,
    TOPOLOGIES,
    check_plan,
    execute_on_host,
    expected,
    plan_links,
    prove,
    send_buffers,
    shards,
    verify,
)
from c3lib.transfer.builders import BUILDERS, build_plan, variants
from c3lib.transfer.definition import DEFINITIONS

MIB = 1 << 20
PLANS = st.builds(
    lambda variant, nbytes, ranks, engines: build_plan(
        variant.kind, nbytes, ranks, variant.topology, variant.algorithm, variant.mode, engines
    ),
    st.sampled_from(sorted(variants())),
    st.integers(0, 5000) | st.sampled_from([1, 2, 7, 31, 127, 257, 1009, 2048, 2049, 4093, 4999]),
    st.integers(1, 9),
    st.none() | st.integers(1, 14),
)


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("mode", ["push", "pull"])
def test_flat_is_one_step_and_one_copy_an_engine(kind, ranks, mode):
    plan = build_plan(kind, 720 * ranks, ranks, mode=mode)
    remote = ~plan.is_local
    assert plan.steps == 1
    assert len(plan) == ranks * ranks
    assert remote.sum() == ranks * (ranks - 1)
    assert (plan.copies["nbytes"] == 720).all()
    assert plan.remote_nbytes == ranks * (ranks - 1) * 720
    assert (plan.remote_copies_per_rank == ranks - 1).all()
    if ranks > 1:
        assert plan.engines == ranks - 1
        assert (plan.nbytes_per_engine == 720).all()
    assert (plan.nbytes_per_pair == 720).all()
    assert (plan.copies["engine"][plan.is_local] == LOCAL).all()
    assert (plan.copies["src_buffer"] == SEND).all()


@pytest.mark.parametrize(("kind", "algorithm"), [("all-gather", "ring"), ("all-to-all", "pairwise")])
@pytest.mark.parametrize("ranks", [2, 3, 8, 9])
def test_stepped_algorithms_have_one_copy_a_rank_and_step(kind, algorithm, ranks):
    plan = build_plan(kind, 720 * ranks, ranks, algorithm=algorithm)
    remote = plan.copies[~plan.is_local]
    assert plan.steps == ranks - 1
    assert len(remote) == ranks * (ranks - 1)
    for step in range(ranks - 1):
        now = remote[remote["step"] == step]
        assert sorted(now["src_rank"]) == sorted(now["dst_rank"]) == list(range(ranks))
        hop = 1 if algorithm == "ring" else step + 1
        assert ((now["dst_rank"] - now["src_rank"]) % ranks == hop).all()
    assert plan.nbytes_per_step.tolist() == [ranks * 720 * (2 if step == 0 else 1) for step in range(ranks - 1)]


def test_ring_uses_only_the_links_to_the_next_rank():
    links = plan_links(build_plan("all-gather", 8 * 720, 8, algorithm="ring"))
    assert links == {(rank, (rank + 1) % 8): 7 * 720 for rank in range(8)}


def test_conccl_on_eight_gpus_is_56_transfers_on_7_of_14_engines():
    plan = build_plan("all-to-all", 896 * MIB, 8, engines=14)
    assert (~plan.is_local).sum() == 56
    assert (plan.nbytes_per_engine[:, :7] == 112 * MIB).all()
    assert (plan.nbytes_per_engine[:, 7:] == 0).all()
    assert set(plan_links(plan).values()) == {112 * MIB}
    assert len(plan_links(plan)) == 56


def test_fewer_engines_than_peers_are_dealt_in_turn():
    for mode in ("push", "pull"):
        plan = build_plan("all-gather", 8 * 720, 8, mode=mode, engines=3)
        assert (plan.nbytes_per_engine == np.array([3, 2, 2]) * 720).all()
    assert (build_plan("all-gather", 8 * 720, 8, engines=1).nbytes_per_engine == 7 * 720).all()


@pytest.mark.parametrize("variant", sorted(v for v in variants() if v.topology == "mesh"), ids=" ".join)
@pytest.mark.parametrize("engines", [None, 1, 3])
def test_the_nth_copies_of_all_ranks_go_to_different_peers(variant, engines):
    plan = build_plan(variant.kind, 800, 8, "mesh", variant.algorithm, variant.mode, engines)
    issuer, remote = plan.issuer[~plan.is_local], plan.copies[~plan.is_local]
    for turn in range(7):  # one queue or seven: the n-th copy that each rank issues
        now = remote[[np.flatnonzero(issuer == rank)[turn] for rank in range(8)]]
        assert sorted(now["src_rank"]) == sorted(now["dst_rank"]) == list(range(8))
    if variant.algorithm == "flat":
        distance = (remote["src_rank"] + remote["dst_rank"] - 2 * issuer) % 8
        assert (remote["engine"] == (distance - 1) % plan.engines).all()
        assert distance[issuer == 3].tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_host_is_what_one_rank_sends_and_receives(kind):
    plan, mesh = build_plan(kind, 1009, 4, topology="host"), build_plan(kind, 1009, 4)
    links = plan_links(mesh)
    assert plan_links(plan) == {pair: nbytes for pair, nbytes in links.items() if 0 in pair}
    assert plan.engines == 2
    assert plan.src_nbytes[0] == mesh.src_nbytes[0]
    assert plan.dst_nbytes[0] == mesh.dst_nbytes[0]
    moved_in = sum(nbytes for (_, dst), nbytes in links.items() if dst == 0)
    moved_out = sum(nbytes for (src, _), nbytes in links.items() if src == 0)
    assert plan.nbytes_per_engine[0, [HOST_IN, HOST_OUT]].tolist() == [moved_in, moved_out]
    assert (plan.nbytes_per_engine[1:] == 0).all()
    assert build_plan(kind, 1009, 4, topology="host", engines=1).nbytes_per_engine[0, 0] == moved_in + moved_out


def test_shards_are_near_equal_and_the_larger_ones_come_first():
    assert shards(10, 4) == [3, 3, 2, 2]
    assert shards(3, 5) == [1, 1, 1, 0, 0]
    assert shards(0, 2) == [0, 0]
    for nbytes in range(40):
        for ranks in range(1, 12):
            assert shards(nbytes, ranks) == [len(part) for part in np.array_split(np.arange(nbytes), ranks)]


@pytest.mark.parametrize("nbytes", [0, 1, 3, 1009])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_buffers_and_contents_are_what_the_collective_is_defined_to_do(nbytes, ranks):
    gather = build_plan("all-gather", nbytes, ranks)
    whole = np.concatenate(send_buffers(gather, 2))
    assert gather.src_nbytes == tuple(shards(nbytes, ranks))
    assert gather.dst_nbytes == (nbytes,) * ranks
    assert all(np.array_equal(got, whole) for got in expected(gather, 2))
    exchange = build_plan("all-to-all", nbytes, ranks)
    blocks = [np.array_split(buffer, ranks) for buffer in send_buffers(exchange, 2)]
    assert exchange.src_nbytes == (nbytes,) * ranks
    for rank, got in enumerate(expected(exchange, 2)):
        assert np.array_equal(got, np.concatenate([blocks[src][rank] for src in range(ranks)]))


@pytest.mark.parametrize("variant", sorted(variants()), ids=" ".join)
def test_zero_bytes_are_an_empty_sound_plan(variant):
    plan = build_plan(variant.kind, 0, 8, variant.topology, variant.algorithm, variant.mode)
    proof = prove(plan)
    assert len(plan) == plan.steps == plan.moved_nbytes == 0
    assert plan_links(plan) == {}
    assert proof.verified
    assert proof.control_fired is None


@pytest.mark.parametrize("variant", sorted(variants()), ids=" ".join)
def test_one_rank_keeps_its_own_shard(variant):
    plan = build_plan(variant.kind, 77, 1, variant.topology, variant.algorithm, variant.mode)
    assert len(plan) == 1
    assert plan.is_local.all()
    assert plan.remote_nbytes == 0
    assert plan.moved_nbytes == 77
    assert prove(plan).verified
    assert prove(plan).control_fired


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "all-reduce"}, r"unknown collective 'all-reduce'.*known: all-gather, all-to-all"),
        ({"kind": None}, r"unknown collective None"),
        ({"nbytes": -1}, r"nbytes: expected an integer of at least 0, got -1"),
        ({"nbytes": 2.0}, r"nbytes: expected an integer of at least 0, got 2.0"),
        ({"nbytes": "1K"}, r"nbytes: expected an integer"),
        ({"nbytes": True}, r"nbytes: expected an integer"),
        ({"nbytes": 2**58}, r"nbytes: expected at most 1152921504606846976 bytes over all ranks"),
        ({"ranks": 0}, r"ranks: expected an integer of at least 1, got 0"),
        ({"ranks": 8.0}, r"ranks: expected an integer"),
        ({"topology": "ring"}, r"unknown topology 'ring'.*known: host, mesh, switch"),
        ({"algorithm": "pairwise"}, r"unknown algorithm of all-gather 'pairwise'.*known: flat, ring"),
        ({"mode": "both"}, r"unknown mode 'both'"),
        ({"engines": 0}, r"engines: expected an integer of at least 1, got 0"),
        ({"topology": "host", "algorithm": "ring"}, r"algorithm: 'ring' needs links between peers"),
        ({"topology": "host", "mode": "pull"}, r"mode: on topology 'host' rank 0 issues every copy"),
    ],
)
def test_a_bad_argument_is_named(change, message):
    with pytest.raises(C3Error, match=message):
        build_plan(**{"kind": "all-gather", "nbytes": 1000, "ranks": 8, **change})


def test_numpy_integers_are_integers():
    plan = build_plan("all-gather", np.int64(1000), np.int32(4), engines=np.uint8(2))
    assert (plan.nbytes, plan.ranks, plan.engines) == (1000, 4, 2)
    assert type(plan.nbytes) is int


def test_every_node_and_every_collective_of_the_project_has_plans():
    assert set(COLLECTIVES) == set(KINDS) == set(DEFINITIONS) == {kind for kind, _ in BUILDERS}
    for name in node_names():
        node = load_node(name)
        assert node.topology in TOPOLOGIES
        for kind in COLLECTIVES:
            assert prove(build_plan(kind, 1009, node.ranks, node.topology)).verified


# --- exactness --------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(PLANS)
def test_every_plan_is_proved_exact_and_its_control_fires(plan):
    proof = prove(plan)
    assert proof.verified, proof.first_bad
    assert proof.control_fired is (True if len(plan) else None)
    assert proof.moved_nbytes == sum(plan.dst_nbytes)
    assert proof.copies == len(plan)
    assert plan.engines > plan.copies["engine"].max(initial=0)


@settings(max_examples=100, deadline=None)
@given(PLANS, st.data())
def test_any_copy_of_any_plan_dropped_is_noticed(plan, data):
    if len(plan):
        drop = data.draw(st.integers(0, len(plan) - 1))
        outcome = verify(plan, execute_on_host(plan, drop=drop))
        assert not outcome.verified
        assert outcome.verified_nbytes <= plan.moved_nbytes - plan[drop].nbytes


@settings(max_examples=200, deadline=None)
@given(PLANS, st.data())
def test_any_copy_that_moves_reads_or_writes_elsewhere_is_noticed(plan, data):
    if not len(plan):
        return
    index = data.draw(st.integers(0, len(plan) - 1))
    columns = ["src_rank", "src_offset", "dst_rank", "dst_offset", "nbytes"]
    # In a ring any rank that already has the shard may pass it on: another plan, but no wrong one.
    column = data.draw(st.sampled_from(columns if plan[index].src_buffer == SEND else columns[1:]))
    copies = plan.copies.copy()
    copies[column][index] += data.draw(st.integers(-9, 9).filter(bool))
    try:
        mutant = check_plan(replace(plan, copies=copies))
    except C3Error:
        return
    # What the check cannot see, the bytes tell. Eight iterations: one byte alone agrees by chance once in 128.
    assert not all(verify(mutant, execute_on_host(mutant, i), i).verified for i in range(8))


@pytest.mark.parametrize("nbytes", [32 * MIB + delta for delta in (-1, 0, 1)])
def test_sizes_around_a_large_one_are_exact(nbytes):
    assert prove(build_plan("all-gather", nbytes, 2)).verified


@pytest.mark.parametrize(("kind", "algorithm"), BUILDERS)
def test_eight_ranks_with_16_mib_are_exact(kind, algorithm):
    proof = prove(build_plan(kind, 16 * MIB, 8, algorithm=algorithm))
    assert proof.verified
    assert proof.control_fired
    assert proof.moved_nbytes == 128 * MIB
    assert list(proof.as_row())[:6] == ["kind", "algorithm", "mode", "topology", "ranks", "nbytes"]


def test_a_plan_of_many_copies_is_sound():
    for kind, algorithm in BUILDERS:
        plan = check_plan(build_plan(kind, 100_003, 128, algorithm=algorithm))
        assert len(plan) == 128 * 128
