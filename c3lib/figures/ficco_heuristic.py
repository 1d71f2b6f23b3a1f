"""How often the heuristic picks the fastest schedule, what it costs when it does not, and what it takes for what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from c3lib.ficco import SCHEDULES
from c3lib.ficco.sets import PAPER_SET, load_problems, random_problems
from c3lib.figures import style
from c3lib.figures.ficco_measured import passes_on
from c3lib.figures.ficco_speedups import NAMES
from c3lib.figures.measured import percent
from c3lib.figures.reported import elsewhere, reported
from c3lib.hardware import load_node
from c3lib.model.pieces import TRANSPORTS
from c3lib.schedule_score import misjudged, score, score_measured, summary

POLICY = {
    "rule": "the heuristic",
    "by_shape": "three tests of sizes",
    "single": "always one",
    "serial": "always serial",
}
"""What is scored, against exhaustive search; ``single`` is the one that was best over these problems, in hindsight."""

COLOUR = {"rule": "#0072B2", "by_shape": "#009E73", "single": "#B8860B", "serial": "#8A8A8A"}
SPREADS, DRAWS = (0.0, 0.1, 0.2, 0.4), 3
"""Spreads of constants, and nodes drawn for each."""


def score_rows(
    node: str, count: int = 300, seed: int = 0, transports: Sequence[str] = TRANSPORTS[::-1]
) -> pd.DataFrame:
    """Every policy's choice for ``count`` random problems, none of them in a fixed set, against exhaustive search."""
    machine = load_node(node)
    problems = random_problems(count, machine, seed)
    return pd.concat([score(machine, problems, name) for name in transports], ignore_index=True)


def paper_rows(node: str, problem_set: str = PAPER_SET) -> pd.DataFrame:
    """The same for the problems of a set."""
    machine = load_node(node)
    problems = load_problems(problem_set, machine.ranks)
    return pd.concat([score(machine, problems, name) for name in TRANSPORTS[::-1]], ignore_index=True)


def _order(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(name), part) for name, part in rows.groupby("transport", sort=False)]


@style.styled
def shares(rows: pd.DataFrame) -> Figure:
    """Share of problems for which a policy picks the fastest schedule, and what it loses where it does not."""
    evidence, table, parts = style.shown(rows), summary(rows), _order(rows)
    figure, axes = style.canvas(len(parts), 2, sharex="col", height_in=0.9 + 1.45 * len(parts), squeeze=False)
    names, told = list(POLICY), reported(rows["node"].iloc[0], "ficco")
    columns = (("right", "heuristic.hit_fraction_unseen"), ("loss_when_wrong", "heuristic.loss_when_wrong"))
    for line, (transport, part) in zip(axes, parts, strict=True):
        there = table[(table["transport"] == transport) & table["policy"].isin(names)].to_dict("records")
        for axis, (value, claim) in zip(line, columns, strict=True):
            for row in there:
                place, colour = len(names) - 1 - names.index(row["policy"]), COLOUR[row["policy"]]
                low, middle, high = (100 * row[f"{value}{end}"] for end in ("_low", "", "_high"))
                axis.plot([low, high], [place] * 2, color=colour, lw=2)
                axis.plot([middle], [place], color=colour, **{**style.MODELLED, "ms": 7})
                inside = high > 90
                text = {"textcoords": "offset points", "va": "center", "fontsize": 8.5, "weight": "bold"}
                text |= {"ha": "right" if inside else "left", "color": colour}
                number = percent(row[value], 1 if middle < 10 else 0, "")
                axis.annotate(number, (low if inside else high, place), (-6 if inside else 6, 0), **text)
            if told and transport == "dma":
                axis.plot([told[claim].value * 100], [len(names) - 1.45], **style.REPORTED)
                where = {"va": "center", "fontsize": 8, "color": style.GREY}
                axis.text(told[claim].value * 100 + 1.2, len(names) - 1.45, " reported", **where)
            axis.set(ylim=(-0.6, len(names) - 0.3), yticks=[])
        single = part.loc[part["policy"] == "single", "chosen"].iloc[0]
        labels = [POLICY[name] + (f":\n{single}" if name == "single" else "") for name in names]
        line[0].set_yticks(range(len(names)), labels[::-1], fontsize=8)
        line[0].set_title(f"{NAMES[transport]}: picks the fastest")
        line[1].set_title("mean loss when it does not")
    axes[0, 0].set(xlim=(0, 104))
    axes[-1, 0].set_xlabel("share of problems, %")
    axes[-1, 1].set_xlabel("time beyond the fastest, %")
    axes[0, 1].set_xlim(0, axes[0, 1].get_xlim()[1] * 1.12)
    count = rows["problem"].nunique()
    note = "the rule was written in view of the model"
    paper = f"{style.FICCO}; the loss: third-party"
    style.stamp(figure, evidence, style.node_of(rows), f"{count} problems", note, bool(told), paper)
    return figure


@style.styled
def confusion(rows: pd.DataFrame, policy: str = "rule") -> Figure:
    """How many problems have which fastest schedule, and which one the policy takes instead."""
    evidence, parts = style.shown(rows), _order(rows)
    names = list(SCHEDULES)
    figure, axes = style.canvas(1, len(parts), sharey=True, height_in=3.7, squeeze=False)
    for axis, (transport, part) in zip(axes[0], parts, strict=True):
        mine = part[part["policy"] == policy]
        # A tie is right whatever exhaustive search names first.
        best = mine["best"].where(~mine["right"], mine["chosen"])
        counts = pd.crosstab(best, mine["chosen"]).reindex(index=names, columns=names, fill_value=0).to_numpy()
        axis.imshow(np.sqrt(counts), cmap="Blues", vmin=0, vmax=np.sqrt(counts.max()) * 1.25, aspect="auto")
        for y, x in np.argwhere(counts):
            look = {"weight": "bold", "color": "#111111"} if y == x else {"color": style.NOT_MEASURED, "weight": "bold"}
            axis.text(x, y, str(counts[y, x]), ha="center", va="center", fontsize=8.5, **look)
        for index in range(len(names)):
            axis.add_patch(Rectangle((index - 0.5, index - 0.5), 1, 1, fill=False, ec=style.GREY, lw=0.8))
        axis.set_xticks(range(len(names)), names, rotation=38, ha="right", rotation_mode="anchor", fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        for label in (*axis.get_xticklabels(), *axis.get_yticklabels()):
            label.set(color=style.SCHEDULE[label.get_text()], weight="bold")
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set(title=f"{NAMES[transport]}: right on {mine['right'].mean():.0%}", xlabel="chosen")
    axes[0, 0].set_ylabel("fastest")
    note = f"{POLICY[policy]}; off the diagonal it is wrong"
    style.stamp(figure, evidence, style.node_of(rows), f"{rows['problem'].nunique()} problems", note)
    return figure


def finding(rows: pd.DataFrame) -> style.Finding:
    """Right and lost, by transport, beside the reported values and the other policies."""
    style.shown(rows)
    table = summary(rows).set_index(["transport", "policy"])
    told = reported(rows["node"].iloc[0], "ficco")
    parts = []
    for transport, part in _order(rows):
        rule, single = table.loc[(transport, "rule")], table.loc[(transport, "single")]
        text = (
            f"**{NAMES[transport]}: right on {rule['right']:.1%}** of {rule['problems']} problems "
            f"({rule['right_low']:.0%} to {rule['right_high']:.0%}), within 1 % of the fastest on {rule['near']:.1%}"
        )
        if rule["right"] < 1:
            text += (
                f"; where it is wrong it loses {percent(rule['loss_when_wrong'], 1, '')} on average, at most "
                f"{percent(rule['loss_most'], 1, '')}"
            )
        if told and transport == "dma":
            hits, lost = (told[f"heuristic.{name}"].value for name in ("hit_fraction_unseen", "loss_when_wrong"))
            verdict = "both reached" if rule["meets"] else "**not both reached**"
            text += (
                f" (reported, of four schedules and other problems: {hits:.0%} right, about {lost:.0%} lost; {verdict}"
                ", but by a rule that was written in view of this model)"
            )
        name = part.loc[part["policy"] == "single", "chosen"].iloc[0]
        text += (
            f". Speedup over serial {rule['speedup']:.2f}x, of exhaustive search "
            f"{table.loc[(transport, 'exhaustive'), 'speedup']:.2f}x, of always {name} {single['speedup']:.2f}x"
        )
        parts.append(text)
    return style.Finding(f"({rows['evidence'].iloc[0]}) " + ".  \n".join(parts) + "." + elsewhere(rows["node"].iloc[0]))


@passes_on
def finding_measured(rows: pd.DataFrame) -> style.Finding:
    """The heuristic against measured times: right, near, lost, and where the intervals leave it open.

    ``rows``: table ``ficco`` as :func:`c3lib.figures.ficco_measured.read` gives it.
    """
    style.shown(rows)
    scored = score_measured(load_node(rows["node"].iloc[0]), rows[rows["lanes"] == "both"])
    table = summary(scored).set_index(["transport", "policy"])
    parts = []
    for transport, part in _order(scored):
        rule, mine = table.loc[(transport, "rule")], part[part["policy"] == "rule"]
        wrong = mine[~mine["right"]]
        text = (
            f"**{NAMES[transport]}: right on {int(mine['right'].sum())} of {len(mine)}** problems, within 1 % of the "
            f"fastest on {int(mine['near'].sum())}; speedup over serial {rule['speedup']:.2f}x, of exhaustive search "
            f"{table.loc[(transport, 'exhaustive'), 'speedup']:.2f}x, of always "
            f"{part.loc[part['policy'] == 'single', 'chosen'].iloc[0]} "
            f"{table.loc[(transport, 'single'), 'speedup']:.2f}x"
        )
        for row in wrong.sort_values("loss", ascending=False).itertuples():
            doubt = ", intervals overlap" if row.undecided else ""
            text += f"; {row.problem}: {row.chosen} for {row.best}, {percent(row.loss, 1, '')} lost{doubt}"
        parts.append(text)
    return style.Finding("(measured) " + ".  \n".join(parts) + ".")


def misses(rows: pd.DataFrame, count: int = 10) -> pd.DataFrame:
    """The ``count`` choices of the heuristic that lose most."""
    style.shown(rows)
    wrong = rows[(rows["policy"] == "rule") & ~rows["right"]].nlargest(count, "loss")
    return wrong[["node", "evidence", "transport", "problem", "m", "n", "k", "chosen", "best", "loss"]]


def unsure_rows(node: str, count: int = 30, seed: int = 1, transport: str = "dma") -> pd.DataFrame:
    """Share right and loss of each policy where the node is not as its file says: constants off by up to a spread.

    The rule decides by the file's constants, the model simulates :data:`DRAWS` nodes as they might be. One row a spread
    and policy; ``problems`` counts each once a node.
    """
    machine = load_node(node)
    problems = random_problems(count, machine, seed)
    found = []
    for spread in SPREADS:
        draws = range(DRAWS if spread else 1)
        scored = [score(machine, problems, transport, truth=misjudged(machine, spread, draw)) for draw in draws]
        found.append(summary(pd.concat(scored, ignore_index=True)).assign(spread=spread))
    return pd.concat(found, ignore_index=True)


@style.styled
def unsure(rows: pd.DataFrame) -> Figure:
    """The heuristic where its constants are wrong: share right, and mean loss over all problems."""
    evidence = style.shown(rows)
    figure, axes = style.canvas(1, 2, height_in=2.9)
    for axis, column in zip(axes, ("right", "loss"), strict=True):
        for policy in ("rule", "by_shape", "single"):
            part = rows[rows["policy"] == policy].sort_values("spread")
            x, colour = part["spread"] * 100, COLOUR[policy]
            axis.plot(x, part[column] * 100, color=colour, marker="o", ms=4, label=POLICY[policy])
            axis.fill_between(
                x, part[f"{column}_low"] * 100, part[f"{column}_high"] * 100, color=colour, alpha=0.15, lw=0
            )
        axis.set(xlabel="constants off by up to, %")
    axes[0].set(title="picks the fastest", ylabel="share of problems, %", ylim=(0, 103))
    axes[1].set(title="mean loss", ylabel="time beyond the fastest, %")
    axes[1].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)
    about = rows.iloc[0]
    note = f"{NAMES[about['transport']]}; {DRAWS} nodes a spread that are not as the file says, by which it chooses"
    style.stamp(figure, evidence, about["node"], f"{about['problems']} problems", note)
    return figure


def finding_unsure(rows: pd.DataFrame) -> style.Finding:
    """What is left of the score where constants are off."""
    style.shown(rows)
    mine = rows[rows["policy"] == "rule"].sort_values("spread")
    told = ", ".join(f"{row.right:.0%} at {row.spread:.0%}" for row in mine.itertuples())
    last = mine.iloc[-1]
    return style.Finding(
        f"({rows['evidence'].iloc[0]}) With constants off by up to a spread, the heuristic picks the fastest on {told}."
        f" At {last['spread']:.0%} it loses {percent(last['loss'], 1, '')} on average."
    )
