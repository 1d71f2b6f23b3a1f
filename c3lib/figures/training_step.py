"""A training step under FSDP2 by who gathers the parameters: what copy engines save of a whole step."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.figures.measured import TRANSPORT, medians, percent, repetitions, stamp
from c3lib.measured import TRANSPORTS

UNSHARDED, PLAIN, ENGINE = "none", "nccl", "copy_engine"
NAMES = {UNSHARDED: "unsharded, no collective", **TRANSPORTS}
COLOUR = {
    UNSHARDED: style.GREY,
    PLAIN: TRANSPORT["NCCL"],
    ENGINE: TRANSPORT["copy engine"],
    "nccl_zero_cta": style.STRATEGY["conccl"],
}


def steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Per size and transport of the all-gather, smaller sizes first: seconds of a step, and its ratio to plain FSDP2.

    ``median``, ``low``, ``high``: of a step; ``ratio``, ``ratio_low``, ``ratio_high``: of it to the same repetition
    with NCCL; from the table ``fsdp_step``.

    Raises:
        C3Error: rows that no figure may show, or a repetition without NCCL's step.
    """
    style.shown(rows)
    keys = ["size", "tokens", "transport"]
    plain = rows[rows["transport"] == PLAIN].set_index(["size", "repetition"])["step_s"].rename("plain_s")
    rows = rows.join(plain, on=["size", "repetition"])
    if rows["plain_s"].isna().any():
        row = rows[rows["plain_s"].isna()].iloc[0]
        raise C3Error(f"figure: fsdp_step has no step with NCCL of size {row['size']}, repetition {row['repetition']}")
    rows = rows.assign(ratio=rows["step_s"] / rows["plain_s"])
    names = {"median": "ratio", "low": "ratio_low", "high": "ratio_high"}
    ratios = medians(rows, keys, "ratio").rename(columns=names)[[*keys, *names.values()]]
    table = medians(rows, keys, "step_s").merge(ratios, on=keys)
    order = {name: place for place, name in enumerate([UNSHARDED, *TRANSPORTS])}
    table = table.assign(place=table["transport"].map(order)).sort_values(["tokens", "place"])
    return table.drop(columns="place").reset_index(drop=True)


@style.styled
def step_times(rows: pd.DataFrame) -> Figure:
    """Milliseconds of a step by who gathers the parameters, a panel a size: medians, and every repetition as a tick."""
    table = steps(rows)
    sizes = list(dict.fromkeys(table["tokens"]))
    names = list(dict.fromkeys(table["transport"]))[::-1]
    figure, axes = style.canvas(
        1, len(sizes), sharey=True, sharex=True, height_in=1.5 + 0.42 * len(names), squeeze=False
    )
    for axis, tokens in zip(axes[0], sizes, strict=True):
        for row in table[table["tokens"] == tokens].itertuples():
            each = rows.loc[(rows["tokens"] == tokens) & (rows["transport"] == row.transport), "step_s"]
            _step(axis, names.index(row.transport), row, each)
        axis.set(title=f"{tokens} tokens a GPU", xlabel="ms a step")
    if not all(_sure(row) for row in table[~table["transport"].isin((PLAIN, UNSHARDED))].itertuples()):
        look = {"transform": axes[0][0].transAxes, "ha": "right", "va": "bottom", "fontsize": 7.5, "color": style.GREY}
        axes[0][0].text(1, 0.01, "grey: not beyond its interval", **look)
    axes[0][0].set_yticks(range(len(names)), [NAMES[name] for name in names])
    for label, name in zip(axes[0][0].get_yticklabels(), names, strict=True):
        label.set(color=COLOUR.get(name, style.GREY), weight="bold")
    axes[0][0].set(xlim=(0, rows["step_s"].max() * 1e3 * 1.04), ylim=(-0.6, len(names) - 0.3))
    stamp(
        figure,
        rows,
        f"FSDP2 on {rows['ranks'].iloc[0]} GPUs, {rows['parameter_bytes'].iloc[0] / 1e9:.1f} GB of parameters",
    )
    return figure


def _step(axis: Any, place: int, row: Any, each: pd.Series) -> None:
    colour = COLOUR.get(row.transport, style.GREY)
    axis.barh(place, row.median * 1e3, height=0.62, color=colour, alpha=0.3, lw=0)
    axis.plot([row.low * 1e3, row.high * 1e3], [place] * 2, color=colour, lw=2.4)
    axis.plot(each.sort_values() * 1e3, [place] * len(each), ls="none", marker="|", ms=8, mew=1, color=colour)
    text = axis.annotate(f"{row.median * 1e3:.1f}", (1.5, place), va="center", weight="bold", fontsize=8.5)
    if row.transport in (PLAIN, UNSHARDED):
        return
    look = {"color": "black", "weight": "bold"} if _sure(row) else {"color": style.GREY}
    axis.annotate(f" ({percent(row.ratio - 1, 1)})", (1, 0.5), xycoords=text, va="center", fontsize=8.5, **look)


def _sure(row: Any) -> bool:
    """Whether the interval of a step's change lies wholly on one side of none."""
    return (row.ratio_low - 1) * (row.ratio_high - 1) > 0


def finding(rows: pd.DataFrame, origin: dict[str, Any]) -> style.Finding:
    """What a step takes by each transport, what copy engines save of it and of what the collectives add; what lacks.

    ``origin`` is the table's provenance, which names in ``left_out`` the transports that would not run, and why.
    """
    table, parts = steps(rows), []
    for tokens, part in table.groupby("tokens"):
        own = part.set_index("transport")
        text = f"{tokens} tokens a GPU: NCCL {own.loc[PLAIN, 'median'] * 1e3:.1f} ms"
        for name in own.index.drop([PLAIN, UNSHARDED], errors="ignore"):
            row = own.loc[name]
            change, low, high = (percent(row[key] - 1, 1) for key in ("ratio", "ratio_low", "ratio_high"))
            sure = "" if _sure(row) else ", **not beyond its interval**"
            text += f", {TRANSPORTS[name]} {row['median'] * 1e3:.1f} ms ({change} [{low}, {high}]{sure})"
            if UNSHARDED in own.index:
                floor = own.loc[UNSHARDED, "median"]
                less = 1 - (row["median"] - floor) / (own.loc[PLAIN, "median"] - floor)
                text += f", {less:.0%} less on top of unsharded"
        if UNSHARDED in own.index:
            text += f"; unsharded {own.loc[UNSHARDED, 'median'] * 1e3:.1f} ms"
        parts.append(text)
    return style.Finding(
        f"{rows['model'].iloc[0]}, {repetitions(rows)} repetitions of {rows['steps'].iloc[0]} steps. "
        + ".  \n".join(parts)
        + ".  \nOnly the all-gather changes hands: gradients are reduced by NCCL in both. Unsharded is the work of a "
        "rank's step without a collective: the whole model, the optimizer over its share."
        + "".join(
            f"  \n**Missing: {NAMES[name]}**, which did not run: `{why}`."
            for name, why in origin.get("left_out", {}).items()
        )
    )
