"""What the advisor would change of the overlaps that a trace has: the seam between what was recorded and the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES, Node, load_node
from c3lib.trace.analysis import Device, Overlap
from c3lib.workload import Collective, Gemm


@dataclass(frozen=True)
class Answer:
    """Advice on one overlap as a sentence and as plain values; without values the sentence says why there is none."""

    text: str
    values: dict[str, Any] | None = None


def advise_overlaps(found: Sequence[Device], node: str, top: int) -> list[list[Answer]]:
    """Of each device answers for its first ``top`` overlaps, in their order.

    ``node``: the node that the model is to take for the one of the trace. Raises :class:`C3Error` for an unknown one.
    """
    there = load_node(node)
    return [[_answer(overlap, there) for overlap in device.overlaps[:top]] for device in found]


def pair(overlap: Overlap, node: Node) -> tuple[Gemm, Collective]:
    """The overlap as the model knows it. Raises :class:`C3Error` with the reason where the model does not."""
    shape, transfer = overlap.gemm.shape, overlap.transfer
    if shape is None:
        raise C3Error("the trace has no shape of this GEMM; record it with record_shapes=True")
    m, n, k, batch, dtype = shape
    if batch > 1 or not dtype:
        raise C3Error("the model knows no batched GEMM" if batch > 1 else "the model knows no GEMM of such elements")
    if transfer.collective not in COLLECTIVES:
        what = transfer.collective or transfer.role
        raise C3Error(f"the model knows {' and '.join(COLLECTIVES)}, and this is {what}")
    if not transfer.nbytes or not transfer.ranks:
        raise C3Error(f"the trace does not say how many bytes this {transfer.collective} moves among how many ranks")
    node.check_ranks(transfer.ranks)
    return Gemm(m, n, k, dtype), Collective(transfer.collective, transfer.nbytes, transfer.ranks)


def _answer(overlap: Overlap, node: Node) -> Answer:
    from c3lib.advisor.advice import advise

    try:
        advice = advise(*pair(overlap, node), node)
    except C3Error as error:
        return Answer(f"no advice: {error}")
    if not advice.overlap:
        more = f" {advice.unadvised[0].upper()}{advice.unadvised[1:]}." if advice.unadvised else ""
        return Answer(f"do not overlap ({advice.evidence}). {advice.reason}{more}", advice.to_dict())
    gain = f"{advice.speedup:.2f}x over serial ({advice.speedup_low:.2f}x to {advice.speedup_high:.2f}x)"
    return Answer(f"{advice.strategy}, {gain} on {node.name} ({advice.evidence}). {advice.reason}", advice.to_dict())
