"""What the analysis needs of a trace: each GPU activity as a few numbers, each different kernel once.

Times are whole nanoseconds, so that sums and differences of them are exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c3lib.errors import C3Error
from c3lib.trace import names
from c3lib.trace.kernel import Kernel, Launch, Sent, Shape
from c3lib.trace.links import Links, number_of
from c3lib.trace.stream import Reader
from c3lib.trace.values import LONGEST_NAME, Wrong, clean, count, is_whole, name_of, time_ns

MOST_ACTIVITIES = 3_000_000
MOST_DEVICES = 1024
MOST_STREAMS = 10_000
MOST_CHARACTERS = 8 * 2**20
"""Of the names of all different kernels; a training step has hundreds."""

_LINKS = ("cpu_op", "operator")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime")


@dataclass
class Record:
    """Activities as columns, all of one length: ``start_ns``, ``end_ns``, ``device``, ``stream``, ``kernel``.

    ``kernel`` counts in ``kernels``, ``stream`` in ``streams``, the names of all devices' streams. ``titles`` names
    devices, ``events`` counts all events read, ``complete`` is False for a part of a trace; ``evidence`` is what the
    trace says of itself, which only ours do.
    """

    path: Path
    kernels: list[Kernel]
    streams: list[str]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    kernel: NDArray[np.int64]
    titles: Mapping[int, str]
    events: int
    complete: bool
    evidence: str


def record(path: Path, advance: Callable[[int], Any] = lambda nbytes: None, partial: bool = False) -> Record:
    """Read a trace. ``advance`` and ``partial`` as :class:`c3lib.trace.stream.Reader` takes them.

    Raises:
        C3Error: what the reader raises; no GPU activity; a time that is no number, negative or missing; more than
            :data:`MOST_ACTIVITIES`, or other limits that keep the memory bounded.
    """
    reader, kept = Reader(path, advance, partial), _Kept()
    for event in reader:
        category = event.get("cat")
        if not isinstance(category, str):
            continue
        category = category.lower()
        try:
            if category in names.CATEGORIES:
                if event.get("ph") == "X":
                    kept.activity(names.CATEGORIES[category], event)
            elif category in _LINKS:
                kept.links.operator(event)
            elif category in _LAUNCHES:
                kept.links.launch(event)
        except Wrong as wrong:
            what = f"event {reader.count} ({clean(event.get('name'))[:60]!r})"
            raise C3Error(f"{path}: {what}: {wrong}") from None
    if not kept.start:
        raise C3Error(f"{path}: no GPU kernel among {reader.count} events: profile with ProfilerActivity.CUDA")
    return kept.done(reader)


@dataclass
class _Kept:
    start: array = field(default_factory=lambda: array("q"))
    end: array = field(default_factory=lambda: array("q"))
    device: array = field(default_factory=lambda: array("q"))
    stream: array = field(default_factory=lambda: array("q"))
    kernel: array = field(default_factory=lambda: array("q"))
    external: array = field(default_factory=lambda: array("q"))  # of the operator that launched it; 0: not said
    correlation: array = field(default_factory=lambda: array("q"))
    kernels: dict[Kernel, int] = field(default_factory=dict)
    devices: set[int] = field(default_factory=set)
    streams: dict[tuple[int, Any], int] = field(default_factory=dict)
    links: Links = field(default_factory=Links)
    _seen: dict[Any, int] = field(default_factory=dict)
    _chars: int = 0

    def activity(self, category: str, event: dict[str, Any]) -> None:
        """Keep a GPU activity."""
        if len(self.start) >= MOST_ACTIVITIES:
            raise Wrong(f"more than {MOST_ACTIVITIES} GPU activities: profile fewer steps")
        start, length = time_ns(event, "ts"), time_ns(event, "dur")
        if length < 0:
            raise Wrong(f"'dur' must be at least 0, not {length / 1e3:g}")
        told = event.get("args")
        told = told if isinstance(told, dict) else {}
        device = next((told[key] for key in ("device", "inDevice") if is_whole(told.get(key))), event.get("pid"))
        device = device if isinstance(device, int) and is_whole(device) else -1
        self.devices.add(device)
        if len(self.devices) > MOST_DEVICES:
            raise Wrong(f"more than {MOST_DEVICES} GPUs: analyse the traces of the ranks one by one")
        stream = told.get("stream", event.get("tid"))
        stream = stream if is_whole(stream) else clean(stream)[:40]
        self.start.append(start)
        self.end.append(start + length)
        self.device.append(device)
        self.stream.append(number_of(self.streams, (device, stream), "streams", MOST_STREAMS))
        self.kernel.append(self._kernel(category, event, told))
        for column, key in ((self.external, "External id"), (self.correlation, "correlation")):
            column.append(told[key] if is_whole(told.get(key)) else 0)

    def done(self, reader: Reader) -> Record:
        """All of it, each activity with what its operator says of it."""
        # Numbers of kernels and of what links tell, as one number, to see each pair of them once.
        linked, facts = self.links.facts(np.asarray(self.external), np.asarray(self.correlation))
        pairs, number = np.unique(np.asarray(self.kernel) * len(facts) + linked, return_inverse=True)
        known, kernels = list(self.kernels), dict[Kernel, int]()
        place = []
        for one, told in (divmod(pair, len(facts)) for pair in pairs.tolist()):
            kernel = reduce(lambda kernel, fact: fact.on(kernel), facts[told], known[one])
            place.append(kernels.setdefault(kernel, len(kernels)))
        return Record(
            path=reader.path,
            kernels=list(kernels),
            streams=[str(stream) for _, stream in self.streams],
            start_ns=np.asarray(self.start),
            end_ns=np.asarray(self.end),
            device=np.asarray(self.device),
            stream=np.asarray(self.stream),
            kernel=np.array(place)[number],
            titles=_titles(reader.about.get("deviceProperties")),
            events=reader.count,
            complete=reader.complete,
            evidence=_evidence(reader.about.get("c3lib")),
        )

    def _kernel(self, category: str, event: dict[str, Any], told: dict[str, Any]) -> int:
        name = event.get("name")
        name = name if isinstance(name, str) and len(name) <= LONGEST_NAME else name_of(name)
        launch, sent, nbytes = Launch.of(told), Sent.of(told), count(told.get("bytes"))
        between = category == "memcpy" and count(told.get("fromDevice")) != count(told.get("toDevice"))
        shape = Shape.of("aten::mm", told) if "Input Dims" in told else None
        key = (category, name, launch, nbytes, sent, between, shape)
        if key not in self._seen:
            self._chars += len(name) + 50  # and the rest of what tells one from another
            if self._chars > MOST_CHARACTERS:
                raise Wrong(f"the names of different kernels take more than {MOST_CHARACTERS >> 20} MiB")
            role = names.PEER_COPY if between else names.role(category, name)
            kind = names.kind(name) if role == names.COLLECTIVE else ""
            kernel = Kernel(role, clean(name), *launch, kind, nbytes)
            kernel = sent.on(kernel) if sent else kernel
            kernel = shape.on(kernel) if shape else kernel
            self._seen[key] = number_of(self.kernels, kernel, "kernels")
        return self._seen[key]


def _titles(properties: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in properties[:64] if isinstance(properties, list) else ():
        if isinstance(entry, dict) and is_whole(entry.get("id")) and isinstance(entry.get("name"), str):
            found[entry["id"]] = clean(entry["name"])[:80]
    return found


def _evidence(about: Any) -> str:
    label = about.get("evidence") if isinstance(about, dict) else None
    return label if label in ("modelled", "measured") else "recorded by a profiler"
