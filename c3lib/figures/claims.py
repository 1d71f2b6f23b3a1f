"""Reported beside modelled, claim by claim: the table's picture."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.claims import COLUMNS, OTHER_MACHINE, claims_table, count, load_claims
from c3lib.figures import style
from c3lib.figures.tables import WholeTable
from c3lib.hardware import PAPER_NODE

VERDICT = {"reproduced": "#14548C", "missed": "#C0392B", "calibrated": "#9A9A9A", OTHER_MACHINE: "#444444"}


def claim_rows(node: str = PAPER_NODE, suite: str = "conccl30") -> pd.DataFrame:
    """The claims table with the reported numbers as numbers (``value``, ``low``, ``high``)."""
    numbers = load_claims()[["id", "value", "low", "high"]]
    return claims_table(node, suite).merge(numbers, on="id", how="left").assign(node=node, evidence="modelled")


@style.styled
def agreement(rows: pd.DataFrame) -> Figure:
    """Modelled over reported for each claim that has a number; the grey bar is the tolerance, the diamond the paper."""
    evidence = style.shown(rows)
    middle = rows["value"].fillna((rows["low"] + rows["high"]) / 2)
    table = rows.assign(middle=middle)[(middle > 0) & rows["verdict"].isin(VERDICT) & rows["modelled"].notna()]
    table = table.assign(ratio=table["modelled"] / table["middle"]).iloc[::-1].reset_index(drop=True)
    figure, axis = style.canvas(height_in=1.2 + 0.2 * len(table))
    left, right = 0.6, 1.7
    for place, row in table.iterrows():
        ends = [row["low"], row["high"]] if np.isnan(row["value"]) else [row["value"]] * 2
        low, high = (ends[0] - row["tolerance"]) / row["middle"], (ends[1] + row["tolerance"]) / row["middle"]
        bar = {"color": style.FAINT, "lw": 8, "solid_capstyle": "butt"}
        axis.plot([max(low, left), min(high, right)], [place, place], zorder=1, **bar)
        for end in dict.fromkeys(ends):
            axis.plot([end / row["middle"]], [place], zorder=2, **{**style.REPORTED, "ms": 7.5})
        beyond = "<" if row["ratio"] < left else ">" if row["ratio"] > right else "o"
        look = {**style.MODELLED, "marker": beyond, "ms": 4.5 if beyond == "o" else 8, "clip_on": False}
        axis.plot([np.clip(row["ratio"], left, right)], [place], color=VERDICT[row["verdict"]], zorder=3, **look)
        text = {"va": "center", "fontsize": 8, "color": VERDICT[row["verdict"]]}
        text["transform"] = axis.get_yaxis_transform()
        axis.text(1.04, place, f"{row['modelled']:.3g} · {row['reported']}", **text)
    heading = {"transform": axis.get_yaxis_transform(), "fontsize": 8, "va": "bottom"}
    axis.text(1.04, len(table) - 0.4, "modelled · reported", **heading)
    axis.set_yticks(range(len(table)), [name.removeprefix("conccl.") for name in table["id"]], fontsize=7.5)
    axis.set(xscale="log", xlim=(left, right), ylim=(-0.6, len(table) - 0.4))
    axis.set_xlabel("modelled over reported; arrow: beyond; grey: tolerance")
    axis.set_xticks(ticks := [0.6, 0.8, 1, 1.25, 1.6], [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    for verdict, colour in VERDICT.items():
        if (table["verdict"] == verdict).any():
            label = {
                "reproduced": "predicted, reproduced",
                "missed": "predicted, missed",
                "calibrated": "calibrated: no evidence",
                OTHER_MACHINE: "another machine than the paper's: no verdict",
            }
            axis.plot([], [], color=colour, label=label[verdict], **style.MODELLED)
    figure.legend(loc="outside upper left", ncols=3, handletextpad=0.1)
    papers = f"{style.CONCCL} and {style.FICCO}"
    style.stamp(figure, evidence, style.node_of(rows), f"{len(table)} of {len(rows)} claims", "", True, papers)
    return figure


_FIRST = ("quantity", "verdict", "reported", "modelled", "unit")


def shown_table(rows: pd.DataFrame) -> WholeTable:
    """The claims table as a reader wants it: the verdict beside the claim, rounded, and every reason in full."""
    columns = [*_FIRST, *(name for name in COLUMNS if name not in (*_FIRST, "id"))]
    return WholeTable(
        rows[columns].assign(
            modelled=rows["modelled"].map("{:.4g}".format), deviation=rows["deviation"].map("{:+.3g}".format)
        )
    )


def finding(rows: pd.DataFrame) -> style.Finding:
    """How many claims are reproduced, missed, calibrated, inputs or not covered; each miss with its reason."""
    found, node = count(rows), rows["node"].iloc[0]
    if node != PAPER_NODE:
        return style.Finding(
            f"The {found['claims']} claims are about {PAPER_NODE}: on {node} the comparison says how the machines "
            "differ, and none of them is reproduced or missed."
        )
    text = (
        f"**Of {found['claims']} claims, {found['predicted']} are predicted without having been used: "
        f"{found['reproduced']} reproduced, {found['missed']} missed.** {found['calibrated']} are calibrated and "
        f"{found['input']} are inputs: these are no evidence. Reproduced ones that restate "
        f"another: {found['restated']}; not covered: {int((rows['verdict'] == 'not covered').sum())}."
    )
    misses = rows[rows["verdict"] == "missed"]
    lines = [
        f"- **missed** {row.id.removeprefix('conccl.')}: {row.modelled:.3g} against {row.reported}. {row.why}"
        for row in misses.itertuples()
    ]
    return style.Finding("\n".join([text, "", *lines]))
