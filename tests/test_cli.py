"""``c3``: every example runs, every JSON parses, and whatever goes wrong is one sentence and a status that is not 0."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import c3lib
from c3lib.cli import app
from c3lib.experiment import run_suite
from c3lib.files import ROOT
from c3lib.hardware import node_names
from c3lib.results import read_table
from c3lib.strategy import STRATEGIES

EXPLAIN = ["explain", "--gemm", "8192x8192x8192", "--collective", "all-gather", "--size", "896MiB"]
PLAN = ["plan", "--collective", "all-to-all", "--size", "1MB"]
JSON_COMMANDS = {
    "nodes": ["nodes"],
    "node": ["nodes", "h200_1"],
    "suite": ["suite"],
    "run": ["run", "--strategy", "conccl"],
    "claims": ["claims"],
    "claim": ["claims", "speedup.max"],
    "params": ["model", "params"],
    "explain": EXPLAIN,
    "explain nothing": [*EXPLAIN[:-1], "0"],
    "plan": PLAN,
    "proof": [*PLAN, "--prove"],
    "overlap": ["overlap"],
    "trace": ["trace", "analyze", "docs/traces_example.json"],
}


def invoke(*words: str):
    return CliRunner().invoke(app, list(words))


def shell(*words: str, **more) -> subprocess.CompletedProcess:
    more = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 60} | more
    return subprocess.run([sys.executable, "-m", "c3lib", *words], **more)


def commands(group=None, path=()):
    """Every command and group with the words that lead to it."""
    group = group or typer.main.get_command(app)
    yield list(path), group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def one_sentence(result, *parts: str) -> None:
    """It failed with a single line on stderr that holds all ``parts``."""
    code = result.exit_code if hasattr(result, "exit_code") else result.returncode
    assert code == 2, result.stderr
    assert re.fullmatch(r"c3: .+\n", result.stderr), result.stderr
    for part in parts:
        assert part in result.stderr


# --- help ---


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_teaches_by_one_example_that_runs(words, tmp_path):
    text = invoke(*words, "--help").stdout
    examples = re.findall(r"^ +(c3 .+)$", text, re.M)
    if words in (["model"], ["trace"]):  # a group names its commands
        assert {"model": "params", "trace": "analyze"}[words[0]] in text
        return
    assert len(examples) == 1
    # A folder of an earlier version's sweep would be refused, as it should be.
    result = invoke(*examples[0].replace("build/sweep", str(tmp_path / "sweep")).split()[1:])
    if words == ["measure"]:  # needs a GPU of its own; where there is none it says so, and the device tier runs it
        assert result.exit_code == 2
        assert result.stderr.startswith("c3: backend cuda: ")
        return
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) > 3


def test_the_readmes_commands_are_all_there():
    names = {" ".join(words) for words, _ in commands()}
    assert names >= {"nodes", "suite", "run", "claims", "model params", "explain", "plan"}


def test_version_is_the_packages():
    assert invoke("--version").stdout == f"c3lib {c3lib.__version__}\n"


def test_no_command_prints_the_help():
    assert "Commands:" in invoke().output


@pytest.mark.parametrize("words", [["--help"], ["nodes"], ["nodes", "mi300x_8"]], ids=" ".join)
def test_light_commands_import_nothing_heavy(words):
    code = (
        f"import sys; from typer.testing import CliRunner; from c3lib.cli import app; "
        f"r = CliRunner().invoke(app, {words!r}); assert r.exit_code == 0; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"numpy", "pandas", "pandera", "scipy", "matplotlib", "torch"} & set(done.stdout.split()) == set()


# --- JSON ---


def labels(content) -> list:
    """Every value of a key ``evidence``, anywhere."""
    if isinstance(content, dict):
        own = [content["evidence"]] if "evidence" in content else []
        return own + [label for value in content.values() for label in labels(value)]
    return [label for value in content for label in labels(value)] if isinstance(content, list) else []


def not_json(text: str):
    raise AssertionError(f"{text} is not JSON")


@pytest.mark.parametrize("words", JSON_COMMANDS.values(), ids=JSON_COMMANDS)
def test_json_parses_and_says_what_kind_of_evidence_it_is(words):
    result = invoke(*words, "--json")
    assert result.exit_code == 0, result.output
    assert labels(json.loads(result.stdout, parse_constant=not_json))


def test_json_says_what_the_text_says():
    content = json.loads(invoke(*EXPLAIN, "--json").stdout)
    text = invoke(*EXPLAIN).stdout
    for row in content["strategies"]:
        line = next(line for line in text.splitlines() if line.split()[:1] == [row["strategy"]])
        assert f"{row['time_s'] * 1e3:.3f}" in line
        assert f"{row['fraction_of_ideal']:.2f}" in line
    assert content["advice"] in " ".join(text.split())


def test_params_name_what_each_constant_was_calibrated_on():
    constants = {row["key"]: row for row in json.loads(invoke("model", "params", "--json").stdout)["constants"]}
    queueing = constants["interference.memory_queueing"]
    assert queueing["calibrated_on"] == "conccl.fraction_of_ideal.c3_sp"
    assert {"source", "unit", "value", "evidence"} <= set(queueing)
    assert {row["metric"] for row in queueing["sensitivity"]} >= {"speedup_max"}
    assert any(row["low"] != row["high"] for row in queueing["sensitivity"])


# --- what the commands print ---


def test_nodes_lists_every_node_and_one_node_shows_every_constant():
    assert [line.split()[0] for line in invoke("nodes").stdout.splitlines()[1:]] == node_names()
    shown = invoke("nodes", "h200_8").stdout
    assert all(key in shown for key in c3lib.load_node("h200_8").constants)


def test_run_writes_rows_and_provenance_that_can_be_read_back(tmp_path):
    out = tmp_path / "new" / "rows.csv"
    result = invoke("run", "--strategy", "conccl", "--strategy", "c3_rp", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "c3_rp *" in result.stdout
    frame, sidecar = read_table(out)
    assert set(frame["strategy"]) == {"conccl", "c3_rp"}
    assert sidecar["node"] == "mi300x_8"
    again = tmp_path / "again.csv"
    invoke("run", "--strategy", "conccl", "--strategy", "c3_rp", "--out", str(again), "--repeats", "3")
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_run_with_wrong_bytes_gives_no_means_but_keeps_the_rows(tmp_path, monkeypatch, more):
    rows = run_suite(strategies=["conccl", "c3_rp"]).assign(evidence="measured", verified=True, path="by hand")
    rows.loc[7, "verified"] = False
    monkeypatch.setattr("c3lib.experiment.run_suite", lambda *given: rows)
    out = tmp_path / "rows.csv"
    result = invoke("run", "--backend", "cuda", "--out", str(out), *more)
    assert result.exit_code == 2
    assert result.stdout == ""
    first = rows.loc[7]
    one_sentence(result, f"1 measured rows failed the byte check, first {first['scenario']} under {first['strategy']}")
    assert read_table(out)[0]["verified"].tolist() == rows["verified"].tolist()


def test_run_takes_all_strategies_by_default():
    rows = json.loads(invoke("run", "--json").stdout)["summary"]
    assert [row["strategy"] for row in rows] == list(STRATEGIES)


def test_claims_ends_with_the_count_and_tells_why_claims_are_missed():
    text = invoke("claims").stdout
    content = json.loads(invoke("claims", "--json").stdout)
    numbers = content["count"]
    flat = " ".join(text.split())
    assert f"Of {numbers['predicted']} predicted claims {numbers['reproduced']} are reproduced" in flat
    assert text.count("\nmissed: ") == sum(row["verdict"] == "missed" for row in content["claims"])


def test_plan_proves_every_byte():
    assert "every byte is right; with one copy dropped the check fails" in invoke(*PLAN, "--prove").stdout


# --- bad input, in process ---


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["nodes", "mi300"], ["unknown node 'mi300'", "mi300x_8"]),
        (["suite", "conccl3"], ["unknown suite", "did you mean 'conccl30'"]),
        (["run", "--node", "h100"], ["unknown node 'h100'"]),
        (["run", "--suite", "none"], ["unknown suite 'none'"]),
        (["run", "--strategy", "concl"], ["unknown strategy", "did you mean 'conccl'"]),
        (["run", "--backend", "hip9"], ["unknown backend 'hip9'"]),
        (["run", "--repeats", "0"], ["repeats", "at least 1"]),
        (["run", "--out", str(ROOT / "data")], ["--out", "ordinary file"]),
        (["claims", "speedup.maxx"], ["unknown claim", "speedup.max"]),
        (["claims", "--node", "x"], ["unknown node 'x'"]),
        (["model", "params", "--node", "x"], ["unknown node 'x'"]),
        ([*EXPLAIN[:-1], "-5"], ["size must read like 896MiB", "'-5'"]),
        ([*EXPLAIN[:-1], "many"], ["size must read like"]),
        ([*EXPLAIN[:-1], "1.5"], ["whole number of bytes"]),
        ([*EXPLAIN, "--gemm", "8192x8192"], ["MxNxK", "'8192x8192'"]),
        ([*EXPLAIN, "--gemm", "0x1x1"], ["gemm m", "at least 1"]),
        ([*EXPLAIN, "--gemm=-1x1x1"], ["MxNxK"]),
        ([*EXPLAIN, "--collective", "all-reduce"], ["unknown collective 'all-reduce'"]),
        ([*EXPLAIN, "--dtype", "int4"], ["unknown dtype 'int4'"]),
        ([*EXPLAIN, "--node", "mi300x"], ["did you mean 'mi300x_8'"]),
        ([*PLAN, "--algorithm", "tree"], ["algorithm", "'tree'"]),
        ([*PLAN, "--size", "9GB", "--prove"], ["--prove", "smaller size"]),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(words, parts):
    one_sentence(invoke(*words), *parts)


@pytest.mark.parametrize(
    "words", [["--nod"], ["run", "--nod", "x"], ["explain"], ["nothing"], ["run", "--repeats", "x"]]
)
def test_words_that_do_not_exist_are_named(words):
    result = invoke(*words)
    assert result.exit_code == 2
    assert re.search(r"No such|Missing|Invalid|not a valid", result.stderr)
    assert "Traceback" not in result.output


# --- the same in a real shell, and what only happens there ---


@pytest.mark.parametrize("words", [["nodes", "h100"], [*EXPLAIN[:-1], "-1"], ["run", "--backend", "x"]], ids=" ".join)
def test_bad_input_in_a_shell(words):
    one_sentence(shell(*words))


def copy_of_the_project(folder: Path) -> Path:
    for name in ("c3lib", "data"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize(
    ("path", "old", "new", "words", "part"),
    [
        ("data/hardware/mi300x_8.toml", "[gpu]", "[gpu", ["nodes", "mi300x_8"], "not valid TOML"),
        ("data/hardware/mi300x_8.toml", "value = 304", "value = -304", ["nodes"], "gpu.cus.value must lie in"),
        ("data/hardware/mi300x_8.toml", "llc_mb", "llc_gb", EXPLAIN, "unknown key 'gpu.llc_gb'"),
        ("data/suites/conccl30.csv", "268435456", "-1", ["run"], "line 2: collective nbytes must be"),
        ("data/reported/claims.csv", "confidence,", "trust,", ["claims"], "column confidence is missing"),
    ],
    ids=["TOML syntax", "impossible value", "unknown key", "negative size", "claims"],
)
def test_corrupted_data_is_named(tmp_path, path, old, new, words, part):
    project = copy_of_the_project(tmp_path)
    file = project / path
    file.write_text(file.read_text().replace(old, new, 1))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    one_sentence(shell(*words, cwd=project, env=environment), file.name, part)


def test_out_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    one_sentence(
        shell("run", "--strategy", "conccl", "--out", str(tmp_path / "file" / "rows.csv")), "cannot be written"
    )
    assert (tmp_path / "file").read_text() == "mine"


def test_out_onto_a_device_is_refused():
    one_sentence(shell("run", "--out", "/dev/full"), "--out /dev/full", "ordinary file")
    assert Path("/dev/full").is_char_device()


def test_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    out = tmp_path / "rows.csv"
    out.write_text("old")
    few = (2048, 2048)  # bytes a file may have: what a full disk looks like from inside
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, few)  # noqa: E731
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    one_sentence(shell("run", "--out", str(out), preexec_fn=limit, env=environment), "rows.csv: cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert out.read_text() == "old"


def test_a_files_error_is_not_said_of_the_output():
    """Wherever a command meets it, also where it had not reckoned with one."""
    for words in (["run", "--out", f"{'x' * 5000}.csv"], ["advise", "--config", "x" * 5000, "--tokens", "8"]):
        result = invoke(*words)
        assert result.exit_code == 2
        assert re.fullmatch(r"c3: x+(\.\.\.|\.csv): cannot be (used|read|written): File name too long\n", result.stderr)


def test_output_onto_a_full_device():
    with open("/dev/full", "w") as full:
        one_sentence(shell("nodes", stdout=full), "output cannot be written", "No space left")


def test_reader_that_leaves_is_no_error_message():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        result = shell("nodes", "mi300x_8", stdout=pipe)
    assert result.stderr == ""


def test_interrupt_is_one_line_and_status_130(tmp_path):
    """Ctrl-C while the suite runs: the run is made to last, so that the signal arrives in the midst of it."""
    out = tmp_path / "rows.csv"
    code = (
        "import sys, time, c3lib.experiment, c3lib.__main__\n"
        "c3lib.experiment.run_suite = lambda *a, **k: (print('running', flush=True), time.sleep(60))\n"
        f"sys.argv = ['c3', 'run', '--out', {str(out)!r}]\n"
        "c3lib.__main__.main()\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as process:
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "c3: interrupted\n"
    assert list(tmp_path.iterdir()) == []
