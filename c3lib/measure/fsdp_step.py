"""A training step under FSDP2 by who gathers the parameters: processes started, watched, and their rows judged.

One process a GPU (:mod:`c3lib.measure.fsdp_rank`), each with every arm's model in its memory. The GPUs have to be
idle, so this comes before anything opens them here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from c3lib.errors import C3Error
from c3lib.files import ROOT, read_text, write_text
from c3lib.hardware import Node

UNSHARDED = "none"
"""The arm without collectives: each GPU runs the whole model for itself."""
ZERO_CTA = "nccl_zero_cta"
ROUNDING = 1e-4
LIMIT_S, REPEAT_S = 100.0, 10.0
"""All may take so long, and so much more for each repetition; on two H200s 9 of them took 29 s in all."""
STALL_S = 60.0
"""A process that says nothing new for so long hangs; starting and the first use of a library take some 20 s."""

_TIED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Becomes the program of its arguments, which the kernel kills (prctl's PR_SET_PDEATHSIG) as soon as we are gone,
however we went; asked for by the process itself, as code between fork and exec may hang where there are threads."""


@dataclass(frozen=True)
class Job:
    """What the processes do. ``arms``: the first is plain FSDP2, named after the process group's backend.

    ``sizes``: name, sequences a GPU, tokens a sequence. With ``hidden`` 6144 and 1024 tokens a GPU a block's forward
    pass takes about as long on an H200 as NCCL's all-gather of the block between two of them, with 2048 twice that.
    """

    device: str = "cuda"
    ranks: int = 2
    arms: tuple[str, ...] = ("nccl", ZERO_CTA, "copy_engine", UNSHARDED)
    hidden: int = 6144
    heads: int = 48
    layers: int = 8
    vocabulary: int = 8192
    sizes: tuple[tuple[str, int, int], ...] = (("equal", 1, 1024), ("half", 2, 1024))
    repeats: int = 9
    steps: int = 3
    seed: int = 0


def read_job(folder: Path) -> Job:
    """The job as :func:`run_ranks` wrote it."""
    content = json.loads(read_text(folder / "job.json"))
    sizes = tuple(tuple(size) for size in content.pop("sizes"))
    return Job(**{**content, "arms": tuple(content["arms"]), "sizes": sizes})


def fsdp_rows(node: Node, repeats: int, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row a size, arm and repetition; and what the provenance says of them.

    ``nccl_zero_cta`` is left out, and the provenance says why, where the library cannot do it.

    Raises:
        C3Error: a GPU in use, a process that failed or hung, an arm that took another path than its name says.
    """
    job, left_out = Job(ranks=node.ranks, repeats=repeats, seed=seed), ""
    try:
        found = run_ranks(job)
    except C3Error as error:
        if ZERO_CTA not in str(error):
            raise
        left_out = str(error)  # a library that dies takes its own arm away, not the others
        found = run_ranks(replace(job, arms=tuple(arm for arm in job.arms if arm != ZERO_CTA)))
    about: dict[str, Any] = {"fsdp_negative_control": control(found), "job": asdict(job)}
    about["losses_at_the_start"] = {
        name: {size: float.fromhex(loss) for size, loss in each.items()} for name, each in found[0]["begun"].items()
    }
    if left_out := left_out or found[0]["left_out"]:
        about["left_out"] = {ZERO_CTA: left_out}
    return [{"node": node.name, "evidence": "measured", **row} for row in judged(job, found)], about


def run_ranks(job: Job, program: Sequence[str] = ("-m", "c3lib.measure.fsdp_rank")) -> list[dict[str, Any]]:
    """What each rank's process found, by rank; ``program`` is called with the folder of the job and the rank.

    Raises:
        C3Error: with the first failed process's own words, or with what each was at when they hung. None is left, not
            even when this process is killed.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    env |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}  # multicast can take a host's GPUs away
    env |= {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "PYTHONWARNINGS": "ignore"}
    if job.device == "cpu":
        env["OMP_NUM_THREADS"] = "1"
    with TemporaryDirectory(prefix="c3lib-") as name:
        folder = Path(name)
        write_text(folder / "job.json", json.dumps(asdict(job)))
        processes = []
        try:
            for rank in range(job.ranks):
                with open(folder / f"{rank}.log", "w") as log:
                    command = [sys.executable, "-c", _TIED, str(os.getpid()), *program, name, str(rank)]
                    processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=ROOT))
            _watch(folder, processes, LIMIT_S + REPEAT_S * (job.repeats + 1))  # one to warm up
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [json.loads(read_text(folder / f"{rank}.json")) for rank in range(job.ranks)]


def _watch(folder: Path, processes: list[subprocess.Popen], limit_s: float) -> None:
    """Until all have ended well."""
    start = moved = time.monotonic()
    seen: list[str] = []
    while any(process.poll() is None for process in processes):
        if failed := [rank for rank, process in enumerate(processes) if process.poll()]:
            time.sleep(1)  # who fails takes its peers along: they may have more to say
            raise C3Error(f"fsdp_step: {_words(folder, failed, processes)}")
        now, stages = time.monotonic(), [_last(folder / f"{rank}.at") for rank in range(len(processes))]
        if stages != seen:
            seen, moved = stages, now
        if now - start > limit_s or now - moved > STALL_S:
            at = ", ".join(f"rank {rank} in {stage or 'its start'}" for rank, stage in enumerate(stages))
            how = f"not done after {limit_s:g} s" if now - start > limit_s else f"no further for {STALL_S:g} s"
            raise C3Error(f"fsdp_step: the processes were {how} and have been killed: {at}")
        time.sleep(0.05)
    if failed := [rank for rank, process in enumerate(processes) if process.poll()]:
        raise C3Error(f"fsdp_step: {_words(folder, failed, processes)}")


def _words(folder: Path, failed: list[int], processes: list[subprocess.Popen]) -> str:
    """What the first rank to say anything said."""
    told = sorted(folder.glob("*.error"), key=lambda path: path.stat().st_mtime_ns)
    rank = int(told[0].stem) if told else failed[0]
    stage = _last(folder / f"{rank}.at") or "its start"
    log = _last(folder / f"{rank}.log") or "no word"
    words = _last(told[0]) if told else f"ended with status {processes[rank].poll()}: {log}"
    return f"rank {rank} failed in {stage}: {words}"


def _last(path: Path) -> str:
    """The last line of a file that may not be there."""
    with contextlib.suppress(OSError):
        return (path.read_text(errors="replace").strip().splitlines() or [""])[-1]
    return ""


def judged(job: Job, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of what the ranks found, each verified or not.

    A repetition is verified when on all ranks its losses are those of plain FSDP2 to the last bit, and the arm's final
    shards too. Plain FSDP2 itself, the reference, has to begin with the unsharded model's loss (to :data:`ROUNDING`, as
    a library may choose another kernel for other memory); unsharded, which moves nothing, keeps that loss to the bit.
    """
    plain, rows = job.arms[0], []
    for place, run in enumerate(found[0]["runs"]):
        size, arm, repetition = run["size"], run["arm"], run["repetition"]
        if arm not in found[0]["path"]:  # left out
            continue
        losses = [float.fromhex(loss) for rank in found for loss in rank["runs"][place]["losses"]]
        good = all(map(math.isfinite, losses))
        if arm in (plain, UNSHARDED):
            good &= all(_begin_alike(rank["begun"][size], plain) for rank in found)
        if arm == UNSHARDED:
            good &= all(set(rank["runs"][place]["losses"]) == {rank["begun"][size][arm]} for rank in found)
        else:
            good &= len(set(losses)) > 1 and all(rank["shards_equal"][arm] for rank in found)
            good &= all(rank["runs"][place]["losses"] == _losses(rank, size, plain, repetition) for rank in found)
            good &= all(rank["begun"][size][arm] == rank["begun"][size][plain] for rank in found)
        _, sequences, length = next(known for known in job.sizes if known[0] == size)
        rows.append(
            {
                "model": f"decoder, {job.layers} blocks of {job.hidden}, {job.heads} heads, vocabulary "
                f"{job.vocabulary}, bf16, SGD",
                "size": size,
                "layers": job.layers,
                "hidden": job.hidden,
                "tokens": sequences * length,
                "ranks": job.ranks,
                "parameter_bytes": found[0]["parameter_bytes"],
                "block_bytes": found[0]["block_bytes"],
                "transport": arm,
                "repetition": repetition,
                "steps": job.steps,
                "step_s": max(rank["runs"][place]["seconds"] for rank in found) / job.steps,
                "loss": float.fromhex(run["losses"][-1]),
                "verified": bool(good),
                "path": found[0]["path"][arm],
            }
        )
    return sorted(rows, key=lambda row: (row["size"], job.arms.index(row["transport"]), row["repetition"]))


def _losses(rank: dict[str, Any], size: str, arm: str, repetition: int) -> list[str]:
    same = {"size": size, "arm": arm, "repetition": repetition}
    return next(run["losses"] for run in rank["runs"] if run.items() >= same.items())


def _begin_alike(begun: dict[str, str], plain: str) -> bool:
    ours, unsharded = float.fromhex(begun[plain]), float.fromhex(begun[UNSHARDED])
    return math.isclose(ours, unsharded, rel_tol=ROUNDING)


def control(found: list[dict[str, Any]]) -> str:
    """What came of leaving one rank's copies out of a forward pass.

    Raises:
        C3Error: no loss changed, so that equal losses would prove nothing.
    """
    pairs = [rank["control"] for rank in found]
    changed = [rank for rank, (whole, without) in enumerate(pairs) if whole != without]
    if not changed:
        raise C3Error("fsdp_step: rank 0's copies were left out on purpose and no loss changed; nothing is proved")
    rank = changed[0]
    whole, without = map(float.fromhex, pairs[rank])
    return f"copies of rank 0 left out, loss of rank {rank} {without:.6g} in place of {whole:.6g}: noticed"
