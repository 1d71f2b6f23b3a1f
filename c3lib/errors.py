"""The one exception a user sees: a sentence that names the file, key or argument and what was expected."""

from difflib import get_close_matches
from typing import Iterable


class C3Error(Exception):
    """Bad input or an environment that cannot do what was asked; the message is complete as it stands."""


def unknown(what: str, name: object, known: Iterable[str]) -> C3Error:
    """A :class:`C3Error` for a name that is not among ``known``, with the nearest one as a hint."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return C3Error(f"unknown {what} {name!r}{hint}; known: {', '.join(names) or 'none'}")
