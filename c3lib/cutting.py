"""Where cutting does not pay: problems whose pieces lose to a coarser schedule, and the size below which none gains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from c3lib.errors import C3Error
from c3lib.ficco import FINER
from c3lib.ficco.sets import Row, problem
from c3lib.finer import schedule_rows
from c3lib.hardware import Node
from c3lib.workload import format_size

K = 8192
SIZES = tuple(2**power for power in range(14, 28))
"""Bytes of a piece: from one row of A, 16 KiB, to 128 MiB."""

PAYS = 0.02
"""Cutting pays where it gains more than this share of the serial time, at that size of a piece and at all larger."""

COARSER = ("serial", "shard_p2p")

SAME = 1e-9
"""Rounding: two times that differ by less are the same."""


def against_coarser(rows: pd.DataFrame) -> pd.DataFrame:
    """The best finer-grain schedule of each problem and transport beside ``serial`` and the shard level.

    ``rows``: of :func:`c3lib.finer.schedule_rows`, or measured ones with the same columns ``problem, transport,
    schedule, time_s`` (medians decide). Columns: node, evidence, problem, transport, schedule, time_s, ``over_serial``
    and ``over_shard`` (speedups, NaN where there is no such row), ``loses_to`` (what is faster, ``none`` if nothing).

    Raises:
        C3Error: a problem without a finer-grain schedule.
    """
    keys = ["node", "evidence", "problem", "transport"]
    found = []
    for names, part in rows.groupby(keys, sort=False):
        times = part.groupby("schedule")["time_s"].median()
        finer = times[times.index.isin(FINER)]
        if finer.empty:
            raise C3Error(f"{names[2]} by {names[3]}: holds no finer-grain schedule")
        best_s = finer.min()
        ratios = [times.get(name, math.nan) / best_s for name in COARSER]
        faster = [name for name, ratio in zip(COARSER, ratios, strict=True) if ratio < 1 - SAME]
        about = dict(zip(keys, names, strict=True)) | {"schedule": finer.idxmin(), "time_s": best_s}
        about |= dict(zip(("over_serial", "over_shard"), ratios, strict=True))
        found.append({**about, "loses_to": " and ".join(faster) or "none"})
    columns = [*keys, "schedule", "time_s", "over_serial", "over_shard", "loses_to"]
    return pd.DataFrame(found, columns=columns)


def sized(node: Node, piece_nbytes: int, n: int, kind: str = "all-gather", pieces: int = 0) -> Row:
    """A problem whose pieces have so many bytes, in whole rows of A: K is fixed and M follows; ``n``: of a rank."""
    pieces = pieces or node.ranks
    m = max(1, piece_nbytes // (2 * K)) * pieces * node.ranks
    return Row(f"{format_size(piece_nbytes)} pieces", problem(kind, m, n * node.ranks, K, node.ranks, pieces=pieces),
               "swept")  # fmt: skip


def balanced_n(node: Node, kind: str = "all-gather", pieces: int = 0) -> int:
    """Columns of B of a rank, a multiple of 256, with which large pieces take a GEMM as long as their exchange: where
    overlap could gain most."""
    width = 4096
    rows = schedule_rows(node, [sized(node, SIZES[-1], width, kind, pieces)], ["dma"], ["serial"])
    return max(256, 256 * round(width * float((rows["exchange_s"] / rows["gemm_s"]).iloc[0]) / 256))


def smallest_piece(
    node: Node, transport: str, kind: str = "all-gather", schedules: Sequence[str] = FINER, pays: float = PAYS
) -> float:
    """Bytes of a piece below which one should not cut; inf if no size up to the largest of :data:`SIZES` pays.

    On the model, for a GEMM as long as its exchange. Times are no smooth function of size (waves of tiles), so the
    sizes decide between which two it lies, and bisection where, to a row of A.

    Raises:
        C3Error: as :func:`c3lib.finer.schedule_rows`.
    """
    n = balanced_n(node, kind)

    def gains(sizes: Sequence[int]) -> list[bool]:
        rows = schedule_rows(node, [sized(node, size, n, kind) for size in sizes], [transport], schedules)
        best = rows.groupby("piece_bytes")["speedup"].max().sort_index()
        return [bool(speedup > 1 + pays) for speedup in best]

    paid = gains(SIZES)
    if not paid[-1]:
        return math.inf
    first = len(paid) - paid[::-1].index(False) if False in paid else 0
    if first == 0:
        return float(SIZES[0])
    low, high = (SIZES[index] // (2 * K) for index in (first - 1, first))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if gains([middle * 2 * K])[0] else (middle, high)
    return float(high * 2 * K)
