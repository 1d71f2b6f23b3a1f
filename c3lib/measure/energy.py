"""Joules of a scenario by strategy: the scenario over and over for most of a second, between two readings of NVML."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import Any

from c3lib.backends.cuda import CudaBackend, describe
from c3lib.cuda.setting import Setting
from c3lib.cuda.streams import new_event
from c3lib.measure.journal import Journal
from c3lib.measure.rounds import Group
from c3lib.measure.suite import restore, scenarios_of
from c3lib.strategy import STRATEGIES
from c3lib.workload import Scenario

SECONDS = 0.6
"""Length of a loop: NVML's energy counter moves in steps of some tens of milliseconds."""

ARMS = ("serial_sm_kernel", "serial_copy_engine", *STRATEGIES)
"""``serial_*``: GEMM, then transfer, on one stream, as a program without overlap would run them."""


def energy_groups(backend: CudaBackend, suite: str, journal: Journal) -> list[Group]:
    """One group for the first scenario of each cell (bound x length class, as far as the suite has them).

    Rows carry what was asked for in ``setting`` too, which stays in the journal (:mod:`c3lib.measure.suite`).
    """
    restore(backend, journal)
    return [
        Group(
            f"energy {scenario.name}",
            partial(backend.open, scenario),
            {arm: partial(_arm, backend, scenario, arm) for arm in ARMS},
        )
        for scenario in _one_a_cell(backend, suite)
    ]


def _one_a_cell(backend: CudaBackend, suite: str) -> list[Scenario]:
    from c3lib.experiment import run_suite

    rows = run_suite(backend.node, suite, ["c3_base"])  # modelled isolated times are enough to tell the cells apart
    first = set(rows.drop_duplicates(["bound", "length_class"])["scenario"])
    return [scenario for scenario in scenarios_of(backend, suite) if scenario.name in first]


def _arm(backend: CudaBackend, scenario: Scenario, arm: str, repetition: int) -> list[dict[str, Any]]:
    rig, serial = backend.rig, arm.startswith("serial")
    if serial:
        how = Setting() if arm.endswith("copy_engine") else backend.default(scenario)
    else:
        how = backend.setting(scenario, STRATEGIES[arm])
    before = rig.run(how)  # warm, and the bytes and the result of one run checked
    runs, seconds, joules, state = _loop(backend, how, serial, before.times.end_s)
    region = rig.run(how)  # poisoned and checked again: what ran in the loop still does its work
    return [
        {
            "node": backend.node.name,
            "evidence": backend.evidence,
            "scenario": scenario.name,
            "gemm": str(scenario.gemm),
            "bound": scenario.gemm.bound(backend.node.gpu),
            "strategy": arm,
            **describe(how, region),
            "setting": asdict(how),
            "repetition": repetition,
            "runs": runs,
            "seconds_per_run": seconds / runs,
            "joules_per_run": joules / runs,
            "sm_mhz": state.sm_mhz,
            "power_w": joules / seconds,
            "verified": bool(before.verified and region.verified),
            "path": region.path,
        }
    ]


def _loop(backend: CudaBackend, how: Setting, serial: bool, estimate_s: float) -> tuple[int, float, float, Any]:
    """Runs, seconds, joules, and the GPU's state while the loop was busy.

    Its runs all write the same bytes, so none can be told from the one before: the arm checks a run on either side.
    """
    rig = backend.rig
    gemm_streams, own_streams = rig.streams(how)
    transfer_streams = gemm_streams if serial else own_streams
    mover = rig.transport(how)
    done = [(new_event(cuda), new_event(cuda)) for cuda in rig.cudas]
    rig.buffers.prepare(rig.turn)
    rig.synchronize()
    before, start, runs = rig.health(), time.perf_counter(), 0
    state = before
    while time.perf_counter() - start < SECONDS:
        for _ in range(max(1, int(0.02 / estimate_s))):  # some 20 ms at a time: the queue never runs dry for long
            for place in (0, 1) if how.gemm_first else (1, 0):
                if place == 0:
                    rig.enqueue_gemm(gemm_streams, runs, how)
                else:
                    mover.restart(transfer_streams)
                    mover.enqueue(transfer_streams)
            for gemm, transfer, events in zip(gemm_streams, transfer_streams, done, strict=True):
                if not serial:  # the next run starts when both are done
                    gemm.record(events[0])
                    transfer.record(events[1])
                    gemm.wait(events[1])
                    transfer.wait(events[0])
            runs += 1
        state = rig.health()
        rig.synchronize()
    seconds = time.perf_counter() - start
    return runs, seconds, rig.health().energy_j - before.energy_j, state
