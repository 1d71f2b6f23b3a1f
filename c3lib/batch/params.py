"""A file of parameter sets, read safely, and held against the notebooks before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from c3lib.errors import C3Error, lacking, large, located, shorten, unknown
from c3lib.files import read_text
from c3lib.notebook import Value, convert, parameter_defaults, read_notebook

KEYS = ("notebook", "notebooks", "parameters", "grid", "runs")

MOST_NBYTES = 2**16
MOST_RUNS = 10_000
MOST_LETTERS = 4000
"""Of one value."""
MOST_DEPTH = 50


@dataclass(frozen=True)
class Job:
    """One run: a notebook with the parameters that differ from its own defaults. ``name`` is that of its folder."""

    name: str
    notebook: Path
    parameters: Mapping[str, Value]


def read_jobs(path: Path | str) -> list[Job]:
    """The runs that a YAML file asks for, in its order.

    Raises:
        C3Error: not YAML, an alias, an unknown key, a notebook that cannot be read, a parameter that it does not have,
            a value of the wrong type, too many runs; file and key are named.
    """
    path = Path(path)
    content = _load(path)
    if not isinstance(content, Mapping):
        raise C3Error(f"{path}: must be a table with the keys notebook and parameters, grid or runs")
    for key in content:
        if key not in KEYS:
            raise C3Error(f"{path}: {unknown('key', _brief(key), KEYS)}")
    if ("notebook" in content) == ("notebooks" in content):
        raise C3Error(f"{path}: give either notebook, or notebooks as a list")
    notebooks = content["notebooks"] if "notebooks" in content else [content["notebook"]]
    if not isinstance(notebooks, list) or not notebooks or not all(isinstance(item, str) for item in notebooks):
        raise C3Error(f"{path}: notebooks must be a list of paths")
    sets = list(_sets(path, content, len(notebooks)))
    jobs: dict[str, Job] = {}
    for given in notebooks:
        try:
            notebook = (path.parent / given).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # too long, a ring of links, a zero byte
            raise C3Error(f"{path}: notebook: {_brief(given)}: cannot be a file: {_brief(error)}") from None
        with located(f"{path}: notebook"):
            defaults = parameter_defaults(read_notebook(notebook), notebook)
        for where, values in sets:
            job = _job(path, where, notebook, values, defaults)
            if job.name in jobs:
                there = f"{_brief(given)}, {_listed(job.parameters)}"
                raise C3Error(f"{path}: {where}: the same run stands twice ({there})")
            jobs[job.name] = job
    return list(jobs.values())


def _load(path: Path) -> Any:
    """The file's content, of plain values only."""
    try:
        import yaml
    except ModuleNotFoundError:
        yaml = None
    if yaml is None or find_spec("papermill") is None:  # which each run needs; its import takes a second
        raise lacking("c3 batch", "pyyaml and papermill", "notebooks")

    class Loader(yaml.SafeLoader):
        """Without aliases, which let few bytes stand for more than any memory holds, and without a key twice."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark
                raise C3Error(f"{path}: line {mark.line + 1}: aliases (*name) are not read; write the value out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            seen = set()
            for key, (place, _) in zip(keys, node.value, strict=True):
                if not isinstance(key, str):
                    raise C3Error(f"{path}: line {place.start_mark.line + 1}: key {_brief(key)} must be text")
                if key in seen:
                    raise C3Error(f"{path}: line {place.start_mark.line + 1}: key {_brief(key)} stands twice")
                seen.add(key)
            return super().construct_mapping(node, deep)

        def fetch_flow_collection_start(self, token: Any) -> None:
            if self.flow_level >= MOST_DEPTH:  # which take the square of the time
                where = f"{path}: line {self.line + 1}"
                raise C3Error(f"{where}: brackets stand more than {MOST_DEPTH} deep in brackets, which is not read")
            super().fetch_flow_collection_start(token)

    text = read_text(path, MOST_NBYTES)
    try:
        return yaml.load(text, Loader)  # a SafeLoader: plain values and nothing else
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise C3Error(f"{path}: {line}not valid YAML: {_brief(problem, most=200)}") from None
    except C3Error:
        raise
    except Exception as error:  # PyYAML lets pass what it stumbles on: a date of month 13, !!bool x, !!int ''
        raise C3Error(f"{path}: not valid YAML: {type(error).__name__}: {_brief(error, most=200)}") from None


def _sets(path: Path, content: Mapping, notebooks: int) -> Iterator[tuple[str, dict[str, Value]]]:
    """Parameters of each run, with the place in the file that asks for it."""
    common = _values(f"{path}: parameters", content.get("parameters", {}))
    grid, runs = content.get("grid", {}), content.get("runs", [])
    if not isinstance(grid, Mapping):
        raise C3Error(f"{path}: grid must be a table of lists, not {_brief(grid)}")
    if not isinstance(runs, list):
        raise C3Error(f"{path}: runs must be a list of tables, not {_brief(runs)}")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise C3Error(f"{path}: grid.{_brief(key)} must be a list of at least one value, not {_brief(values)}")
    count = math.prod(map(len, grid.values())) * bool(grid) + len(runs) or 1
    if count * notebooks > MOST_RUNS:
        raise C3Error(f"{path}: asks for {large(count * notebooks)} runs, and a batch can have at most {MOST_RUNS:,}")
    lists = [[_value(f"{path}: grid.{_brief(key)}", item) for item in values] for key, values in grid.items()]
    for combination in itertools.product(*lists) if grid else ():
        yield "grid", common | dict(zip(grid, combination, strict=True))
    for number, run in enumerate(runs, 1):
        yield f"runs {number}", common | _values(f"{path}: runs {number}", run)
    if not grid and not runs:
        yield "parameters", common


def _values(where: str, table: Any) -> dict[str, Value]:
    if not isinstance(table, Mapping):
        raise C3Error(f"{where} must be a table of parameters, not {_brief(table)}")
    return {key: _value(f"{where}.{_brief(key)}", value) for key, value in table.items()}


def _value(where: str, value: Any) -> Value:
    if value is not None and not isinstance(value, str | int | float | bool):
        raise C3Error(f"{where} must be text, a number, true, false or null, not {_brief(value)}")
    if isinstance(value, str) and len(value) > MOST_LETTERS:
        raise C3Error(f"{where} has {len(value):,} letters, and a value can have at most {MOST_LETTERS:,}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise C3Error(f"{where} must be a whole number below 2^63")
    if isinstance(value, float) and not math.isfinite(value):
        raise C3Error(f"{where} must be a finite number, not {value}")
    return value


def _job(path: Path, where: str, notebook: Path, values: Mapping, defaults: Mapping) -> Job:
    converted = {}
    for key, value in values.items():
        with located(f"{path}: {where}.{_brief(key)}"):
            converted[key] = convert(notebook, key, value, defaults)
    # A name that people can read, and what tells apart those that read alike; the same wherever both files move to.
    there = os.path.relpath(notebook, path.parent.resolve())
    exact = hashlib.sha256(json.dumps([there, converted], sort_keys=True).encode()).hexdigest()[:8]
    words = [notebook.stem, *(f"{key}-{value}" for key, value in converted.items())]
    return Job(f"{re.sub(r'[^A-Za-z0-9._+-]', '_', '.'.join(words))[:100]}-{exact}", notebook, converted)


def _listed(values: Mapping[str, Value]) -> str:
    return _brief(", ".join(f"{key} {value}" for key, value in values.items()) or "its own parameters", most=100)


def _brief(value: Any, most: int = 60) -> str:
    return shorten(value, most, bare=True)
