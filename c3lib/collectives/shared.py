"""Host memory that processes of one machine share: files without a name, opened through the process that made them.

A file in ``/dev/shm`` that has a name stays there for good when its owner is killed. These have none (or, where the
file system makes no file without, lose it at once), so they end with the last process that has them open or mapped.
Peers open ``/proc/PID/fd/N`` of the owner, which the kernel allows processes of one user.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from c3lib.errors import C3Error

SHARED_MEMORY = Path("/dev/shm")  # of limited size: what does not fit there is refused, where a memfd ends processes
MOST_NBYTES = 2**63 - 1  # of a file


def new_file(nbytes: int) -> Any:
    """A new raw file of ``nbytes`` zeros in shared memory; peers can open it until it is closed.

    Raises :class:`C3Error` when there is no room for it.
    """
    there = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    if nbytes > MOST_NBYTES:
        raise C3Error(f"shared memory: no room for {nbytes} bytes in {there}: no file is that large")
    with ExitStack() as undo:
        try:
            file = undo.enter_context(tempfile.TemporaryFile(buffering=0, prefix=f"c3lib-{os.getpid()}-", dir=there))
            os.posix_fallocate(file.fileno(), 0, nbytes)  # only promised, it would end the process that touches it
        except OSError as error:
            raise C3Error(f"shared memory: no room for {nbytes} bytes in {there}: {error.strerror}") from None
        undo.pop_all()
        return file


def word_of(file: Any) -> str:
    """What tells a peer how to open a file: on which machine, where, and which file is there."""
    path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    return "\n".join((_home(), path, os.readlink(path)))


@contextmanager
def opened(word: str) -> Iterator[str]:
    """A path to a peer's file, good within the block: whoever maps it keeps it.

    Raises :class:`OSError` when it is not there: the peer is on another machine, has other process numbers (in a
    container), is of another user, or has closed the file or ended.
    """
    home, path, link = word.split("\n")
    if home != _home() or os.readlink(path) != link:  # before it is opened: it may be anything by now
        raise FileNotFoundError(path)
    handle = os.open(path, os.O_RDWR)
    try:
        here = f"/proc/self/fd/{handle}"
        if os.readlink(here) != link:
            raise FileNotFoundError(path)
        yield here
    finally:
        os.close(handle)


def _home() -> str:
    """Within what process numbers are unique: a machine since it was started, and a space of such numbers on it."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def start_of(pid: int) -> int:
    """When a process began, in clock ticks since the machine did; 0 once it has ended. Tells it from a later one."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if state in "ZX" else int(rest[18])  # Z: only its parent has not asked how it ended
