"""Writes the generated part of README.md, the table of claims: ``python -m c3lib.readme``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from c3lib.errors import C3Error
from c3lib.files import ROOT, read_text, write_text

BEGIN = "<!-- claims: written by `python -m c3lib.readme`, checked by a test -->\n"
END = "<!-- claims end -->"


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


def with_claims(text: str, table: pd.DataFrame) -> str:
    """README text with its claims block replaced. Raises :class:`C3Error` when the markers are missing."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise C3Error(f"README.md: needs the lines {BEGIN.strip()} and {END} once each")
    head, rest = text.split(BEGIN)
    return head + BEGIN + markdown(table) + END + rest.split(END)[1]


def main(path: Path = ROOT / "README.md") -> None:
    """Bring README.md up to date."""
    from c3lib.claims import claims_table

    write_text(path, with_claims(read_text(path), claims_table()))


if __name__ == "__main__":
    main()
