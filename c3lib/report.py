"""One self-contained HTML page of all executed notebooks: ``python -m c3lib.report --build build/default``."""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from c3lib import __version__
from c3lib.errors import C3Error
from c3lib.files import DATA, ROOT, read_text, write_text
from c3lib.notebook import quick_notebook_imports, read_notebook, shown

TITLE = "Concurrent computation and communication on GPUs"
EVIDENCE = (
    ("reported", "a paper, or a review of it, says so"),
    ("modelled", "our contention model computed it; calibrated if it set a constant, else predicted"),
    ("measured", "a device ran it, and the bytes it moved were verified"),
)

# nbconvert's plain template, with code folded away: the page is read for its figures and findings.
_FOLDED = """\
{%- extends 'basic/index.html.j2' -%}
{%- block input_group -%}
<details class="code"><summary>code</summary>{{ super() }}</details>
{%- endblock input_group -%}
"""


_WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Chapter:
    """One notebook on the page: anchor, title for the table of contents, body."""

    name: str
    title: str
    html: str


def chapters(build: Path) -> list[Chapter]:
    """The executed notebooks in ``build``, in the order of their names, without those whose source is gone.

    Raises :class:`C3Error` if there is none: the report is made from notebooks that ran to their end.
    """
    paths = [path for path in sorted(build.glob("*.ipynb")) if path.with_suffix(".done").exists()]
    paths = [path for path in paths if (ROOT / "notebooks" / path.name).exists()]
    if not paths:
        raise C3Error(f"{shown(build)}: no executed notebook to report on; run `make figures` first")
    return [_chapter(path) for path in paths]


@dataclass(frozen=True)
class Download:
    """A table that the page carries: its name, what it holds, how it was made, and the bytes as an address."""

    name: str
    evidence: str
    rows: int
    made: str
    href: str


def downloads(folder: Path = DATA) -> list[Download]:
    """The tables behind the page, compressed: what was reported, what was predicted before it was run, what was
    measured. Raises :class:`C3Error` for one that cannot be read."""
    found = []
    for evidence in ("reported", "predicted", "measured"):
        for path in sorted((folder / evidence).rglob("*.csv")):
            text = read_text(path)
            # No time stamp inside: the same tables make the same page.
            code = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
            name = path.relative_to(folder).as_posix()
            label = "modelled" if evidence == "predicted" else evidence
            found.append(
                Download(name, label, text.count("\n") - 1, _made(path), f"data:application/gzip;base64,{code}")
            )
    return found


def _made(path: Path) -> str:
    """From a table's sidecar: when, on what, by which commit; empty where there is none."""
    sidecar = path.with_name(f"{path.name}.json")
    if not sidecar.exists():
        return ""
    try:
        about = json.loads(read_text(sidecar))
        parts = [str(about.get(key, "")) for key in ("date", "device")] + [f"commit {str(about['commit'])[:7]}"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise C3Error(f"{sidecar}: is no provenance of a table") from None
    return ", ".join(filter(None, parts))


def provenance() -> str:
    """What the page was made from: commit and its date, where git knows them, and the versions in use."""
    names = ("numpy", "scipy", "pandas", "matplotlib", "papermill")
    used = [f"c3lib {__version__}", f"Python {platform.python_version()}", *filter(None, map(_versioned, names))]
    return f"{_commit()}; {', '.join(used)}"


def write_report(build: Path, out: Path) -> Path:
    """Write the page to ``out``, whole or not at all, and return its path. Raises :class:`C3Error` as above."""
    import jinja2

    template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    page = jinja2.Environment(autoescape=True).from_string(template)
    text = page.render(
        title=TITLE,
        evidence=EVIDENCE,
        chapters=chapters(build),
        downloads=downloads(),
        provenance=provenance(),
    )
    return write_text(out, text)


def _chapter(path: Path) -> Chapter:
    with quick_notebook_imports():
        from nbconvert import HTMLExporter

    node = read_notebook(path)
    for output in (output for cell in node.cells for output in cell.get("outputs", [])):
        if "text/html" in output.get("data", {}):  # widgets need a kernel; what they showed does not
            output.data.pop(_WIDGET, None)
        drawing = output.get("data", {}).pop("image/svg+xml", None)
        if drawing:  # as an image: drawings in one page would share the ids that matplotlib gives their parts
            code = base64.b64encode("".join(drawing).encode()).decode()
            output.data["text/html"] = f'<img alt="figure" src="data:image/svg+xml;base64,{code}">'
    node.metadata.pop("widgets", None)
    exporter = HTMLExporter(
        raw_template=_FOLDED, anchor_link_text="", exclude_input_prompt=True, exclude_output_prompt=True
    )
    body, _ = exporter.from_notebook_node(node)
    # Anchors of headings are made of their text, which two notebooks may share, so the notebook's name goes in front.
    body = re.sub(r'(<h[1-6][^>]*\bid=")', rf"\g<1>{path.stem}-", body)
    body = re.sub(r'(<a[^>]*\bhref="#)', rf"\g<1>{path.stem}-", body)
    return Chapter(path.stem, _title(node) or path.stem, body)


def _title(node: Any) -> str | None:
    text = "\n".join(cell.source for cell in node.cells if cell.cell_type == "markdown")
    found = re.search(r"^# +(.+)$", text, flags=re.MULTILINE)
    return found[1].strip() if found else None


def _versioned(name: str) -> str | None:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return None


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = " with local changes" if git("status", "--porcelain", "--untracked-files=no") else ""
        return f"commit {git('log', '-1', '--format=%h of %cs')}{changed}"
    except (OSError, subprocess.CalledProcessError):
        return "a copy without git history"


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    return run("report", "One HTML page of the notebooks.", ROOT / "build" / "report.html", write_report, argv)


def run(name: str, about: str, out: Path, write: Callable[[Path, Path], Path], argv: list[str] | None) -> int:
    """The command line of whatever writes pages from executed notebooks; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m c3lib.{name}", description=about)
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "default", help="folder of the executed notebooks"
    )
    parser.add_argument("--out", type=Path, default=out, help=f"where to write (default: {shown(out)})")
    args = parser.parse_args(argv)
    try:
        page = write(args.build.resolve(), args.out.resolve())
    except C3Error as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"{out.stem}: {shown(page)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
