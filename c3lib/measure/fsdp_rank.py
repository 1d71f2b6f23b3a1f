"""One rank of the experiment ``fsdp_step``: ``python -m c3lib.measure.fsdp_rank FOLDER RANK``.

Reads the job of the folder, takes the GPU of its rank, and writes there what it was at (``RANK.at``) and what it found
(``RANK.json``) or why not (``RANK.error``).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

import c3lib.collectives as c3
from c3lib.cuda.activity import Activity, recorded, summary
from c3lib.cuda.device import open_device
from c3lib.cuda.setting import NO_TRANSFER
from c3lib.errors import C3Error
from c3lib.files import write_text
from c3lib.measure.fsdp_model import build, without_copies, zero_cta
from c3lib.measure.fsdp_step import UNSHARDED, ZERO_CTA, Job, read_job

BATCHES = 16
AHEAD_CYCLES = 10_000_000  # some 5 ms, in which the host gets ahead of the GPU
WAIT_S = 45


@dataclass
class Arm:
    """A model, its optimizer, and how many steps it has made."""

    name: str
    model: nn.Module
    optimizer: Any
    turn: int = 0


class Rank:
    """This process's side."""

    def __init__(self, job: Job, rank: int, folder: Path):
        self.job, self.rank, self.folder = job, rank, folder
        self.device = torch.device("cpu") if job.device == "cpu" else torch.device("cuda", rank)
        self.gpu = self.device.type == "cuda"
        self.mesh = init_device_mesh(self.device.type, (job.ranks,))
        self.batches: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def at(self, stage: str) -> None:
        """Say what is being done, for whoever watches."""
        write_text(self.folder / f"{self.rank}.at", stage)

    def run(self) -> dict[str, Any]:
        """All arms: built, timed in shuffled rounds, then their paths, final shards and the negative control."""
        job = self.job
        found: dict[str, Any] = {}
        arms, left_out = self._arms()
        self._draw_batches()
        found["begun"] = {size: {arm.name: self._loss(arm, size) for arm in arms} for size, _, _ in job.sizes}
        whole: Any = next(arm for arm in arms if arm.name == UNSHARDED).model
        found["parameter_bytes"], found["block_bytes"] = map(_nbytes, (whole, whole.blocks[0]))
        runs, order = [], random.Random(job.seed)
        for repetition in range(-1, job.repeats):  # -1 warms up
            sizes = [size for size, _, _ in job.sizes]
            order.shuffle(sizes)
            for size in sizes:
                for arm in order.sample(arms, len(arms)):
                    self.at(f"arm {arm.name}, size {size}, repetition {repetition}")
                    seconds, losses = self._timed(arm, size)
                    if repetition >= 0:
                        run = {"size": size, "arm": arm.name, "repetition": repetition}
                        runs.append({**run, "seconds": seconds, "losses": losses})
        paths = {}
        for arm in arms:
            try:
                paths[arm.name] = self._path(arm)
            except C3Error as error:
                if arm.name != ZERO_CTA:  # a policy that NCCL may ignore; where it does, the arm is none
                    raise
                left_out = str(error)
        return {**found, "runs": runs, "path": paths, "left_out": left_out, **self._compared(arms)}

    def _arms(self) -> tuple[list[Arm], str]:
        arms, left_out = [], ""
        for name in self.job.arms:
            self.at(f"arm {name}, building its model")
            hook = None
            if name == ZERO_CTA:
                hook, left_out = zero_cta(self.device)
                if hook is None:
                    continue
            arms.append(Arm(name, *build(self.job, name, self.device, self.mesh, hook)))
        if self.gpu:
            torch.cuda.empty_cache()  # of whole models
        return arms, left_out

    def _draw_batches(self) -> None:
        generator = torch.Generator().manual_seed(self.job.seed + 1000 * (1 + self.rank))
        for size, sequences, length in self.job.sizes:
            shape = (BATCHES, sequences, length + 1)
            drawn = torch.randint(0, self.job.vocabulary, shape, generator=generator).to(self.device)
            self.batches[size] = [(each[:, :-1].contiguous(), each[:, 1:].contiguous()) for each in drawn]

    def _loss(self, arm: Arm, size: str) -> str:
        """Of the first batch, by a forward pass only."""
        self.at(f"arm {arm.name}, size {size}, a forward pass")
        with torch.no_grad():
            return float(arm.model(*self.batches[size][0])).hex()

    def _step(self, arm: Arm, size: str) -> torch.Tensor:
        # Unsharded weights stay, so with one batch the loss has to stay as well.
        words, targets = self.batches[size][0 if arm.name == UNSHARDED else arm.turn % BATCHES]
        arm.turn += 1
        loss = arm.model(words, targets)
        loss.backward()
        arm.optimizer.step()
        arm.model.zero_grad()  # not the optimizer's, which unsharded has a share only
        return loss.detach()

    def _timed(self, arm: Arm, size: str) -> tuple[float, list[str]]:
        """Seconds of a few steps by this rank's events, and the losses."""
        if self.gpu:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda._sleep(AHEAD_CYCLES)
            start.record()
            losses = [self._step(arm, size) for _ in range(self.job.steps)]
            end.record()
            torch.cuda.synchronize()
            seconds = start.elapsed_time(end) * 1e-3
        else:
            dist.barrier()
            begin = time.perf_counter()
            losses = [self._step(arm, size) for _ in range(self.job.steps)]
            seconds = time.perf_counter() - begin
        return seconds, [float(loss).hex() for loss in losses]

    def _path(self, arm: Arm) -> str:
        """What moved the parameters in one more step, as rank 0's GPU recorded it."""
        self.at(f"arm {arm.name}, proving its path")

        def once() -> None:
            self._step(arm, self.job.sizes[0][0])
            if self.gpu:
                torch.cuda.synchronize()

        if not self.gpu or self.rank:
            once()
            return NO_TRANSFER if arm.name == UNSHARDED else "no GPU"
        return path_of(arm.name, recorded(once))

    def _compared(self, arms: list[Arm]) -> dict[str, Any]:
        """Whether the shards are those of the first arm to the last bit, and the loss with copies left out."""
        self.at("comparing the arms' shards")
        plain, sharded = arms[0], [arm for arm in arms if arm.name != UNSHARDED]
        equal = {
            arm.name: all(
                torch.equal(_local(ours), _local(theirs))
                for ours, theirs in zip(arm.model.parameters(), plain.model.parameters(), strict=True)
            )
            for arm in sharded
        }
        size = self.job.sizes[0][0]
        engine = next(arm for arm in arms if arm.name == "copy_engine")
        whole = self._loss(engine, size)
        if self.gpu:
            torch.cuda.synchronize()
        dist.barrier()
        without = without_copies(self.mesh.get_group(), lambda: self._loss(engine, size))
        return {"shards_equal": equal, "control": (whole, without)}


def _nbytes(module: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _local(parameter: Any) -> torch.Tensor:
    """This rank's shard."""
    return parameter.to_local()


def path_of(arm: str, ran: list[Activity]) -> str:
    """What of a step's activity moved parameters between GPUs, in words.

    Raises:
        C3Error: it is not what the arm's name says.
    """
    moved = [a for a in ran if a.short_name.startswith("Memcpy PtoP") or "nccl" in a.short_name.lower()]
    copies = sum(a.kind == "memcpy" for a in moved)
    gathers = sum(a.kind == "kernel" and "AllGather" in a.short_name for a in moved)
    if arm == UNSHARDED:
        if moved:
            raise C3Error(f"fsdp_step: the unsharded model moved something between GPUs: {summary(moved)}")
        return NO_TRANSFER
    if (arm == "nccl") != (gathers > 0) or (arm == "nccl") == (copies > 0):
        raise C3Error(f"fsdp_step: arm {arm} took another path than its name says: {summary(moved)}")
    return f"{summary(moved)} (activity records of one step on rank 0)"


def settle(job: Job, rank: int) -> contextlib.AbstractContextManager:
    """Take the GPU, if any, and make every kernel give the same bits each time."""
    torch.use_deterministic_algorithms(True)  # only warning, flash attention would stay as it is
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # it would fill each output before it is gathered
    if job.device == "cpu":
        return contextlib.nullcontext()
    open_device(rank)
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


def main(folder: Path, rank: int) -> None:
    """Run and leave at once: tearing down a library's communicators has been seen to hang (Megatron-LM #5858)."""
    job = read_job(folder)
    try:
        with settle(job, rank):
            start, limit = f"file://{folder}/start", timedelta(seconds=WAIT_S)
            dist.init_process_group(job.arms[0], start, limit, job.ranks, rank)
            c3.set_timeout(WAIT_S)
            side = Rank(job, rank, folder)
            found = side.run()
        write_text(folder / f"{rank}.json", json.dumps(found))
        side.at("giving back what it took")
        c3.destroy(side.mesh.get_group())
        dist.barrier()
    except BaseException as error:
        traceback.print_exc()
        words = (str(error).strip().splitlines() or ["no word"])[0]
        write_text(
            folder / f"{rank}.error", words if isinstance(error, C3Error) else f"{type(error).__name__}: {words}"
        )
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
