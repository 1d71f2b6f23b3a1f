"""How the model answers each claim about FiCCO (arXiv 2512.10236), and how far it may be off.

What schedules are, how a rank's share is cut and what decides among schedules is the project's own reconstruction: an
agreement says that it can explain a number, not that it is what was run.
"""

from __future__ import annotations

from c3lib.claims.evaluators import Evaluator
from c3lib.claims.evaluators import as_input as _input

_TARGET = "target of the project: within 0.1"
_IDEAL_WHY = (
    "The paper's definition of ideal is not public. Here it is (Tg + Tc) / max(Tg, Tc), as for ConCCL, and the row "
    "whose two times are most equal comes nearer to 2 than reported. What a schedule could reach without any loss is "
    "less where the exchange is long, as its first piece or its last GEMM overlaps with nothing: docs/finer_grain.md."
)
_PENALTY_WHY = (
    "One peer at a time uses one link of seven, and pieces of these rows are so large that a copy's own cost hides "
    "nothing of it. What was compared with what is not public: the model's shard-level schedule as a whole is slower "
    "than serial by about the reported number."
)
_ON_MODEL = (
    "Against exhaustive search on the model, on random problems. The rule knows the constants that the model simulates "
    "with, and was written with the model in view: what a closed form loses, not how well sizes predict hardware."
)

EVALUATORS: dict[str, Evaluator] = {
    "ficco.potential_speedup": Evaluator(lambda c: c.finer.largest_ideal(), 0.1, _TARGET, _IDEAL_WHY),
    "ficco.speedup.max": Evaluator(
        lambda c: c.finer.largest_chosen(),
        0.1,
        _TARGET,
        "Engines' traffic slows GEMMs on this node by one coefficient that was set on other claims.",
        "Of the project's own heuristic, over serial, DMA engines, the paper's rows as transcribed.",
    ),
    "ficco.heuristic.hit_fraction_unseen": Evaluator(
        lambda c: c.finer.hit_fraction(),
        0.0,
        "at least as many as reported",
        "",
        _ON_MODEL,
        rule="at least",
        in_view=True,
    ),
    "ficco.heuristic.loss_when_wrong": Evaluator(
        lambda c: c.finer.loss_when_wrong(),
        0.0,
        "no loss may exceed what was reported",
        "",
        _ON_MODEL,
        rule="at most",
        in_view=True,
    ),
    "ficco.heuristic.schedules": _input(lambda c: c.finer.schedules()),
    "ficco.p2p_penalty.mesh": Evaluator(
        lambda c: c.finer.largest_penalty(), 0.5, "reported to two digits by a reader of the paper: 0.5", _PENALTY_WHY
    ),
    "ficco.piece_over_shard": _input(lambda c: c.finer.piece_over_shard()),
    "ficco.gemm_rows": _input(lambda c: c.finer.gemm_rows()),
}
"""By claim id."""
