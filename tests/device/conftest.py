"""The device tier: one GPU, opened once, and an end to every hang.

Run it by ``make test-device``, or straight from the tree by
``python3 -m pytest -m device -p no:cacheprovider tests/device``.
"""

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from c3lib.cuda.device import Cuda, open_device, open_devices
from c3lib.cuda.region import Gate
from c3lib.cuda.source import launch

LIMIT_S = 60
"""A test that takes longer hangs; the whole tier takes about three minutes."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not Path("/dev/nvidiactl").exists():
        reason = "no NVIDIA GPU"
    elif hasattr(config, "workerinput"):
        reason = "what is timed shares the GPU with nothing: make test-device"
    else:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that hangs ends the run and shows where: no wait inside a driver call can be interrupted."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        terminal = os.dup(2)
    faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=terminal)
    yield
    faulthandler.cancel_dump_traceback_later()
    os.close(terminal)


@pytest.fixture(scope="session")
def cuda() -> Cuda:
    """The GPU, with the kernel that waits loaded: loading one behind a shut gate would wait for the gate."""
    opened = open_device()
    launch(opened, opened.device.default_stream, "pause", 1, 1, np.uint64(1))
    opened.torch.cuda.synchronize()
    return opened


@pytest.fixture(scope="session")
def cudas(cuda: Cuda) -> tuple[Cuda, ...]:
    """All GPUs of this machine, each able to reach the others' memory; with only one the test is skipped."""
    count = cuda.torch.cuda.device_count()
    if count < 2:
        pytest.skip("needs 2 GPUs")
    return open_devices(count)


@pytest.fixture(scope="session")
def gate(cuda: Cuda) -> Gate:
    """The gate of all timed regions."""
    return Gate([cuda])
