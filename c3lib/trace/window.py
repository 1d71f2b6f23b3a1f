"""JSON of any length through a window of text that moves over it.

The standard library's decoder, which is in C, takes one value at a time. Fractions stay text: a time in microseconds
since 1970 has more digits than a float.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from c3lib.trace.values import clean

LARGEST_EVENT = 4 * 2**20
"""Characters of one event; beyond it the text is no event, and what it would take of memory is nobody's wish."""

_BLANK = re.compile(r"[ \t\r\n]*")
_OUTSIDE, _INSIDE = re.compile(r'["\[\]{},]'), re.compile(r'["\\]')
_LITERAL = 16  # characters at the end of a text where a number, a name such as -Infinity or an escape may be cut
# Kineto writes some names with control characters in them (strict=False).
_decode = json.JSONDecoder(strict=False, parse_float=str).raw_decode


class Cut(Exception):
    """The file ends, or its compressed data is damaged, before the trace does."""


class Malformed(Exception):
    """What comes next is no JSON, or not what a trace has there."""


class Window:
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

    def expect(self, sign: str, where: str) -> None:
        """Step over ``sign``; ``where`` says where it has to be."""
        if self.following() != sign:
            self.wrong(f"expected {sign} {where}")
        self.at += 1

    def wrong(self, what: str) -> None:
        """Raise what ``what`` says, or that the file ended."""
        if self.following() == "":
            raise Cut("the file ends there")
        raise Malformed(what)

    def value(self) -> Any:
        """The JSON value that begins here."""
        self.following()
        while True:
            try:
                found, end = _decode(self.text, self.at)
            except json.JSONDecodeError as error:
                if not error.msg.startswith("Unterminated") and error.pos < len(self.text) - _LITERAL:
                    raise Malformed(f"no JSON ({error.msg})") from None
                if len(self.text) - self.at > LARGEST_EVENT:
                    raise Malformed(f"a value of more than {LARGEST_EVENT >> 20} MiB of text") from None
                if not self.more():
                    raise Cut("the file ends there") from None
            except RecursionError:
                raise Malformed("brackets are nested too deep") from None
            except ValueError:  # Python turns no more than some thousand digits into an integer
                raise Malformed("a number has thousands of digits") from None
            else:
                if end - self.at > LARGEST_EVENT:
                    raise Malformed(f"a value of more than {LARGEST_EVENT >> 20} MiB of text")
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
                    raise Cut("the file ends there")
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


def keys(window: Window) -> Iterator[str]:
    """Keys of an object; the caller takes the value of each from the window."""
    window.expect("{", "around the trace")
    while window.following() != "}":
        if window.following() != '"':
            window.wrong("expected a key in quotes")
        key = window.value()
        window.expect(":", f"behind the key {clean(key)[:60]!r}")
        yield key
        if window.following() == ",":
            window.at += 1
        elif window.following() != "}":
            window.wrong(f"expected , or }} behind the value of {clean(key)[:60]!r}")
    window.at += 1
