"""What the GPUs really ran, as CUPTI recorded it: kernels with their grids, copies, fills.

By the profiler of torch and the Chrome trace that it writes, which hold the same in all its versions.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, Iterable, Mapping

from c3lib.errors import C3Error

CATEGORIES = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
"""Categories of a trace that run on a GPU, and what they are called here."""
_MARK_NBYTES = 12_289  # of the copy that proves that something is recorded at all


@dataclass(frozen=True)
class Activity:
    """One thing that a GPU ran; ``start_s`` counts from the first one of the record.

    ``kind`` is ``kernel``, ``memcpy`` or ``memset``; ``device`` the GPU that ran it; ``grid`` the thread blocks of a
    kernel along x, y and z, None for others; ``nbytes`` what a copy or a fill moved, 0 for a kernel.
    """

    kind: str
    name: str
    device: int
    stream: int
    start_s: float
    duration_s: float
    grid: tuple[int, ...] | None
    nbytes: int

    @property
    def blocks(self) -> int:
        """Thread blocks of a kernel, 0 for others."""
        return math.prod(self.grid) if self.grid else 0

    @property
    def short_name(self) -> str:
        """The name without return type, template arguments, parameters and kinds of memory."""
        name = self.name.removeprefix("void ").replace("(anonymous namespace)::", "")
        return name.split("<")[0].split("(")[0].strip()


def recorded(run: Callable[[], None]) -> list[Activity]:
    """What the GPUs ran during ``run``, which has to wait for all that it started; in order of their start.

    Raises:
        C3Error: there is no GPU, or the profiler records nothing, as when another one is at work.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        raise C3Error("a record of GPU activity needs an NVIDIA GPU and a torch built for CUDA")
    mark = torch.zeros(_MARK_NBYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        mark.cpu()
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        found = parse_trace(json.loads(file.read_text(encoding="utf-8", errors="replace")))
    marks = [activity for activity in found if activity.kind == "memcpy" and activity.nbytes == _MARK_NBYTES]
    if not marks:
        raise C3Error(
            "the profiler recorded no activity of the GPU: is another profiler at work, or CUPTI not allowed?"
        )
    found.remove(marks[-1])
    return found


def parse_trace(trace: Mapping[str, Any]) -> list[Activity]:
    """The activities of a Chrome trace, in order of their start. Raises :class:`C3Error` for what is none."""
    events = trace.get("traceEvents") if isinstance(trace, Mapping) else None
    if not isinstance(events, list):
        raise C3Error("this is no Chrome trace: it has no list 'traceEvents'")
    chosen = [event for event in events if event.get("ph") == "X" and event.get("cat") in CATEGORIES]
    chosen.sort(key=lambda event: event["ts"])
    return [_activity(event, chosen[0]["ts"]) for event in chosen]


def _activity(event: Mapping[str, Any], first_us: float) -> Activity:
    told = event.get("args", {})
    # A copy between GPUs names three: the source, the target and the one that ran it.
    device = told.get("device", told.get("inDevice", event.get("pid", -1)))
    return Activity(
        kind=CATEGORIES[event["cat"]],
        name=event["name"],
        device=int(device),
        stream=int(told.get("stream", event.get("tid", -1))),
        start_s=(event["ts"] - first_us) * 1e-6,
        duration_s=event.get("dur", 0) * 1e-6,
        grid=tuple(told["grid"]) if "grid" in told else None,
        nbytes=int(told.get("bytes", 0)),
    )


def summary(activities: Iterable[Activity]) -> str:
    """One phrase: what ran, how often, kernels with their blocks, as ``Memcpy PtoP x2, copy x2 of 24 blocks``."""
    counts = Counter((activity.short_name, activity.blocks) for activity in activities)
    parts = [
        f"{name} x{count}" + (f" of {blocks} block{'s' * (blocks != 1)}" if blocks else "")
        for (name, blocks), count in sorted(counts.items())
    ]
    return ", ".join(parts) or "nothing"


def blocks(activities: Iterable[Activity]) -> int:
    """Thread blocks of the largest NCCL kernel, 0 if none ran."""
    return max((activity.blocks for activity in activities if activity.short_name.startswith("nccl")), default=0)
