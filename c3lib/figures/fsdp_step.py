"""A training step under FSDP2 by who gathers the parameters, relative to plain FSDP2, and the model unsharded."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from c3lib.errors import C3Error
from c3lib.figures import style
from c3lib.figures.measured import TRANSPORT, medians, percent, stamp
from c3lib.measured import TRANSPORTS

PLAIN, UNSHARDED = "nccl", "none"
COLOUR = {
    "nccl": TRANSPORT["NCCL"],
    "nccl_zero_cta": style.STRATEGY["conccl"],
    "copy_engine": style.STRATEGY["conccl_rp"],
}


def steps(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a size and arm, over repetitions: ``step_s``, and relative to plain FSDP2's step in the same repetition.

    ``median``, ``low``, ``high``: of that ratio, with a bootstrap 95 % interval; ``exposed``: the share of plain
    FSDP2's time beyond the unsharded model's that this arm takes, 1 for plain FSDP2, 0 for the model alone.

    Raises:
        C3Error: rows that no figure may show, or a size without plain FSDP2 or the unsharded model in a repetition.
    """
    style.shown(rows)
    keys, whole = ["size", "repetition"], rows
    for name, column in ((PLAIN, "plain_s"), (UNSHARDED, "unsharded_s")):
        arm = whole[whole["transport"] == name].set_index(keys)["step_s"].rename(column)
        rows = rows.join(arm, on=keys)
        if rows[column].isna().any():
            size, repetition = rows.loc[rows[column].isna(), keys].iloc[0]
            raise C3Error(f"figure: fsdp_step has no arm {name!r} of size {size!r} in repetition {repetition}")
    rows = rows.assign(ratio=rows["step_s"] / rows["plain_s"])
    table = medians(rows, ["size", "transport"], "ratio")
    more = rows.groupby(["size", "transport"])[["step_s", "plain_s", "unsharded_s", "tokens"]].median()
    table = table.join(more, on=["size", "transport"])
    beyond = table["plain_s"] - table["unsharded_s"]
    table = table.assign(exposed=(table["step_s"] - table["unsharded_s"]) / beyond.where(beyond > 0))
    places = table["transport"].map([*COLOUR, UNSHARDED].index)
    return table.assign(place=places).sort_values(["tokens", "place"], ignore_index=True).drop(columns="place")


@style.styled
def step_time(rows: pd.DataFrame) -> Figure:
    """Step time of each arm over that of plain FSDP2, a panel a size; the unsharded model as a line."""
    table = steps(rows)
    sizes = list(table["size"].unique())
    arms = [name for name in COLOUR if name in set(table["transport"])]
    figure, axes = style.canvas(1, len(sizes), sharey=True, squeeze=False, height_in=1.6 + 0.42 * len(arms))
    for axis, size in zip(axes[0], sizes, strict=True):
        part = table[table["size"] == size].set_index("transport")
        for place, name in enumerate(reversed(arms)):
            row = part.loc[name]
            axis.plot([row["low"], row["high"]], [place, place], color=COLOUR[name], lw=2)
            axis.plot([row["median"]], [place], color=COLOUR[name], **{**style.MODELLED, "ms": 8})
            axis.annotate(
                f"{row['step_s'] * 1e3:.1f} ms", (row["median"], place), (0, 7), textcoords="offset points",
                ha="center", fontsize=8, color=COLOUR[name],
            )  # fmt: skip
        alone = part.loc[UNSHARDED]
        axis.axvline(alone["median"], color=style.GREY, lw=1.2, ls=(0, (4, 2)))
        axis.annotate(
            f"unsharded {alone['step_s'] * 1e3:.1f} ms", (alone["median"], len(arms) - 0.45), (4, 0), fontsize=8,
            textcoords="offset points", color=style.GREY, va="center",
        )  # fmt: skip
        axis.axvline(1, color=style.FAINT, lw=0.9, zorder=0)
        axis.set(ylim=(-0.5, len(arms) - 0.2), xlabel="step time over plain FSDP2's")
        axis.margins(x=0.12)
        axis.set_title(f"{int(alone['tokens'])} tokens a GPU")
    axes[0][0].set_yticks(range(len(arms)), [f"all-gather by\n{TRANSPORTS[name]}" for name in reversed(arms)])
    for label, name in zip(axes[0][0].get_yticklabels(), reversed(arms), strict=True):
        label.set(color=COLOUR[name])
    stamp(figure, rows, f"{rows['layers'].iloc[0]} blocks of {rows['hidden'].iloc[0]}")
    return figure


def finding_step(rows: pd.DataFrame) -> style.Finding:
    """Each arm's step beside plain FSDP2's, and how much of the time that communication costs is left."""
    table, lines = steps(rows), []
    for size in table["size"].unique():
        part = table[table["size"] == size].set_index("transport")
        plain, alone = part.loc[PLAIN], part.loc[UNSHARDED]
        line = f"With {int(plain['tokens'])} tokens a GPU plain FSDP2 takes {plain['step_s'] * 1e3:.1f} ms a step"
        line += f", the model unsharded {alone['step_s'] * 1e3:.1f} ms"
        for name in part.index.drop([PLAIN, UNSHARDED]):
            row = part.loc[name]
            line += (
                f"; all-gather by {TRANSPORTS[name]}: {percent(row['median'] - 1, 1)} "
                f"[{percent(row['low'] - 1, 1)}, {percent(row['high'] - 1, 1)}]"
            )
            if row["low"] <= 1 <= row["high"]:
                line += ", no difference that can be told from none"
            if pd.notna(row["exposed"]):
                line += f", {percent(row['exposed'], 0, '')} of the time beyond the unsharded model's"
        lines.append(line + ".")
    return style.Finding("  \n".join(lines))
