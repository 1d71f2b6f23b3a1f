"""The page that ``c3 doctor`` prints, and the same as plain values for ``--json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from c3lib.doctor.finding import Line, Reading
from c3lib.doctor.verdict import Verdict
from c3lib.terminal import paragraph, table

WIDE = 120
LEGEND = "ok: there and working. note: worth knowing. no: missing, broken or in the way. ?: not found out."


def text(reading: Reading, found: Sequence[Line], environment: Sequence[Line], verdict: Verdict) -> str:
    """The page, as text of at most 120 columns."""
    parts = [paragraph(_title(reading), WIDE)]
    parts.append(table(("topic", "state", "found"), _grouped(found), WIDE))
    parts.append("Environment\n" + table(("state", "variable"), [(e.state, e.says) for e in environment], WIDE))
    parts.append("Can be measured or shown here\n" + table(("can", "what", "why not"), _abilities(verdict), WIDE))
    fit = ", ".join(verdict.nodes) or "none"
    parts.append(f"Node files that fit this machine: {fit}")
    first = f"{paragraph(_sentence(verdict.first), WIDE)}\n" if verdict.first else ""
    parts.append(f"{first}Next: {verdict.next}")
    parts.append(LEGEND)
    return "\n\n".join(parts)


def content(reading: Reading, found: Sequence[Line], environment: Sequence[Line], verdict: Verdict) -> dict[str, Any]:
    """The page as plain values."""
    return {
        "vendor": reading.vendor,
        "hardware": bool(reading.gpus) and not reading.stand_in,
        "stand_in": reading.stand_in,
        "gpus": [asdict(gpu) for gpu in reading.gpus],
        "found": [asdict(line) for line in found],
        "environment": [asdict(line) for line in environment],
        "abilities": [asdict(ability) for ability in verdict.abilities],
        "nodes": list(verdict.nodes),
        "first": verdict.first,
        "next": verdict.next,
    }


def _title(reading: Reading) -> str:
    if reading.stand_in:
        return f"Not a measurement: {reading.stand_in}"
    names = sorted({gpu.name for gpu in reading.gpus})
    return f"This machine: {f'{len(reading.gpus)}x ' + ' and '.join(names) if names else 'no GPU that can be used'}"


def _grouped(found: Sequence[Line]) -> list[tuple[str, str, str]]:
    """Rows of the table; a topic is named once."""
    rows, before = [], ""
    for line in found:
        rows.append((line.topic if line.topic != before else "", line.state, line.says))
        before = line.topic
    return rows


def _abilities(verdict: Verdict) -> list[tuple[str, str, str]]:
    """Rows of the table; a reason that was just given is not given again."""
    rows, before = [], ""
    for ability in verdict.abilities:
        again = ability.why_not and ability.why_not == before
        rows.append(("yes" if ability.can else "no", ability.what, "the same" if again else ability.why_not))
        before = ability.why_not
    return rows


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith(".") else ".")
