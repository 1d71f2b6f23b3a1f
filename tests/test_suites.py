"""Suites: the fixed one is complete and realistic, the random one is held out, and bad rows are found by line."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import MI300X, NODES

from c3lib.errors import C3Error
from c3lib.suites import COLUMNS, MATRICES, SIZED_FOR, load_suite, random_suite, require_sized, suite_names
from c3lib.workload import length_class

SUITE = load_suite("conccl30", 8)
HEADER = ",".join(COLUMNS)
GOOD = "a,8,8,8,bf16,all-gather,1024,made up"


def test_conccl30_is_thirty_pairs_of_both_kinds():
    assert suite_names() == ["conccl30", "conccl30_host", "conccl30_nvlink", "no_gpu"]
    assert len(SUITE) == len({scenario.name for scenario in SUITE}) == 30
    by_kind = {kind: [s for s in SUITE if s.collective.kind == kind] for kind in ("all-gather", "all-to-all")}
    pairs = [[(s.gemm, s.collective.nbytes) for s in part] for part in by_kind.values()]
    assert len(pairs[0]) == 15
    assert pairs[0] == pairs[1]  # the same GEMMs and sizes: the kinds are comparable
    assert all(scenario.origin for scenario in SUITE)
    assert min(scenario.collective.nbytes for scenario in SUITE) >= 128e6  # the paper's smallest size


def test_a_suite_that_was_sized_for_some_links_says_so_and_is_refused_elsewhere():
    """What a file says of its sizes and what the program refuses are the same suites."""
    sized = {name for name in suite_names() if any("; size for " in one.origin for one in load_suite(name, 8))}
    assert sized == set(SIZED_FOR)
    for name in suite_names():
        for node in NODES.values():
            if SIZED_FOR.get(name, node.topology) == node.topology:
                require_sized(name, node)
                continue
            with pytest.raises(
                C3Error, match=f"suite {name}: .*topology {SIZED_FOR[name]}, and {node.name} is"
            ) as said:
                require_sized(name, node)
            require_sized(str(said.value).split("--suite ")[1], node)
    require_sized("ad hoc", NODES["h200_1"])


def test_every_cell_of_the_taxonomy_is_filled():
    from c3lib.model import kernels

    gemm, collective = kernels.batch(SUITE, MI300X)
    times = zip(kernels.gemm_time_s(gemm, 304, MI300X), kernels.library_time_s(collective, MI300X), strict=True)
    cells = {
        (length_class(*pair), scenario.gemm.bound(MI300X.gpu)) for scenario, pair in zip(SUITE, times, strict=True)
    }
    assert {cell for cell, _ in cells} == {"G-long", "C-long", "GC-equal"}
    assert {bound for _, bound in cells} == {"compute", "memory"}


def test_most_gemms_are_those_of_real_models():
    real = [s for s in SUITE if not s.name.startswith("synthetic")]
    assert len(real) >= 26
    shapes = set(MATRICES.values()) | {(n // 2, k) for name, (n, k) in MATRICES.items() if "gateup" in name}
    assert all((s.gemm.n, s.gemm.k) in shapes for s in real)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_total_does_not_depend_on_the_ranks(ranks):
    suite = load_suite("conccl30", ranks)
    assert [s.collective.nbytes for s in suite] == [s.collective.nbytes for s in SUITE]
    assert {s.collective.ranks for s in suite} == {ranks}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "holds no scenario"),
        (["a,8,8,8,bf16,all-gather,1024"], "line 2: expected 8 values"),
        ([GOOD + ",more"], "line 2: expected 8 values"),
        ([GOOD, GOOD], "line 3: name 'a' stands twice"),
        ([GOOD.replace("a,8", ",8")], "line 2: name must not be empty"),
        ([GOOD.replace("8,8,8", "8,x,8")], "line 2: n must be a whole number, not 'x'"),
        ([GOOD.replace("8,8,8", "8,8,1.5")], "line 2: k must be a whole number, not '1.5'"),
        ([GOOD.replace("8,8,8", "0,8,8")], "line 2: gemm m must be"),
        ([GOOD.replace("8,8,8", "8,8,")], "line 2: k must be a whole number, not ''"),
        ([GOOD.replace("8,8,8", f"8,8,{10**30}")], "line 2: gemm k must be at most"),
        ([GOOD.replace("1024", "-1")], "line 2: collective nbytes must be"),
        ([GOOD.replace("1024", "1KiB")], "line 2: nbytes must be a whole number"),
        ([GOOD.replace("bf16", "bf61")], r"line 2: unknown dtype 'bf61' \(did you mean 'bf16'\?\)"),
        ([GOOD.replace("all-gather", "reduce")], "line 2: unknown collective 'reduce'"),
        ([GOOD, 'b,"8'], "unexpected end of data"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(tmp_path, rows, message):
    (tmp_path / "bad.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    with pytest.raises(C3Error, match=message) as caught:
        load_suite("bad", 8, tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "bad.csv"))


@pytest.mark.parametrize("header", ["", HEADER.replace("nbytes", "bytes"), HEADER + ",x", HEADER.replace("m,n", "n,m")])
def test_wrong_columns(tmp_path, header):
    (tmp_path / "bad.csv").write_text(f"{header}\n{GOOD}\n" if header else "")
    with pytest.raises(C3Error, match=r"bad\.csv, line 1: columns must be name,m,n,k"):
        load_suite("bad", 8, tmp_path)


def test_the_control_loads(tmp_path):
    (tmp_path / "good.csv").write_text(f"{HEADER}\n{GOOD}\n")
    assert [scenario.name for scenario in load_suite("good", 8, tmp_path)] == ["a"]


def test_an_unknown_suite():
    with pytest.raises(C3Error, match=r"unknown suite 'concl30' \(did you mean 'conccl30'\?\)"):
        load_suite("concl30", 8)


@settings(max_examples=20)
@given(st.integers(1, 40), st.sampled_from(list(NODES.values())), st.integers(0, 2**32))
def test_random_suites_are_held_out_and_repeat_by_seed(count, node, seed):
    """M14: a rule is scored on shapes that no table of its own, nor the suite, has seen."""
    suite = random_suite(count, node, seed)
    assert len(suite) == len({scenario.name for scenario in suite}) == count
    assert not {s.gemm for s in suite} & {s.gemm for s in SUITE}
    assert suite == random_suite(count, node, seed)
    for scenario in suite:
        assert (scenario.gemm.n, scenario.gemm.k) in MATRICES.values()
        assert 16 <= scenario.gemm.m <= 16384
        assert scenario.gemm.m % 16 == 0
        assert 128 * 2**20 <= scenario.collective.nbytes <= 4 * 2**30
        assert scenario.collective.ranks == node.ranks


def test_random_suites_reach_their_edges_and_differ_by_seed():
    suite = random_suite(2000, MI300X, 1)
    tokens = np.array([scenario.gemm.m for scenario in suite])
    assert tokens.min() <= 32
    assert tokens.max() >= 12000
    assert {scenario.collective.kind for scenario in suite} == {"all-gather", "all-to-all"}
    assert suite[:50] != random_suite(50, MI300X, 2)


def test_a_longer_random_suite_begins_with_the_shorter():
    assert random_suite(60, MI300X, 5)[:20] == random_suite(20, MI300X, 5)


@pytest.mark.parametrize(("count", "seed"), [(0, 0), (-1, 0), (2.5, 0), (True, 0), (1, -1), (1, None)])
def test_impossible_random_suites(count, seed):
    with pytest.raises(C3Error, match=r"random suite: (count|seed) must be"):
        random_suite(count, MI300X, seed)
