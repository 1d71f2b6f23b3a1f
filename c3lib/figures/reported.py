"""What the paper reports, where a figure shows it beside the model: only for the machine the paper is about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from c3lib.files import DATA, read_text
from c3lib.hardware import PAPER_NODE, load_node


@dataclass(frozen=True)
class Reported:
    """A reported value, or the ends of a range where only that was reported (then ``value`` is NaN)."""

    value: float
    low: float
    high: float
    confidence: str


def reported(node: str, paper: str = "conccl") -> dict[str, Reported]:
    """Reported numbers of a paper by claim id without its paper; empty for any node but the papers' own."""
    if node != PAPER_NODE:
        return {}
    import csv
    import io

    number = lambda text: float(text) if text else np.nan  # noqa: E731
    rows = csv.DictReader(io.StringIO(read_text(DATA / "reported" / "claims.csv")))
    return {
        row["id"].removeprefix(f"{paper}."): Reported(
            number(row["value"]), number(row["low"]), number(row["high"]), row["confidence"]
        )
        for row in rows
        if row["paper"] == paper
    }


def calibrated(node: str) -> set[str]:
    """Claims, named as in :func:`reported`, that were used to set a constant of the node."""
    constants = load_node(node).constants.values()
    claims = (claim for item in constants for claim in (item.calibrated_on or "").split())
    return {claim.removeprefix("conccl.") for claim in claims}


def elsewhere(node: str) -> str:
    """A sentence for findings on a node that the paper says nothing about; empty for the paper's own."""
    if node == PAPER_NODE:
        return ""
    return f" The paper's numbers are for {PAPER_NODE}; nothing reported applies to {node}."
