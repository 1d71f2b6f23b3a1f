"""A modelled or measured run as a Chrome trace, which Perfetto shows and ``c3 trace analyze`` reads back.

GEMM and collective stand in it as a profiler would record them. What a profiler cannot see is added: start-up and what
limits each phase as slices, CUs, links and memory bandwidth as counters. Every track says which evidence it is.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from c3lib import __version__
from c3lib.errors import unknown
from c3lib.files import write_bytes
from c3lib.hardware import Node, load_node
from c3lib.measured import ENGINE_DRIVEN, TRANSPORTS, read_measured
from c3lib.model import kernels
from c3lib.model.timeline import timeline
from c3lib.results import publishable
from c3lib.strategy import strategy
from c3lib.trace.names import GEMM_DTYPES
from c3lib.transfer.builders import build_plan
from c3lib.workload import Collective, Gemm, Scenario

_GEMM, _COLLECTIVE, _ENGINES = 1, 2, 10  # numbers of tracks


def modelled(
    gemm: Gemm, collective: Collective, node: Node | str, strategy_name: str, *, alone: bool = False
) -> dict[str, Any]:
    """The model's timeline of a GEMM beside a collective on one GPU, under a strategy, as a trace.

    ``alone``: behind it the GEMM and then the collective again, each by itself, so that the trace tells slowdowns.

    Raises:
        C3Error: unknown node or strategy, or more ranks than the node has.
    """
    there = load_node(node) if isinstance(node, str) else node
    there.check_ranks(collective.ranks)
    rows = timeline(Scenario("exported", gemm, collective), there, strategy_name)
    by_dma = strategy(strategy_name).transport == "dma"
    label = "modelled"
    events = [_process(f"GPU 0 of {there.title}, {strategy_name} ({label})"), _track(_GEMM, f"CUs: GEMM ({label})")]
    busy = rows[rows["phase"] != "start-up"]
    ends = {str(task): (part["start_s"].min(), part["end_s"].max()) for task, part in busy.groupby("task")}
    if "gemm" in ends:
        events.append(_gemm(gemm, label, *ends["gemm"]))
    if "collective" in ends:
        engines = _engines(collective, there) if by_dma else {}
        own = f"DMA engines: {collective.kind}" if by_dma else f"CUs: {collective.kind}"
        events.append(_track(_COLLECTIVE, f"{own} ({label})"))
        events.append(_transfer(collective, f"{collective.kind} ({label})", by_dma, _COLLECTIVE, *ends["collective"]))
        for engine, nbytes in engines.items():
            name = f"{nbytes} bytes by DMA engine {engine} ({label})"
            events.append(_track(_ENGINES + engine, f"DMA engine {engine} ({label})"))
            events.append(_copy(name, nbytes, _ENGINES + engine, *ends["collective"]))
    for row in rows.itertuples():
        track = _GEMM if row.task == "gemm" else _COLLECTIVE
        name = row.phase if row.rate == 0 else f"{row.phase}: {row.rate:.0%} of its rate alone, by {row.limited_by}"
        events.append(_slice(name, "phase", track, row.start_s, row.end_s, {}))
    events += _counters(rows, collective, there, label)
    if alone:
        events += _alone(gemm, collective, there, by_dma, label, float(rows["end_s"].max()))
    about = {"strategy": strategy_name, "gemm": f"{gemm} {gemm.dtype}", "alone_behind": alone}
    return _trace(events, there, label, about | {"collective": f"{collective.kind} of {collective.nbytes} bytes"})


def _alone(
    gemm: Gemm, collective: Collective, node: Node, by_dma: bool, label: str, start_s: float
) -> Iterator[dict[str, Any]]:
    """Both kernels by themselves, one after the other; each begins when it has started up, as beside the other."""
    some, other = kernels.batch([Scenario("alone", gemm, collective)], node)
    start_s += node.gpu.launch_us * 1e-6
    end_s = start_s + float(kernels.gemm_time_s(some, node.gpu.cus, node)[0]) - node.gpu.launch_us * 1e-6
    yield _gemm(gemm, label, start_s, end_s)
    if collective.sent_bytes > 0:
        latency_s = float((kernels.dma_latency_s if by_dma else kernels.cu_collective_latency_s)(other, node)[0])
        whole_s = float(kernels.own_time_s(other, node, "dma" if by_dma else "cu")[0])
        name = f"{collective.kind} ({label})"
        yield _transfer(collective, name, by_dma, _COLLECTIVE, end_s + latency_s, end_s + whole_s)


def measured(node: str, scenario: str, strategy_name: str, repetition: int | None = None) -> dict[str, Any]:
    """A measured run of a scenario of the node's suite as a trace; without ``repetition`` that of the median time.

    A row holds the ends of GEMM and collective, since both were released, and how long they overlapped: the start of
    the one launched second follows, the first is drawn from the release on.

    Raises:
        C3Error: nothing was measured there, or not this scenario, strategy or repetition; its bytes were wrong.
    """
    from c3lib.judge import measured_suite

    there, suite = load_node(node), measured_suite(node)
    rows, _ = read_measured(node, suite)
    for column, wanted in (("scenario", scenario), ("strategy", strategy_name)):
        if wanted not in set(rows[column]):
            raise unknown(f"{column} of {suite} on {node}", wanted, set(rows[column]))
        rows = rows[rows[column] == wanted]
    if repetition is None:
        rows = rows.sort_values("concurrent_s").iloc[[len(rows) // 2]]
    elif repetition not in set(rows["repetition"]):
        raise unknown("repetition", repetition, map(str, rows["repetition"]))
    else:
        rows = rows[rows["repetition"] == repetition]
    publishable(rows)
    row = rows.iloc[0]
    label, by_dma = "measured", row["transport"] in ENGINE_DRIVEN
    collective = Collective(row["collective"], int(row["total_bytes"]), int(row["ranks"]))
    gemm = Gemm.parse(row["gemm"], row["dtype"])
    gemm_start, start = _starts(row)
    name = f"{collective.kind} by {TRANSPORTS.get(row['transport'], row['transport'])} ({label})"
    events = [
        _process(f"{there.title}: {scenario}, {strategy_name} ({label})"),
        _track(_GEMM, f"GEMM ({label})"),
        _track(_COLLECTIVE, name),
        _gemm(gemm, label, gemm_start, row["gemm_end_s"]),
        _transfer(collective, name, by_dma, _COLLECTIVE, start, row["collective_end_s"]),
    ]
    about = {"suite": suite, "scenario": scenario, "strategy": strategy_name, "repetition": int(row["repetition"])}
    note = "starts are not in the row: the first is drawn from the release on, the second from ends and overlap"
    return _trace(events, there, label, about | {"path": row["path"], "note": note})


def write(trace: dict[str, Any], path: Path) -> Path:
    """Write a trace, gzipped where the name ends in .gz; the whole file or nothing."""
    text = json.dumps(trace, indent=1, allow_nan=False).encode("utf-8")
    return write_bytes(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _starts(row: pd.Series) -> tuple[float, float]:
    """When GEMM and collective of a measured row started, as far as it tells."""
    ends = row["gemm_end_s"], row["collective_end_s"]
    first, second = (0, 1) if row["first"] == "gemm" else (1, 0)
    starts = [0.0, 0.0]
    # Without an overlap the second began when the first had ended, or later.
    starts[second] = min(ends) - row["overlap_s"] if row["overlap_s"] > 0 else min(ends[first], ends[second])
    return starts[0], starts[1]


def _trace(events: list[dict], node: Node, label: str, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "c3lib": {"evidence": label, "version": __version__, "node": node.name, **about},
        "deviceProperties": [{"id": 0, "name": f"{node.title} ({label})"}],
        "traceEvents": events,
    }


def _gemm(gemm: Gemm, label: str, start_s: float, end_s: float) -> dict:
    element = f"c10::{next(name for name, known in GEMM_DTYPES.items() if known == gemm.dtype)}"
    told = {"Input Dims": [[gemm.m, gemm.k], [gemm.k, gemm.n]], "Input type": [element] * 2}
    return _slice(f"GEMM {gemm} {gemm.dtype} ({label})", "kernel", _GEMM, start_s, end_s, told)


def _transfer(collective: Collective, name: str, by_dma: bool, track: int, start_s: float, end_s: float) -> dict:
    into = collective.rank_bytes if collective.kind == "all-gather" else collective.nbytes
    told = {"Collective name": collective.kind, "In msg nelems": into, "Out msg nelems": collective.nbytes}
    told |= {"dtype": "Byte", "Group size": collective.ranks}
    return _slice(name, "gpu_memcpy" if by_dma else "kernel", track, start_s, end_s, told)


def _copy(name: str, nbytes: int, track: int, start_s: float, end_s: float) -> dict:
    return _slice(name, "copy", track, start_s, end_s, {"bytes": nbytes})


def _engines(collective: Collective, node: Node) -> dict[int, int]:
    """Bytes that each DMA engine of rank 0 moves."""
    return _moved(collective, node, "engine")


def _moved(collective: Collective, node: Node, by: str) -> dict[int, int]:
    plan = build_plan(collective.kind, collective.nbytes, collective.ranks, node.topology)
    copies = [row for row in plan.to_rows() if row["issuer"] == 0 and not row["local"]]
    found: dict[int, int] = {}
    for row in copies:
        found[row[by]] = found.get(row[by], 0) + row["nbytes"]
    return found


def _links(collective: Collective, node: Node) -> dict[str, int]:
    """Bytes that leave GPU 0 over each of its links; on a node without links, those to and from the host."""
    if node.topology == "switch":
        return {"links to the switch": collective.sent_bytes}
    if node.topology == "host":
        engines = _engines(collective, node)
        return {f"link {'from' if engine == 0 else 'to'} the host": nbytes for engine, nbytes in engines.items()}
    return {f"link to GPU {peer}": nbytes for peer, nbytes in _moved(collective, node, "dst_rank").items()}


def _counters(rows: pd.DataFrame, collective: Collective, node: Node, label: str) -> Iterator[dict]:
    """Counters that step where a phase begins or ends: CUs, memory bandwidth, each link."""
    moving = rows[(rows["task"] == "collective") & (rows["rate"] > 0)]
    whole = float((moving["rate"] * (moving["end_s"] - moving["start_s"])).sum())
    links = _links(collective, node) if len(moving) else {}
    for time in np.unique(rows[["start_s", "end_s"]].to_numpy()):
        now = rows[(rows["start_s"] <= time) & (rows["end_s"] > time)]
        cus = {task: float(now[now["task"] == task]["cus"].sum()) for task in ("gemm", "collective")}
        yield _counter(f"CUs ({label})", time, cus)
        yield _counter(f"HBM use, % of reached ({label})", time, {"%": 100 * max(now["memory_share"], default=0.0)})
        rate = float(now[now["task"] == "collective"]["rate"].sum())
        for link, nbytes in links.items():
            yield _counter(f"{link}, GB/s ({label})", time, {"GB/s": rate / whole * nbytes / 1e9})


def _slice(name: str, category: str, track: int, start_s: float, end_s: float, told: dict[str, Any]) -> dict:
    start, end = _us(start_s), _us(end_s)
    args = {"device": 0, "stream": track, **told}
    event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": track, "ts": start}
    return event | {"dur": round(end - start, 3), "args": args}


def _counter(name: str, time_s: float, values: dict[str, float]) -> dict:
    shown = {key: round(value, 6) for key, value in values.items()}
    return {"ph": "C", "name": name, "pid": 0, "tid": 0, "ts": _us(time_s), "args": shown}


def _process(name: str) -> dict:
    return {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": name}}


def _track(number: int, name: str) -> dict:
    return {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": name}}


def _us(time_s: float) -> float:
    """Microseconds on the grid of whole nanoseconds, on which traces are read back."""
    return round(float(time_s) * 1e9) / 1e3
