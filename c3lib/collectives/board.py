"""The board: a little host memory that all processes of a group on one machine share, to tell one another things.

Each rank writes to a row of its own: letters, which all ranks exchange at set-up and wherever addresses have to be
told; and a note of each collective it calls, by which a rank that called another one is found out. A row also has the
signals between processes without a GPU, and these are the one thing that peers write there.

The file behind it loses its name as soon as all have opened it, so no crash can leave it behind.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from c3lib.errors import C3Error

SIGNALS = ("ready", "done")
SHARED_MEMORY = Path("/dev/shm")
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
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise C3Error(f"timeout_s: expected a positive number of seconds, got {timeout_s!r}")
    _timeout_s = float(timeout_s)


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
                ("signals", "<u4", (len(SIGNALS), self.ranks)),
                ("notes", "<i8", (_NOTES, 1 + len(Note._fields))),
                ("letters", "<i8"),
                ("letter", "u1", (2, _LETTER_NBYTES)),
            ],
            align=True,
        )
        # The store is private to torch, but every version has this way to it.
        store = dist.distributed_c10d._get_process_group_store(group)
        self.rows = self._open(store, label, row)

    def _open(self, store: Any, label: str, row: np.dtype) -> np.ndarray:
        nbytes, error, rows = row.itemsize * self.ranks, "", None
        if self.rank == 0:
            path = new_file(nbytes)
            store.set(label, path)
        try:
            self._poll(lambda: store.check([label]), f"rank {self.names[0]} to open its collectives ({label})")
            path = store.get(label).decode()
            try:
                rows = np.memmap(path, row, "r+", shape=(self.ranks,))
            except OSError:
                error = f"rank {self.names[self.rank]} shares no memory with rank {self.names[0]}"
            store.set(f"{label}/{self.rank}", error)
            for peer in self.peers:
                key = f"{label}/{peer}"
                self._poll(partial(store.check, [key]), f"rank {self.names[peer]} to join collectives ({label})")
                error = error or store.get(key).decode()
        finally:
            if self.rank == 0:
                os.unlink(path)  # all have it open, or will not come
        if error or rows is None:
            raise C3Error(f"group: collectives by copy engine reach the processes of one machine only, and {error}")
        return rows

    def poll(self, arrived: Callable[[], bool], sentence: Callable[[], str]) -> None:
        """Wait for a peer. Who gives up is out of step with the others, so the group is of no use after that."""
        try:
            poll(arrived, _timeout_s, sentence)
        except BaseException as error:
            self.broken = str(error) or f"a wait was ended by {type(error).__name__}"
            raise

    def _poll(self, arrived: Callable[[], bool], what: str) -> None:
        self.poll(arrived, lambda: f"rank {self.names[self.rank]} has waited {_timeout_s:g} s for {what}")

    def late(self, what: str, signal: str, peer: int, seen: int) -> str:
        """The sentence for a signal that does not come."""
        step = SIGNALS.index(signal) + 1
        return (
            f"{what}: rank {self.names[self.rank]} has waited {_timeout_s:g} s for signal '{signal}' (step {step} of "
            f"{len(SIGNALS)}) of rank {self.names[peer]}; the last it gave was that of collective number {seen}"
        )

    def missing(self, number: int, flag: Callable[[str, int], int], what: str, timeout_s: float) -> str:
        """The sentence for a collective that is not over: which signals have not come, by this rank's flags."""
        found = []
        for signal in SIGNALS:
            for peer in self.peers:
                if not reached(seen := flag(signal, peer), number):
                    found.append(f"'{signal}' of rank {self.names[peer]} (its last was that of number {seen})")
        signals = f"missing are the signals {', '.join(found)}" if found else "no signal of a peer is missing"
        return f"{what} is not over on rank {self.names[self.rank]} after {timeout_s:g} s: {signals}"

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


def new_file(nbytes: int) -> str:
    """A new file of ``nbytes`` zeros in shared memory. Raises :class:`C3Error` when there is no room for it."""
    there = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    handle, path = tempfile.mkstemp(prefix=f"c3lib-{os.getpid()}-", dir=there)
    try:
        os.posix_fallocate(handle, 0, nbytes)  # memory that is only promised would end the process when it is touched
    except OSError as error:
        os.unlink(path)
        raise C3Error(f"shared memory: no room for {nbytes} bytes in {Path(path).parent}: {error.strerror}") from None
    finally:
        os.close(handle)
    return path
