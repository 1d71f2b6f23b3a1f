"""RCCL as the baseline on compute units: a plan's collective by AMD's library, on streams that may have a CU mask.

RCCL has NCCL's interface, so the clique of communicators is that of :mod:`c3lib.cuda.nccl_clique`, on RCCL's library.
"""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable, Sequence

from c3lib.amd.buffers import Buffers
from c3lib.amd.hip import Hip, Stream
from c3lib.amd.mask import CuMask
from c3lib.amd.runtime import Runtime
from c3lib.amd.work import HipWork, Work
from c3lib.cuda.nccl_clique import Clique
from c3lib.cuda.nccl_library import OLDEST, declare, version_of, version_text
from c3lib.errors import C3Error
from c3lib.transfer import RECEIVE, SEND

SONAME = "librccl.so.1"
OLDEST_RCCL = 21400
"""The first with a communicator's config."""

VARIANTS = {"rccl": "RCCL's own choice of kernels"}

SHORT_NBYTES = 16
"""Bytes by which each rank's count is too small in the negative control."""


@cache
def load_library() -> Any:
    """RCCL as torch loaded it, else of torch's folder, else of the system. Raises :class:`C3Error` without one."""
    tries = [(SONAME, os.RTLD_NOW | os.RTLD_NOLOAD)]
    if (torch := find_spec("torch")) and torch.origin:
        tries += [(str(path), os.RTLD_NOW) for path in sorted(Path(torch.origin).parent.glob("lib/librccl.so*"))]
    for name, mode in [*tries, (SONAME, os.RTLD_NOW)]:
        try:
            return declare(ctypes.CDLL(name, mode=mode))
        except OSError:
            continue
    raise C3Error(f"rccl: {SONAME} is neither loaded by torch nor found; install PyTorch for ROCm, which brings it")


def zero_cta(library: Any) -> str:
    """Whether RCCL could move bytes without compute units (``NCCL_CTA_POLICY_ZERO`` on windows), in one sentence."""
    version = version_of(library)
    if version >= OLDEST and hasattr(library, "ncclCommWindowRegister"):
        return (
            f"RCCL {version_text(version)} has windows and a policy of zero CTAs; not measured here, as it takes only "
            "memory of ncclMemAlloc, which the buffers of our engines are not"
        )
    return f"RCCL {version_text(version)} has no policy of zero CTAs; it comes with ROCm 7.12"


@dataclass(frozen=True)
class _Gpu:
    """What a clique needs to know of a GPU: HIP's number of it, and how it becomes the current one."""

    index: int
    torch: Any

    def current(self) -> Any:
        return self.torch.cuda.device(self.index)


@cache
def clique(hip: Hip) -> Clique:
    """The communicators of all ranks, made once."""
    gpus: Any = [_Gpu(index, hip.torch) for index in hip.indices]
    return Clique(gpus, library=load_library(), oldest=OLDEST_RCCL)


class Rccl:
    """The collective of a plan by RCCL, in place: a rank's own shard stays where it is.

    An all-to-all is sends and receives among peers. It is run here, once to connect peers and once recorded: ``path``
    says which kernels ran, ``blocks`` how many workgroups they had on a GPU. So prepare the buffers after this.
    ``drop``: every rank's count is 16 bytes too small, whichever copy it names.

    Raises:
        C3Error: another collective, unequal shards, no RCCL, a refusal of RCCL, kernels that no record shows.
    """

    def __init__(
        self, runtime: Runtime, hip: Hip, buffers: Buffers, mask: CuMask | None, high: bool, drop: int | None = None
    ) -> None:
        plan = buffers.plan
        if plan.kind not in ("all-gather", "all-to-all"):
            raise C3Error(f"{plan}: rccl knows 'all-gather' and 'all-to-all', not {plan.kind!r}")
        if plan.nbytes % plan.ranks or not plan.nbytes:
            raise C3Error(f"{plan}: rccl needs equal shards, so a number of bytes that {plan.ranks} divides")
        self._runtime, self._hip, self._buffers, self._clique = runtime, hip, buffers, clique(hip)
        self._streams = [hip.stream(rank, mask, high, user="rccl") for rank in range(plan.ranks)]
        self._shard = plan.nbytes // plan.ranks
        self._count = self._shard if drop is None else max(self._shard - SHORT_NBYTES, 0)
        buffers.open_to_all()  # within one process RCCL may read a peer's send buffer; in place, its receive buffer
        self.work(None).warm()
        try:
            kernels = recorded(hip, lambda: self._enqueue(self._streams))
        except BaseException:
            buffers.abandon()
            raise
        self.blocks = max(blocks for _, blocks in kernels)
        names = ", ".join(f"{name} x {count}" for name, count in Counter(name for name, _ in kernels).items())
        where = f" on {mask}" if mask else ""
        self.path = f"RCCL {self._clique.version}{where}: {names}, {self.blocks} workgroups a GPU (profiler's records)"

    def work(self, after: Work | None) -> HipWork:
        """The collective, launched after the kernels of ``after`` if those are on streams."""
        behind = after if isinstance(after, HipWork) else None
        what = f"RCCL's {self._buffers.plan}"
        abandon = self._buffers.abandon
        return HipWork(self._runtime, self._hip, self._streams, self._enqueue, what, behind, abandon)

    def _enqueue(self, streams: Sequence[Stream]) -> None:
        ranks = range(len(streams))
        handles = [stream.handle for stream in streams]
        receives = [self._buffers.address(rank, RECEIVE) for rank in ranks]
        if self._buffers.plan.kind == "all-gather":
            sends = [start + rank * self._count for rank, start in enumerate(receives)]
            self._clique.all_gather(sends, receives, self._count, handles)
        else:
            sends = [self._buffers.address(rank, SEND) for rank in ranks]
            self._clique.exchange(sends, receives, self._shard, self._count, handles)


def recorded(hip: Hip, run: Callable[[], None]) -> list[tuple[str, int]]:
    """Kernels that ran meanwhile, by torch's profiler: name and workgroups of each.

    Raises:
        C3Error: none was recorded, so nothing is known of what ran.
    """
    profiler = hip.torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
        run()
        hip.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return kernels_of(events)


def kernels_of(events: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    """Name and workgroups of each kernel in a trace. Raises :class:`C3Error` for none, or one without its grid."""
    found = []
    for event in events:
        if event.get("cat") == "kernel":
            grid = event.get("args", {}).get("grid")
            if not grid:
                raise C3Error(f"rccl: the profiler's record of {event['name']} has no grid; nothing is proved")
            found.append((str(event["name"]), int(grid[0]) * int(grid[1]) * int(grid[2])))
    if not found:
        raise C3Error("rccl: the profiler recorded no kernel; nothing is proved")
    return found
