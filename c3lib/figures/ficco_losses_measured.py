"""Decomposition and contention losses as one H200 measured them, beside what the model gives for the same machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.ficco.sets import PAPER_SET, load_problems
from c3lib.figures import style
from c3lib.figures.ficco_losses import AXES, WAYS, factor_axis, row_axis
from c3lib.figures.ficco_measured import HOLLOW, passes_on, read
from c3lib.figures.measured import percent, repetitions
from c3lib.hardware import load_node
from c3lib.measured import FOLDER, TRANSPORTS
from c3lib.metrics import median_interval
from c3lib.model.losses import loss_rows
from c3lib.schedule_table import TRANSPORT_OF

RANKS = 8
"""That the sixteen rows are of, whatever the machine."""

COLOUR = {"copy_engine": style.STRATEGY["conccl_rp"], "sm_kernel": style.STRATEGY["c3_sp"]}
SHARED = ("gemm", "m", 8)
"""The contention loss that is drawn: of a GEMM cut along M in 8."""

_RUN = ["time_s", "sm_mhz"]


def losses(machine: str, folder: Path = FOLDER) -> pd.DataFrame | style.Finding:
    """Table ``ficco_losses`` of a machine, reduced, or what to run to have one."""
    rows = read(machine, "ficco_losses", folder)
    return rows if isinstance(rows, style.Finding) else reduced(rows)


def reduced(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a loss: ``problem, loss, operation, axis, ways, transport``, its ``value`` with the interval ``low`` to
    ``high``, and the model's, ``model`` (NaN where it has none). ``slowest_mhz``, ``fastest_mhz``: SM clock of the runs
    that are compared; ``clock``: its median with the loss over that without.

    Decomposition: pieces over the whole, each alone, in the same repetition. Contention: beside the other over alone
    with all that it can use, at the same cut. Losses are medians over repetitions less 1.

    Raises:
        C3Error: rows that no figure may show, a run that is there twice, a time that is not above 0, or no run that is
            cut or beside another and has one to compare it with.
    """
    style.shown(rows)
    where = f"measured table of losses of {rows['node'].iloc[0]}"
    _require_whole(rows, where)
    alone = rows[(rows["beside"] == "nothing") & ((rows["measured"] == "exchange") | (rows["sms_withheld"] == 0))]
    found = []
    for keys, part in rows.groupby(["problem", "measured", "cut", "parts", "beside", "transport"], sort=False):
        problem, operation, cut, parts, beside, transport = keys
        if beside != "nothing":
            loss, whole = "contention", _alone(alone, operation, problem, cut, parts, transport)
        elif parts > 1:
            loss, whole = "decomposition", _alone(alone, operation, problem, "none", 1, transport)
        else:
            continue
        pairs = part.set_index("repetition")[_RUN].join(whole.add_suffix("_whole"), how="inner")
        if pairs.empty:
            continue
        ratio = (pairs["time_s"] / pairs["time_s_whole"]).to_numpy()
        clocks = pairs[["sm_mhz", "sm_mhz_whole"]]
        mhz = {
            "slowest_mhz": clocks.min().min(),
            "fastest_mhz": clocks.max().max(),
            "clock": clocks["sm_mhz"].median() / clocks["sm_mhz_whole"].median(),
        }
        low, high = median_interval(ratio)
        about = dict(zip(("problem", "operation", "axis", "ways", "transport"),
                         (problem, operation, cut, parts, transport), strict=True))  # fmt: skip
        found.append({**about, "loss": loss, "value": np.median(ratio) - 1, "low": low - 1, "high": high - 1, **mhz})
    if not found:
        raise C3Error(
            f"{where}: no run that is cut, or beside another, has one in the same repetition to compare it with"
        )
    table = pd.DataFrame(found).assign(
        node=rows["node"].iloc[0], evidence=rows["evidence"].iloc[0], verified=True, repetitions=repetitions(rows)
    )
    rank = {name: index for index, name in enumerate(row.name for row in load_problems(PAPER_SET, RANKS))}
    order = table["problem"].map(rank).fillna(-1) * 10 + table["axis"].map({"none": 0, "m": 1, "n": 2, "k": 3})
    table = table.assign(order=order).sort_values(["order", "ways", "transport", "operation"], kind="stable")
    table = table.drop(columns="order").reset_index(drop=True)
    return table.assign(model=_modelled(table))


def _require_whole(rows: pd.DataFrame, where: str) -> None:
    times = rows["time_s"]
    runs = rows[["problem", "measured", "cut", "parts", "beside", "transport", "sms_withheld", "repetition"]]
    for bad, column, what in (
        (~((times > 0) & np.isfinite(times)), "time_s", "must be above 0"),
        (runs.duplicated(), "repetition", "names a run that is there already"),
    ):
        if bad.any():
            row = rows[bad].iloc[0]
            run = f"{row['problem']}, {row['measured']} cut along {row['cut']} in {row['parts']} beside {row['beside']}"
            raise C3Error(f"{where}: {run}: column {column} {what}: {row[column]:g}")


def _alone(alone: pd.DataFrame, operation: str, problem: str, cut: str, parts: int, transport: str) -> pd.DataFrame:
    """Seconds and clock by repetition of an operation alone; exchanges alone are of one shard, whatever the GEMM."""
    chosen = (alone["measured"] == operation) & (alone["cut"] == cut) & (alone["parts"] == parts)
    mine = alone["transport"] == transport if operation == "exchange" else alone["problem"] == problem
    return alone[chosen & mine].set_index("repetition")[_RUN]


def _modelled(table: pd.DataFrame) -> list[float]:
    """The model's loss of each row, NaN where it has none of the kind."""
    keys = ["problem", "loss", "operation", "axis", "ways", "transport"]
    told = loss_rows(load_node(table["node"].iloc[0]), load_problems(PAPER_SET, RANKS)).set_index(keys)["value"]
    found = []
    for row in table.itertuples():
        cut = (row.axis, row.ways) if row.operation == "gemm" or row.loss == "decomposition" else ("m", RANKS)
        key = (row.problem, row.loss, row.operation, *cut, TRANSPORT_OF.get(row.transport, "none"))
        found.append(float(told.get(key, np.nan)))
    return found


@passes_on
def publish(rows: pd.DataFrame, name: str, out: Path | str) -> Any:
    """Save :func:`both`; the sentence where nothing was measured."""
    return style.save(both(rows), name, out)


@style.styled
def both(rows: pd.DataFrame) -> Figure:
    """GEMMs cut along each axis, and beside an exchange by each transport: measured, and what the model gives."""
    evidence = style.shown(rows)
    cut = rows[(rows["loss"] == "decomposition") & (rows["operation"] == "gemm")]
    shared = _shared(rows)
    order, ways = list(dict.fromkeys(cut["problem"])), sorted(cut["ways"].unique())
    place = {name: len(order) - 1 - index for index, name in enumerate(order)}
    figure, axes = style.canvas(1, 4, sharey=True, height_in=1.6 + 0.22 * len(order))
    for axis, (name, title) in zip(axes[:3], AXES.items(), strict=True):
        for count, (colour, marker) in zip(ways, WAYS, strict=False):
            part = cut[(cut["axis"] == name) & (cut["ways"] == count)]
            _points(axis, part, place, colour, marker, f"{count} pieces")
        axis.set_title(title.split(" (")[0], fontsize=9)
        row_axis(axis, order)
        factor_axis(axis, 1 + cut.loc[cut["axis"] == name, ["low", "high", "model"]].stack())
    for transport, colour in COLOUR.items():
        part = shared[shared["transport"] == transport]
        _points(axes[3], part, place, colour, "D", f"beside the {TRANSPORTS[transport]}")
    axes[3].set_title("beside traffic", fontsize=9)
    row_axis(axes[3], order)
    values = 1 + shared[["low", "high", "model"]].stack()
    axes[3].set_xlim(min(0.98, values.min() - 0.02), max(1.1, values.max() + 0.03))
    axes[3].xaxis.set_major_formatter(lambda value, _: f"{value:.2g}x")
    for axis in axes:
        axis.axvline(1, color="#444444", lw=0.9)
    axes[1].set_xlabel("pieces of a GEMM over the whole, each alone")
    axes[3].set_xlabel("over alone")
    axes[3].plot([], [], mec=style.GREY, label="modelled", **HOLLOW)
    handles = [item for axis in (axes[0], axes[3]) for item in axis.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), handletextpad=0.1, columnspacing=1.0)
    n = f"{len(order)} GEMMs, {rows['repetitions'].max()} repetitions"
    style.stamp(figure, f"{evidence} beside modelled (from constants)", rows["node"].iloc[0], n, "")
    return figure


def _points(axis: Any, part: pd.DataFrame, place: dict[str, int], colour: str, marker: str, label: str) -> None:
    y = part["problem"].map(place)
    axis.hlines(y, 1 + part["low"], 1 + part["high"], color=colour, lw=1.4)
    axis.plot(1 + part["model"], y, mec=colour, zorder=1, **HOLLOW)
    axis.plot(1 + part["value"], y, color=colour, label=label, **{**style.MODELLED, "marker": marker, "ms": 4.5})


def _shared(rows: pd.DataFrame) -> pd.DataFrame:
    operation, axis, ways = SHARED
    of = (rows["loss"] == "contention") & (rows["operation"] == operation)
    return rows[of & (rows["axis"] == axis) & (rows["ways"] == ways)]


@passes_on
def finding(rows: pd.DataFrame) -> style.Finding:
    """Measured losses beside the model's: medians with their intervals, the largest, how far the model is off, and how
    many lie below 0."""
    style.shown(rows)
    parts = []
    cut = rows[(rows["loss"] == "decomposition") & (rows["operation"] == "gemm")]
    for (axis, ways), part in cut.groupby(["axis", "ways"], sort=False):
        worst = part.loc[part["value"].idxmax()]
        parts.append(
            f"GEMM in {ways} {AXES[str(axis)]}: {_middle(part)}, at most "
            f"{percent(worst['value'], 0)} ({worst['problem']}); modelled {_beside(part)}"
        )
    alone = rows[(rows["loss"] == "decomposition") & (rows["operation"] == "exchange")]
    for transport, part in alone.groupby("transport", sort=False):
        each = [
            f"{percent(row.value, 1)} {_span(row.low, row.high)} in {row.ways} along {row.axis.upper()}"
            for row in part.itertuples()
        ]
        parts.append(f"A shard of 512 MiB by {TRANSPORTS[str(transport)]}, cut: {', '.join(each)}")
    both_run = rows[rows["loss"] == "contention"]
    for (operation, transport), part in both_run.groupby(["operation", "transport"], sort=False):
        what = "The GEMM beside an exchange" if operation == "gemm" else "The exchange beside a GEMM"
        parts.append(
            f"{what} by {TRANSPORTS[str(transport)]}: {_middle(part)}, "
            f"{percent(part['value'].min(), 1)} to {percent(part['value'].max(), 1)}; modelled {_beside(part)}"
        )
    parts += _gains(rows[rows["operation"] == "gemm"])
    return style.Finding("(measured, beside modelled) " + ".  \n".join(parts) + ".")


def _middle(part: pd.DataFrame) -> str:
    """The median over rows with its interval, and for how many rows it is open whether they lose."""
    unsure = int(((part["low"] <= 0) & (part["high"] >= 0)).sum())
    span = _span(*median_interval(part["value"]))
    open_for = f"{unsure or 'none'} of {len(part)} intervals {'hold' if unsure > 1 else 'holds'} 0"
    return f"{percent(part['value'].median(), 1)} {span} in the median ({open_for})"


def _span(low: float, high: float) -> str:
    return f"[{percent(low, 1)}, {percent(high, 1)}]"


def _gains(gemms: pd.DataFrame) -> list[str]:
    """A sentence on GEMMs that took less time cut, or beside an exchange; none where there is none."""
    below, sure = gemms[gemms["value"] < 0], gemms[gemms["high"] < 0]
    if below.empty:
        return []
    why = (
        f"large GEMMs run at the power limit, so that the SM clock went from {gemms['slowest_mhz'].min():.0f} to "
        f"{gemms['fastest_mhz'].max():.0f} MHz between runs"
    )
    if len(sure):
        why += (
            f", and on {int((sure['clock'] > 1).sum())} of those {len(sure)} it was higher with the loss than without"
        )
    count = f"{len(below)} of {len(gemms)} losses of GEMMs lie below 0, {len(sure)} with the whole interval"
    return [f"{count} (the lowest {percent(below['value'].min(), 1)}): {why}"]


def _beside(part: pd.DataFrame) -> str:
    """The model's median, and how far its times are off in the mean."""
    told = part.dropna(subset=["model"])
    if told.empty:
        return "not"
    off = ((1 + told["model"]) / (1 + told["value"]) - 1).abs().mean()
    return f"{percent(told['model'].median(), 1)}, times off by {off:.1%} on average"
