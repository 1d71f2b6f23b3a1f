"""The rig: one GEMM and one plan set up on the GPU, any number of byte-checked regions run with them."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from c3lib.cuda.buffers import Buffers, Check
from c3lib.cuda.device import open_device
from c3lib.cuda.gemm import Operands
from c3lib.cuda.health import Health, read_health
from c3lib.cuda.partition import partition, streams
from c3lib.cuda.path import prove_path
from c3lib.cuda.region import Gate, Times, timed
from c3lib.cuda.transport import CopyEngine, SmKernel
from c3lib.errors import C3Error
from c3lib.transfer import TransferPlan
from c3lib.workload import Gemm

NO_TRANSFER = "no transfer"


@dataclass(frozen=True)
class Setting:
    """How the two kernels of a region are run.

    ``blocks``: thread blocks of the SM kernel, 0 for copy engines (``batched`` or one call a copy). ``withheld``: SMs
    that the GEMM is told to leave free; with ``green`` the driver also fences them off (a green context each), else
    cuBLAS alone launches fewer blocks. ``high``: the transfer's stream has the highest priority.
    """

    blocks: int = 0
    batched: bool = True
    gemm_first: bool = True
    high: bool = False
    withheld: int = 0
    green: bool = False

    @property
    def transport(self) -> str:
        """Who moves the bytes."""
        return "sm_kernel" if self.blocks else "copy_engine"

    @property
    def partition(self) -> str:
        """How the SMs are withheld."""
        return "none" if not self.withheld else "green context" if self.green else "sm target"


@dataclass(frozen=True)
class Region:
    """One timed region: its times, the byte check, whether the GEMM's result was right, the GPU before and after."""

    times: Times
    check: Check
    gemm_right: bool
    granted: int
    before: Health
    after: Health
    path: str

    def health(self) -> dict[str, float]:
        """The columns of a row that tell the GPU's state, before and after."""
        return {
            "sm_mhz_before": self.before.sm_mhz,
            "sm_mhz": self.after.sm_mhz,
            "power_w_before": self.before.power_w,
            "power_w": self.after.power_w,
            "temperature_c": self.after.temperature_c,
        }

    @property
    def verified(self) -> bool:
        """True when all that the region should have computed and moved was compared and right."""
        moved = self.path == NO_TRANSFER or self.check.verified
        return moved and self.gemm_right


class Rig:
    """A GPU with at most one GEMM's operands and one plan's buffers on it at a time.

    Raises:
        C3Error: as :func:`c3lib.cuda.device.open_device`.
    """

    def __init__(self, index: int = 0):
        self.cuda = open_device(index)
        self.gate = Gate(self.cuda)
        self.turn = 0
        self._operands: Operands | None = None
        self._buffers: Buffers | None = None
        self._transports: dict[tuple, Any] = {}
        self._paths: dict[tuple, str] = {}
        self._warm: set[tuple] = set()

    def load(self, gemm: Gemm | None = None, plan: TransferPlan | None = None, direction: str = "both") -> None:
        """Set up a GEMM, a plan or both; what is already there stays. Raises :class:`C3Error` for too little memory."""
        if gemm is not None and (self._operands is None or self._operands.gemm != gemm):
            self._operands = None
            self._forget()
            self._operands = Operands(self.cuda, gemm)
        if plan is not None and (self._buffers is None or self._key(self._buffers) != (str(plan), direction)):
            self._buffers = None
            self._transports.clear()
            self._paths.clear()
            self._forget()
            self._buffers = Buffers(self.cuda, plan, direction)

    def _key(self, buffers: Buffers) -> tuple[str, str]:
        return str(buffers.plan), buffers.direction

    def _forget(self) -> None:
        self._warm.clear()
        gc.collect()
        self.cuda.torch.cuda.empty_cache()

    @property
    def buffers(self) -> Buffers:
        """The buffers of the plan that is set up."""
        if self._buffers is None:
            raise C3Error("rig: no plan is set up")
        return self._buffers

    def transport(self, setting: Setting, drop: int | None = None) -> Any:
        """The transport of a setting; with ``drop`` a new one that leaves one copy out."""
        if drop is not None:
            return self._new_transport(setting, drop)
        key = (setting.blocks, setting.batched, setting.high)
        if key not in self._transports:
            self._transports[key] = self._new_transport(setting, None)
        return self._transports[key]

    def _new_transport(self, setting: Setting, drop: int | None) -> Any:
        if setting.blocks:
            return SmKernel(self.cuda, self.buffers, setting.blocks, drop=drop)
        return CopyEngine(self.cuda, self.buffers, batched=setting.batched, drop=drop, high=setting.high)

    def path(self, setting: Setting) -> str:
        """Which path the transfer takes and how that was established: once for each plan and transport."""
        key = (setting.blocks, setting.batched)
        if key not in self._paths:
            self.buffers.prepare(self.turn)
            self._paths[key] = prove_path(self.cuda, self.transport(setting), self.buffers.link_nbytes / 20e9)
        return self._paths[key]

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
        turn, torch = self.turn, self.cuda.torch
        mover = self.transport(setting, drop) if transfer else None
        path = self.path(setting) if transfer else NO_TRANSFER
        fence = setting.withheld if setting.green else 0
        gemm_stream, transfer_stream = streams(self.cuda, fence, setting.high)
        split = partition(self.cuda, fence)
        sms = self.cuda.sms - setting.withheld if setting.withheld else 0
        self._warm_up(setting, gemm_stream if gemm else None, transfer_stream, mover, sms)
        if mover is not None:
            self.buffers.prepare(turn)
            mover.ready()
        if gemm:
            self.operands.poison(turn)
        torch.cuda.synchronize()
        before = read_health(self.cuda.device.device_id)
        with around or nullcontext():
            times = timed(
                self.gate,
                (gemm_stream, lambda stream: self.operands.enqueue(stream, turn, sms)) if gemm else None,
                (transfer_stream, mover.enqueue) if mover is not None else None,
                setting.gemm_first,
            )
        after = read_health(self.cuda.device.device_id)
        check = self.buffers.check(turn) if mover is not None else Check(0, 0, "")
        if isinstance(mover, SmKernel) and mover.told()[0] != setting.blocks:
            raise C3Error(f"sm_kernel: {mover.told()[0]} of {setting.blocks} blocks ran in this region")
        granted = split.granted if setting.green else setting.withheld
        return Region(times, check, not gemm or self.operands.right(turn), granted, before, after, path)

    @property
    def operands(self) -> Operands:
        """The operands of the GEMM that is set up."""
        if self._operands is None:
            raise C3Error("rig: no GEMM is set up")
        return self._operands

    def _warm_up(self, setting: Setting, gemm_stream: Any, transfer_stream: Any, mover: Any, sms: int) -> None:
        """Run each kernel once without a gate: the first time a kernel is loaded, the device must be free."""
        key = (setting, gemm_stream is None, mover is None)
        if key in self._warm:
            return
        for turn in range(3) if gemm_stream is not None else ():
            self.operands.enqueue(gemm_stream, turn, sms)
        if mover is not None:
            mover.ready()
            self.cuda.torch.cuda.synchronize()
            mover.enqueue(transfer_stream)
        self.cuda.torch.cuda.synchronize()
        self._warm.add(key)

    def negative_control(self) -> dict[str, Any]:
        """Drop one copy by each transport and look whether the check notices: what fired, for the provenance.

        Raises:
            C3Error: a dropped copy went unnoticed, so no check of this run means anything.
        """
        fired = {}
        for setting in (Setting(), Setting(blocks=8)):
            drop = len(self.buffers.chosen) // 2
            region = self.run(setting, gemm=False, drop=drop)
            if region.check.verified:
                raise C3Error(f"negative control: {setting.transport} dropped copy {drop} and the check did not notice")
            fired[setting.transport] = f"copy {drop} dropped, {region.check.wrong_nbytes} bytes wrong: noticed"
        return fired
