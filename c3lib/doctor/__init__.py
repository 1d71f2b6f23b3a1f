"""``c3 doctor``: what this machine can measure and what not, and why.

Probes (``*_probe.py``) run in processes of their own with a time-out and give facts; pure functions turn facts into
lines, lines and lacks into a verdict, and that into a page.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from c3lib.doctor.finding import Line, Reading
    from c3lib.doctor.machine import Machine
    from c3lib.hardware import Node


def diagnose(machine: Machine | None = None, environment: Mapping[str, str] | None = None) -> tuple[Any, str]:
    """The page about this machine: plain values for JSON, and text. Takes seconds with a GPU, else next to nothing."""
    from c3lib.doctor import environment as variables
    from c3lib.doctor import machine as system
    from c3lib.doctor import packages, page
    from c3lib.doctor.finding import Reading
    from c3lib.doctor.verdict import judge

    machine = machine or system.look()
    environment = os.environ if environment is None else environment
    vendor, blocked = machine.vendor, system.blocked(machine)
    reading = Reading(vendor) if blocked else _examined(vendor)
    if reading.gpus:
        blocked = _without_backend(vendor)
    nodes, broken = _nodes()
    verdict = judge(reading, blocked, variables.refused(vendor, environment) if vendor else "", nodes)
    found = [*system.lines(machine), *(packages.lines(vendor) if vendor else []), *reading.lines, *broken]
    parts = reading, found, variables.lines(vendor, environment), verdict
    return page.content(*parts), page.text(*parts)


def _examined(vendor: str) -> Reading:
    """What a vendor's probes found; a fault of ours in reading it costs these lines, not the page."""
    from c3lib.doctor import amd, nvidia
    from c3lib.doctor.ask import ask
    from c3lib.doctor.finding import Line, Reading

    try:
        return {"nvidia": nvidia, "amd": amd}[vendor].examine(ask)
    except Exception as error:
        why = f"what the probes found could not be read ({type(error).__name__}: {error}); please report it"
        return Reading(vendor, (), (Line("GPUs", "?", why),), {"gpu": why})


def _without_backend(vendor: str) -> str:
    """Why this c3lib cannot measure a vendor's GPUs; empty if it can."""
    from c3lib.backends.base import backend_names

    name = {"nvidia": "cuda", "amd": "hip"}[vendor]
    return "" if name in backend_names() else f"this c3lib has no backend {name}, which would measure these GPUs"


def _nodes() -> tuple[list[Node], list[Line]]:
    """The node files that can be read, and a line for each that cannot."""
    from c3lib.doctor.finding import Line
    from c3lib.errors import C3Error
    from c3lib.hardware import load_node, node_names

    nodes, broken = [], []
    for name in node_names():
        try:
            nodes.append(load_node(name))
        except C3Error as error:
            broken.append(Line("node files", "no", str(error)))
    return nodes, broken
