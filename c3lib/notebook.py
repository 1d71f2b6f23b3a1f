"""A notebook as a file: read it, find its parameters, and give them values of the right type."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from c3lib.errors import C3Error, shorten, unknown
from c3lib.files import ROOT, ordinary

Value = str | int | float | bool | None

MOST_NBYTES = 2**24
"""Of a notebook, with its figures if it was executed."""


@contextmanager
def quick_notebook_imports() -> Iterator[None]:
    """Import papermill, nbformat or nbconvert inside this: 0.7 s instead of 3 s.

    All of them import jsonschema, which, where rfc3987-syntax is installed (JupyterLab brings it), builds a grammar of
    international web addresses at import. Notebooks have no use for it, and jsonschema works without.
    """
    grammar = "rfc3987_syntax"
    absent = grammar not in sys.modules
    if absent:
        sys.modules[grammar] = None  # type: ignore[assignment]  # makes its import raise ImportError
    try:
        yield
    finally:
        if absent:
            del sys.modules[grammar]


def read_notebook(path: Path) -> Any:
    """The nbformat node of the notebook at ``path``.

    Raises :class:`C3Error` if it is missing, no ordinary file, too large, or no valid notebook.
    """
    ordinary(path, MOST_NBYTES)
    with quick_notebook_imports():
        import nbformat
    try:
        invalid: dict[str, Exception] = {}  # nbformat only logs what is wrong with cells
        node = nbformat.read(path, as_version=4, capture_validation_error=invalid)
        for error in invalid.values():
            raise error
    except Exception as error:  # nbformat lets whatever it stumbles on pass through
        why = f"{type(error).__name__}: {shorten(error, most=200, bare=True)}"
        raise C3Error(f"{_named(path)}: not a notebook that can be read ({why})") from None
    return node


def parameter_cells(node: Any) -> list[int]:
    """Positions of the cells tagged ``parameters``."""
    return [i for i, cell in enumerate(node.cells) if "parameters" in cell.metadata.get("tags", [])]


def parameter_defaults(node: Any, path: Path) -> dict[str, Value]:
    """Names and defaults in the parameters cell; a default that is no plain literal counts as None (any type).

    Raises :class:`C3Error` unless there is exactly one such cell, it is Python, and it has a parameter ``out``.
    """
    cells = parameter_cells(node)
    if len(cells) != 1:
        raise C3Error(f"{_named(path)}: expected one cell tagged 'parameters', found {len(cells)}")
    defaults: dict[str, Value] = {}
    try:
        body = ast.parse(node.cells[cells[0]].source).body
    except (SyntaxError, ValueError) as error:  # a ValueError: a zero byte, half a character
        why = shorten(error, most=200, bare=True)
        raise C3Error(f"{_named(path)}: the parameters cell is not valid Python: {why}") from None
    except (RecursionError, MemoryError):  # Python's reader has only so much room for what stands in one another
        raise C3Error(f"{_named(path)}: the parameters cell is nested too deeply to be read") from None
    for line in body:
        if isinstance(line, ast.Assign):
            defaults |= {target.id: _literal(line.value) for target in line.targets if isinstance(target, ast.Name)}
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            defaults[line.target.id] = _literal(line.value)
    if "out" not in defaults:
        raise C3Error(f"{_named(path)}: has no parameter 'out', the folder where it saves its figures and tables")
    return defaults


def convert(path: Path, name: str, value: Value, defaults: Mapping[str, Value]) -> Value:
    """``value`` in the type of the default of parameter ``name``.

    Raises :class:`C3Error`, which names the notebook, for an unknown parameter and for a value of another type.
    """
    if name not in defaults or name == "out":
        raise C3Error(f"{_named(path)}: {unknown('parameter', name, set(defaults) - {'out'})}")
    default = defaults[name]
    kind = type(default)
    if default is None:
        literal = _literal(value) if isinstance(value, str) else value
        return value if literal is None else literal
    if kind is type(value) or (kind is float and type(value) is int):
        return value
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    with suppress(KeyError, ValueError):
        if isinstance(value, str) and isinstance(default, bool):
            return words[value.lower()]
        if isinstance(value, str) and isinstance(default, int | float):
            return type(default)(value)
    raise C3Error(f"{_named(path)}: parameter {shorten(name)} must be of type {kind.__name__}, got {shorten(value)}")


def _literal(text: Any) -> Value:
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _named(path: Path) -> str:
    return shorten(shown(path), most=300, bare=True)


def shown(path: Path | str) -> str:
    """Relative to the project where that is possible: what make matches and what people read."""
    path = Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
