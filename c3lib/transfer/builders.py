"""Builders of transfer plans: one function a (collective, algorithm). A new collective is one builder here and one
definition in :mod:`c3lib.transfer.definition`.

A builder returns the bare copies in any order; what depends on topology, mode and engines is added by
:func:`build_plan`, the same for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from c3lib.errors import C3Error
from c3lib.transfer.definition import KINDS, buffer_sizes, shards
from c3lib.transfer.plan import (
    COLUMNS,
    COPY_DTYPE,
    HOST_IN,
    HOST_OUT,
    LOCAL,
    MODES,
    MOST_NBYTES,
    MOST_RANKS,
    RECEIVE,
    SEND,
    TOPOLOGIES,
    TransferPlan,
    require_int,
    require_one_of,
)


class Shards(NamedTuple):
    """Sizes and offsets of the shards (all-gather) or blocks (all-to-all), int64, shape (ranks,)."""

    nbytes: np.ndarray
    offset: np.ndarray


def all_gather_flat(ranks: int, cut: Shards) -> np.ndarray:
    """One step: each rank sends its shard to every rank, ranks-1 copies over links each."""
    src, dst = _pairs(ranks)
    return _copies(0, src, 0, dst, cut.offset[src], cut.nbytes[src])


def all_gather_ring(ranks: int, cut: Shards) -> np.ndarray:
    """ranks-1 steps: each rank passes on to the next rank the shard it received the step before, its own first."""
    rank = np.arange(ranks)
    own = _copies(0, rank, 0, rank, cut.offset, cut.nbytes)
    rounds = [own]
    for step in range(ranks - 1):
        shard = (rank - step) % ranks
        src_offset, buffer = (0, SEND) if step == 0 else (cut.offset[shard], RECEIVE)
        after = (rank + 1) % ranks
        rounds.append(_copies(step, rank, src_offset, after, cut.offset[shard], cut.nbytes[shard], buffer))
    return np.concatenate(rounds)


def all_to_all_flat(ranks: int, cut: Shards) -> np.ndarray:
    """One step: each rank sends block p of its send buffer to rank p, ranks-1 copies over links each."""
    src, dst = _pairs(ranks)
    return _copies(0, src, cut.offset[dst], dst, src * cut.nbytes[dst], cut.nbytes[dst])


def all_to_all_pairwise(ranks: int, cut: Shards) -> np.ndarray:
    """ranks-1 steps: in step s each rank sends its block to the rank s+1 places on, one peer at a time."""
    copies = all_to_all_flat(ranks, cut)
    distance = (copies["dst_rank"] - copies["src_rank"]) % ranks
    copies["step"] = np.maximum(distance - 1, 0)  # a rank's own block goes along with the first step
    return copies


BUILDERS: dict[tuple[str, str], Callable[[int, Shards], np.ndarray]] = {
    ("all-gather", "flat"): all_gather_flat,
    ("all-gather", "ring"): all_gather_ring,
    ("all-to-all", "flat"): all_to_all_flat,
    ("all-to-all", "pairwise"): all_to_all_pairwise,
}


class Variant(NamedTuple):
    """A combination that :func:`build_plan` builds."""

    kind: str
    algorithm: str
    topology: str
    mode: str


def variants() -> Iterator[Variant]:
    """Every combination of collective, algorithm, topology and mode that :func:`build_plan` builds."""
    for kind, algorithm in BUILDERS:
        for topology in TOPOLOGIES:
            for mode in MODES:
                if topology != "host" or (algorithm != "ring" and mode == "push"):
                    yield Variant(kind, algorithm, topology, mode)


def build_plan(
    kind: str,
    nbytes: int,
    ranks: int,
    topology: str = "mesh",
    algorithm: str = "flat",
    mode: str = "push",
    engines: int | None = None,
) -> TransferPlan:
    """The plan of a collective.

    ``nbytes``: bytes of the gathered output (all-gather) or of one rank's send buffer (all-to-all). ``mode``: who
    issues a copy, the source ("push") or the destination ("pull"). ``engines``: DMA engines a rank may use for its
    peers; by default one a peer, on "host" one a direction. Peers are counted from the issuer's next rank on and dealt
    to the engines in turn, so that no two ranks begin at the same peer. Raises :class:`C3Error` naming the argument
    that is unknown, out of range or unfit for the others.
    """
    require_one_of("collective", kind, KINDS)
    known = [name for built, name in BUILDERS if built == kind]
    require_one_of(f"algorithm of {kind}", algorithm, known)
    require_one_of("topology", topology, TOPOLOGIES)
    require_one_of("mode", mode, MODES)
    nbytes, ranks = require_int("nbytes", nbytes, 0), require_int("ranks", ranks, 1)
    if ranks > MOST_RANKS:
        raise C3Error(f"ranks: expected at most {MOST_RANKS}, got {ranks}")
    if nbytes * ranks > MOST_NBYTES:
        raise C3Error(f"nbytes: expected at most {MOST_NBYTES} bytes over all ranks, got {nbytes} on {ranks} ranks")
    host = topology == "host"
    if host and algorithm == "ring":
        raise C3Error("algorithm: 'ring' needs links between peers, and topology 'host' has none; expected 'flat'")
    if host and mode == "pull":
        raise C3Error("mode: on topology 'host' rank 0 issues every copy, in and out; expected 'push'")
    engines = (2 if host else max(1, ranks - 1)) if engines is None else require_int("engines", engines, 1)

    sizes = np.array(shards(nbytes, ranks), np.int64)
    copies = BUILDERS[kind, algorithm](ranks, Shards(sizes, np.cumsum(sizes) - sizes))
    copies = copies[copies["nbytes"] > 0]
    if host:
        copies = _seen_from_rank_0(copies)
    src, dst = copies["src_rank"], copies["dst_rank"]
    issuer = np.zeros_like(src) if host else src if mode == "push" else dst
    distance = (src + dst - 2 * issuer) % ranks  # of the peer, counted from the issuer; 0 is the issuer itself
    engine = np.where(dst == 0, HOST_IN, HOST_OUT) if host else distance - 1
    copies["engine"] = np.where(distance == 0, LOCAL, engine % engines)
    copies = copies[np.lexsort((distance, issuer, copies["step"]))]  # plan order is the order of issue
    send, receive = buffer_sizes(kind, nbytes, ranks, topology)
    return TransferPlan(kind, algorithm, nbytes, ranks, topology, mode, engines, send, receive, copies)


def _pairs(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """Every (source, destination), a rank with itself included."""
    return np.divmod(np.arange(ranks * ranks), ranks)


def _copies(step, src_rank, src_offset, dst_rank, dst_offset, nbytes, src_buffer=SEND) -> np.ndarray:
    copies = np.empty(len(src_rank), COPY_DTYPE)
    columns = (step, src_rank, src_offset, dst_rank, dst_offset, nbytes, LOCAL, src_buffer)
    for name, column in zip(COLUMNS, columns, strict=True):
        copies[name] = column
    return copies


def _seen_from_rank_0(copies: np.ndarray) -> np.ndarray:
    """Only what rank 0 sends and receives; a peer's buffers hold nothing else, so its offsets are 0."""
    copies = copies[(copies["src_rank"] == 0) | (copies["dst_rank"] == 0)]
    copies["src_offset"][copies["src_rank"] != 0] = 0
    copies["dst_offset"][copies["dst_rank"] != 0] = 0
    return copies
