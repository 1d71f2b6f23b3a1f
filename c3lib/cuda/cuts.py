"""What cutting and sharing cost: one GEMM whole or in pieces, alone or beside exchanges that go on all the while.

Pieces run back to back on one stream. What runs beside starts first and has to end last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from c3lib.cuda import lane
from c3lib.cuda.device import Cuda, said_clearly
from c3lib.cuda.exchange import Exchange
from c3lib.cuda.gemm import set_sm_target
from c3lib.cuda.lane import NOTHING, Kernel
from c3lib.cuda.matrices import rounding, worst_difference
from c3lib.cuda.partition import streams
from c3lib.cuda.region import Gate, wait_for
from c3lib.cuda.streams import new_event
from c3lib.errors import C3Error
from c3lib.transfer.definition import shards
from c3lib.workload import Gemm

Enqueue = Callable[[Any], None]

_SAMPLED = 64  # rows of the whole product that are worked out again, in single precision
_TIMES = 8  # how much longer than thought what runs beside may become, by doubling


class CutGemm:
    """Operands of one GEMM, row-major, and its product.

    Raises:
        C3Error: too little memory, or a whole product that is wrong.
    """

    def __init__(self, cuda: Cuda, gemm: Gemm, seed: int = 0):
        torch = cuda.torch
        self.cuda, self.gemm = cuda, gemm
        with cuda.current(), said_clearly(f"allocating the operands of {gemm}"):
            where = {"dtype": torch.bfloat16, "device": f"cuda:{cuda.index}"}
            generator = torch.Generator(device=where["device"]).manual_seed(seed)
            self._a = torch.randn(gemm.m, gemm.k, generator=generator, **where)
            self._b = torch.randn(gemm.k, gemm.n, generator=generator, **where)
            self._c = torch.empty(gemm.m, gemm.n, **where)
            self._product = torch.mm(self._a, self._b)
            rows = torch.randint(gemm.m, (_SAMPLED,), device=where["device"], generator=generator)
            again = self._a[rows].float() @ self._b.float()
            worst = worst_difference(torch, self._product[rows].float(), again)
        if not bool(worst <= rounding(gemm.dtype, gemm.k, 1)):
            raise C3Error(f"cuda: the whole product of {gemm} is wrong")

    def pieces(self, cut: str, parts: int) -> list[Kernel]:
        """The GEMM cut into parts along ``m``, ``n`` or ``k``; along ``k`` each is added to the result."""
        a, b, c, found, first = self._a, self._b, self._c, [], 0
        for count in shards(getattr(self.gemm, cut), parts):
            part = slice(first, first + count)
            if count:
                of = {"m": (c[part], a[part], b), "n": (c[:, part], a, b[:, part]), "k": (c, a[:, part], b[part])}[cut]
                found.append(Kernel(*of, cut == "k" and first > 0, NOTHING))
            first += count
        return found

    def enqueue(self, kernels: Sequence[Kernel], sms: int = 0) -> Enqueue:
        """What puts pieces on a stream; cuBLAS counts on ``sms`` SMs (0: all)."""

        def put(stream: Any) -> None:
            torch = self.cuda.torch
            with self.cuda.current():
                set_sm_target(self.cuda, sms)
                with torch.cuda.stream(torch.cuda.ExternalStream(int(stream.handle), device=self.cuda.index)):
                    for kernel in kernels:
                        lane.run(torch, kernel)

        return put

    def poison(self) -> None:
        """Fill C with NaN."""
        self._c.fill_(float("nan"))

    def right(self, kernels: Sequence[Kernel]) -> bool:
        """Whether C is the product, within rounding."""
        slices = 1 + sum(kernel.accumulate for kernel in kernels)
        worst = worst_difference(self.cuda.torch, self._c, self._product)
        return bool(worst <= rounding(self.gemm.dtype, self.gemm.k, slices))


def traffic(exchange: Exchange) -> Enqueue:
    """What puts all of an exchange on a stream, to follow itself there."""

    def put(stream: Any) -> None:
        for operation in exchange.operations:
            operation.restart(stream)
            operation.enqueue(stream)

    return put


class Beside:
    """Times something on one stream, alone or beside something else that is repeated on the other.

    The streams are those that schedules run on: the copies' has the higher priority.
    """

    def __init__(self, cuda: Cuda, gate: Gate):
        self.cuda, self.gate = cuda, gate
        self._streams = streams(cuda, 0, True)
        names = ("start", "end", "other start", "other end")
        self._events = {name: new_event(cuda, timed=True) for name in names}

    def warm(self, what: Enqueue) -> None:
        """Run kernels once without a gate: to load one for the first time waits for the device."""
        what(self._streams[0])
        self.cuda.torch.cuda.synchronize(self.cuda.index)

    def time_s(self, what: Enqueue, copies: bool, other: Enqueue | None = None, times: int = 0) -> float:
        """Seconds of ``what``, on the copies' stream or the kernels'; ``other`` runs from before it until after it.

        ``other`` is enqueued ``times`` times and more often where that does not outlast ``what``.

        Raises:
            C3Error: it never does, or the device failed or hangs.
        """
        for doubled in range(_TIMES.bit_length()):
            self._once(what, copies, other, times << doubled)
            seconds = (self._events["end"] - self._events["start"]) / 1e3
            if other is None or (self._events["other end"] - self._events["end"]) >= 0:
                return seconds
        raise C3Error(f"cuda: what ran beside {seconds:.3g} s of work ended before it, {times << doubled} times over")

    def _once(self, what: Enqueue, copies: bool, other: Enqueue | None, times: int) -> None:
        on, beside = (self._streams[1], self._streams[0]) if copies else self._streams
        events = self._events
        self.cuda.torch.cuda.synchronize(self.cuda.index)
        with said_clearly("timing one kernel beside another"):
            with self.gate.guarded():
                if other is None:
                    self.gate.shut([on])
                else:
                    self.gate.shut([beside])
                    beside.record(events["other start"])
                    for _ in range(times):
                        other(beside)
                    beside.record(events["other end"])
                    on.wait(events["other start"])
                on.record(events["start"])
                what(on)
                on.record(events["end"])
            wait_for(events["end"], "kernel that is timed")
            if other is not None:
                wait_for(events["other end"], "kernel beside it")
