"""Transfer plans: the format, the check that names the copy, the pattern, the host executor, the byte check."""

import doctest
from dataclasses import replace

import numpy as np
import pytest

from c3lib.errors import C3Error
from c3lib.files import ROOT
from c3lib.transfer import (
    LOCAL,
    POISON,
    RECEIVE,
    SEND,
    Copy,
    TransferPlan,
    check_plan,
    execute_on_host,
    expected,
    pattern,
    plan_links,
    prove,
    send_buffers,
    verify,
)
from c3lib.transfer.builders import build_plan
from c3lib.transfer.plan import COLUMNS

FLAT = build_plan("all-gather", 1000, 4)
RING = build_plan("all-gather", 1000, 4, algorithm="ring")
A2A = build_plan("all-to-all", 1000, 4)
PAIRWISE = build_plan("all-to-all", 1000, 4, algorithm="pairwise")
HOST = build_plan("all-to-all", 1000, 4, topology="host")


def changed(plan, index, **columns):
    """``plan`` with some fields of one copy replaced."""
    copies = plan.copies.copy()
    for name, value in columns.items():
        copies[name][index] = value
    return replace(plan, copies=copies)


def swapped(plan, first, second, *columns):
    """``plan`` with some fields of two copies exchanged."""
    copies = plan.copies.copy()
    for name in columns:
        copies[name][[first, second]] = copies[name][[second, first]]
    return replace(plan, copies=copies)


def find(plan, **columns):
    """Index of the first copy with these fields."""
    return next(i for i, c in enumerate(plan) if all(getattr(c, name) == value for name, value in columns.items()))


# --- the format -------------------------------------------------------------------------------------------------------


def test_a_plan_written_by_hand_is_the_plan_of_the_builder():
    by_hand = TransferPlan(
        "all-gather", "flat", 5, 2, "mesh", "push", 1, (3, 2), (5, 5),
        [Copy(0, 0, 0, 0, 0, 3, LOCAL), Copy(0, 0, 0, 1, 0, 3, 0),
         Copy(0, 1, 0, 1, 3, 2, LOCAL), Copy(0, 1, 0, 0, 3, 2, 0)],
    )  # fmt: skip
    built = build_plan("all-gather", 5, 2)
    assert list(by_hand) == list(built)
    assert (by_hand.src_nbytes, by_hand.dst_nbytes) == (built.src_nbytes, built.dst_nbytes)
    assert prove(by_hand).verified


def test_copies_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="read-only"):
        FLAT.copies["nbytes"][0] = 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nbytes": -1}, r"nbytes: expected an integer of at least 0, got -1"),
        ({"ranks": 0}, r"ranks: expected an integer of at least 1, got 0"),
        ({"engines": 0}, r"engines: expected an integer of at least 1"),
        ({"topology": "torus"}, r"unknown topology 'torus'"),
        ({"mode": "pul"}, r"unknown mode 'pul' \(did you mean 'pull'\?\)"),
        ({"src_nbytes": (1, 2)}, r"src_nbytes: expected one size for each of 4 ranks, got 2"),
        ({"dst_nbytes": (1, 2, 3, -4)}, r"dst_nbytes: expected an integer of at least 0, got -4"),
        ({"dst_nbytes": (2**62, 0, 0, 0)}, r"dst_nbytes: expected at most"),
        ({"copies": np.zeros(3)}, r"copies: expected a one-dimensional array with the fields step, "),
        ({"copies": [Copy(0, 0, 0, 0, 0, 2.5, LOCAL)]}, r"copies\[0\].nbytes: expected an integer .* got 2.5"),
    ],
)
def test_a_plan_that_does_not_fit_together_is_refused(fields, message):
    with pytest.raises(C3Error, match=message):
        replace(FLAT, **fields)


def test_sums_agree_with_each_other():
    for plan in (FLAT, RING, A2A, PAIRWISE, HOST):
        pairs = plan.nbytes_per_pair
        assert pairs.sum() == plan.moved_nbytes == plan.nbytes_per_step.sum() == sum(plan.dst_nbytes)
        assert pairs.sum() - np.trace(pairs) == plan.remote_nbytes == plan.nbytes_per_engine.sum()
        assert sum(plan_links(plan).values()) == plan.remote_nbytes
        assert plan.remote_copies_per_rank.sum() == (~plan.is_local).sum()


def test_the_issuer_follows_the_mode():
    pull = build_plan("all-to-all", 1000, 4, mode="pull")
    assert (A2A.issuer == A2A.copies["src_rank"]).all()
    assert (pull.issuer == pull.copies["dst_rank"]).all()
    assert (HOST.issuer == 0).all()


def test_rows_and_frame_show_every_field():
    rows, frame = HOST.to_rows(), HOST.to_frame()
    assert len(rows) == len(frame) == len(HOST)
    assert frame.to_dict("records") == rows
    row, copy = rows[-1], HOST[len(HOST) - 1]
    assert (row["copy"], row["issuer"], row["local"]) == (len(HOST) - 1, 0, False)
    assert Copy(*(row[name] for name in Copy.__dataclass_fields__)) == copy
    assert list(build_plan("all-gather", 0, 3).to_frame().columns) == list(frame.columns)


# --- the check: each unsound plan is refused, and the copy named ------------------------------------------------------

REMOTE = find(FLAT, src_rank=1, dst_rank=2)
FORWARD = find(RING, step=1, src_rank=2)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (changed(FLAT, 3, step=-1), r"copy 3 \(step -1, .*: step is negative"),
        (changed(FLAT, 3, src_rank=4), r"copy 3 .*: source rank is not one of 0\.\.3"),
        (changed(FLAT, 3, dst_rank=-1), r"copy 3 .*: destination rank is not one of 0\.\.3"),
        (changed(FLAT, 3, src_buffer=2), r"copy 3 \(step 0, unknown \(2\) buffer .*: source buffer is neither"),
        (changed(FLAT, 3, src_offset=-1), r"copy 3 .*: offset is negative"),
        (changed(FLAT, 3, dst_offset=-(2**60)), r"copy 3 .*: offset is negative"),
        (changed(FLAT, 3, nbytes=0), r"copy 3 .* 0 bytes, .*: size is not at least one byte"),
        (changed(FLAT, 3, nbytes=-250), r"copy 3 .*: size is not at least one byte"),
        (changed(FLAT, 0, engine=0), r"copy 0 .*: a copy within a rank uses no engine, expected -1"),
        (changed(FLAT, REMOTE, engine=LOCAL), rf"copy {REMOTE} .*: engine is not one of 0\.\.2"),
        (changed(FLAT, REMOTE, engine=3), rf"copy {REMOTE} .* engine 3\): engine is not one of 0\.\.2"),
        (changed(FLAT, REMOTE, nbytes=251), rf"copy {REMOTE} .*: overruns its source buffer of 250 bytes"),
        (changed(FLAT, REMOTE, src_offset=1), rf"copy {REMOTE} .*: overruns its source buffer of 250 bytes"),
        (changed(FLAT, REMOTE, dst_offset=751), rf"copy {REMOTE} .*: overruns its destination buffer of 1000"),
        (changed(FLAT, REMOTE, dst_offset=2**62), rf"copy {REMOTE} .*: overruns its destination buffer"),
        (changed(FLAT, REMOTE, nbytes=2**62), rf"copy {REMOTE} .*: overruns its source buffer"),
        (changed(FLAT, REMOTE, dst_offset=251), r"copy 8 .* overlaps the destination bytes of copy 5 "),
        (changed(FLAT, REMOTE, dst_offset=249), rf"copy {REMOTE} .* overlaps the destination bytes of copy 2 "),
        (changed(FLAT, REMOTE, dst_rank=3, engine=1), r"copy 6 .* duplicates the destination bytes of copy 5 "),
        (changed(FLAT, REMOTE, nbytes=249), r"bytes \[499, 500\) of rank 2's receive buffer are written by no copy"),
        (changed(FLAT, len(FLAT) - 1, step=1, nbytes=249), r"bytes \[999, 1000\) of rank 2.*last written .* copy 15 "),
        (changed(A2A, 3, step=1), r"copy 4 .*: step is lower than that of the copy before it"),
        (changed(HOST, find(HOST, dst_rank=2), engine=0), r"copy 3 .*: wrong direction for this engine: 0 moves in"),
        (changed(HOST, find(HOST, dst_rank=2), src_rank=1), r"copy 3 .*: no link joins two peers of a host topology"),
        (changed(RING, FORWARD, step=0), rf"copy {FORWARD} .*: step is lower than that of the copy before it"),
        (changed(RING, FORWARD, src_offset=0), rf"copy {FORWARD} .* reads bytes that are written in step 1, "),
        (changed(RING, FORWARD, src_offset=249), rf"copy {FORWARD} .* reads bytes that are written in step 1, "),
        (changed(RING, slice(None), step=0), r"copy 8 .* reads bytes that are written in step 0, "),
        (changed(FLAT, REMOTE, src_buffer=RECEIVE), rf"copy {REMOTE} .* reads bytes that are written in step 0, "),
    ],
)
def test_an_unsound_plan_is_refused_and_its_copy_named(plan, message):
    for refuse in (check_plan, execute_on_host, prove):
        with pytest.raises(C3Error, match=message):
            refuse(plan)


@pytest.mark.parametrize("plan", [FLAT, RING, A2A, PAIRWISE, HOST], ids=str)
def test_every_copy_dropped_is_missed_and_every_copy_doubled_is_noticed(plan):
    for index, copy in enumerate(plan):
        first, last = copy.dst_offset, copy.dst_offset + copy.nbytes
        with pytest.raises(C3Error, match=rf"bytes \[{first}, {last}\) of rank {copy.dst_rank}'s .* by no copy"):
            check_plan(replace(plan, copies=np.delete(plan.copies, index)))
        with pytest.raises(C3Error, match=rf"copy {index + 1} .* duplicates the destination bytes of copy {index} "):
            check_plan(replace(plan, copies=np.insert(plan.copies, index, plan.copies[index])))


def test_a_rank_that_receives_nothing_is_named():
    nobody = replace(FLAT, copies=FLAT.copies[FLAT.copies["dst_rank"] != 2])
    with pytest.raises(
        C3Error, match=r"bytes \[0, 1000\) of rank 2's receive buffer are written by no copy, nor is any"
    ):
        check_plan(nobody)
    with pytest.raises(C3Error, match=r"bytes \[0, 1000\) of rank 0's receive buffer"):
        check_plan(replace(FLAT, copies=FLAT.copies[:0]))


def test_ring_steps_in_the_wrong_order_are_refused():
    turned = RING.copies.copy()
    turned["step"] = np.where(turned["src_buffer"] == SEND, 0, 3 - turned["step"])
    turned = turned[np.argsort(turned["step"], kind="stable")]
    with pytest.raises(C3Error, match=r"copy 8 \(step 1, .* reads bytes that are written in step 2"):
        check_plan(replace(RING, copies=turned))


# --- the pattern ------------------------------------------------------------------------------------------------------


def test_pattern_bytes_are_never_zero_nor_poison_and_all_128_values_are_about_as_frequent():
    values, counts = np.unique(pattern(3, 1 << 20, 5), return_counts=True)
    assert values.tolist() == list(range(128, 256))
    assert POISON not in values
    assert POISON != 0
    assert counts.min() > 0.95 * (1 << 13)
    assert counts.max() < 1.05 * (1 << 13)


def test_pattern_depends_on_rank_offset_and_iteration():
    base = pattern(1, 1 << 16)
    for other in (pattern(2, 1 << 16), pattern(1, 1 << 16, 1), np.roll(base, 1), np.roll(base, 8), np.roll(base, 4096)):
        assert abs((other == base).mean() - 1 / 128) < 0.002


def test_pattern_of_a_shorter_buffer_is_its_beginning_and_blocks_join():
    long = pattern(4, 3 * (1 << 18) + 5, 2)
    for nbytes in (0, 1, 7, 8, 9, (1 << 18) - 1, 1 << 18, (1 << 18) + 1):
        assert np.array_equal(pattern(4, nbytes, 2), long[:nbytes])


def test_pattern_is_the_same_on_every_machine():
    assert pattern(0, 4).tolist() == [139, 190, 229, 175]
    assert pattern(7, 3, 9).tolist() == [238, 227, 235]


@pytest.mark.parametrize("arguments", [(-1, 4), (0, -4), (0, 4, -1), (0, 4.0), (True, 4)])
def test_pattern_refuses_what_is_no_count(arguments):
    with pytest.raises(C3Error, match="expected an integer of at least 0"):
        pattern(*arguments)


# --- running and comparing --------------------------------------------------------------------------------------------


def test_the_host_runs_a_sound_plan_exactly():
    for plan in (FLAT, RING, A2A, PAIRWISE, HOST):
        received = execute_on_host(plan, 3)
        assert all(np.array_equal(got, want) for got, want in zip(received, expected(plan, 3), strict=True))
        outcome = verify(plan, received, 3)
        assert outcome.verified
        assert outcome.first_bad is None
        assert outcome.verified_nbytes == plan.moved_nbytes


@pytest.mark.parametrize(
    ("fill", "found"), [(POISON, "poison"), (0, "zeros"), (1, "other bytes"), (200, "other bytes")]
)
@pytest.mark.parametrize("plan", [FLAT, A2A, HOST], ids=str)
def test_untouched_zero_and_constant_buffers_fail(plan, fill, found):
    outcome = verify(plan, [np.full(nbytes, fill, np.uint8) for nbytes in plan.dst_nbytes])
    assert not outcome.verified
    assert outcome.first_bad.found == found
    assert outcome.first_bad.rank == 0
    assert outcome.verified_nbytes < 0.03 * plan.moved_nbytes  # only where a constant happens to fit
    if fill < 128:
        assert outcome.verified_nbytes == 0
        assert (outcome.first_bad.start, outcome.first_bad.stop) == (0, 250)


def test_the_bytes_of_another_iteration_fail():
    assert not verify(FLAT, execute_on_host(FLAT, 0), 1).verified


def test_one_wrong_byte_is_found_and_its_copy_named():
    received = execute_on_host(A2A)
    received[2][623] ^= 1
    bad = verify(A2A, received).first_bad
    assert (bad.rank, bad.start, bad.stop, bad.src_rank, bad.src_offset) == (2, 623, 624, 2, 623)
    assert A2A[bad.copy].dst_rank == 2
    assert A2A[bad.copy].dst_offset == 500
    assert f"should come from rank 2 offset 623 but hold other bytes; written by copy {bad.copy} (" in str(bad)
    assert verify(A2A, received).verified_nbytes == A2A.moved_nbytes - 1


def test_one_seed_for_all_ranks_would_be_noticed():
    same = [pattern(0, nbytes) for nbytes in A2A.src_nbytes]
    assert not verify(A2A, execute_on_host(A2A, sends=same)).verified


def _pair(plan, first, second):
    return find(plan, **first), find(plan, **second)


WRONG_CONTENT = {
    "two sources swapped, all-gather": (
        FLAT, _pair(FLAT, {"src_rank": 1, "dst_rank": 3}, {"src_rank": 2, "dst_rank": 3}), "src_rank"),
    "two sources swapped, all-to-all": (
        A2A, _pair(A2A, {"src_rank": 1, "dst_rank": 3}, {"src_rank": 2, "dst_rank": 3}), "src_rank"),
    "two sources swapped, host": (
        HOST, _pair(HOST, {"src_rank": 1, "dst_rank": 0}, {"src_rank": 3, "dst_rank": 0}), "src_rank"),
    "two chunks permuted at the source": (
        A2A, _pair(A2A, {"src_rank": 2, "dst_rank": 1}, {"src_rank": 2, "dst_rank": 3}), "src_offset"),
    "two chunks permuted at the destination": (
        PAIRWISE, _pair(PAIRWISE, {"src_rank": 1, "dst_rank": 0}, {"src_rank": 3, "dst_rank": 0}), "dst_offset"),
    "two destinations swapped": (
        A2A, _pair(A2A, {"src_rank": 0, "dst_rank": 1}, {"src_rank": 0, "dst_rank": 2}), "dst_rank"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_CONTENT)
def test_right_places_but_wrong_bytes_are_found_by_running(name):
    plan, pair, column = WRONG_CONTENT[name]
    mutant = check_plan(swapped(plan, *pair, column))
    outcome = verify(mutant, execute_on_host(mutant))
    assert not outcome.verified
    assert outcome.first_bad.copy in pair
    assert outcome.first_bad.found == "other bytes"
    assert outcome.first_bad.start % 250 == 0
    assert outcome.first_bad.stop - outcome.first_bad.start > 200
    assert plan.moved_nbytes - 500 <= outcome.verified_nbytes < plan.moved_nbytes - 450
    assert not prove(mutant).verified
    assert f"copy {outcome.first_bad.copy} (" in prove(mutant).first_bad


@pytest.mark.parametrize("shift", [1, -1, 8, 250])
def test_a_shifted_source_is_found_by_running(shift):
    index = find(A2A, src_rank=3, dst_rank=1)
    mutant = check_plan(changed(A2A, index, src_offset=A2A[index].src_offset + shift))
    assert verify(mutant, execute_on_host(mutant)).first_bad.copy == index


def test_a_ring_that_passes_on_an_older_shard_is_found_by_running():
    index = find(RING, step=2, src_rank=2)  # passes on shard 0, which came in step 1; shard 1 came in step 0
    for src_offset in (250, 1):
        mutant = check_plan(changed(RING, index, src_offset=src_offset))
        assert verify(mutant, execute_on_host(mutant)).first_bad.copy == index


def test_the_definition_not_the_plan_says_how_large_buffers_are():
    short = TransferPlan("all-to-all", "flat", 8, 1, "mesh", "push", 1, (4,), (4,), [Copy(0, 0, 0, 0, 0, 4, LOCAL)])
    with pytest.raises(C3Error, match=r"dst_nbytes\[0\]: expected 8, as the collective defines it, got 4"):
        check_plan(short)
    with pytest.raises(C3Error, match=r"destinations\[0\]: expected 8 uint8 bytes"):
        verify(short, [np.zeros(4, np.uint8)])
    again = replace(short, dst_nbytes=(8,), copies=[Copy(0, 0, 0, 0, 0, 4, LOCAL), Copy(0, 0, 0, 0, 4, 4, LOCAL)])
    with pytest.raises(C3Error, match="send buffer of rank 0 is smaller than the collective needs"):
        prove(again)


def test_a_plan_that_moves_nothing_into_buffers_said_to_be_empty_is_unsound():
    for plan in (FLAT, RING, A2A, PAIRWISE):
        with pytest.raises(C3Error, match=r"dst_nbytes\[0\]: expected \d+, as the collective defines it, got 0"):
            check_plan(replace(plan, dst_nbytes=(0,) * plan.ranks, copies=[]))


def test_a_plan_of_an_unknown_collective_is_unsound():
    with pytest.raises(C3Error, match="unknown collective 'all-reduce'; known: all-gather, all-to-all"):
        check_plan(replace(FLAT, kind="all-reduce"))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_field_too_large_for_64_bits_is_refused_by_name(name):
    with pytest.raises(C3Error, match=rf"copies\[0\]\.{name}: expected at most {2**60}, got {2**63}"):
        replace(FLAT, copies=[replace(FLAT[0], **{name: 2**63})])


def test_more_ranks_than_memory_has_room_for_their_copies_are_refused():
    with pytest.raises(C3Error, match="ranks: expected at most 1024, got 1025"):
        build_plan("all-gather", 0, 1025)
    assert len(build_plan("all-gather", 1024, 1024)) == 1024**2


@pytest.mark.parametrize("index", range(len(FLAT)))
def test_dropping_any_copy_is_noticed(index):
    for plan in (FLAT, RING, A2A, PAIRWISE):
        outcome = verify(plan, execute_on_host(plan, drop=index))
        assert not outcome.verified
        assert outcome.first_bad.found == "poison"
        assert outcome.verified_nbytes <= plan.moved_nbytes - 250
        if plan.algorithm != "ring":  # a ring passes the hole on
            assert outcome.first_bad.copy == index
            assert outcome.verified_nbytes == plan.moved_nbytes - 250


@pytest.mark.parametrize("drop", [-1, len(FLAT), 1.5, True])
def test_a_drop_that_does_not_exist_is_refused(drop):
    with pytest.raises(C3Error, match="drop: "):
        execute_on_host(FLAT, drop=drop)


def test_destinations_of_the_wrong_shape_are_refused():
    received = execute_on_host(FLAT)
    with pytest.raises(C3Error, match=r"destinations: expected one array for each of 4 ranks, got 3"):
        verify(FLAT, received[:3])
    with pytest.raises(C3Error, match=r"destinations\[1\]: expected 1000 uint8 bytes, got uint8 of shape \(999,\)"):
        verify(FLAT, [received[0], received[1][:-1], *received[2:]])
    with pytest.raises(C3Error, match=r"destinations\[0\]: .* got int8"):
        verify(FLAT, [array.view(np.int8) for array in received])


def test_send_buffers_have_the_sizes_of_the_plan():
    assert [len(buffer) for buffer in send_buffers(HOST)] == list(HOST.src_nbytes) == [1000, 250, 250, 250]


def test_the_examples_of_the_documentation_run():
    path = ROOT / "docs" / "transfer_plans.md"
    outcome = doctest.testfile(str(path), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert outcome.attempted >= 10
    assert outcome.failed == 0
