"""What all figures of measured data share: medians of repetitions with intervals, gains over serial, the stamp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.hardware import load_node
from c3lib.measured import ENGINE_DRIVEN, TRANSPORTS
from c3lib.metrics import fraction_of_ideal, ideal_speedup, median_interval, realised_speedup
from c3lib.overlap import beside_alone, is_library

NOTHING = "none"
"""Stands for the GEMM in a row without one."""

TRANSPORT = {
    "copy engine": style.STRATEGY["conccl_rp"],
    "copy engine, batched": style.STRATEGY["conccl"],
    "SM kernel": style.STRATEGY["c3_sp"],
    "NCCL": style.STRATEGY["c3_base"],
    "bare copies": "#222222",
}
DIRECTION = {"in": "#117733", "out": "#882255", "both": "#332288"}
DIRECTION_TEXT = {"in": "host to GPU", "out": "GPU to host", "both": "both ways at once"}


def medians(rows: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Repetitions of each group reduced: ``median``, its bootstrap 95 % interval ``low`` to ``high``, ``repetitions``.

    NaN values are left out. Raises :class:`C3Error` for rows that no figure may show (see :func:`style.shown`).
    """
    style.shown(rows)
    found = []
    for key, group in rows.dropna(subset=[value]).groupby(list(by), sort=True):
        low, high = median_interval(group[value])
        numbers = {"median": float(group[value].median()), "low": low, "high": high, "repetitions": len(group)}
        found.append({**dict(zip(by, key, strict=True)), **numbers})
    columns = [*by, "median", "low", "high", "repetitions"]
    return pd.DataFrame(found, columns=columns).assign(node=rows["node"].iloc[0], evidence="measured")


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of a GEMM beside a transfer, with what each took alone in the same repetition and what overlap gained.

    Adds ``gemm_alone_s`` and ``transfer_alone_s`` (the median where one repetition has several), ``saved`` (share of
    the serial time that overlap saves, negative where it loses), ``fraction`` (of ideal, against this transport's own
    time) and ``gemm_slowdown``.

    Raises:
        C3Error: rows that no figure may show, or a pair whose kernels were not run alone in the same repetition.
    """
    style.shown(rows)
    pairs = beside_alone(rows, ["total_bytes", "direction", "transport", "batched", "blocks"])
    alone = pairs["gemm_alone_s"], pairs["transfer_alone_s"]
    speedup = realised_speedup(*alone, pairs["region_s"])
    return pairs.assign(
        saved=1 - 1 / speedup,
        fraction=fraction_of_ideal(speedup, ideal_speedup(*alone)),
        gemm_slowdown=pairs["gemm_s"] / pairs["gemm_alone_s"],
    )


def way(rows: pd.DataFrame) -> pd.Series:
    """Name of each row's transport, as :data:`TRANSPORT` has it, and whether it was batched."""
    names = rows["transport"].map({**TRANSPORTS, "bare_copy": "bare copies", "none": "none"})
    return names.where(~rows["batched"], names + ", batched")


def mover(rows: pd.DataFrame) -> str:
    """What moves bytes with SMs in these rows: ``"SM kernel"`` is the project's own, else the library's name."""
    names = rows.loc[~rows["transport"].isin((*ENGINE_DRIVEN, "none")), "transport"].map(TRANSPORTS)
    return " or ".join(sorted(set(names.str.split(", ").str[0])))


def as_library_chose(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of a library with the thread blocks that it takes by itself, where one size also swept them."""
    library = rows["transport"].map(is_library).astype(bool)
    if not library.any():
        return library
    default = load_node(rows["node"].iloc[0]).library["all-gather"].default_cus
    tried = rows.groupby(["collective", "transport", "total_bytes"])["blocks"].transform("nunique")
    return library & (tried.eq(1) | (rows["blocks"] == default))


def stamp(figure: Figure, rows: pd.DataFrame, n: str) -> None:
    """The stamp of measured rows: cases and repetitions."""
    style.stamp(figure, style.shown(rows), style.node_of(rows), f"{n}, {repetitions(rows)} repetitions", note="")


def repetitions(rows: pd.DataFrame) -> int:
    """How many repetitions the rows hold."""
    return int(rows["repetition"].nunique())


def count_range(values: pd.Series) -> str:
    """``"8"`` or ``"2–8"``: the smallest and the largest of some counts."""
    low, high = int(values.min()), int(values.max())
    return f"{low}" if low == high else f"{low}–{high}"


def percent(share: float, places: int, sign: str = "+") -> str:
    """``"+1.5 %"``, with ``sign=""`` ``"1.5 %"``; what rounds to nothing has no sign: never ``"-0.0 %"``."""
    value = round(share * 100, places) + 0.0
    return f"{value:{sign if value else ''}.{places}f} %"


def blocks_text(count: int) -> str:
    """``", 8 blocks"``; nothing for none, as a copy engine has none."""
    return f", {count} block{'' if count == 1 else 's'}" if count else ""


def finding_origin(origin: dict[str, Any]) -> style.Finding:
    """Where and when a table was measured, by which commit, and whether its negative control fired."""
    told = {name: origin[name] for name in ("device", "driver", "date", "commit") if name in origin}
    text = "Measured on " + ", ".join(f"{name} {value}" for name, value in told.items())
    control = origin.get("negative_control") or {}
    fired = "; ".join(f"{name}: {what}" for name, what in control.items())
    text += f". Bytes were left out on purpose, {fired}." if fired else ". Its provenance has **no negative control**."
    return style.Finding(text)
