"""Finer-grain schedules by their closed forms: copies, kernels, bytes and memory of each, and what is refused."""

import re
from itertools import pairwise

import pytest
from ficco_cases import KINDS, problem_of, problems, programs_of, schedules
from hypothesis import given

from c3lib.errors import C3Error
from c3lib.ficco import FINER, SCHEDULES, Problem, build
from c3lib.ficco.graph import COPY, GATHER, GEMM, SCATTER

EIGHT = 8
M, N, K = 64 * 12, 10, 8 * 16


@pytest.mark.parametrize("ranks", [0, 1, 65, 30_000, 10**9])
def test_ranks_that_do_not_fit_are_refused_before_anything_is_made_of_them(ranks):
    for make in (Problem.all_gather, Problem.all_to_all):
        with pytest.raises(C3Error, match=r"^ranks"):
            make(64, 2, 6, ranks)


def test_an_all_gather_gives_all_ranks_the_same():
    with pytest.raises(C3Error, match=r"rows\[0\]: in an all-gather a rank gives all ranks the same, not \(1, 2\)"):
        Problem("all-gather", ((1, 2), (3, 4)), 4, 4)


def test_rows_for_another_number_of_ranks_are_refused():
    with pytest.raises(C3Error, match="rows: expected a row of numbers for each of 3 ranks, got 2"):
        Problem.all_to_all(0, 2, 6, 3, rows=[[1, 2], [3, 4]])


def counts(program):
    return tuple(len(program.of(op)) for op in (COPY, GATHER, GEMM, SCATTER))


def shapes(program):
    return [(task.a.rows, task.out.cols, task.a.cols) for task in program.of(GEMM)]


# Eight ranks and pieces that divide: copies a rank, own pieces gathered, GEMMs, rows of results moved.
COUNTS = {
    "serial": (7, 0, 1, 0),
    "shard_p2p": (7, 0, 8, 0),
    "uniform_fused_1d": (56, 8, 8, 64),
    "hetero_fused_1d": (56, 0, 9, 56),
    "hetero_unfused_1d": (56, 0, 57, 0),
    "uniform_fused_2d": (56, 0, 8, 0),
}

SHAPES = {
    "serial": [(M, N, K)],
    "shard_p2p": [(M // 8, N, K)] * 8,
    "uniform_fused_1d": [(M // 8, N, K)] * 8,
    "hetero_fused_1d": [(M // 8, N, K), *[(7 * M // 64, N, K)] * 8],
    "hetero_unfused_1d": [(M // 8, N, K), *[(M // 64, N, K)] * 56],
    "uniform_fused_2d": [(M, N, K // 8)] * 8,
}


def test_the_closed_forms_are_of_all_schedules():
    assert list(SCHEDULES) == list(COUNTS) == list(SHAPES)
    assert list(FINER) == list(COUNTS)[2:]


@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_eight_ranks(schedule, kind, rank):
    program = build(schedule, problem_of(kind, M, N, K, EIGHT), rank)
    assert counts(program) == COUNTS[schedule]
    assert shapes(program) == SHAPES[schedule]
    assert program.steps == {"serial": 1, "shard_p2p": 7}.get(schedule, 8)
    pieces = {(task.a.rows, task.a.cols) for task in program.of(COPY)}
    wanted = {"serial": (M // 8, K), "shard_p2p": (M // 8, K), "uniform_fused_2d": (M // 8, K // 8)}
    assert pieces == {wanted.get(schedule, (M // 64, K))}
    adds = [task.accumulate for task in program.of(GEMM)]
    assert adds == [schedule == "uniform_fused_2d" and step > 0 for step in range(len(adds))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_peak_memory(schedule, kind):
    """A, B and C; what an all-to-all sends; a staged schedule's own rows, and its result of one step."""
    sent = 7 * M // 8 * K if kind == "all-to-all" else 0
    staged = {
        "uniform_fused_1d": M // 8 * K + M // 8 * N,  # the own rows gathered once more into A
        "hetero_fused_1d": 7 * M // 64 * N,  # A without the own rows, which lie beside it
    }
    elements = M * K + K * N + M * N + sent + staged.get(schedule, 0)
    for dtype, size in (("bf16", 2), ("fp32", 4), ("fp8", 1)):
        make = Problem.all_gather if kind == "all-gather" else Problem.all_to_all
        assert build(schedule, make(M, N, K, EIGHT, dtype), 3).peak_nbytes == elements * size


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_within_the_gpu(kind):
    problem = problem_of(kind, M, N, K, EIGHT)
    moved = {name: [build(name, problem).moved_nbytes(op) for op in (GATHER, SCATTER)] for name in SCHEDULES}
    assert moved.pop("uniform_fused_1d") == [M // 8 * K * 2, M * N * 2]
    assert moved.pop("hetero_fused_1d") == [0, 7 * M // 8 * N * 2]
    assert set(map(tuple, moved.values())) == {(0, 0)}


@given(problem=problems(), schedule=schedules)
def test_whatever_the_shape_all_is_fetched_once_and_multiplied_once(problem, schedule):
    for program in programs_of(schedule, problem):
        m = problem.m[program.rank]
        assert program.moved_nbytes(COPY) == problem.received_nbytes(program.rank)
        assert sum(rows * cols * k for rows, cols, k in shapes(program)) == m * problem.n * problem.k
        assert all(task.a.elements and task.out.elements for task in program.tasks)
        assert max((task.a.elements * 2 for task in program.of(COPY)), default=0) <= (
            problem.piece_nbytes if schedule in FINER[:3] else problem.received_nbytes(program.rank)
        )
        scattered = program.moved_nbytes(SCATTER) // 2
        own = problem.rows[program.rank][program.rank]
        wanted = {"uniform_fused_1d": m, "hetero_fused_1d": m - own}.get(schedule, 0)
        assert scattered == wanted * problem.n


@given(problem=problems())
def test_one_copy_a_peer_and_step_and_steps_in_order(problem):
    for schedule in FINER:
        for program in programs_of(schedule, problem):
            copies = program.of(COPY)
            assert len({(task.step, task.a.rank) for task in copies}) == len(copies)
            assert all(one.step <= other.step for one, other in pairwise(copies))
            assert program.steps <= problem.pieces


def test_pieces_that_do_not_divide():
    """16 rows of 3 ranks are shards of 6, 5, 5; cut into 4: 2 2 1 1, 2 1 1 1, 2 1 1 1."""
    problem = Problem.all_gather(16, 5, 7, 3, pieces=4)
    assert problem.rows == ((6,) * 3, (5,) * 3, (5,) * 3)
    assert shapes(build("uniform_fused_1d", problem, 1)) == [(6, 5, 7), (4, 5, 7), (3, 5, 7), (3, 5, 7)]
    assert shapes(build("hetero_fused_1d", problem, 1)) == [(5, 5, 7), (4, 5, 7), (3, 5, 7), (2, 5, 7), (2, 5, 7)]
    assert [rows for rows, _, _ in shapes(build("hetero_unfused_1d", problem, 1))] == [5, 2, 2, 1, 2, 1, 1, 1, 1]
    assert shapes(build("uniform_fused_2d", problem, 1)) == [(16, 5, 2), (16, 5, 2), (16, 5, 2), (16, 5, 1)]


def test_more_pieces_than_rows_or_columns_make_no_empty_ones():
    problem = Problem.all_gather(5, 3, 2, 4, pieces=7)
    assert problem.rows == ((2,) * 4, (1,) * 4, (1,) * 4, (1,) * 4)
    assert shapes(build("uniform_fused_1d", problem)) == [(4, 3, 2), (1, 3, 2)]
    assert shapes(build("uniform_fused_2d", problem)) == [(5, 3, 1), (5, 3, 1)]
    few = Problem.all_gather(2, 3, 2, 4)  # two of four ranks have no row at all
    assert counts(build("hetero_unfused_1d", few, 3)) == (2, 0, 2, 0)
    assert counts(build("hetero_unfused_1d", few, 0)) == (1, 0, 2, 0)


def test_uneven_counts():
    """Rank 0 gets 5 of its own and none from rank 1, rank 1 nothing of its own, rank 2 all from itself."""
    problem = Problem.all_to_all(0, 3, 4, 3, pieces=2, rows=[(5, 4, 0), (0, 0, 0), (3, 1, 6)])
    assert problem.m == (8, 5, 6)
    assert [problem.received_nbytes(rank) for rank in range(3)] == [3 * 4 * 2, 5 * 4 * 2, 0]
    assert problem.piece_nbytes == 2 * 4 * 2
    programs = programs_of("hetero_fused_1d", problem)
    assert [shapes(program) for program in programs] == [
        [(5, 3, 4), (2, 3, 4), (1, 3, 4)],
        [(3, 3, 4), (2, 3, 4)],
        [(6, 3, 4)],
    ]
    assert [tuple(buffer) for buffer in programs[1].buffers] == [
        ("a", 5, 4, "work"),
        ("b", 4, 3, "input"),
        ("own", 0, 4, "input"),
        ("step", 3, 3, "work"),
        ("send", 0, 4, "input"),
        ("c", 5, 3, "output"),
    ]
    for program in programs_of("serial", problem):
        assert counts(program) == (sum(row[program.rank] > 0 for row in problem.rows) - (program.rank != 1), 0, 1, 0)


def test_ring_order():
    programs = programs_of("shard_p2p", Problem.all_gather(25, 2, 4, 5))
    for program in programs:
        assert [task.a.rank for task in program.of(COPY)] == [(program.rank + step) % 5 for step in range(1, 5)]
    for copies in zip(*(program.of(COPY) for program in programs), strict=True):
        assert {task.a.rank for task in copies} == set(range(5)), "in a step every rank gives to one other"


def test_tables_have_a_row_a_task():
    rows = build("uniform_fused_1d", Problem.all_gather(4, 2, 6, 2), 1).to_rows()
    assert [row["op"] for row in rows] == ["copy", "gather", "gemm", "scatter", "scatter"] * 2
    assert rows[2] == {
        "task": 2, "op": "gemm", "step": 0, "a": "a@1[0:2, 0:6]", "b": "b@1[0:6, 0:2]", "out": "step@1[0:2, 0:2]",
        "accumulate": False, "after": "0 1",
    }  # fmt: skip
    assert rows[0]["a"] == "own@0[0:1, 0:6]"
    assert rows[7]["after"] == "5 6 3 4"


# --- what is refused ---


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Problem.all_gather(8, 2, 4, 1), "ranks: a collective to overlap with needs 2 to 64, not 1"),
        (lambda: Problem.all_to_all(80, 2, 4, 65), "ranks: a collective to overlap with needs 2 to 64, not 65"),
        (lambda: Problem.all_gather(0, 2, 4, 2), "m must be a whole number of at least 1, not 0"),
        (lambda: Problem.all_gather(8, 0, 4, 2), "n must be a whole number of at least 1, not 0"),
        (lambda: Problem.all_gather(8, 2, 2.5, 2), "k must be a whole number of at least 1, not 2.5"),
        (lambda: Problem.all_gather(8, 2, 4, 2, pieces=257), "pieces: a shard is cut into at most 256, not 257"),
        (lambda: Problem.all_gather(8, 2, 4, 2, pieces=-1), "pieces must be a whole number of at least 0, not -1"),
        (lambda: Problem.all_gather(8, 2, 4, 2, "int7"), "unknown dtype 'int7'; known: bf16, fp16, fp32, fp8"),
        (lambda: Problem("all-reduce", ((1, 1), (1, 1)), 2, 4), "unknown collective 'all-reduce'"),
        (lambda: Problem.all_to_all(0, 2, 4, 2, rows=[(1, 2), (3,)]), "rows[1]: expected one number for each of 2"),
        (lambda: Problem.all_to_all(0, 2, 4, 2, rows=[(1, -2), (3, 1)]), "rows must be a whole number of at least 0"),
        (lambda: Problem.all_to_all(0, 2, 4, 2, rows=[(1, 0), (3, 0)]), "rows: rank 1 gets none, so it has nothing"),
        (lambda: Problem.all_gather(2**40, 2, 2**30, 2), "a matrix may have at most"),
        (lambda: build("serial_1d", Problem.all_gather(8, 2, 4, 2)), "unknown schedule 'serial_1d' (did you mean "),
        (lambda: build("serial", Problem.all_gather(8, 2, 4, 2), 2), "rank must be one of 0 to 1, not 2"),
        (lambda: build("serial", Problem.all_gather(8, 2, 4, 2), -1), "rank must be one of 0 to 1, not -1"),
    ],
)  # fmt: skip
def test_what_is_refused(make, said):
    with pytest.raises(C3Error, match=re.escape(said)):
        make()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_memory_that_does_not_suffice_is_refused_with_what_is_missing(schedule):
    problem = Problem.all_gather(2**14, 2**10, 2**12, 8)
    peak = build(schedule, problem).peak_nbytes
    assert build(schedule, problem, memory_nbytes=peak).peak_nbytes == peak
    with pytest.raises(C3Error, match=rf"^{schedule} of .*: needs .* of memory and has .*: 3 MiB are missing$"):
        build(schedule, problem, memory_nbytes=peak - 3 * 2**20)
