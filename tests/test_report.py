"""The page of all notebooks: whole, self-contained, and only of notebooks that exist and ran."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from c3lib import report
from c3lib.errors import C3Error

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"><path id="p"/></svg>'


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A build folder of two notebooks that ran, one that failed half-way and one whose source has been removed."""
    monkeypatch.setattr(report, "ROOT", tmp_path)
    (tmp_path / "notebooks").mkdir()
    folder = tmp_path / "build"
    folder.mkdir()
    for name in ("02_second", "01_first", "03_failed", "04_removed"):
        cell = new_code_cell("figure()", outputs=[new_output("display_data", data={"image/svg+xml": SVG})])
        text = new_markdown_cell(f"# Title of {name} & co\n\n## Finding\n\n[back](#Finding)")
        nbformat.write(new_notebook(cells=[text, cell]), folder / f"{name}.ipynb")
        if name != "03_failed":
            (folder / f"{name}.done").touch()
        if name != "04_removed":
            (tmp_path / "notebooks" / f"{name}.ipynb").touch()
    return folder


def test_report_holds_the_notebooks_that_ran_in_order(build, tmp_path):
    text = report.write_report(build, tmp_path / "report.html").read_text()
    assert re.findall(r'<section id="(\w+)">', text) == ["01_first", "02_second"]
    assert re.findall(r'<li><a href="#\w+">(.+?)</a>', text) == [
        "Title of 01_first &amp; co",
        "Title of 02_second &amp; co",
    ]


def test_report_is_one_file_with_unique_anchors(build, tmp_path):
    text = report.write_report(build, tmp_path / "report.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text) == []
    assert text.count("data:image/svg+xml;base64,") == 2
    assert text.count("<details") == 2  # the code is there, folded


def test_report_says_what_it_was_made_from(build, tmp_path):
    text = report.write_report(build, tmp_path / "report.html").read_text()
    assert "a copy without git history; c3lib 0.1.0, Python 3." in text
    for label in ("reported", "modelled", "measured"):
        assert f"<dt>{label}</dt>" in text


def test_report_of_nothing_is_refused(tmp_path, capsys):
    with pytest.raises(C3Error, match="no executed notebook to report on; run `make figures` first"):
        report.chapters(tmp_path)
    assert report.main(["--build", str(tmp_path), "--out", str(tmp_path / "report.html")]) == 1
    assert "no executed notebook" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
