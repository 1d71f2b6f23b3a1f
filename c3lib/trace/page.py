"""An analysis as a shell prints it: a line a GPU, then the overlaps that lose most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from c3lib.terminal import number, paragraph, table
from c3lib.trace.advice import Answer
from c3lib.trace.analysis import Device, Hidden, Overlap
from c3lib.trace.kernel import Kernel
from c3lib.workload import format_size

WIDE = 140

Advised = Sequence[Sequence[Answer]]


def content(found: Sequence[Device], advised: Advised, top: int) -> list[dict[str, Any]]:
    """The analysis as plain values. ``advised``: what to change, as ``advise_overlaps`` has it; empty for nothing."""
    rows = []
    for device, answers in _each(found, advised):
        about = asdict(device) | {name: _hidden(getattr(device, name)) for name in ("communication", "host_copies")}
        about["overlaps"] = [
            asdict(overlap)
            | {"gemm_slowdown": overlap.gemm_slowdown, "transfer_slowdown": overlap.transfer_slowdown}
            | ({} if answer is None else {"advice": asdict(answer)})
            for overlap, answer in zip_longest(device.overlaps[:top], answers)
        ]
        rows.append(about | {"overlaps_found": len(device.overlaps)})
    return rows


def text(found: Sequence[Device], advised: Advised, top: int) -> str:
    """The same to read."""
    kinds = ", ".join(dict.fromkeys(device.evidence for device in found))
    parts = [f"GPU activity of {len({device.file for device in found})} trace(s) ({kinds}), times in ms"]
    partial = [device.file for device in found if not device.complete]
    if partial:
        files = ", ".join(dict.fromkeys(partial))
        parts.append(paragraph(f"PARTIAL: {files} is cut off: only what lies before the cut is counted.", WIDE))
    header = ("trace", "GPU", "span", "busy", "GEMMs", "communication", "exposed", "overlapped", "with GEMMs")
    rows = [(device.file, _title(device), *map(_ms, _times(device))) for device in found]
    parts.append(table(header, rows, WIDE))
    if any(device.host_copies.time_s for device in found):
        head = ("trace", "GPU", "host copies", "exposed", "overlapped", "with GEMMs")
        rows = [
            (device.file, _title(device), *map(_ms, _parts(device.host_copies)))
            for device in found
            if device.host_copies.time_s
        ]
        parts.append(table(head, rows, WIDE))
    parts.append(
        paragraph(
            "communication: collectives and copies between GPUs; exposed: it runs and no compute kernel does. A "
            "collective's kernel also waits for the other ranks, and that time is in it.",
            WIDE,
        )
    )
    for device, answers in _each(found, advised):
        parts += _overlaps(device, answers, top)
    return "\n\n".join(parts)


def _each(found: Sequence[Device], advised: Advised) -> Iterator[tuple[Device, Sequence[Answer]]]:
    return zip(found, advised or [()] * len(found), strict=True)


def _overlaps(device: Device, answers: Sequence[Answer], top: int) -> list[str]:
    where = f"{device.file}, GPU {_title(device)}"
    if not device.overlaps:
        return [paragraph(f"{where}: no GEMM ran beside a transfer.", WIDE)]
    head = ("", "runs", "GEMM", "alone", "slower", "transfer", "alone", "slower", "lost", "which beside which")
    rows = [_row(rank, overlap) for rank, overlap in enumerate(device.overlaps[:top], 1)]
    some = f"the {len(rows)} of {len(device.overlaps)} overlaps that lose most"
    shown = some if top < len(device.overlaps) else "GEMMs that ran beside a transfer"
    notes = ["Medians of a run; lost: what all runs of the GEMM took beyond its time alone."]
    if any(math.isnan(overlap.lost_s) for overlap in device.overlaps[:top]):
        notes.append("never: the kernel never ran alone in this trace, so nothing says what the overlap costs it.")
    said = [paragraph(f"advisor on {rank}: {answer.text}", WIDE) for rank, answer in enumerate(answers, 1)]
    return [f"{where}: {shown}\n\n{table(head, rows, WIDE)}", paragraph(" ".join(notes), WIDE), *said]


def _row(rank: int, overlap: Overlap) -> tuple[object, ...]:
    gemm = (_ms(overlap.gemm_s), _alone(overlap.gemm_alone_s), number(overlap.gemm_slowdown, ".2f"))
    transfer = (_ms(overlap.transfer_s), _alone(overlap.transfer_alone_s), number(overlap.transfer_slowdown, ".2f"))
    lost = None if math.isnan(overlap.lost_s) else _ms(overlap.lost_s)
    return (rank, overlap.runs, *gemm, *transfer, lost, f"{_gemm(overlap.gemm)} beside {_transfer(overlap.transfer)}")


def _gemm(kernel: Kernel) -> str:
    if kernel.shape is None:
        return _brief(kernel.name)
    m, n, k, batch, dtype = kernel.shape
    size = f"{f'{batch} x ' * (batch > 1)}{m}x{n}x{k}{f' {dtype}' * bool(dtype)}"
    return _brief(kernel.name) + (f" ({size})" if size not in kernel.name else "")


def _transfer(kernel: Kernel) -> str:
    what = [kernel.collective or kernel.role] + ([format_size(kernel.nbytes)] if kernel.nbytes else [])
    return f"{' of '.join(what)}{f' over {kernel.ranks} ranks' * bool(kernel.ranks)} ({_brief(kernel.name)})"


def _brief(name: str) -> str:
    """A kernel's name without return type, template arguments and parameters, where something is left then."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    if not bare.startswith("Mem"):  # of a copy, the kinds of memory stay
        bare = bare.split("<")[0].split("(")[0].strip() or bare
    return bare if len(bare) <= 48 else f"{bare[:45]}..."


def _title(device: Device) -> str:
    return f"{device.device}" + (f" {device.title}" if device.title else "")


def _times(device: Device) -> tuple[float, ...]:
    return (device.span_s, device.busy_s, device.gemm_s, *_parts(device.communication))


def _parts(hidden: Hidden) -> tuple[float, ...]:
    return (hidden.time_s, hidden.exposed_s, hidden.overlapped_s, hidden.beside_gemms_s)


def _hidden(hidden: Hidden) -> dict[str, float]:
    return asdict(hidden) | {"overlapped_s": hidden.overlapped_s}


def _ms(time_s: float) -> str:
    return f"{round(time_s * 1e3, 3) + 0:.3f}"  # + 0: no "-0.000"


def _alone(time_s: float) -> str:
    return "never" if math.isnan(time_s) else _ms(time_s)
