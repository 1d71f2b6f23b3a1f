"""Where the project's files lie, how they are read, and how they are written: whole or not at all.

Every data file read through :func:`read_text` is remembered, so that the notebook runner can tell ``make`` what a
figure depends on (:func:`files_read`).
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Mapping

from c3lib.errors import C3Error, shorten

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"

_read: set[Path] = set()


def read_text(path: Path | str, most_nbytes: int | None = None) -> str:
    """Text of a data file (UTF-8), of at most so many bytes, no more of which are read.

    Raises :class:`C3Error` when it is missing, unreadable, too large or not text.
    """
    path = Path(path)
    try:
        with path.open("rb") as handle:
            content = handle.read(-1 if most_nbytes is None else most_nbytes + 1)
        if most_nbytes is not None and len(content) > most_nbytes:
            raise C3Error(f"{path}: is larger than {most_nbytes} bytes, the most that is read of such a file")
        text = content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")  # as in text mode
    except FileNotFoundError:
        raise C3Error(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise C3Error(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise C3Error(f"{path}: cannot be read: {error.strerror}") from None
    _read.add(path.resolve())
    return text


def ordinary(path: Path | str, most_nbytes: int) -> int:
    """The size in bytes of a file that can be read to its end: an ordinary one, of at most so many bytes.

    Raises :class:`C3Error`, with the path in few letters, for what is missing, too large, or no ordinary file: a
    folder, a device, or a pipe, which may never end.
    """
    name = shorten(path, most=300, bare=True)
    try:
        about = Path(path).stat()
    except FileNotFoundError:
        raise C3Error(f"{name}: no such file") from None
    except OSError as error:
        raise C3Error(f"{name}: cannot be read: {error.strerror}") from None
    except ValueError:  # a zero byte
        raise C3Error(f"{name}: not the path of a file") from None
    if not stat.S_ISREG(about.st_mode):
        raise C3Error(f"{name}: must be an ordinary file")
    if about.st_size > most_nbytes:
        raise C3Error(f"{name}: is larger than {most_nbytes} bytes, the most that is read of such a file")
    return about.st_size


def names_in(folder: Path, suffix: str) -> list[str]:
    """Stems of the files in ``folder`` with this suffix, sorted. The folder counts as read: a new file is noticed."""
    _read.add(folder.resolve())
    return sorted(path.stem for path in folder.glob(f"*{suffix}"))


def files_read() -> list[Path]:
    """Every file read by :func:`read_text` and folder listed by :func:`names_in` in this process, sorted."""
    return sorted(_read)


def write_bytes(path: Path | str, content: bytes) -> Path:
    """Write ``content`` to ``path`` atomically: a reader sees the old file or the new one, never a part.

    Behind a link it is the file there that is written. Raises :class:`C3Error` on a full disk, a missing permission,
    or where something stands that is no file (a folder, a pipe, a device); what was there then stands as it was.
    """
    write_together({Path(path): content})
    return Path(path)


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files that belong together: none is replaced before all of them lie complete on the disk.

    Links and errors are as for :func:`write_bytes`; the old files then stand as they were.
    """
    scratch: dict[Path, Path] = {}
    path = Path()
    try:
        for path, content in contents.items():
            target = _target(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as handle:
                scratch[path] = Path(handle.name)
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            scratch[path].chmod(0o666 & ~_umask())
        for path, complete in scratch.items():
            complete.replace(path.resolve())
    except OSError as error:
        raise C3Error(f"{path}: cannot be written: {error.strerror}; nothing was changed") from None
    finally:
        for complete in scratch.values():
            complete.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    """The file that a path stands for, behind links. Raises :class:`C3Error` where something else stands."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return path.resolve()
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no ordinary file"
        raise C3Error(f"{path}: cannot be written: it is {what}; nothing was changed")
    return path.resolve()


def write_text(path: Path | str, text: str) -> Path:
    """:func:`write_bytes` of UTF-8 text."""
    return write_bytes(path, text.encode("utf-8"))


@contextmanager
def held(folder: Path | str, what: str) -> Iterator[None]:
    """The folder, made if need be, while no other process holds it; a process that dies lets go of it.

    Raises :class:`C3Error` if another one does (``what`` says what that is), or if the folder cannot be written to.
    """
    import fcntl

    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if (path / ".lock").exists():
            ordinary(path / ".lock", 2**20)  # opening a pipe would wait for ever
        lock = (path / ".lock").open("ab")
    except FileExistsError:
        raise C3Error(f"{path}: must be a folder") from None
    except OSError as error:
        raise C3Error(f"{path}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise C3Error(f"{path}: another {what} is writing here; wait for it, or stop it") from None
        except OSError:
            pass  # a file system without locks: two at once then do the same work twice, each file whole
        yield


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
