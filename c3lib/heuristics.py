"""The rules of arXiv 2412.14335 for launch order, CU split and CUs withheld, and their score against a sweep.

A rule sees only what the paper gives it: workgroup counts, a slowdown table profiled once per GPU type on isolated
kernels, rooflines at 70 % of peak, and whether a GEMM is memory-bound. No rule looks at a concurrent time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES, Node
from c3lib.model import kernels
from c3lib.model.contention import predict, split_sweep, withheld_cus
from c3lib.strategy import strategy
from c3lib.workload import DTYPE_BYTES, Collective, Gemm, Scenario

if TYPE_CHECKING:
    import pandas

EFFICIENCY = 0.70
"""Share of peak flop/s, memory and link bandwidth that the roofline assumes (the paper's, by its review)."""

TABLE_GEMMS = tuple(
    Gemm(tokens, *matrix) for matrix in ((36864, 12288), (12288, 12288)) for tokens in (32, 64, 2048, 4096)
)
"""GEMMs that the slowdown table is profiled on: matrices of GPT-3 175B's size, in no suite, fixed or random."""

TABLE_BYTES = 10**9
"""Total size of the profiled collectives: not a whole number of MiB, so in no suite either."""

RESOLUTION = 0.01
"""Splits whose estimates differ by less than this share are equal to the rule: no profiled table is more exact."""

TIE = 1e-3
"""Two concurrent times that differ by less than this share are equal: either choice is then a hit."""


@dataclass(frozen=True)
class SplitTable:
    """Slowdowns over the isolated default, by CUs for the collective, ``counts``.

    ``gemm`` has for each bound the slowdown of a GEMM on the CUs that are left, a mean over profiled GEMMs;
    ``collective`` has for each kind the slowdown with so many CUs.
    """

    counts: tuple[int, ...]
    gemm: Mapping[str, NDArray]
    collective: Mapping[str, NDArray]


def launch_order(workgroups: Mapping[str, int]) -> list[str]:
    """Names of kernels in the order to launch them: ascending workgroup count, equal ones as given.

    So the collective gets its CUs before the GEMM floods the dispatcher.
    """
    return sorted(workgroups, key=lambda name: workgroups[name])


def candidates(node: Node) -> tuple[int, ...]:
    """CUs for the collective that the split rule chooses from: the sweep's without 0.

    The paper's counts start at the smallest partition. Nor could the rule judge 0: in a table of isolated kernels no
    partition costs nothing, so it would always win.
    """
    return tuple(count for count in split_sweep(node) if count > 0)


def split_table(node: Node) -> SplitTable:
    """The slowdown table of a node, from isolated curves alone; once per GPU type."""
    counts = candidates(node)
    table = {}
    for bound in ("compute", "memory"):
        chosen = [gemm for gemm in TABLE_GEMMS if gemm.bound(node.gpu) == bound]
        if not chosen:
            raise C3Error(f"{node.name}: no GEMM of the slowdown table is {bound}-bound with ridge {node.gpu.ridge:g}")
        m, n, k = ([getattr(gemm, side) for gemm in chosen] for side in "mnk")
        gemms = kernels.gemm_batch(m, n, k, [DTYPE_BYTES[gemm.dtype] for gemm in chosen], node)
        alone = kernels.gemm_time_s(gemms, node.gpu.cus, node)
        times = [kernels.gemm_time_s(gemms, node.gpu.cus - count, node) for count in counts]
        table[bound] = np.array([(time / alone).mean() for time in times])
    kinds = [Scenario(kind, TABLE_GEMMS[0], Collective(kind, TABLE_BYTES, node.ranks)) for kind in COLLECTIVES]
    collectives = kernels.batch(kinds, node)[1]
    default = kernels.library_field(collectives, node, "default_cus")
    alone = kernels.library_time_s(collectives, node)
    # The library launches its default count, however wide the partition is.
    with_cus = [kernels.cu_collective_time_s(collectives, np.minimum(count, default), node) for count in counts]
    slowed = np.stack([np.where(alone > 0, time / np.maximum(alone, 1e-12), 1.0) for time in with_cus], -1)
    return SplitTable(counts, table, dict(zip(COLLECTIVES, slowed, strict=True)))


def roofline_s(scenario: Scenario, node: Node) -> tuple[float, float]:
    """Times of GEMM and collective in seconds at :data:`EFFICIENCY` of the peak rates."""
    collective = scenario.collective
    return gemm_roofline_s(scenario.gemm, node), float(link_time_s(collective.sent_bytes, collective.ranks, node))


def gemm_roofline_s(gemm: Gemm, node: Node) -> float:
    """Seconds of a GEMM at :data:`EFFICIENCY` of the peak rates."""
    flops = node.gpu.matrix_peak_tflops * 1e12 * 2 / DTYPE_BYTES[gemm.dtype]
    return max(gemm.flops / flops, gemm.nbytes / (node.gpu.hbm_peak_gbs * 1e9)) / EFFICIENCY


def link_time_s(sent_bytes: ArrayLike, ranks: ArrayLike, node: Node) -> NDArray:
    """Seconds that the bytes of one rank take at :data:`EFFICIENCY` of the peak rate of the links in use."""
    peers = np.maximum(1, np.asarray(ranks) - 1)  # a lone rank sends nothing
    links = np.minimum(node.links_used(), peers) if node.topology == "mesh" else node.links_used()
    return np.asarray(sent_bytes) / (links * node.link.peak_gbs * 1e9) / EFFICIENCY


def cu_split(scenarios: Sequence[Scenario], node: Node, table: SplitTable | None = None) -> NDArray:
    """CUs for the collective by the partition rule, ``(scenarios,)``.

    ``argmin over k of max(Tg * s_gemm(N - k), Tc * s_collective(k))`` with ``Tg`` and ``Tc`` from the roofline and the
    slowdowns ``s`` from ``table`` (default: :func:`split_table`). Which of several equally good splits (within
    :data:`RESOLUTION`) the paper takes is not public. Ours is the largest that the library can fill: by the table its
    CUs cost the longer kernel nothing, and a table of isolated kernels cannot show that a collective may need more of
    them beside a GEMM than alone.
    """
    bounds = [scenario.gemm.bound(node.gpu) for scenario in scenarios]
    kinds = [scenario.collective.kind for scenario in scenarios]
    times = np.array([roofline_s(scenario, node) for scenario in scenarios]).reshape(-1, 2)
    return split_for(times[:, 0], times[:, 1], bounds, kinds, node, table)


def split_for(
    gemm_s: NDArray,
    collective_s: NDArray,
    bounds: Sequence[str],
    kinds: Sequence[str],
    node: Node,
    table: SplitTable | None = None,
) -> NDArray:
    """:func:`cu_split` from roofline times, bounds of the GEMMs and kinds of the collectives, each ``(scenarios,)``."""
    table = table or split_table(node)
    counts = np.array(table.counts)
    slowed = lambda times, by, names: times[:, None] * np.array([by[name] for name in names]).reshape(-1, len(counts))  # noqa: E731
    slower = np.maximum(slowed(gemm_s, table.gemm, bounds), slowed(collective_s, table.collective, kinds))
    default = np.array([node.library[kind].default_cus for kind in kinds])
    slower[np.arange(len(counts)) > np.searchsorted(counts, default)[:, None]] = np.inf
    as_good = slower <= slower.min(axis=1, keepdims=True) * (1 + RESOLUTION)
    return counts[len(counts) - 1 - as_good[:, ::-1].argmax(axis=1)]


def score_split(scenarios: Sequence[Scenario], node: Node) -> pandas.DataFrame:
    """The split rule against the sweep of ``c3_rp`` over the same candidates.

    One row a scenario: ``scenario, chosen, best, hit, loss, loss_full, bound, collective``. ``loss`` is the time behind
    the best candidate as a fraction of it, ``loss_full`` likewise with no partition (0) among the choices.
    ``loss`` is 0 below :data:`TIE`, ``loss_full`` is exact.
    """
    counts = split_sweep(node)
    times = _swept_s(scenarios, node, "c3_rp", counts)
    chosen = cu_split(scenarios, node)
    frame = _score(scenarios, node, chosen, counts[1:], times[:, 1:])
    chosen_s = times[np.arange(len(chosen)), np.searchsorted(counts, chosen)]
    frame.insert(5, "loss_full", chosen_s / times.min(-1) - 1)
    return frame


def score_order(scenarios: Sequence[Scenario], node: Node) -> pandas.DataFrame:
    """The launch-order rule against both orders without a partition: ``chosen`` and ``best`` name the first kernel."""
    gemm, collective = kernels.batch(scenarios, node)
    workgroups = kernels.library_field(collective, node, "default_cus")
    firsts = ("collective", "gemm")
    rule = [
        launch_order({"collective": int(mine), "gemm": int(other)})[0]
        for mine, other in zip(workgroups, gemm.workgroups, strict=True)
    ]
    times = [predict(gemm, collective, node, strategy(name)).time_s for name in ("c3_sp", "c3_base")]
    return _score(scenarios, node, np.array(rule, object), firsts, np.stack(times, -1))


def score_withhold(scenarios: Sequence[Scenario], node: Node) -> pandas.DataFrame:
    """The rule of ``conccl_rp`` (a step off memory-bound GEMMs) against a sweep of withheld CUs, 0 included."""
    counts = split_sweep(node)
    rule = withheld_cus(kernels.batch(scenarios, node)[0], node)
    return _score(scenarios, node, rule, counts, _swept_s(scenarios, node, "conccl_rp", counts))


def _swept_s(scenarios: Sequence[Scenario], node: Node, name: str, counts: Sequence[int]) -> NDArray:
    gemm, collective = kernels.batch(scenarios, node)
    how = strategy(name)
    return np.stack([predict(gemm, collective, node, how, cus=count).time_s for count in counts], -1)


def _score(scenarios: Sequence[Scenario], node: Node, chosen: NDArray, choices: Sequence, times: NDArray):
    """Rows of a score: ``times`` has a column for each of ``choices``; where several are best, the first is named."""
    import pandas

    column = np.array([list(choices).index(item) for item in chosen])
    loss = times[np.arange(len(column)), column] / times.min(-1) - 1
    best = [choices[index] for index in times.argmin(-1)]
    hit = loss <= TIE
    return pandas.DataFrame(
        {
            "scenario": [scenario.name for scenario in scenarios],
            "chosen": list(chosen),
            # A tie is no miss: the choice then stands as the best.
            "best": [mine if right else other for mine, right, other in zip(chosen, hit, best, strict=True)],
            "hit": hit,
            "loss": np.where(hit, 0.0, loss),
            "bound": [scenario.gemm.bound(node.gpu) for scenario in scenarios],
            "collective": [scenario.collective.kind for scenario in scenarios],
        }
    )
