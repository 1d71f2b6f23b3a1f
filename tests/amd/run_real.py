"""Start a Python that uses AMD's real runtime over the model: ``python tests/amd/run_real.py SCRIPT.py ARGUMENT...``.

The runtime is linked against a newer libc than Debian 12 has, so Python starts through the loader that came with it.
Children of that Python start without the loader; give them :func:`command` too.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from build_model import model
from get_runtime import LIBRARIES, NotObtained, library, runtime_root
from topology import Topology


@dataclass(frozen=True)
class Real:
    """The real runtime and the model that it runs on, both ready for use."""

    root: Path
    model: Path

    @property
    def library(self) -> Path:
        """The library to open in a Python started by :meth:`command`."""
        return library(self.root)

    def command(self, *arguments: str) -> list[str]:
        """Command line of this Python with ``arguments``, on the private loader and with the model preloaded."""
        folder = self.root / LIBRARIES
        # A Python that is a shared library must find its own, not the system's.
        path = [str(folder), sysconfig.get_config_var("LIBDIR") or "", "/usr/lib/x86_64-linux-gnu"]
        return [
            str(folder / "ld-linux-x86-64.so.2"), "--argv0", sys.executable,
            "--library-path", ":".join(filter(None, path)),
            "--preload", str(self.model), sys.executable, *arguments,
        ]  # fmt: skip

    def wrapper(self, folder: Path) -> Path:
        """A command in ``folder`` that is to Python's arguments what :meth:`command` is: for spawned workers."""
        script = folder / "python"
        script.write_text(f'#!/bin/sh\nexec {shlex.join(self.command())} "$@"\n')
        script.chmod(0o755)
        return script

    def environment(self, folder: Path, topology: Topology, sdma_queues: int | None = None) -> dict[str, str]:
        """Environment for :meth:`command`: the model serves ``topology``, whose files are written below ``folder``.

        ``sdma_queues`` is the most that a GPU may have.
        """
        ours = {
            "C3_MODEL_TOPOLOGY": str(topology.write(folder / "topology")),
            "C3_MODEL_GPUS": str(topology.gpus),
            "C3_PYTHON": str(self.wrapper(folder)),
            "HSAKMT_DEBUG_LEVEL": "3",
        }
        if sdma_queues is not None:
            ours["C3_MODEL_SDMA_QUEUES"] = str(sdma_queues)
        return clean_environment() | ours


def clean_environment() -> dict[str, str]:
    """That of this process, without what would change which path a copy takes or which GPUs are seen."""
    changing = ("HSA_", "HSAKMT_", "ROC_", "ROCR_", "HIP_", "GPU_", "C3_MODEL_", "C3_DOUBLE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(changing)}
    return kept | {"PYTHONDONTWRITEBYTECODE": "1"}


def real() -> Real:
    """Fetch and build what is not there yet. Raises :class:`NotObtained` with the reason."""
    return Real(runtime_root(), model())


def main(arguments: Sequence[str]) -> int:
    """Run a script over the model of eight GPUs; its exit status is returned."""
    try:
        here = real()
    except NotObtained as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="c3-topology-") as folder:
        environment = here.environment(Path(folder), Topology())
        return subprocess.run(here.command(*arguments), env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
