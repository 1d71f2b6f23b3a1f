"""The premise of every DMA number: each plan delivers every byte, and the check notices when one copy is dropped."""

from __future__ import annotations

import pandas as pd

from c3lib.figures import style
from c3lib.transfer import prove
from c3lib.transfer.builders import build_plan, variants


def proofs(ranks: int = 8, nbytes: int = 1_000_003) -> pd.DataFrame:
    """One row a variant of every collective: copies, bytes moved, all bytes right, dropped copy noticed.

    The default size divides by no rank count, so shards are uneven. These rows are about plans run on the host, byte
    for byte: they prove the plan, not a device.
    """
    rows = [
        prove(build_plan(item.kind, nbytes, ranks, item.topology, item.algorithm, item.mode)).as_row()
        for item in variants()
    ]
    columns = [
        "kind",
        "algorithm",
        "topology",
        "mode",
        "ranks",
        "nbytes",
        "copies",
        "moved_nbytes",
        "verified",
        "control_fired",
    ]
    return pd.DataFrame(rows)[columns]


def finding(table: pd.DataFrame) -> style.Finding:
    """How many plans are exact and how many negative controls fired; names those that are not."""
    right, fired = int(table["verified"].sum()), int(table["control_fired"].fillna(False).sum())
    wrong = table[~table["verified"] | ~table["control_fired"].fillna(False).astype(bool)]
    text = (
        f"**{right} of {len(table)} plans delivered every byte**, {table['moved_nbytes'].sum():,} bytes moved in each "
        f"of two iterations; {fired} of {len(table)} negative controls (one copy dropped) were noticed."
    )
    for row in wrong.itertuples():
        text += f" **Not proved:** {row.kind} {row.algorithm} {row.topology} {row.mode}."
    return style.Finding(text + " Run on the host: this proves the plans, not a device.")
