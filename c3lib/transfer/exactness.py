"""The host executor and the byte proof: a plan is run with NumPy and every received byte is compared.

Bytes of send buffers are a hash of source rank, offset and iteration (and so, in an all-to-all, of the destination
rank, since the offset says for whom a block is). They are 128..255 and receive buffers start as :data:`POISON`, so an
untouched or zeroed byte always fails; a byte from the wrong place agrees by chance once in 128 times an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from c3lib.errors import C3Error
from c3lib.transfer.check import check_plan
from c3lib.transfer.definition import Piece, pieces
from c3lib.transfer.plan import LOCAL, SEND, TransferPlan, require_int

POISON = 0x5A  # what receive buffers hold before a run: not zero, and no byte of any pattern
_WORDS = 1 << 15  # words hashed at once: a block stays in the cache
_TOP_BITS = np.uint64(0x8080808080808080)
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1342543DE82EF95))  # odd, so multiplying loses nothing


def pattern(src_rank: int, nbytes: int, iteration: int = 0) -> np.ndarray:
    """The send buffer of ``src_rank``: uint8, shape (nbytes,), values 128..255, the same on every machine."""
    for name, value in (("src_rank", src_rank), ("nbytes", nbytes), ("iteration", iteration)):
        require_int(name, value, 0)
    words = np.empty(-(-nbytes // 8), "<u8")
    key = _mixed(np.array([(src_rank << 32) + iteration + 1], np.uint64))[0]
    index = np.arange(min(_WORDS, len(words)), dtype=np.uint64)
    for first in range(0, len(words), _WORDS):
        block = words[first : first + _WORDS]
        np.add(index[: len(block)], key + np.uint64(first), out=block)
        _mixed(block)
        block |= _TOP_BITS
    return words.view(np.uint8)[:nbytes]


def _mixed(words: np.ndarray) -> np.ndarray:
    for factor in _MIX:
        words *= factor
        words ^= words >> np.uint64(31)
    return words


def send_buffers(plan: TransferPlan, iteration: int = 0) -> list[np.ndarray]:
    """The send buffer of each rank, filled with :func:`pattern`."""
    return [pattern(rank, nbytes, iteration) for rank, nbytes in enumerate(plan.src_nbytes)]


def expected(plan: TransferPlan, iteration: int = 0) -> list[np.ndarray]:
    """The receive buffer of each rank after the collective, by its definition; the plan's copies are not looked at."""
    sends = send_buffers(plan, iteration)
    wanted = pieces(plan.kind, plan.nbytes, plan.ranks, plan.topology)
    empty = [np.empty(0, np.uint8)]
    return [np.concatenate(empty + [sends[p.src_rank][p.src_offset :][: p.nbytes] for p in rank]) for rank in wanted]


def execute_on_host(
    plan: TransferPlan, iteration: int = 0, drop: int | None = None, sends: Sequence[np.ndarray] | None = None
) -> list[np.ndarray]:
    """Run ``plan`` with NumPy from poisoned receive buffers and return these, one uint8 array a rank.

    ``drop`` leaves one copy out, for a negative control; ``sends`` are the send buffers if they are at hand. Raises
    :class:`C3Error` when the plan is unsound (steps out of order included) or has no copy ``drop``.
    """
    check_plan(plan)
    if drop is not None and require_int("drop", drop, 0) >= len(plan):
        raise C3Error(f"drop: {plan} has {len(plan)} copies, got index {drop}")
    sends = send_buffers(plan, iteration) if sends is None else sends
    receives = [np.full(nbytes, POISON, np.uint8) for nbytes in plan.dst_nbytes]
    # Within a step the last copy goes first: a plan that leans on the order of concurrent copies then fails.
    for index in np.lexsort((-np.arange(len(plan)), plan.copies["step"])).tolist():
        if index != drop:
            c = plan[index]
            source = (sends if c.src_buffer == SEND else receives)[c.src_rank]
            receives[c.dst_rank][c.dst_offset :][: c.nbytes] = source[c.src_offset :][: c.nbytes]
    return receives


@dataclass(frozen=True)
class Mismatch:
    """Wrong bytes [start, stop) in the receive buffer of ``rank``, and what should be there.

    ``copy`` is the index of the copy that writes byte ``start``; ``found`` is "poison", "zeros" or "other bytes".
    """

    rank: int
    start: int
    stop: int
    src_rank: int
    src_offset: int
    found: str
    copy: int | None
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Verification:
    """Outcome of a byte check: ``verified_nbytes`` bytes are right; ``first_bad`` tells the first wrong range."""

    verified: bool
    verified_nbytes: int
    first_bad: Mismatch | None


def verify(
    plan: TransferPlan,
    destinations: Sequence[np.ndarray],
    iteration: int = 0,
    sends: Sequence[np.ndarray] | None = None,
) -> Verification:
    """Compare every byte of the receive buffers with the definition of the collective.

    ``destinations`` are uint8 arrays, one a rank, that any executor filled from :func:`send_buffers` of this iteration.
    Raises :class:`C3Error` when their number, type or sizes are not those the collective has.
    """
    sends = send_buffers(plan, iteration) if sends is None else sends
    wanted = pieces(plan.kind, plan.nbytes, plan.ranks, plan.topology)
    if len(destinations) != plan.ranks:
        raise C3Error(f"destinations: expected one array for each of {plan.ranks} ranks, got {len(destinations)}")
    right, first_bad = 0, None
    for rank, (got, rank_pieces) in enumerate(zip(destinations, wanted, strict=True)):
        size = sum(piece.nbytes for piece in rank_pieces)
        if got.dtype != np.uint8 or got.shape != (size,):
            raise C3Error(f"destinations[{rank}]: expected {size} uint8 bytes, got {got.dtype} of shape {got.shape}")
        offset = 0
        for piece in rank_pieces:
            theirs, ours = got[offset:][: piece.nbytes], sends[piece.src_rank][piece.src_offset :][: piece.nbytes]
            if len(ours) < piece.nbytes:
                raise C3Error(f"{plan}: send buffer of rank {piece.src_rank} is smaller than the collective needs")
            if np.array_equal(theirs, ours):
                right += piece.nbytes
            else:
                bad = np.flatnonzero(theirs != ours)
                right += piece.nbytes - len(bad)
                if first_bad is None:
                    first_bad = _mismatch(plan, rank, offset, piece, theirs, bad)
            offset += piece.nbytes
    return Verification(first_bad is None, right, first_bad)


def _mismatch(plan: TransferPlan, rank: int, offset: int, piece: Piece, got: np.ndarray, bad: np.ndarray) -> Mismatch:
    first, last = int(bad[0]), int(bad[-1]) + 1
    values = got[bad]
    found = "poison" if (values == POISON).all() else "zeros" if not values.any() else "other bytes"
    start, stop = offset + first, offset + last
    c = plan.copies
    writers = (c["dst_rank"] == rank) & (c["dst_offset"] <= start) & (start < c["dst_offset"] + c["nbytes"])
    copy = int(writers.argmax()) if writers.any() else None
    message = (
        f"{plan}: bytes [{start}, {stop}) of rank {rank} should come from rank {piece.src_rank} offset "
        f"{piece.src_offset + first} but hold {found}; written by {'no copy' if copy is None else plan.describe(copy)}"
    )
    return Mismatch(rank, start, stop, piece.src_rank, piece.src_offset + first, found, copy, message)


@dataclass(frozen=True)
class Proof:
    """One row of the exactness proof. ``control_fired`` is None where there is no copy to drop (zero bytes)."""

    kind: str
    algorithm: str
    mode: str
    topology: str
    ranks: int
    nbytes: int
    copies: int
    moved_nbytes: int
    verified: bool
    control_fired: bool | None
    first_bad: str

    def as_row(self) -> dict[str, Any]:
        """The proof as a dict, one column a field."""
        return asdict(self)


def prove(plan: TransferPlan) -> Proof:
    """Check ``plan``, run it on the host for two iterations, compare every byte, then drop one copy as a control.

    The dropped copy (the middle one of those over a link, else the local one) must make the comparison fail. Raises
    :class:`C3Error` when the plan is unsound; wrong bytes are reported, not raised.
    """
    outcomes = []
    for iteration in (0, 1):
        sends = send_buffers(plan, iteration)
        outcomes.append(verify(plan, execute_on_host(plan, iteration, sends=sends), iteration, sends))
    bad = next((outcome.first_bad for outcome in outcomes if not outcome.verified), None)
    control_fired = None
    if len(plan):
        remote = np.flatnonzero(plan.copies["engine"] != LOCAL)
        drop = int(remote[len(remote) // 2]) if len(remote) else 0
        control_fired = not verify(plan, execute_on_host(plan, 1, drop, sends), 1, sends).verified
    return Proof(
        plan.kind, plan.algorithm, plan.mode, plan.topology, plan.ranks, plan.nbytes, len(plan), plan.moved_nbytes,
        bad is None, control_fired, str(bad or ""),
    )  # fmt: skip
