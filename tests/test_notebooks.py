"""Every notebook runs to its end, publishes something, and publishes the same bytes when it runs again."""

import json

import pytest

from c3lib.book import run
from c3lib.files import ROOT


@pytest.mark.notebooks
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs_quietly_and_gives_the_same_bytes_again(path, tmp_path):
    made = []
    for turn in ("first", "second"):
        result = run(path, tmp_path / turn, tmp_path / f"build-{turn}")
        made.append({file.relative_to(tmp_path / turn): file.read_bytes() for file in result.published})
    executed = json.loads((tmp_path / "build-first" / path.name).read_text())
    outputs = [output for cell in executed["cells"] for output in cell.get("outputs", [])]
    assert made[0], "it published nothing"
    assert [name for name in made[0] if made[0][name] != made[1].get(name)] == [], "files that differ between two runs"
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == [], "warnings in the report"


@pytest.mark.notebooks
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs_on_a_node_the_papers_say_nothing_about(path, tmp_path):
    result = run(path, tmp_path / "out", tmp_path / "build", if_known={"node": "h200_1"})
    assert result.published
    assert "h200_1" in (tmp_path / "build" / path.name).read_text()
