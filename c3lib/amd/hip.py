"""HIP: streams with a CU mask, flags that streams wait for, by hip-python; the rest of HIP is torch's (ROCm build).

hip-python and torch must drive one and the same library: a stream of one HIP means nothing to another.
"""

from __future__ import annotations

import ctypes
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Sequence

from c3lib.amd.agents import Gpu
from c3lib.amd.mask import CuMask
from c3lib.errors import C3Error

LIBRARY = "libamdhip64"
LIMIT_S = 20.0
"""Work that has not ended by then is reported as hanging."""

_PCI_NBYTES = 64
_POLL_S = 0.0002


def rocm_torch() -> Any:
    """The module torch, built for ROCm. Raises :class:`C3Error` where it is missing or built for something else."""
    try:
        import torch
    except ImportError:
        raise C3Error("amd: PyTorch is not installed; GEMMs need it, built for ROCm (pytorch.org)") from None
    if torch.version.hip is None:
        raise C3Error(
            f"amd: PyTorch {torch.__version__} here is not built for ROCm, so nothing can run a GEMM on an AMD GPU; "
            "install the build for this machine's ROCm (pytorch.org)"
        )
    return torch


@dataclass(frozen=True)
class Stream:
    """A stream of one GPU: ``torch`` is torch's object for it, ``mask`` the CUs that its kernels may use."""

    index: int
    torch: Any
    mask: CuMask | None = None

    @property
    def handle(self) -> int:
        """What HIP's own functions take."""
        return int(self.torch.cuda_stream)


class Hip:
    """HIP on the GPUs of the ranks; ``indices`` are HIP's numbers of them.

    Raises:
        C3Error: no PyTorch for ROCm, no hip-python, two copies of the library in this process, GPUs that HIP does not
            list.
    """

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.torch = rocm_torch()
        self.gpus = list(gpus)
        self._flags: dict[int, Flag] = {}
        self._streams: dict[tuple, Stream] = {}
        self._hip = self._bindings()
        self.version = str(self._call("reading its version", "hipRuntimeGetVersion"))
        require_one_library()
        self.indices = self._find()

    def _bindings(self) -> Any:
        try:
            with torchs_library(Path(self.torch.__file__).parent):
                from hip import hip

                self._hip = hip
                self._call("counting GPUs", "hipGetDeviceCount")
        except ImportError:
            raise C3Error("amd: hip-python is not installed; streams with a CU mask need it") from None
        return hip

    def _call(self, doing: str, name: str, *arguments: Any) -> Any:
        """A function's result. Raises :class:`C3Error` with HIP's name of the error."""
        try:
            found = getattr(self._hip, name)(*arguments)
        except RuntimeError as error:  # no library, or it lacks the function
            raise C3Error(f"amd: {doing} failed in {name}: {error}") from None
        status, *values = found if isinstance(found, tuple) else (found,)
        if int(status):
            raise C3Error(f"amd: {doing} failed in {name}: {getattr(status, 'name', status)}")
        return values[0] if values else None

    def _find(self) -> list[int]:
        count = self._call("counting GPUs", "hipGetDeviceCount")
        places = {}
        for index in range(count):
            said = self._call(f"asking where GPU {index} is", "hipDeviceGetPCIBusId", _PCI_NBYTES, index)
            places[str(said).strip("\0 ").lower()] = index
        missing = [f"{gpu} ({gpu.pci})" for gpu in self.gpus if gpu.pci.lower() not in places]
        if missing:
            raise C3Error(
                f"amd: HIP does not list {', '.join(missing)}; unset HIP_VISIBLE_DEVICES, and use whole "
                "GPUs, not partitions"
            )
        return [places[gpu.pci.lower()] for gpu in self.gpus]

    def stream(self, rank: int, mask: CuMask | None = None, high: bool = False, user: str = "") -> Stream:
        """A stream of a rank's GPU: whole, with ``high`` at the highest priority, or with a mask, which has none.

        A ``user`` gets the same one each time. A masked stream has a queue of the GPU to itself, and a process has no
        more than some 1,000 of those; torch's whole ones come round again after 32, to another user maybe.

        Raises:
            C3Error: HIP refuses the mask, or the stream does not have it when it is read back.
        """
        key = (rank, mask, high, user)
        if key not in self._streams:
            self._streams[key] = self._made(self.indices[rank], mask, high)
        return self._streams[key]

    def _made(self, index: int, mask: CuMask | None, high: bool) -> Stream:
        with self.torch.cuda.device(index):
            if mask is None:
                return Stream(index, self.torch.cuda.Stream(index, priority=-1 if high else 0))
            words = list(mask.words)
            made = self._call(f"making a stream of {mask}", "hipExtStreamCreateWithCUMask", len(words), words)
            back = (ctypes.c_uint32 * len(words))()
            self._call("reading a stream's CUs back", "hipExtStreamGetCUMask", made, len(words), back)
            if not mask.same_as(list(back)):
                raise C3Error(f"amd: asked for a stream of {mask}, got {[hex(word) for word in back]}")
            return Stream(index, self.torch.cuda.ExternalStream(int(made), device=index), mask)

    def flag(self, rank: int) -> Flag:
        """The flag that streams of a rank's GPU can wait for."""
        if rank not in self._flags:
            with self.torch.cuda.device(self.indices[rank]):
                kind = self._hip.hipMallocSignalMemory
                self._flags[rank] = Flag(int(self._call("making a flag", "hipExtMallocWithFlags", 8, kind)))
                self._flags[rank].open()  # to turn 0, that is shut for the first: HIP's signals are made with a 1
        return self._flags[rank]

    def wait_for(self, stream: Stream, flag: Flag) -> None:
        """Have a stream wait until its flag is opened the next time.

        By a packet in its queue, no kernel, if :func:`c3lib.amd.driver.have_queues_wait` came before HIP.
        """
        flag.turn += 1
        how = self._hip.hipStreamWaitValueGte
        with self.torch.cuda.device(stream.index):
            self._call(
                "shutting the gate", "hipStreamWaitValue64", stream.handle, flag.address, flag.turn, how, -1 % 2**64
            )

    def synchronize(self, limit_s: float = LIMIT_S) -> None:
        """Wait until the streams made here, and each GPU's default stream, have nothing left to do.

        HIP's own function waits without a limit, and Ctrl-C does not end it.

        Raises:
            C3Error: they still have after ``limit_s``.
        """
        streams = [self.torch.cuda.default_stream(index) for index in self.indices]
        marks = []
        for stream in [*streams, *(made.torch for made in self._streams.values())]:
            marks.append(self.torch.cuda.Event())
            marks[-1].record(stream)
        wait_for_events(marks, limit_s, "what was queued before")


def wait_for_events(events: Sequence[Any], limit_s: float, what: str) -> None:
    """Wait until torch's events are over; raises :class:`C3Error`, naming ``what``, when ``limit_s`` is."""
    until_s = time.monotonic() + limit_s
    while not all(event.query() for event in events):
        if time.monotonic() > until_s:
            raise C3Error(f"amd: {what} has not ended after {limit_s:g} s; the GPU hangs or is lost")
        time.sleep(_POLL_S)


@dataclass
class Flag:
    """Eight bytes that the host writes and a stream's queue reads; ``turn`` is the value that is waited for."""

    address: int
    turn: int = 0

    def open(self) -> None:
        """Release whoever waits."""
        ctypes.c_uint64.from_address(self.address).value = self.turn


@contextmanager
def torchs_library(folder: Path) -> Iterator[None]:
    """While hip-python looks for its library, ROCm is torch's ``folder``, if torch brings its own."""
    before = os.environ.get("ROCM_PATH")
    if (folder / "lib" / f"{LIBRARY}.so").exists():
        os.environ["ROCM_PATH"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("ROCM_PATH", None)
        else:
            os.environ["ROCM_PATH"] = before


def require_one_library(maps: Path = Path("/proc/self/maps")) -> None:
    """Raises :class:`C3Error` when this process has two copies of HIP's library."""
    lines = [line.split(maxsplit=5) for line in maps.read_text().splitlines()]
    found = sorted({words[5] for words in lines if len(words) == 6 and f"/{LIBRARY}" in words[5]})
    if len(found) > 1:
        raise C3Error(
            f"amd: this process has two copies of HIP, {' and '.join(found)}, and a stream of one means nothing to "
            "the other; set ROCM_PATH to the folder above the lib folder of the one that torch uses"
        )
