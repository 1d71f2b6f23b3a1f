"""Whether a plan is sound: every receive byte written exactly once, from bytes that are there when they are read."""

from __future__ import annotations

import numpy as np

from c3lib.errors import C3Error
from c3lib.transfer.definition import buffer_sizes
from c3lib.transfer.plan import HOST_IN, HOST_OUT, LOCAL, RECEIVE, SEND, TransferPlan


def check_plan(plan: TransferPlan) -> TransferPlan:
    """``plan`` itself when it is sound.

    Raises :class:`C3Error` for an unknown collective and for receive buffers that are not the size it defines; and,
    naming the offending copy, its index and fields, when a field is out of range, a buffer is overrun, steps are out
    of order, the engine does not fit, a receive byte is written twice or never, or a copy reads receive bytes that no
    earlier step has written. Whether the *right* bytes arrive only the byte proof (:func:`c3lib.transfer.prove`) can
    tell.
    """
    _, receive = buffer_sizes(plan.kind, plan.nbytes, plan.ranks, plan.topology)
    for rank, (size, wanted) in enumerate(zip(plan.dst_nbytes, receive, strict=True)):
        if size != wanted:  # or a plan of empty buffers would be sound: nothing to write, and nothing written
            raise C3Error(f"{plan}: dst_nbytes[{rank}]: expected {wanted}, as the collective defines it, got {size}")
    _check_fields(plan)
    if len(plan) == 0 and not any(plan.dst_nbytes):
        return plan
    copies = plan.copies
    # One axis for all receive buffers, end to end: after the field checks no copy reaches into its neighbour.
    base = np.concatenate([[0], np.cumsum(plan.dst_nbytes)])
    start = base[copies["dst_rank"]] + copies["dst_offset"]
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = start + copies["nbytes"][order]
    _check_cover(plan, base, start, end, order)
    _check_reads(plan, base, start, order)
    return plan


def _check_fields(plan: TransferPlan) -> None:
    c = plan.copies
    src, dst, engine = c["src_rank"], c["dst_rank"], c["engine"]
    for wrong, why in (
        (c["step"] < 0, "step is negative"),
        ((src < 0) | (src >= plan.ranks), f"source rank is not one of 0..{plan.ranks - 1}"),
        ((dst < 0) | (dst >= plan.ranks), f"destination rank is not one of 0..{plan.ranks - 1}"),
        ((c["src_buffer"] != SEND) & (c["src_buffer"] != RECEIVE), "source buffer is neither send (0) nor receive (1)"),
        ((c["src_offset"] < 0) | (c["dst_offset"] < 0), "offset is negative"),
        (c["nbytes"] < 1, "size is not at least one byte"),
        (plan.is_local & (engine != LOCAL), f"a copy within a rank uses no engine, expected {LOCAL}"),
        (~plan.is_local & ((engine < 0) | (engine >= plan.engines)), f"engine is not one of 0..{plan.engines - 1}"),
    ):
        _refuse(plan, wrong, why)
    if plan.topology == "host":
        _refuse(plan, ~plan.is_local & (src != 0) & (dst != 0), "no link joins two peers of a host topology")
        if plan.engines > 1:
            wrong_way = ~plan.is_local & (engine != np.where(dst == 0, HOST_IN, HOST_OUT))
            _refuse(plan, wrong_way, f"wrong direction for this engine: {HOST_IN} moves in, {HOST_OUT} out")
    _refuse(plan, np.diff(c["step"], prepend=0) < 0, "step is lower than that of the copy before it")
    send, receive = np.array(plan.src_nbytes, np.int64), np.array(plan.dst_nbytes, np.int64)
    readable = np.where(c["src_buffer"] == SEND, send[src], receive[src])
    for offset, size, name in ((c["src_offset"], readable, "source"), (c["dst_offset"], receive[dst], "destination")):
        over = offset > size - c["nbytes"]  # this way round nothing can overflow
        if over.any():
            _refuse(plan, over, f"overruns its {name} buffer of {size[over.argmax()]} bytes")


def _check_cover(plan: TransferPlan, base: np.ndarray, start: np.ndarray, end: np.ndarray, order: np.ndarray) -> None:
    overlaps = start[1:] < end[:-1]
    if overlaps.any():
        at = int(overlaps.argmax())
        earlier, later = sorted((int(order[at]), int(order[at + 1])))
        same = bool(start[at] == start[at + 1] and end[at] == end[at + 1])
        verb = "duplicates" if same else "overlaps"
        raise C3Error(f"{plan}: {plan.describe(later)} {verb} the destination bytes of {plan.describe(earlier)}")
    written_to, next_start = np.concatenate([[0], end]), np.concatenate([start, base[-1:]])
    gaps = next_start > written_to
    if gaps.any():
        at = int(gaps.argmax())
        rank = int(np.searchsorted(base, written_to[at], side="right")) - 1
        first, last = int(written_to[at] - base[rank]), int(min(next_start[at], base[rank + 1]) - base[rank])
        if at < len(order) and plan.copies["dst_rank"][order[at]] == rank:
            beside = f"; the next written bytes are those of {plan.describe(int(order[at]))}"
        elif at and plan.copies["dst_rank"][order[at - 1]] == rank:
            beside = f"; the last written bytes are those of {plan.describe(int(order[at - 1]))}"
        else:
            beside = ", nor is any other byte of it"
        raise C3Error(f"{plan}: bytes [{first}, {last}) of rank {rank}'s receive buffer are written by no copy{beside}")


def _check_reads(plan: TransferPlan, base: np.ndarray, start: np.ndarray, order: np.ndarray) -> None:
    c = plan.copies
    forwards = np.flatnonzero(c["src_buffer"] == RECEIVE)
    if not len(forwards):
        return
    first = base[c["src_rank"][forwards]] + c["src_offset"][forwards]
    last = first + c["nbytes"][forwards]
    # The writes that cover [first, last): with every byte written once, a run of neighbours in the sorted order.
    low = np.searchsorted(start, first, side="right") - 1
    high = np.searchsorted(start, last, side="left")
    step = np.append(c["step"][order], 0)  # reduceat needs an index past the end to exist
    ready = np.maximum.reduceat(step, np.column_stack([low, high]).ravel())[::2]
    late = ready >= c["step"][forwards]
    if late.any():
        at = int(late.argmax())
        index = int(forwards[at])
        raise C3Error(
            f"{plan}: {plan.describe(index)} reads bytes that are written in step {ready[at]}, "
            "and so are valid only after it"
        )


def _refuse(plan: TransferPlan, wrong: np.ndarray, why: str) -> None:
    if wrong.any():
        raise C3Error(f"{plan}: {plan.describe(int(wrong.argmax()))}: {why}")
