"""The one exception a user sees: a sentence that names the file, key or argument and what was expected."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any


class C3Error(Exception):
    """Bad input or an environment that cannot do what was asked; the message is complete as it stands."""


def unknown(what: str, name: object, known: Iterable[str]) -> C3Error:
    """A :class:`C3Error` for a name that is not among ``known``, with the nearest one as a hint."""
    names = sorted(known)
    near = get_close_matches(str(name)[:100], names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return C3Error(
        f"unknown {what} {shorten(name)}{hint}; known: {shorten(', '.join(names), 2000, bare=True) or 'none'}"
    )


def lacking(what: str, packages: str, extra: str) -> C3Error:
    """A :class:`C3Error` for packages that are not installed, and how to get them; ``extra`` as in pyproject.toml."""
    return C3Error(f"{what} needs {packages}: `make test` sets it up, or `pip install -e '.[{extra}]'` where it lies")


@contextmanager
def located(where: str) -> Iterator[None]:
    """What is wrong in here is said with ``where`` before it."""
    try:
        yield
    except C3Error as error:
        raise C3Error(f"{where}: {error}") from None


def shorten(value: Any, most: int = 60, bare: bool = False) -> str:
    """A value as an error shows it: on one line, in at most so many letters, as whoever wrote it knows the rest.

    Text stands in quotes unless it is ``bare``; what no terminal can show is a question mark.
    """
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of more than 60 digits"
    text = " ".join(str(value).split()) if bare else repr(value)
    text = text if len(text) <= most else f"{text[: most - 3]}..."
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def large(count: int) -> str:
    """A count that may have any number of digits, in few: ``"6,000"``, or ``"more than 10^24"``."""
    return f"{count:,}" if count < 10**24 else f"more than 10^{int(math.log10(count))}"
