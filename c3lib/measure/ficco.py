"""Finer-grain overlap on one GPU over its host link: every schedule and transport, and each lane of it alone.

Problems are those of ``data/problems/ficco_host.csv``, the project's own.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

from c3lib.backends.cuda import CudaBackend
from c3lib.cuda.matrices import Matrices
from c3lib.cuda.schedule import How, Schedule
from c3lib.errors import C3Error
from c3lib.ficco.problem import Problem
from c3lib.ficco.schedules import SCHEDULES
from c3lib.ficco.sets import Row, load_problems
from c3lib.hardware import Node
from c3lib.measure.rounds import Group

PROBLEMS = "ficco_host"
ALONE_REPEATS = 5
"""Repetitions at most of a lane alone."""

LANES = {"both": (True, True), "kernels": (True, False), "exchanges": (False, True)}
_CONTROL = Problem.all_gather(1024, 512, 1024, 8)


def require_host(node: Node, experiment: str) -> None:
    """Raises :class:`C3Error` for a node on which schedules do not run yet."""
    if node.topology != "host" or node.vendor != "nvidia":
        raise C3Error(
            f"experiment {experiment} runs one rank on one NVIDIA GPU, over its host link (node h200_1); "
            f"node {node.name} has topology {node.topology!r}"
        )


def hows(node: Node, kind: str, schedule: str) -> list[How]:
    """By copy engine, and by SM kernel: on the library's default blocks where nothing runs beside it, else on as many
    as fill the link, with as many SMs withheld from the GEMMs."""
    library = node.library[kind]
    if schedule == "serial":
        return [How(), How(blocks=library.default_cus)]
    return [How(), How(blocks=library.saturation_cus, withheld=library.saturation_cus)]


class Bench:
    """One problem's matrices on the GPU at a time, and its schedules."""

    def __init__(self, backend: CudaBackend):
        self.backend = backend
        self.turn = 0
        self._problem: Problem | None = None
        self._matrices: Any = None
        self._schedules: dict[tuple[str, How], Schedule] = {}

    def clear(self) -> None:
        """Give all memory back."""
        self._problem = self._matrices = None
        self._schedules.clear()
        gc.collect()
        self.backend.rig.cuda.torch.cuda.empty_cache()

    def load(self, problem: Problem) -> None:
        """Set a problem up; one that is there stays."""
        if problem != self._problem:
            self.clear()
            self._matrices = Matrices(self.backend.rig.cuda, problem)
            self._problem = problem

    def schedule(self, name: str, how: How) -> Schedule:
        """A schedule of the problem that is set up."""
        if (name, how) not in self._schedules:
            rig = self.backend.rig
            self._schedules[name, how] = Schedule(rig.cuda, rig.gate, self._matrices, name, how)
        return self._schedules[name, how]

    def next_turn(self) -> int:
        """The next iteration, whose data differ from the last one's."""
        self.turn += 1
        return self.turn


def controls(bench: Bench) -> dict[str, str]:
    """Negative controls of both transports and of copies of rows that lie apart: what fired, for the provenance."""
    fired = {}
    for name in ("uniform_fused_1d", "uniform_fused_2d"):
        for how in hows(bench.backend.node, _CONTROL.kind, name):
            bench.load(_CONTROL)
            fired[f"{name} by {how.transport}"] = bench.schedule(name, how).controls()
    return fired


def ficco_groups(bench: Bench) -> list[Group]:
    """A group a problem; its arms are schedules, transports and lanes."""
    node = bench.backend.node
    groups = []
    for row in load_problems(PROBLEMS, node.ranks):
        arms = {}
        for schedule in SCHEDULES:
            every = hows(node, row.problem.kind, schedule)
            for how in every:
                for lanes in LANES:
                    repeated = lanes == "kernels" and how != next(h for h in every if h.withheld == how.withheld)
                    if not repeated:  # kernels alone are the same by any transport that takes as many SMs
                        arms[f"{schedule} {lanes} {how}"] = partial(_arm, bench, row, schedule, how, lanes)
        groups.append(Group(f"ficco {row.name} {row.problem}", partial(bench.load, row.problem), arms))
    return groups


def _arm(bench: Bench, row: Row, schedule: str, how: How, lanes: str, repetition: int) -> list[dict[str, Any]]:
    if lanes != "both" and repetition >= ALONE_REPEATS:
        return []
    kernels, exchanges = LANES[lanes]
    there = bench.schedule(schedule, how)
    run = there.run(bench.next_turn(), kernels=kernels, exchanges=exchanges)
    region, times, problem = run.region, run.region.times, row.problem
    return [
        {
            "node": bench.backend.node.name,
            "evidence": bench.backend.evidence,
            "problem": row.name,
            "collective": problem.kind,
            "m": problem.m[0],
            "n": problem.n,
            "k": problem.k,
            "dtype": problem.dtype,
            "ranks": problem.ranks,
            "pieces": problem.pieces,
            "piece_bytes": problem.piece_nbytes,
            "received_bytes": problem.received_nbytes(0),
            "schedule": schedule,
            "lanes": lanes,
            "transport": how.transport if exchanges else "none",
            "blocks": how.blocks if exchanges else 0,
            "sms_withheld": how.withheld,
            "copies": there.exchange.copies if exchanges else 0,
            "operations": len(there.exchange.operations) if exchanges else 0,
            "memory_bytes": there.program.peak_nbytes,
            "repetition": repetition,
            "time_s": times.end_s,
            "gemm_start_s": times.gemm_start_s,
            "gemm_end_s": times.gemm_end_s,
            "exchange_start_s": times.transfer_start_s,
            "exchange_end_s": times.transfer_end_s,
            "overlap_s": times.overlap_s,
            "step_ends_us": " ".join(f"{1e6 * end_s:.1f}" for end_s in run.step_ends_s) or "none",
            **region.health(),
            "verified": region.verified,
            "path": region.path,
        }
    ]
