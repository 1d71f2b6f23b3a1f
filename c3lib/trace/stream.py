"""Events of a Chrome trace, plain or gzipped, one after the other, in memory that the file's size does not change."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from c3lib.errors import C3Error
from c3lib.trace.window import Cut, Malformed, Window, keys

CHUNK_NBYTES = 2**20

ABOUT = ("deviceProperties", "c3lib")
"""Keys beside the events that are kept."""


class Reader:
    """Iterates over the events of a trace, dicts as the file has them.

    ``advance`` is called with the bytes of the file read since the last call. With ``partial`` a trace that is cut off
    ends where it is cut. After the iteration ``count`` holds the events read, ``complete`` whether the file was whole,
    ``about`` what it says beside them (:data:`ABOUT`).

    Raises:
        C3Error: while iterating: a path that is no file; a file that is missing, empty, cut off, damaged or no trace;
            an event that is no object or longer than :data:`c3lib.trace.window.LARGEST_EVENT`.
    """

    def __init__(self, path: Path, advance: Callable[[int], Any] = lambda nbytes: None, partial: bool = False):
        self.path, self.count, self.complete = path, 0, False
        self.about: dict[str, Any] = {}
        self._advance, self._partial = advance, partial

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            if self.path.exists() and not self.path.is_file():  # a pipe would not even open before somebody writes
                raise C3Error(f"{self.path}: must be a file, not a folder, a pipe or a device")
            with open(self.path, "rb") as file:
                yield from self._whole(Window(self._texts(file)))
            self.complete = True
        except Cut as cut:
            if not self._partial:
                raise C3Error(
                    f"{self.path}: cut off after {self.count} events ({cut}); with --partial those are analysed, and "
                    "said to be a part"
                ) from None
        except Malformed as wrong:
            raise C3Error(f"{self.path}: after {self.count} events: {wrong}") from None
        except OSError as error:
            raise C3Error(f"{self.path}: cannot be read: {error.strerror or error}") from None

    def _texts(self, file: BinaryIO) -> Iterator[str]:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        source: Any = gzip.GzipFile(fileobj=file) if zipped else file
        # A byte order mark is taken; what is not UTF-8, as in some kernels' names, is replaced.
        decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        seen, cut = 0, ""
        while not cut:
            pieces, size = [], 0
            try:
                while size < CHUNK_NBYTES:
                    piece = source.read1(CHUNK_NBYTES - size)
                    if not piece:
                        break
                    pieces.append(piece)
                    size += len(piece)
            except EOFError:
                cut = "its gzip data ends too early"
            except (gzip.BadGzipFile, zlib.error):
                cut = "its gzip data is damaged from there on"
            self._advance(file.tell() - seen)
            seen = file.tell()
            if pieces:
                yield decode(b"".join(pieces))
            elif not cut:
                return
        raise Cut(cut)

    def _whole(self, window: Window) -> Iterator[dict[str, Any]]:
        first = window.following()
        if first == "":
            raise C3Error(f"{self.path}: the file is empty")
        if first not in "[{":
            raise C3Error(
                f"{self.path}: no Chrome trace: it must begin with {{ or [, as a file of export_chrome_trace of "
                "torch.profiler does, plain or gzipped"
            )
        if first == "[":
            yield from self._events(window)
        else:
            found = False
            for key in keys(window):
                if key == "traceEvents":
                    found = True
                    yield from self._events(window)
                elif key in ABOUT:
                    self.about[key] = window.value()
                else:
                    window.skip()
            if not found:
                raise C3Error(f"{self.path}: no Chrome trace: it has no list 'traceEvents'")
        if window.following() != "":
            raise Malformed("text follows where the trace has ended")

    def _events(self, window: Window) -> Iterator[dict[str, Any]]:
        window.expect("[", "behind the key 'traceEvents': a list of events")
        while (sign := window.following()) != "]":
            if sign != "{":
                window.wrong("an event must be an object in braces")
            event = window.value()
            self.count += 1
            yield event
            sign = window.following()
            if sign == ",":
                window.at += 1
            elif sign != "]":
                window.wrong("expected , or ] behind an event")
        window.at += 1
