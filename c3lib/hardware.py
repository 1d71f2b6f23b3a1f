"""GPUs, links and nodes, read from ``data/hardware/<node>.toml``: every constant has a unit, a source and a label.

A new GPU is one TOML file. Every key is known here with its unit and its possible range; an unknown, missing or
impossible one is an error that names file and key.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Mapping

from c3lib.constants import Constant, check_value, quantity, read_section, require_keys
from c3lib.errors import C3Error, unknown
from c3lib.files import DATA, names_in, read_text

TOPOLOGIES = ("mesh", "switch", "host")
COLLECTIVES = ("all-gather", "all-to-all")

MEMORY_TOLERANCE = 0.15
"""Makers' gigabytes are sometimes 2^30 bytes; GPUs that differ only in memory differ by more than this."""

PAPER_NODE = "mi300x_8"
"""The node of arXiv 2412.14335; what is reported of it says nothing about any other."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. A compute unit (CU) is an SM on NVIDIA; a die is an XCD on MI300X and the whole chip on Hopper."""

    cus: int = quantity("count", 1, whole=True)
    dies: int = quantity("count", 1, whole=True)
    cus_step: int = quantity("count", 1, whole=True)  # smallest number of CUs a partition can move
    resident_gemm: int = quantity(
        "count", 0, 1, whole=True
    )  # 1: GEMM workgroups stay on their CUs until the kernel ends
    idle_cus: int = quantity("count", 0, whole=True)  # on which the library's memory-bound GEMMs place no workgroup
    spare_cus: int = quantity("count", 0, whole=True)  # what conccl_rp withholds: memory-bound GEMMs hardly need them
    matrix_peak_tflops: float = quantity("TFLOP/s", 1e-3)
    matrix_efficiency: float = quantity("fraction", 0.01, 1)  # reached by a large GEMM / peak
    clock_gain: float = quantity("fraction", 0, 0.99)  # per-CU rate gained as the share of busy CUs goes to 0
    hbm_peak_gbs: float = quantity("GB/s", 1)
    hbm_efficiency: float = quantity("fraction", 0.01, 1)  # reached by a large copy / peak
    cu_hbm_gbs: float = quantity("GB/s", 0.1)  # one CU's largest memory rate, read + write
    llc_mb: float = quantity("MB", 0)
    llc_peak_gbs: float = quantity("GB/s", 1)
    l2_mb: float = quantity("MB", 0)  # whole GPU
    hbm_capacity_gb: float = quantity("GB", 1)
    launch_us: float = quantity("us", 0)

    @property
    def matrix_tflops(self) -> float:
        """Reached matrix rate of all CUs, TFLOP/s."""
        return self.matrix_peak_tflops * self.matrix_efficiency

    @property
    def hbm_gbs(self) -> float:
        """Reached memory bandwidth, read + write, GB/s."""
        return self.hbm_peak_gbs * self.hbm_efficiency

    @property
    def ridge(self) -> float:
        """Operational intensity (flop/B) above which a GEMM is compute-bound: peak over peak, as in facts section 9."""
        return self.matrix_peak_tflops * 1e3 / self.hbm_peak_gbs

    def is_like(self, cus: int, memory_nbytes: int, dies: int | None = None) -> bool:
        """True when a GPU that is there can be this one, by what it says of itself; without ``dies`` any number."""
        near = abs(memory_nbytes / (self.hbm_capacity_gb * 1e9) - 1) <= MEMORY_TOLERANCE
        return near and cus == self.cus and dies in (None, self.dies)


@dataclass(frozen=True)
class Link:
    """A GPU's links to its peers (mesh: one a peer; switch: all of them to every peer; host: to host memory)."""

    count: int = quantity("count", 1, whole=True)
    peak_gbs: float = quantity("GB/s", 0.1)  # one link, one direction
    dma_gbs: float = quantity("GB/s", 0.1)  # reached by a DMA engine, one link, one direction
    cu_gbs: float = quantity("GB/s", 0.1)  # reached by the library's kernels, likewise
    dma_one_way_gbs: float = quantity("GB/s", 0)  # dma_gbs while nothing goes the other way; 0: the same
    cu_one_way_gbs: float = quantity("GB/s", 0)  # cu_gbs while nothing goes the other way; 0: the same


@dataclass(frozen=True)
class Dma:
    """DMA engines (SDMA; copy engines on NVIDIA) and what driving them costs."""

    engines: int = quantity("count", 1, whole=True)
    peer_engines: int = quantity("count", 1, whole=True)
    copy_us: float = quantity("us", 0)  # one copy, from submission to the signal back, without its bytes
    command_us: float = quantity("us", 0)  # each copy command queued
    engine_us: float = quantity("us", 0)  # each further engine started and waited for


@dataclass(frozen=True)
class Library:
    """How the vendor's collective library runs one collective on CUs."""

    default_cus: int = quantity("count", 1, whole=True)
    cluster_cus: int = quantity("count", 1, whole=True)  # workgroups that start only together, side by side
    saturation_cus: int = quantity("count", 1, whole=True)  # first size of a power-of-two sweep that gains nothing more
    cu_gbs: float = quantity("GB/s", 1e-3)  # link bytes one CU moves a second, one direction
    latency_us: float = quantity("us", 0)


@dataclass(frozen=True)
class Interference:
    """The contention model's coefficients: few, named, one value a GPU type (see docs/model_card.md)."""

    memory_queueing: float = quantity("1", 0, 100)
    copy_queueing: float = quantity("1", 0, 100)  # memory_queueing of CU-driven copies where it differs; 0: the same
    dispatch_share: float = quantity("fraction", 0, 1)
    cache_pollution: float = quantity("fraction", 0, 10)
    requestor_thrash: float = quantity("fraction", 0, 0.9)
    waiting_per_cu: float = quantity(
        "count", 1
    )  # workgroups that start together on a CU that a resident GEMM gives back
    flood_cus: float = quantity(
        "count", 0
    )  # copying CUs beyond which their requests hold up the GEMM's; 0: no such limit


SECTIONS: Mapping[str, type] = MappingProxyType(
    {
        "gpu": Gpu,
        "link": Link,
        "dma": Dma,
        "all-gather": Library,
        "all-to-all": Library,
        "interference": Interference,
    }
)


@dataclass(frozen=True)
class Node:
    """``ranks`` equal GPUs and how they are joined. ``constants`` has every number with its source."""

    name: str
    title: str
    vendor: str
    topology: str
    ranks: int
    gpu: Gpu
    link: Link
    dma: Dma
    library: Mapping[str, Library]
    interference: Interference
    constants: Mapping[str, Constant]

    def links_used(self) -> int:
        """Links that carry a flat collective at once: one a peer on a mesh, all of them otherwise."""
        return min(self.link.count, self.ranks - 1) if self.topology == "mesh" else self.link.count

    def check_ranks(self, ranks: int, what: str = "collective") -> None:
        """Raises :class:`C3Error`, which begins with ``what``, for more ranks than the node has."""
        if ranks > self.ranks:
            raise C3Error(f"{what}: {ranks} ranks, but node {self.name} has {self.ranks}")

    def with_constant(self, key: str, value: float) -> Node:
        """A copy with one constant changed (``"interference.memory_queueing"``), for sensitivity and what-if.

        Raises :class:`C3Error` for an unknown key or an impossible value.
        """
        return self.with_constants({key: value})

    def with_constants(self, values: Mapping[str, float]) -> Node:
        """A copy with several constants changed at once: they have to be possible together, in whatever order.

        Raises :class:`C3Error` for an unknown key or an impossible value.
        """
        node, constants = self, dict(self.constants)
        for key, value in values.items():
            if key not in constants:
                raise unknown("constant", key, constants)
            section, name = key.split(".")
            meta = next(item.metadata for item in fields(SECTIONS[section]) if item.name == name)
            check_value(f"{self.name}: {key}", value, meta)
            part = node.library[section] if section in node.library else getattr(node, section)
            changed: Any = replace(part, **{name: int(value) if meta["whole"] else float(value)})
            was = constants[key]
            source = f"set to {value:g} by hand; {was.value:g} in the node's file: {was.source}"
            constants[key] = replace(was, value=value, evidence="modelled", source=source)
            changes: Any = (
                {"library": {**node.library, section: changed}} if section in node.library else {section: changed}
            )
            node = replace(node, **changes)
        node = replace(node, constants=constants)
        _check_together(self.name, node)
        return node


def node_names(folder: Path = DATA / "hardware") -> list[str]:
    """Names of the nodes that have a file."""
    return names_in(folder, ".toml")


@cache
def load_node(name: str, folder: Path = DATA / "hardware") -> Node:
    """The node of ``<folder>/<name>.toml``. Raises :class:`C3Error` naming file and key for anything amiss."""
    if name not in node_names(folder):
        raise unknown("node", name, node_names(folder))
    path = folder / f"{name}.toml"
    try:
        table = tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is only a ValueError
        raise C3Error(f"{path}: not valid TOML: {error}") from None

    expected = {"title": str, "vendor": str, "topology": str, "ranks": int, **dict.fromkeys(SECTIONS, dict)}
    require_keys(path, "", table, expected)
    for key, kind in expected.items():
        if not isinstance(table[key], kind) or isinstance(table[key], bool):
            raise C3Error(f"{path}: {key} must be a {kind.__name__}, not {table[key]!r}")
    if table["topology"] not in TOPOLOGIES:
        raise C3Error(f"{path}: topology must be one of {', '.join(TOPOLOGIES)}, not {table['topology']!r}")
    if table["ranks"] < 1:
        raise C3Error(f"{path}: ranks must be at least 1, not {table['ranks']}")

    constants: dict[str, Constant] = {}
    parts = {
        section: read_section(path, section, kind, table[section], constants) for section, kind in SECTIONS.items()
    }
    node = Node(
        name=name,
        title=table["title"],
        vendor=table["vendor"],
        topology=table["topology"],
        ranks=table["ranks"],
        gpu=parts["gpu"],
        link=parts["link"],
        dma=parts["dma"],
        library=MappingProxyType({kind: parts[kind] for kind in COLLECTIVES}),
        interference=parts["interference"],
        constants=MappingProxyType(constants),
    )
    _check_together(path, node)
    return node


def _check_together(path: Path | str, node: Node) -> None:
    """Values that are possible alone but not together."""
    checks = [
        (
            node.gpu.cus % node.gpu.dies == 0,
            f"gpu.cus ({node.gpu.cus}) must be a multiple of gpu.dies",
        ),
        (node.gpu.cus_step < node.gpu.cus, "gpu.cus_step must be fewer than gpu.cus"),
        (node.gpu.idle_cus < node.gpu.cus, "gpu.idle_cus must be fewer than gpu.cus"),
        (node.gpu.spare_cus < node.gpu.cus, "gpu.spare_cus must be fewer than gpu.cus"),
        (node.link.dma_gbs <= node.link.peak_gbs, "link.dma_gbs must not exceed link.peak_gbs"),
        (node.link.cu_gbs <= node.link.peak_gbs, "link.cu_gbs must not exceed link.peak_gbs"),
        (node.link.dma_one_way_gbs <= node.link.peak_gbs, "link.dma_one_way_gbs must not exceed link.peak_gbs"),
        (node.link.cu_one_way_gbs <= node.link.peak_gbs, "link.cu_one_way_gbs must not exceed link.peak_gbs"),
        (node.dma.peer_engines <= node.dma.engines, "dma.peer_engines must not exceed dma.engines"),
        (
            node.topology != "mesh" or node.link.count >= node.ranks - 1,
            f"link.count ({node.link.count}) must reach every peer of a mesh of {node.ranks} ranks",
        ),
    ]
    for kind, library in node.library.items():
        checks.append((library.default_cus < node.gpu.cus, f"{kind}.default_cus must be fewer than gpu.cus"))
    for good, message in checks:
        if not good:
            raise C3Error(f"{path}: {message}")
