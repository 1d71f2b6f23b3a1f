"""The GPUs themselves: opened once, with one clear sentence for everything that can be in the way."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Iterator, Sequence

from c3lib.errors import C3Error

NEEDED = ("torch", "cuda.core", "cuda.bindings", "pynvml")
IDLE_MEMORY_FRACTION = 0.95
"""A GPU with less free memory than this before anything is allocated has another user: times would be theirs too."""


@dataclass(frozen=True)
class Cuda:
    """An open GPU: the modules that drive it and what was read from it."""

    torch: Any
    core: Any  # cuda.core
    driver: Any  # cuda.bindings.driver
    runtime: Any  # cuda.bindings.runtime
    device: Any  # cuda.core.Device
    name: str
    sms: int
    memory_nbytes: int
    copy_engines: int
    driver_version: str

    @property
    def index(self) -> int:
        """The GPU's number on this machine."""
        return int(self.device.device_id)

    @property
    def pci_bus_id(self) -> str:
        """Where the GPU sits: its name for NVML, which numbers GPUs in an order of its own and knows no hidden ones."""
        return str(self.device.pci_bus_id)

    def current(self) -> Any:
        """A context in which this is the current GPU: the driver wants that of launches, events and allocations."""
        return self.torch.cuda.device(self.index)


def missing_packages() -> list[str]:
    """Packages of :data:`NEEDED` that cannot be imported here."""
    from importlib.util import find_spec

    def there(name: str) -> bool:
        try:
            return find_spec(name) is not None
        except ModuleNotFoundError:  # of the parent
            return False

    return [name for name in NEEDED if not there(name)]


def require_gpu(count: int = 1) -> None:
    """Raises :class:`C3Error` when a package is missing, or there are not ``count`` GPUs or no driver; takes none."""
    if missing := missing_packages():
        raise C3Error(
            f"backend cuda: needs {', '.join(missing)}; install torch, cuda-core, cuda-bindings, nvidia-ml-py"
        )
    import torch

    if not torch.cuda.is_available():
        raise C3Error("backend cuda: no NVIDIA GPU here, or no driver for it (nvidia-smi shows neither)")
    if count > torch.cuda.device_count():
        raise C3Error(f"backend cuda: {count} GPUs are needed, this machine has {torch.cuda.device_count()}")


@cache
def open_device(index: int = 0) -> Cuda:
    """GPU ``index``, current in this process.

    Raises:
        C3Error: a package is missing, there is no GPU or driver, or another program uses the GPU.
    """
    # More hardware queues than streams, or streams would wait for one another (read when CUDA starts).
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    require_gpu(index + 1)
    import cuda.core
    import torch
    from cuda.bindings import driver, runtime

    with said_clearly("opening the GPU"):
        torch.cuda.set_device(index)
        free, total = torch.cuda.mem_get_info(index)
        if free < IDLE_MEMORY_FRACTION * total:
            raise C3Error(
                f"backend cuda: GPU {index} is in use, {(total - free) / 1e9:.1f} of {total / 1e9:.0f} GB are taken by "
                "another program; its work would be in every time"
            )
        torch.zeros(1, device="cuda")  # the primary context, which cuda.core then shares
        device = cuda.core.Device(index)
        device.set_current()
    from c3lib.cuda.health import driver_version

    return Cuda(
        torch=torch,
        core=cuda.core,
        driver=driver,
        runtime=runtime,
        device=device,
        name=device.name,
        sms=device.properties.multiprocessor_count,
        memory_nbytes=total,
        copy_engines=device.properties.async_engine_count,
        driver_version=driver_version(),
    )


@cache
def open_devices(count: int) -> tuple[Cuda, ...]:
    """The first ``count`` GPUs, each able to read and write the memory of every other; GPU 0 is current.

    Raises:
        C3Error: as :func:`open_device`, or two of them cannot reach each other's memory.
    """
    require_gpu(count)
    cudas = tuple(open_device(index) for index in range(count))
    for one in cudas:
        enable_peers(one, [other for other in cudas if other.index != one.index])
    cudas[0].torch.cuda.set_device(0)
    return cudas


def enable_peers(cuda: Cuda, peers: Sequence[Cuda]) -> None:
    """Let kernels and copies of one GPU reach the memory of others. Raises :class:`C3Error` where that cannot be."""
    runtime = cuda.runtime
    with cuda.current(), said_clearly("opening the peers' memory"):
        for peer in peers:
            if not cuda.torch.cuda.can_device_access_peer(cuda.index, peer.index):
                raise C3Error(f"backend cuda: GPU {cuda.index} cannot reach the memory of GPU {peer.index}")
            (code,) = runtime.cudaDeviceEnablePeerAccess(peer.index, 0)
            if code.name not in ("cudaSuccess", "cudaErrorPeerAccessAlreadyEnabled"):
                raise C3Error(f"cuda: opening GPU {peer.index}'s memory to GPU {cuda.index} failed: {code.name}")
            runtime.cudaGetLastError()  # of a peer that was open already


@contextmanager
def said_clearly(what: str) -> Iterator[None]:
    """Turns what the CUDA libraries raise into a :class:`C3Error` that says what was being done."""
    try:
        yield
    except C3Error:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if "out of memory" in text.lower() or "OUT_OF_MEMORY" in text:
            raise C3Error(f"cuda: not enough memory while {what}: {text}") from error
        if type(error).__module__.startswith(("torch", "cuda")) or "CUDA" in text:
            raise C3Error(f"cuda: the device failed while {what}: {text}") from error
        raise


def checked(cuda: Cuda, outcome: tuple, what: str) -> Any:
    """The value of a call of driver or runtime. Raises :class:`C3Error` with their name for the error."""
    code, *values = outcome
    if code.name not in ("CUDA_SUCCESS", "cudaSuccess"):
        raise C3Error(f"cuda: {what} failed: {code.name}")
    return values[0] if len(values) == 1 else values or None
