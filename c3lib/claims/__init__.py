"""Reported beside modelled: ``context`` what claims are evaluated on, ``evaluators`` one for each claim, ``table`` the
judgement.
"""

from c3lib.claims.evaluators import EVALUATORS, Evaluator
from c3lib.claims.table import (
    COLUMNS,
    OTHER_MACHINE,
    calibrated_on,
    claims_table,
    count,
    evaluator,
    load_claims,
    require_claim,
)

__all__ = [
    "COLUMNS",
    "EVALUATORS",
    "OTHER_MACHINE",
    "Evaluator",
    "calibrated_on",
    "claims_table",
    "count",
    "evaluator",
    "load_claims",
    "require_claim",
]
