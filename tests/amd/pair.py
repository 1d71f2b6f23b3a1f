"""Two buffers on two GPUs, and how scenarios ask: does it end, was it refused, does it come true?"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from c3lib.amd.runtime import Runtime
from c3lib.amd.signals import TookTooLong
from c3lib.errors import C3Error

Facts = dict[str, Any]
KIB, MIB = 2**10, 2**20
SOON_S = 5.0  # what must happen, on any machine, however loaded
NEVER_S = 0.3  # what must not happen at all is waited for this long


class Pair:
    """Two buffers of 4 KiB on GPUs 0 and 1, open to all."""

    def __init__(self, runtime: Runtime, nbytes: int = 4 * KIB) -> None:
        self.runtime, self.nbytes = runtime, nbytes
        self.from_, self.to = (runtime.allocate(gpu, nbytes) for gpu in runtime.gpus[:2])
        for buffer in (self.from_, self.to):
            runtime.allow(buffer, [*runtime.gpus, *runtime.cpus])

    def copy(
        self, done: Any, engine: int, depends: tuple[Any, ...] = (), pull: bool = False, nbytes: int | None = None
    ) -> None:
        """Copy one to the other; with ``pull`` by an engine of the GPU that receives."""
        dst, src = (self.from_.agent, self.to.agent) if pull else (self.to.agent, self.from_.agent)
        nbytes = self.nbytes if nbytes is None else nbytes
        self.runtime.copy(self.to.address, dst, self.from_.address, src, nbytes, done, engine, depends)

    def idle(self) -> int:
        """Mask of idle engines of the GPU that sends."""
        return self.runtime.idle_engines(self.to.agent, self.from_.agent)

    def raw(self, mask: int, **changed: Any) -> str:
        """Status of the library's own call, with arguments that :class:`Runtime` does not let through."""
        done = self.runtime.signal(1)
        arguments = {
            "dst": self.to.address, "dst_agent": self.to.agent.handle, "src": self.from_.address,
            "src_agent": self.from_.agent.handle, "nbytes": self.nbytes, "count": 0, "depends": None,
            "signal": done.handle, "mask": mask, "force": False,
        } | changed  # fmt: skip
        status = self.runtime.library.hsa_amd_memory_async_copy_on_engine(*arguments.values())
        if status == 0 and arguments["nbytes"] and not changed.get("signal"):
            done.wait(SOON_S, "the copy")
        return hex(status)


def refused(call: Callable[[], Any]) -> str:
    """The library's status where the error has one; else its text, which is ours."""
    try:
        call()
    except C3Error as error:
        status = re.search(r"\(status (0x[0-9a-f]+)\)", str(error))
        return status[1] if status else str(error)
    return "not refused"


def ends(waited: Any, limit_s: float) -> bool:
    try:
        waited.wait(limit_s, "it")
    except TookTooLong:
        return False
    return True


def comes_true(condition: Callable[[], bool], limit_s: float) -> bool:
    until_s = time.monotonic() + limit_s
    while not (met := condition()) and time.monotonic() < until_s:
        time.sleep(0.005)
    return met


def reaches(counted: Any, value: int) -> bool:
    return comes_true(lambda: counted.value == value, 2 * SOON_S)
