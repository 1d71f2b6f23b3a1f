"""The house rules that a machine can check: dependencies agree, imports point down, notebooks keep their form."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import c3lib
from c3lib.files import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DIRECT = {
    canonicalize_name(needed.name): needed
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for needed in map(Requirement, texts)
}
CONDA_NAMES = {"pytorch": "torch"}
MODULES = sorted((ROOT / "c3lib").rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


# --- dependencies ---


def constraints() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), f"constraints.txt: not NAME==VERSION: {line}"
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def needed_by(names: set[str]) -> set[str]:
    """``names`` and all that the installed packages of these names need, on this platform."""
    found: set[str] = set()
    todo = [(name, "") for name in names]
    while todo:
        name, extra = todo.pop()
        found.add(name)
        try:
            needs = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:
            continue
        for need in needs:
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                child = canonicalize_name(need.name)
                todo += [(child, extra) for extra in ("", *need.extras) if child not in found or extra]
    return found


def test_constraints_pin_every_direct_dependency_within_its_bounds():
    pinned = constraints()
    assert set(DIRECT) <= set(pinned)
    assert [n for n, need in DIRECT.items() if not need.specifier.contains(pinned[n])] == []
    assert pinned["torch"] == "2.13.0"


def test_constraints_pin_all_that_is_needed_and_nothing_else():
    closure = needed_by(set(DIRECT))
    of_cuda = {name for name in closure if name.startswith(("nvidia-", "cuda-", "triton"))}  # torch pins these itself
    assert closure - of_cuda - set(constraints()) == set()
    assert set(constraints()) - closure == set()


def test_environment_yml_lists_the_same_dependencies_with_the_same_bounds():
    listed = {}
    for text in re.findall(
        r"^ +- (?!pip:|-e |python\b|pip$|conda-forge)(.+)$", (ROOT / "environment.yml").read_text(), re.M
    ):
        need = Requirement(text)
        listed[CONDA_NAMES.get(need.name, need.name)] = (need.specifier, str(need.marker or ""))
    assert listed == {name: (need.specifier, str(need.marker or "")) for name, need in DIRECT.items()}


def test_environment_yml_asks_for_the_same_python():
    assert f"- python{PROJECT['requires-python']}\n" in (ROOT / "environment.yml").read_text()


def test_every_direct_dependency_is_explained_and_no_other():
    rows = re.findall(r"^\| ([a-z0-9-]+) \| \S", (ROOT / "docs" / "dependencies.md").read_text(), re.M)
    assert sorted(name for name in rows if name != "package") == sorted(DIRECT)


def test_what_c3lib_imports_from_outside_is_a_direct_dependency():
    distribution = {"hip": "hip-python", "pynvml": "nvidia-ml-py", "yaml": "pyyaml"}
    used = set()
    for path in MODULES:
        for name in imported(path):
            top = name.split(".")[0]
            if top == "cuda":  # a name that several distributions share
                top = "-".join(name.split(".")[:2])
            if top != "c3lib" and top not in sys.stdlib_module_names:
                used.add(canonicalize_name(distribution.get(top, top)))
    assert used - set(DIRECT) == set()


def test_version_is_the_same_everywhere():
    assert PROJECT["version"] == c3lib.__version__
    assert f"\nversion: {c3lib.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {c3lib.__version__}" in (ROOT / "CHANGELOG.md").read_text()


# --- imports ---


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_importing_c3lib_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, time; t = time.perf_counter(); import c3lib; print(time.perf_counter() - t); print(*sys.modules)"
    )
    answers = [python(code).splitlines() for _ in range(5)]
    assert min(float(time_s) for time_s, _ in answers) <= 0.2
    assert {"torch", "pandas", "numpy", "matplotlib", "hip"} & set(answers[0][1].split()) == set()


FSDP = ("c3lib.measure.fsdp_model", "c3lib.measure.fsdp_rank")
"""The program of the experiment fsdp_step."""


def test_no_module_imports_torch_or_hip_until_it_is_used():
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in MODULES]
    names = [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]
    names = [name for name in names if not name.startswith(("c3lib.collectives", *FSDP))]  # for programs that use torch
    found = python(
        f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\nprint(*sys.modules)"
    ).split()
    assert set(names) <= set(found)
    assert {"torch", "hip"} & set(found) == set()


def test_only_the_program_that_trains_with_them_imports_the_collectives():
    users = {module_name(path) for path in MODULES if any(n.startswith("c3lib.collectives") for n in imported(path))}
    assert {name for name in users if not name.startswith("c3lib.collectives")} == set(FSDP)
    users = {module_name(path) for path in MODULES if any(n.startswith(FSDP) for n in imported(path))}
    assert users == {"c3lib.measure.fsdp_rank"}, "the program runs in processes of its own"


def imported(path: Path) -> set[str]:
    """Absolute names of the modules that the file imports, anywhere in it (``from c3lib import x`` gives c3lib.x)."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write it in full"
            names |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "c3lib" else {node.module}
            )
    return names


def floors() -> dict[str, int]:
    """Row of each module, or package (ending in a dot), in docs/architecture.md: the lower floor has the larger row."""
    found = {}
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    for number, row in enumerate(rows):
        for name in re.findall(r"`c3lib/([\w/]+)(?:\.py)?`", row):
            found["c3lib." + name.replace("/", ".")] = number
    return found


def floor(name: str) -> int | None:
    """Floor of a module: its own row, or that of the package it is in."""
    table = floors()
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        prefix = ".".join(parts[:length])
        for key in (prefix, prefix + "."):
            if key in table:
                return table[key]
    return None


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", MODULES[1:], ids=module_name)  # c3lib/__init__.py only says where its names are
def test_imports_point_down(path):
    name = module_name(path)
    own = floor(name)
    assert own is not None, f"{name} has no row in docs/architecture.md"
    for other in sorted(imported(path)):
        there = floor(other)
        assert there is None or there >= own, f"{name} imports {other}, which stands above it in docs/architecture.md"


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_no_module_is_longer_than_300_lines(path):
    assert len(path.read_text().splitlines()) <= 300


def test_every_module_of_the_architecture_page_exists():
    missing = [name for name in floors() if not any(module_name(p).startswith(name.rstrip(".")) for p in MODULES)]
    assert missing == []


# --- notebooks ---


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_the_house_form(path):
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    long = [
        i
        for i, cell in enumerate(notebook["cells"], 1)
        if cell in code and len("".join(cell["source"]).splitlines()) > 12
    ]
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert len(notebook["cells"]) <= 25
    assert long == [], "cells longer than 12 lines"
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None] == [], "stored outputs"
    assert sum("parameters" in cell["metadata"].get("tags", []) for cell in code) == 1
