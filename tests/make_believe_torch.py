"""A make-believe GPU on which torch multiplies: on the CPU, when the stream gets there that it was put on."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from make_believe_gpus import Gpus, view

from c3lib.cuda import lane, partition, region, schedule, sm_kernel, source
from c3lib.cuda.schedule import Schedule
from c3lib.region import Health


class Torch:
    """torch on the CPU, of which only what is enqueued is put on the make-believe streams."""

    def __init__(self, gpus):
        self._gpus, self._stack = gpus, []
        self.cuda = SimpleNamespace(
            synchronize=lambda index: gpus.drain(), stream=self._stream, ExternalStream=lambda handle, device: handle
        )

    def __getattr__(self, name):
        return getattr(torch, name)

    @contextmanager
    def _stream(self, handle):
        self._stack.append(handle)
        yield
        self._stack.pop()

    def empty(self, *shape, dtype, device="cpu", pin_memory=False):
        assert not pin_memory or device == "cpu"
        return torch.full(shape, float("nan"), dtype=dtype)

    def zeros(self, *shape, dtype=torch.float32, device="cpu", pin_memory=False):
        return torch.zeros(*shape, dtype=dtype)

    def randn(self, *shape, dtype, device, generator):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    def randint(self, high, shape, *, device, generator):
        return torch.randint(high, shape, generator=generator)

    def Generator(self, device):
        return torch.Generator()

    def put(self, run):
        """On torch's current stream."""
        with self._gpus.gpus[0].current():
            self._gpus.stream(self._stack[-1]).put(run)


@pytest.fixture
def machine(monkeypatch):
    """Makes a GPU; what chance has its streams do first follows ``seed``."""

    def build(seed=0, eager=False):
        gpus = Gpus(1, seed, eager)
        (cuda,) = gpus
        cuda.torch, cuda.machine = Torch(gpus), gpus
        cuda.core.launch = lambda stream, config, name, *arguments: launched(gpus, stream, config, name, *arguments)
        partition.streams.cache_clear()
        partition.partition.cache_clear()
        return cuda

    names = {name: name for name in ("copy", "copy_rows", "pause")}
    for module in (source, sm_kernel):
        monkeypatch.setattr(module, "kernels", lambda cuda: names)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *where: tensor, raising=False)
    monkeypatch.setattr(lane, "set_sm_target", lambda cuda, sms: None)
    plain = lane.run
    monkeypatch.setattr(lane, "run", lambda fake, kernel: fake.put(lambda: plain(torch, kernel)))
    health = Health(1.0, 1.0, 1.0, 1.0, 1.0)
    monkeypatch.setattr(schedule, "read_health", lambda cudas: health)
    monkeypatch.setattr(Schedule, "proof", lambda self: SimpleNamespace(path="not proved here", blocks=0))
    monkeypatch.setattr(region, "LIMIT_S", 2.0)
    yield build
    partition.streams.cache_clear()
    partition.partition.cache_clear()


def launched(gpus, stream, config, name, *arguments):
    """Our kernels, as the host would do them; a pause is what the other stream may use to run ahead."""
    if name == "pause":
        stream.put(lambda: [other.step() for other in gpus.streams if other is not stream for _ in list(other.queue)])
        return
    chunks, count, _, told = map(int, arguments)
    width = 6 if name == "copy_rows" else 3

    def run():
        for line in view(chunks, 8 * width * count).view(np.int64).reshape(-1, width).tolist() if count else ():
            start, target, nbytes, *apart = line
            rows, *pitches = apart or (1, 0, 0)
            for row in range(rows):
                into, out_of = target + row * pitches[1], start + row * pitches[0]
                view(into, nbytes)[:] = view(out_of, nbytes)
        view(told, 24 * config.grid).view(np.int64)[::3] = np.arange(1, config.grid + 1)

    stream.put(run)
