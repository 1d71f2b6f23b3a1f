"""Two queues of one GPU, kernels and exchanges, each in order: when everything ends.

The event loop of :mod:`c3lib.model.fluid` for the graphs that finer-grain schedules make, which are two chains with
waits from one to the other: the state is how far each chain is, so that an event costs the same in a long graph as in
a short one. Plain numbers, one program at a time; time is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from c3lib.errors import C3Error

Span = tuple[float, float]
"""Start and end, seconds."""


@dataclass(frozen=True)
class Lanes:
    """Two queues of operations, seconds; ``kernels`` and ``exchanges`` long.

    ``kernel_s``, ``beside_s``: a group of kernels alone, and while exchanges run. ``launch_s``: before a group that
    found its queue empty. ``waits``: how many exchanges must have ended before a group. ``slowed``: an exchange's rate
    beside this group over its rate alone. ``exchange_s``: an exchange's bytes, alone. ``start_s``: its cost without
    them, during which no byte moves.
    """

    kernel_s: tuple[float, ...]
    beside_s: tuple[float, ...]
    launch_s: tuple[float, ...]
    waits: tuple[int, ...]
    slowed: tuple[float, ...]
    exchange_s: tuple[float, ...]
    start_s: tuple[float, ...]


@dataclass(frozen=True)
class Timeline:
    """When each group of kernels ran and when bytes of each exchange moved."""

    kernels: tuple[Span, ...]
    exchanges: tuple[Span, ...]

    @property
    def time_s(self) -> float:
        """Seconds until all has ended."""
        return max(end for _, end in (*self.kernels, *self.exchanges))


def simulate(lanes: Lanes) -> Timeline:
    """Run both queues.

    A group of kernels starts when the one before it and the exchanges that it needs have ended; one that found its
    queue empty also waits for its launch. An exchange starts, after its cost, when the one before has ended.

    Raises:
        C3Error: a kernel waits for an exchange that there is not.
    """
    if max(lanes.waits, default=0) > len(lanes.exchange_s):
        raise C3Error(f"a kernel waits for exchange {max(lanes.waits)} of {len(lanes.exchange_s)}")
    kernels: list[Span] = []
    exchanges: list[Span] = []
    now = 0.0
    # Work left of the operation at the head of each queue, as a fraction, and when it starts (inf: it waits).
    kernel_left = exchange_left = 1.0
    kernel_start = lanes.launch_s[0] if not lanes.waits[0] else inf
    exchange_start = lanes.start_s[0] if lanes.start_s else inf
    while len(kernels) < len(lanes.kernel_s) or len(exchanges) < len(lanes.exchange_s):
        at, fetched = len(kernels), len(exchanges)
        computes, moves = kernel_start <= now, exchange_start <= now
        # Seconds that the whole operation takes while what runs now runs.
        kernel_s = (lanes.beside_s[at] if moves else lanes.kernel_s[at]) if computes else inf
        exchange_s = lanes.exchange_s[fetched] / (lanes.slowed[at] if computes else 1.0) if moves else inf
        kernel_due = kernel_left * kernel_s if computes else kernel_start - now
        exchange_due = exchange_left * exchange_s if moves else exchange_start - now
        step = min(kernel_due, exchange_due)
        later = now + step
        # The operation that sets the step starts or ends exactly then, whatever rounding says.
        if exchange_due > step:
            exchange_left -= step / exchange_s
        elif moves:
            exchanges.append((exchange_start, later))
            exchange_left, fetched = 1.0, fetched + 1
            exchange_start = later + lanes.start_s[fetched] if fetched < len(lanes.start_s) else inf
        else:
            exchange_start = later
        ended = False
        if kernel_due > step:
            kernel_left -= step / kernel_s
        elif computes:
            kernels.append((kernel_start, later))
            kernel_left, kernel_start, at, ended = 1.0, inf, at + 1, True
        else:
            kernel_start = later
        if kernel_start == inf and at < len(lanes.waits) and lanes.waits[at] <= fetched:
            kernel_start = later + (0.0 if ended else lanes.launch_s[at])
        now = later
    return Timeline(tuple(kernels), tuple(exchanges))
