"""What makes two activities of a GPU the same work, and what a profiler told of it elsewhere than in its name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from c3lib.trace import names
from c3lib.trace.values import count, sizes


@dataclass(frozen=True)
class Kernel:
    """What makes two activities the same work: equal names, launch sizes and shapes.

    ``grid`` and ``block`` are empty where the trace has none; ``shape`` of a GEMM, None where it is not known;
    ``collective`` the kind, ``nbytes`` and ``ranks`` of a transfer, empty and 0 where the trace does not say.
    """

    role: str
    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    collective: str = ""
    nbytes: int = 0
    ranks: int = 0
    shape: Shape | None = None


class Launch(NamedTuple):
    """Sizes of a launch, one to three numbers each; empty where they are not known."""

    grid: tuple[int, ...]
    block: tuple[int, ...]

    @classmethod
    def of(cls, told: Mapping[str, Any], grid: str = "grid", block: str = "block") -> Launch:
        """From the arguments of these names."""
        return cls(sizes(told.get(grid)), sizes(told.get(block)))

    def on(self, kernel: Kernel) -> Kernel:
        """The kernel with these sizes, where it has none of its own."""
        return replace(kernel, grid=kernel.grid or self.grid, block=kernel.block or self.block)


class Shape(NamedTuple):
    """Sizes of a GEMM; ``dtype`` is empty where :class:`c3lib.workload.Gemm` knows no such elements."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str

    @classmethod
    def of(cls, operator: str, told: Mapping[str, Any]) -> Shape | None:
        """From an operator's inputs as ``record_shapes`` records them; None where they are not."""
        dims, first = told.get("Input Dims"), names.MATMULS[operator]
        if not isinstance(dims, list) or len(dims) < first + 2:
            return None
        left, right = (tuple(map(count, size)) if isinstance(size, list) else () for size in dims[first : first + 2])
        if not 2 <= len(left) <= 8 or not 1 < len(right) <= 3 or 0 in left + right:
            return None
        if operator == "aten::linear":
            right = right[::-1]  # the weight lies as n x k
        batch = left[0] if len(right) == 3 else 1
        rows = left[-2] if len(right) == 3 else math.prod(left[:-1])
        if left[-1] != right[-2] or rows > 2**53 or len(left) < len(right):
            return None
        types = told.get("Input type")
        of_input = types[first] if isinstance(types, list) and len(types) > first else ""
        dtype = names.GEMM_DTYPES.get(str(of_input)[:32].lower().removeprefix("c10::"), "")
        return cls(rows, right[-1], left[-1], batch, dtype)

    def on(self, kernel: Kernel) -> Kernel:
        """The kernel with this shape, if it is a GEMM: an operator launches others too."""
        return replace(kernel, shape=self) if kernel.role == names.GEMM else kernel


class Sent(NamedTuple):
    """Kind, bytes and ranks of a collective, 0 where they are not known.

    Bytes as :class:`c3lib.workload.Collective` counts them: the gathered output of an all-gather, else what goes in.
    """

    kind: str
    nbytes: int
    ranks: int

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Sent | None:
        """From the profiler's own words; None where it says nothing of a collective."""
        name = told.get("Collective name")
        if not isinstance(name, str):
            return None
        kind = names.kind(name[:64])
        into, out = (count(told.get(f"{way} msg nelems")) for way in ("In", "Out"))
        size = names.ELEMENT_NBYTES.get(str(told.get("dtype"))[:32].lower(), 0)
        elements = out if kind == "all-gather" else into
        return cls(kind or names.COLLECTIVE, elements * size, count(told.get("Group size")))

    def on(self, kernel: Kernel) -> Kernel:
        """The kernel as this collective: also an unknown kernel, or a copy by DMA engines, of its operator."""
        if kernel.role not in (names.COLLECTIVE, names.KERNEL, names.PEER_COPY, names.LOCAL_COPY):
            return kernel
        kind = kernel.collective if self.kind == names.COLLECTIVE else self.kind
        nbytes = self.nbytes or (kernel.nbytes if kernel.role != names.COLLECTIVE else 0)
        return replace(kernel, role=names.COLLECTIVE, collective=kind, nbytes=nbytes, ranks=self.ranks)


Fact = Launch | Shape | Sent
"""What an operator or a launch tells of a kernel."""
