"""Constants of a node's file, derived from the tables that were measured on it (``c3 constants``).

:mod:`c3lib.derive.alone` reads each kernel alone (table ``isolated``), :mod:`c3lib.derive.beside` what one does to the
other (table ``order``). What the tables cannot tell is left out: the file's value stands.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from c3lib.derive.alone import from_isolated
from c3lib.derive.beside import from_order
from c3lib.derive.reading import Reading, Tables
from c3lib.hardware import Node, load_node
from c3lib.measured import FOLDER, read_measured, table_path

__all__ = ["Derived", "Reading", "derive"]


@dataclass(frozen=True)
class Derived:
    """What the tables of a node give, beside what its file holds."""

    node: Node
    readings: tuple[Reading, ...]

    def to_rows(self) -> list[dict[str, Any]]:
        """One row a constant: ``key, unit, derived, in_file, change, evidence, source``.

        ``change`` is relative to the file's value (None where that is 0), ``evidence`` what the file says of it,
        ``source`` the sentence that belongs to the derived value.
        """
        rows = []
        for reading in self.readings:
            was = self.node.constants[reading.key]
            change = reading.value / was.value - 1 if was.value else None
            row = {"key": reading.key, "unit": was.unit, "derived": reading.value, "in_file": was.value}
            rows.append({**row, "change": change, "evidence": was.evidence, "source": reading.source})
        return rows

    def to_toml(self) -> str:
        """Sections and lines as the node's file has them."""
        lines, section, order = [], "", list(self.node.constants)
        for reading in sorted(self.readings, key=lambda reading: order.index(reading.key)):
            inside, name = reading.key.split(".")
            lines += [] if inside == section else ["", f"[{inside}]"]
            section, unit = inside, self.node.constants[reading.key].unit
            about = f'unit = "{unit}", evidence = "measured", source = {json.dumps(reading.source)}'
            lines.append(f"{name} = {{ value = {reading.value:g}, {about} }}")
        return "\n".join(lines).strip()


def derive(node: str, folder: Path = FOLDER) -> Derived:
    """Constants that the tables ``isolated`` and, where it was taken, ``order`` of a node give.

    Raises:
        C3Error: unknown node, no table ``isolated``, one that a reader refuses, or rows that failed their byte check.
    """
    there = load_node(node)
    alone, about = read_measured(node, "isolated", folder)
    order = pd.DataFrame(columns=alone.columns)
    if table_path(node, "order", folder).is_file():
        order, _ = read_measured(node, "order", folder)
    tables = Tables.of(there, alone, order, about)
    return Derived(there, (*from_isolated(tables), *from_order(tables)))
