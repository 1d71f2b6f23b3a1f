"""Finer-grain schedules as real processes that exchange pieces through gloo; none outlives a failure."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ficco_cases import KINDS, UNEVEN, Killed, Stuck, case, odd_problem, problem_of, with_task

from c3lib.errors import C3Error
from c3lib.ficco import SCHEDULES, Problem, build
from c3lib.ficco.execute import run, serial_result, verify
from c3lib.ficco.graph import Block
from c3lib.ficco.processes import run_processes
from c3lib.files import ROOT


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_schedule_and_collective(ranks):
    problems = [problem_of(kind, 8 * ranks + 3, 5, 2 * ranks + 1, ranks) for kind in KINDS]
    if ranks == 3:
        problems += [Problem.all_to_all(0, 4, 9, 3, rows=UNEVEN), Problem.all_gather(2, 3, 2, 3, pieces=5)]
    cases = [case(name, problem, seed) for name in SCHEDULES for seed, problem in enumerate(problems)]
    cases += [case(name, problems[1], None, "bf16") for name in SCHEDULES]
    for one, found in zip(cases, run_processes(cases, 90), strict=True):
        verify(one.programs, one.data, found)
        if one.data.dtype == "fp64":
            assert all(torch.equal(c, serial_result(one.data, rank)) for rank, c in enumerate(found))
        else:  # the same sums in the same order, whoever's process they are in
            alone = run(one.programs, one.data)
            assert all(torch.equal(c, other) for c, other in zip(found, alone, strict=True))


# --- what fails ---


@pytest.fixture
def left(monkeypatch):
    """Says which processes of this test there still are: its mark is in their environment."""
    mark = f"C3LIB_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv(*mark.split("="))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the data above

    def others() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                pass  # gone meanwhile, or of another user
        return found

    return others


def sentence(cases, limit_s):
    with pytest.raises(C3Error) as error:
        run_processes(cases, limit_s)
    return str(error.value)


def test_a_rank_that_fails_ends_all(left):
    """With the first one's own words, also when it has none, and when time is up."""
    good = case("hetero_unfused_1d", odd_problem("all-gather"))
    index = next(index for index, task in enumerate(good.programs[2].tasks) if task.op == "copy")
    wrong = with_task(good.programs[2], index, out=Block("a", 2, 15, 2, 0, 7))
    bad = good._replace(programs=(*good.programs[:2], wrong))
    killed = case("serial", odd_problem("all-to-all"), make=Killed)
    stuck = case("uniform_fused_2d", odd_problem("all-to-all"), make=Stuck)
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(sentence, ([good, bad, good], [good, killed], [good, stuck]), (60, 60, 2)))
    assert found == [
        "ranks as processes: rank 2: a@2[15:17, 0:7] is not inside a, which is 16x7",
        "ranks as processes: rank 1 ended with status -9",
        "ranks as processes: not done after 2 s, and ended",
    ]
    assert left() == []


STUCK = """
from ficco_cases import *
from c3lib.ficco.processes import run_processes
run_processes([case("serial", odd_problem("all-to-all"), make=Stuck)])
"""


def test_no_rank_outlives_who_asked(left, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(ROOT)]))
    asks = [subprocess.Popen([sys.executable, "-c", STUCK], stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        wait_for(lambda: len(left()) == 10)  # two that ask, two leaders, six ranks
        asks[0].send_signal(signal.SIGINT)
        asks[1].kill()
        wait_for(lambda: left() == [])
    finally:
        for process in asks:
            process.kill()
            process.wait()


def wait_for(happened, limit_s: float = 40) -> None:
    end = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < end, f"not within {limit_s} s"
        time.sleep(0.1)


def test_what_is_refused_before_a_process_starts():
    two, three = case("serial", Problem.all_gather(4, 2, 2, 2)), case("serial", odd_problem("all-gather"))
    for cases, limit_s, said in (
        ([], 1, "cases: expected some, all of one number of ranks, got none"),
        ([two, three], 1, r"got \[2, 3\]"),
        ([two], 0, "limit_s: expected a positive number of seconds, got 0"),
        (
            [two._replace(programs=(build("serial", Problem.all_gather(4, 2, 2, 2), 1),) * 2)],
            1,
            "in the order of ranks",
        ),
    ):
        with pytest.raises(C3Error, match=said):
            run_processes(cases, limit_s)
