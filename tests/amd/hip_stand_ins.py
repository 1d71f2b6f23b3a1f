"""Stand-ins for HIP and for torch's part of it: what is called is noted, in order; a GEMM is computed by the CPU."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch


class Bindings:
    """hip-python's functions that are used: ``(status, value)``; ``fails`` names one that refuses or is not there."""

    hipMallocSignalMemory, hipStreamWaitValueGte = 2, 0

    def __init__(self, places: list[str], fails: dict[str, Any] | None = None) -> None:
        self.places, self.fails, self.said, self.masks = places, fails or {}, [], {}
        self.memory: list[ctypes.c_uint64] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("hip"):
            raise AttributeError(name)

        def function(*arguments: Any) -> Any:
            self.said.append((name, *arguments))
            if isinstance(failure := self.fails.get(name), Exception):
                raise failure
            return (failure or 0, self._value(name, arguments))

        return function

    def _value(self, name: str, arguments: Any) -> Any:
        if name == "hipDeviceGetPCIBusId":
            return self.places[arguments[1]] + "\0"
        if name == "hipExtStreamCreateWithCUMask":
            handle = 4096 + len(self.masks)
            self.masks[handle] = arguments[1]
            return handle
        if name == "hipExtStreamGetCUMask":
            arguments[2][:] = self.masks[arguments[0]]
        if name == "hipExtMallocWithFlags":  # such memory is a signal, and HIP makes signals with a 1
            self.memory.append(ctypes.c_uint64(1))
            return ctypes.addressof(self.memory[-1])
        return {"hipGetDeviceCount": len(self.places), "hipRuntimeGetVersion": 60443484}.get(name)

    def open_gates(self) -> list[bool]:
        """Of each wait of a stream so far, whether it would go on now."""
        waits = [said[2:4] for said in self.said if said[0] == "hipStreamWaitValue64"]
        return [ctypes.c_uint64.from_address(address).value >= value for address, value in waits]


class Torch:
    """Torch whose GPUs are the CPU; ``log`` has what its streams and events were told, with their time if any."""

    def __init__(self) -> None:
        self.log: list[tuple] = []
        self.version, self.__version__, self.__file__ = SimpleNamespace(hip="6.4"), "2.11.0+rocm6.4", torch.__file__
        self.cuda = SimpleNamespace(
            Stream=lambda index, priority: self._stream(f"whole {index} {priority}"),
            ExternalStream=lambda handle, device: self._stream(f"masked {device}", handle),
            Event=lambda enable_timing=False: Event(self.log),
            default_stream=lambda index: self._stream(f"default {index}"), device=_context, stream=_context,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _stream(self, name: str, handle: int = 1) -> Any:
        wait = lambda event: self.log.append((name, "waits for", event))  # noqa: E731
        return SimpleNamespace(name=name, cuda_stream=handle, wait_event=wait)

    def Generator(self, device: str) -> Any:
        return torch.Generator()

    def randn(self, *shape: int, device: str, **more: Any) -> Any:
        return torch.randn(*shape, **more)


class Event:
    """An event that is over when it was recorded; its number in the order of all is its time in milliseconds."""

    def __init__(self, log: list[tuple]) -> None:
        self.log, self.at, self.of = log, None, ""

    def record(self, stream: Any) -> None:
        self.of = stream.name
        self.at = sum(1 for what in self.log if what[1:] == ("records",))
        self.log.append((stream.name, "records"))

    def query(self) -> bool:
        return self.at is not None

    def elapsed_time(self, later: Event) -> float:
        return later.at - self.at


@contextmanager
def _context(*_: Any):
    yield
