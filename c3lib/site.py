"""The documentation as a site: docs/*.md, executed notebooks and docstrings by Sphinx: ``python -m c3lib.site``.

Nothing is fetched, neither to build it nor to read it. A warning of Sphinx (a link that leads nowhere, a page that is
in no table of contents) ends it, and the site that was there before stays.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from c3lib.errors import C3Error, lacking
from c3lib.files import ROOT, read_text
from c3lib.notebook import quick_notebook_imports, read_notebook, shown
from c3lib.report import run

DOCS = ROOT / "docs"

BESIDE = ("figures", "data", "c3lib", "README.md", "CHANGELOG.md")
"""What pages link to outside docs/."""

# Code is folded away: the pages are read for their figures and findings.
_FOLDED = """\
{%- extends 'markdown/index.md.j2' -%}
{%- block input -%}

<details class="code"><summary>code</summary>

```python
{{ cell.source }}
```

</details>

{%- endblock input -%}
{%- block data_png %}

![figure]({{ output.metadata.filenames['image/png'] | path2url }})

{%  endblock data_png -%}
{%- block data_svg %}

![figure]({{ output.metadata.filenames['image/svg+xml'] | path2url }})

{%  endblock data_svg -%}
"""

_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)\s#]+)\)", re.MULTILINE)


def contents(index: str) -> dict[str, dict[str, str]]:
    """The table of contents that ``index`` (Markdown) is: under each heading of the second order the list of links, as
    addresses with their words."""
    found = {}
    for section in re.split(r"^## +", index, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        found[title.strip()] = {address: words for words, address in _ENTRY.findall(body)}
    return found


def write_site(build: Path, out: Path) -> Path:
    """Make the site in the folder ``out``, whole or not at all, and return its first page.

    ``build`` holds the executed notebooks. Raises :class:`C3Error` where one is missing, Sphinx is not installed, or it
    warns of anything.
    """
    try:
        return _write_site(build, out)
    except OSError as error:
        raise C3Error(f"{shown(out)}: the site cannot be written there ({error.strerror or error})") from None


def _write_site(build: Path, out: Path) -> Path:
    if out.exists() and not (out / "index.html").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise C3Error(f"{shown(out)}: holds something else than a site; name another folder, or empty it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".site-", dir=out.parent) as name:
        folder = Path(name)
        _stage(folder / "docs", build)
        _sphinx(folder / "docs", folder / "html")
        if out.exists():
            out.rename(folder / "before")
        (folder / "html").rename(out)
    return out / "index.html"


def _stage(pages: Path, build: Path) -> None:
    """Lay out in ``pages`` what Sphinx reads: the pages, and the notebooks as pages in a folder ``notebooks``."""
    (pages / "notebooks").mkdir(parents=True)
    for name in BESIDE:
        (pages.parent / name).symlink_to(ROOT / name)
    for path in sorted(DOCS.iterdir()):
        if path.suffix == ".md":
            text = re.sub(r"\(\.\./notebooks/(\w+)\.ipynb\)", r"(notebooks/\1.md)", read_text(path))
            (pages / path.name).write_text(text + (_toctrees(text) if path.stem == "index" else ""), encoding="utf-8")
        elif path.name != "conf.py":
            (pages / path.name).symlink_to(path)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        executed = build / path.name
        if not executed.with_suffix(".done").exists():
            raise C3Error(f"{shown(executed)}: this notebook was not executed; run `make figures` first")
        _notebook(executed, pages / "notebooks")


def _toctrees(index: str) -> str:
    """What Sphinx needs to know of the table of contents, which a reader of the page has no use for."""
    trees = []
    for title, links in contents(index).items():
        names = "\n".join(f"{words} <{address.removesuffix('.md')}>" for address, words in links.items())
        trees.append(f"\n\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{names}\n```\n")
    return "".join(trees)


def _notebook(path: Path, folder: Path) -> None:
    """The executed notebook at ``path`` as a Markdown page in ``folder``, its figures beside it."""
    with quick_notebook_imports():
        from nbconvert import MarkdownExporter

    node = read_notebook(path)
    for output in (output for cell in node.cells for output in cell.get("outputs", [])):
        _static(output)
    body, resources = MarkdownExporter(raw_template=_FOLDED).from_notebook_node(
        node, {"unique_key": path.stem, "output_files_dir": "."}
    )
    for name, data in resources["outputs"].items():
        (folder / name).write_bytes(data)
    body = body.replace("</details>", "</details>\n\n")  # an empty line ends HTML
    body = re.sub(r"`docs/(\w+)\.md`", r"[\1](../\1.md)", body)
    (folder / f"{path.stem}.md").write_text(body, encoding="utf-8")


def _static(output: Any) -> None:
    """Leave of an output what a page can show: no sliders, and tables without a style of their own."""
    data = output.get("data", {})
    if data.pop("application/vnd.jupyter.widget-view+json", None) is not None and "text/html" not in data:
        data.clear()
        data["text/markdown"] = "*Sliders and what follows them: open this notebook with `make lab`.*"
    if "text/html" in data:  # an empty line inside would end the HTML for a reader of Markdown
        data["text/html"] = re.sub(r"<style.*?</style>|\n\s*(?=\n)", "", "".join(data["text/html"]), flags=re.DOTALL)


def _sphinx(pages: Path, out: Path) -> None:
    try:
        from sphinx.cmd.build import build_main
    except ImportError:
        raise lacking("the site", "Sphinx and myst-parser", "docs") from None
    status = build_main(["-q", "-W", "--keep-going", "-E", "-b", "html", "-c", str(DOCS), str(pages), str(out)])
    if status:
        raise C3Error("the site was not made; Sphinx's warnings are above, each with its page")
    shutil.rmtree(out / ".doctrees", ignore_errors=True)
    (out / ".buildinfo").unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run("site", "The documentation as a site.", ROOT / "build" / "docs", write_site, argv)


if __name__ == "__main__":
    sys.exit(main())
