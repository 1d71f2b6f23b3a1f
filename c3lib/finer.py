"""Finer-grain overlap on the model: every problem under every schedule and transport on one node, as tidy rows."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from c3lib.errors import C3Error, unknown
from c3lib.ficco import SCHEDULES, Program, build
from c3lib.ficco.sets import Row
from c3lib.hardware import Node
from c3lib.metrics import fraction_of_ideal, ideal_speedup
from c3lib.model.order import loss_free
from c3lib.model.pieces import TRANSPORTS, lanes
from c3lib.model.pipeline import Lanes, Timeline, simulate

COLUMNS = (
    "node", "evidence", "problem", "collective", "m", "n", "k", "dtype", "ranks", "pieces", "piece_bytes", "transport",
    "schedule", "time_s", "serial_s", "gemm_s", "exchange_s", "ideal", "loss_free_s", "speedup", "fraction_of_ideal",
    "kernel_busy_s", "exchange_busy_s", "exposed_s", "waiting", "memory_bytes", "fits",
)  # fmt: skip
"""Times are those of the slowest rank. ``serial_s``: the same problem and transport under ``serial``. ``gemm_s``,
``exchange_s``: the whole GEMM and all bytes at once, each alone. ``ideal``: their sum over the longer one.
``loss_free_s``: this schedule if no piece lost anything (:func:`c3lib.model.order.loss_free`). ``kernel_busy_s``,
``exchange_busy_s``: something of the lane runs. ``exposed_s``: bytes move and no kernel runs. ``waiting``: the lane
that the other waits for, ``gemm`` or ``exchange``. ``memory_bytes``: all buffers of a rank; ``fits``: in the GPU's
memory."""


def schedule_rows(
    node: Node,
    rows: Sequence[Row],
    transports: Sequence[str] = TRANSPORTS,
    schedules: Sequence[str] = tuple(SCHEDULES),
) -> pd.DataFrame:
    """One row a problem, transport and schedule, columns :data:`COLUMNS`; a problem that is too large has ``fits``
    False.

    Raises:
        C3Error: no problem, schedule or transport, more ranks than the node has, an unknown schedule or transport.
    """
    if not rows:
        raise C3Error("rows: no problem to schedule")
    if not schedules or not transports:
        raise C3Error(f"{'transports' if schedules else 'schedules'}: expected the names of one or more, got none")
    require_possible(node, rows, transports)
    for schedule in schedules:
        if schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
    names = list(dict.fromkeys(("serial", *schedules)))
    programs = [{name: [build(name, row.problem, rank) for rank in _ranks(row)] for name in names} for row in rows]
    flat = [program for of_row in programs for ranks in of_row.values() for program in ranks]
    found = []
    for transport in transports:
        every = iter(lanes(flat, node, transport))
        for row, of_row in zip(rows, programs, strict=True):
            ran = {name: [(program, next(every)) for program in ranks] for name, ranks in of_row.items()}
            for name in schedules:
                found.append({**_about(row, node, transport), **_slowest(ran[name], ran["serial"], node, transport)})
    return pd.DataFrame(found, columns=list(COLUMNS))


def require_possible(node: Node, rows: Sequence[Row], transports: Sequence[str]) -> None:
    """Raises :class:`C3Error` where a problem needs more ranks than the node has, or a transport is unknown."""
    for row in rows:
        node.check_ranks(row.problem.ranks, row.name)
    for transport in transports:
        if transport not in TRANSPORTS:
            raise unknown("transport", transport, TRANSPORTS)


def _ranks(row: Row) -> Sequence[int]:
    """Ranks that differ in what they have to do."""
    return [row.problem.busiest] if row.problem.even else range(row.problem.ranks)


def _about(row: Row, node: Node, transport: str) -> dict[str, object]:
    problem = row.problem
    gemm = problem.gemm(problem.busiest)
    return {
        "node": node.name,
        "evidence": "modelled",
        "problem": row.name,
        "collective": problem.kind,
        "m": gemm.m,
        "n": gemm.n,
        "k": gemm.k,
        "dtype": gemm.dtype,
        "ranks": problem.ranks,
        "pieces": problem.pieces,
        "piece_bytes": problem.piece_nbytes,
        "transport": transport,
    }


def _slowest(
    ran: Sequence[tuple[Program, Lanes]], serial: Sequence[tuple[Program, Lanes]], node: Node, transport: str
) -> dict:
    """What one schedule takes: the time of its slowest rank, beside that of the slowest under ``serial``."""
    program, timeline = max(((one, simulate(both)) for one, both in ran), key=lambda pair: pair[1].time_s)
    alone = [(both.launch_s[0] + both.kernel_s[0], sum(both.start_s) + sum(both.exchange_s)) for _, both in serial]
    gemm_s, exchange_s = max(alone, key=sum)
    free_s = [
        simulate(loss_free(one, *times, node, transport)).time_s for (one, _), times in zip(ran, alone, strict=True)
    ]
    serial_s = max(simulate(both).time_s for _, both in serial)
    ideal = float(ideal_speedup(gemm_s, exchange_s))
    speedup = serial_s / timeline.time_s
    kernels, exchanges = (sum(end - start for start, end in lane) for lane in (timeline.kernels, timeline.exchanges))
    memory = max(one.peak_nbytes for one, _ in ran)
    return {
        "schedule": program.schedule,
        "time_s": timeline.time_s,
        "serial_s": serial_s,
        "gemm_s": gemm_s,
        "exchange_s": exchange_s,
        "ideal": ideal,
        "loss_free_s": max(free_s),
        "speedup": speedup,
        "fraction_of_ideal": float(fraction_of_ideal(speedup, ideal)),
        "kernel_busy_s": kernels,
        "exchange_busy_s": exchanges,
        "exposed_s": exposed_s(timeline),
        "waiting": "exchange" if exchanges > kernels else "gemm",
        "memory_bytes": memory,
        "fits": memory <= node.gpu.hbm_capacity_gb * 1e9,
    }


def exposed_s(timeline: Timeline) -> float:
    """Seconds during which bytes move and no kernel runs."""
    covered, at = 0.0, 0
    for start, end in timeline.exchanges:
        while at < len(timeline.kernels) and timeline.kernels[at][1] <= start:
            at += 1
        for first, last in timeline.kernels[at:]:
            if first >= end:
                break
            covered += min(end, last) - max(start, first)
    return sum(end - start for start, end in timeline.exchanges) - covered
