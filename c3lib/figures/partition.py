"""Figure 8 of arXiv 2412.14335 and its rules: priority, partition, and how often a rule names the best choice."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from c3lib.figures import style
from c3lib.figures.reported import calibrated, elsewhere, reported
from c3lib.hardware import load_node
from c3lib.heuristics import cu_split, score_order, score_split, score_withhold
from c3lib.metrics import fraction_of_ideal, ideal_speedup, realised_speedup
from c3lib.model.contention import predict
from c3lib.model.kernels import batch
from c3lib.strategy import strategy
from c3lib.suites import load_suite, random_suite

CU_STRATEGIES = ("c3_base", "c3_sp", "c3_rp", "c3_sp_rp")
BY_RULE = "c3_rp by rule"
"""``c3_rp`` with the split that the paper's heuristic names, instead of the best of a sweep."""

RULES = {"split": "CU split (c3_rp)", "order": "launch order (c3_sp)", "withhold": "CUs withheld (conccl_rp)"}
RULE_COLOUR = {
    "split": style.STRATEGY["c3_rp"],
    "order": style.STRATEGY["c3_sp"],
    "withhold": style.STRATEGY["conccl_rp"],
}
RANDOM = 300

HELD_OUT_SEED = 2026
"""Of the random scenarios: not looked at while any rule was written."""


def with_rule(rows: pd.DataFrame) -> pd.DataFrame:
    """Fractions of ideal of the CU-driven strategies (medians over repetitions), and of ``c3_rp`` by the rule.

    The rule's split is timed by the model, so its rows are added to modelled rows only.
    """
    keys = ["node", "evidence", "verified", "scenario", "strategy"]
    chosen = rows[rows["strategy"].isin(CU_STRATEGIES)]
    table = chosen.groupby(keys, sort=False, as_index=False)["fraction_of_ideal"].median()
    node, suite = rows["node"].iloc[0], rows["suite"].iloc[0]
    if set(rows["evidence"]) != {"modelled"}:
        return table
    machine = load_node(node)
    scenarios = load_suite(suite, machine.ranks)
    gemm, collective = batch(scenarios, machine)
    result = predict(gemm, collective, machine, strategy("c3_rp"), cus=cu_split(scenarios, machine))
    alone = (result.gemm_alone_s, result.collective_alone_s)
    fraction = fraction_of_ideal(realised_speedup(*alone, result.time_s), ideal_speedup(*alone))
    frame = pd.DataFrame({"scenario": [item.name for item in scenarios], "fraction_of_ideal": fraction})
    frame = frame.assign(node=node, evidence="modelled", verified=False, strategy=BY_RULE)
    return pd.concat([table, frame], ignore_index=True)


@style.styled
def distribution(table: pd.DataFrame) -> Figure:
    """Fig. 8: fraction of ideal of each scenario under each CU-driven strategy, means beside the reported ones."""
    import seaborn

    evidence, node = style.shown(table), table["node"].iloc[0]
    known, told = reported(node), calibrated(node) if evidence == "modelled" else set()
    order = [name for name in ("c3_base", "c3_sp", "c3_rp", BY_RULE, "c3_sp_rp") if name in table["strategy"].values]
    colours = {**style.STRATEGY, BY_RULE: style.STRATEGY["c3_rp"]}
    figure, axis = style.canvas(height_in=3.9)
    seaborn.swarmplot(
        table, x="strategy", y="fraction_of_ideal", order=order, hue="strategy", palette=colours, size=3.6, alpha=0.6,
        legend=False, ax=axis, warn_thresh=1,
    )  # fmt: skip
    labels = {
        "c3_base": "c3_base\n",
        "c3_sp": "c3_sp\n",
        "c3_rp": "c3_rp\n(oracle)",
        "c3_sp_rp": "c3_sp_rp\n(oracle)",
        BY_RULE: "c3_rp\n(rule)",
    }
    ticks = []
    for place, name in enumerate(order):
        mean = table.loc[table["strategy"] == name, "fraction_of_ideal"].mean()
        axis.plot([place - 0.3, place + 0.3], [mean, mean], color=colours[name], lw=3, zorder=4)
        value = known.get(f"fraction_of_ideal.{name}")
        ticks.append(f"{labels.get(name, name)}\nmean {mean:.2f}" + "*" * (f"fraction_of_ideal.{name}" in told))
        if value is not None:
            axis.plot([place + 0.38], [value.value], zorder=5, **style.REPORTED)
    axis.set_xticks(range(len(order)), ticks)
    axis.axhline(1, color="#444444", lw=0.9, ls=(0, (4, 2)))
    axis.text(len(order) - 0.5, 1, "ideal", ha="right", va="bottom", color="#444444")
    axis.axhline(0, color=style.FAINT, lw=0.9, zorder=0)
    axis.set(xlabel="", ylabel="fraction of ideal speedup", xlim=(-0.5, len(order) - 0.45))
    note = "bar: mean" + (", * calibrated" if told and known else "")
    style.stamp(figure, evidence, node, f"{table['scenario'].nunique()} scenarios", note, bool(known))
    return figure


@style.labelled
def finding_distribution(table: pd.DataFrame) -> style.Finding:
    """Whether combining priority and partition gains anything, and how far the rule is behind the oracle."""
    means = table.groupby("strategy")["fraction_of_ideal"].mean()
    node = table["node"].iloc[0]
    known = reported(node)
    dual = means["c3_sp_rp"] - max(means["c3_sp"], means["c3_rp"])
    nothing = "**adds something**" if dual >= 0.01 else "**costs**" if dual <= -0.01 else "adds nothing to speak of"
    text = f"Priority reaches {means['c3_sp']:.2f} of ideal, the best partition {means['c3_rp']:.2f}; "
    text += f"combining them {nothing} ({dual:+.3f}" + (", reported: no gain)." if known else ").")
    spread = np.ptp(means[["c3_sp", "c3_rp", "c3_sp_rp"]])
    text += f" The three lie within {spread:.3f} of each other."
    if BY_RULE in means:
        behind = means["c3_rp"] - means[BY_RULE]
        text += " `c3_rp` is an oracle: with the split that the rule names it reaches "
        text += f"{means[BY_RULE]:.2f}, {behind:.3f} less."
    worse = table[(table["strategy"] == "c3_base") & (table["fraction_of_ideal"] < 0.05)]
    text += (
        f" Under c3_base {len(worse)} scenarios gain less than a twentieth of what is possible." if len(worse) else ""
    )
    return style.Finding(text + elsewhere(node))


def score_rows(node: str, suite: str = "conccl30", count: int = RANDOM, seed: int = HELD_OUT_SEED) -> pd.DataFrame:
    """Each rule on each scenario of a suite and on ``count`` random ones it has not seen: choice, best, loss."""
    machine = load_node(node)
    cases = {suite: load_suite(suite, machine.ranks), f"{count} random": random_suite(count, machine, seed)}
    score = {"split": score_split, "order": score_order, "withhold": score_withhold}
    frames = [
        score[rule](scenarios, machine).assign(rule=rule, cases=label)
        for label, scenarios in cases.items()
        for rule in RULES
    ]
    return pd.concat(frames, ignore_index=True).assign(node=node, evidence="modelled")


@style.styled
def losses(rows: pd.DataFrame) -> Figure:
    """How often each rule names the best choice (height at 0), and how far behind it is otherwise (to the right)."""
    evidence, node = style.shown(rows), rows["node"].iloc[0]
    known, cases = reported(node), list(dict.fromkeys(rows["cases"]))
    figure, axes = style.canvas(1, len(cases), sharey=True, sharex=True, squeeze=False)
    far = max(2.0, rows["loss"].max() * 100)
    for axis, label in zip(axes[0], cases, strict=True):
        lines = []
        for rule in RULES:
            part = rows[(rows["cases"] == label) & (rows["rule"] == rule)]
            loss = np.sort(part["loss"].clip(lower=0) * 100)
            reach = np.r_[0, loss, far * 1.05]
            share = np.r_[
                part["hit"].mean(), np.maximum(np.arange(1, len(loss) + 1) / len(loss), part["hit"].mean()), 1
            ]
            axis.step(reach, share, where="post", color=RULE_COLOUR[rule])
            lines.append((rule, f"{RULES[rule]}\n{int(part['hit'].sum())} of {len(part)}, worst {loss[-1]:.1f} %"))
        for place, (rule, text) in enumerate(reversed(lines)):
            axis.text(
                0.98,
                0.04 + 0.14 * place,
                text,
                color=RULE_COLOUR[rule],
                ha="right",
                va="bottom",
                weight="bold",
                fontsize=8,
                transform=axis.transAxes,
            )
        if known and label == cases[0]:
            hits, most = known["rp_heuristic.hit_fraction"].value, known["rp_heuristic.max_loss"].value * 100
            axis.plot([0, most], [hits, 1], clip_on=False, zorder=6, **style.REPORTED)
            low = rows.loc[(rows["cases"] == label) & (rows["rule"] == "split"), "hit"].mean()
            text = (
                f"reported for the CU split:\n{known['rp_heuristic.hits'].value:.0f} of 30, at most {most:g} % behind"
            )
            axis.text(0.02, min(hits, low) - 0.04, text, color=style.GREY, fontsize=8, va="top")
        axis.set(title=label, xlabel="time behind the best choice (%)", ylim=(0, 1.03), xlim=(0, far * 1.05))
    axes[0, 0].set_ylabel("share of scenarios at most so far behind")
    axes[0, 0].set_xscale("symlog", linthresh=0.1)
    axes[0, 0].set_xticks(
        ticks := [tick for tick in (0, 0.1, 1, 10, 100) if tick <= far], [f"{tick:g}" for tick in ticks]
    )
    style.stamp(figure, evidence, node, "rules scored against the exhaustive sweep", reported=bool(known))
    return figure


def finding_losses(rows: pd.DataFrame) -> style.Finding:
    """Hits and the worst miss of each rule, on the suite and on unseen scenarios; whether the reported score holds."""
    node, parts = rows["node"].iloc[0], []
    known = reported(node)
    for (label, rule), part in rows.groupby(["cases", "rule"], sort=False):
        worst = part.loc[part["loss"].idxmax()]
        text = f"{label}, {RULES[rule]} ({part['evidence'].iloc[0]}): right in {int(part['hit'].sum())} of {len(part)}"
        if worst["loss"] > 0:
            text += f", at worst {worst['loss']:.1%} behind ({worst['scenario']}: "
            text += f"{worst['chosen']} instead of {worst['best']})"
        if known and rule == "split":
            good = part["hit"].mean() >= known["rp_heuristic.hit_fraction"].value
            close = worst["loss"] <= known["rp_heuristic.max_loss"].value
            verdict = {True: "holds", False: "**does not hold**"}
            text += f"; the reported share of hits {verdict[bool(good)]}, the reported bound {verdict[bool(close)]}"
        parts.append(f"- {text}")
    return style.Finding("\n".join(parts) + ("\n\n" + elsewhere(node).strip() if elsewhere(node) else ""))
