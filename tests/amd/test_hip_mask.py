"""Masks of compute units: closed forms on MI300X, and what holds of every mask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from c3lib.amd.mask import CuMask
from c3lib.errors import C3Error

MI300X = {"cus": 304, "xcds": 8}


def test_the_low_sixteen_bits_are_two_cus_of_each_die():
    mask = CuMask.of(16, **MI300X)
    assert mask.words == (0xFFFF, *[0] * 9)
    assert mask.per_xcd == (2,) * 8
    assert str(mask) == "16 of 304 CUs, 2 on each of 8 XCDs"


def test_what_is_left_of_the_gpu_is_the_rest_and_no_bit_beyond_the_last_cu():
    mask = CuMask.without(8, **MI300X)
    assert mask.words == (0xFFFFFF00, *[0xFFFFFFFF] * 8, 0xFFFF)
    assert mask.per_xcd == (37,) * 8


def test_the_whole_gpu_is_ten_words_of_which_the_last_is_half_full():
    assert CuMask.without(0, **MI300X).words == (*[0xFFFFFFFF] * 9, 0xFFFF)


def test_one_partition_of_a_gpu_in_eight_has_one_die():
    assert CuMask.of(5, cus=38, xcds=1).words == (0x1F, 0)


def test_the_low_38_bits_are_not_a_die_and_the_slowest_die_counts():
    mask = CuMask((1 << 38) - 1, **MI300X)
    assert mask.per_xcd == (5, 5, 5, 5, 5, 5, 4, 4)
    assert mask.effective_per_xcd == 4


@pytest.mark.parametrize("count", [0, -8, 4, 12, 312])
def test_impossible_counts_are_refused_in_one_sentence(count):
    with pytest.raises(C3Error, match=rf"cannot set {count} of 304 CUs apart; expected a multiple of 8 up to 304"):
        CuMask.of(count, **MI300X)


def test_somebody_must_be_left_for_the_gemm():
    with pytest.raises(C3Error, match="cannot set 304 of 304 CUs apart; expected a multiple of 8 up to 296"):
        CuMask.without(304, **MI300X)


def test_a_die_without_a_cu_is_refused():
    with pytest.raises(C3Error, match="leaves no CU on XCD 7"):
        CuMask(0x7F, **MI300X)


def test_bits_that_the_driver_would_drop_are_refused_but_mean_nothing_when_read_back():
    with pytest.raises(C3Error, match="beyond the 304 CUs"):
        CuMask(1 << 304, **MI300X)
    assert CuMask.of(304, **MI300X).same_as([0xFFFFFFFF] * 10)
    assert not CuMask.of(296, **MI300X).same_as([0xFFFFFFFF] * 10)


def test_cus_that_do_not_lie_evenly_or_on_no_known_die_are_refused():
    with pytest.raises(C3Error, match="304 CUs do not lie evenly on 7 XCDs"):
        CuMask(1, cus=304, xcds=7)
    with pytest.raises(C3Error, match="cannot set 8"):
        CuMask.of(8, cus=304, xcds=0)


gpus = st.tuples(st.integers(1, 8), st.integers(2, 48)).map(lambda pair: {"cus": pair[0] * pair[1], "xcds": pair[0]})


@given(gpus, st.data())
def test_a_mask_and_what_it_leaves_are_the_gpu_and_share_nothing(gpu, data):
    count = gpu["xcds"] * data.draw(st.integers(1, gpu["cus"] // gpu["xcds"] - 1))
    taken, left = CuMask.of(count, **gpu), CuMask.without(count, **gpu)
    assert taken.bits & left.bits == 0
    assert taken.bits | left.bits == (1 << gpu["cus"]) - 1
    assert taken.count == count
    assert set(taken.per_xcd) == {count // gpu["xcds"]}
    assert left.same_as(left.words)
    assert not left.same_as(taken.words)
    assert all(0 <= word < 1 << 32 for word in left.words)


@given(gpus, st.data())
def test_each_bit_belongs_to_the_die_of_its_number(gpu, data):
    every = (1 << gpu["cus"]) - 1
    bit = data.draw(st.integers(0, gpu["cus"] - 1))
    lacking = CuMask(every, **gpu).per_xcd
    expected = tuple(n - (xcd == bit % gpu["xcds"]) for xcd, n in enumerate(lacking))
    assert CuMask(every & ~(1 << bit), **gpu).per_xcd == expected
