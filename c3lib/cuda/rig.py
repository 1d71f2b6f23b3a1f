"""The rig: one GEMM and one plan set up on the GPUs, any number of byte-checked regions run with them.

Every GPU runs the same GEMM, on operands of its own, and its part of the plan. With several GPUs the vendor's library
(NCCL) is one of the transports.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from c3lib.cuda.buffers import Buffers, Check
from c3lib.cuda.device import open_devices
from c3lib.cuda.gemm import Operands
from c3lib.cuda.health import Health, read_health
from c3lib.cuda.nccl import SHORT_NBYTES, Clique, Nccl
from c3lib.cuda.partition import partition, streams
from c3lib.cuda.path import Proof, prove_path
from c3lib.cuda.region import Gate, timed
from c3lib.cuda.setting import NO_TRANSFER, Region, Setting
from c3lib.cuda.sm_kernel import SmKernel
from c3lib.cuda.streams import Streams
from c3lib.cuda.transport import CopyEngine
from c3lib.errors import C3Error
from c3lib.transfer import TransferPlan
from c3lib.workload import Gemm


class Rig:
    """Some GPUs with at most one GEMM's operands and one plan's buffers on them at a time.

    Raises:
        C3Error: as :func:`c3lib.cuda.device.open_devices`.
    """

    def __init__(self, gpus: int = 1):
        self.cudas = open_devices(gpus)
        self.cuda = self.cudas[0]
        self.gate = Gate(self.cudas)
        self.turn = 0
        self._operands: list[Operands] = []
        self._buffers: Buffers | None = None
        self._loaded: tuple[str, str, bool] | None = None
        self._transports: dict[tuple, Any] = {}
        self._proofs: dict[tuple, Proof] = {}
        self._warm: set[tuple] = set()
        self._cliques: dict[tuple[str, int], Clique] = {}

    def load(
        self,
        gemm: Gemm | None = None,
        plan: TransferPlan | None = None,
        direction: str = "both",
        registered: bool = False,
    ) -> None:
        """Set up a GEMM, a plan or both; what is already there stays.

        ``registered``: buffers in memory that the library can register. Raises :class:`C3Error` for too little memory.
        """
        if gemm is not None and (not self._operands or self._operands[0].gemm != gemm):
            self._operands = []
            self._forget()
            self._operands = [Operands(cuda, gemm, seed) for seed, cuda in enumerate(self.cudas)]
        if plan is not None and (self._buffers is None or self._loaded != (str(plan), direction, registered)):
            self._clear_transports()
            self._buffers = None
            self._forget()
            room = self.clique("nccl_registered", 0).allocate if registered else None
            self._buffers = Buffers(self.cudas, plan, direction, room=room)
            self._loaded = (str(plan), direction, registered)

    def _clear_transports(self) -> None:
        for transport in self._transports.values():
            _close(transport)
        self._transports.clear()
        self._proofs.clear()

    def _forget(self) -> None:
        self._warm.clear()
        gc.collect()
        self.cuda.torch.cuda.empty_cache()

    def close(self) -> None:
        """Give the library's communicators back; the rig is of no use then."""
        self._clear_transports()
        for clique in self._cliques.values():
            clique.close()
        self._cliques.clear()

    @property
    def buffers(self) -> Buffers:
        """The buffers of the plan that is set up."""
        if self._buffers is None:
            raise C3Error("rig: no plan is set up")
        return self._buffers

    @property
    def operands(self) -> list[Operands]:
        """The operands of the GEMM that is set up, for each GPU."""
        if not self._operands:
            raise C3Error("rig: no GEMM is set up")
        return self._operands

    def clique(self, variant: str, blocks: int) -> Clique:
        """The library's communicators of all GPUs, made once for each variant and number of thread blocks."""
        if (variant, blocks) not in self._cliques:
            self._cliques[variant, blocks] = Clique(self.cudas, variant, blocks)
        return self._cliques[variant, blocks]

    def transport(self, setting: Setting, drop: int | None = None) -> Any:
        """The transport of a setting; with ``drop`` a new one that leaves one copy out."""
        if drop is not None:
            return self._new_transport(setting, drop)
        if setting.mover not in self._transports:
            self._transports[setting.mover] = self._new_transport(setting, None)
        return self._transports[setting.mover]

    def _new_transport(self, setting: Setting, drop: int | None) -> Any:
        if setting.library:
            clique = self.clique(setting.library, setting.blocks)
            return Nccl(clique, self.buffers, in_place=setting.in_place, drop=drop)
        if setting.blocks:
            return SmKernel(self.buffers, setting.blocks, drop=drop)
        how = {"batched": setting.batched, "bare": setting.bare, "high": setting.high}
        return CopyEngine(self.buffers, drop=drop, **how)

    def proof(self, setting: Setting) -> Proof:
        """Which path the transfer takes and how that was established: once for each plan and transport."""
        key = setting.mover[:-1]  # the priority of a stream does not change who moves the bytes
        if key not in self._proofs:
            self.buffers.prepare(self.turn)
            # Of the busiest link, as links work side by side; waiting for the sum of all would outlast the hold.
            alone_s = self.buffers.pair_nbytes / 20e9
            self._proofs[key] = prove_path(self.cudas, self.transport(setting), alone_s)
        return self._proofs[key]

    def streams(self, setting: Setting) -> tuple[list[Any], list[Any]]:
        """Streams of the GEMM and of the transfer, one a GPU."""
        fence = setting.withheld if setting.green else 0
        pairs = [streams(cuda, fence, setting.high) for cuda in self.cudas]
        return [gemm for gemm, _ in pairs], [transfer for _, transfer in pairs]

    def enqueue_gemm(self, on: Streams, turn: int, setting: Setting) -> None:
        """The GEMM on every GPU, told of the SMs that the setting leaves it."""
        sms = self.cuda.sms - setting.withheld if setting.withheld else 0
        for operands, stream in zip(self.operands, on, strict=True):
            operands.enqueue(stream, turn, sms)

    def synchronize(self) -> None:
        """Wait until every GPU has nothing left to do."""
        for cuda in self.cudas:
            cuda.torch.cuda.synchronize(cuda.index)

    def health(self) -> Health:
        """The state of the GPUs now."""
        return read_health(self.cudas)

    def run(
        self,
        setting: Setting,
        *,
        gemm: bool = True,
        transfer: bool = True,
        drop: int | None = None,
        around: AbstractContextManager | None = None,
    ) -> Region:
        """One region with what is set up.

        ``drop`` leaves a copy out, which the check must notice; ``around`` is entered just before the gate is shut and
        left when all has ended (a profiler's range).

        Raises:
            C3Error: the device failed or hangs, or the transfer did not take the path of its name.
        """
        self.turn += 1
        turn = self.turn
        mover = self.transport(setting, drop) if transfer else None
        try:
            return self._region(setting, turn, gemm, mover, around)
        finally:
            if drop is not None:
                _close(mover)

    def _region(
        self, setting: Setting, turn: int, gemm: bool, mover: Any, around: AbstractContextManager | None
    ) -> Region:
        proof = self.proof(setting) if mover is not None else Proof(NO_TRANSFER, 0)
        gemm_streams, transfer_streams = self.streams(setting)
        self._warm_up(setting, gemm_streams if gemm else None, transfer_streams, mover)
        if mover is not None:
            self.buffers.prepare(turn)
            mover.ready()
        for operands in self.operands if gemm else ():
            operands.poison(turn)
        self.synchronize()
        before = self.health()
        with around or nullcontext():
            times = timed(
                self.gate,
                (gemm_streams, lambda on: self.enqueue_gemm(on, turn, setting)) if gemm else None,
                (transfer_streams, mover.enqueue) if mover is not None else None,
                setting.gemm_first,
            )
        after = self.health()
        check = self.buffers.check(turn) if mover is not None else Check(0, 0, "")
        if isinstance(mover, SmKernel) and mover.told()[0] != setting.blocks:
            raise C3Error(f"sm_kernel: {mover.told()[0]} of {setting.blocks} blocks ran in this region")
        granted = partition(self.cuda, setting.withheld).granted if setting.green else setting.withheld
        right = not gemm or all(operands.right(turn) for operands in self.operands)
        return Region(times, check, right, granted, proof.blocks, before, after, proof.path)

    def _warm_up(self, setting: Setting, gemm_streams: Any, transfer_streams: Any, mover: Any) -> None:
        """Run each kernel once without a gate: the first time a kernel is loaded, the device must be free."""
        key = (setting, gemm_streams is None, mover is None)
        if key in self._warm:
            return
        for turn in range(3) if gemm_streams is not None else ():
            self.enqueue_gemm(gemm_streams, turn, setting)
        if mover is not None:
            mover.ready()
            self.synchronize()
            mover.enqueue(transfer_streams)
        self.synchronize()
        self._warm.add(key)

    def negative_control(self, setting: Setting) -> str:
        """Have a transport leave bytes out and look whether the check notices: what fired, for the provenance.

        Raises:
            C3Error: it went unnoticed, so no check of this run means anything.
        """
        drop = len(self.buffers.chosen) // 2
        left_out = f"every count {SHORT_NBYTES} bytes short" if setting.library else f"copy {drop} dropped"
        check = self.run(setting, gemm=False, drop=drop).check
        if check.verified:
            raise C3Error(f"negative control: {setting.transport}: {left_out}, and the check did not notice")
        return f"{left_out}, {check.wrong_nbytes} bytes wrong: noticed"


def _close(transport: Any) -> None:
    if isinstance(transport, Nccl):
        transport.close()
