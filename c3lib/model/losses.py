"""What cutting costs: decomposition and contention losses of GEMM and exchange, on the model.

The two losses are named in arXiv 2512.10236; the formulas are the project's own, as no values of them are public.

**Decomposition loss** (DIL): pieces take longer than the whole, each alone, one after another on one queue::

    GEMM       DIL = (t0 + sum_i w(piece_i)) / (t0 + w(whole)) - 1       t0: one launch, w: time on all CUs
    exchange   DIL = sum_i T(piece_i) / T(whole) - 1 = (p - 1) t0 / (t0 + s / B)       p pieces of what each peer gives

A GEMM cut along K adds every slice but the first to the result.

**Contention loss** (CIL): an operation takes longer while the other runs, at a fixed cut::

    CIL = T(beside the other) / T(alone) - 1

Both at their rates while both run; *alone* is the same piece with all that it can use: all CUs, or for a CU-driven
exchange the library's own number. So the CUs that a CU-driven exchange holds are part of the GEMM's contention loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from c3lib.errors import C3Error
from c3lib.ficco import Problem, build
from c3lib.ficco.sets import Row
from c3lib.hardware import COLLECTIVES, Node
from c3lib.model.order import NO_EXCHANGE, Exchange, Kernel, order_of
from c3lib.model.pieces import TRANSPORTS, Beside, Exchanged, costs_of, one_way, rates_of
from c3lib.model.shared_gpu import Mechanisms
from c3lib.transfer.definition import shards

AXES = ("m", "n", "k")
LOSSES = ("decomposition", "contention")
OPERATIONS = ("gemm", "exchange")
COLUMNS = (
    "node", "evidence", "problem", "collective", "m", "n", "k", "dtype", "ranks", "loss", "operation", "transport",
    "axis", "ways", "piece_m", "piece_n", "piece_k", "piece_bytes", "whole_s", "cut_s", "value",
)  # fmt: skip
"""``axis``: along which the GEMM is cut (``none`` where the exchange alone is). ``ways``: into how many pieces.
``piece_*``: the largest piece; ``piece_bytes``: an exchange's, from each peer. ``value`` is the loss: ``cut_s`` over
``whole_s`` less 1, where of a decomposition loss these are all pieces and the whole, and of a contention loss the
pieces beside the other operation and alone. ``transport`` is ``none`` where none takes part."""


def loss_rows(
    node: Node,
    rows: Sequence[Row],
    transports: Sequence[str] = TRANSPORTS,
    ways: Sequence[int] | None = None,
) -> pd.DataFrame:
    """Every loss of every problem's busiest rank, columns :data:`COLUMNS`; ``ways`` without more: ranks and their
    square.

    The exchange beside a GEMM is a piece of the problem's own cut.

    Raises:
        C3Error: no problem, fewer ways than 2, an unknown transport.
    """
    if not rows:
        raise C3Error("rows: no problem to cut")
    if ways is not None and any(count < 2 for count in ways):
        raise C3Error(f"ways: a cut has at least 2 pieces, not {min(ways)}")
    node = one_way(node)
    cuts = []
    for row in rows:
        exchange = _largest_piece(row.problem, node)
        for axis in AXES:
            for count in (1, *(ways or (row.problem.ranks, row.problem.ranks**2))):
                if count > 1 or axis == "m":
                    cuts.append(Cut(row, axis, count, _pieces(row.problem, axis, count), exchange))
    found = _decomposition(cuts, node)
    for transport in transports:
        found += _exchanges(rows, ways, node, transport)
        found += _contention([cut for cut in cuts if cut.exchange.nbytes], node, transport)
    return pd.DataFrame(found, columns=list(COLUMNS))


class Cut(NamedTuple):
    """A GEMM in ``ways`` pieces along an axis (1: whole), and the exchange that runs beside one."""

    row: Row
    axis: str
    ways: int
    pieces: Counter[Kernel]
    exchange: Exchange

    @property
    def kind(self) -> int:
        """Index of the collective."""
        return COLLECTIVES.index(self.row.problem.kind)


def _pieces(problem: Problem, axis: str, ways: int) -> Counter[Kernel]:
    """Kernels of a GEMM cut into ``ways`` pieces, as far as there are rows, columns or terms."""
    gemm = problem.gemm(problem.busiest)
    found: Counter[Kernel] = Counter()
    for index, length in enumerate(shards(getattr(gemm, axis), ways)):
        if length:
            m, n, k = (length if name == axis else getattr(gemm, name) for name in AXES)
            found[Kernel(m, n, k, problem.element_nbytes, axis == "k" and index > 0, 0)] += 1
    return found


def _decomposition(cuts: Sequence[Cut], node: Node) -> list[dict]:
    """Losses of GEMMs alone."""
    places = [Beside(kernel, NO_EXCHANGE, 0, False) for cut in cuts for kernel in cut.pieces]
    rates = rates_of(places, node, TRANSPORTS[-1], Mechanisms())
    found, at, whole_s = [], 0, 0.0
    for cut in cuts:
        cut_s = rates.launch_s[at]
        for count in cut.pieces.values():
            cut_s += count * rates.alone_s[at]
            at += 1
        if cut.ways == 1:
            whole_s = cut_s
        else:
            about = _about(cut.row, node, cut.axis, cut.ways, cut.pieces)
            found.append({**about, "loss": LOSSES[0], "operation": "gemm", **_value(whole_s, cut_s)})
    return found


def _exchanges(rows: Sequence[Row], ways: Sequence[int] | None, node: Node, transport: str) -> list[dict]:
    """Losses of exchanges alone."""
    found = []
    moved = [(row, _whole(row.problem, node)) for row in rows]
    moved = [(row, exchange) for row, exchange in moved if exchange.nbytes]
    places = [Exchanged(exchange, COLLECTIVES.index(row.problem.kind), False) for row, exchange in moved]
    for (row, exchange), (bytes_s, start_s) in zip(moved, costs_of(places, node, transport), strict=True):
        for count in ways or (row.problem.ranks, row.problem.ranks**2):
            about = _about(row, node, "none", count) | {"piece_bytes": -(-exchange.most_nbytes // count)}
            times = _value(start_s + bytes_s, count * start_s + bytes_s)
            found.append({**about, "loss": LOSSES[0], "operation": "exchange", "transport": transport, **times})
    return found


def _contention(cuts: Sequence[Cut], node: Node, transport: str) -> list[dict]:
    """Losses of each beside the other."""
    if not cuts:
        return []
    # Alone with the whole GPU, then beside; pieces of one cut follow one another.
    alone, both = (
        rates_of([Beside(kernel, cut.exchange, cut.kind, overlaps) for cut in cuts for kernel in cut.pieces], node,
                 transport, Mechanisms())
        for overlaps in (False, True)
    )  # fmt: skip
    bytes_s = [
        [
            seconds
            for seconds, _ in costs_of([Exchanged(cut.exchange, cut.kind, overlaps) for cut in cuts], node, transport)
        ]
        for overlaps in (False, True)
    ]
    found, at = [], 0
    for cut, bytes_alone_s, bytes_beside_s in zip(cuts, *bytes_s, strict=True):
        alone_s = beside_s = moving_s = 0.0
        for count in cut.pieces.values():
            alone_s += count * alone.alone_s[at]
            beside_s += count * both.beside_s[at]
            moving_s += count * both.beside_s[at] * both.slowed[at]
            at += 1
        about = _about(cut.row, node, cut.axis if cut.ways > 1 else "none", cut.ways, cut.pieces)
        about |= {"loss": LOSSES[1], "transport": transport, "piece_bytes": cut.exchange.most_nbytes}
        found.append({**about, "operation": "gemm", **_value(alone_s, beside_s)})
        slowed_s = bytes_beside_s * beside_s / moving_s
        found.append({**about, "operation": "exchange", **_value(bytes_alone_s, slowed_s)})
    return found


def _whole(problem: Problem, node: Node) -> Exchange:
    """Everything from every peer at once."""
    exchanges = order_of(build("serial", problem, problem.busiest), node, "cu")[1]
    return exchanges[0] if exchanges else NO_EXCHANGE


def _largest_piece(problem: Problem, node: Node) -> Exchange:
    """The largest exchange of the problem's own cut."""
    exchanges = order_of(build("hetero_fused_1d", problem, problem.busiest), node, "cu")[1]
    return max(exchanges, key=lambda item: item.nbytes, default=NO_EXCHANGE)


def _value(whole_s: float, cut_s: float) -> dict[str, float]:
    return {"whole_s": whole_s, "cut_s": cut_s, "value": cut_s / whole_s - 1}


def _about(row: Row, node: Node, axis: str, ways: int, pieces: Counter[Kernel] | None = None) -> dict[str, object]:
    gemm = row.problem.gemm(row.problem.busiest)
    piece = max(pieces, key=lambda kernel: kernel.m * kernel.n * kernel.k) if pieces else gemm
    return {
        "node": node.name,
        "evidence": "modelled",
        "problem": row.name,
        "collective": row.problem.kind,
        **{name: getattr(gemm, name) for name in AXES},
        "dtype": gemm.dtype,
        "ranks": row.problem.ranks,
        "transport": "none",
        "axis": axis,
        "ways": ways,
        **{f"piece_{name}": getattr(piece, name) for name in AXES},
        "piece_bytes": 0,
    }
