"""Finer-grain overlap on the model: every problem under every schedule and transport on one node, as tidy rows."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from c3lib.errors import C3Error, unknown
from c3lib.ficco import SCHEDULES, Program, build
from c3lib.ficco.sets import Row
from c3lib.hardware import Node
from c3lib.metrics import fraction_of_ideal, ideal_speedup
from c3lib.model.pieces import TRANSPORTS, lanes, loss_free
from c3lib.model.pipeline import Lanes, Timeline, simulate

COLUMNS = (
    "node", "evidence", "problem", "collective", "m", "n", "k", "dtype", "ranks", "pieces", "piece_bytes", "transport",
    "schedule", "time_s", "serial_s", "gemm_s", "exchange_s", "ideal", "loss_free_s", "speedup", "fraction_of_ideal",
    "kernel_busy_s", "exchange_busy_s", "exposed_s", "waiting", "memory_bytes", "fits",
)  # fmt: skip
"""``serial_s``: the same problem and transport under ``serial``. ``gemm_s``, ``exchange_s``: the whole GEMM and all
bytes at once, each alone. ``ideal``: their sum over the longer one. ``loss_free_s``: this schedule if no piece lost
anything (see :func:`c3lib.model.pieces.loss_free`). ``kernel_busy_s``, ``exchange_busy_s``: something of the lane runs.
``exposed_s``: bytes move and no kernel runs. ``waiting``: the lane that the other waits for, ``gemm`` or ``exchange``.
``memory_bytes``: all buffers of a rank; ``fits``: in the GPU's memory."""


def schedule_rows(
    node: Node,
    rows: Sequence[Row],
    transports: Sequence[str] = TRANSPORTS,
    schedules: Sequence[str] = tuple(SCHEDULES),
) -> pd.DataFrame:
    """One row a problem, transport and schedule, columns :data:`COLUMNS`; a problem that is too large has ``fits``
    False.

    Raises:
        C3Error: no problem, more ranks than the node has, an unknown schedule or transport.
    """
    if not rows:
        raise C3Error("rows: no problem to schedule")
    for row in rows:
        if row.problem.ranks > node.ranks:
            raise C3Error(f"{row.name}: needs {row.problem.ranks} ranks, and {node.name} has {node.ranks}")
    for schedule in schedules:
        if schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
    names = list(dict.fromkeys(("serial", *schedules)))
    programs = [[build(name, row.problem, row.problem.busiest) for name in names] for row in rows]
    found = []
    for transport in transports:
        every = iter(lanes([program for several in programs for program in several], node, transport))
        for row, several in zip(rows, programs, strict=True):
            serial, *rest = [(program, next(every)) for program in several]
            alone = serial[1]
            for program, both in (serial, *rest):
                if program.schedule in schedules:
                    found.append({**_about(row, node, transport), **_one(program, both, alone, node)})
    return pd.DataFrame(found, columns=list(COLUMNS))


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


def _one(program: Program, both: Lanes, serial: Lanes, node: Node) -> dict[str, object]:
    timeline = simulate(both)
    gemm_s = serial.launch_s[0] + serial.kernel_s[0]
    exchange_s = sum(serial.start_s) + sum(serial.exchange_s)
    serial_s = gemm_s + exchange_s
    ideal = float(ideal_speedup(gemm_s, exchange_s))
    speedup = serial_s / timeline.time_s
    kernels, exchanges = (sum(end - start for start, end in lane) for lane in (timeline.kernels, timeline.exchanges))
    return {
        "schedule": program.schedule,
        "time_s": timeline.time_s,
        "serial_s": serial_s,
        "gemm_s": gemm_s,
        "exchange_s": exchange_s,
        "ideal": ideal,
        "loss_free_s": simulate(loss_free(program, gemm_s, exchange_s, node)).time_s,
        "speedup": speedup,
        "fraction_of_ideal": float(fraction_of_ideal(speedup, ideal)),
        "kernel_busy_s": kernels,
        "exchange_busy_s": exchanges,
        "exposed_s": exposed_s(timeline),
        "waiting": "exchange" if exchanges > kernels else "gemm",
        "memory_bytes": program.peak_nbytes,
        "fits": program.peak_nbytes <= node.gpu.hbm_capacity_gb * 1e9,
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
