"""Advice for every layer of a model: each collective with the GEMMs that it can run beside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c3lib.advisor import page
from c3lib.advisor.advice import Advice, advise_all
from c3lib.advisor.dependent import finer
from c3lib.advisor.layers import Parallelism, Work, works
from c3lib.advisor.model_config import Model, read_model
from c3lib.advisor.options import SERIAL, offered
from c3lib.errors import C3Error, located, unknown
from c3lib.explain import EVIDENCE
from c3lib.hardware import Node, load_node
from c3lib.model import kernels
from c3lib.workload import DTYPE_BYTES, Collective, Scenario


@dataclass(frozen=True)
class LayerAdvice:
    """A collective and the GEMMs beside it: one strategy for all, and an :class:`Advice` for each GEMM.

    ``strategy`` is one of :data:`c3lib.STRATEGIES` or "serial"; where the GEMM is ``dependent`` on what the collective
    brings, a finer-grain schedule (:data:`c3lib.ficco.SCHEDULES`) or "serial", with an interval of NaN: none is known.
    ``pieces`` hold the share of the collective that lies beside each GEMM. Times in seconds are of one layer;
    ``serial_s`` has the collective once as a whole, ``time_s`` its start with each GEMM again, so that the gain is not
    flattered.
    """

    name: str
    times: int  # layers in which it is so
    what: str
    collective: Collective
    dependent: bool
    strategy: str
    gemms: tuple[str, ...]
    pieces: tuple[Advice, ...]
    serial_s: float
    time_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    reason: str

    @property
    def unadvised(self) -> str:
        """What overlap would give where it is not advised, in words; nothing of what is ``dependent``."""
        if self.dependent or any(piece.unadvised_strategy is None for piece in self.pieces):
            return ""
        names = ("unadvised_speedup", "unadvised_speedup_low", "unadvised_speedup_high")
        times = [sum(piece.serial_s / getattr(piece, name) for piece in self.pieces) for name in names]
        return page.against(str(self.pieces[0].unadvised_strategy), *(self.serial_s / time_s for time_s in times))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        return asdict(self) | {"pieces": [piece.to_dict() for piece in self.pieces]}


@dataclass(frozen=True)
class ModelAdvice:
    """Advice for a model spread over a node; ``print`` it."""

    path: str
    family: str
    parameters: int
    node: str
    parallelism: Parallelism
    dtype: str
    layers: tuple[LayerAdvice, ...]
    evidence: str = EVIDENCE

    @property
    def free(self) -> tuple[LayerAdvice, ...]:
        """What can be overlapped as it is: all but the dependent."""
        return tuple(layer for layer in self.layers if not layer.dependent)

    @property
    def serial_s(self) -> float:
        """GEMMs and collectives of :attr:`free` in a forward pass, one after the other."""
        return sum(layer.serial_s * layer.times for layer in self.free)

    @property
    def time_s(self) -> float:
        """The same as advised."""
        return sum(layer.time_s * layer.times for layer in self.free)

    @property
    def speedups(self) -> tuple[float, float, float]:
        """Expected, low and high gain of all of :attr:`free`, if the model is off everywhere to the same side."""
        slow, fast = (
            sum(layer.serial_s / getattr(layer, name) * layer.times for layer in self.free)
            for name in ("speedup_low", "speedup_high")
        )
        return (self.serial_s / self.time_s, self.serial_s / slow, self.serial_s / fast) if self.free else (1.0,) * 3

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        totals = {"serial_s": self.serial_s, "time_s": self.time_s}
        totals |= dict(zip(("speedup", "speedup_low", "speedup_high"), self.speedups, strict=True))
        return asdict(self) | totals | {"layers": [layer.to_dict() for layer in self.layers]}

    def __str__(self) -> str:
        return page.model_text(self)


def advise_model(
    model: Model | Path | str,
    parallelism: Parallelism,
    node: Node | str = "mi300x_8",
    *,
    dtype: str = "bf16",
    strategies: Sequence[str] | None = None,
) -> ModelAdvice:
    """Advice for each layer of a model (or of its ``config.json``) that is spread over a node.

    Raises:
        C3Error: as :func:`c3lib.advisor.model_config.read_model` and :meth:`Parallelism.check`; an unknown node, dtype
            or strategy; or no two kernels that could run beside each other.
    """
    if dtype not in DTYPE_BYTES:
        raise unknown("dtype", dtype, DTYPE_BYTES)
    model = model if isinstance(model, Model) else read_model(model)
    there = load_node(node) if isinstance(node, str) else node
    parallelism.check(model, there)
    found, names = works(model, parallelism, dtype), offered(strategies)
    if not found:
        raise C3Error(f"{model.path}: one layer alone has no next one to gather parameters for")
    pieces = [_pieces(work, there) for work in found]
    groups = np.repeat(np.arange(len(pieces)), [len(part) for part in pieces])
    flat = [piece for part in pieces for piece in part]
    advice = iter(advise_all(flat, there, strategies, groups=list(groups)))
    layers = []
    for work, part in zip(found, pieces, strict=True):
        own = tuple(next(advice) for _ in part)
        with located(f"{model.path}, {work.name}"):
            layers.append(_dependent(work, own, there, names) if work.dependent else _free(work, own, there))
    return ModelAdvice(
        path=model.path,
        family=model.family,
        parameters=model.parameters,
        node=there.name,
        parallelism=parallelism,
        dtype=dtype,
        layers=tuple(layers),
    )


def _pieces(work: Work, node: Node) -> list[Scenario]:
    """Each GEMM with its share of the collective, by its time alone."""
    whole = [Scenario(name, gemm, work.collective) for name, gemm in work.gemms]
    time_s = kernels.gemm_time_s(kernels.batch(whole, node)[0], node.gpu.cus, node)
    ends = np.rint(work.collective.nbytes * np.cumsum(time_s) / time_s.sum()).astype(np.int64)
    parts = np.diff(ends, prepend=0)
    kind, ranks = work.collective.kind, work.collective.ranks
    return [
        Scenario(piece.name, piece.gemm, Collective(kind, int(nbytes), ranks))
        for piece, nbytes in zip(whole, parts, strict=True)
    ]


def _free(work: Work, pieces: tuple[Advice, ...], node: Node) -> LayerAdvice:
    """What can run beside each other as it is."""
    serial_s, strategy = _serial_s(work, pieces, node), pieces[0].strategy
    overlaps = strategy != SERIAL
    time_s = sum(piece.time_s for piece in pieces) if overlaps else serial_s
    # A piece's factor on its speedup is one on its time; the whole is as far off as the sum of its pieces.
    slow, fast = (
        sum(piece.serial_s / getattr(piece, name) for piece in pieces) / sum(piece.time_s for piece in pieces)
        if overlaps
        else 1.0
        for name in ("speedup_low", "speedup_high")
    )
    speedup = serial_s / time_s
    reason = max(pieces, key=lambda piece: piece.gemm_alone_s).reason
    return _layer(work, pieces, strategy, serial_s, time_s, (speedup / slow, speedup / fast), reason)


def _dependent(work: Work, pieces: tuple[Advice, ...], node: Node, names: Sequence[str]) -> LayerAdvice:
    """What must wait, unless it is cut finer."""
    serial_s = _serial_s(work, pieces, node)
    found, reason = finer(work, node, names, serial_s), "The GEMM needs what the collective brings"
    if found is None:
        why = f"{reason}, and no finer-grain schedule (FiCCO) on offer gains anything."
        return _layer(work, pieces, SERIAL, serial_s, serial_s, (1.0, 1.0), why)
    moved = {"dma": "DMA engines", "cu": "the library's kernels"}[found.transport]
    why = f"{reason}, so both are cut into pieces (FiCCO), which {moved} move."
    return _layer(work, pieces, found.schedule, serial_s, found.time_s, (math.nan, math.nan), why)


def _serial_s(work: Work, pieces: Sequence[Advice], node: Node) -> float:
    """The GEMMs, and the library's collective once as a whole."""
    whole = Scenario(work.name, work.gemms[0][1], work.collective)
    collective_s = float(kernels.library_time_s(kernels.batch([whole], node)[1], node)[0])
    return sum(piece.gemm_alone_s for piece in pieces) + collective_s


def _layer(
    work: Work,
    pieces: tuple[Advice, ...],
    strategy: str,
    serial_s: float,
    time_s: float,
    interval: tuple[float, float],
    reason: str,
) -> LayerAdvice:
    return LayerAdvice(
        name=work.name,
        times=work.times,
        what=work.what,
        collective=work.collective,
        dependent=work.dependent,
        strategy=strategy,
        gemms=tuple(name for name, _ in work.gemms),
        pieces=pieces,
        serial_s=serial_s,
        time_s=time_s,
        speedup=serial_s / time_s,
        speedup_low=interval[0],
        speedup_high=interval[1],
        reason=reason,
    )
