"""A layer without an AMD GPU, as the scenarios see it: a library, and a process that can load it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case

LIMIT_S = 120  # of one scenario, on cores that are shared
SCRIPT = Path(__file__).with_name("scenarios.py")


@dataclass(frozen=True)
class Layer:
    """A library and how to start a Python that can load it, for a case, given an empty folder.

    ``driven`` is told the build string of the library that a process has loaded.
    """

    name: str
    library: Path
    start: Callable[[Case, Path], tuple[list[str], Mapping[str, str]]]
    driven: Callable[[str], None] = lambda build: None

    def run(self, case: Case, folder: Path) -> dict[str, Any]:
        """Run a case in a process of its own: ``facts``, ``witness`` and the library's ``build``."""
        folder.mkdir(exist_ok=True)
        command, environment = self.start(case, folder)
        arguments = ["-X", "faulthandler", str(SCRIPT), str(self.library), case.scenario]
        done = subprocess.run(
            [*command, *arguments], env={**environment, **case.variables}, cwd=folder, capture_output=True, text=True,
            timeout=LIMIT_S,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"{self.name}, {case}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        found = json.loads(done.stdout.splitlines()[-1])
        self.driven(found["build"])
        return found


def this_python() -> list[str]:
    """The start of a command line, where no other loader is needed."""
    return [sys.executable]
