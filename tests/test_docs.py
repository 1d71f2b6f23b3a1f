"""The pages of docs/: in the table of contents, links and figures there, what the tutorial shows as it is printed, what
the answers quote as it is found; and the site made of them, whole, without a warning, without a network."""

import importlib
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from typer.testing import CliRunner

from c3lib import site
from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.files import ROOT
from c3lib.measured import read_measured

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
FAQ = (DOCS / "faq.md").read_text(encoding="utf-8")


def prose(path: Path) -> str:
    """A page without its code, which may hold brackets of its own."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# --- the pages as they lie ---


def test_every_page_and_every_notebook_is_in_the_table_of_contents_once():
    listed = [address for links in site.contents((DOCS / "index.md").read_text()).values() for address in links]
    assert sorted(listed) == sorted(
        [path.name for path in PAGES if path.stem != "index"] + [f"../notebooks/{path.name}" for path in NOTEBOOKS]
    )


def test_the_table_of_contents_has_the_four_kinds_of_page():
    kinds = ["Tutorial", "How to", "Concepts", "Reference"]
    assert list(site.contents((DOCS / "index.md").read_text())) == [*kinds, "Notebooks"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_link_and_figure_is_there(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if "://" in target:
            continue
        address, _, anchor = target.partition("#")
        there = (path.parent / address).resolve() if address else path
        assert there.is_file() or (there.is_dir() and not anchor), target
        assert not anchor or anchor in anchors(there), target


def test_a_link_and_an_anchor_that_lead_nowhere_would_be_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A title, with `code`\n\n[a](#a-title-with-code)\n\n`[no](link.md)`\n")
    test_every_link_and_figure_is_there(page)
    for text in ("[x](gone.md)", "![x](gone.svg)", "[x](page.md#gone)", "[x](#gone)"):
        page.write_text(f"# Title\n\n{text}\n")
        with pytest.raises(AssertionError):
            test_every_link_and_figure_is_there(page)


# --- the tutorial: its commands print what it shows ---

SHOWN = [block.partition("\n") for block in re.findall(r"```console\n\$ (.*?)\n```", TUTORIAL, re.DOTALL)]


def pattern(shown: str) -> str:
    """What is shown as a pattern: ``...`` stands for a rest of a line, and alone on its line for any lines."""
    text = re.escape(shown).replace(re.escape("..."), "[^\n]*")
    return re.sub(r"(?<=\n)\[\^\n\]\*\\\n", "(?:[^\n]*\n)*", text)


def printed(command: str, monkeypatch) -> str:
    monkeypatch.chdir(ROOT)
    assert command.startswith("c3 ")
    result = CliRunner().invoke(app, command.split()[1:])
    assert result.exit_code == 0, result.output
    return result.output.rstrip("\n")


@pytest.mark.parametrize(("command", "shown"), [(c, s) for c, _, s in SHOWN], ids=[c for c, _, _ in SHOWN])
def test_the_tutorial_shows_what_is_printed(command, shown, monkeypatch):
    text = printed(command, monkeypatch)
    assert re.fullmatch(pattern(shown), text), f"docs/tutorial.md is out of date; {command} now prints\n{text}"


def test_the_tutorial_shows_each_command_that_it_is_about():
    assert {command.split()[1] for command, _, _ in SHOWN} == {"doctor", "nodes", "explain", "advise"}
    assert sum("--config" in command for command, _, _ in SHOWN) == 2
    assert sum("do not overlap" in shown for _, _, shown in SHOWN) == 1


@pytest.mark.parametrize(
    ("shown", "text", "same"),
    [
        ("a\n...\nb", "a\nb", True),
        ("a\n...\nb", "a\n1\n2\nb", True),
        ("a ...\nb", "a 1\nb", True),
        ("a ...\nb", "a 1\n2\nb", False),
        ("a\nb", "a\nb\nc", False),
        ("1.64x", "1x64x", False),
    ],
)
def test_what_stands_for_what_is_left_out(shown, text, same):
    assert bool(re.fullmatch(pattern(shown), text)) == same


def test_the_tutorials_other_commands_are_there():
    others = [line for block in re.findall(r"```bash\n(.*?)```", TUTORIAL, re.DOTALL) for line in block.splitlines()]
    assert others == ["make figures", "export PATH=$PWD/.venv/bin:$PATH"]


# --- the questions ---

QUESTIONS = re.split(r"^## ", FAQ, flags=re.MULTILINE)[1:]
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", FAQ, re.DOTALL) for line in block.splitlines()]


def figures_say(module: str, finding: str, *arguments) -> str:
    return getattr(importlib.import_module(f"c3lib.figures.{module}"), finding)(*arguments)


def of_rows(module: str, finding: str, rows: str, *arguments) -> str:
    return figures_say(module, finding, getattr(importlib.import_module(f"c3lib.figures.{module}"), rows)(*arguments))


FINDINGS = {
    "most to": lambda: of_rows("blame", "finding", "blame_rows", "mi300x_8", "conccl30"),
    "records: Memcpy": lambda: figures_say("one_local_copy", "finding", read_measured("h200_2", "transports")[0]),
    "DMA beats": lambda: of_rows("questions", "finding_break_even", "speedup_rows", "mi300x_8"),
    "gains for certain": lambda: figures_say(
        "measured_gain", "finding_break_even", read_measured("h200_2", "break_even")[0]
    ),
    "needs 32 CUs": lambda: of_rows("transport", "finding_cus", "cu_rows", "mi300x_8"),
    "on no SM": lambda: figures_say("measured_curves", "finding_blocks", read_measured("h200_2", "isolated")[0]),
    "tokens a GPU": lambda: figures_say("training_step", "finding", *read_measured("h200_2", "fsdp_step")),
    "DMA takes": lambda: of_rows("transport", "finding_sizes", "size_rows", "mi300x_8"),
    "hindsight": lambda: figures_say(
        "measured_scenarios", "finding_versus", read_measured("h200_2", "conccl30_nvlink")[0]
    ),
    "pieces by": lambda: of_rows("ficco_pieces", "finding_size", "size_rows", "mi300x_8"),
    "piece-64KiB": lambda: of_rows("ficco_measured", "finding", "table", "h200_1"),
}
"""A few words of each quotation, and what computes the sentence that it is taken from."""

QUOTES = re.findall(r"^> (\w+), (\w+): (.+)$", FAQ, re.MULTILINE)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.splitlines()[0])
def test_every_question_has_a_figure_and_a_command(question):
    assert question.splitlines()[0].endswith("?")
    assert re.search(r"!\[.{20,}?\]\(\.\./figures/\w+\.svg\)", question)
    assert "```bash\nc3 " in question


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_answers_runs(command, monkeypatch):
    assert len(printed(command, monkeypatch).splitlines()) > 2


@pytest.mark.parametrize(("evidence", "where", "quote"), QUOTES)
def test_what_the_answers_quote_is_what_is_found(evidence, where, quote):
    [finding] = [find for words, find in FINDINGS.items() if words in quote]
    found = finding()
    plain = getattr(found, "data", found).replace("**", "")
    assert quote in plain, f"docs/faq.md is out of date; now it is\n{plain}"
    assert evidence == ("measured" if where.startswith("h200") else "modelled")


def test_every_line_set_off_in_the_answers_says_what_it_is():
    assert len(QUOTES) == len(re.findall(r"^>", FAQ, re.MULTILINE)) >= 10


# --- the site ---


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A small project: two pages, a notebook that ran."""
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    for name in ("docs", "notebooks", "figures", "build"):
        (tmp_path / name).mkdir()
    (tmp_path / "docs" / "conf.py").write_text('extensions = ["myst_parser"]\nhtml_theme = "basic"\n')
    (tmp_path / "docs" / "index.md").write_text(
        "# Start\n\n## How to\n\n- [short](page.md)\n\n## Notebooks\n\n- [one](../notebooks/01_a.ipynb): a\n"
    )
    (tmp_path / "docs" / "page.md").write_text("# A long title\n\n[notebook](../notebooks/01_a.ipynb)\n")
    executed(tmp_path / "build" / "01_a.ipynb")
    (tmp_path / "notebooks" / "01_a.ipynb").touch()
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "DOCS", tmp_path / "docs")
    return tmp_path


TABLE = """<div>
<style scoped>
    a {}

    b {}
</style>
<table border="1" class="dataframe">
<tr><td>7</td></tr></table>
</div>"""
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def executed(path: Path, source: Path | None = None) -> None:
    """A notebook with one output of each kind, as if it had run."""
    outputs = [
        new_output("display_data", data={"image/png": PNG, "text/plain": "<Figure>"}),
        new_output("execute_result", data={"text/html": TABLE, "text/plain": "7"}),
        new_output("execute_result", data={"text/markdown": "**found** 7", "text/plain": "found"}),
        new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {}, "text/plain": "VBox()"}),
        new_output("stream", name="stdout", text="printed\n\n  and indented\n"),
    ]
    cells = [new_markdown_cell("# Title\n\nSee `docs/page.md`.")]
    if source is not None:
        cells = nbformat.read(source, as_version=4).cells
    cells += [new_code_cell("show()", outputs=[output]) for output in outputs]
    cells += [new_markdown_cell("## After code")]
    nbformat.write(new_notebook(cells=cells), path)
    path.with_suffix(".done").touch()


def test_a_site_has_pages_notebooks_and_their_outputs(small):
    page = site.write_site(small / "build", small / "out")
    assert page == small / "out" / "index.html"
    text = (small / "out" / "notebooks" / "01_a.html").read_text()
    assert '<img alt="figure"' in text
    assert "<td>7</td>" in text
    assert "a {}" not in text
    assert "<strong>found</strong>" in text
    assert "VBox" not in text
    assert "<em>Sliders and what follows them: open this notebook with <code" in text
    assert re.search(r">printed\n\n  and indented", text)
    assert re.search(r"<h2>After code", text)
    assert '<a class="reference internal" href="../page.html">' in text
    assert 'href="notebooks/01_a.html"' in (small / "out" / "page.html").read_text()
    assert 'class="caption-text">How to' not in (small / "out" / "index.html").read_text().split("</h2>")[0]
    assert sorted(path.name for path in small.iterdir()) == ["build", "docs", "figures", "notebooks", "out"]


@pytest.mark.parametrize(
    ("page", "text", "said"),
    [
        ("page.md", "# A\n\n[x](gone.md)\n", "gone"),
        ("page.md", "# A\n\n![x](gone.svg)\n", "gone.svg"),
        ("page.md", "# A\n\n[x](index.md#gone)\n", "gone"),
        ("lonely.md", "# Lonely\n", "lonely"),
    ],
)
def test_a_warning_ends_it_and_the_site_before_stays(small, capsys, page, text, said):
    site.write_site(small / "build", small / "out")
    before = (small / "out" / "page.html").read_bytes()
    (small / "docs" / page).write_text(text)
    with pytest.raises(C3Error, match="warnings are above"):
        site.write_site(small / "build", small / "out")
    assert said in capsys.readouterr().err
    assert (small / "out" / "page.html").read_bytes() == before
    assert sorted(path.name for path in small.iterdir()) == ["build", "docs", "figures", "notebooks", "out"]


def test_what_is_lacking_is_one_sentence(small, monkeypatch, capsys):
    (small / "build" / "01_a.done").unlink()
    assert site.main(["--build", str(small / "build"), "--out", str(small / "out")]) == 1
    assert capsys.readouterr().err == (
        "error: build/01_a.ipynb: this notebook was not executed; run `make figures` first\n"
    ).replace("build/", f"{small}/build/")
    (small / "build" / "01_a.done").touch()
    monkeypatch.setitem(sys.modules, "sphinx.cmd.build", None)
    with pytest.raises(C3Error, match=r"needs Sphinx and myst-parser: .*\[docs\]"):
        site.write_site(small / "build", small / "out")
    assert not (small / "out").exists()


def test_a_folder_of_something_else_is_left_alone(small):
    (small / "out").mkdir()
    (small / "out" / "mine.txt").touch()
    with pytest.raises(C3Error, match="holds something else"):
        site.write_site(small / "build", small / "out")
    assert (small / "out" / "mine.txt").exists()
    with pytest.raises(C3Error, match=r"mine\.txt/site: the site cannot be written there"):
        site.write_site(small / "build", small / "out" / "mine.txt" / "site")


PROGRAM = """
import sys
from c3lib.site import main
status = main(sys.argv[1:])
found = {name: getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "cuda", "hip")}
loaded = [name for name, file in found.items() if str(file).endswith(".py")]  # a stand-in's file is no Python
sys.exit(f"imported {loaded}" if loaded else status)
"""


def test_the_site_is_made_without_a_warning_and_fetches_nothing(tmp_path):
    """All of it in one test, as making it takes ten seconds: the real pages, beside notebooks that did not run."""
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    (tmp_path / "build").mkdir()
    for path in NOTEBOOKS:
        executed(tmp_path / "build" / path.name, path)
    arguments = ["--build", str(tmp_path / "build"), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"docs: {tmp_path}/out/index.html\n"
    pages = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "out").rglob("*.html")}
    made = {path.relative_to(tmp_path / "out").with_suffix("").as_posix() for path in pages}
    assert made >= {path.stem for path in PAGES} | {f"notebooks/{path.stem}" for path in NOTEBOOKS}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    for path, text in pages.items():
        assert re.findall(r"<(?:script|link|img|iframe|source)[^>]*(?:https?:)?//[^>]*>", text) == [], path
        for address in map(unescape, re.findall(r'(?:href|src)="([^"]+)"', text)):
            if re.match(r"\w+:", address):
                continue
            name, _, anchor = address.split("?")[0].partition("#")
            there = (path.parent / name).resolve() if name else path
            assert there.is_file(), f"{path}: {address}"
            assert not anchor or there not in ids or anchor in ids[there], f"{path}: {address}"
    sheets = "".join(path.read_text() for path in (tmp_path / "out" / "_static").glob("*.css"))
    assert re.findall(r"(?:@import|url\()[^;]*//[^;]*;", sheets) == []
    reference = pages[tmp_path / "out" / "reference.html"]
    for name in ("c3lib.Gemm", "c3lib.explain.explain", "c3lib.advise", "c3lib.sweeps.sweep", "c3lib.ficco.build"):
        assert f'id="{name}"' in reference
    assert 'id="c3lib.collectives.all_gather_into_tensor"' in reference
