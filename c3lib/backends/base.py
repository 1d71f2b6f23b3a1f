"""What a backend is: it says how long a scenario takes under a strategy, and what kind of evidence that is."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import ClassVar, Mapping, Protocol, Sequence

from numpy.typing import NDArray

from c3lib.errors import unknown
from c3lib.hardware import Node
from c3lib.strategy import Strategy
from c3lib.workload import Scenario

AD_HOC = "ad hoc"
"""What stands for a suite's name where the scenarios come from none."""


@dataclass(frozen=True)
class Timings:
    """Seconds and CU counts of one strategy over some scenarios, arrays ``(scenarios,)``.

    ``verified`` is True where every transferred byte was compared and right; ``path`` says, for all or for
    each, which engine or kernel moved the bytes and how that was established.
    """

    gemm_alone_s: NDArray
    collective_alone_s: NDArray
    gemm_end_s: NDArray
    collective_end_s: NDArray
    concurrent_s: NDArray
    cus_taken: NDArray
    verified: NDArray
    path: str | Sequence[str]
    more: Mapping[str, NDArray] = field(default_factory=dict)
    """Further columns of a measured row, in order (see :mod:`c3lib.measured`)."""

    MAIN: ClassVar[tuple[str, ...]] = (
        "gemm_alone_s",
        "collective_alone_s",
        "gemm_end_s",
        "collective_end_s",
        "concurrent_s",
        "cus_taken",
        "verified",
    )


class Backend(Protocol):
    """A backend for one node.

    ``suite`` is the name of the suite that is run, :data:`AD_HOC` for scenarios of no suite: what was measured is
    found by it. A deterministic one is asked for all scenarios of a strategy at once (and, if it is a model, for one
    repetition only); any other once for each scenario, strategy and repetition, in shuffled order.
    """

    name: str
    evidence: str  # "modelled" or "measured", or that it is not a measurement
    deterministic: bool

    def __init__(self, node: Node, suite: str = AD_HOC) -> None: ...

    def run(self, scenarios: Sequence[Scenario], strategy: Strategy, repetition: int) -> Timings:
        """Run the scenarios under the strategy."""
        ...


_BACKENDS = {
    "cuda": ("cuda", "CudaBackend"),
    "hip": ("hip", "HipBackend"),
    "model": ("modelled", "Modelled"),
    "replay": ("replay", "Replay"),
}
"""Name to module and class; a module is imported only when its backend is used."""


def backend_names() -> list[str]:
    """Names that :func:`open_backend` takes."""
    return sorted(_BACKENDS)


def open_backend(name: str, node: Node, suite: str = AD_HOC) -> Backend:
    """The backend of that name for a node. Raises :class:`C3Error` for an unknown name."""
    if name not in _BACKENDS:
        raise unknown("backend", name, _BACKENDS)
    module, kind = _BACKENDS[name]
    return getattr(import_module(f"c3lib.backends.{module}"), kind)(node, suite)
