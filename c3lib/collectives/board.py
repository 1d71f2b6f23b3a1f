"""The board: a little host memory that all processes of a group on one machine share, to tell one another things.

Each rank writes to a row of its own: letters, which all ranks exchange at set-up and wherever addresses have to be
told; and a note of each collective it calls, by which a rank that called another one is found out. A row also has the
signals between processes without a GPU, and these are the one thing that peers write there.

The file behind it has no name, so no crash can leave it behind.
"""

from __future__ import annotations

import os
import pickle
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from c3lib.collectives.shared import new_file, opened, start_of, word_of
from c3lib.errors import C3Error

SIGNALS = ("ready", "done")
_NOTES = 64  # collectives that a rank may be ahead of a peer before they go uncompared
_LETTER_NBYTES = 1 << 14
_HEAD_NBYTES = 8  # of a letter: its length and checksum

_timeout_s = 300.0


def set_timeout(timeout_s: float) -> None:
    """How long processes wait for one another on the host, in seconds (300 at first), in all groups.

    Work on a GPU waits without end, as nothing there can give up; see :func:`c3lib.collectives.check`.
    Raises :class:`C3Error` unless it is a positive number.
    """
    global _timeout_s
    _timeout_s = require_seconds("timeout_s", timeout_s)


def require_seconds(argument: str, value: float) -> float:
    """``value`` as a float. Raises :class:`C3Error` naming ``argument`` unless it is a positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise C3Error(f"{argument}: expected a positive number of seconds, got {value!r}")
    return float(value)


def poll(arrived: Callable[[], bool], timeout_s: float, sentence: Callable[[], str]) -> None:
    """Ask until ``arrived()``; Ctrl-C ends it. Raises :class:`C3Error` with the sentence after ``timeout_s``."""
    end, pause_s = time.monotonic() + timeout_s, 0.0
    while not arrived():
        if time.monotonic() > end:
            raise C3Error(sentence())
        time.sleep(pause_s)  # 0 at first: only yields
        pause_s = min(pause_s + 1e-5, 1e-3)


def reached(flag: int, number: int) -> bool:
    """Whether a 32-bit flag says ``number`` or later, as ``cuStreamWaitValue32`` with GEQ sees it.

    Numbers wrap around: the driver takes the difference as a signed number, so a flag may be up to 2**31 - 1 ahead or
    behind. Ranks are never more than one collective apart, so no flag is ever reset.
    """
    return (int(flag) - number) % 2**32 < 2**31


class Note(NamedTuple):
    """What a rank calls: which collective, in which registered memory (-1: any other), where in it, of what size."""

    kind: str
    region: int
    offset: int
    nbytes: int

    def __str__(self) -> str:
        if self.region < 0:
            return f"{self.kind} in memory that is not registered, or with split sizes"
        return f"{self.kind} of {self.nbytes} bytes at offset {self.offset} of registered memory {self.region}"


KINDS = ("all-gather", "all-to-all")


class Board:
    """The shared rows of one group and device type.

    Raises:
        C3Error: a rank does not come within the timeout, or is on another machine.
    """

    def __init__(self, group: dist.ProcessGroup, label: str):
        self.names = dist.get_process_group_ranks(group)  # global ranks: what sentences call a rank
        self.rank, self.ranks = dist.get_rank(group), len(self.names)
        self.peers = [(self.rank + distance) % self.ranks for distance in range(1, self.ranks)]
        self.broken = ""  # why this group is out of step, once it is
        self._letters = 0
        self._compared = [0] * self.ranks  # the last collective compared with that of each peer
        row = np.dtype(
            [
                ("process", "<i8", 2),  # its number, and when it began
                ("signals", "<u4", (len(SIGNALS), self.ranks)),
                ("notes", "<i8", (_NOTES, 1 + len(Note._fields))),
                ("letters", "<i8"),
                ("letter", "u1", (2, _LETTER_NBYTES)),
            ],
            align=True,
        )
        self.rows = np.zeros(self.ranks, row)  # until all have opened those that they share
        # The store is private to torch, but every version has this way to it.
        store = dist.distributed_c10d._get_process_group_store(group)
        self.rows = self._open(store, label, row)

    def _open(self, store: Any, label: str, row: np.dtype) -> np.ndarray:
        error, rows = "", None
        with ExitStack() as given:
            if self.rank == 0:
                store.set(label, word_of(given.enter_context(new_file(row.itemsize * self.ranks))))
            self._poll(lambda: store.check([label]), f"rank {self.names[0]} to open its collectives ({label})")
            try:
                with opened(store.get(label).decode()) as path:
                    rows = np.memmap(path, row, "r+", shape=(self.ranks,))
                rows["process"][self.rank] = os.getpid(), start_of(os.getpid())
            except OSError:
                error = (
                    f"rank {self.names[self.rank]} cannot open memory of rank {self.names[0]}, "
                    f"or came after rank {self.names[0]} had given up"
                )
            store.set(f"{label}/{self.rank}", error)
            for peer in self.peers:
                key = f"{label}/{peer}"
                self._poll(partial(store.check, [key]), f"rank {self.names[peer]} to join collectives ({label})")
                error = error or store.get(key).decode()
        if error or rows is None:
            raise C3Error(
                f"group: collectives by copy engine reach the processes of one user on one machine only, and {error}"
            )
        return rows

    def poll(self, arrived: Callable[[], bool], sentence: Callable[[], str]) -> None:
        """Wait for a peer. Who gives up is out of step with the others, so the group is of no use after that."""
        try:
            poll(arrived, _timeout_s, sentence)
        except BaseException as error:
            self.broken = str(error) or f"a wait was ended by {type(error).__name__}"
            raise

    def _poll(self, arrived: Callable[[], bool], what: str) -> None:
        waited = f"rank {self.names[self.rank]} has waited {_timeout_s:g} s for {what}"
        self.poll(arrived, lambda: waited + self._ended())

    def _ended(self) -> str:
        """What a sentence about waiting ends with: who is no more, since those one waits for may wait for them."""
        gone = []
        for peer in sorted(self.peers):
            process, start = self.rows["process"][peer].tolist()
            if process and start_of(process) != start:
                gone.append(f"rank {self.names[peer]}")
        return f"; no longer running: {', '.join(gone)}" if gone else ""

    def late(self, what: str, signal: str, peer: int, seen: int) -> str:
        """The sentence for a signal that does not come."""
        step = SIGNALS.index(signal) + 1
        return (
            f"{what}: rank {self.names[self.rank]} has waited {_timeout_s:g} s for signal '{signal}' (step {step} of "
            f"{len(SIGNALS)}) of rank {self.names[peer]}; the last it gave was that of collective number {seen}"
            f"{self._ended()}"
        )

    def missing(self, number: int, flag: Callable[[str, int], int], what: str, timeout_s: float) -> str:
        """The sentence for a collective that is not over: which signals have not come, by this rank's flags."""
        found = []
        for signal in SIGNALS:
            for peer in self.peers:
                if not reached(seen := flag(signal, peer), number):
                    found.append(f"'{signal}' of rank {self.names[peer]} (its last was that of number {seen})")
        signals = f"missing are the signals {', '.join(found)}" if found else "no signal of a peer is missing"
        return f"{what} is not over on rank {self.names[self.rank]} after {timeout_s:g} s: {signals}{self._ended()}"

    def exchange(self, letter: Any, what: str) -> list[Any]:
        """What each rank sends, by rank: a barrier, too.

        Two places a rank are enough: who writes letter n has read all letters n-1, so all have read letters n-2.

        Raises:
            C3Error: the letter is too long, or a rank's does not come within the timeout.
        """
        content = pickle.dumps(letter)
        if len(content) > _LETTER_NBYTES - _HEAD_NBYTES:
            raise C3Error(f"{what}: {len(content)} bytes of addresses and sizes are too many for {self.ranks} ranks")
        self._letters += 1
        place = self._letters % 2
        content = np.array([len(content), zlib.crc32(content)], "<u4").tobytes() + content
        self.rows["letter"][self.rank, place, : len(content)] = np.frombuffer(content, np.uint8)
        self.rows["letters"][self.rank] = self._letters
        found = [letter] * self.ranks
        for peer in self.peers:
            self._poll(partial(self._read, peer, place, found), f"rank {self.names[peer]} in {what}")
        return found

    def _read(self, peer: int, place: int, found: list[Any]) -> bool:
        if self.rows["letters"][peer] < self._letters:
            self.compare(peer)  # it may have made another call, and then no letter will come
            return False
        raw = self.rows["letter"][peer, place].tobytes()
        nbytes, checksum = np.frombuffer(raw[:_HEAD_NBYTES], "<u4")
        content = raw[_HEAD_NBYTES : _HEAD_NBYTES + int(nbytes)]
        if zlib.crc32(content) != checksum:  # not all of it is here yet: no processor need keep the order of writes
            return False
        found[peer] = pickle.loads(content)
        return True

    def announce(self, number: int, note: Note) -> None:
        """Write down what this rank calls as collective ``number``."""
        place = self.rows["notes"][self.rank, number % _NOTES]
        place[1:] = (KINDS.index(note.kind), *note[1:])
        place[0] = number

    def compare(self, peer: int) -> None:
        """Compare the calls of this rank with what ``peer`` has written down so far; waits for nothing.

        Raises:
            C3Error: they are not the same, and so this group is of no use any more.
        """
        mine, theirs = self.rows["notes"][self.rank], self.rows["notes"][peer]
        while True:
            number = self._compared[peer] + 1
            own, other = mine[number % _NOTES].tolist(), theirs[number % _NOTES].tolist()
            if own[0] < number or other[0] < number:
                return  # not called by both yet
            self._compared[peer] = number
            told = own[2] < 0 and other[2] < 0  # to one another, by letter
            if own[0] == other[0] == number and own != other and not told:
                notes = [str(Note(KINDS[kind], *rest)) for _, kind, *rest in (own, other)]
                self.broken = (
                    f"collective number {number} of this group is {notes[0]} on rank {self.names[self.rank]}, but "
                    f"{notes[1]} on rank {self.names[peer]}; expected the same call on all ranks"
                )
                raise C3Error(self.broken)
