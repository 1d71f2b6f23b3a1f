"""A layer that cannot run says so, why, and what would get it; and who asked for it by name sees a failure."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import amd_layers
import pytest
from amd_layers import Layer

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


ADDRESS = re.compile(rb"debian[.]org|^ *deb(-src)? .*https?:|^URIs: *https?:", re.M)
"""Of an archive, or a line of an apt source that names one."""


@pytest.mark.parametrize(
    "line", ["https://deb.debian" + ".org/x", "de" + "b [a=b] http://h s main", "URI" + "s: http://h"]
)
def test_an_address_of_an_archive_is_seen(line: str) -> None:
    assert ADDRESS.search(f"text\n{line}\n".encode())


def test_no_address_of_an_archive_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = [ROOT / name for name in os.fsdecode(listed.stdout).split("\0") if (ROOT / name).is_file()]
    texts = {path: text for path in tracked if b"\0" not in (text := path.read_bytes())}
    assert {ROOT / name for name in ("README.md", "Makefile", "tests/amd/get_runtime.py")} <= set(texts)
    assert [path for path, text in texts.items() if ADDRESS.search(text)] == []


def test_a_case_tells_every_fact_that_is_not_as_expected() -> None:
    case = Case("name", "scenario", {"a": 1, "b": True}, else_="exact")
    assert case.differences({"a": 1, "b": True, "c": "exact"}) == []
    assert case.differences({"a": 1, "b": True, "c": "wrong"}) == ["c: expected 'exact', got 'wrong'"]
    assert case.differences({"a": 2, "c": "exact"}) == ["a: expected 1, got 2", "b: expected True, got 'nothing'"]
    assert case.differences({}) == [
        "no facts at all",
        *(f"{n}: expected {v}, got 'nothing'" for n, v in case.expected.items()),
    ]


def report(nodeid: str, skipped: str = "", **properties: str) -> SimpleNamespace:
    longrepr = ("", 0, f"Skipped: {skipped}")
    return SimpleNamespace(
        nodeid=nodeid, skipped=bool(skipped), longrepr=longrepr, user_properties=[*properties.items()]
    )


def test_layers_are_counted_by_the_name_of_the_file() -> None:
    reports = [
        report("tests/amd/test_l0_abi.py::a"),
        report("tests/amd/test_l2_x.py::b", "no runtime"),
        report("tests/amd/test_hip_mask.py::c", **{amd_layers.LIBRARY: "lib 1", "other": "2"}),
        report("x.py::c"),
    ]
    assert amd_layers.ran_and_why_not(reports) == {
        "L0": Layer(1),
        "L1": Layer(),
        "L2": Layer(0, {"no runtime"}),
        "HIP": Layer(1, set(), {"lib 1"}),
    }


def test_what_is_said_names_what_is_not_proved() -> None:
    lines: list[str] = []
    amd_layers.say(lines.append, {"L0": Layer(3), "L2": Layer(0, {"no runtime"}), "HIP": Layer(52, set(), {"lib 1"})})
    text = " ".join(" ".join(lines).split())
    assert "nothing they show is a measurement" in text
    assert "L0 3 run. Proves:" in text
    assert "Does not prove: how AMD's library behaves." in text
    assert "L2 NOT RUN (no runtime)" in text
    assert "HIP 52 run on lib 1. Proves: on stand-ins for HIP" in text
    assert text.endswith("L3 not built; HIP is stand-ins only (test_hip_parts, test_hip_mask)")


def test_a_layer_that_ran_in_part_claims_nothing() -> None:
    lines: list[str] = []
    reasons = {"L0 not run: gcc not found"}
    amd_layers.say(lines.append, {"L0": Layer(1, reasons), "L1": Layer(9, {"torch is built for ROCm"})})
    text = " ".join(" ".join(lines).split())
    assert "L0 1 run, IN PART NOT RUN (L0 not run: gcc not found). Only all of it proves: our table" in text
    assert "L1 9 run. Proves: on our double" in text
    assert "In part not run: torch is built for ROCm" in text


def without(tmp_path: Path, tool: str, test: str, home: Path) -> tuple[str, int]:
    """What a run of the tier says, and its exit status, where a tool cannot be found and the runtime is in ``home``."""
    (tmp_path / "without.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'tests/amd')!r})\nimport pathlib, shutil, get_runtime\n"
        f"get_runtime.HOME = pathlib.Path({str(home)!r})\nwhich = shutil.which\n"
        f"shutil.which = lambda tool, *more, **how: None if tool == {tool!r} else which(tool, *more, **how)\n"
    )
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-m", "amd", "-p", "without", "-p", "no:cacheprovider", "-p", "no:xdist",
            str(ROOT / "tests/amd" / test),
        ],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}, cwd=ROOT,
        capture_output=True, text=True,
    )  # fmt: skip
    return " ".join(done.stdout.split()), done.returncode


def test_a_run_of_the_tier_without_the_runtime_is_loud_and_fails(tmp_path: Path) -> None:
    said, status = without(tmp_path, "apt-get", "test_l2_witness.py", tmp_path)
    assert "L2 NOT RUN (" in said
    assert "L2 not run: apt-get not found" in said
    assert "to obtain it: python tests/amd/get_runtime.py" in said
    assert status == 1


def test_without_gcc_the_header_is_not_compared_and_nothing_breaks(tmp_path: Path) -> None:
    header = tmp_path / f"rocr-{get_runtime.VERSION}" / "usr/include/hsa/hsa.h"
    header.parent.mkdir(parents=True)
    header.touch()
    said, status = without(tmp_path, "gcc", "test_l0_abi.py", tmp_path)
    assert " failed" not in said
    assert " error" not in said
    assert f"IN PART NOT RUN (L0 not run: gcc not found; on Debian: {build_model.NEEDS})" in said
    assert status == 1


def test_the_page_of_dependencies_names_every_package_of_the_layers() -> None:
    page = (ROOT / "docs/dependencies.md").read_text()
    needed = {*get_runtime.PACKAGES, *build_model.NEEDS.removeprefix("apt-get install ").split()}
    assert [name for name in sorted(needed) if f"`{name}`" not in page] == []


def test_nothing_is_said_where_no_layer_was_selected() -> None:
    lines: list[str] = []
    amd_layers.say(lines.append, amd_layers.ran_and_why_not([report("tests/test_cli.py::a")]))
    assert lines == []


def test_a_file_that_cannot_be_imported_ran_nothing_and_hides_no_error():
    failed = SimpleNamespace(nodeid="tests/amd/test_l1_x.py", skipped=False, longrepr="ImportError")
    assert amd_layers.ran_and_why_not([failed])["L1"].ran == 0
