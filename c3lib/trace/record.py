"""What the analysis needs of a trace: each GPU activity as a few numbers, each different kernel once.

Times are whole nanoseconds, so that sums and differences of them are exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c3lib.errors import C3Error
from c3lib.trace import names
from c3lib.trace.stream import Reader
from c3lib.trace.values import LONGEST_NAME, Wrong, clean, count, is_whole, name_of, sizes, time_ns

MOST_ACTIVITIES = 3_000_000
MOST_KERNELS = 100_000
"""Of different names, launch sizes and shapes; a training step has hundreds."""

MOST_CHARACTERS = 8 * 2**20
"""Of their names together."""

_LINKS = ("cpu_op", "operator")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime")


@dataclass(frozen=True)
class Kernel:
    """What makes two activities the same work: equal names, launch sizes and shapes.

    ``grid`` and ``block`` are empty where the trace has none; ``shape`` is ``(m, n, k, batch, dtype)`` of a GEMM or
    None; ``collective`` the kind, ``nbytes`` and ``ranks`` of a transfer, empty and 0 where the trace does not say.
    """

    role: str
    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    collective: str = ""
    nbytes: int = 0
    ranks: int = 0
    shape: tuple[int, int, int, int, str] | None = None


@dataclass
class Record:
    """Activities as columns, all of one length: ``start_ns``, ``end_ns``, ``device``, ``stream``, ``kernel``.

    ``kernel`` counts in ``kernels``, ``stream`` is a number of its own for each stream of a device. ``titles`` names
    devices, ``events`` counts all events read, ``complete`` is False for a part of a trace; ``evidence`` is what the
    trace says of itself, which only ours do.
    """

    path: Path
    kernels: list[Kernel]
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
        C3Error: what the reader raises; no GPU activity; a time that is no number, negative or missing; more
            activities or different kernels than :data:`MOST_ACTIVITIES` and :data:`MOST_KERNELS`.
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
                kept.operator(event)
            elif category in _LAUNCHES:
                kept.launch(event)
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
    streams: dict[tuple[int, Any], int] = field(default_factory=dict)
    operators: tuple[array, array] = field(default_factory=lambda: (array("q"), array("q")))  # external, what
    launches: tuple[array, array] = field(default_factory=lambda: (array("q"), array("q")))  # correlation, external
    whats: dict[Any, int] = field(default_factory=dict)  # shapes of GEMMs and what collectives send, numbered
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
        device = device if is_whole(device) else -1
        stream = told.get("stream", event.get("tid"))
        stream = stream if is_whole(stream) else clean(stream)[:40]
        self.start.append(start)
        self.end.append(start + length)
        self.device.append(device)
        self.stream.append(self._number(self.streams, (device, stream), "streams"))
        self.kernel.append(self._kernel(category, event, told))
        for column, key in ((self.external, "External id"), (self.correlation, "correlation")):
            column.append(told[key] if is_whole(told.get(key)) else 0)

    def operator(self, event: dict[str, Any]) -> None:
        """Keep the shapes of an operator that launches GEMMs, and what a collective was called with."""
        name, told = event.get("name"), event.get("args")
        if not isinstance(name, str) or not isinstance(told, dict) or not is_whole(told.get("External id")):
            return
        what: Any = None
        if name in names.MATMULS:
            what = names.gemm_shape(name, told)
        elif name == "record_param_comms":
            what = names.sent(told)
        if what:
            self._link(self.operators, told["External id"], self._number(self.whats, what, "shapes") + 1)

    def launch(self, event: dict[str, Any]) -> None:
        """Keep which operator a launch belongs to."""
        told = event.get("args")
        if isinstance(told, dict) and is_whole(told.get("correlation")) and is_whole(told.get("External id")):
            self._link(self.launches, told["correlation"], told["External id"])

    def done(self, reader: Reader) -> Record:
        """All of it, each activity with what its operator says of it."""
        external = np.asarray(self.external)
        external = np.where(external > 0, external, _looked_up(self.launches, np.asarray(self.correlation)))
        # Numbers of kernels and of what operators say (0: nothing), as one number, to see each pair of them once.
        whats = [None, *self.whats]
        pairs = np.asarray(self.kernel) * len(whats) + _looked_up(self.operators, external)
        pairs, number = np.unique(pairs, return_inverse=True)
        known, kernels = list(self.kernels), dict[Kernel, int]()
        told = [_told(known[pair // len(whats)], whats[pair % len(whats)]) for pair in pairs.tolist()]
        place = [kernels.setdefault(kernel, len(kernels)) for kernel in told]
        return Record(
            path=reader.path,
            kernels=list(kernels),
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
        name, sent = event.get("name"), names.sent(told)
        name = name if isinstance(name, str) and len(name) <= LONGEST_NAME else name_of(name)
        grid, block, nbytes = sizes(told.get("grid")), sizes(told.get("block")), count(told.get("bytes"))
        between = category == "memcpy" and count(told.get("fromDevice")) != count(told.get("toDevice"))
        shape = names.gemm_shape("aten::mm", told) if "Input Dims" in told else None
        key = (category, name, grid, block, nbytes, sent, between, shape)
        if key not in self._seen:
            self._chars += len(name) + 50  # and the rest of what tells one from another
            if self._chars > MOST_CHARACTERS:
                raise Wrong(f"the names of different kernels take more than {MOST_CHARACTERS >> 20} MiB")
            role = names.PEER_COPY if between else names.role(category, name)
            kind = names.kind(name) if role == names.COLLECTIVE else ""
            kernel = _told(_told(Kernel(role, clean(name), grid, block, kind, nbytes), sent), shape)
            self._seen[key] = self._number(self.kernels, kernel, "kernels")
        return self._seen[key]

    @staticmethod
    def _number(known: dict[Any, int], what: Any, called: str) -> int:
        if what not in known and len(known) >= MOST_KERNELS:
            raise Wrong(f"more than {MOST_KERNELS} different {called}: no program on GPUs has so many")
        return known.setdefault(what, len(known))

    @staticmethod
    def _link(table: tuple[array, array], key: int, value: int) -> None:
        if len(table[0]) >= 2 * MOST_ACTIVITIES:
            raise Wrong(f"more than {2 * MOST_ACTIVITIES} launches: profile fewer steps")
        table[0].append(key)
        table[1].append(value)


def _told(kernel: Kernel, what: Any) -> Kernel:
    """The kernel with what its operator says: ``(m, n, k, batch, dtype)`` of a GEMM, ``(kind, nbytes, ranks)`` sent."""
    if not what:
        return kernel
    if len(what) == 5:
        return replace(kernel, shape=what) if kernel.role == names.GEMM else kernel
    if kernel.role not in (names.COLLECTIVE, names.KERNEL, names.PEER_COPY, names.LOCAL_COPY) or not what[0]:
        return kernel
    # A copy that a collective's operator issued is the collective, by DMA engines; a kernel, one of unknown name.
    known = kernel.collective if what[0] == "collective" else what[0]
    nbytes = what[1] or (kernel.nbytes if kernel.role != names.COLLECTIVE else 0)
    return replace(kernel, role=names.COLLECTIVE, collective=known, nbytes=nbytes, ranks=what[2])


def _looked_up(table: tuple[array, array], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Values for the wanted keys; 0 for those that are 0 or not in the table."""
    keys, values = (np.asarray(column) for column in table)
    if not keys.size:
        return np.zeros_like(wanted)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    place = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
    return np.where((keys[place] == wanted) & (wanted > 0), values[place], 0)


def _titles(properties: Any) -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in properties[:64] if isinstance(properties, list) else ():
        if isinstance(entry, dict) and is_whole(entry.get("id")) and isinstance(entry.get("name"), str):
            found[entry["id"]] = clean(entry["name"])[:80]
    return found


def _evidence(about: Any) -> str:
    label = about.get("evidence") if isinstance(about, dict) else None
    return label if label in ("modelled", "measured") else "recorded by a profiler"
