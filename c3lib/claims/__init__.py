"""Reported beside modelled: ``context`` and ``finer`` are what claims are evaluated on, ``evaluators`` (ConCCL) and
``ficco`` answer one each, ``table`` judges.
"""

from c3lib.claims.evaluators import Evaluator
from c3lib.claims.table import (
    COLUMNS,
    EVALUATORS,
    OTHER_MACHINE,
    PAPERS,
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
    "PAPERS",
    "Evaluator",
    "calibrated_on",
    "claims_table",
    "count",
    "evaluator",
    "load_claims",
    "require_claim",
]
