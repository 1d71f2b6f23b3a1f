"""What processes of one machine tell one another, and that none leaves anything behind; ranks are forked from here."""

import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from c3lib.collectives import board as boards
from c3lib.collectives import shared
from c3lib.collectives.communicator import Communicator
from c3lib.collectives.window import HostWindow
from c3lib.errors import C3Error
from c3lib.files import ROOT

FORK = multiprocessing.get_context("fork")
LIMIT_S = 60  # of what takes a second, on a busy machine


class Store:
    """As torch.distributed's, in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def path(self, key):
        return self.folder / key.replace("/", "_")

    def set(self, key, value):
        new = self.folder / f"new {os.getpid()}"
        new.write_text(value)
        new.rename(self.path(key))

    def check(self, keys):
        return all(self.path(key).exists() for key in keys)

    def get(self, key):
        return self.path(key).read_bytes()


class Ranks:
    """Processes, each a rank with a board: ``program(board, say)``; a :class:`C3Error` that it raises is said, too.

    They wait for one another until the test says that this is long enough: no machine is too busy for that.
    """

    def __init__(self, folder, ranks):
        self.store, self.ranks, self.processes, self.ears = Store(folder), ranks, {}, {}
        self.enough = folder / "enough"

    def start(self, rank, program=None, home=None):
        self.ears[rank], mouth = FORK.Pipe(duplex=False)
        self.processes[rank] = FORK.Process(target=self.body, args=(rank, program, home, mouth), daemon=True)
        self.processes[rank].start()
        mouth.close()

    def body(self, rank, program, home, mouth):
        boards.dist = SimpleNamespace(
            get_process_group_ranks=lambda group: list(range(self.ranks)),
            get_rank=lambda group: rank,
            distributed_c10d=SimpleNamespace(_get_process_group_store=lambda group: self.store),
        )
        boards.poll = self.poll
        if home is not None:
            shared._home = lambda: home
        try:
            program(boards.Board(None, "test"), mouth.send)
        except C3Error as error:
            mouth.send(str(error))
        time.sleep(LIMIT_S)  # it is still there

    def poll(self, arrived, timeout_s, sentence):
        while not arrived():
            if self.enough.exists():
                raise C3Error(sentence())
            time.sleep(0.001)

    def hear(self, rank):
        assert self.ears[rank].poll(LIMIT_S), f"rank {rank} says nothing"
        return self.ears[rank].recv()

    def kill(self, rank):
        """As it is killed for want of memory; nobody asks how it ended, so that a zombie stays."""
        os.kill(self.processes[rank].pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.processes[rank].pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def ranks(tmp_path):
    """``ranks(count)``."""
    made = []

    def make(count):
        made.append(Ranks(tmp_path, count))
        return made[-1]

    yield make
    for process in (process for ranks in made for process in ranks.processes.values()):
        process.kill()
        process.join()


def register_for_ever(board, say):
    comm = Communicator(torch.device("cpu"), board, HostWindow(board))
    while True:
        comm.register(3000)
        say("registered")


@pytest.mark.parametrize("after", [1, 7])
def test_a_killed_rank_leaves_nothing_in_shared_memory_and_is_named(ranks, after):
    three = ranks(3)
    for rank in range(3):
        three.start(rank, register_for_ever)
    pids = tuple(f"c3lib-{process.pid}-" for process in three.processes.values())
    names = []
    for _ in range(after):
        assert three.hear(0) == "registered"
        names += [name for name in os.listdir(shared.SHARED_MEMORY) if name.startswith(pids)]
    three.kill(0)
    three.enough.touch()
    for rank in (1, 2):
        while (said := three.hear(rank)) == "registered":
            pass
        assert said.endswith("; no longer running: rank 0") or "memory of rank 0 cannot be opened" in said
    assert names + [name for name in os.listdir(shared.SHARED_MEMORY) if name.startswith(pids)] == []


def test_who_waits_for_a_neighbour_names_who_has_ended(ranks):
    """Rank 0 waits for rank 1, which is alive; what it says names rank 2 once that is killed, and only then."""

    def first(board, say):
        waits = [lambda: board.late("it", "ready", 1, 7), lambda: board.missing(1, lambda *flag: 0, "it", 1)]
        say([wait() for wait in waits])
        while not board._ended():
            time.sleep(0.01)
        say([wait() for wait in waits])
        board.exchange(None, "it")

    three = ranks(3)
    three.start(0, first)
    three.start(1, lambda board, say: say("here"))
    three.start(2, lambda board, say: say("here"))
    before = three.hear(0)
    assert three.hear(1) == three.hear(2) == "here"
    assert not any("no longer running" in said for said in before)
    three.kill(2)
    assert three.hear(0) == [f"{said}; no longer running: rank 2" for said in before]
    three.enough.touch()
    assert three.hear(0) == "rank 0 has waited 300 s for rank 1 in it; no longer running: rank 2"


OUTSIDE = (
    "group: collectives by copy engine reach the processes of one user on one machine only, and rank {} cannot open "
    "memory of rank 0, or came after rank 0 had given up"
)


def test_a_rank_that_comes_too_late_is_told_so(ranks):
    three = ranks(3)
    for rank in (0, 1):
        three.start(rank)
    end = time.monotonic() + LIMIT_S
    while not three.store.check(["test/0", "test/1"]):
        assert time.monotonic() < end, "ranks 0 and 1 do not come"
        time.sleep(0.01)
    three.enough.touch()
    for rank in (0, 1):
        assert three.hear(rank) == f"rank {rank} has waited 300 s for rank 2 to join collectives (test)"
    three.start(2)
    assert three.hear(2) == OUTSIDE.format(2)


def test_ranks_of_two_machines_are_told_so(ranks):
    two = ranks(2)
    two.start(0)
    two.start(1, home="another machine")
    for rank in (0, 1):
        assert two.hear(rank) == OUTSIDE.format(1)


def handles():
    return sorted(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("nbytes", [2**62, 2**63, 2**72])
def test_a_file_that_cannot_be_made_leaves_nothing(nbytes):
    before = handles()
    with pytest.raises(C3Error, match=f"^shared memory: no room for {nbytes} bytes in /dev/shm: "):
        shared.new_file(nbytes)
    assert handles() == before


def test_a_file_whose_making_is_interrupted_leaves_nothing(monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt

    before = handles()
    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        shared.new_file(10)
    assert handles() == before


def test_a_file_is_one_memory_for_all_and_is_not_mistaken_for_another(monkeypatch):
    file = shared.new_file(4096)
    word = shared.word_of(file)
    with shared.opened(word) as path, open(path, "r+b") as found:
        mine, theirs = mmap.mmap(file.fileno(), 4096), mmap.mmap(found.fileno(), 4096)
    mine[7] = 5
    assert theirs[7] == 5
    number = file.fileno()
    file.close()
    with pytest.raises(OSError, match="No such file"), shared.opened(word):
        pass
    with shared.new_file(4096) as other:
        assert other.fileno() == number  # the same path, another file
        with pytest.raises(FileNotFoundError), shared.opened(word):
            pass
        word = shared.word_of(other)
        monkeypatch.setattr(shared, "_home", lambda: "another machine")
        with pytest.raises(FileNotFoundError), shared.opened(word):
            pass


def test_a_process_is_known_by_when_it_began():
    assert 0 < shared.start_of(1) <= shared.start_of(os.getpid()) == shared.start_of(os.getpid())
    child = subprocess.Popen(["sleep", str(LIMIT_S)])
    assert shared.start_of(child.pid) >= shared.start_of(os.getpid())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert shared.start_of(child.pid) == 0  # though its number is not free yet
    child.wait()
    assert shared.start_of(child.pid) == 0


def test_without_torch_the_package_says_what_it_needs():
    code = "import sys; sys.modules['torch'] = None\nimport c3lib.collectives"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stderr.splitlines()[-1].startswith("ImportError: c3lib.collectives needs torch: make test sets it up")
