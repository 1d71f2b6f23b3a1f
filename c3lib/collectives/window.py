"""Memory that peers can write to, and the signals between ranks: what a collective needs of a machine.

:class:`Window` says what that is; :class:`HostWindow` is it for tensors on the CPU, in shared memory, so that the very
same collective runs where there is no GPU. :mod:`c3lib.collectives.ipc` is it for GPUs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from c3lib.collectives.board import SIGNALS, Board, poll, reached
from c3lib.collectives.shared import new_file, opened, word_of
from c3lib.collectives.work import HostWork
from c3lib.errors import C3Error


class Place(NamedTuple):
    """Where peers may write.

    ``word`` tells a peer how to open it (None: there is nothing to write), ``target`` is what they write to as a rank
    itself sees it (uint8, one dimension), ``fresh`` whether a file is kept open for it until all have opened it.
    """

    word: Any
    target: torch.Tensor
    fresh: bool = False


class Block(Protocol):
    """Memory of this rank that peers can write to; ``word`` tells them how to open it."""

    nbytes: int
    word: Any

    @property
    def address(self) -> int:
        """Where it begins."""

    def lend(self, nbytes: int) -> tuple[torch.Tensor, Callable[[], Any]]:
        """A uint8 tensor of its first bytes, and a reference that is None once no tensor uses these any more."""


class Window(Protocol):
    """One rank's side of it. ``lane`` counts the peers: what is put on a lane runs in order, lanes run side by side."""

    granularity: int

    def allocate(self, nbytes: int) -> Block:
        """New memory of at least one byte that peers can open."""

    def place(self, output: torch.Tensor) -> Place:
        """Where peers may write so that it ends up in ``output`` (uint8, one dimension)."""

    def open(self, peer: int, word: Any) -> Any:
        """A peer's memory, as :meth:`copy` takes it."""

    def opened(self) -> None:
        """All peers have opened what this rank has told them of."""

    def usable(self) -> None:
        """Raises :class:`C3Error` when nothing can be started just now."""

    def start(self, body: Callable[[], None], tensors: tuple[torch.Tensor, ...], asynchronous: bool) -> dist.Work:
        """Run ``body``, which works on ``tensors``, after all that was started before; the handle of its end.

        Unless ``asynchronous``, what the caller does next finds it done.
        """

    def settle(self) -> None:
        """Let the host be done with all that was started, as far as that keeps it busy."""

    def begin(self) -> None:
        """What follows runs after what the caller's stream has done so far."""

    def fork(self) -> None:
        """From here on lanes run."""

    def join(self) -> None:
        """All lanes end here."""

    def signal(self, lane: int | None, peer: int, name: str, number: int) -> None:
        """Tell a peer; lane None: before :meth:`fork`."""

    def wait(self, lane: int, peer: int, name: str, number: int, what: str) -> None:
        """Let the lane go on when the peer has given this signal."""

    def copy(self, lane: int, base: Any, offset: int, source: torch.Tensor) -> None:
        """Copy ``source`` to a peer's memory."""

    def copy_own(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy within this rank, beside all lanes."""

    def check(self, timeout_s: float, number: int, what: str) -> None:
        """Wait on the host until collective ``number`` is over. Raises :class:`C3Error` naming what is missing."""

    def close(self) -> None:
        """Let go of the peers' memory."""

    def free(self) -> None:
        """Peers have let go of this rank's memory: it may be given back."""


class HostBlock:
    """A piece of shared memory, mapped."""

    def __init__(self, word: str, nbytes: int):
        self.nbytes, self.word = nbytes, (word, nbytes)
        with opened(word) as path:
            self.bytes = torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()

    def lend(self, nbytes: int) -> tuple[torch.Tensor, Callable[[], Any]]:
        loan = self.bytes.numpy()[:nbytes]  # the tensor's storage holds this very array
        return torch.from_numpy(loan), weakref.ref(loan)


class HostWindow:
    """For tensors on the CPU. A tensor elsewhere than in memory of this window is received beside it and copied.

    Bytes and signals are seen in the order in which they are written, which x86 processors promise and others do not:
    without a GPU this is for tests and for trying programs out.
    """

    granularity = 1 << 12

    def __init__(self, board: Board):
        self._board = board
        self._signals = board.rows["signals"]
        self._files: list[Any] = []  # open until all peers have opened them
        self._beside: HostBlock | None = None
        self._opened: dict[tuple[int, Any], torch.Tensor] = {}
        self._last: HostWork | None = None
        weakref.finalize(self, _close, self._files)

    def allocate(self, nbytes: int) -> HostBlock:
        self._files.append(new_file(nbytes))
        return HostBlock(word_of(self._files[-1]), nbytes)

    def place(self, output: torch.Tensor) -> Place:
        nbytes = output.numel()
        if not nbytes:
            return Place(None, output)
        beside, fresh = self._beside, False
        if beside is None or beside.nbytes < nbytes:
            most = max(nbytes, 2 * beside.nbytes if beside else self.granularity)  # so it seldom grows
            beside, fresh = self.allocate(most), True
            self._beside = beside
        return Place(beside.word, beside.bytes[:nbytes], fresh)

    def open(self, peer: int, word: Any) -> torch.Tensor:
        if (peer, word) not in self._opened:
            try:
                self._opened[peer, word] = HostBlock(*word).bytes
            except OSError as error:
                whose = f"memory of rank {self._board.names[peer]}"
                raise C3Error(f"shared memory: {whose} cannot be opened: {error.strerror or 'it is gone'}") from None
        return self._opened[peer, word]

    def opened(self) -> None:
        _close(self._files)

    def usable(self) -> None:
        pass

    def start(self, body: Callable[[], None], tensors: tuple[torch.Tensor, ...], asynchronous: bool) -> dist.Work:
        self._last = HostWork(body, self._last)
        if not asynchronous:
            self._last.run_here()
        else:
            self._last.run_beside()
        return self._last

    def settle(self) -> None:
        if self._last is not None:
            self._last.settle()

    def begin(self) -> None:
        pass

    def fork(self) -> None:
        pass

    def join(self) -> None:
        pass

    def signal(self, lane: int | None, peer: int, name: str, number: int) -> None:
        self._signals[peer, SIGNALS.index(name), self._board.rank] = number % 2**32

    def wait(self, lane: int, peer: int, name: str, number: int, what: str) -> None:
        flags = self._signals[self._board.rank, SIGNALS.index(name)]

        def arrived() -> bool:
            is_there = reached(flags[peer], number)
            self._board.compare(peer)  # its note is there before its signal, and if it made another call none may come
            return is_there

        self._board.poll(arrived, lambda: self._board.late(what, name, peer, int(flags[peer])))

    def copy(self, lane: int, base: torch.Tensor, offset: int, source: torch.Tensor) -> None:
        base[offset : offset + source.numel()].copy_(source)

    def copy_own(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)

    def check(self, timeout_s: float, number: int, what: str) -> None:
        def flag(name: str, peer: int) -> int:
            return int(self._signals[self._board.rank, SIGNALS.index(name), peer])

        if self._last is not None:
            poll(self._last.is_completed, timeout_s, lambda: self._board.missing(number, flag, what, timeout_s))
            self._last.wait()

    def close(self) -> None:
        self._opened.clear()

    def free(self) -> None:
        self._beside = None


def _close(files: list[Any]) -> None:
    while files:
        files.pop().close()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, uint8, one dimension, the same memory."""
    return tensor.detach().reshape(-1).view(torch.uint8)
