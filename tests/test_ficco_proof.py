"""Finer-grain schedules proven: element by element without running, and run beside one product; errors are caught."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from ficco_cases import (
    KINDS,
    WRONG_DATA,
    odd_problem,
    problem_of,
    problems,
    programs_of,
    schedules,
    with_task,
    without_a_dependency,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from c3lib.errors import C3Error
from c3lib.ficco import SCHEDULES, Problem, Program, build
from c3lib.ficco.check import check, check_ranks
from c3lib.ficco.execute import DTYPES, Data, bound, place, run, serial_result, some_order, verify, view
from c3lib.ficco.graph import GEMM, Block
from c3lib.ficco.prove import prove, smaller

torch.set_num_threads(1)


@given(problem=problems(), schedule=schedules, seed=st.integers(0, 2**20))
@settings(max_examples=100)
def test_any_problem_is_proven_and_gives_the_serial_product_in_any_order(problem, schedule, seed):
    programs = programs_of(schedule, problem)
    check_ranks(programs)
    data = Data(problem, seed=seed)
    for order in (None, seed):
        for program, found in zip(programs, run(programs, data, order), strict=True):
            assert torch.equal(found, serial_result(data, program.rank))


@given(problem=problems(), schedule=schedules, dtype=st.sampled_from(sorted(DTYPES)), seed=st.integers(0, 2**20))
@settings(max_examples=50)
def test_any_dtype_stays_within_its_bound(problem, schedule, dtype, seed):
    programs = programs_of(schedule, problem)
    data = Data(problem, dtype, seed)
    verify(programs, data, run(programs, data, seed))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", range(2, 9))
def test_every_number_of_ranks_and_odd_shapes(kind, ranks, schedule):
    for m, n, k, pieces in ((8 * ranks + 3, 3, 13, 0), (64, 1, 16, 0), (ranks - 1, 2, 3, 5), (40, 2, 1, ranks + 3)):
        problem = problem_of(kind, m, n, k, ranks, pieces)
        programs = programs_of(schedule, problem)
        check_ranks(programs)
        verify(programs, Data(problem, seed=m), run(programs, Data(problem, seed=m), seed=ranks))


# --- mutations: each has to be caught ---


def caught(program: Program) -> str:
    try:
        check(program)
    except C3Error as error:
        return str(error)
    return ""


def ancestors(program: Program) -> list[set[int]]:
    found: list[set[int]] = []
    for task in program.tasks:
        found.append(set(task.after).union(*(found[other] for other in task.after)))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_dependency_can_be_left_out(kind, schedule):
    problem = odd_problem(kind)
    count = 0
    for program in programs_of(schedule, problem):
        before = ancestors(program)
        for what, wrong in without_a_dependency(program):
            assert ancestors(wrong) != before, f"{program}: {what}: implied by the others"
            assert caught(wrong), f"{program}: {what}"
            count += 1
    assert count >= 5


@given(problem=problems(most_ranks=4), schedule=schedules)
@settings(max_examples=40)
def test_no_dependency_of_any_problem_can_be_left_out(problem, schedule):
    program = build(schedule, problem, problem.busiest)
    for what, wrong in without_a_dependency(program):
        assert caught(wrong), f"{program}: {what}"


@pytest.mark.parametrize("change", WRONG_DATA, ids=lambda change: change.__name__)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_program_is_caught_without_running(kind, schedule, change):
    missed, count = [], 0
    for program in programs_of(schedule, odd_problem(kind)):
        for what, wrong in change(program):
            count += 1
            if str(program) not in caught(wrong):
                missed.append(f"{program}: {what}")
    assert missed == []
    assert count


@pytest.mark.parametrize("change", WRONG_DATA, ids=lambda change: change.__name__)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_wrong_program_is_caught_by_running_it(schedule, change):
    """The two proofs know nothing of one another."""
    problem = odd_problem("all-to-all", pieces=3)
    programs, missed = programs_of(schedule, problem), []
    data = Data(problem, seed=5)
    for what, wrong in change(programs[0]):
        together = [wrong, *programs[1:]]
        try:
            verify(together[:1], data, run(together, data)[:1])
        except C3Error:
            continue
        missed.append(what)
    assert missed == []


@given(problem=problems(most_ranks=4), schedule=schedules, draw=st.data())
@settings(max_examples=60)
def test_what_the_check_lets_pass_is_right_however_it_was_changed(problem, schedule, draw):
    """Any other order of tasks, and any dependency left out or added: either refused, or right in a random order."""
    programs = programs_of(schedule, problem)
    tasks = programs[0].tasks
    index = draw.draw(st.integers(0, len(tasks) - 1))
    after = tuple(draw.draw(st.sets(st.integers(0, index - 1), max_size=4))) if index else ()
    changed = with_task(programs[0], index, after=after)
    if caught(changed):
        return
    data = Data(problem, seed=1)
    for seed in range(3):
        verify([changed], data, run([changed, *programs[1:]], data, seed)[:1])


# --- what is said ---


def test_the_sentence_names_task_and_block():
    program = build("hetero_unfused_1d", Problem.all_gather(8, 2, 6, 2), 0)
    name = "hetero_unfused_1d of all-gather -> 8x2x6 on 2 ranks, rank 0"
    assert [task.op for task in program.tasks] == ["gemm", "copy", "gemm", "copy", "gemm"]
    assert check(program) == (f"{name}: 5 tasks are free of races and leave all of K exactly once in every element")
    sentences = {
        caught(with_task(program, 2, after=())): "task 2 (gemm to c@0[4:6, 0:2]) reads a@0[4:6, 0:6], which task 1 "
        "writes, and does not wait for it",
        caught(with_task(program, 3, after=())): "task 3 (copy to a@0[6:8, 0:6]) belongs to step 1 and waits for no "
        "copy of step 0",
        caught(with_task(program, 1, after=(4,))): "task 1 (copy to a@0[4:6, 0:6]) waits for task 4, which does not "
        "come before it",
        caught(with_task(program, 4, accumulate=True)): "task 4 (gemm to c@0[6:8, 0:2]) adds to c@0[6:8, 0:2], which "
        "nothing has written",
        caught(with_task(program, 4, out=Block("c", 0, 4, 2, 0, 2), after=(2, 3))): "task 4 (gemm to c@0[4:6, 0:2]) "
        "overwrites c@0[4:6, 0:2], a result that is there",
        caught(with_task(program, 1, out=Block("a", 0, 2, 2, 0, 6))): "task 1 (copy to a@0[2:4, 0:6]) overwrites "
        "a@0[2:4, 0:6], an input",
        caught(with_task(program, 1, a=Block("a", 1, 3, 2, 0, 6))): "task 1 (copy to a@0[4:6, 0:6]) reads "
        "a@1[3:5, 0:6], and what rank 1 holds for it from the start is a@1[4:8, 0:6]",
        caught(with_task(program, 1, out=Block("a", 0, 7, 2, 0, 6))): "task 1 (copy): a@0[7:9, 0:6] is not inside a, "
        "which is 8x6",
        caught(with_task(program, 2, b=Block("b", 0, 0, 5, 0, 2))): "task 2 (gemm to c@0[4:6, 0:2]) cannot be "
        "a@0[4:6, 0:6] times b@0[0:5, 0:2]",
    }  # fmt: skip
    for found, wanted in sentences.items():
        assert found == f"{name}: {wanted}"


def test_what_no_builder_would_do_is_refused_too(monkeypatch):
    program = build("uniform_fused_1d", Problem.all_gather(8, 2, 6, 2), 1)
    copy, gather, gemm, scatter = program.tasks[:4]
    assert [task.op for task in program.tasks[:4]] == ["copy", "gather", "gemm", "scatter"]
    for index, changes, said in (
        (0, {"a": copy.a._replace(rank=1)}, "reads own@1[0:2, 0:6], which is on no peer"),
        (0, {"a": copy.a._replace(rank=2)}, "reads own@2[0:2, 0:6], which is on no peer"),
        (0, {"a": copy.a._replace(col=1)}, "reads own@0[0:2, 1:7], beyond the 6 columns of A"),
        (0, {"a": copy.a._replace(rows=1)}, "reads own@0[0:1, 0:6], which has another shape"),
        (0, {"op": "move"}, "is none of copy, gather, gemm, scatter"),
        (0, {"out": copy.out._replace(rank=0)}, "task 0 (copy): a@0[0:2, 0:6] is in no buffer of rank 1"),
        (1, {"accumulate": True}, "moves a block, and has a second operand or adds"),
        (1, {"a": gather.a._replace(buffer="x")}, "task 1 (gather): x@1[0:2, 0:6] is in no buffer of rank 1"),
        (1, {"out": gather.out._replace(rows=0)}, "task 1 (gather): a@1[2:2, 0:6] is not inside a, which is 8x6"),
        (2, {"b": None}, "has no second operand"),
        (2, {"a": gemm.out._replace(cols=2), "b": gemm.b._replace(rows=2)}, "was neither given nor written"),
        (3, {"b": gemm.b}, "moves a block, and has a second operand or adds"),
        (3, {"out": scatter.out._replace(buffer="own", cols=2)}, "overwrites own@1[0:2, 0:2], an input"),
    ):
        assert said in caught(with_task(program, index, **changes)), said
    monkeypatch.setattr("c3lib.ficco.check.home", lambda problem, src, dst, staged: ("send", 0))
    assert caught(build("serial", odd_problem("all-to-all"), 0)) == (
        "serial of all-to-all -> 13x5x7 on 3 ranks, rank 0: rows for rank 1 at send@0[0:5, 0:7] overlap other inputs"
    )


def test_columns_of_one_row_have_to_be_of_one_row():
    """A fetched in two halves of its columns, the second of them from another row; and a product multiplied again."""
    whole = build("serial", Problem.all_gather(4, 6, 6, 2), 0)
    copy, gemm = whole.tasks

    def halves(row: int) -> Program:
        left = copy._replace(a=copy.a._replace(rows=1, cols=3), out=copy.out._replace(rows=1, cols=3))
        right = copy._replace(a=copy.a._replace(row=row, rows=1, col=3, cols=3), out=left.out._replace(col=3))
        one = copy._replace(a=copy.a._replace(row=3, rows=1), out=copy.out._replace(row=3, rows=1))
        return replace(whole, tasks=(left, right, one, gemm._replace(after=(0, 1, 2))))

    assert caught(halves(copy.a.row)) == ""
    assert "task 3 (gemm to c@0[0:4, 0:6]) reads a@0[2:3, 3:6], which is no part of the rows beside it" in caught(
        halves(3)
    )
    again = gemm._replace(a=gemm.out, out=gemm.out, after=(1,))
    assert "reads c@0[0:2, 0:6], which is no part of the rows" in caught(replace(whole, tasks=(copy, gemm, again)))


def test_slices_of_k_are_added_once():
    program = build("uniform_fused_2d", Problem.all_gather(4, 2, 6, 2), 0)
    gemms = [index for index, task in enumerate(program.tasks) if task.op == GEMM]
    second = program.tasks[gemms[1]]
    again = second._replace(a=second.a._replace(col=2), b=second.b._replace(row=2))
    assert "adds columns 2:3 of A to c@0[0:2, 0:2] a second time" in caught(
        with_task(program, gemms[1], a=again.a, b=again.b)
    )
    crossed = with_task(program, gemms[1], b=second.b._replace(row=0))
    assert "multiplies columns 3:6 of A by rows 0:3 of B" in caught(crossed)
    less = with_task(program, gemms[1], a=second.a._replace(cols=2), b=second.b._replace(rows=2))
    assert "ends as rows 0:2 of those that rank 0 gives to rank 0, times columns 0:2 of B, over 0:5 of K" in caught(
        less
    )


def test_programs_go_together():
    problem = Problem.all_gather(8, 2, 6, 2)
    serial, other = programs_of("serial", problem), programs_of("shard_p2p", problem)
    assert check_ranks(serial) == (
        "serial of all-gather -> 8x2x6 on 2 ranks: 4 tasks of 2 ranks are free of races and leave all of K exactly "
        "once in every element"
    )
    for programs, said in (
        ([], "expected one a rank, got none"),
        (serial[:1], "expected one for each of ranks 0 to 1 in order, got 0"),
        (serial[::-1], "in order, got 1, 0"),
        ([serial[0], other[1]], "does not go together with serial"),
    ):
        with pytest.raises(C3Error, match=said):
            check_ranks(programs)


# --- running ---


def test_what_is_not_given_is_poison():
    program = build("uniform_fused_2d", Problem.all_gather(9, 2, 4, 3), 1)
    buffers = place(program, Data(program.problem))
    assert buffers["a"].isnan().all(dim=1).tolist() == [True] * 3 + [False] * 3 + [True] * 3
    assert buffers["c"].isnan().all()
    assert not buffers["b"].isnan().any()


@pytest.mark.parametrize(
    "block",
    [Block("a", 0, 0, 10, 0, 4), Block("a", 0, -1, 2, 0, 4), Block("a", 0, 0, 1, 3, 2), Block("x", 0, 0, 1, 0, 1)],
)
def test_blocks_outside_are_refused(block):
    program = build("serial", Problem.all_gather(9, 2, 4, 3), 0)
    with pytest.raises(C3Error, match=f"is not inside a, which is 9x4|rank 0 has no buffer '{block.buffer}'"):
        view(place(program, Data(program.problem)), block)


def test_a_random_order_keeps_every_dependency_and_is_random():
    program = build("uniform_fused_1d", odd_problem("all-to-all"), 0)
    orders = [list(some_order(program, seed)) for seed in range(4)]
    for order in orders:
        assert sorted(order) == list(range(len(program.tasks)))
        at = {index: place for place, index in enumerate(order)}
        assert all(at[other] < at[index] for index, task in enumerate(program.tasks) for other in task.after)
    assert len(set(map(tuple, orders))) == 4


def test_a_result_beyond_its_bound_is_refused():
    problem = odd_problem("all-gather")
    programs, data = programs_of("uniform_fused_2d", problem), Data(problem, "bf16")
    results = run(programs, data)
    far = bound(data, 2, problem.pieces)[3, 1]
    wanted = serial_result(data, 2)[3, 1]
    results[2] = results[2].double()
    results[2][3, 1] = wanted + 0.99 * far
    verify(programs, data, results)
    results[2][3, 1] = wanted + 1.01 * far
    with pytest.raises(C3Error, match=r"rank 2: element \(3, 1\) of the result is .*; 1 of 80 elements are wrong"):
        verify(programs, data, results)
    results[2][3, 1] = float("nan")
    with pytest.raises(C3Error, match=r"element \(3, 1\) of the result is nan"):
        verify(programs, data, results)


def test_data_are_whole_numbers_that_differ():
    problem = odd_problem("all-to-all")
    data = Data(problem)
    assert torch.equal(data.rows(2, 0), data.rows(2, 0).round())
    assert not torch.equal(data.rows(2, 0)[:3], data.rows(0, 0))
    assert not torch.equal(data.b(0), data.b(1))
    assert not torch.equal(data.b(0), Data(problem, seed=1).b(0))
    shared = Data(odd_problem("all-gather"))
    assert torch.equal(shared.rows(1, 0), shared.rows(1, 2))
    with pytest.raises(C3Error, match="unknown dtype 'fp8'"):
        Data(problem, "fp8")


def test_prove_says_what_was_compared():
    said = prove(Problem.all_gather(262144, 1024, 8192, 4), "hetero_fused_1d")
    assert said.startswith(
        "hetero_fused_1d of all-gather -> 262144x1024x8192 on 4 ranks: 116 tasks of 4 ranks are free"
    )
    assert "cut down to 256x32x256" in said
    assert said.endswith("the 4 results equal the serial product in every element")
    assert "at its own size" in prove(odd_problem("all-to-all"), "serial")
    with pytest.raises(C3Error, match="unknown schedule"):
        prove(odd_problem("all-to-all"), "serial_2d")


def test_what_is_cut_down_keeps_its_zeros():
    big = Problem.all_to_all(0, 7, 5000, 3, rows=[(0, 9000, 1), (5, 0, 800), (1, 2, 0)])
    small = smaller(big)
    assert [[bool(count) for count in row] for row in small.rows] == [
        [bool(count) for count in row] for row in big.rows
    ]
    assert max(small.m) <= 256 + 3
    assert (small.n, small.k, small.pieces) == (7, 250, 3)


def test_programs_data_and_results_that_do_not_belong_together_are_refused():
    problem = odd_problem("all-gather")
    programs, data, other = programs_of("serial", problem), Data(problem), Data(odd_problem("all-to-all"))
    results = run(programs, data)
    for some, said in (
        (programs[1:], "expected one for each of ranks 0 to 2 in order, got 1, 2"),
        (programs[:2], "in order, got 0, 1"),
        ([], "expected one a rank, got none"),
        ([*programs[:2], build("serial", other.problem, 2)], "does not go together with serial of all-gather"),
    ):
        with pytest.raises(C3Error, match=said):
            run(some, data)
    for call in (lambda: run(programs, other), lambda: verify(programs, other, results)):
        with pytest.raises(
            C3Error, match="data: are of all-to-all -> 13x5x7 on 3 ranks, and have to be of the problem"
        ):
            call()
    with pytest.raises(C3Error, match="results: expected one for each of 3 programs, got 2"):
        verify(programs, data, results[:2])
