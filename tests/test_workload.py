"""Workloads: flops and bytes by hand, sizes stated twice, the taxonomy's edges, text that is not a size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_cases import H200, MI300X, dimensions, gemms, sizes

from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES
from c3lib.workload import DTYPE_BYTES, LARGEST, Collective, Gemm, format_size, length_class, parse_size


@pytest.mark.parametrize(
    ("gemm", "flops", "nbytes"),
    [
        (Gemm(1, 1, 1), 2, 6),
        (Gemm(2, 3, 5), 60, 2 * (10 + 15 + 6)),
        (Gemm(2, 3, 5, "fp32"), 60, 4 * 31),
        (Gemm(2, 3, 5, "fp8"), 60, 31),
        (Gemm(8192, 8192, 8192), 2 * 8192**3, 2 * 3 * 8192**2),
    ],
)
def test_flops_and_bytes_by_hand(gemm, flops, nbytes):
    assert (gemm.flops, gemm.nbytes, gemm.intensity) == (flops, nbytes, flops / nbytes)


def test_intensity_of_a_square_gemm_is_a_third_of_its_edge():
    assert Gemm(6000, 6000, 6000).intensity == pytest.approx(6000 / 3)


@given(gemms)
def test_bound_is_the_side_of_the_ridge(gemm):
    for gpu in (MI300X.gpu, H200.gpu):
        assert gemm.bound(gpu) == ("compute" if gemm.flops >= gpu.ridge * gemm.nbytes else "memory")


def test_both_bounds_occur():
    assert Gemm(8192, 8192, 8192).bound(MI300X.gpu) == "compute"
    assert Gemm(64, 8192, 8192).bound(MI300X.gpu) == "memory"


@given(dimensions, dimensions, dimensions)
def test_transposing_the_product_changes_neither_flops_nor_bytes(m, n, k):
    assert (Gemm(m, n, k).flops, Gemm(m, n, k).nbytes) == (Gemm(n, m, k).flops, Gemm(n, m, k).nbytes)


@given(gemms)
def test_a_gemm_reads_back_from_its_text(gemm):
    assert Gemm.parse(str(gemm), gemm.dtype) == gemm


@given(st.sampled_from(COLLECTIVES), sizes, st.integers(1, 64))
def test_total_and_rank_bytes_are_tied(kind, nbytes, ranks):
    """M11: rank pieces cover the total, and none is a whole byte larger than it must be."""
    collective = Collective(kind, nbytes, ranks)
    assert 0 <= ranks * collective.rank_bytes - nbytes < ranks
    assert collective.sent_bytes == (ranks - 1) * collective.rank_bytes


def test_one_rank_sends_nothing():
    assert Collective("all-gather", 1000, 1).sent_bytes == 0


@pytest.mark.parametrize(
    ("nbytes", "ranks", "rank_bytes", "sent"), [(896, 8, 112, 784), (9, 8, 2, 14), (0, 8, 0, 0), (1, 2, 1, 1)]
)
def test_rank_bytes_by_hand(nbytes, ranks, rank_bytes, sent):
    collective = Collective("all-to-all", nbytes, ranks)
    assert (collective.rank_bytes, collective.sent_bytes) == (rank_bytes, sent)


@pytest.mark.parametrize(
    ("gemm_s", "collective_s", "expected"),
    [
        (1.0, 1.0, "GC-equal"),
        (1.15, 1.0, "GC-equal"),
        (1.151, 1.0, "G-long"),
        (1.0, 1.15, "GC-equal"),
        (1.0, 1.151, "C-long"),
        (1.0, 0.0, "G-long"),
    ],
)
def test_length_class_at_its_edges(gemm_s, collective_s, expected):
    assert length_class(gemm_s, collective_s) == expected


@given(st.floats(1e-6, 1), st.floats(1e-6, 1), st.sampled_from([0.25, 2.0, 1024.0]))
def test_length_class_has_no_unit_and_mirrors(gemm_s, collective_s, scale):
    mirrored = {"G-long": "C-long", "C-long": "G-long", "GC-equal": "GC-equal"}
    assert length_class(gemm_s * scale, collective_s * scale) == length_class(gemm_s, collective_s)
    assert length_class(collective_s, gemm_s) == mirrored[length_class(gemm_s, collective_s)]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("896MiB", 896 * 2**20),
        ("128MB", 128_000_000),
        ("1.5 GB", 1_500_000_000),
        ("1.1MB", 1_100_000),
        ("4096", 4096),
        ("4_096 b", 4096),
        ("1tib", 2**40),
        ("9007199254740991", 2**53 - 1),
        ("0", 0),
    ],
)
def test_sizes_read(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "MiB",
        "_",
        "1__0",
        "-1",
        "1.5",
        "1e6",
        "3 PB",
        "5iB",
        "0x10",
        "nan",
        "inf",
        "٣",
        "9" * 20,
        "9" * 500,
        "9000TiB",
    ],
)
def test_no_size(text):
    with pytest.raises(C3Error, match="size"):
        parse_size(text)


@given(st.integers(0, 2**30), st.sampled_from(["KiB", "MiB", "KB", "MB", ""]))
def test_whole_sizes_read_exactly(number, unit):
    scale = {"KiB": 2**10, "MiB": 2**20, "KB": 10**3, "MB": 10**6, "": 1}[unit]
    if number * scale <= LARGEST:
        assert parse_size(f"{number}{unit}") == number * scale


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (896 * 2**20, "896 MiB"), (2**50, "1024 TiB")]
)
def test_sizes_written(nbytes, text):
    assert format_size(nbytes) == text


@pytest.mark.parametrize("name", ["m", "n", "k"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8", None, float("nan"), LARGEST + 1])
def test_impossible_dimensions_are_named(name, value):
    with pytest.raises(C3Error, match=f"gemm {name} must be"):
        Gemm(**{"m": 8, "n": 8, "k": 8, name: value})


@pytest.mark.parametrize(("name", "value"), [("nbytes", -1), ("nbytes", 1.0), ("ranks", 0), ("ranks", False)])
def test_impossible_collectives_are_named(name, value):
    with pytest.raises(C3Error, match=f"collective {name} must be"):
        Collective(**{"kind": "all-gather", "nbytes": 8, "ranks": 8, name: value})


def test_unknown_names_suggest_the_near_one():
    with pytest.raises(C3Error, match=r"unknown collective 'all-gathr' \(did you mean 'all-gather'\?\)"):
        Collective("all-gathr", 8, 8)
    with pytest.raises(C3Error, match=r"unknown dtype 'bf61' \(did you mean 'bf16'\?\)"):
        Gemm(8, 8, 8, "bf61")


@pytest.mark.parametrize("text", ["", "8x8", "8x8x8x8", "axbxc", "-8x8x8", "8.0x8x8", "8x8x" + "9" * 5000, "0x8x8"])
def test_no_gemm(text):
    with pytest.raises(C3Error, match="gemm"):
        Gemm.parse(text)


@pytest.mark.parametrize("digits", [17, 20, 5000])
def test_numbers_that_are_too_large_are_said_to_be(digits):
    number = "9" * digits
    too_large = f"must be at most {LARGEST}, not a number of {digits} digits"
    for name, text in (("m", f"{number}x8x8"), ("n", f"8x{number}x8"), ("k", f"8*8X {number} ")):
        with pytest.raises(C3Error, match=f"^gemm {name} {too_large}$"):
            Gemm.parse(text)
    for text in (number, f"{number}.5MiB", f"{number} GB"):
        with pytest.raises(C3Error, match=f"^size {too_large}$"):
            parse_size(text)
    assert Gemm.parse("0" * digits + "8x8x8") == Gemm(8, 8, 8)
    with pytest.raises(C3Error, match=f"gemm m must be at most {LARGEST}$"):
        Gemm.parse(f"{LARGEST + 1}x8x8")


def test_a_long_text_is_not_repeated_whole():
    for read in (Gemm.parse, parse_size):
        with pytest.raises(C3Error, match=r"not 'a{60}' and 4940 characters more$"):
            read("a" * 5000)


def test_numpy_numbers_become_python_numbers():
    """In NumPy's 64 bits 2 m n k of a large GEMM would overflow without a word."""
    large = Gemm(*np.array([2**31, 2**31, 2**31]))
    assert large.flops == 2**94
    assert type(Collective("all-gather", np.int32(8), np.int64(8)).nbytes) is int


def test_every_dtype_has_a_size():
    assert DTYPE_BYTES == {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1}
