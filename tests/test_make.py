"""The Makefile, in a small project of its own: what it redoes, what it leaves, how it fails, how it sets up."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from c3lib.files import ROOT

READS = "from c3lib.files import DATA, read_text\ntext = read_text(DATA / 'a.txt')"
SAVES = "from pathlib import Path\nPath(out, 'a.svg').write_text(text + node)"
SAVES_B = "from pathlib import Path\nPath(out, 'b.svg').write_text('b')"


def touch(path: Path) -> None:
    """Make ``path`` newer than all that exists; file times are only as fine as the system's clock tick."""
    time.sleep(0.02)
    path.touch()


class Project:
    """A project folder with our Makefile and runner."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "c3lib").mkdir()
        for name in ("__init__", "errors", "files", "notebook", "book"):
            shutil.copy(ROOT / "c3lib" / f"{name}.py", folder / "c3lib")
        (folder / "data").mkdir()
        (folder / "data" / "a.txt").write_text("hello ")

    def start(self, *arguments: str, own_env: bool = True) -> subprocess.Popen:
        # Of the make that may be running these tests, nothing must come through.
        env = {
            key: value
            for key, value in os.environ.items()
            if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHONPATH")
        }
        given = [f"VENV={sys.prefix}"] if own_env else []
        return subprocess.Popen(
            ["make", *arguments, *given],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def make(self, *arguments: str, own_env: bool = True) -> tuple[int, str, str]:
        process = self.start(*arguments, own_env=own_env)
        out, err = process.communicate(timeout=120)
        # A kernel that is told to stop now and then finds its own socket closed: ipykernel's race, not the project's.
        err = re.sub(
            r"ERROR:tornado\.general:Uncaught exception in ZMQStream callback\n.*?non-socket\n", "", err, flags=re.S
        )
        return process.returncode, out, err

    def would_redo(self) -> set[str]:
        """Notebooks that make would execute now."""
        status, out, err = self.make("-n", "figures")
        assert status == 0, err
        return set(re.findall(r"c3lib\.book notebooks/(\w+)\.ipynb", out))


@pytest.fixture
def project(tmp_path) -> Project:
    return Project(tmp_path)


def test_a_figure_is_redone_when_what_it_depends_on_changes_and_only_then(project, write_notebook):
    write_notebook(project.folder / "notebooks" / "01_a.ipynb", READS, SAVES)
    write_notebook(project.folder / "notebooks" / "02_b.ipynb", SAVES_B)
    status, out, err = project.make("figures")
    assert (status, err) == (0, "")
    assert sorted(line.split(":")[0] for line in out.splitlines()[:2]) == ["01_a", "02_b"]
    assert (project.folder / "figures" / "a.svg").read_text() == "hello mi300x_8"

    started = time.monotonic()
    status, out, err = project.make("figures")
    assert time.monotonic() - started < 2
    assert (status, out, err) == (0, "up to date: 2 of 2 notebooks; their figures are in figures/\n", "")

    cases = {
        "data/a.txt": {"01_a"},
        "c3lib/files.py": {"01_a"},
        "c3lib/book.py": set(),
        "notebooks/01_a.ipynb": {"01_a"},
        "notebooks/02_b.ipynb": {"02_b"},
        "constraints.txt": set(),
    }
    for name, redone in cases.items():
        path = project.folder / name
        before = path.stat().st_mtime
        touch(path)
        assert project.would_redo() == redone, name
        os.utime(path, (before, before))
    assert project.would_redo() == set()
    (project.folder / "figures" / "b.svg").unlink()
    assert project.would_redo() == {"02_b"}
    (project.folder / "data" / "a.txt").unlink()
    assert project.would_redo() == {"01_a", "02_b"}

    # A dependency that is dropped must not stop make, and must no longer count.
    write_notebook(project.folder / "notebooks" / "01_a.ipynb", "text = ''", SAVES)
    status, out, err = project.make("-j2", "figures")
    assert (status, err) == (0, "")
    assert project.would_redo() == set()
    assert (project.folder / "figures" / "b.svg").exists()
    assert "a.txt" not in (project.folder / "build" / "default" / "01_a.d").read_text()


def test_a_failed_notebook_fails_make_and_leaves_its_figure_and_the_others(project, write_notebook):
    write_notebook(project.folder / "notebooks" / "01_a.ipynb", SAVES)  # `text` is not defined
    write_notebook(project.folder / "notebooks" / "02_b.ipynb", SAVES_B)
    (project.folder / "figures").mkdir()
    (project.folder / "figures" / "a.svg").write_text("old")

    status, out, err = project.make("-k", "figures")

    assert status != 0
    assert "error: notebooks/01_a.ipynb: cell 3 " in err
    assert "NameError: name 'text' is not defined" in err
    assert (project.folder / "figures" / "a.svg").read_text() == "old"
    assert out.startswith("02_b: 1 file in figures/")
    assert project.would_redo() == {"01_a"}


def test_parameters_make_a_variant_beside_the_default_figures(project, write_notebook):
    write_notebook(project.folder / "notebooks" / "01_a.ipynb", READS, SAVES)
    (project.folder / "figures").mkdir()
    (project.folder / "figures" / "a.svg").write_text("default")

    status, out, err = project.make("figures", "NODE=h200_1", "SUITE=conccl30")

    assert (status, err) == (0, "")
    folder = "figures/node-h200_1.suite-conccl30"
    assert out.endswith(f"their figures are in {folder}/\n")
    assert (project.folder / folder / "a.svg").read_text() == "hello h200_1"
    assert (project.folder / "figures" / "a.svg").read_text() == "default"
    assert project.would_redo() == {"01_a"}  # the default was not made by this


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("NODES=h200_1", "unknown variable NODES; known: NODE BACKEND SUITE REPEATS PYTHON VENV"),
        ("NODE=it's", "NODE: a value may not contain '"),
        ("SUITE=a&touch started", "SUITE: a value may not contain &"),
        ("NODE=a|b", "NODE: a value may not contain |"),
        ("NODE=$$(touch started)", "NODE: a value may not contain $"),
        ("BACKEND=a(b", "BACKEND: a value may not contain ("),
    ],
)
def test_what_make_cannot_pass_on_is_refused(project, argument, message):
    status, out, err = project.make("figures", argument)
    assert status != 0
    assert out == ""
    assert message in err
    assert not list(project.folder.rglob("started"))  # no shell took the value for a command


def test_ctrl_c_leaves_no_kernel_and_nothing_half_written(project, write_notebook):
    code = "import os, time\nPath('pid').write_text(str(os.getpid()))\ntime.sleep(60)"
    write_notebook(project.folder / "notebooks" / "01_a.ipynb", SAVES_B, code)
    pid_file = project.folder / "notebooks" / "pid"
    process = project.start("figures")
    for _ in range(400):
        if pid_file.exists() and pid_file.read_text():
            break
        time.sleep(0.05)
    kernel = int(pid_file.read_text())
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)

    assert process.returncode != 0
    assert "01_a: interrupted; nothing was published" in err
    assert "Traceback" not in err
    assert not (project.folder / "figures").exists()
    assert list((project.folder / "build" / "default").iterdir()) == []
    for _ in range(100):
        if not Path(f"/proc/{kernel}").exists() or "Z" in Path(f"/proc/{kernel}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        pytest.fail(f"kernel {kernel} is still there")


def test_help_is_the_default_and_names_every_target(project):
    status, out, err = project.make(own_env=False)
    assert (status, err) == (0, "")
    checks, others = ("test", "test-amd", "test-device", "lint", "bench"), ("figures", "measure", "lab", "report")
    for target in (*checks, *others, "clean", "help"):
        assert re.search(rf"^  {target} +\S", out, re.M)
    assert not (project.folder / ".venv").exists()


# --- measuring ---


@pytest.fixture
def measuring(project):
    """A project of two nodes whose Python only says what it was called with; ``measuring()`` runs ``make measure``."""
    for name in ("mi300x_8", "h200_1"):
        path = project.folder / "data" / "hardware" / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    python = project.folder / "kept" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "called: $*"\n')
    python.chmod(0o755)
    return lambda *more: project.make("measure", *more, own_env=False)


@pytest.mark.parametrize("environment", [["VENV=kept"], ["PYTHON=/bin/false"]], ids=["kept", "to set up"])
@pytest.mark.parametrize(
    ("node", "message"),
    [
        ([], "say which node this machine is: make measure NODE=mi300x_8; known: h200_1 mi300x_8"),
        (["NODE="], "say which node this machine is: make measure NODE=mi300x_8; known: h200_1 mi300x_8"),
        (["NODE=mi300x"], "unknown node 'mi300x'; known: h200_1 mi300x_8"),
        (["NODE=h200_1 mi300x_8"], "unknown node 'h200_1 mi300x_8'; known: h200_1 mi300x_8"),
    ],
)
def test_measuring_begins_with_the_name_of_the_node(project, measuring, environment, node, message):
    """Before the environment is set up and before the GPUs are asked what they can do: both take minutes."""
    status, out, err = measuring(*environment, *node)
    assert (status, out) == (2, "")
    assert re.fullmatch(rf"Makefile:\d+: \*\*\* {re.escape(message)}\.  Stop\.\n", err)
    assert not (project.folder / ".venv").exists()


def test_measuring_says_what_can_be_measured_first(measuring):
    status, out, err = measuring("VENV=kept", "NODE=h200_1", "SUITE=conccl30_host")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "called: -m c3lib doctor",
        "called: -m c3lib measure --node h200_1 --suite conccl30_host",
    ]


# --- set-up, with a stand-in for Python that installs nothing ---

STAND_IN = """#!/bin/sh
case "$*" in
  "-m venv --clear .venv") rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python;;
  *pip*) if [ -e pip-fails ]; then exit 1; fi; if [ -e pip-is-killed ]; then kill -9 $PPID; fi;;
esac
"""


@pytest.fixture
def setting_up(project):
    """``setting_up()`` runs the set-up and returns its output; the stand-in counts as a good Python."""
    (project.folder / "bin").mkdir()
    python = project.folder / "bin" / "python3"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return lambda *more: project.make("PYTHON=bin/python3", ".venv/.ready-figures", *more, own_env=False)


def test_set_up_runs_once_and_again_when_the_dependency_files_change(project, setting_up):
    status, out, _ = setting_up()
    assert status == 0
    assert out.startswith("Setting up .venv")
    assert "is up to date" in setting_up()[1]
    touch(project.folder / "constraints.txt")
    assert setting_up()[1].startswith("pyproject.toml or constraints.txt changed")
    assert "is up to date" in setting_up()[1]


def test_a_set_up_that_was_cut_short_begins_afresh(project, setting_up):
    (project.folder / "pip-is-killed").touch()
    assert setting_up()[0] != 0
    (project.folder / "pip-is-killed").unlink()
    assert setting_up()[1].startswith("Setting up .venv")
    # ... also when what was cut short is a later one,
    (project.folder / "pip-is-killed").touch()
    touch(project.folder / "constraints.txt")
    assert setting_up()[0] != 0
    (project.folder / "pip-is-killed").unlink()
    assert setting_up()[1].startswith("Setting up .venv")
    # ... and when its Python has gone.
    (project.folder / ".venv" / "bin" / "python").unlink()
    (project.folder / ".venv" / "bin" / "python").symlink_to("nowhere")
    assert setting_up()[1].startswith("Setting up .venv")
    assert "is up to date" in setting_up()[1]


def test_a_pip_that_fails_is_reported_and_tried_again(project, setting_up):
    setting_up()
    touch(project.folder / "constraints.txt")
    (project.folder / "pip-fails").touch()
    status, _, err = setting_up()
    assert status != 0
    assert "error: pip could not install" in err
    (project.folder / "pip-fails").unlink()
    assert setting_up()[1].startswith("pyproject.toml or constraints.txt changed")  # not from the beginning


def test_without_a_python_that_is_new_enough_one_sentence_says_so(project):
    status, _, err = project.make("PYTHON=/bin/false", ".venv/.ready-figures", own_env=False)
    assert status != 0
    assert "error: needs Python 3.11 or newer, found none (/bin/false)" in err
    assert not (project.folder / ".venv").exists()
