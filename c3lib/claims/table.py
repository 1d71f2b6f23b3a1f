"""Reported beside modelled: what a paper says, what the model gives for the same quantity, and whether they agree.

Sizes reported in MB without a base are compared in MiB; the two differ by 5 %.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from c3lib.claims import evaluators, ficco
from c3lib.claims.context import Context
from c3lib.claims.evaluators import Evaluator
from c3lib.errors import unknown
from c3lib.files import DATA
from c3lib.hardware import PAPER_NODE, Node, load_node
from c3lib.schema import CLAIMS, read_csv

COLUMNS = (
    "id",
    "figure",
    "quantity",
    "reported",
    "modelled",
    "deviation",
    "tolerance",
    "unit",
    "status",
    "verdict",
    "why",
    "confidence",
    "source",
)


PAPERS = ("conccl", "ficco")
"""Whose claims the model is held to."""

EVALUATORS = {f"conccl.{name}": how for name, how in evaluators.EVALUATORS.items()} | ficco.EVALUATORS
"""By claim id."""

OTHER_MACHINE = "other machine"
"""Verdict on any other node: the paper says nothing about it."""


def load_claims() -> pd.DataFrame:
    """Every reported number, as in :data:`c3lib.schema.CLAIMS`. Raises :class:`C3Error` for a damaged file."""
    return read_csv(DATA / "reported" / "claims.csv", CLAIMS)


def claims_table(node: str | Node = PAPER_NODE, suite: str = "conccl30") -> pd.DataFrame:
    """Every claim of :data:`PAPERS` beside what the model gives for it; columns :data:`COLUMNS`, one row a claim.

    ``suite`` is what claims about ConCCL are evaluated on; those about FiCCO have a set of problems of their own.

    ``modelled`` is NaN and ``verdict`` ``"not covered"`` where there is no evaluator or the suite has no scenario of
    the kind asked for. ``deviation`` is modelled minus reported, or the distance from a reported interval; both in
    ``unit``.

    Raises:
        C3Error: unknown node or suite, damaged data.
    """
    node = load_node(node) if isinstance(node, str) else node
    claims = load_claims()
    claims = claims[claims["paper"].isin(PAPERS)]
    context = Context(node, suite, dict(zip(claims["id"], claims["value"], strict=True)))
    used = calibrated_on(node)
    rows = [_judge(claim, context, used) for claim in claims.to_dict(orient="records")]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def calibrated_on(node: Node) -> set[str]:
    """Ids of the claims that set a constant of this node, as its file says."""
    return {claim for constant in node.constants.values() for claim in (constant.calibrated_on or "").split()}


def evaluator(claim_id: str) -> Evaluator:
    """The evaluator of a claim. Raises :class:`C3Error` for an id that has none."""
    key = claim_id if claim_id in EVALUATORS else f"conccl.{claim_id}"
    if key not in EVALUATORS:
        raise unknown("claim", claim_id, EVALUATORS)
    return EVALUATORS[key]


def count(table: pd.DataFrame) -> dict[str, int]:
    """How many claims there are, by status and verdict. Of the ``predicted``, ``reproduced`` are within tolerance;
    ``restated`` of those only say another claim in other words."""
    predicted = table[table["status"] == "predicted"]
    hits = predicted[predicted["verdict"] == "reproduced"]
    restated = [name for name in hits["id"] if set(evaluator(name).follows_from) & set(hits["id"])]
    return {
        "claims": len(table),
        "predicted": len(predicted),
        "reproduced": len(hits),
        "restated": len(restated),
        "missed": int((predicted["verdict"] == "missed").sum()),
        "calibrated": int((table["status"] == "calibrated").sum()),
        "input": int((table["status"] == "input").sum()),
        "not_covered": int((predicted["verdict"] == "not covered").sum()),
        "other_machine": int((predicted["verdict"] == OTHER_MACHINE).sum()),
    }


def _judge(claim: dict[str, Any], context: Context, used: set[str]) -> dict[str, Any]:
    how = EVALUATORS.get(claim["id"])
    row = {name: claim[name] for name in ("id", "figure", "quantity", "unit", "confidence", "source")}
    row |= {"reported": _reported(claim), "status": "predicted"}
    if how is None:
        nothing = {"modelled": math.nan, "deviation": math.nan, "tolerance": math.nan}
        return row | nothing | {"verdict": "not covered", "why": "No evaluator yet."}
    if how.is_input:
        row["status"] = "input"
    elif how.in_view or used & {claim["id"], *how.follows_from}:
        row["status"] = "calibrated"
    modelled = float(how.value(context))
    if math.isnan(modelled):
        no_case = f"Suite {context.suite} on {context.node.name} has no case to evaluate it on."
        verdict, why = "not covered", how.why if how.needs_device else no_case
    elif _agrees(how, claim, modelled):
        verdict, why = ("reproduced" if row["status"] == "predicted" else row["status"]), how.remark
    else:
        verdict, why = "missed", f"{how.why} {how.remark}".strip()
    if context.node.name != PAPER_NODE and (row["status"] != "input" or verdict == "missed"):
        # A number of another machine that happens to agree is no reproduction, and one that does not is no miss.
        row["status"] = "input" if how.is_input else "predicted"
        verdict, why = OTHER_MACHINE, f"Reported for 8 MI300X GPUs; {context.node.name} is another machine."
    return row | {
        "modelled": modelled,
        "deviation": _deviation(claim, modelled),
        "tolerance": how.tolerance,
        "verdict": verdict,
        "why": why,
    }


def _agrees(how: Evaluator, claim: dict[str, Any], modelled: float) -> bool:
    if how.rule == "above":
        return modelled > claim["low"]
    deviation = _deviation(claim, modelled)
    slack = how.tolerance + 1e-9  # a border belongs to the inside, whatever rounding says
    if how.rule == "at least":
        return deviation >= -slack
    return deviation <= slack if how.rule == "at most" else abs(deviation) <= slack


def _deviation(claim: dict[str, Any], modelled: float) -> float:
    """Modelled minus reported; for a claim that is an interval or a bound, how far outside it (0 inside)."""
    if not math.isnan(claim["value"]):
        return modelled - claim["value"]
    low = -math.inf if math.isnan(claim["low"]) else claim["low"]
    high = math.inf if math.isnan(claim["high"]) else claim["high"]
    if math.isnan(modelled):
        return math.nan
    return modelled - min(max(modelled, low), high)


def _reported(claim: dict[str, Any]) -> str:
    def text(value: float) -> str:
        short = f"{value:.0f}" if claim["unit"] in ("count", "MB", "bytes") else f"{value:.2f}"
        return short if float(short) == value else f"{value:g}"

    if not math.isnan(claim["value"]):
        return text(claim["value"])
    if math.isnan(claim["high"]):
        return f"above {text(claim['low'])}"
    if math.isnan(claim["low"]):
        return f"up to {text(claim['high'])}"
    return f"{text(claim['low'])} to {text(claim['high'])}"


def require_claim(table: pd.DataFrame, claim_id: str) -> pd.Series:
    """The row of one claim, its id with or without the paper's name. Raises :class:`C3Error` for an unknown one."""
    found = table[table["id"].isin([claim_id, *(f"{paper}.{claim_id}" for paper in PAPERS)])]
    if found.empty:
        raise unknown("claim", claim_id, table["id"])
    return found.iloc[0]
