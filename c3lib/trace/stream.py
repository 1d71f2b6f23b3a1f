"""Events of a Chrome trace, one after the other, in memory that the file's size does not change.

A window of text moves over the file (plain or gzipped); the standard library's JSON decoder, which is in C, takes one
event at a time from it. Fractions stay text: a time in microseconds since 1970 has more digits than a float.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from c3lib.errors import C3Error

CHUNK_NBYTES = 2**20
LARGEST_EVENT = 4 * 2**20
"""Characters of one event; beyond it the text is no event, and what it would take of memory is nobody's wish."""

ABOUT = ("deviceProperties", "c3lib")
"""Keys beside the events that are kept."""

_BLANK = re.compile(r"[ \t\r\n]*")
_OUTSIDE, _INSIDE = re.compile(r'["\[\]{},]'), re.compile(r'["\\]')
_LITERAL = 16  # characters at the end of a text where a number, a name such as -Infinity or an escape may be cut
# Kineto writes some names with control characters in them (strict=False).
_decode = json.JSONDecoder(strict=False, parse_float=str).raw_decode


class _Cut(Exception):
    """The file ends, or its compressed data is damaged, before the trace does."""


class _Malformed(Exception):
    """What comes next is no JSON, or not what a trace has there."""


class Reader:
    """Iterates over the events of a trace, dicts as the file has them.

    ``advance`` is called with the bytes of the file read since the last call. With ``partial`` a trace that is cut off
    ends where it is cut. After the iteration ``count`` holds the events read, ``complete`` whether the file was whole,
    ``about`` what it says beside them (:data:`ABOUT`).

    Raises:
        C3Error: while iterating: a file that is missing, empty, cut off, damaged or no trace, an event that is no
            object or longer than :data:`LARGEST_EVENT`.
    """

    def __init__(self, path: Path, advance: Callable[[int], Any] = lambda nbytes: None, partial: bool = False):
        self.path, self.count, self.complete = path, 0, False
        self.about: dict[str, Any] = {}
        self._advance, self._partial = advance, partial

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                yield from self._whole(_Window(self._texts(file)))
            self.complete = True
        except _Cut as cut:
            if not self._partial:
                raise C3Error(
                    f"{self.path}: cut off after {self.count} events ({cut}); with --partial those are analysed, and "
                    "said to be a part"
                ) from None
        except _Malformed as wrong:
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
        raise _Cut(cut)

    def _whole(self, window: _Window) -> Iterator[dict[str, Any]]:
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
            for key in _keys(window):
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
            raise _Malformed("text follows where the trace has ended")

    def _events(self, window: _Window) -> Iterator[dict[str, Any]]:
        window.expect("[")
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


def _keys(window: _Window) -> Iterator[str]:
    """Keys of an object; the caller takes the value of each from the window."""
    window.expect("{")
    while window.following() != "}":
        if window.following() != '"':
            window.wrong("expected a key in quotes")
        key = window.value()
        window.expect(":")
        yield key
        if window.following() == ",":
            window.at += 1
        elif window.following() != "}":
            window.wrong("expected , or } behind a value")
    window.at += 1


class _Window:
    """Text of which ``at`` is the place to read on; what lies before it is let go."""

    def __init__(self, texts: Iterator[str]):
        self.text, self.at, self._texts = "", 0, texts

    def more(self) -> bool:
        """At least as much text again, and never nothing; False at the end of the file."""
        parts, size, least = [self.text[self.at :]], 0, len(self.text) - self.at
        for piece in self._texts:
            parts.append(piece)
            size += len(piece)
            if size > least:
                break
        self.text, self.at = "".join(parts), 0
        return size > 0

    def following(self) -> str:
        """The next character that is not blank, to which the window moves; empty at the end of the file."""
        while True:
            blank = _BLANK.match(self.text, self.at)
            self.at = blank.end() if blank else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def expect(self, sign: str) -> None:
        """Step over ``sign``."""
        if self.following() != sign:
            self.wrong(f"expected {sign}")
        self.at += 1

    def wrong(self, what: str) -> None:
        """Raise what ``what`` says, or that the file ended."""
        if self.following() == "":
            raise _Cut("the file ends there")
        raise _Malformed(what)

    def value(self) -> Any:
        """The JSON value that begins here."""
        self.following()
        while True:
            try:
                found, end = _decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if not error.msg.startswith("Unterminated") and error.pos < len(self.text) - _LITERAL:
                    raise _Malformed(f"no JSON ({error.msg})") from None
                if len(self.text) - self.at > LARGEST_EVENT:
                    raise _Malformed(f"a value of more than {LARGEST_EVENT >> 20} MiB of text") from None
                if not self.more():
                    raise _Cut("the file ends there") from None
            except RecursionError:
                raise _Malformed("brackets are nested too deep") from None
            except ValueError:  # Python turns no more than some thousand digits into an integer
                raise _Malformed("a number has thousands of digits") from None
            else:
                if end - self.at > LARGEST_EVENT:
                    raise _Malformed(f"a value of more than {LARGEST_EVENT >> 20} MiB of text")
                length = end - self.at
                if end < len(self.text) or not self.more():  # a number at the very end may go on
                    self.at += length
                    return found

    def skip(self) -> None:
        """Step over the value that begins here, however long it is, without building it."""
        depth, inside = 0, False
        self.following()
        while True:
            sign = (_INSIDE if inside else _OUTSIDE).search(self.text, self.at)
            if sign is None or (sign[0] == "\\" and sign.end() == len(self.text)):
                self.at = len(self.text) if sign is None else sign.start()
                if not self.more():
                    raise _Cut("the file ends there")
                continue
            self.at = sign.end()
            if inside:
                self.at += sign[0] == "\\"
                inside = sign[0] != '"'
            elif sign[0] == '"':
                inside = True
                continue
            elif sign[0] in "[{":
                depth += 1
                continue
            elif depth == 0:  # the end of what the value is in
                self.at = sign.start()
                return
            elif sign[0] in "]}":
                depth -= 1
            if depth == 0 and not inside:
                return
