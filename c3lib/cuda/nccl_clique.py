"""A clique of NCCL communicators: all ranks in this one process, driven by one thread."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Sequence
from weakref import finalize

from c3lib.cuda.device import Cuda
from c3lib.cuda.nccl_library import (
    OLDEST,
    POLICY_ZERO,
    SYMMETRIC,
    UINT8,
    Config,
    UniqueId,
    call,
    group,
    load_library,
    new_config,
    require_version,
    version_of,
    version_text,
)
from c3lib.errors import C3Error, unknown

VARIANTS = {
    "nccl": "NCCL's own choice of kernels, on plain memory",
    "nccl_unclustered": "the same with its thread blocks launched singly, not in clusters that start together",
    "nccl_registered": "NCCL's own choice on symmetric windows, which lets NCCL use its kernels for symmetric memory",
    "nccl_zero_cta": "symmetric windows and the policy of zero CTAs: copy engines where NCCL has them",
}

WINDOWED = ("nccl_registered", "nccl_zero_cta")
"""Those whose buffers have to be registered as symmetric windows."""


@dataclass
class _Window:
    """One tensor a rank, kept here so that no memory is freed under a window, and how many asked for it."""

    tensors: list[Any]
    handles: list[ctypes.c_void_p]
    users: int = 0


class Clique:
    """Communicators of all ranks of this process, rank r on ``cudas[r]``.

    ``ctas`` thread blocks for every collective, 0 for NCCL's own choice. ``library`` is used in place of NCCL's (it is
    RCCL's, or a test's), unless it is older than ``oldest``.

    Raises:
        C3Error: no NCCL or one older than 2.28, an unknown variant, fewer than two GPUs or one of them twice,
            ``ctas`` where there are none, a refusal of NCCL.
    """

    def __init__(
        self, cudas: Sequence[Cuda], variant: str = "nccl", ctas: int = 0, *, library: Any = None, oldest: int = OLDEST
    ):
        if variant not in VARIANTS:
            raise unknown("variant of nccl", variant, VARIANTS)
        if variant == "nccl_zero_cta" and ctas:
            raise C3Error(f"{variant}: runs on no thread blocks, so ctas must be 0, not {ctas}")
        if ctas < 0:
            raise C3Error(f"{variant}: ctas must be 0 (NCCL chooses) or more, not {ctas}")
        devices = [cuda.index for cuda in cudas]
        if len(devices) < 2 or len(set(devices)) < len(devices):
            raise C3Error(f"{variant}: needs two or more different GPUs, not {devices}")
        self.cudas, self.variant, self.ctas = list(cudas), variant, ctas
        self.library = library or load_library()
        require_version(self.library, oldest)
        chosen = {"blocking": 1}
        if ctas:
            chosen |= {"minCTAs": ctas, "maxCTAs": ctas}
        if variant == "nccl_unclustered":
            chosen |= {"cgaClusterSize": 0}
        if variant == "nccl_zero_cta":
            chosen |= {"CTAPolicy": POLICY_ZERO}
        self._windows: dict[tuple[int, ...], _Window] = {}
        self._comms = [ctypes.c_void_p() for _ in cudas]
        self._connect(new_config(**chosen))

    def _connect(self, config: Config) -> None:
        doing, shared = f"making {len(self.cudas)} communicators", UniqueId()
        call(self.library, doing, "ncclGetUniqueId", ctypes.byref(shared))

        def connect(rank: int) -> None:
            comm = ctypes.byref(self._comms[rank])
            self._call(doing, "ncclCommInitRankConfig", comm, len(self.cudas), shared, rank, ctypes.byref(config))

        self._each(doing, connect)

    @property
    def version(self) -> str:
        """NCCL's version, ``2.28.9``."""
        return version_text(version_of(self.library))

    @property
    def windowed(self) -> bool:
        """Whether buffers have to be registered as symmetric windows."""
        return self.variant in WINDOWED

    def allocate(self, rank: int, nbytes: int) -> Any:
        """A uint8 tensor of ``nbytes`` bytes on a rank's GPU by ``ncclMemAlloc``, freed with its last view."""
        cuda = self.cudas[rank]
        with cuda.current():
            return cuda.torch.as_tensor(Room(self.library, cuda, nbytes), device=f"cuda:{cuda.index}")

    def register(self, tensors: Sequence[Any]) -> None:
        """Make one tensor a rank a symmetric window, until :meth:`unregister` was called as often.

        Raises:
            C3Error: tensors of unequal size, memory that is not of :meth:`allocate`, GPUs that cannot have windows.
        """
        sizes = [tensor.numel() for tensor in tensors]
        if len(sizes) != len(self.cudas) or len(set(sizes)) != 1:
            raise C3Error(
                f"{self.variant}: a window needs a buffer of equal size on each of {len(self.cudas)} ranks, not {sizes}"
            )
        key = addresses(tensors)
        if key not in self._windows:
            handles = [ctypes.c_void_p() for _ in tensors]

            def register(rank: int) -> None:
                window, comm = ctypes.byref(handles[rank]), self._comms[rank]
                doing = f"registering a window of rank {rank}"
                self._call(doing, "ncclCommWindowRegister", comm, key[rank], sizes[rank], window, SYMMETRIC)

            self._each("registering windows", register)
            if not all(handles):
                raise C3Error(
                    f"{self.variant}: NCCL made no window: GPUs cannot reach each other's memory, or NCCL_CUMEM_ENABLE "
                    "or NCCL_WIN_ENABLE is 0"
                )
            self._windows[key] = _Window(list(tensors), handles)
        self._windows[key].users += 1

    def unregister(self, tensors: Sequence[Any]) -> None:
        """Take one :meth:`register` of these back; nothing for tensors that are no windows."""
        key = addresses(tensors)
        if key in self._windows:
            self._windows[key].users -= 1
            if not self._windows[key].users:
                self._forget(key)

    def _forget(self, key: tuple[int, ...]) -> None:
        window = self._windows.pop(key)
        for rank, cuda in enumerate(self.cudas):  # no group: no rank waits for another one here
            with cuda.current():
                doing = f"taking back a window of rank {rank}"
                self._call(doing, "ncclCommWindowDeregister", self._comms[rank], window.handles[rank])

    def all_gather(self, sends: Sequence[int], receives: Sequence[int], nbytes: int, streams: Sequence[int]) -> None:
        """Each rank's ``nbytes`` bytes at ``sends`` to all ranks' ``receives``. Addresses and stream handles a rank."""
        self._collective("ncclAllGather", sends, receives, nbytes, streams)

    def all_to_all(self, sends: Sequence[int], receives: Sequence[int], nbytes: int, streams: Sequence[int]) -> None:
        """Block p (``nbytes`` bytes) of each rank's ``sends`` to rank p, its own block too, which is copied as well."""
        self._collective("ncclAlltoAll", sends, receives, nbytes, streams)

    def _collective(
        self, name: str, sends: Sequence[int], receives: Sequence[int], nbytes: int, streams: Sequence[int]
    ) -> None:
        def collective(rank: int) -> None:
            comm, stream = self._comms[rank], streams[rank]
            self._call(f"{nbytes} bytes of rank {rank}", name, sends[rank], receives[rank], nbytes, UINT8, comm, stream)

        self._each(f"{name} of {nbytes} bytes a rank", collective)

    def exchange(
        self, sends: Sequence[int], receives: Sequence[int], stride: int, nbytes: int, streams: Sequence[int]
    ) -> None:
        """An all-to-all among peers only, by sends and receives: ``nbytes`` of each block, blocks ``stride`` apart."""

        def exchange(rank: int) -> None:
            comm, stream = self._comms[rank], streams[rank]
            for peer in range(len(self.cudas)):
                if peer != rank:
                    doing = f"{nbytes} bytes between ranks {rank} and {peer}"
                    self._call(doing, "ncclSend", sends[rank] + peer * stride, nbytes, UINT8, peer, comm, stream)
                    self._call(doing, "ncclRecv", receives[rank] + peer * stride, nbytes, UINT8, peer, comm, stream)

        self._each(f"sends and receives of {nbytes} bytes", exchange)

    def _call(self, doing: str, name: str, *arguments: Any) -> None:
        call(self.library, doing, name, *arguments)

    def _each(self, doing: str, one: Callable[[int], None]) -> None:
        """A group of what ``one`` calls for each rank, each one's GPU current in its turn."""
        if not self._comms:
            raise C3Error(f"{self.variant}: {doing}: this clique is closed")
        with group(self.library, doing):
            for rank, cuda in enumerate(self.cudas):
                with cuda.current():
                    one(rank)

    def close(self) -> None:
        """Give windows and communicators back; a second time does nothing."""
        for key in list(self._windows):
            self._forget(key)
        comms, self._comms = self._comms, []
        for comm, cuda in zip(comms, self.cudas, strict=False):
            with cuda.current():
                self._call("giving a communicator back", "ncclCommDestroy", comm)


def addresses(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Where tensors lie."""
    return tuple(tensor.data_ptr() for tensor in tensors)


class Room:
    """Memory of ``ncclMemAlloc`` on one GPU, given back when the last tensor on it is gone."""

    def __init__(self, library: Any, cuda: Cuda, nbytes: int):
        pointer = ctypes.c_void_p()
        with cuda.current():
            call(library, f"allocating {nbytes} bytes", "ncclMemAlloc", ctypes.byref(pointer), nbytes)
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer.value, False), "strides": None, "version": 3,
        }  # fmt: skip
        finalize(self, _give_back, library, cuda, pointer).atexit = False  # the driver is gone by then


def _give_back(library: Any, cuda: Cuda, pointer: ctypes.c_void_p) -> None:
    with cuda.current():
        library.ncclMemFree(pointer)  # nobody is left whom a refusal would help
