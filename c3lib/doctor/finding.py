"""What probes give and what is made of it: facts, lines of the page, and what a machine lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Fact = Mapping[str, Any]
"""One thing that a probe found: plain values that JSON knows, with ``kind`` saying what the rest means."""

STATES = ("ok", "note", "no", "?")
"""State of a line: there and working, worth knowing, missing or broken, and not found out."""


@dataclass(frozen=True)
class Answer:
    """All that a probe found, and why it did not get to its end: one sentence, empty if it did."""

    facts: tuple[Fact, ...] = ()
    failure: str = ""

    def of(self, kind: str) -> list[Fact]:
        """Its facts of one kind, in their order."""
        return [fact for fact in self.facts if fact.get("kind") == kind]

    def one(self, kind: str) -> Fact:
        """Its first fact of one kind; empty if there is none."""
        return next(iter(self.of(kind)), {})


@dataclass(frozen=True)
class Line:
    """One line of the page: a topic, one of :data:`STATES`, and a sentence."""

    topic: str
    state: str
    says: str


@dataclass(frozen=True)
class Gpu:
    """What tells one kind of GPU from another; ``cus`` are SMs on NVIDIA."""

    name: str
    cus: int
    memory_nbytes: int


@dataclass(frozen=True)
class Reading:
    """What a vendor's probes found.

    ``lacks``: for each thing of :data:`c3lib.doctor.verdict.THINGS` that is missing, why; what is not in it is there.
    ``stand_in``: what answered in place of a GPU, so that nothing here can be measured; empty on hardware.
    """

    vendor: str = ""
    gpus: tuple[Gpu, ...] = ()
    lines: tuple[Line, ...] = ()
    lacks: Mapping[str, str] = field(default_factory=dict)
    stand_in: str = ""


def some(names: Sequence[str], most: int = 4) -> str:
    """The first names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
