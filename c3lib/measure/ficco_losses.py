"""What cutting and sharing cost on one GPU: GEMMs of the sixteen rows whole, in 8 and in 64 pieces, and beside traffic.

Decomposition loss: pieces back to back over the whole, each alone. Contention loss: the same work beside the other
lane over alone. GEMMs are what one of 8 ranks computes; exchanges are a shard of 512 MiB from host memory.
"""

from __future__ import annotations

import gc
from functools import partial
from math import ceil
from typing import Any

from c3lib.cuda.cuts import Beside, CutGemm, traffic
from c3lib.cuda.health import Health, read_health
from c3lib.cuda.schedule import LINK_GBS, How, Schedule
from c3lib.ficco.problem import Problem
from c3lib.ficco.sets import PAPER_SET, load_problems
from c3lib.measure.ficco import Bench, hows
from c3lib.measure.rounds import Group
from c3lib.region import NO_TRANSFER
from c3lib.workload import Gemm

PROBLEMS = PAPER_SET
PARTS = (8, 64)
CUTS = [("none", 1), *((cut, parts) for cut in "mnk" for parts in PARTS)]
BESIDE = (("none", 1), ("m", 8), ("k", 8))
"""Cuts that are also timed beside an exchange."""

RANKS = 8  # that the sixteen rows are of, whatever the node
SHARD = "shard-512MiB"
SHARD_ROWS, SHARD_COLS = 32768, 8192
_GEMM_FLOPS = 600e12  # a guess from which follows how much has to run beside
_SCHEDULES = {"none": "serial", "m": "hetero_unfused_1d", "k": "uniform_fused_2d"}  # how each cuts its exchange


def shard(parts: int) -> Problem:
    """A shard from one peer, in so many pieces."""
    return Problem.all_gather(2 * SHARD_ROWS, 8, SHARD_COLS, 2, pieces=parts)


class _Row:
    """One GEMM on the GPU, and a shard that arrives beside it."""

    def __init__(self, bench: Bench):
        self.bench = bench
        rig = bench.backend.rig
        self.beside = Beside(rig.cuda, rig.gate)
        self._gemm: CutGemm | None = None
        self._warm: set[tuple] = set()

    def load(self, gemm: Gemm) -> None:
        """Set a GEMM up; one that is there stays."""
        if self._gemm is None or self._gemm.gemm != gemm:
            self.clear()
            self._gemm = CutGemm(self.bench.backend.rig.cuda, gemm)
        self.bench.load(shard(PARTS[0]))

    def clear(self) -> None:
        """Give the GEMM's memory back."""
        self._gemm = None
        self._warm.clear()
        gc.collect()
        self.bench.backend.rig.cuda.torch.cuda.empty_cache()

    @property
    def gemm(self) -> CutGemm:
        """The GEMM that is set up."""
        assert self._gemm is not None
        return self._gemm

    def pieces(self, cut: str, parts: int, sms: int) -> tuple[Any, Any]:
        """The pieces, and what enqueues them; run once without a gate."""
        kernels = self.gemm.pieces("m" if cut == "none" else cut, parts)
        put = self.gemm.enqueue(kernels, sms)
        if (cut, parts, sms) not in self._warm:
            self.beside.warm(put)
            self._warm.add((cut, parts, sms))
        return kernels, put

    def moving(self, how: How) -> Schedule:
        """The shard's exchange in 8 pieces of rows, proved and warm; nothing of it has arrived."""
        there = self.bench.schedule(_SCHEDULES["m"], how)
        there.proof()
        turn = self.bench.next_turn()
        there.matrices.prepare(there.program, turn)
        there.exchange.ready(turn)
        return there


def loss_groups(bench: Bench) -> list[Group]:
    """A group for the exchanges alone, and one for each of the sixteen rows' GEMMs."""
    there = _Row(bench)
    movers = hows(bench.backend.node, "all-gather", _SCHEDULES["m"])
    groups = []
    for parts in PARTS:
        arms = {}
        for cut, schedule in _SCHEDULES.items():
            if cut != "none" or parts == PARTS[0]:
                for how in movers:
                    arms[f"{cut} {how}"] = partial(_exchange, bench, cut, parts, schedule, how)
        groups.append(Group(f"ficco_losses {SHARD} {parts}", partial(_load_shard, there, parts), arms))
    for row in load_problems(PROBLEMS, RANKS):
        gemm, arms = row.problem.gemm(), {}
        name = (row.name, row.problem.kind)
        for cut, parts in CUTS:
            arms[f"gemm {cut} {parts}"] = partial(_gemm, there, *name, cut, parts, How(), False)
        for how in movers:
            if how.withheld:
                arms[f"gemm none 1 {how}"] = partial(_gemm, there, *name, "none", 1, how, False)
            for cut, parts in BESIDE:
                arms[f"gemm {cut} {parts} beside {how}"] = partial(_gemm, there, *name, cut, parts, how, True)
            arms[f"exchange beside {how}"] = partial(_shared_exchange, there, *name, how)
        groups.append(Group(f"ficco_losses {row.name} {gemm}", partial(there.load, gemm), arms))
    return groups


def _load_shard(there: _Row, parts: int) -> None:
    there.clear()
    there.bench.load(shard(parts))


def _exchange(bench: Bench, cut: str, parts: int, schedule: str, how: How, turn: int) -> list[dict[str, Any]]:
    run = bench.schedule(schedule, how).run(bench.next_turn(), kernels=False).region
    seconds = run.times.transfer_end_s - run.times.transfer_start_s
    gemm = Gemm(SHARD_ROWS, 8, SHARD_COLS)
    what = {"measured": "exchange", "cut": cut, "parts": 1 if cut == "none" else parts, "beside": "nothing"}
    return [_row(bench, SHARD, "all-gather", gemm, what, how, turn, seconds, (run.before, run.after), run.verified,
                 run.path)]  # fmt: skip


def _gemm(
    there: _Row, name: str, kind: str, cut: str, parts: int, how: How, shared: bool, turn: int
) -> list[dict[str, Any]]:
    rig = there.bench.backend.rig
    sms = rig.cuda.sms - how.withheld if how.withheld else 0
    kernels, put = there.pieces(cut, parts, sms)
    moving = there.moving(how) if shared else None
    there.gemm.poison()
    before, other = read_health([rig.cuda]), None
    if moving is not None:
        other = traffic(moving.exchange)
    longest_s = 1.1 * there.gemm.gemm.flops / _GEMM_FLOPS
    times = ceil(longest_s / (SHARD_ROWS * SHARD_COLS * 2 / (LINK_GBS * 1e9)))
    seconds = there.beside.time_s(put, False, other, times)
    after = read_health([rig.cuda])
    verified = there.gemm.right(kernels)
    path = NO_TRANSFER
    if moving is not None:
        path = moving.proof().path
        verified = verified and moving.matrices.check_arrived(moving.program, there.bench.turn).verified
    what = {"measured": "gemm", "cut": cut, "parts": parts, "beside": "exchange" if shared else "nothing"}
    return [_row(there.bench, name, kind, there.gemm.gemm, what, how, turn, seconds, (before, after), verified, path)]


def _shared_exchange(there: _Row, name: str, kind: str, how: How, turn: int) -> list[dict[str, Any]]:
    rig = there.bench.backend.rig
    sms = rig.cuda.sms - how.withheld if how.withheld else 0
    kernels, put = there.pieces("none", 1, sms)
    moving = there.moving(how)
    there.gemm.poison()
    nbytes, gemm = SHARD_ROWS * SHARD_COLS * 2, there.gemm.gemm
    times = ceil(2 * nbytes / (LINK_GBS * 1e9) / (gemm.flops / _GEMM_FLOPS))
    before = read_health([rig.cuda])
    seconds = there.beside.time_s(traffic(moving.exchange), True, put, times)
    after = read_health([rig.cuda])
    arrived = moving.matrices.check_arrived(moving.program, there.bench.turn).verified
    what = {"measured": "exchange", "cut": "m", "parts": PARTS[0], "beside": "gemm"}
    return [_row(there.bench, name, kind, gemm, what, how, turn, seconds, (before, after),
                 arrived and there.gemm.right(kernels), moving.proof().path)]  # fmt: skip


def _row(
    bench: Bench, name: str, kind: str, gemm: Gemm, what: dict[str, Any], how: How, turn: int, seconds: float,
    states: tuple[Health, Health], verified: bool, path: str,
) -> dict[str, Any]:  # fmt: skip
    moves = what["measured"] == "exchange" or what["beside"] == "exchange"
    before, after = states
    return {
        "node": bench.backend.node.name,
        "evidence": bench.backend.evidence,
        "problem": name,
        "collective": kind,
        "m": gemm.m,
        "n": gemm.n,
        "k": gemm.k,
        "dtype": gemm.dtype,
        **what,
        "transport": how.transport if moves else "none",
        "blocks": how.blocks if moves else 0,
        "sms_withheld": how.withheld,
        "moved_bytes": SHARD_ROWS * SHARD_COLS * 2 if what["measured"] == "exchange" else 0,
        "repetition": turn,
        "time_s": seconds,
        "sm_mhz_before": before.sm_mhz,
        "sm_mhz": after.sm_mhz,
        "power_w_before": before.power_w,
        "power_w": after.power_w,
        "temperature_c": after.temperature_c,
        "verified": verified,
        "path": path,
    }
