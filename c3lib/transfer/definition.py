"""What each collective means, said without any copy: the receive buffer of each rank as pieces of send buffers.

The byte proof compares with this, never with a plan, so a builder cannot prove itself right.

* ``all-gather`` of ``nbytes``: rank r sends shard r; every rank receives shard 0, shard 1, ... (``nbytes`` in all).
* ``all-to-all`` of ``nbytes``: rank r's send buffer (``nbytes``) is cut into blocks, block p being for rank p; rank p
  receives block p of rank 0, of rank 1, ...

On topology ``host`` only what crosses the link of rank 0 (and rank 0's own shard) exists: a peer receives one piece,
that of rank 0, and its send buffer holds only what rank 0 is to get. Both lie at offset 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from c3lib.transfer.plan import require_int, require_one_of


class Piece(NamedTuple):
    """``nbytes`` bytes that start at ``src_offset`` in the send buffer of ``src_rank``."""

    src_rank: int
    src_offset: int
    nbytes: int


def shards(nbytes: int, ranks: int) -> list[int]:
    """Sizes of ``ranks`` near-equal shards of ``nbytes`` bytes: the first ``nbytes % ranks`` are one byte larger.

    Raises :class:`C3Error` for a negative or non-integer size and for fewer than one rank.
    """
    nbytes, ranks = require_int("nbytes", nbytes, 0), require_int("ranks", ranks, 1)
    size, larger = divmod(nbytes, ranks)
    return [size + (rank < larger) for rank in range(ranks)]


def pieces(kind: str, nbytes: int, ranks: int, topology: str) -> list[list[Piece]]:
    """For each rank, what its receive buffer holds at the end, in order. Raises :class:`C3Error` on an unknown kind."""
    require_one_of("collective", kind, DEFINITIONS)
    return DEFINITIONS[kind](shards(nbytes, ranks), topology == "host")


def buffer_sizes(kind: str, nbytes: int, ranks: int, topology: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of each rank's send buffer, and of each rank's receive buffer."""
    wanted = pieces(kind, nbytes, ranks, topology)
    send = [0] * ranks
    for piece in (piece for rank in wanted for piece in rank):
        send[piece.src_rank] = max(send[piece.src_rank], piece.src_offset + piece.nbytes)
    return tuple(send), tuple(sum(piece.nbytes for piece in rank) for rank in wanted)


def _all_gather(sizes: list[int], host: bool) -> list[list[Piece]]:
    whole = [Piece(rank, 0, size) for rank, size in enumerate(sizes)]
    return [whole[:1] if host and rank else whole for rank in range(len(sizes))]


def _all_to_all(sizes: list[int], host: bool) -> list[list[Piece]]:
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    ranks = range(len(sizes))
    if host:
        to_gpu = [Piece(src, 0, sizes[0]) for src in ranks]
        return [to_gpu if dst == 0 else [Piece(0, starts[dst], sizes[dst])] for dst in ranks]
    return [[Piece(src, starts[dst], sizes[dst]) for src in ranks] for dst in ranks]


DEFINITIONS: dict[str, Callable[[list[int], bool], list[list[Piece]]]] = {
    "all-gather": _all_gather,
    "all-to-all": _all_to_all,
}
KINDS = tuple(DEFINITIONS)
