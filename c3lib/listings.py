"""The text that each ``c3`` command prints: tidy values in, a plain table and its notes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from c3lib.hardware import Node
from c3lib.terminal import number, paragraph, table
from c3lib.workload import format_size

if TYPE_CHECKING:
    import pandas as pd

    from c3lib.transfer import Proof, TransferPlan

WIDE = 130
"""Width of the listings that carry names and sources; anything narrower would cut them to ribbons."""

ORACLE = "* oracle: the best CU split of a sweep, known only afterwards."


def of_nodes(nodes: Sequence[Node]) -> str:
    """One line a node."""
    header = ("node", "ranks", "CUs", "memory GB/s", "links", "what it is")
    return table(
        header,
        [(n.name, n.ranks, n.gpu.cus, f"{n.gpu.hbm_peak_gbs:g}", n.topology, n.title) for n in nodes],
    )


def of_constants(node: Node) -> str:
    """Every constant of a node."""
    header = ("constant", "value", "unit", "evidence", "source")
    rows = [(c.key, f"{c.value:g}", c.unit, c.evidence, c.source) for c in node.constants.values()]
    return f"{node.name}: {node.title}\n\n{table(header, rows, WIDE)}"


def of_derived(title: str, constants: Sequence[Mapping[str, Any]]) -> str:
    """Constants that measured tables give, beside the file's."""
    header = ("constant", "derived", "in the file", "change", "unit", "file's evidence", "from")
    rows = []
    for row in constants:
        change = None if row["change"] is None else f"{row['change']:+.1%}"
        values = (f"{row['derived']:g}", f"{row['in_file']:g}", change, row["unit"])
        rows.append((row["key"], *values, row["evidence"], row["source"]))
    note = "A constant that is not listed cannot be told from these tables: the file's stands."
    return f"{title}\n\n{table(header, rows, WIDE + 30)}\n\n{note}"


def of_suite(title: str, scenarios: Sequence[Mapping[str, Any]]) -> str:
    """Scenarios with the time of each kernel alone."""
    header = ("scenario", "GEMM", "bound", "collective", "size", "GEMM ms", "coll. ms", "ideal", "class")
    rows = []
    for row in scenarios:
        times = (f"{row['gemm_alone_s'] * 1e3:.3f}", f"{row['collective_alone_s'] * 1e3:.3f}", f"{row['ideal']:.2f}")
        what = (row["scenario"], row["gemm"], row["bound"], row["collective"], format_size(row["total_bytes"]))
        rows.append((*what, *times, row["length_class"]))
    return f"{title}\n\n{table(header, rows, WIDE)}"


def of_summary(title: str, means: pd.DataFrame) -> str:
    """Means of each strategy over a suite."""
    header = ("strategy", "of ideal", "95 % interval", "of mean ideal", "mean speedup", "best", "scenarios")
    rows = []
    for row in means.itertuples():
        of_ideal = (number(row.fraction_of_ideal, ".3f"), f"{row.low:.3f} to {row.high:.3f}")
        speedups = (number(row.fraction_of_means, ".3f"), f"{row.speedup:.3f}", f"{row.speedup_max:.3f}")
        rows.append((row.strategy + (" *" if row.oracle else ""), *of_ideal, *speedups, row.scenarios))
    notes = ["of ideal: mean of (S - 1) / (I - 1) over the scenarios; the interval: how much their choice matters."]
    notes += [ORACLE] if means["oracle"].any() else []
    return "\n".join([title, "", table(header, rows), *notes])


def of_claims(title: str, claims: pd.DataFrame, count: Mapping[str, int]) -> str:
    """Claims with their verdicts, then why those that are not met are not, then how many are."""
    header = ("claim", "reported", "modelled", "deviation", "unit", "status", "verdict")
    rows = []
    for row in claims.itertuples():
        off = "0" if abs(row.deviation) < 1e-9 else number(row.deviation, "+.2g")
        values = (row.reported, number(row.modelled), off)
        rows.append((row.id.removeprefix("conccl."), *values, row.unit, row.status, row.verdict))
    unmet = claims[claims["verdict"].isin(("missed", "not covered"))]
    notes = [paragraph(f"{row.verdict}: {row.id.removeprefix('conccl.')}. {row.why}") for row in unmet.itertuples()]
    total = paragraph(
        f"Of {count['predicted']} predicted claims {count['reproduced']} are reproduced within their tolerance "
        f"(restating another of them: {count['restated']}); {count['calibrated']} more set a constant or "
        f"a rule, or follow from one that did; {count['input']} are definitions and inputs."
    )
    if count["other_machine"]:
        total = paragraph(
            f"{count['other_machine']} claims are about another machine than this: the numbers say how the two differ, "
            "and none is reproduced or missed."
        )
    return "\n".join([title, "", table(header, rows), "", *notes, "", total])


def of_claim(about: Mapping[str, Any]) -> str:
    """All that is known of one claim."""
    shown = {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in about.items()}
    return table(("field", "value"), [item for item in shown.items() if item[1] not in ("", "nan")])


def of_params(title: str, node: Node, effects: pd.DataFrame) -> str:
    """Constants that modelled times depend on, most influential first, each with the headline that it moves most."""
    rows = []
    for key, part in effects.groupby("key", sort=False):
        reach = part[["low", "high"]].sub(part["base"], axis=0).abs().max(axis=1)
        most, constant = part.loc[reach.idxmax()], node.constants[str(key)]
        moved = f"{most['metric']} {most['low']:.3f} to {most['high']:.3f}"
        source = constant.source + (f" [calibrated on {constant.calibrated_on}]" if constant.calibrated_on else "")
        row = (key, f"{constant.value:g}", constant.unit, constant.evidence, moved if reach.max() > 0 else None, source)
        rows.append((reach.max(), row))
    header = ("constant", "value", "unit", "evidence", "moves most", "source")
    return f"{title}\n\n{table(header, [row for _, row in sorted(rows, key=lambda item: -item[0])], WIDE)}"


def of_plan(plan: TransferPlan, proof: Proof | None) -> str:
    """The copies that one rank issues, and the outcome of the byte proof."""
    header = ("step", "engine", "from", "offset", "to", "offset", "bytes")
    keys = ("step", "engine", "src_rank", "src_offset", "dst_rank", "dst_offset", "nbytes")
    mine = [row for row in plan.to_rows() if row["issuer"] == 0 and not row["local"]]
    over_links = format_size(plan.remote_nbytes)
    title = f"{plan}: {len(plan)} copies in {plan.steps} step{'s' * (plan.steps != 1)}, {over_links} over links"
    text = f"{title}\n\nIssued by rank 0:\n\n{table(header, [[row[key] for key in keys] for row in mine])}"
    if proof is None:
        return text
    if not proof.verified:
        return f"{text}\n\nProof: WRONG: {proof.first_bad}"
    control = "with one copy dropped the check fails, as it must" if proof.control_fired else "no copy to drop"
    return f"{text}\n\nProof: every byte is right; {control}."


def written(path: Path, rows: int) -> str:
    """What was written where."""
    return f"{rows} rows in {path}, their provenance in {path}.json"


def of_judgement(
    title: str,
    scores: pd.DataFrame,
    verdicts: Sequence[Mapping[str, Any]],
    predicted: Mapping[str, Any] | None = None,
) -> str:
    """Errors of the model beside those of the naive rules, group by group, for each way to judge.

    ``predicted``: how a prediction made before the run turned out (:func:`c3lib.predicted.kept`).
    """
    from c3lib.judge import WAYS

    header = (
        "group",
        "cases",
        "model",
        "95 % interval",
        "median",
        "p90",
        "bias",
        "max(Tg,Tc)",
        "Tg+Tc",
        "model's worst",
    )
    parts = [title]
    for way, says in WAYS.items():
        rows = []
        for _, group in scores[scores["way"] == way].groupby(["by", "group"], sort=False):
            by = group.set_index("predictor")
            of = by.loc["model"]
            spread = (
                f"{of['low']:.1%} to {of['high']:.1%}" if of["scenarios"] > 1 else "one scenario",
                f"{of['median']:.1%}",
                f"{of['p90']:.1%}",
                f"{of['bias']:+.1%}",
            )
            naive = (f"{by.loc['max', 'mean']:.1%}", f"{by.loc['sum', 'mean']:.1%}")
            worst = f"{of['worst']:.0%}: {of['worst_case']}"
            rows.append((of["group"], of["configurations"], f"{of['mean']:.1%}", *spread, *naive, worst))
        parts.append(f"{says[0].upper()}{says[1:]}\n\n{table(header, rows, WIDE + 30)}")
    for row in verdicts:
        met = "met" if row["met"] else "missed"
        parts.append(
            f"Target, isolated times given, {row['group']}: at most {row['target']:.0%}; {row['mean']:.1%}: {met}."
        )
    if predicted:
        parts.append(
            f"Those are errors of the model as it is now. As it was before the run (commit {predicted['commit'][:7]}), "
            f"from constants alone, it missed the suite by {predicted['mean']:.1%}; aimed at: at most "
            f"{predicted['target']:.0%}; {'met' if predicted['met'] else 'missed'}."
        )
    return "\n\n".join(parts)


def of_overlap(title: str, ways: pd.DataFrame) -> str:
    """Each way to move a collective's bytes: its thread blocks, its fraction of ideal by bound and order, what ran."""
    asked = {
        f"{bound}-bound, {first} first": f"{short} {order}"
        for bound, short in (("compute", "CB"), ("memory", "MB"))
        for first, order in (("gemm", "behind"), ("transfer", "ahead"))
    }
    columns = [name for name in asked if name in ways]
    parts = [title]
    for kind, part in ways.groupby("collective", sort=False):
        rows = []
        for row in part.to_dict("records"):
            blocks = "none" if row["engines_only"] else "waits" if row["blocks"] == "0" else row["blocks"]
            rows.append((row["name"], blocks, *(number(row[name], ".2f") for name in columns), row["ran"]))
        parts.append(table((str(kind), "on SMs", *(asked[name] for name in columns), "ran"), rows, WIDE))
    note = (
        "Fractions of ideal, launched behind or ahead of compute-bound (CB) and memory-bound (MB) GEMMs, their means: "
        "1 hides the shorter kernel wholly, 0 is one after the other; against the time that the same way takes alone. "
        "On SMs: thread blocks; none: it ended while every SM was held; waits: no blocks, but a copy that waited for "
        "SMs. In place: a rank's own shard lies where it belongs."
    )
    return "\n\n".join([*parts, paragraph(note, WIDE)])
