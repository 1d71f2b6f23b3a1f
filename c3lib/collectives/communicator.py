"""One group's collectives on one kind of device: the protocol between the ranks, whatever the window is.

A collective has a number, counted alike on all ranks, and two signals to each peer:

1. *ready*: my output may be written (what the caller's stream did before is done);
2. *done*: my copies to you are there.

A rank copies to a peer when that is ready, and is through when all are done. Flags only ever grow: a rank gives the
signals of collective n+1 only when all have been done with n, so no flag has to be reset, nor can one be missed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from c3lib.collectives.board import SIGNALS, Board, Note
from c3lib.collectives.copies import even_copies, uneven_copies
from c3lib.collectives.shared import MOST_NBYTES
from c3lib.collectives.window import Block, Place, Window
from c3lib.errors import C3Error
from c3lib.transfer.plan import LOCAL, Copy


@dataclass(frozen=True)
class Region:
    """Registered memory: ``block`` of this rank, and as ``bases`` that of each rank as copies take it."""

    index: int
    block: Block
    bases: list[Any]


@dataclass(frozen=True)
class Splits:
    """Bytes this rank sends to each rank, and expects of each, in an all-to-all of blocks of any size."""

    sends: list[int]
    receives: list[int]


class Communicator:
    """This rank's side of a group's collectives."""

    def __init__(self, device: torch.device, board: Board, window: Window):
        self.device, self.board, self.window = device, board, window
        self.regions: list[Region] = []
        self._number = 0
        self._lock = threading.RLock()  # a model's backward pass calls from another thread than its forward pass

    @property
    def rank(self) -> int:
        """This rank within the group."""
        return self.board.rank

    @property
    def ranks(self) -> int:
        """Size of the group."""
        return self.board.ranks

    def register(self, nbytes: int) -> Region:
        """New memory of at least ``nbytes`` on each rank, open to all of them; collective, and waits for all ranks.

        Raises:
            C3Error: on all ranks when there is no room on one, or sizes differ; when a rank does not come.
        """
        with self._lock:
            self._usable()
            self.window.settle()
            grain, what = self.window.granularity, f"registering {nbytes} bytes"
            block, word, error = None, None, ""
            try:
                if nbytes > MOST_NBYTES:
                    raise C3Error(f"size: expected at most {MOST_NBYTES} bytes, got {nbytes}")
                block = self.window.allocate(max(1, -(-nbytes // grain)) * grain)
                word = block.word
            except C3Error as failed:
                error = str(failed)
            letters = self.board.exchange((nbytes, word, error), what)
            _agreed(error for _, _, error in letters)
            for peer, (other, _, _) in enumerate(letters):
                if other != letters[0][0]:
                    raise C3Error(
                        f"size: rank {self.board.names[0]} registers {letters[0][0]} bytes and rank "
                        f"{self.board.names[peer]} {other}; expected the same on all ranks"
                    )
            assert block is not None
            bases = self._open([word for _, word, _ in letters], what)
            self.board.exchange(None, what)
            self.window.opened()
            self.regions.append(Region(len(self.regions), block, bases))
            return self.regions[-1]

    def run(
        self,
        kind: str,
        output: torch.Tensor,
        source: torch.Tensor,
        asynchronous: bool,
        in_place: bool = False,
        splits: Splits | None = None,
    ) -> dist.Work:
        """One collective of bytes: ``output`` and ``source`` are uint8 of one dimension; all checks are done.

        ``in_place``: this rank's own part lies in the output already. In registered memory this enqueues and returns;
        with any other output, and with ``splits``, it first waits for all ranks to say where theirs are.

        Raises:
            C3Error: the group is out of step; on the CPU also all that can go wrong on the way, if not asynchronous.
        """
        with self._lock:
            self._usable()
            self._number += 1
            number = self._number
            region = self._region(output)

            def body() -> None:
                self._collective(number, kind, output, source, in_place, splits, region)

            return self.window.start(body, (output, source), asynchronous)

    def check(self, timeout_s: float) -> None:
        """Wait on the host for all collectives so far. Raises :class:`C3Error` naming the signals that are missing."""
        self.window.check(timeout_s, self._number, f"collective number {self._number}")

    def close(self) -> None:
        """Give back what the group holds; collective. Tensors in registered memory stay as they are."""
        with self._lock:
            self.window.settle()
            if not self.board.broken:  # or streams may wait for ever, and peers have the memory open
                self.board.exchange(None, "giving back shared memory")
                self.window.close()
                self.board.exchange(None, "giving back shared memory")
                self.window.free()
            self.regions.clear()
            self.board.broken = self.board.broken or "it has been destroyed"

    def _collective(
        self,
        number: int,
        kind: str,
        output: torch.Tensor,
        source: torch.Tensor,
        in_place: bool,
        splits: Splits | None,
        region: Region | None,
    ) -> None:
        board, window, what = self.board, self.window, f"{kind} (collective number {number})"
        size = source if kind == "all-to-all" else output
        if region is None or splits:
            board.announce(number, Note(kind, -1, 0, 0))
            targets, target, copies = self._meet(what, kind, output, size.numel(), splits, region)
        else:
            offset = output.data_ptr() - region.block.address
            board.announce(number, Note(kind, region.index, offset, size.numel()))
            targets, target = [(base, offset) for base in region.bases], output
            copies = even_copies(kind, size.numel(), self.ranks, self.rank)
        try:
            for peer in board.peers:
                board.compare(peer)
        except C3Error:
            window.begin()
            for name, peer in itertools.product(SIGNALS, board.peers):
                window.signal(None, peer, name, number)  # nothing of theirs shall wait for this rank without end
            raise
        window.begin()
        for peer in board.peers:
            window.signal(None, peer, "ready", number)
        window.fork()
        for lane, peer in enumerate(board.peers):
            window.wait(lane, peer, "ready", number, what)
            for copy in copies:
                if copy.dst_rank == peer:
                    base, offset = targets[peer]
                    window.copy(lane, base, offset + copy.dst_offset, source[copy.src_offset :][: copy.nbytes])
            window.signal(lane, peer, "done", number)
        for copy in copies:
            if copy.engine == LOCAL and not (in_place and target is output):
                window.copy_own(target[copy.dst_offset :][: copy.nbytes], source[copy.src_offset :][: copy.nbytes])
        for lane, peer in enumerate(board.peers):
            window.wait(lane, peer, "done", number, what)
        window.join()
        if target is not output:  # only on the CPU
            output.copy_(target)

    def _meet(
        self, what: str, kind: str, output: torch.Tensor, nbytes: int, splits: Splits | None, region: Region | None
    ) -> tuple[list[tuple[Any, int]], torch.Tensor, tuple[Copy, ...]]:
        """Tell all ranks where peers write to this one, hear it of them: (memory, offset) of each; the target; copies.

        What is wrong is found on all ranks alike, so the group stays of use.
        """
        place, spot, error = Place(None, output), None, ""
        if region is not None:
            spot = region.index, output.data_ptr() - region.block.address
        else:
            try:
                place = self.window.place(output)
            except C3Error as failed:
                error = str(failed)
        letters = self.board.exchange(_Letter(kind, nbytes, splits, spot, place.word, place.fresh, error), what)
        _agreed(letter.error for letter in letters)
        names, first = self.board.names, letters[0]
        for rank, letter in enumerate(letters):
            if letter.call != first.call:
                raise C3Error(
                    f"{what}: rank {names[0]} calls {' '.join(first.call)} and rank {names[rank]} "
                    f"{' '.join(letter.call)}; expected the same call on all ranks"
                )
        if splits is None:
            copies = even_copies(kind, nbytes, self.ranks, self.rank)
        else:
            sends, receives = [[getattr(letter.splits, side) for letter in letters] for side in ("sends", "receives")]
            copies = uneven_copies(self.rank, sends, receives, names)
        bases = self._open([letter.word for letter in letters], what)
        targets = [(base, 0) for base in bases]
        for rank, letter in enumerate(letters):
            if letter.spot is not None:
                index, offset = letter.spot
                targets[rank] = self.regions[index].bases[rank], offset
        if any(letter.fresh for letter in letters):
            self.board.exchange(None, what)
            self.window.opened()
        return targets, place.target, copies

    def _open(self, words: list[Any], what: str) -> list[Any]:
        """Each peer's memory. A rank that cannot open one says so to all."""
        bases: list[Any] = [None] * self.ranks
        try:
            for peer in self.board.peers:
                if words[peer] is not None:
                    bases[peer] = self.window.open(peer, words[peer])
        except C3Error as error:
            self.board.broken = str(error)  # peers go on, and will say for whom they wait
            raise
        return bases

    def _region(self, output: torch.Tensor) -> Region | None:
        """The registered memory that holds all of ``output``."""
        first, nbytes = output.data_ptr(), output.numel()
        for region in self.regions:
            start = region.block.address
            if nbytes and start <= first and first + nbytes <= start + region.block.nbytes:
                return region
        return None

    def _usable(self) -> None:
        if self.board.broken:
            raise C3Error(f"group: its ranks are out of step, it is of no more use: {self.board.broken}")
        self.window.usable()


class _Letter(NamedTuple):
    """What a rank tells the others of its call."""

    kind: str
    nbytes: int
    splits: Splits | None
    spot: tuple[int, int] | None  # in registered memory: which, and offset
    word: Any
    fresh: bool
    error: str

    @property
    def call(self) -> tuple[str, str]:
        """What has to be the same on all ranks, in words."""
        return self.kind, f"of {self.nbytes} bytes" if self.splits is None else "with split sizes"


def _agreed(errors: Iterable[str]) -> None:
    for error in filter(None, errors):
        raise C3Error(error)
