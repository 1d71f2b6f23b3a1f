"""The rig: one GEMM and one plan set up on AMD GPUs, any number of byte-checked regions run with them.

Where the runtime drives no real GPU (the tests' double, the model of the driver), torch on the CPU stands in for the
GEMM, and SDMA copies stand in for RCCL: everything runs, every byte is compared, and nothing of it is a measurement.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from typing import Any, Sequence

from c3lib.amd import driver
from c3lib.amd.buffers import Buffers
from c3lib.amd.engines import choose_engines
from c3lib.amd.gemm import CpuGemm, HipGemm, Launcher
from c3lib.amd.health import read_health, unknown
from c3lib.amd.hip import Hip, rocm_torch
from c3lib.amd.mask import CuMask
from c3lib.amd.rccl import Rccl
from c3lib.amd.region import timed
from c3lib.amd.runtime import open_runtime
from c3lib.amd.setting import Setting
from c3lib.amd.transport import SdmaCopies
from c3lib.amd.work import HipWork, Work
from c3lib.errors import C3Error
from c3lib.region import NO_TRANSFER, Check, Health, Region
from c3lib.transfer import TransferPlan
from c3lib.workload import Gemm


class Rig:
    """The first ``ranks`` GPUs, with at most one GEMM's operands and one plan's buffers on them at a time.

    Raises:
        C3Error: no runtime, no driver, too few GPUs, engines that fail their proof, and on real GPUs all that
            :class:`c3lib.amd.hip.Hip` says.
    """

    def __init__(self, ranks: int) -> None:
        torch_here = sys.modules.get("torch")
        driver.have_queues_wait(torch_here is not None and torch_here.cuda.is_initialized())  # before torch loads HIP
        with suppress(ImportError):  # first: a ROCm build brings its own copy of AMD's runtime, and there must be one
            import torch  # noqa: F401
        self.runtime = open_runtime()
        self.gpus = self.runtime.gpus[:ranks]
        if len(self.gpus) < ranks:
            raise C3Error(f"backend hip: needs {ranks} GPUs, AMD's runtime lists {len(self.runtime.gpus)}")
        self.gpu = self.gpus[0]
        if self.runtime.is_hardware:
            rocm_torch()  # what is missing is said before engines are tried
        self.engines = choose_engines(self.runtime, self.gpus)
        self.hip = Hip(self.gpus) if self.runtime.is_hardware else None
        self.turn = 0
        self._gemm: Launcher | None = None
        self._buffers: Buffers | None = None
        self._plan = ""
        self._transports: dict[tuple, Any] = {}
        self._warm: set[tuple] = set()

    def load(self, gemm: Gemm | None = None, plan: TransferPlan | None = None) -> None:
        """Set up a GEMM, a plan or both; what is already there stays. Raises :class:`C3Error` for too little memory."""
        if gemm is not None and (self._gemm is None or self._gemm.gemm != gemm):
            self._gemm = None
            self._forget()
            hip = self.hip
            self._gemm = HipGemm(self.runtime, hip, gemm) if hip else CpuGemm(self.runtime, len(self.gpus), gemm)
        if plan is not None and (self._buffers is None or self._buffers.abandoned or self._plan != str(plan)):
            self._transports.clear()
            if self._buffers is not None:
                self._buffers.close()
            self._buffers = None
            self._forget()
            self._buffers, self._plan = Buffers(self.runtime, self.gpus, plan), str(plan)

    def _forget(self) -> None:
        self._warm.clear()
        if self.hip is not None:
            gc.collect()
            self.hip.torch.cuda.empty_cache()

    @property
    def buffers(self) -> Buffers:
        """The buffers of the plan that is set up."""
        if self._buffers is None:
            raise C3Error("rig: no plan is set up")
        return self._buffers

    @property
    def gemm(self) -> Launcher:
        """The GEMM that is set up."""
        if self._gemm is None:
            raise C3Error("rig: no GEMM is set up")
        return self._gemm

    def mask(self, setting: Setting, gemm: bool) -> CuMask | None:
        """The CUs of the GEMM's stream, or of RCCL's; None where a setting withholds none.

        Raises:
            C3Error: CUs that cannot be withheld evenly.
        """
        if not setting.withheld:
            return None
        whole = {"cus": self.gpu.cus, "xcds": self.gpu.xccs}
        left = CuMask.without(setting.withheld, **whole)
        return left if gemm else CuMask.of(setting.withheld, **whole)

    def transport(self, setting: Setting, drop: int | None = None) -> Any:
        """Who moves the bytes under a setting; with ``drop`` a new one that leaves one copy out."""
        key = (setting.library, setting.high, setting.withheld if setting.library else 0)
        if drop is None and key in self._transports:
            return self._transports[key]
        if setting.library and self.hip is not None:
            mask = self.mask(setting, gemm=False)
            made: Any = Rccl(self.runtime, self.hip, self.buffers, mask, high=setting.high, drop=drop)
        else:
            made = SdmaCopies(self.buffers, self.engines, drop=drop)
        if drop is None:
            self._transports[key] = made
        return made

    def path(self, setting: Setting, transport: Any) -> str:
        """Which path a transfer takes and how that was established; starts with what makes it no measurement."""
        if isinstance(transport, Rccl):
            return transport.path
        why = "" if self.runtime.is_hardware else f"not a measurement ({'; '.join(self.runtime.stand_ins)}): "
        instead = f"stand-in for {setting.library}: " if setting.library else ""
        return f"{why}{instead}{self.engines.path}"

    def health(self) -> Health:
        """The state of the GPUs now."""
        return read_health(self.gpus) if self.runtime.is_hardware else unknown()

    def run(self, setting: Setting, *, gemm: bool = True, transfer: bool = True, drop: int | None = None) -> Region:
        """One region with what is set up. ``drop`` leaves a copy out, which the check must notice.

        Raises:
            C3Error: a copy or kernel failed or hangs, or the transfer did not take the path of its name.
        """
        self.turn += 1
        turn = self.turn
        transport = self.transport(setting, drop) if transfer else None
        path = self.path(setting, transport) if transport is not None else NO_TRANSFER
        multiply, move = self._works(setting, turn, gemm, transport)
        self._warm_up((setting, gemm, transfer), multiply, move)
        if transport is not None:
            self.buffers.prepare(turn)
        if gemm:
            self.gemm.poison(turn)
        before = self.health()
        times = timed(multiply, move, setting.gemm_first)
        after = self.health()
        check = self.buffers.check(turn) if transport is not None else Check(0, 0, "")
        right = not gemm or self.gemm.right(turn)
        blocks = transport.blocks if isinstance(transport, Rccl) else 0
        return Region(times, check, right, setting.withheld if gemm else 0, blocks, before, after, path)

    def _works(self, setting: Setting, turn: int, gemm: bool, transport: Any) -> tuple[Work | None, Work | None]:
        """GEMM and transfer; of two that run on streams, the second waits for the first to be launched."""
        mask = self.mask(setting, gemm=True)
        if setting.gemm_first:
            multiply = self.gemm.work(turn, mask) if gemm else None
            return multiply, transport.work(multiply) if isinstance(transport, Rccl) else transport
        move = transport.work(None) if isinstance(transport, Rccl) else transport
        return self.gemm.work(turn, mask, move) if gemm else None, move

    def _warm_up(self, key: tuple, *works: Work | None) -> None:
        if key not in self._warm:
            for work in works:
                if isinstance(work, HipWork):
                    work.warm()
            self._warm.add(key)

    def mask_control(self) -> str:
        """A GEMM on a quarter of the CUs must take longer than on all: what was seen, for the provenance.

        Raises:
            C3Error: it does not, so masks are without effect and every partition would be a fiction.
        """
        self.load(Gemm(4096, 4096, 4096))
        few = self.gpu.cus - self.gpu.cus // 4 // self.gpu.xccs * self.gpu.xccs
        seconds = []
        for setting in (Setting(), Setting(withheld=few)):
            times = [self.run(setting, transfer=False).times for _ in range(3)]
            seconds.append(min(time.gemm_end_s - time.gemm_start_s for time in times))
        said = f"{seconds[0] * 1e6:.0f} us on {self.gpu.cus} CUs, {seconds[1] * 1e6:.0f} us without {few} of them"
        if seconds[1] < 1.5 * seconds[0]:
            raise C3Error(f"amd: CU masks are without effect: a GEMM of 4096 took {said}")
        return said

    def negative_control(self, settings: Sequence[Setting]) -> dict[str, Any]:
        """Drop one copy by each transport and look whether the check notices: what fired, for the provenance.

        Raises:
            C3Error: a dropped copy went unnoticed, so no check of this run means anything.
        """
        fired = {}
        for setting in settings:
            drop = len(self.buffers.chosen) // 2
            region = self.run(setting, gemm=False, drop=drop)
            if region.check.verified:
                raise C3Error(f"negative control: {setting.transport} dropped copy {drop} and the check did not notice")
            fired[setting.transport] = f"copy {drop} dropped, {region.check.wrong_nbytes} bytes wrong: noticed"
        return fired
