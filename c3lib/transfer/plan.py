"""The plan itself: who copies which bytes where, in which step, on which engine, and sums over that."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from c3lib.errors import C3Error, unknown

if TYPE_CHECKING:
    import pandas

SEND, RECEIVE = 0, 1  # the buffer of the source rank that a copy reads
LOCAL = -1  # the engine of a copy within one rank: no link, no DMA engine
HOST_IN, HOST_OUT = 0, 1  # engines of rank 0 on topology "host": host to GPU, GPU to host
TOPOLOGIES = ("mesh", "switch", "host")
MODES = ("push", "pull")
MOST_NBYTES = 2**60  # of all ranks together: offsets, sizes and their sums stay well inside 64 bits
MOST_RANKS = 1024  # a flat plan has a copy for each pair of ranks: about 64 MB of them


@dataclass(frozen=True)
class Copy:
    """``nbytes`` bytes from a buffer of ``src_rank``, send (0) or receive (1), to that ``dst_rank`` receives in."""

    step: int
    src_rank: int
    src_offset: int
    dst_rank: int
    dst_offset: int
    nbytes: int
    engine: int
    src_buffer: int = SEND


COLUMNS = tuple(field.name for field in fields(Copy))
COPY_DTYPE = np.dtype([(name, np.int64) for name in COLUMNS])


def require_int(argument: str, value: Any, minimum: int) -> int:
    """``value`` as a Python int. Raises :class:`C3Error` naming ``argument`` when it is no integer or too small."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.bool_)) or number < minimum:
        raise C3Error(f"{argument}: expected an integer of at least {minimum}, got {value!r}")
    return number


def require_one_of(argument: str, value: Any, known: Iterable[str]) -> str:
    """``value`` itself. Raises :class:`C3Error` naming ``argument`` when it is not among ``known``."""
    if value not in tuple(known):
        raise unknown(argument, value, known)
    return value


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """Copies of one collective, in plan order.

    Copies of a step may run at the same time; step s+1 starts when every copy of step s is done, on all ranks.
    ``nbytes`` is the size of the collective (gathered output of an all-gather, send buffer of one rank in an
    all-to-all), ``src_nbytes`` and ``dst_nbytes`` the bytes of each rank's send and receive buffer, ``engines`` the
    number of DMA engines an issuing rank has for its peers, ``copies`` a read-only array of :data:`COPY_DTYPE`.
    Raises :class:`C3Error` when these do not fit together; whether the copies are sound says
    :func:`c3lib.transfer.check_plan`.
    """

    kind: str
    algorithm: str
    nbytes: int
    ranks: int
    topology: str
    mode: str
    engines: int
    src_nbytes: tuple[int, ...]
    dst_nbytes: tuple[int, ...]
    copies: np.ndarray

    def __post_init__(self) -> None:
        require_int("nbytes", self.nbytes, 0)
        require_int("ranks", self.ranks, 1)
        require_int("engines", self.engines, 1)
        require_one_of("topology", self.topology, TOPOLOGIES)
        require_one_of("mode", self.mode, MODES)
        for name in ("src_nbytes", "dst_nbytes"):
            sizes = tuple(require_int(name, size, 0) for size in getattr(self, name))
            if len(sizes) != self.ranks:
                raise C3Error(f"{name}: expected one size for each of {self.ranks} ranks, got {len(sizes)}")
            if sum(sizes) > MOST_NBYTES:
                raise C3Error(f"{name}: expected at most {MOST_NBYTES} bytes over all ranks, got {sum(sizes)}")
            object.__setattr__(self, name, sizes)
        copies = self.copies
        if not isinstance(copies, np.ndarray):
            copies = np.array([_values(index, copy) for index, copy in enumerate(copies)], COPY_DTYPE)
        if copies.dtype != COPY_DTYPE or copies.ndim != 1:
            raise C3Error(f"copies: expected a one-dimensional array with the fields {', '.join(COLUMNS)}")
        copies = copies.copy()
        copies.flags.writeable = False
        object.__setattr__(self, "copies", copies)

    def __len__(self) -> int:
        return len(self.copies)

    def __iter__(self) -> Iterator[Copy]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Copy:
        return Copy(*self.copies[index].item())

    def __str__(self) -> str:
        return f"{self.kind} {self.algorithm} plan ({self.ranks} ranks, {self.nbytes} bytes)"

    @property
    def issuer(self) -> np.ndarray:
        """Rank whose engine runs each copy: source for push, destination for pull, always rank 0 on "host"."""
        if self.topology == "host":
            return np.zeros(len(self), np.int64)
        return self.copies["src_rank" if self.mode == "push" else "dst_rank"]

    @property
    def is_local(self) -> np.ndarray:
        """True for copies within one rank, which an executor that works in place leaves out."""
        return self.copies["src_rank"] == self.copies["dst_rank"]

    @property
    def steps(self) -> int:
        """Number of steps, thus of barriers a run has to wait for."""
        return int(self.copies["step"].max()) + 1 if len(self) else 0

    @property
    def moved_nbytes(self) -> int:
        """Bytes all copies move together, local ones included."""
        return int(self.copies["nbytes"].sum())

    @property
    def remote_nbytes(self) -> int:
        """Bytes that cross a link."""
        return int(self.copies["nbytes"][~self.is_local].sum())

    @property
    def remote_copies_per_rank(self) -> np.ndarray:
        """Number of copies over a link that each rank issues, shape (ranks,)."""
        return np.bincount(self.issuer[~self.is_local], minlength=self.ranks)

    @property
    def nbytes_per_pair(self) -> np.ndarray:
        """Bytes from each rank (row) to each rank (column), shape (ranks, ranks); the diagonal is local."""
        return self._sum((self.copies["src_rank"], self.copies["dst_rank"]), (self.ranks, self.ranks))

    @property
    def nbytes_per_engine(self) -> np.ndarray:
        """Bytes that each engine (column) of each rank (row) moves, shape (ranks, engines); local copies use none."""
        remote = ~self.is_local
        return self._sum((self.issuer[remote], self.copies["engine"][remote]), (self.ranks, self.engines), remote)

    @property
    def nbytes_per_step(self) -> np.ndarray:
        """Bytes moved in each step, local ones included, shape (steps,)."""
        return self._sum(self.copies["step"], (self.steps,))

    def _sum(self, index: Any, shape: tuple[int, ...], chosen: Any = slice(None)) -> np.ndarray:
        total = np.zeros(shape, np.int64)  # not bincount: its weights are floats, exact only up to 2**53
        np.add.at(total, index, self.copies["nbytes"][chosen])
        return total

    def describe(self, index: int) -> str:
        """Copy ``index`` in words, as error messages name it."""
        c = self[index]
        buffer = {SEND: "send", RECEIVE: "receive"}.get(c.src_buffer, f"unknown ({c.src_buffer})")
        return (
            f"copy {index} (step {c.step}, {buffer} buffer of rank {c.src_rank} offset {c.src_offset} -> "
            f"rank {c.dst_rank} offset {c.dst_offset}, {c.nbytes} bytes, engine {c.engine})"
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict a copy: its index, its issuer, its fields, and whether it is local."""
        extra = zip(self.issuer.tolist(), self.is_local.tolist(), strict=True)
        return [
            {"copy": index, "issuer": issuer, **dict(zip(COLUMNS, values, strict=True)), "local": local}
            for index, ((issuer, local), values) in enumerate(zip(extra, self.copies.tolist(), strict=True))
        ]

    def to_frame(self) -> pandas.DataFrame:
        """:meth:`to_rows` as a table."""
        import pandas

        return pandas.DataFrame(self.to_rows(), columns=["copy", "issuer", *COLUMNS, "local"])


def _values(index: int, copy: Copy) -> tuple[int, ...]:
    values = tuple(require_int(f"copies[{index}].{name}", getattr(copy, name), -MOST_NBYTES) for name in COLUMNS)
    for name, value in zip(COLUMNS, values, strict=True):
        if value > MOST_NBYTES:
            raise C3Error(f"copies[{index}].{name}: expected at most {MOST_NBYTES}, got {value}")
    return values


def plan_links(plan: TransferPlan) -> dict[tuple[int, int], int]:
    """Bytes over each directed link ``(src_rank, dst_rank)`` in use. Behind a switch a rank's links share its port."""
    table = plan.nbytes_per_pair
    return {(int(s), int(d)): int(table[s, d]) for s, d in zip(*table.nonzero(), strict=True) if s != d}
