"""Who overlaps with what, between GPUs: the tables ``transports`` and ``links`` reduced. No physics.

A way to move bytes is a transport, the thread blocks it was asked to use (a library chooses its own), and whether a
rank's own shard lies where it belongs already (in place). Each way is judged by the time that it takes itself, alone,
with the same size in the same registered memory, in the same repetition.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from c3lib import metrics
from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES
from c3lib.measured import ENGINE_DRIVEN, TRANSPORTS
from c3lib.results import publishable

WAY = ["collective", "transport", "batched", "in_place", "asked"]
"""What names a way to move bytes; ``asked``: thread blocks, 0 where a copy engine needs none or a library chooses."""

_PAIR = ["bound", "gemm", *WAY, "first"]


def beside_alone(rows: pd.DataFrame, way: Sequence[str]) -> pd.DataFrame:
    """Regions of both kernels with ``gemm_alone_s`` and ``transfer_alone_s`` of the same repetition.

    ``way``: the columns that tell transfers apart. A GEMM alone is one with every SM. Raises :class:`C3Error` where a
    kernel was not run alone.
    """
    still, alone, own = rows["transport"] == "none", rows["gemm"] == "none", [*way, "repetition"]
    whole = rows[still & (rows["sms_asked"] == 0)]
    gemms = whole.groupby(["gemm", "repetition"])["gemm_s"].median().rename("gemm_alone_s")
    transfers = rows[alone & ~still].groupby(own)["transfer_s"].median().rename("transfer_alone_s")
    found = rows[~still & ~alone].join(gemms, on=["gemm", "repetition"]).join(transfers, on=own)
    lacking = found[found[["gemm_alone_s", "transfer_alone_s"]].isna().any(axis=1)]
    if len(lacking):
        row = lacking.iloc[0]
        raise C3Error(
            f"{row['experiment']}: {row['gemm']} runs beside {row['transport']} ({row['collective']} of "
            f"{row['total_bytes']} bytes), but not both alone in repetition {row['repetition']}"
        )
    return found


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of a GEMM beside a transfer, each with both alone in the same repetition; from the table ``transports``.

    Adds ``asked``, ``gemm_alone_s`` (the median, as the GEMM runs alone beside each collective's arms), and
    ``transfer_alone_s``; ``fraction`` (of ideal, against this way's own time); ``gemm_slowdown`` and
    ``transfer_slowdown`` (the end over the time alone).

    Raises:
        C3Error: no rows, rows whose bytes were not verified, or a pair whose kernels were not run alone.
    """
    rows = _asked(rows)
    found = beside_alone(rows, [*WAY, "total_bytes"])
    times = found["gemm_alone_s"], found["transfer_alone_s"]
    speedup = metrics.realised_speedup(*times, found["region_s"])
    return found.assign(
        fraction=metrics.fraction_of_ideal(speedup, metrics.ideal_speedup(*times)),
        gemm_slowdown=found["gemm_s"] / found["gemm_alone_s"],
        transfer_slowdown=found["transfer_s"] / found["transfer_alone_s"],
    )


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a GEMM, way and launch order, ordered as :func:`ordered` says.

    ``fraction`` is the median with its bootstrap 95 % interval ``low`` to ``high``; medians ``gemm_slowdown``,
    ``transfer_slowdown``, ``gemm_s``, ``transfer_s``, ``gemm_alone_s``, ``transfer_alone_s``; the ``blocks`` that ran,
    ``ran`` and ``engines_only`` of its path (:func:`ran`, :func:`engines_only`), ``total_bytes``, ``repetitions``.
    """
    times = ["gemm_slowdown", "transfer_slowdown", "gemm_s", "transfer_s", "gemm_alone_s", "transfer_alone_s"]
    found = []
    for key, part in pairs(rows).groupby(_PAIR):
        first, fraction = part.iloc[0], part["fraction"]
        low, high = metrics.median_interval(fraction)
        numbers = {"fraction": fraction.median(), "low": low, "high": high} | dict(part[times].median())
        told = {"blocks": first["blocks"], "ran": ran(first["path"]), "engines_only": engines_only(first)}
        told |= {"total_bytes": first["total_bytes"], "repetitions": len(part)}
        found.append(dict(zip(_PAIR, key, strict=True)) | numbers | told)
    return ordered(pd.DataFrame(found).assign(node=rows["node"].iloc[0], evidence="measured"))


def by_way(table: pd.DataFrame) -> pd.DataFrame:
    """A summary with one row a way.

    ``name`` as :func:`name_of` has it, ``blocks`` (their range as text), ``ran``, ``engines_only``, and mean fractions
    over the GEMMs of a bound in columns such as ``compute-bound, gemm first``.
    """
    found = []
    for key, part in table.groupby(WAY, sort=False):
        way = dict(zip(WAY, key, strict=True))
        ends = dict.fromkeys(map(str, (part["blocks"].min(), part["blocks"].max())))
        told = {"name": name_of(*key[1:]), "blocks": "–".join(ends), "ran": ", ".join(dict.fromkeys(part["ran"]))}
        means = part.groupby(["bound", "first"])["fraction"].mean()
        of_bounds = {f"{bound}-bound, {first} first": mean for (bound, first), mean in means.items()}
        found.append(way | told | {"engines_only": bool(part["engines_only"].all())} | of_bounds)
    return pd.DataFrame(found)


def wire(rows: pd.DataFrame) -> pd.DataFrame:
    """Bytes on the wire over payload bytes, both as one GPU's NVLink counters saw them; from the table ``links``.

    One row a way and GEMM (``none``: alone): ``ratio`` of what it sent (median) with its extremes ``low`` and ``high``,
    ``received`` (the same of what came in), ``payload`` (counted over what the plan sends), ``blocks``, ``ran``,
    ``engines_only`` (:func:`engines_only`), ``repetitions``.

    Raises:
        C3Error: as :func:`pairs`, or counters that saw no payload one way.
    """
    rows = _asked(rows)
    for way in ("sent_bytes", "received_bytes", "plan_bytes"):
        if not (rows[way] > 0).all():
            row = rows[~(rows[way] > 0)].iloc[0]
            raise C3Error(
                f"overlap: column {way} of {row['transport']} ({row['collective']}) must be above 0, not {row[way]}: "
                "there is no payload to count wire bytes over"
            )
    rows = rows.assign(
        ratio=rows["sent_raw_bytes"] / rows["sent_bytes"],
        received=rows["received_raw_bytes"] / rows["received_bytes"],
        payload=rows["sent_bytes"] / rows["plan_bytes"],
        ran=rows["path"].map(ran),
        engines_only=rows.apply(engines_only, axis=1),
    )
    groups = rows.groupby([*WAY, "gemm"])
    table = groups["ratio"].agg(ratio="median", low="min", high="max", repetitions="size")
    table = table.join(groups[["received", "payload"]].median()).join(groups[["blocks", "ran", "engines_only"]].first())
    return ordered(table.reset_index().assign(node=rows["node"].iloc[0], evidence="measured"))


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Rows by collective, by transport as :data:`TRANSPORTS` lists them, batched copies first, in place first."""
    keys = pd.DataFrame(
        {
            "kind": table["collective"].map(list(COLLECTIVES).index),
            "transport": table["transport"].map(list(TRANSPORTS).index),
            "plain": ~table["batched"],
            "moved": ~table["in_place"],
            "asked": table["asked"],
        }
    ).join(table[[name for name in ("bound", "gemm", "first") if name in table]])
    return table.loc[keys.sort_values(list(keys.columns), kind="stable").index].reset_index(drop=True)


def name_of(transport: str, batched: bool, in_place: bool, asked: int) -> str:
    """A way in words: ``"SM kernel, 8 blocks"``, ``"NCCL, zero CTAs, out of place"``; our plans are always in place."""
    name = TRANSPORTS[transport] + (", batched" if batched else "") + (f", {asked} blocks" if asked else "")
    return name + (f", {'in' if in_place else 'out of'} place" if is_library(transport) else "")


def is_library(transport: str) -> bool:
    """Whether a library moves the bytes, so that it also says with how many thread blocks."""
    return transport.startswith("nccl")


def ran(path: str) -> str:
    """What of a proved path ran on each GPU: ``"Memcpy DtoD, Memcpy PtoP"``, ``"copy engine"``, ``"SM kernel"``."""
    what = path.split("; ")[0].split(": ")[0].removesuffix(" (activity records)")
    return ", ".join(part.split(" x")[0] for part in what.split(", "))


def engines_only(row: pd.Series) -> bool:
    """Whether a row's transfer needed no SM: it has no thread block, and ended while every SM was held."""
    free = row["transport"] in ENGINE_DRIVEN and row["blocks"] == 0
    return bool(free and "did not end" not in row["path"])


def _asked(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with ``asked``, if they may be shown. Raises :class:`C3Error` where :func:`publishable` does."""
    known = {"scenario": rows["gemm"], "strategy": rows["transport"]}  # what it names a failed row by
    publishable(rows.assign(**{name: column for name, column in known.items() if name not in rows}))
    return rows.assign(asked=rows["blocks"].mask(rows["transport"].map(is_library), 0))
