"""The page of all notebooks: whole, self-contained, and only of notebooks that exist and ran."""

import base64
import gzip
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from c3lib import report
from c3lib.errors import C3Error
from c3lib.files import DATA

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
    assert re.findall(r'<section id="(\w+)">', text) == ["01_first", "02_second", "data"]
    assert re.findall(r'<li><a href="#\w+">(.+?)</a>', text) == [
        "Title of 01_first &amp; co",
        "Title of 02_second &amp; co",
        "Data",
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


def test_report_carries_every_table_of_data_and_says_how_it_was_made(build, tmp_path):
    text = report.write_report(build, tmp_path / "report.html").read_text()
    found = re.findall(r'<dt><a download="([^"]+)" href="data:application/gzip;base64,([^"]+)">([^<]+)</a></dt>', text)
    wanted = [path for kind in ("reported", "predicted", "measured") for path in (DATA / kind).rglob("*.csv")]
    assert {name for *_, name in found} == {path.relative_to(DATA).as_posix() for path in wanted}
    for _, code, name in found:
        assert gzip.decompress(base64.b64decode(code)) == (DATA / name).read_bytes()
    assert re.search(r"measured, \d+ rows; \d{4}-\d\d-\d\d, NVIDIA H200, commit [0-9a-f]{7}</dd>", text)
    assert text == report.write_report(build, tmp_path / "again.html").read_text()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"date": "2026-01-01"}'])
def test_a_damaged_sidecar_is_named(tmp_path, text):
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "a.csv").write_text("x\n1\n")
    (tmp_path / "measured" / "a.csv.json").write_text(text)
    with pytest.raises(C3Error, match=r"a\.csv\.json: is no provenance of a table"):
        report.downloads(tmp_path)


def test_what_widgets_showed_stands_on_the_page_and_widgets_do_not(build, tmp_path):
    """A widget needs a kernel, and its script a library that the page does not have."""
    folder, path = build, build / "01_first.ipynb"
    book = nbformat.read(path, as_version=4)
    data = {
        "application/vnd.jupyter.widget-view+json": {
            "model_id": "0123456789abcdef",
            "version_major": 2,
            "version_minor": 0,
        },
        "text/html": "<p>the answer as it was</p>",
        "text/plain": "c3 explain",
    }
    book.cells.append(new_code_cell("explorer", outputs=[new_output("execute_result", data=data, execution_count=2)]))
    nbformat.write(book, path)
    text = report.write_report(folder, tmp_path / "report.html").read_text()
    assert "the answer as it was" in text
    assert "0123456789abcdef" not in text
    assert "$(" not in text
