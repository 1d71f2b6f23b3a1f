"""Notebooks by sets of parameters: checked before anything runs, one failure loses no other, what is done is kept."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from c3lib.batch import batch, params, run
from c3lib.batch.params import read_jobs
from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.files import ROOT, held

EXAMPLE = ROOT / "docs" / "examples" / "batch.yaml"
SAVE = "from pathlib import Path\nPath(out, 'a.txt').write_text(f'{node!r} {repeats!r}')"
FAIL = "if node == 'bad':\n    raise ValueError('no such node:\\nlook it up')"


@pytest.fixture
def folder(tmp_path, write_notebook) -> Path:
    """A folder with a notebook that fails for the node 'bad'."""
    write_notebook(tmp_path / "nb" / "01_x.ipynb", FAIL, SAVE)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "params.yaml"
    path.write_text(text)
    return path


def said(folder: Path, text: str) -> str:
    """What is wrong with a file, in one sentence that names it."""
    path = write(folder, text)
    started = time.process_time()
    with pytest.raises(C3Error) as caught:
        read_jobs(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert time.process_time() - started < 5
    return str(caught.value).removeprefix(f"{path}: ")


# --- the file ---


def test_runs_are_the_combinations_and_the_sets_in_order(folder):
    path = write(
        folder,
        "notebook: nb/01_x.ipynb\nparameters: {repeats: 3}\ngrid: {node: [a, b]}\n"
        "runs:\n- {node: c}\n- {repeats: '5'}\n",
    )
    jobs = read_jobs(path)
    assert [dict(job.parameters) for job in jobs] == [
        {"repeats": 3, "node": "a"},
        {"repeats": 3, "node": "b"},
        {"repeats": 3, "node": "c"},
        {"repeats": 5},
    ]
    assert jobs[0].name.startswith("01_x.repeats-3.node-a-")
    assert len({job.name for job in jobs}) == 4
    assert {job.notebook for job in jobs} == {folder / "nb" / "01_x.ipynb"}
    assert [dict(job.parameters) for job in read_jobs(write(folder, "notebooks: [nb/01_x.ipynb]"))] == [{}]


def test_names_are_good_for_a_file_system_whatever_the_values(folder):
    long, odd = "x" * 300, "../a b/%00"
    first, second, third = read_jobs(write(folder, f"notebook: nb/01_x.ipynb\ngrid: {{node: [{long}, '{odd}', a_b]}}"))
    for job in (first, second, third):
        assert len(job.name) < 120
        assert "/" not in job.name
    assert second.name != read_jobs(write(folder, "notebook: nb/01_x.ipynb\ngrid: {node: ['../a b/_00']}"))[0].name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a table with the keys notebook"),
        ("- a", "must be a table with the keys notebook"),
        ("notebook: nb/01_x.ipynb\nparam: {}", "unknown key 'param' (did you mean 'parameters'?)"),
        ("parameters: {}", "give either notebook, or notebooks as a list"),
        ("notebooks: nb/01_x.ipynb", "notebooks must be a list of paths"),
        ("notebook: 3", "notebooks must be a list of paths"),
        ("notebook: nb/02.ipynb", "nb/02.ipynb: no such file"),
        ("notebook: params.yaml", "params.yaml: not a notebook that can be read"),
        ("notebook: nb/01_x.ipynb\nparameters: {nod: a}", "parameters.nod: "),
        ("notebook: nb/01_x.ipynb\nparameters: {nod: a}", "unknown parameter 'nod' (did you mean 'node'?)"),
        ("notebook: nb/01_x.ipynb\nruns: [{}, {repeats: many}]", "runs 2.repeats: "),
        ("notebook: nb/01_x.ipynb\nruns: [{repeats: many}]", "parameter 'repeats' must be of type int, got 'many'"),
        ("notebook: nb/01_x.ipynb\ngrid: {out: [a]}", "grid.out: "),
        ("notebook: nb/01_x.ipynb\ngrid: {node: a}", "grid.node must be a list of at least one value, not a"),
        ("notebook: nb/01_x.ipynb\ngrid: {node: []}", "grid.node must be a list of at least one value"),
        ("notebook: nb/01_x.ipynb\ngrid: [a]", "grid must be a table of lists, not a list"),
        ("notebook: nb/01_x.ipynb\nruns: {node: a}", "runs must be a list of tables, not a table"),
        ("notebook: nb/01_x.ipynb\nruns: [a]", "runs 1 must be a table of parameters, not a"),
        ("notebook: nb/01_x.ipynb\nruns: [{node: a}, {node: a}]", "runs 2: the same run stands twice"),
        ("notebook: nb/01_x.ipynb\nparameters: {node: [a]}", "parameters.node must be text, a number"),
        ("notebook: nb/01_x.ipynb\nparameters: {node: 2026-11-30}", "parameters.node must be text, a number"),
        ("notebook: nb/01_x.ipynb\nparameters: {repeats: .inf}", "parameters.repeats must be a finite number"),
        (
            f"notebook: nb/01_x.ipynb\nparameters: {{repeats: {2**64}}}",
            "parameters.repeats must be a whole number below",
        ),
        (f"notebook: nb/01_x.ipynb\nparameters: {{node: {'x' * 5000}}}", "parameters.node has 5,000 letters"),
        ("notebook: a\nnotebook: b", "line 2: key notebook stands twice"),
        ("notebook: nb/01_x.ipynb\n3: b", "line 2: key 3 must be text"),
        ("notebook: [a\nb: c", "line 2: not valid YAML: "),
        ("a:\n\t- b", "line 2: not valid YAML: "),
        ("a: 2020-13-45", "not valid YAML: "),
        ("a: \0", "not valid YAML: "),
        ("a: 1\n---\nb: 2", "line 2: not valid YAML: "),
    ],
)
def test_a_bad_file_is_told_in_one_sentence(folder, text, message):
    assert message in said(folder, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "line 2: aliases (*name) are not read"),
        (
            "a: !!python/object/apply:os.system ['touch owned']",
            "line 1: not valid YAML: could not determine a constructor",
        ),
        ("!!python/name:os.system", "not valid YAML: could not determine a constructor"),
        ("[" * 60_000, "line 1: brackets stand more than 50 deep"),
        ("{a: " * 15_000, "line 1: brackets stand more than 50 deep"),
        ("- " * 30_000, "not valid YAML: RecursionError"),
        ("a: " + "9" * 60_000, "not valid YAML: ValueError"),
        (
            "notebook: x\nparameters: {a: " + ":".join("1" * 30_000) + "}",
            "parameters.a must be a whole number below 2^63",
        ),
        ("".join(f"k{i}: 1\n" for i in range(5000)), "unknown key 'k0'"),
        (" " * 70_000, "is larger than 65536 bytes"),
        (
            "notebook: x\ngrid: {" + ", ".join(f"k{i}: [1, 2, 3, 4]" for i in range(40)) + "}",
            "asks for more than 10^24 runs",
        ),
        (
            "notebook: x\ngrid: {a: [" + "1, " * 10_001 + "]}",
            "asks for 10,001 runs, and a batch can have at most 10,000",
        ),
    ],
    ids=range(12),
)
def test_a_hostile_file_is_refused_quickly_and_runs_nothing(folder, text, message, monkeypatch):
    monkeypatch.chdir(folder)
    assert message in said(folder, text)
    assert not (folder / "owned").exists()


TAGS = [
    "bool",
    "int",
    "float",
    "null",
    "timestamp",
    "binary",
    "omap",
    "pairs",
    "set",
    "str",
    "seq",
    "map",
    "merge",
    "value",
]
CONTENT = ["abc", "''", "[a]", "{a: b}", "[[a]]", "[{a: b, c: d}]", "2020-99-99", "0x", "-", "1:a", "+", "=", "é"]


@pytest.mark.parametrize("tag", TAGS)
def test_a_value_under_a_wrong_tag_is_told_in_a_sentence(folder, tag):
    for content in CONTENT:
        said(folder, f"notebook: x\nparameters: {{x: !!{tag} {content}}}")
        said(folder, f"!!{tag} {content}")


def test_brackets_in_comments_and_in_text_are_no_depth(folder):
    text = f"notebook: nb/01_x.ipynb  # {'[' * 60}\nparameters: {{node: '# {'{' * 60}'}}\n"
    assert [job.parameters["node"] for job in read_jobs(write(folder, text))] == ["# " + "{" * 60]
    assert "line 2: brackets stand more than 50" in said(folder, f"'a # ': 1\n' # ': {'[' * 60}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('"a\\0b"', "notebook: a?b: cannot be a file: "),
        ('"\\ud800"', "notebook: "),
        ("x" * 5000, "File name too long"),
        ("a/" * 5000, "File name too long"),
        ("loop", "notebook: "),
        ("/dev/zero", "/dev/zero: must be an ordinary file"),
        ("pipe", "/pipe: must be an ordinary file"),
        ("nb", "/nb: must be an ordinary file"),
        ("large", "/large: is larger than 16777216 bytes"),
    ],
)
def test_what_cannot_be_a_notebook_is_told_in_few_letters(folder, given, message):
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    with (folder / "large").open("wb") as large:
        large.truncate(2**24 + 1)
    error = said(folder, f"notebook: {given}")
    assert message in error
    assert len(error) < 500
    assert error.isprintable()


CELL = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "out = 1", "outputs": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {"tags": 5}}, "not a notebook that can be read"),
        ({"metadata": {"tags": None}}, "not a notebook that can be read"),
        ({"metadata": {"tags": [["parameters"]]}}, "not a notebook that can be read"),
        ({"metadata": None}, "not a notebook that can be read"),
        ({"source": 5}, "not a notebook that can be read"),
        ({"source": None}, "not a notebook that can be read"),
        ({"cell_type": "x"}, "not a notebook that can be read"),
        ({"source": "out = " + "-" * 200_000 + "1"}, "nested too deeply"),
        ({"source": "out = a" + ".a" * 200_000}, "nested too deeply"),
        ({"source": "out = " + "(" * 200_000}, "is not valid Python"),
        ({"source": "out = 1\n" + " " * 100 + "x" * 9999}, "is not valid Python"),
        ({"source": "out = '\0'"}, "is not valid Python"),
        ({"source": "out = '\ud800'"}, "is not valid Python"),
        ({"source": "a = 1"}, "has no parameter 'out'"),
        ({"source": "out = 1\n" + "a" * 20_000 + " = 1"}, "unknown parameter 'node'"),
    ],
)
def test_a_bad_notebook_is_told_in_a_sentence(folder, change, message):
    notebook = {"cells": [{**CELL, "execution_count": None, **change}], "metadata": {}, "nbformat": 4}
    (folder / "bad.ipynb").write_text(json.dumps({**notebook, "nbformat_minor": 4}))
    error = said(folder, "notebook: bad.ipynb\nparameters: {node: a}")
    assert message in error
    assert "bad.ipynb: " in error
    assert len(error) < 3000


def test_a_cell_without_source_is_told_in_a_sentence(folder):
    cell = {key: value for key, value in CELL.items() if key != "source"}
    (folder / "bad.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
    assert "bad.ipynb: not a notebook that can be read (" in said(folder, "notebook: bad.ipynb")


@pytest.mark.parametrize("value", ["-" * 3999 + "1", "(" * 3999, "a" + ".a" * 1900])
def test_text_that_is_no_literal_stays_text(folder, write_notebook, value):
    write_notebook(folder / "any.ipynb", parameters="out = '.'\nany = None")
    assert (
        read_jobs(write(folder, f"notebook: any.ipynb\nparameters: {{any: '{value}'}}"))[0].parameters["any"] == value
    )


def test_a_long_key_and_value_are_not_repeated_whole(folder):
    assert len(said(folder, f"notebook: nb/01_x.ipynb\nparameters: {{? {'k' * 20_000} : 1}}")) < 500
    assert len(said(folder, f"notebook: nb/01_x.ipynb\nparameters: {{repeats: {'v' * 3999}}}")) < 500


def test_one_notebook_by_two_names_is_one_notebook(folder):
    (folder / "link.ipynb").symlink_to("nb/01_x.ipynb")
    for other in ("./nb/01_x.ipynb", "nb/../nb/01_x.ipynb", "link.ipynb", folder / "nb" / "01_x.ipynb"):
        assert "the same run stands twice" in said(folder, f"notebooks: [nb/01_x.ipynb, '{other}']")


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates()
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["node", "repeats", "out"]) | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*params.KEYS[2:], "x"]), ANYTHING, max_size=4))
@settings(max_examples=200)
def test_any_content_is_taken_or_told_in_a_sentence(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("any")
    path = write(
        folder, yaml.safe_dump({"notebook": str(EXAMPLE.parent / "../../notebooks/01_taxonomy.ipynb"), **content})
    )
    try:
        assert len(read_jobs(path)) >= 1
    except C3Error as error:
        problem = str(error)
    else:
        return
    assert problem.startswith(f"{path}: ")
    assert len(problem.splitlines()) == 1


@given(st.text(alphabet=st.sampled_from("notebk:[]{}&*!|>-'\"#,? \n\t1.:"), max_size=60) | st.text(max_size=60))
def test_any_text_is_told_in_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "params.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(C3Error, match=r"params\.yaml: .+") as caught:
        read_jobs(path)
    assert len(str(caught.value).splitlines()) == 1


# --- running ---


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.fixture
def stand_in(monkeypatch):
    """From when it is called on, no process is started for a run: it publishes, and depends on its notebook and a file.

    What is kept and why is decided before and after that; how a notebook runs, the other tests and test_book.py prove.
    """

    def begin(*more: Path) -> None:
        monkeypatch.setattr(run.subprocess, "Popen", lambda *_, **__: None)
        monkeypatch.setattr(run, "_asked", lambda _, job: answered(job, more))

    return begin


def answered(job: dict, more: tuple[Path, ...]) -> dict:
    folder, notebook = Path(job["folder"]), Path(job["notebook"])
    for path in (published := folder / "files" / "a.txt", folder / "executed" / notebook.name):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(job["parameters"]))
    dependencies = [str(path) for path in (notebook, *more)]
    return {"published": [str(published)], "dependencies": dependencies, "time_s": 0.0}


@pytest.mark.notebooks
def test_one_failed_run_loses_no_other_and_the_rest_is_kept_next_time(folder, stand_in):
    path = write(folder, "notebook: nb/01_x.ipynb\ngrid: {node: [bad, b]}\n")
    out = folder / "out"
    result = CliRunner().invoke(app, ["batch", str(path), "--out", str(out), "--jobs", "1"])
    assert result.exit_code == 1
    assert result.stdout.startswith("2 runs: 1 done, 1 failed; ")
    assert [row["status"] for row in rows(out)] == ["failed", "done"]
    error = rows(out)[0]["error"]
    assert "01_x.ipynb: cell 3 (`if node == 'bad':`) failed: ValueError: no such node:" in error
    assert "\n" not in error
    assert [json.loads(row["parameters"]) for row in rows(out)] == [{"node": "bad"}, {"node": "b"}]
    assert {path.parent.parent.name.split("-")[1]: path.read_text() for path in out.glob("*/files/a.txt")} == {
        "b": "'b' 9"
    }
    assert len(list(out.glob("*bad*/executed/*.failed.ipynb"))) == 1
    stand_in()
    assert [done.status for done in batch(path, out)] == ["done", "kept"]


def test_a_run_is_kept_until_something_that_it_rests_on_changes(folder, write_notebook, stand_in):
    path, out, data = write(folder, "notebook: nb/01_x.ipynb\ngrid: {node: [a, b]}\n"), folder / "out", folder / "data"
    data.write_text("1")
    stand_in(data)

    def statuses(**more) -> list[str]:
        # As if some time had passed: what changes while it runs is not kept.
        for file in (data, folder / "nb" / "01_x.ipynb"):
            os.utime(file, (before := time.time() - 1, before))
        return [done.status for done in batch(path, out, **more)]

    assert statuses() == ["done", "done"]
    assert statuses() == ["kept", "kept"]
    write(folder, "notebook: nb/01_x.ipynb\ngrid: {node: [a, b]}\nparameters: {repeats: 9}\n")
    assert statuses() == ["done", "done"]  # other runs: they set repeats
    write(folder, "notebook: nb/01_x.ipynb\ngrid: {node: [a, b]}\n")
    assert statuses() == ["kept", "kept"]
    next(iter(out.glob("01_x.node-a-*/files/a.txt"))).unlink()
    assert statuses() == ["done", "kept"]
    next(iter(out.glob("01_x.node-b-*/executed/01_x.ipynb"))).unlink()
    assert statuses() == ["kept", "done"]
    write_notebook(folder / "nb" / "01_x.ipynb", FAIL, SAVE, "1 + 1")
    assert statuses() == ["done", "done"]
    data.write_text("2")
    assert statuses() == ["done", "done"]
    next(iter(out.glob("01_x.node-b-*/run.json"))).write_text("{}")
    assert statuses() == ["kept", "done"]
    assert statuses(fresh=True) == ["done", "done"]
    data.unlink()
    assert [done.status for done in batch(path, out)] == ["done", "done"]


@pytest.mark.notebooks
def test_a_run_whose_process_is_killed_is_one_failed_run(folder, write_notebook):
    killer = "import os, signal\nif node == 'kernel':\n    os.kill(os.getpid(), signal.SIGKILL)"
    killer += "\nif node == 'all':\n    os.kill(os.getppid(), signal.SIGKILL)"
    write_notebook(folder / "nb" / "02_y.ipynb", killer, SAVE)
    path = write(folder, "notebook: nb/02_y.ipynb\ngrid: {node: [kernel, all]}\n")
    outcomes = batch(path, folder / "out", jobs=2)
    assert [done.status for done in outcomes] == ["failed", "failed"]
    assert "the kernel died before the end" in outcomes[0].error
    assert "its process was killed (signal 9; out of memory?)" in outcomes[1].error


def kernels(marker: str) -> list[str]:
    """Processes with this word in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"C3_TEST={marker}".encode() in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.notebooks
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_stopped_in_the_middle_it_leaves_no_process_and_goes_on_next_time(folder, write_notebook, stand_in, sign):
    write_notebook(
        folder / "nb" / "03_z.ipynb",
        f"import time\nfrom pathlib import Path\nif node == 'slow':\n"
        f"    Path({str(folder / 'slow')!r}).touch()\n    time.sleep(600)",
        SAVE,
    )
    # What is done before is kept is shown of Ctrl-C.
    nodes = ["quick", "slow", "later"] if sign == signal.SIGINT else ["slow", "later"]
    path = write(folder, f"notebook: nb/03_z.ipynb\ngrid: {{node: [{', '.join(nodes)}]}}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "c3lib", "batch", str(path), "--out", str(folder / "out"), "--jobs", "1"],
        cwd=ROOT,
        env={**os.environ, "C3_TEST": folder.name + sign.name},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not (folder / "slow").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(sign)
    stdout, stderr = process.communicate(timeout=40)
    until = time.monotonic() + 40
    while kernels(folder.name + sign.name):
        assert time.monotonic() < until
        time.sleep(0.1)
    if sign == signal.SIGINT:
        assert process.returncode == 130
        assert stderr == "c3: interrupted\n"
        assert stdout.startswith("3 runs: 1 done, 2 not run; ")
        assert [path.name[:15] for path in (folder / "out").iterdir() if path.is_dir()] == ["03_z.node-quick"]
    before = ["done"] * (len(nodes) - 2)
    assert [row["status"] for row in rows(folder / "out")] == [*before, "not run", "not run"]
    stand_in()
    kept = ["kept"] * len(before)
    assert [done.status for done in batch(path, folder / "out")] == [*kept, "done", "done"]


def test_nothing_runs_where_a_parameter_is_wrong(folder):
    path = write(folder, "notebook: nb/01_x.ipynb\nruns: [{node: a}, {nodes: b}]\n")
    result = CliRunner().invoke(app, ["batch", str(path), "--out", str(folder / "out")])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"c3: {path}: runs 2.nodes: ")
    assert result.stderr.count("\n") == 1
    assert not (folder / "out").exists()


def test_arguments_and_folder_are_checked(folder):
    path = write(folder, "notebook: nb/01_x.ipynb\n")
    with pytest.raises(C3Error, match="batch: jobs must be a whole number of at least 1"):
        batch(path, folder / "out", jobs=0)
    with pytest.raises(C3Error, match=r"params\.yaml: must be a folder"):
        batch(path, path)
    with held(folder / "out", "batch"):
        code = f"from c3lib.batch import batch; batch({str(path)!r}, {str(folder / 'out')!r})"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "another batch is writing here" in done.stderr


def test_the_example_is_read():
    jobs = read_jobs(EXAMPLE)
    assert [dict(job.parameters)["node"] for job in jobs] == ["mi300x_8", "h200_8"]
    assert run.SUMMARY == "summary.csv"


def test_the_file_of_the_page_is_what_it_says(tmp_path):
    text = re.search("```yaml\n(.+?)```", (ROOT / "docs" / "sweeps.md").read_text(), re.DOTALL).group(1)
    jobs = read_jobs(write(tmp_path, text.replace("../../notebooks", str(ROOT / "notebooks"))))
    assert [dict(job.parameters)["node"] for job in jobs] == ["mi300x_8", "h200_8", "h200_1"]


@pytest.mark.parametrize("package", ["yaml", "papermill"])
def test_without_its_packages_it_says_what_to_install(folder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(params, "find_spec", lambda name: None if name == package else True)
    assert "pip install -e '.[notebooks]'" in said_by(folder)


def said_by(folder: Path) -> str:
    with pytest.raises(C3Error) as caught:
        read_jobs(write(folder, "notebook: nb/01_x.ipynb"))
    return str(caught.value)
