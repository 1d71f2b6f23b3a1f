"""Programs run by real processes, one a rank, that exchange pieces through torch.distributed's gloo on the CPU.

Programs fetch, and gloo wants both ends of a message: each process reads from its peers' programs what they fetch from
it and sends that at once, since it has it from the start. A copy is under way from when its turn comes until a task
that waits for it, so that kernels and messages really overlap.

Run as a program, this is the process that loads torch once, becomes the ranks by forking, and ends them all when one
fails, when time is up, or when who asked for them is gone.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from multiprocessing.connection import wait
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from c3lib.errors import C3Error
from c3lib.ficco.execute import Data, apply, place, require_one_shape, require_same_problem, some_order, view
from c3lib.ficco.graph import COPY, Program, require_every_rank
from c3lib.files import ROOT

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_S = 86400.0
"""No limit exceeds a day."""

GRACE_S = 5.0
"""So much later than the ranks' limit the process above them is given up too."""
LOOK_S = 0.2


class Case(NamedTuple):
    """Programs of all ranks, in their order, what they start from, and the seed of a random order of tasks."""

    programs: tuple[Program, ...]
    data: Data
    seed: int | None = None


def run_processes(cases: Iterable[Case], limit_s: float = 60.0) -> list[list[Tensor]]:
    """The result C ``(m, n)`` of each rank, for each case; all cases one after another in the same processes.

    Raises:
        C3Error: no case, cases of different numbers of ranks, a limit that is no number of seconds up to
            :data:`LONGEST_S`, no room for files, a rank that failed (the first one's own words), or that they were not
            done after ``limit_s`` seconds. No process is left behind then, and no file.
    """
    cases = list(cases)
    numbers = sorted({len(case.programs) for case in cases})
    if len(numbers) != 1:
        raise C3Error(f"cases: expected some, all of one number of ranks, got {numbers or 'none'}")
    if not isinstance(limit_s, Real) or isinstance(limit_s, bool) or not 0 < limit_s <= LONGEST_S:
        raise C3Error(f"limit_s: expected a number of seconds above 0, at most {LONGEST_S:g}, got {limit_s!r}")
    for case in cases:
        require_every_rank(case.programs)
        require_same_problem(case.programs, case.data)
    try:
        with TemporaryDirectory(prefix="c3lib-") as name:
            return _ran(Path(name), cases, float(limit_s))
    except OSError as error:
        raise C3Error(
            f"ranks as processes: could not start, or there is no room for what they are given and give: {error}"
        ) from None


def _ran(folder: Path, cases: list[Case], limit_s: float) -> list[list[Tensor]]:
    """The results of all ranks; ``folder`` is empty, and holds what processes tell one another."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    (folder / "cases").write_bytes(pickle.dumps((cases, limit_s)))
    command = [sys.executable, "-m", "c3lib.ficco.processes", str(folder), str(os.getpid())]
    with open(folder / "log", "w") as log:
        leader = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            leader.wait(limit_s + GRACE_S)
        if leader.poll() != 0:
            raise C3Error(f"ranks as processes: {_verdict(folder, leader.poll(), limit_s)}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)  # the ranks are in its group
        leader.wait()
    return _results(folder, len(cases), len(cases[0].programs))


def _verdict(folder: Path, status: int | None, limit_s: float) -> str:
    with contextlib.suppress(OSError):
        return (folder / "verdict").read_text()
    lines = (folder / "log").read_text(errors="replace").strip().splitlines() or ["no word"]
    return _late(limit_s) if status is None else f"could not start (status {status}): {lines[-1]}"


def _late(limit_s: float) -> str:
    return f"not done after {limit_s:g} s, and ended"


def _results(folder: Path, cases: int, ranks: int) -> list[list[Tensor]]:
    import torch

    return [[torch.load(folder / f"{case}-{rank}.pt", weights_only=True) for rank in range(ranks)]
            for case in range(cases)]  # fmt: skip


# --- the process above the ranks ---


def lead(folder: Path, parent: int) -> int:
    """Fork the ranks and watch them; 0 when all ended well, else a sentence is in ``verdict``."""
    import torch.distributed  # noqa: F401  once, before forking

    began = time.monotonic()
    cases, limit_s = pickle.loads((folder / "cases").read_bytes())
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=_rank, args=(rank, cases, folder, limit_s)) for rank in range(len(cases[0].programs))]
    for process in ranks:
        process.start()
    said = ""
    while not said and any(process.exitcode is None for process in ranks):
        wait([process.sentinel for process in ranks if process.exitcode is None], LOOK_S)
        said = _words(folder, [process.exitcode for process in ranks])
        if not said and time.monotonic() - began > limit_s:
            said = _late(limit_s)
        if os.getppid() != parent:
            said = "who asked for them is gone"
    said = said or _words(folder, [process.exitcode for process in ranks])
    for process in ranks:
        process.kill()
        process.join()
    if said:
        (folder / "verdict").write_text(said)
    return int(bool(said))


def _words(folder: Path, statuses: list[int | None]) -> str:
    """Why ranks failed: one was ended by a signal, or what the first one to speak said; the others only miss it."""
    failed = {rank: status for rank, status in enumerate(statuses) if status}
    told = {int(path.stem): path.stat().st_mtime_ns for path in folder.glob("*.error")}
    for rank, status in failed.items():
        if rank not in told:
            return f"rank {rank} ended with status {status}"
    if not failed:
        return ""
    rank = min(told, key=told.__getitem__)
    return f"rank {rank}: {(folder / f'{rank}.error').read_text()}"


# --- one rank ---


def _rank(rank: int, cases: list[Case], folder: Path, limit_s: float) -> None:
    import torch
    import torch.distributed as dist

    try:
        ranks = len(cases[0].programs)
        store = dist.FileStore(str(folder / "store"), ranks)  # a file: no port that another may take
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=limit_s))
        tag = 0
        for number, case in enumerate(cases):
            content = io.BytesIO()  # torch's own words for a full disk tell nobody that it is
            torch.save(_result(rank, case, tag), content)
            (folder / f"{number}-{rank}.pt").write_bytes(content.getbuffer())
            tag += max(len(program.tasks) for program in case.programs)
        dist.barrier()  # nobody leaves while a peer may still want something
    except BaseException as error:
        words = str(error) if isinstance(error, C3Error) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # no room even for that: its status says that it failed
            scratch = folder / f"{rank}.part"
            scratch.write_text(" ".join(words.split()))
            scratch.rename(folder / f"{rank}.error")  # whole, or not there
        os._exit(1)
    os._exit(0)  # gloo's threads are not waited for


def _result(rank: int, case: Case, tag: int) -> Tensor:
    """Run one program; ``tag`` is that of the first task of all programs."""
    import torch
    import torch.distributed as dist

    program = case.programs[rank]
    buffers = place(program, case.data)
    sends: list[Any] = [
        dist.isend(view(buffers, task.a).contiguous(), dst=peer.rank, tag=tag + index)
        for peer in case.programs
        if peer.rank != rank
        for index, task in enumerate(peer.tasks)
        if task.op == COPY and task.a.rank == rank
    ]
    flying: dict[int, tuple[Any, Tensor]] = {}

    def land(index: int) -> None:
        if index in flying:
            work, parcel = flying.pop(index)
            work.wait()
            view(buffers, program.tasks[index].out).copy_(parcel)

    order = range(len(program.tasks)) if case.seed is None else some_order(program, case.seed + rank)
    for index in order:
        task = program.tasks[index]
        for other in task.after:
            land(other)
        if task.op == COPY:
            require_one_shape(task)
            parcel = torch.empty_like(view(buffers, task.out))
            flying[index] = dist.irecv(parcel, src=task.a.rank, tag=tag + index), parcel
        else:
            apply(task, {rank: buffers})
    for index in list(flying):
        land(index)
    for sent in sends:
        sent.wait()
    return buffers["c"]


def main(folder: Path, parent: int) -> int:
    """:func:`lead`; what is left of ``folder`` is removed if who asked can no longer do it."""
    try:
        return lead(folder, parent)
    finally:
        if os.getppid() != parent:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
