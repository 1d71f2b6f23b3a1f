"""Finished rows on disk, one JSON line each, while an experiment runs: a run that was cut short goes on from there."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Iterable, TextIO

from c3lib.errors import C3Error

Key = tuple[str, str, int]  # group, arm, repetition


class Journal:
    """Rows of an experiment in progress, kept in ``<path>``; the first line says what they are rows of.

    ``about`` is all that makes rows of two runs comparable: arguments, contents of code and suite, device.

    Raises:
        C3Error: the file is of a run of which something else was true, is damaged, or cannot be written.
    """

    def __init__(self, path: Path, about: dict[str, Any]):
        about = json.loads(json.dumps(about))  # as it will be read again
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._done: set[Key] = set()
        try:
            lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
            # Whole lines only: what follows the last line end was being written when the run stopped.
            whole = [json.loads(line) for line in lines[:-1]]
            finished = [(tuple(entry["key"]), list(entry["rows"])) for entry in whole[1:]]
            for key, rows in finished:
                if len(key) != 3 or not all(isinstance(row, dict) for row in rows):
                    raise ValueError(key)
                hash(key)
        except OSError as error:
            raise C3Error(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise C3Error(f"{path}: is damaged; delete it to measure afresh") from None
        if whole and whole[0] != about:
            raise C3Error(f"{path}: is of another run ({_unlike(whole[0], about)}); finish that or delete the file")
        self._about = about
        self._file: TextIO | None = None
        if whole:
            try:
                self._file = path.open("r+", encoding="utf-8")
                self._file.truncate(len("\n".join(lines[:-1]).encode()) + 1)
                self._file.seek(0, os.SEEK_END)
            except OSError as error:
                raise C3Error(f"{path}: cannot be written: {error.strerror}") from None
        for key, rows in finished:
            self._done.add(key)
            self.rows += rows

    def require(self, keys: Iterable[Key]) -> None:
        """Raises :class:`C3Error` for finished rows of an arm that is none of the experiment's (any more)."""
        for group, arm, repetition in sorted(self._done.difference(keys), key=str):
            raise C3Error(
                f"{self.path}: holds repetition {repetition} of {group!r}, arm {arm!r}, which the experiment does not "
                "have; delete the file to measure afresh"
            )

    def done(self, key: Key) -> bool:
        """Whether this arm's repetition is finished."""
        return key in self._done

    def add(self, key: Key, rows: Iterable[dict[str, Any]]) -> None:
        """Keep the rows of a finished arm. Raises :class:`C3Error` for a full disk; earlier rows are kept."""
        rows = list(rows)
        try:
            self._write({"key": key, "rows": rows})
        except OSError as error:
            raise C3Error(f"{self.path}: cannot be written: {error.strerror}; finished rows are kept") from None
        self._done.add(key)
        self.rows += rows

    def _write(self, entry: Any) -> None:
        if self._file is None:  # with the first row: a run that fails before leaves nothing behind
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("w", encoding="utf-8")
            self._write(self._about)
        self._file.write(json.dumps(entry, default=lambda value: value.item()) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Leave the file as it is."""
        with suppress(OSError):  # of a full disk: whole lines are there, and the error was told when a row was added
            if self._file is not None:
                self._file.close()

    def remove(self) -> None:
        """The rows stand elsewhere now."""
        self.close()
        self.path.unlink(missing_ok=True)


def content_id(path: Path) -> str:
    """The first 16 digits of the SHA-256 of a file, or of the files of a folder and their names."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.suffix != ".pyc":
            inside = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(path)} {inside}\n".encode())
    return digest.hexdigest()[:16]


def _unlike(then: Any, now: dict[str, Any]) -> str:
    """What differs between what was true of a run and what is true now."""
    then = then if isinstance(then, dict) else {}
    keys = [key for key in {**now, **then} if then.get(key) != now.get(key)]
    return ", ".join(f"{key} {then.get(key)!r} then and {now.get(key)!r} now" for key in keys)
