"""Execute one notebook, and publish what it made only if all of it ran.

    python -m c3lib.book notebooks/01_taxonomy.ipynb --out figures --build build/default -p node=h200_1

The notebook gets a parameter ``out``: the folder where it saves figures and tables. During the run that is a scratch
folder, so a notebook that fails leaves every published file as it was. Beside the published files a run leaves, in the
build folder, ``NAME.ipynb`` (the executed copy, which the report shows), ``NAME.json`` (what was published),
``NAME.d`` (for make: the data files read and the c3lib modules imported) and, last, ``NAME.done``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from c3lib.errors import C3Error
from c3lib.files import ROOT, write_bytes, write_text
from c3lib.notebook import (
    Value,
    convert,
    parameter_cells,
    parameter_defaults,
    quick_notebook_imports,
    read_notebook,
    shown,
)

# Runs as the last cell of a scratch copy; the executed copy that is kept does not have it.
_ASK = """\
import json as _json, sys as _sys
_files = _sys.modules.get("c3lib.files")
print(_json.dumps({
    "modules": [m.__file__ for n, m in _sys.modules.items() if n.split(".")[0] == "c3lib" and m.__file__],
    "data": [str(p) for p in _files.files_read()] if _files else [],
}))
"""


@dataclass(frozen=True)
class Run:
    """A notebook that ran to its end: what it published, what it depends on, and how long it took."""

    name: str
    published: tuple[Path, ...]
    dependencies: tuple[Path, ...]
    time_s: float


def run(
    notebook: Path | str,
    out: Path | str,
    build: Path | str,
    parameters: Mapping[str, Value] | None = None,
    if_known: Mapping[str, Value] | None = None,
    progress: bool = False,
) -> Run:
    """Execute ``notebook`` with papermill and publish its files to ``out``.

    ``parameters`` must be parameters of the notebook; those of ``if_known`` that are not are left out. A string is
    converted to the type of the notebook's default. Raises :class:`C3Error` for a file that is not a notebook, an
    unknown parameter, a value of the wrong type, and a cell that fails (named, with its error).
    """
    notebook, out, build = Path(notebook).resolve(), Path(out).resolve(), Path(build).resolve()
    name, started = notebook.stem, time.time()
    source = read_notebook(notebook)
    defaults = parameter_defaults(source, notebook)
    wanted = {key: value for key, value in (if_known or {}).items() if key in defaults} | dict(parameters or {})
    values = {key: convert(notebook, key, value, defaults) for key, value in wanted.items()}

    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix=f".{name}-") as scratch:
        staged, copy = Path(scratch, "out"), Path(scratch, "executed.ipynb")
        staged.mkdir()
        staged_out = values["out"] = os.path.relpath(staged, notebook.parent)
        try:
            asked = _execute(source, notebook, copy, values, progress)
        except C3Error as error:
            if not copy.exists():
                raise
            failed = shutil.copy(copy, build / f"{name}.failed.ipynb")
            raise C3Error(f"{error}\n  executed up to there: {shown(failed)}; nothing was published") from None
        published = _publish(name, staged, out, build)
        text = copy.read_text(encoding="utf-8")
    modules = {Path(path).resolve() for path in asked["modules"]}
    result = Run(
        name=name,
        published=published,
        dependencies=tuple(sorted({notebook, *modules, *map(Path, asked["data"])})),
        time_s=time.time() - started,
    )
    # The reader of the executed copy cares where the files are, not where they were staged.
    write_text(build / f"{name}.ipynb", text.replace(staged_out, os.path.relpath(out, notebook.parent)))
    write_text(build / f"{name}.d", _make_rules(build / f"{name}.done", result))
    done = write_text(build / f"{name}.done", "")
    os.utime(done, (started, started))  # a file changed while the notebook ran is newer, and the notebook redone
    (build / f"{name}.failed.ipynb").unlink(missing_ok=True)
    return result


def published_by(record: Path) -> list[Path]:
    """Files that a run published, from its ``build/<variant>/NAME.json``. Raises :class:`C3Error` if it is damaged."""
    try:
        return [ROOT / path for path in json.loads(record.read_text(encoding="utf-8"))["published"]]
    except (ValueError, KeyError, TypeError):
        raise C3Error(f"{shown(record)}: not the record of a notebook's run; delete it and run again") from None


def _execute(
    source: Any, notebook: Path, copy: Path, values: Mapping[str, Value], progress: bool
) -> dict[str, list[str]]:
    """Execute into ``copy`` and return what the asking cell printed, which ``copy`` no longer shows."""
    with quick_notebook_imports():
        import nbformat
        import papermill
        from nbclient.exceptions import CellTimeoutError, DeadKernelError
        from papermill.exceptions import PapermillExecutionError

    asking = nbformat.v4.new_code_cell(_ASK)
    if source.nbformat_minor < 5:
        del asking["id"]  # ids came with format 4.5
    source.cells.append(asking)
    before, path = os.environ.get("PYTHONPATH"), [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))  # the kernel imports this very c3lib
    try:
        executed = papermill.execute_notebook(
            source,
            str(copy),
            parameters=dict(values),
            kernel_name="python3",
            cwd=str(notebook.parent),
            progress_bar=progress,
            request_save_on_cell_execute=False,
            extra_arguments=["--log-level=50"],  # the kernel's own log: a warning each run, a traceback when stopped
        )
    except PapermillExecutionError as error:
        raise C3Error(_failure(source, notebook, error)) from None
    except (DeadKernelError, CellTimeoutError):
        message = "the kernel died before the end (out of memory?); nothing was published"
        raise C3Error(f"{shown(notebook)}: {message}") from None
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    printed = "".join(output.get("text", "") for output in executed.cells.pop().outputs)
    if not printed:
        raise C3Error(f"{shown(notebook)}: it ended before its last cell (does a cell call exit?)")
    executed.metadata.papermill |= {"input_path": shown(notebook), "output_path": ""}  # no scratch paths in the report
    nbformat.write(executed, copy)
    return json.loads(printed)


def _failure(source: Any, notebook: Path, error: Any) -> str:
    """Which cell failed, numbered from 1 as in the notebook (papermill adds a cell after the parameters), and why."""
    number = error.cell_index + 1 - sum(i < error.cell_index for i in parameter_cells(source))
    why = error.evalue if error.ename == "C3Error" else f"{error.ename}: {error.evalue}"
    line = next((line for line in error.source.splitlines() if line.strip()), "")
    return f"{shown(notebook)}: cell {number} (`{line[:60]}`) failed: {why}"


def _publish(name: str, staged: Path, out: Path, build: Path) -> tuple[Path, ...]:
    """Move the staged files to ``out`` one by one, each whole; remove those that only an earlier run made."""
    files = {path: out / path.relative_to(staged) for path in sorted(staged.rglob("*")) if path.is_file()}
    others = {path: record for record in build.glob("*.json") if record.stem != name for path in published_by(record)}
    for target in files.values():
        if target in others:
            raise C3Error(f"{shown(target)}: notebooks {others[target].stem} and {name} both make it; rename one")
    record = build / f"{name}.json"
    before = published_by(record) if record.exists() else []
    for path, target in files.items():
        content = path.read_bytes()
        if not target.exists() or target.read_bytes() != content:
            write_bytes(target, content)
    for path in set(before) - set(files.values()) - set(others):
        path.unlink(missing_ok=True)
    write_text(record, json.dumps({"published": [shown(path) for path in files.values()]}, indent=1) + "\n")
    return tuple(files.values())


def _make_rules(done: Path, result: Run) -> str:
    """Prerequisites of ``done``; an empty rule for each, lest make stop at one that was since removed; and one line a
    published file, so that a file that is gone is made again."""
    target = _escape(done)
    needed = [_escape(path) for path in result.dependencies]
    lines = [f"{target}: \\", *(f"  {path} \\" for path in needed), ""]
    lines += [f"{path}:" for path in needed]
    lines += [f"{target}: $(if $(wildcard {_escape(path)}),,a-figure-is-gone)" for path in result.published]
    return "\n".join(lines) + "\n"


def _escape(path: Path) -> str:
    return shown(path).replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ")


def main(argv: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m c3lib.book", description="Execute a notebook, publish its figures."
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "figures", help="folder of the published files")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "default", help="folder of the executed copy")
    parser.add_argument("-p", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the notebook")
    parser.add_argument("--if-known", action="append", default=[], metavar="NAME=VALUE", help="-p where it exists")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, even on a terminal")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does: no stray kernel
    try:
        given, offered = (dict(_pair(text) for text in texts) for texts in (args.p, args.if_known))
        result = run(args.notebook, args.out, args.build, given, offered, not args.quiet and sys.stderr.isatty())
    except C3Error as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"{args.notebook.stem}: interrupted; nothing was published\n")
        return 130
    files = f"{len(result.published)} file{'' if len(result.published) == 1 else 's'}"
    sys.stdout.write(f"{result.name}: {files} in {shown(args.out.resolve())}/, {result.time_s:.1f} s\n")
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise C3Error(f"parameter {text!r}: expected NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
