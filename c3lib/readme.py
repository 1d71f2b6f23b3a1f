"""Writes the generated parts of README.md, the ladder and the table of claims: ``python -m c3lib.readme``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from c3lib.errors import C3Error
from c3lib.files import ROOT, read_text, write_text

BEGIN = "<!-- claims: written by `python -m c3lib.readme`, checked by a test -->\n"
END = "<!-- claims end -->"
LADDER_BEGIN = "<!-- ladder: written by `python -m c3lib.readme`, checked by a test -->\n"
LADDER_END = "<!-- ladder end -->"
MEASURED = (("h200_1", "conccl30_host"), ("h200_2", "conccl30_nvlink"))
"""The machines and suites whose measured ladders the README shows."""


def markdown(table: pd.DataFrame) -> str:
    """The claims that the model can be held to, as a Markdown table (those that merely define something left out)."""
    from c3lib.claims import count

    shown = table[table["status"] != "input"]
    numbers = count(table)
    lines = [
        f"Of {numbers['predicted']} predicted claims {numbers['reproduced']} are reproduced within their tolerance "
        f"(restating another of them: {numbers['restated']}):",
        "",
        "| claim | unit | reported | modelled | tolerance | status | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in shown.itertuples():
        modelled = "-" if pd.isna(row.modelled) else f"{row.modelled:.3g}"
        known = f"| {row.quantity} | {row.unit} | {row.reported} | {modelled} | {row.tolerance:g} "
        lines.append(f"{known}| {row.status} | {row.verdict} |")
    return "\n".join(lines) + "\n"


def ladder_markdown(*tables: pd.DataFrame) -> str:
    """Tables of :func:`c3lib.figures.beside.beside`, one a machine, as one Markdown table: a column a machine."""
    from c3lib.figures.beside import CALIBRATED, HIGH, LOW, MODELLED, REPORTED

    measured = [next(name for name in table if name.startswith("measured")) for table in tables]
    heads = ["strategy", REPORTED, MODELLED, *measured]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for rows in zip(*(table.to_dict("records") for table in tables), strict=True):
        first = rows[0]
        reported = "-" if pd.isna(first[REPORTED]) else f"{first[REPORTED]:.2f}"
        modelled = f"{first[MODELLED]:.2f}" + (" (calibrated)" if first[CALIBRATED] else "")
        found = [f"{row[name]:.2f} [{row[LOW]:.2f}, {row[HIGH]:.2f}]" for row, name in zip(rows, measured, strict=True)]
        cells = [f"`{first['strategy']}`", reported, modelled, *found]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_block(text: str, begin: str, end: str, content: str) -> str:
    """README text with what stands between two markers replaced. Raises :class:`C3Error` when they are missing."""
    if text.count(begin) != 1 or text.count(end) != 1:
        raise C3Error(f"README.md: needs the lines {begin.strip()} and {end} once each")
    head, rest = text.split(begin)
    return head + begin + content + end + rest.split(end)[1]


def with_claims(text: str, table: pd.DataFrame) -> str:
    """README text with its claims block replaced."""
    return with_block(text, BEGIN, END, markdown(table))


def with_ladder(text: str) -> str:
    """README text with its ladder replaced."""
    from c3lib.figures.beside import beside
    from c3lib.measured import read_measured

    tables = [beside(read_measured(*what)[0]) for what in MEASURED]
    return with_block(text, LADDER_BEGIN, LADDER_END, ladder_markdown(*tables))


def main(path: Path = ROOT / "README.md") -> None:
    """Bring README.md up to date."""
    from c3lib.claims import claims_table

    write_text(path, with_ladder(with_claims(read_text(path), claims_table())))


if __name__ == "__main__":
    main()
