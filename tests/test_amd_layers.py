"""A layer that cannot run says so, why, and what would get it; and who asked for it by name sees a failure."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import amd_layers
import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests/amd"))

import build_model  # noqa: E402
import get_runtime  # noqa: E402
from cases import Case  # noqa: E402
from get_runtime import NotObtained  # noqa: E402


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(get_runtime, "HOME", tmp_path)
    return tmp_path


def test_without_apt_the_reason_is_one_sentence(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_runtime.shutil, "which", lambda tool: None)
    with pytest.raises(NotObtained, match=r"^apt-get not found: the runtime comes from Debian 13's packages$"):
        get_runtime.runtime_root()


def test_a_failure_is_not_repeated_by_the_next_process(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(root: Path) -> None:
        tries.append(root)
        raise NotObtained("no network")

    tries: list[Path] = []
    monkeypatch.setattr(get_runtime, "_fetch", fails)
    for _ in range(3):
        with pytest.raises(NotObtained, match=r"^no network$"):
            get_runtime.runtime_root()
    assert len(tries) == 1
    os.utime(nothing_here / "not-obtained.txt", (0, 0))  # long ago
    with pytest.raises(NotObtained, match=r"^no network$"):
        get_runtime.runtime_root()
    assert len(tries) == 2


@pytest.mark.skipif(not Path("/etc/os-release").exists(), reason="not a Linux system")
def test_an_apt_without_a_debian_archive_is_told(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_runtime, "_run", lambda *_: "https://example.org/other focal main\n")
    with pytest.raises(NotObtained, match="no Debian archive"):
        get_runtime._archive()


def test_what_apt_says_is_the_reason() -> None:
    with pytest.raises(NotObtained, match=r"^sh -c echo E: broken >&2; exit 100 failed: E: broken$"):
        get_runtime._run(["sh", "-c", "echo E: broken >&2; exit 100"])


@pytest.mark.skipif(not shutil.which("apt-config"), reason="no apt")
def test_the_private_apt_shares_neither_sources_nor_state_nor_hooks_with_the_system_s(tmp_path: Path) -> None:
    environment = get_runtime.private_apt(tmp_path, "https://example.org/debian")
    dump = subprocess.run(["apt-config", "dump"], env=environment, capture_output=True, text=True, check=True).stdout
    settings = dict(line.rstrip(";").split(" ", 1) for line in dump.splitlines())
    for name in ("Dir::State", "Dir::State::status", "Dir::Cache", "Dir::Etc::sourceparts", "Dir::Etc::parts"):
        assert Path(settings[name].strip('"')).is_relative_to(tmp_path), name
    assert not [name for name in settings if "Invoke" in name]


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_the_model_compiles_without_a_warning() -> None:
    assert build_model.model(["-Wall", "-Wextra", "-Werror"]).exists()


def test_no_address_of_an_archive_is_in_the_repository() -> None:
    for path in (ROOT / "tests/amd").rglob("*"):
        if path.suffix in (".py", ".c", ".h"):
            assert "debian.org" not in path.read_text(), path


def test_a_run_of_the_tier_without_the_runtime_is_loud_and_fails(tmp_path: Path) -> None:
    (tmp_path / "without.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'tests/amd')!r})\nimport pathlib, get_runtime\n"
        f"get_runtime.HOME = pathlib.Path({str(tmp_path)!r})\nget_runtime.shutil.which = lambda tool: None\n"
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-m", "amd", "-p", "without", "-p", "no:cacheprovider", "-p", "no:xdist",
            str(ROOT / "tests/amd/test_l2_witness.py"),
        ],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}, cwd=ROOT,
        capture_output=True, text=True,
    )  # fmt: skip
    said = " ".join(done.stdout.split())
    assert "L2 NOT RUN (" in said
    assert "L2 not run: apt-get not found" in said
    assert "to obtain it: python tests/amd/get_runtime.py" in said
    assert done.returncode == 1


def test_a_case_tells_every_fact_that_is_not_as_expected() -> None:
    case = Case("name", "scenario", {"a": 1, "b": True}, else_="exact")
    assert case.differences({"a": 1, "b": True, "c": "exact"}) == []
    assert case.differences({"a": 1, "b": True, "c": "wrong"}) == ["c: expected 'exact', got 'wrong'"]
    assert case.differences({"a": 2, "c": "exact"}) == ["a: expected 1, got 2", "b: expected True, got 'nothing'"]
    assert case.differences({}) == [
        "no facts at all",
        *(f"{n}: expected {v}, got 'nothing'" for n, v in case.expected.items()),
    ]


def report(nodeid: str, skipped: str = "") -> SimpleNamespace:
    return SimpleNamespace(nodeid=nodeid, skipped=bool(skipped), longrepr=("", 0, f"Skipped: {skipped}"))


def test_layers_are_counted_by_the_name_of_the_file() -> None:
    reports = [
        report("tests/amd/test_l0_abi.py::a"),
        report("tests/amd/test_l2_x.py::b", "no runtime"),
        report("x.py::c"),
    ]
    assert amd_layers.ran_and_why_not(reports) == {"L0": (1, set()), "L1": (0, set()), "L2": (0, {"no runtime"})}


def test_what_is_said_names_what_is_not_proved() -> None:
    lines: list[str] = []
    amd_layers.say(lines.append, {"L0": (3, set()), "L1": (0, set()), "L2": (0, {"no runtime"})})
    text = " ".join(" ".join(lines).split())
    assert "nothing they show is a measurement" in text
    assert "L0 3 run. Proves:" in text
    assert "Does not prove: how AMD's library behaves." in text
    assert "L2 NOT RUN (no runtime)" in text


def test_nothing_is_said_where_no_layer_was_selected() -> None:
    lines: list[str] = []
    amd_layers.say(lines.append, amd_layers.ran_and_why_not([report("tests/test_cli.py::a")]))
    assert lines == []
