"""``c3 ficco``: it prints what the model says, its JSON parses, what does not fit is refused by the bytes missing."""

import json
import re

import pytest
from typer.testing import CliRunner

from c3lib.cli import app
from c3lib.ficco import SCHEDULES, Problem, build
from c3lib.ficco.prove import prove
from c3lib.ficco.sets import Row, load_problems
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node
from c3lib.schedule_choice import choose

GEMM = ["--gemm", "16384x8192x8192"]
LARGE = ["--gemm", "1607680x57344x8192", "--node", "h200_2"]


def ficco(*words):
    return CliRunner().invoke(app, ["ficco", *words])


def refused(result, *parts):
    assert result.exit_code == 2, result.output
    assert re.fullmatch(r"c3: .+\n", result.stderr), result.stderr
    for part in parts:
        assert part in result.stderr


@pytest.mark.parametrize("node", ["mi300x_8", "h200_2", "h200_1"])
@pytest.mark.parametrize("transport", ["dma", "cu"])
def test_each_schedule_is_told_once_with_its_time_and_the_choice_is_marked(node, transport):
    options = [*GEMM, "--node", node, "--transport", transport]
    text, told = ficco(*options).stdout, json.loads(ficco(*options, "--json").stdout)
    times = {row["schedule"]: row["time_s"] for row in told["schedules"]}
    assert list(times) == list(SCHEDULES)
    for name, time_s in times.items():
        line = next(line for line in text.splitlines() if line.startswith(name + " "))
        assert f"{time_s * 1e3:.3f}" in line
        assert ("loses" in line) == (time_s > times["serial"] * (1 + 1e-12))
    marked = [line.split()[0] for line in text.splitlines() if re.search(r"  chosen\b", line)]
    assert marked == [told["chosen"][GEMM[1]]["schedule"]]
    assert told["evidence"] == "modelled"
    assert "(modelled)" in text


def test_json_holds_the_rows_of_the_model_and_the_reason_of_the_choice():
    told = json.loads(ficco(*GEMM, "--collective", "all-to-all", "--pieces", "4", "--ranks", "4", "--json").stdout)
    node, problem = load_node("mi300x_8"), Problem.all_to_all(16384, 2048, 8192, 4, pieces=4)
    expected = schedule_rows(node, [Row(GEMM[1], problem, "")], ["dma"])
    assert [row["time_s"] for row in told["schedules"]] == expected["time_s"].tolist()
    assert told["chosen"][GEMM[1]] == {
        "schedule": choose(problem, node, "dma").schedule,
        "reason": choose(problem, node, "dma").reason,
    }


def test_a_set_has_a_line_a_problem_and_counts_the_right_choices():
    text = ficco("--set", "ficco16", "--node", "h200_8").stdout
    told = json.loads(ficco("--set", "ficco16", "--node", "h200_8", "--json").stdout)
    names = [row.name for row in load_problems("ficco16", 8)]
    assert [line.split()[0] for line in text.splitlines() if re.match(r"g\d+ ", line)] == names
    rows = {
        name: {row["schedule"]: row["time_s"] for row in told["schedules"] if row["problem"] == name} for name in names
    }
    right = sum(times[told["chosen"][name]["schedule"]] == min(times.values()) for name, times in rows.items())
    assert f"picks the fastest on {right} of {len(names)}" in " ".join(text.split())


def test_tasks_are_those_of_the_program():
    result = ficco(*GEMM, "--tasks", "hetero_fused_1d", "--ranks", "2", "--json")
    program = build("hetero_fused_1d", Problem.all_gather(16384, 4096, 8192, 2))
    assert json.loads(result.stdout)["tasks"] == program.to_rows()
    text = ficco(*GEMM, "--tasks", "hetero_fused_1d", "--ranks", "2").stdout
    assert sum(bool(re.match(r" *\d+  \w", line)) for line in text.splitlines()) == len(program.tasks)


def test_every_schedule_is_proven_in_a_sentence():
    pytest.importorskip("torch")
    options = ["--gemm", "24x8x8", "--ranks", "2", "--pieces", "3", "--collective", "all-to-all", "--prove"]
    result = ficco(*options, "--json")
    problem = Problem.all_to_all(24, 4, 8, 2, pieces=3)
    told = json.loads(result.stdout)
    assert told == {"problem": str(problem), "proofs": {name: prove(problem, name) for name in SCHEDULES}}
    text = ficco(*options)
    assert text.exit_code == 0
    assert [" ".join(part.split()) for part in text.stdout.split("\n\n")] == list(told["proofs"].values())
    assert result.stderr == text.stderr == ""  # no bar where nobody watches


def test_without_torch_nothing_is_proven_and_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr("c3lib.ficco.prove.find_spec", lambda name: None)
    refused(ficco("--gemm", "24x8x8", "--ranks", "2", "--prove"), "a proof by running needs torch", "pip install")


def test_schedules_beyond_the_memory_have_no_time_but_the_bytes_that_are_missing_and_are_not_chosen():
    told = json.loads(ficco(*LARGE, "--json").stdout)
    full = [row["schedule"] for row in told["schedules"] if not row["fits"]]
    assert full, "the case must have some that do not fit"
    assert told["chosen"][LARGE[1]]["schedule"] not in full
    for line in ficco(*LARGE).stdout.splitlines():
        if line.split(" ")[0] in full:
            assert re.search(r" -  .*does not fit: [\d.]+ [MG]iB missing$", line)


def test_what_fits_under_no_schedule_is_refused_by_how_much():
    refused(ficco("--gemm", "1048576x1048576x8192"), "needs 274 GiB of memory", "95.19 GiB are missing")
    refused(ficco(*LARGE, "--tasks", "uniform_fused_1d"), "uniform_fused_1d", "are missing")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["--gemm", "--set"]),
        ([*GEMM, "--set", "ficco16"], ["--gemm", "--set"]),
        (["--set", "ficco16", "--tasks", "serial"], ["--tasks", "--gemm"]),
        (["--gemm", "1x2"], ["MxNxK", "'1x2'"]),
        ([*GEMM, "--ranks", "9"], ["9 ranks", "mi300x_8 has 8"]),
        ([*GEMM, "--ranks", "1"], ["2 to 64, not 1"]),
        ([*GEMM, "--pieces", "300"], ["at most 256, not 300"]),
        ([*GEMM, "--transport", "sdma"], ["unknown transport 'sdma'", "cu, dma"]),
        ([*GEMM, "--collective", "all-reduce"], ["unknown collective 'all-reduce'"]),
        ([*GEMM, "--dtype", "int4"], ["unknown dtype 'int4'"]),
        ([*GEMM, "--node", "h100"], ["unknown node 'h100'"]),
        ([*GEMM, "--tasks", "fastest"], ["unknown schedule 'fastest'"]),
        (["--set", "ficco16", "--collective", "all-gather"], ["--collective", "--gemm"]),
        (["--set", "ficco16", "--dtype", "fp8"], ["--dtype", "--gemm"]),
        (["--set", "ficco16", "--prove"], ["--prove", "--gemm"]),
        (["--set", "ficco16", "--ranks", "64"], ["64 ranks", "mi300x_8 has 8"]),
        (["--set", "ficco16", "--transport", "rdma"], ["unknown transport 'rdma'"]),
        ([*GEMM, "--tasks", "serial", "--ranks", "64"], ["64 ranks", "mi300x_8 has 8"]),
        ([*GEMM, "--tasks", "serial", "--transport", "rdma"], ["unknown transport 'rdma'"]),
        ([*GEMM, "--prove", "--ranks", "64"], ["64 ranks", "mi300x_8 has 8"]),
        ([*GEMM, "--prove", "--transport", "rdma"], ["unknown transport 'rdma'"]),
        ([*GEMM, "--prove", "--tasks", "serial"], ["--tasks", "--prove"]),
        (["--gemm", "99999999999999999999x8x8"], ["gemm m must be at most"]),
        ([*GEMM, "--collective", ""], ["unknown collective ''"]),
        ([*GEMM, "--dtype", ""], ["unknown dtype ''"]),
        (["--set", "ficco"], ["unknown problem set 'ficco'", "ficco16"]),
    ],
    ids=str,
)
def test_what_is_typed_wrongly_is_one_sentence(words, parts):
    refused(ficco(*words), *parts)
