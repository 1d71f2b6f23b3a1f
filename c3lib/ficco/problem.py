"""A GEMM that consumes what a collective delivers, and how it is cut: what every schedule starts from.

``C[m, n] = A[m, k] B[k, n]`` on each rank, A row by row from all ranks. Which matrix is cut where, and into how many
pieces, is the project's own reading of arXiv 2512.10236, whose body was not available.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from c3lib.errors import C3Error, unknown
from c3lib.hardware import COLLECTIVES
from c3lib.transfer.definition import shards
from c3lib.workload import DTYPE_BYTES, LARGEST, Gemm, whole

MOST_RANKS = 64
"""A rank's program has a copy for each peer and piece; with as many pieces as ranks, 64 make 4032 of them."""

MOST_PIECES = 256


@dataclass(frozen=True)
class Problem:
    """Which rows of A go from whom to whom, the GEMM that needs them, and into how many pieces a shard is cut.

    ``rows[src][dst]``: rows that rank ``src`` gives to rank ``dst``; in an all-gather the same for every ``dst``. ``n``
    is what one rank computes, not the sum over ranks. Build one with :meth:`all_gather` or :meth:`all_to_all`.

    Raises:
        C3Error: fewer than 2 ranks or too many, no rows for some rank, a dimension that is no positive integer, an
            unknown dtype, more pieces than :data:`MOST_PIECES`.
    """

    kind: str
    rows: tuple[tuple[int, ...], ...]
    n: int
    k: int
    dtype: str = "bf16"
    pieces: int = 0

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVES:
            raise unknown("collective", self.kind, COLLECTIVES)
        if self.dtype not in DTYPE_BYTES:
            raise unknown("dtype", self.dtype, DTYPE_BYTES)
        ranks = len(self.rows)
        _require_ranks(ranks)
        for src, row in enumerate(self.rows):
            if len(row) != ranks:
                raise C3Error(f"rows[{src}]: expected one number for each of {ranks} ranks, got {len(row)}")
        table = tuple(tuple(whole("rows", count, least=0) for count in row) for row in self.rows)
        object.__setattr__(self, "rows", table)
        for src, row in enumerate(table if self.kind == "all-gather" else ()):
            if len(set(row)) > 1:
                raise C3Error(f"rows[{src}]: in an all-gather a rank gives all ranks the same, not {row}")
        for dst in range(ranks):
            if not any(row[dst] for row in table):
                raise C3Error(f"rows: rank {dst} gets none, so it has nothing to multiply")
        for name in ("n", "k"):
            object.__setattr__(self, name, whole(name, getattr(self, name), least=1))
        pieces = whole("pieces", self.pieces, least=0) or ranks
        if pieces > MOST_PIECES:
            raise C3Error(f"pieces: a shard is cut into at most {MOST_PIECES}, not {pieces}")
        object.__setattr__(self, "pieces", pieces)
        if max(self.m) * max(self.n, self.k) > LARGEST or self.n * self.k > LARGEST:
            raise C3Error(f"gemm {max(self.m)}x{self.n}x{self.k}: a matrix may have at most {LARGEST} elements")

    @classmethod
    def all_gather(cls, m: int, n: int, k: int, ranks: int, dtype: str = "bf16", pieces: int = 0) -> Problem:
        """``m`` rows of A in all, a shard of them on each rank; every rank multiplies all of them by its own B."""
        rows = _shared_out(m, ranks)
        return cls("all-gather", tuple((count,) * ranks for count in rows), n, k, dtype, pieces)

    @classmethod
    def all_to_all(
        cls,
        m: int,
        n: int,
        k: int,
        ranks: int,
        dtype: str = "bf16",
        pieces: int = 0,
        rows: Sequence[Sequence[int]] | None = None,
    ) -> Problem:
        """``m`` rows arrive at each rank, as many from every rank; ``rows[src][dst]``, uneven, in place of ``m``."""
        if rows is not None and len(rows) != ranks:
            raise C3Error(f"rows: expected a row of numbers for each of {ranks} ranks, got {len(rows)}")
        if rows is None:
            rows = [(count,) * ranks for count in _shared_out(m, ranks)]
        return cls("all-to-all", tuple(tuple(row) for row in rows), n, k, dtype, pieces)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.rows)

    @cached_property
    def m(self) -> tuple[int, ...]:
        """Rows of A that each rank multiplies, its own included."""
        return tuple(map(sum, zip(*self.rows, strict=True)))

    @property
    def element_nbytes(self) -> int:
        """Bytes of an element."""
        return DTYPE_BYTES[self.dtype]

    def gemm(self, rank: int = 0) -> Gemm:
        """The whole GEMM of a rank."""
        return Gemm(self.m[rank], self.n, self.k, self.dtype)

    @property
    def busiest(self) -> int:
        """The rank with the most rows, the first of equals: the one that the others wait for."""
        return max(range(self.ranks), key=lambda rank: (self.m[rank], -rank))

    @property
    def even(self) -> bool:
        """True when every rank gives every rank as many rows, but for one that does not divide: ranks are alike."""
        counts = {count for row in self.rows for count in row}
        return max(counts) - min(counts) <= 1

    def received_nbytes(self, rank: int = 0) -> int:
        """Bytes that arrive at a rank over links."""
        return (self.m[rank] - self.rows[rank][rank]) * self.k * self.element_nbytes

    @property
    def piece_nbytes(self) -> int:
        """Bytes of the largest piece that crosses a link."""
        most = max(count for src, row in enumerate(self.rows) for dst, count in enumerate(row) if src != dst)
        return -(-most // self.pieces) * self.k * self.element_nbytes

    def __str__(self) -> str:
        return f"{self.kind} -> {max(self.m)}x{self.n}x{self.k} on {self.ranks} ranks"


def _shared_out(m: int, ranks: int) -> tuple[int, ...]:
    ranks = whole("ranks", ranks, least=1)
    _require_ranks(ranks)
    return tuple(shards(whole("m", m, least=1), ranks))


def _require_ranks(ranks: int) -> None:
    if not 2 <= ranks <= MOST_RANKS:
        raise C3Error(f"ranks: a collective to overlap with needs 2 to {MOST_RANKS}, not {ranks}")
