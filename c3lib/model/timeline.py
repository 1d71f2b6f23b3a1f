"""Who ran when, at what rate, limited by what: the event loop's record of one scenario under one strategy."""

from __future__ import annotations

import pandas as pd

from c3lib.hardware import Node
from c3lib.model import fluid, kernels
from c3lib.model.contention import predict
from c3lib.model.shared_gpu import COLLECTIVE, HEAD, TAIL, Phase, SharedGpu
from c3lib.strategy import strategy
from c3lib.workload import Scenario

COLUMNS = ("task", "phase", "start_s", "end_s", "rate", "cus", "limited_by", "memory_share")


def timeline(scenario: Scenario, node: Node, strategy_name: str) -> pd.DataFrame:
    """Rows of one run, in order of start: columns ``task`` (gemm or collective), ``phase``, ``start_s``, ``end_s``,
    ``rate`` (share of the rate the task has alone; 0 while it starts up), ``cus``, ``limited_by``, ``memory_share``
    (of the memory bandwidth that the GPU reaches, taken by both tasks together; 0 while it starts up).

    Ends are those of :func:`c3lib.model.contention.predict`. Raises :class:`C3Error` for an unknown strategy.
    """
    gemm, collective = kernels.batch([scenario], node)
    result = predict(gemm, collective, node, strategy(strategy_name))
    law = result.law
    run = fluid.run(law.work, law.delay_s, ((), (HEAD,), ()), law, record=True)
    transfer_s = result.collective_alone_s[0] - kernels.cu_collective_latency_s(collective, node)[0]
    alone = {"gemm": 1 / (result.gemm_alone_s[0] - node.gpu.launch_us * 1e-6)}
    alone["collective"] = 1 / transfer_s if transfer_s > 0 else 0.0

    rows: list[tuple] = []
    for task, first in (("gemm", HEAD), ("collective", COLLECTIVE)):
        if run.start_s[0, first] > 0:
            rows.append((task, "start-up", 0.0, float(run.start_s[0, first]), 0.0, 0.0, "start-up", 0.0))
    for span in run.intervals:
        start, end = float(span.start_s[0]), float(span.end_s[0])
        if end <= start:
            continue
        head, tail, beside = (bool(span.running[0, task]) for task in (HEAD, TAIL, COLLECTIVE))
        name, phase = _phase(law, head, tail, beside)
        share = float(phase.memory_share[0])
        if head or tail:
            rate, cus = float(phase.gemm_rate[0]) / alone["gemm"], float(phase.gemm_cus[0])
            rows.append(("gemm", name, start, end, rate, cus, _gemm_limit(phase), share))
        if beside:
            rate, cus = float(phase.collective_rate[0]) / alone["collective"], float(phase.collective_cus[0])
            rows.append(("collective", name, start, end, rate, cus, _collective_limit(law, phase, name), share))
    return pd.DataFrame(sorted(_joined(rows), key=lambda row: (row[2], row[0] != "gemm")), columns=list(COLUMNS))


def _joined(rows: list[tuple]) -> list[tuple]:
    """Rows of a task that follow each other without any change, as one."""
    joined: dict[str, list[tuple]] = {"gemm": [], "collective": []}
    for row in rows:
        mine = joined[row[0]]
        if mine and mine[-1][3] == row[2] and (mine[-1][1], *mine[-1][4:]) == (row[1], *row[4:]):
            row = (*mine.pop()[:3], *row[3:])
        mine.append(row)
    return [row for mine in joined.values() for row in mine]


def _phase(law: SharedGpu, head: bool, tail: bool, beside: bool) -> tuple[str, Phase]:
    if beside and (head or tail):
        return ("GEMM dispatching", law.early) if head else ("GEMM's last wave", law.late)
    return ("collective alone", law.collective_only) if beside else ("GEMM alone", law.gemm_only)


def _gemm_limit(phase: Phase) -> str:
    compute_s, memory_s = (float(limit[0]) for limit in phase.gemm_limit_s)
    undisturbed = 1 / max(compute_s, memory_s)
    if float(phase.gemm_rate[0]) < undisturbed * (1 - 1e-6):
        # Bandwidth is the limit when it is used up; otherwise the kernel waits for its loads.
        return "memory bandwidth" if float(phase.memory_share[0]) > 1 - 1e-6 else "memory latency"
    return "compute units" if compute_s >= memory_s else "memory bandwidth"


def _collective_limit(law: SharedGpu, phase: Phase, name: str) -> str:
    rate = float(phase.collective_rate[0])
    if rate >= float(law.link_rate[0]) * (1 - 1e-6):
        return "links"
    if float(phase.memory_share[0]) > 1 - 1e-6:
        return "memory bandwidth"
    if name == "GEMM dispatching" and float(phase.collective_cus[0]) < float(law.wanted_cus[0]):
        return "dispatch order"
    if name != "collective alone" and rate < float(law.collective_only.collective_rate[0]) * (1 - 1e-6):
        return "memory latency"
    return "compute units"
