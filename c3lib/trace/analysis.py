"""What a trace says of overlap: for each GPU how much communication is exposed, and what each overlap costs.

Communication is collectives and copies between GPUs; copies from and to the host are counted beside it, copies within
a GPU and fills as neither. *Exposed* is the time in which communication runs and no compute kernel does. A kernel is
*alone* while nothing else runs on its GPU, from its start to its end; a slowdown is its median time beside the other
over its median time alone, elsewhere in the same trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from c3lib.trace import names
from c3lib.trace.intervals import Spans, covered, groups, together, within
from c3lib.trace.kernel import Kernel
from c3lib.trace.record import Record, record

MOST_TRANSFERS = 50
"""Different transfers of a GPU whose overlaps are told apart, those that take longest; of the rest the time counts."""

NONE = float("nan")


@dataclass(frozen=True)
class Hidden:
    """A kind of transfer on one GPU: seconds in which it runs, with no compute kernel (exposed), and with a GEMM."""

    time_s: float
    exposed_s: float
    beside_gemms_s: float

    @property
    def overlapped_s(self) -> float:
        """Seconds in which it runs and a compute kernel too."""
        return self.time_s - self.exposed_s


@dataclass(frozen=True)
class Overlap:
    """All runs of one GEMM in which one transfer ran beside it for longer than any other did.

    Times are medians in seconds, NaN for a kernel that was never alone; ``lost_s`` is the sum over the runs of what
    they took beyond the GEMM's time alone.
    """

    gemm: Kernel
    transfer: Kernel
    runs: int
    overlapped_s: float  # of all runs together
    gemm_s: float
    gemm_alone_s: float
    gemm_alone_runs: int
    transfer_s: float  # of the transfer's own runs beside any GEMM
    transfer_alone_s: float
    transfer_alone_runs: int
    lost_s: float

    @property
    def gemm_slowdown(self) -> float:
        """NaN where the GEMM was never alone."""
        return self.gemm_s / self.gemm_alone_s

    @property
    def transfer_slowdown(self) -> float:
        """NaN where the transfer was never alone."""
        return self.transfer_s / self.transfer_alone_s


@dataclass(frozen=True)
class Stream:
    """One stream of a GPU: seconds in which it runs anything, GEMMs, transfers of any kind."""

    stream: str
    activities: int
    busy_s: float
    gemm_s: float
    transfer_s: float


@dataclass(frozen=True)
class Device:
    """One GPU of one trace; times in seconds. ``title`` is empty where the trace does not name the GPU."""

    file: str
    device: int
    title: str
    evidence: str
    complete: bool
    activities: int
    streams: tuple[Stream, ...]
    span_s: float
    busy_s: float
    gemm_s: float
    compute_s: float  # GEMMs and all other kernels that are no collective
    communication: Hidden
    host_copies: Hidden
    overlaps: tuple[Overlap, ...]  # those that lose most first, then those without a time alone


def analyze(
    files: Sequence[Path], advance: Callable[[int], Any] = lambda nbytes: None, partial: bool = False
) -> list[Device]:
    """Every GPU of every trace, in the order of the files. One file is held at a time.

    Raises:
        C3Error: as :func:`c3lib.trace.record.record`.
    """
    return [device for file in files for device in devices(record(file, advance, partial))]


def devices(found: Record) -> list[Device]:
    """Every GPU of a record."""
    roles = np.array([names.ROLES.index(kernel.role) for kernel in found.kernels])[found.kernel]
    return [_device(found, roles[own], number, own) for number, own in groups(found.device).items()]


def _device(found: Record, role: NDArray, number: int, own: NDArray) -> Device:
    start, end, kernel = found.start_ns[own], found.end_ns[own], found.kernel[own]

    def among(*wanted: str) -> NDArray:
        return np.isin(role, [names.ROLES.index(name) for name in wanted])

    def spans(chosen: NDArray) -> Spans:
        return covered(start[chosen], end[chosen])

    gemm = among(names.GEMM)
    compute, gemms = spans(among(*names.COMPUTE)), spans(gemm)

    def hidden(*wanted: str) -> Hidden:
        transfers = spans(among(*wanted))
        exposed = together(transfers, compute).length - compute.length
        beside = transfers.length + gemms.length - together(transfers, gemms).length
        return Hidden(transfers.length / 1e9, exposed / 1e9, beside / 1e9)

    transfer = among(*names.COMMUNICATION, names.HOST_COPY)

    def stream(one: int, mine: NDArray) -> Stream:
        times = (spans(mine[chosen[mine]]).length / 1e9 for chosen in (np.ones_like(gemm), gemm, transfer))
        return Stream(found.streams[one], mine.size, *times)

    alone = (within(covered(start, end, least=2), start, end) == 0) & (end > start)
    return Device(
        file=str(found.path),
        device=number,
        title=found.titles.get(number, ""),
        evidence=found.evidence,
        complete=found.complete,
        activities=own.size,
        streams=tuple(stream(*one) for one in groups(found.stream[own]).items()),
        span_s=(int(end.max()) - int(start.min())) / 1e9,
        busy_s=covered(start, end).length / 1e9,
        gemm_s=gemms.length / 1e9,
        compute_s=compute.length / 1e9,
        communication=hidden(*names.COMMUNICATION),
        host_copies=hidden(names.HOST_COPY),
        overlaps=_overlaps(found.kernels, start, end, kernel, gemm, transfer, gemms, alone),
    )


def _overlaps(
    kernels: Sequence[Kernel],
    start: NDArray,
    end: NDArray,
    kernel: NDArray,
    gemm: NDArray,
    transfer: NDArray,
    gemms: Spans,
    alone: NDArray,
) -> tuple[Overlap, ...]:
    length = end - start
    begins, ends = start[gemm], end[gemm]
    most = np.zeros(begins.size, np.int64)  # nanoseconds beside the transfer that ran longest beside each GEMM
    partner = np.full(begins.size, -1)
    for one in _longest(kernel[transfer], length[transfer]):
        chosen = kernel == one
        beside = within(covered(start[chosen], end[chosen]), begins, ends)
        partner, most = np.where(beside > most, one, partner), np.maximum(beside, most)
    met = partner >= 0
    if not met.any():
        return ()
    times_alone = _medians(kernel[alone], length[alone])
    with_gemm = transfer.copy()
    with_gemm[transfer] = within(gemms, start[transfer], end[transfer]) > 0
    transfer_times = _medians(kernel[with_gemm], length[with_gemm])
    pair = kernel[gemm][met] * len(kernels) + partner[met]
    gemm_times, overlapped = _grouped(pair, length[gemm][met]), _grouped(pair, most[met])
    rows = []
    for both, times in gemm_times.items():
        one, other = divmod(both, len(kernels))
        gemm_alone_s, gemm_runs = times_alone.get(one, (NONE, 0))
        transfer_alone_s, transfer_runs = times_alone.get(other, (NONE, 0))
        rows.append(
            Overlap(
                gemm=kernels[one],
                transfer=kernels[other],
                runs=times.size,
                overlapped_s=float(overlapped[both].sum(dtype=float)) / 1e9,
                gemm_s=float(np.median(times)) / 1e9,
                gemm_alone_s=gemm_alone_s,
                gemm_alone_runs=gemm_runs,
                transfer_s=transfer_times[other][0],
                transfer_alone_s=transfer_alone_s,
                transfer_alone_runs=transfer_runs,
                lost_s=float(times.sum(dtype=float)) / 1e9 - times.size * gemm_alone_s,
            )
        )
    rows.sort(key=lambda row: (np.isnan(row.lost_s), -np.nan_to_num(row.lost_s), -row.overlapped_s))
    return tuple(rows)


def _longest(kernel: NDArray, length: NDArray) -> list[int]:
    """The transfers that take longest in all, in order."""
    if not kernel.size:
        return []
    sums = np.bincount(kernel, length.astype(float))
    order = np.argsort(-sums, kind="stable")[:MOST_TRANSFERS]
    return [int(one) for one in order if sums[one] > 0]


def _grouped(key: NDArray, values: NDArray) -> dict[int, NDArray]:
    """The values of each key."""
    return {one: values[places] for one, places in groups(key).items()}


def _medians(key: NDArray, length_ns: NDArray) -> dict[int, tuple[float, int]]:
    """Median in seconds, and number, of each key's lengths."""
    if not key.size:
        return {}
    return {one: (float(np.median(part)) / 1e9, part.size) for one, part in _grouped(key, length_ns).items()}
