"""Advice as text: what ``print`` shows of a pair, and of a model's layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from c3lib.advisor.options import SERIAL, SIZES
from c3lib.terminal import WIDTH, paragraph, table
from c3lib.workload import format_size

if TYPE_CHECKING:
    from c3lib.advisor.advice import Advice
    from c3lib.advisor.plan import LayerAdvice, ModelAdvice

UNKNOWN = "interval not known"
"""Of finer-grain schedules: the model's error is kept for whole kernels beside each other only."""


def pair_text(of: Advice) -> str:
    """A pair's title, and a paragraph for each thing to know."""
    title = (
        f"{of.gemm} {of.gemm.dtype} beside {of.collective.kind} of {format_size(of.collective.nbytes)} "
        f"over {of.collective.ranks} ranks on {of.node} ({of.evidence})"
    )
    lines = {"advice": _what(of), "gain": _gain(of), "else": of.unadvised}
    lines |= {"fall back": of.fall_back, "why": of.reason}
    wide = max(map(len, lines)) + 2
    body = [
        paragraph(text, WIDTH - wide).replace("\n", "\n" + " " * wide).join([f"{name:<{wide}}", ""])
        for name, text in (lines | {"interval": of.uncertainty}).items()
        if text
    ]
    return "\n".join([paragraph(title), "", *body])


def _what(of: Advice) -> str:
    if not of.overlap:
        return "do not overlap: run one after the other"
    moved = "by DMA engines" if of.dma else "by the library's kernels"
    kept = f"{of.cus_reserved} CUs withheld from the GEMM" if of.cus_reserved else "no CUs set aside"
    return f"overlap by {of.strategy}: the collective {moved}, {kept}"


def _gain(of: Advice) -> str:
    if not of.overlap:
        return f"none; both take {of.serial_s * 1e3:.3f} ms"
    unsure = "" if of.sure else "; it may be none, so measure before you rely on it"
    return (
        f"{of.speedup:.2f}x over serial ({of.speedup_low:.2f}x to {of.speedup_high:.2f}x): "
        f"{of.time_s * 1e3:.3f} ms in place of {of.serial_s * 1e3:.3f} ms{unsure}"
    )


def fall_back(of: Advice) -> str:
    """From which sizes on overlap and DMA engines pay."""
    parts = {"overlap gains something": of.overlap_from_nbytes}
    if of.overlap and of.dma_from_nbytes is not None:
        parts["DMA engines are the better way"] = of.dma_from_nbytes
    return "; ".join(f"{what} {_from(size)}" for what, size in parts.items())


def _from(size: int | None) -> str:
    if size is None:
        return "at no size"
    return f"from {format_size(size)} on" if size > SIZES[0] else f"from {format_size(size)} or less on"


def against(strategy: str, speedup: float, low: float, high: float) -> str:
    """What overlap would give where it is not advised."""
    more = "; it may gain after all, so measure it where it matters" if high > 1 else ""
    return f"overlapped all the same, by {strategy}: {speedup:.2f}x over serial ({low:.2f}x to {high:.2f}x){more}"


def model_text(of: ModelAdvice) -> str:
    """A model's title, its layers, and what they come to."""
    how = of.parallelism
    degrees = ", ".join(
        f"{name.upper()} {getattr(how, name)}" for name in ("fsdp", "tp", "ep") if getattr(how, name) > 1
    )
    title = (
        f"{Path(of.path).name}: {of.family}, {of.parameters / 1e9:.1f} billion parameters; {degrees}, "
        f"{how.tokens} tokens, {of.dtype}, on {of.node}, forward pass ({of.evidence})"
    )
    gain, low, high = of.speedups
    end = (
        f"In all: {of.time_s * 1e3:.1f} ms in place of {of.serial_s * 1e3:.1f} ms for the GEMMs and "
        f"collectives that need not wait for each other, {gain:.2f}x ({low:.2f}x to {high:.2f}x)."
    )
    sources = dict.fromkeys(piece.uncertainty for layer in of.free for piece in layer.pieces)
    notes = [paragraph(end)] * bool(of.free) + [paragraph(f"Interval: {source}.") for source in sources if source]
    return "\n\n".join([paragraph(title), *map(_layer_text, of.layers), *(["\n".join(notes)] if notes else [])])


def _layer_text(of: LayerAdvice) -> str:
    sent = f"{format_size(of.collective.nbytes)} over {of.collective.ranks} ranks"
    head = f"{of.name}, in {of.times} layer{'s' * (of.times > 1)}: {of.what}, {sent}"
    header = ("GEMM", "m x n x k", "GEMM ms", "its share", "coll. ms", "strategy", "CUs withheld", "gain")
    rows = [
        (
            name,
            str(piece.gemm),
            f"{piece.gemm_alone_s * 1e3:.3f}",
            format_size(piece.collective.nbytes),
            f"{piece.collective_alone_s * 1e3:.3f}",
            of.strategy,
            None if of.dependent else piece.cus_reserved,
            f"{of.speedup if of.dependent else piece.speedup:.2f}x",
        )
        for name, piece in zip(of.gemms, of.pieces, strict=True)
    ]
    interval = f"{of.speedup_low:.2f}x to {of.speedup_high:.2f}x" if not of.dependent else UNKNOWN
    gain = f"{of.speedup:.2f}x over serial ({interval}): " if of.strategy != SERIAL else ""
    notes = [f"{gain}{of.reason}"]
    if not of.dependent:
        if of.unadvised:
            notes.append(f"{of.unadvised[0].upper()}{of.unadvised[1:]}.")
        notes.append(f"Fall back: {of.pieces[0].fall_back}.")
    return "\n".join([paragraph(head), table(header, rows, WIDTH + 20), *map(paragraph, notes)])
