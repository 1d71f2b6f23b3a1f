"""Tables of results: written with a sidecar that says where they come from, read only when the two agree."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from c3lib.constants import EVIDENCE, NOT_A_MEASUREMENT
from c3lib.errors import C3Error, unknown
from c3lib.files import ROOT, read_text, write_together

CODE = ("c3lib", "data/hardware", "data/suites", "data/problems")
"""What a result depends on: a commit is marked ``-dirty`` when these differ from it (results themselves may)."""

LIBRARIES = ("numpy", "scipy", "pandas", "torch", "cuda-core", "cuda-bindings", "hip-python")


def provenance(**more: Any) -> dict[str, Any]:
    """What a reader needs to redo a result: commit, command, Python and library versions, and whatever is passed."""
    libraries = {}
    for name in LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "commit": _commit(),
        "command": _command(),
        "python": sys.version.split()[0],
        "libraries": libraries,
        **more,
    }


def _command() -> str:
    """How it was called, without where the program lies."""
    program = Path(sys.argv[0])
    return shlex.join(["c3" if program.stem in ("c3", "__main__") else program.name, *sys.argv[1:]])


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno", "--", *CODE) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write_table(frame: pd.DataFrame, path: Path | str, **more: Any) -> Path:
    """Write ``frame`` as CSV and ``<path>.json`` beside it (provenance and SHA-256 of the CSV): both or neither.

    Raises:
        C3Error: rows that are not a measurement, or an error of the file system.
    """
    path = Path(path)
    if why := _no_measurement(frame, more):
        raise C3Error(f"{path}: not written: rows that are {NOT_A_MEASUREMENT} are shown but never stored ({why})")
    text = frame.to_csv(index=False, lineterminator="\n")
    digest = hashlib.sha256(text.encode()).hexdigest()
    sidecar = {"sha256": digest, "rows": len(frame), **provenance(**more)}
    described = json.dumps(sidecar, indent=2, sort_keys=True) + "\n"
    write_together({path: text.encode(), sidecar_path(path): described.encode()})
    return path


def _no_measurement(frame: pd.DataFrame, about: Mapping[str, Any]) -> str:
    """What says that no hardware ran the rows, whatever their evidence says: it is one word, and edited easily."""
    for column in ("evidence", "path"):
        if column in frame and frame[column].astype(str).str.startswith(NOT_A_MEASUREMENT).any():
            return f"column {column} says so"
    return f"stand_ins of its provenance: {about['stand_ins']}" if about.get("stand_ins") else ""


def sidecar_path(path: Path | str) -> Path:
    """Where a table's provenance stands."""
    path = Path(path)
    return path.with_name(path.name + ".json")


def read_table(path: Path | str, schema: Any = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table and its provenance; without a schema a table of results.

    Raises:
        C3Error: schema violated, sidecar missing or not JSON, a CSV that is not the one the sidecar describes, or rows
            that no hardware ran.
    """
    from c3lib.schema import RESULTS, read_csv

    frame = read_csv(path, RESULTS if schema is None else schema)
    side = sidecar_path(path)
    try:
        sidecar = json.loads(read_text(side))
    except (ValueError, RecursionError) as error:
        raise C3Error(f"{side}: not valid JSON: {error}") from None
    if not isinstance(sidecar, dict) or "sha256" not in sidecar:
        raise C3Error(f"{side}: key sha256 is missing")
    digest = hashlib.sha256(read_text(path).encode()).hexdigest()
    if digest != sidecar["sha256"]:
        raise C3Error(f"{path}: differs from the table that {side.name} describes (sha256 {digest[:12]}…)")
    if why := _no_measurement(frame, sidecar):
        raise C3Error(f"{path}: not read: its rows are {NOT_A_MEASUREMENT} ({why})")
    return frame, sidecar


def publishable(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame itself, if a figure may show it.

    Raises:
        C3Error: no rows, unknown or more than one kind of evidence, or measured rows whose bytes were not verified.
    """
    if frame.empty:
        raise C3Error("results: no rows to show")
    kinds = sorted(map(str, frame["evidence"].unique()))
    if len(kinds) > 1:
        raise C3Error(f"results: evidence must not be mixed in one series, found {', '.join(kinds)}")
    if kinds[0] not in (*EVIDENCE, NOT_A_MEASUREMENT):
        raise unknown("evidence", kinds[0], EVIDENCE)
    return require_compared(frame)


def require_compared(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame itself, if the bytes of every row that a device ran were compared and right; a model moves none.

    Raises:
        C3Error: how many rows failed, and the first of them.
    """
    ran = frame["evidence"].isin(("measured", NOT_A_MEASUREMENT))
    # Compared with True: an empty or foreign value is not a verification.
    unverified = frame[ran & ~frame["verified"].eq(True).astype(bool)]
    if len(unverified):
        row = unverified.iloc[0]
        raise C3Error(
            f"results: {len(unverified)} {row['evidence']} rows failed the byte check, "
            f"first {row['scenario']} under {row['strategy']}"
        )
    return frame
