"""Finer-grain schedules as real processes that exchange pieces through gloo; none outlives a failure."""

import os
import re
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


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
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


def test_no_rank_and_no_file_outlives_who_asked(left, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(ROOT)]))
    asks = [subprocess.Popen([sys.executable, "-c", STUCK], stderr=subprocess.DEVNULL) for _ in range(3)]
    try:
        wait_for(lambda: len(left()) == 15)  # three that ask, three leaders, nine ranks
        assert len(list(tmp_path.glob("c3lib-*"))) == 3
        asks[0].send_signal(signal.SIGINT)
        asks[1].terminate()
        asks[2].kill()
        wait_for(lambda: left() == [])
        assert list(tmp_path.iterdir()) == []
    finally:
        for process in asks:
            process.kill()
            process.wait()


FULL = """
import resource, sys
from ficco_cases import *
from c3lib.errors import C3Error
from c3lib.ficco.processes import run_processes
most = int(sys.argv[1])
problem = Problem.all_gather(64, 64, 8, 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
try:
    run_processes(case("serial", problem) for _ in range(1))
except C3Error as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("most", "said"),
    [
        (0, "ranks as processes: could not start, or there is no room for what they are given and give: "),
        (16384, "ranks as processes: rank 0: OSError: |ranks as processes: rank 1: OSError: "),
    ],
)
def test_no_room_for_files_is_a_sentence(most, said, left, monkeypatch, tmp_path):
    """Of the parent, whose cases it has to write, and of ranks, whose results are twice as large as a file may be."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(ROOT)]))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    done = subprocess.run([sys.executable, "-c", FULL, str(most)], capture_output=True, text=True)
    assert re.fullmatch(f"(?:{said}).+\n", done.stdout), done.stdout + done.stderr
    assert left() == []
    assert list(tmp_path.iterdir()) == []


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
        (iter([]), 1, "cases: expected some, all of one number of ranks, got none"),
        ([two], 0, "limit_s: expected a number of seconds above 0, at most 86400, got 0"),
        ([two], float("inf"), "at most 86400, got inf"),
        ([two], float("nan"), "at most 86400, got nan"),
        ([two], 86401, "at most 86400, got 86401"),
        ([two], "5", "at most 86400, got '5'"),
        ([two], True, "at most 86400, got True"),
        ([two._replace(data=three.data)], 1, "data: are of .* and have to be of the problem of serial"),
        (
            [two._replace(programs=(build("serial", Problem.all_gather(4, 2, 2, 2), 1),) * 2)],
            1,
            "expected one for each of ranks 0 to 1 in order, got 1, 1",
        ),
    ):
        with pytest.raises(C3Error, match=said):
            run_processes(cases, limit_s)
