"""The loop that joules are read around, with a stand-in for the rig: what runs, in which order, and what is divided."""

from types import SimpleNamespace

import pytest

from c3lib.cuda.health import Health
from c3lib.cuda.setting import Setting
from c3lib.measure import energy


class Stream:
    def __init__(self, name, said):
        self.name, self.said = name, said

    def record(self, event):
        self.said.append(f"{self.name} records {event}")

    def wait(self, event):
        self.said.append(f"{self.name} waits for {event}")


class Rig:
    """Two GPUs whose energy counter moves by 8 J each time it is read."""

    def __init__(self):
        self.said, self.cudas, self.turn, self.joules = [], ["0", "1"], 0, 0.0
        self.buffers = SimpleNamespace(prepare=lambda turn: None)
        self._streams = tuple([Stream(f"{kind}{gpu}", self.said) for gpu in self.cudas] for kind in "gt")

    def streams(self, how):
        return self._streams

    def transport(self, how):
        put = lambda what: lambda on: self.said.append(f"{what} on {'+'.join(s.name for s in on)}")  # noqa: E731
        return SimpleNamespace(restart=put("restart"), enqueue=put("transfer"))

    def enqueue_gemm(self, on, turn, how):
        self.said.append(f"gemm {turn} on {'+'.join(s.name for s in on)}")

    def synchronize(self):
        self.said.append("synchronize")

    def health(self):
        self.joules += 8.0
        return Health(1980.0, 3201.0, 500.0, 40.0, self.joules)


@pytest.fixture
def once(monkeypatch):
    """Time stands still but for the end of the loop; events are named by their GPU."""
    times = iter([0.0, 0.0, 1.0, 2.0])
    monkeypatch.setattr(energy.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(energy, "new_event", lambda cuda: f"event of {cuda}")


@pytest.mark.parametrize("gemm_first", [True, False])
def test_a_run_waits_for_both_kernels_of_the_one_before_on_every_gpu(once, gemm_first):
    rig = Rig()
    how = Setting(gemm_first=gemm_first)
    runs, seconds, joules, state = energy._loop(SimpleNamespace(rig=rig), how, serial=False, estimate_s=1.0)
    assert (runs, seconds, joules) == (1, 2.0, 16.0)  # read before, while busy, after: the last less the first
    kernels = ["gemm 0 on g0+g1", "restart on t0+t1", "transfer on t0+t1"]
    wanted = kernels if gemm_first else [*kernels[1:], kernels[0]]
    assert rig.said[1:4] == wanted
    for gpu, at in (("0", 4), ("1", 8)):
        event = f"event of {gpu}"
        records = [f"g{gpu} records {event}", f"t{gpu} records {event}"]
        assert rig.said[at : at + 4] == [*records, f"g{gpu} waits for {event}", f"t{gpu} waits for {event}"]
    assert state.power_w == 500.0


def test_serially_both_kernels_share_a_stream_and_nobody_waits(once):
    rig = Rig()
    energy._loop(SimpleNamespace(rig=rig), Setting(), serial=True, estimate_s=1.0)
    assert rig.said == ["synchronize", "gemm 0 on g0+g1", "restart on g0+g1", "transfer on g0+g1", "synchronize"]
