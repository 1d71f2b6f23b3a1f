"""Every notebook runs to its end without a warning and publishes something, also on a node the papers do not cover."""

import json

import pytest

from c3lib.book import run
from c3lib.files import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TWICE = "06_conccl"
"""Run twice, for the same bytes; that each figure function gives them is in test_figures, in a fraction of the time."""

ELSEWHERE = ("02", "06", "07")
"""Run on another node too; that each figure and finding holds on every node is in test_figures."""


def made_by(path, out, build):
    result = run(path, out, build)
    return {file.relative_to(out): file.read_bytes() for file in result.published}


@pytest.mark.notebooks
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_quietly_and_publishes(path, tmp_path):
    made = made_by(path, tmp_path / "out", tmp_path / "build")
    executed = json.loads((tmp_path / "build" / path.name).read_text())
    outputs = [output for cell in executed["cells"] for output in cell.get("outputs", [])]
    assert made, "it published nothing"
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == [], "warnings in the report"
    if path.stem == TWICE:
        again = made_by(path, tmp_path / "again", tmp_path / "build-again")
        assert [name for name in made if made[name] != again.get(name)] == [], "files that differ between two runs"


@pytest.mark.notebooks
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem[:2] in ELSEWHERE], ids=lambda path: path.stem)
def test_notebook_runs_on_a_node_the_papers_say_nothing_about(path, tmp_path):
    result = run(path, tmp_path / "out", tmp_path / "build", if_known={"node": "h200_1"})
    assert result.published
    assert "h200_1" in (tmp_path / "build" / path.name).read_text()
