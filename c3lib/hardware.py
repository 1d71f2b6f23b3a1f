"""GPUs, links and nodes, read from ``data/hardware/<node>.toml``: every constant has a unit, a source and a label.

A new GPU is one TOML file. Every key is known here with its unit and its possible range; an unknown, missing or
impossible one is an error that names file and key.
"""

from __future__ import annotations

import math
import sys
import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Mapping

from c3lib.errors import C3Error, unknown
from c3lib.files import DATA, names_in, read_text

EVIDENCE = ("reported", "modelled", "measured")
TOPOLOGIES = ("mesh", "switch", "host")
COLLECTIVES = ("all-gather", "all-to-all")

PAPER_NODE = "mi300x_8"
"""The node of arXiv 2412.14335; what is reported of it says nothing about any other."""


@dataclass(frozen=True)
class Constant:
    """One number of a node: value, unit, where it comes from, and whether a reported result was used to set it."""

    key: str
    value: float
    unit: str
    source: str
    evidence: str
    calibrated_on: str | None = None


def _key(unit: str, low: float = 0.0, high: float = math.inf, *, whole: bool = False) -> Any:
    """A dataclass field with its unit and the closed range of its possible values."""
    return field(metadata={"unit": unit, "low": low, "high": high, "whole": whole})


@dataclass(frozen=True)
class Gpu:
    """One GPU. A compute unit (CU) is an SM on NVIDIA; a die is an XCD on MI300X and the whole chip on Hopper."""

    cus: int = _key("count", 1, whole=True)
    dies: int = _key("count", 1, whole=True)
    cus_step: int = _key("count", 1, whole=True)  # smallest number of CUs a partition can move
    resident_gemm: int = _key("count", 0, 1, whole=True)  # 1: GEMM workgroups stay on their CUs until the kernel ends
    idle_cus: int = _key("count", 0, whole=True)  # on which the library's memory-bound GEMMs place no workgroup
    spare_cus: int = _key("count", 0, whole=True)  # what conccl_rp withholds: memory-bound GEMMs are no slower without
    matrix_peak_tflops: float = _key("TFLOP/s", 1e-3)
    matrix_efficiency: float = _key("fraction", 0.01, 1)  # reached by a large GEMM / peak
    clock_gain: float = _key("fraction", 0, 0.99)  # per-CU rate gained as the share of busy CUs goes to 0
    hbm_peak_gbs: float = _key("GB/s", 1)
    hbm_efficiency: float = _key("fraction", 0.01, 1)  # reached by a large copy / peak
    cu_hbm_gbs: float = _key("GB/s", 0.1)  # one CU's largest memory rate, read + write
    llc_mb: float = _key("MB", 0)
    llc_peak_gbs: float = _key("GB/s", 1)
    l2_mb: float = _key("MB", 0)  # whole GPU
    hbm_capacity_gb: float = _key("GB", 1)
    launch_us: float = _key("us", 0)

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


@dataclass(frozen=True)
class Link:
    """A GPU's links to its peers (mesh: one a peer; switch: all of them to every peer; host: to host memory)."""

    count: int = _key("count", 1, whole=True)
    peak_gbs: float = _key("GB/s", 0.1)  # one link, one direction
    dma_gbs: float = _key("GB/s", 0.1)  # reached by a DMA engine, one link, one direction
    cu_gbs: float = _key("GB/s", 0.1)  # reached by the library's kernels, likewise


@dataclass(frozen=True)
class Dma:
    """DMA engines (SDMA; copy engines on NVIDIA) and what driving them costs."""

    engines: int = _key("count", 1, whole=True)
    peer_engines: int = _key("count", 1, whole=True)
    copy_us: float = _key("us", 0)  # one copy, from submission to the signal back, without its bytes
    command_us: float = _key("us", 0)  # each copy command queued
    engine_us: float = _key("us", 0)  # each further engine started and waited for


@dataclass(frozen=True)
class Library:
    """How the vendor's collective library runs one collective on CUs."""

    default_cus: int = _key("count", 1, whole=True)
    saturation_cus: int = _key("count", 1, whole=True)  # first size of a power-of-two sweep that gains nothing more
    cu_gbs: float = _key("GB/s", 1e-3)  # link bytes one CU moves a second, one direction
    latency_us: float = _key("us", 0)


@dataclass(frozen=True)
class Interference:
    """The contention model's coefficients: few, named, one value a GPU type (see docs/model_card.md)."""

    memory_queueing: float = _key("1", 0, 100)
    dispatch_share: float = _key("fraction", 0, 1)
    cache_pollution: float = _key("fraction", 0, 10)
    requestor_thrash: float = _key("fraction", 0, 0.9)
    waiting_per_cu: float = _key("count", 1)  # workgroups that start together on the first CU a resident GEMM gives back
    flood_cus: float = _key("count", 0)  # copying CUs beyond which their requests hold up the GEMM's; 0: no such limit


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

    def with_constant(self, key: str, value: float) -> Node:
        """A copy with one constant changed (``"interference.memory_queueing"``), for sensitivity and what-if.

        Raises :class:`C3Error` for an unknown key or an impossible value.
        """
        if key not in self.constants:
            raise unknown("constant", key, self.constants)
        section, name = key.split(".")
        meta = next(item.metadata for item in fields(SECTIONS[section]) if item.name == name)
        _check_value(f"{self.name}: {key}", value, meta)
        part = self.library[section] if section in self.library else getattr(self, section)
        changed: Any = replace(part, **{name: int(value) if meta["whole"] else float(value)})
        was = self.constants[key]
        source = f"set to {value:g} by hand; {was.value:g} in the node's file: {was.source}"
        constants = {**self.constants, key: replace(was, value=value, evidence="modelled", source=source)}
        changes: dict[str, Any] = {"constants": constants}
        changes |= {"library": {**self.library, section: changed}} if section in self.library else {section: changed}
        node = replace(self, **changes)
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
    _same_keys(path, "", table, expected)
    for key, kind in expected.items():
        if not isinstance(table[key], kind) or isinstance(table[key], bool):
            raise C3Error(f"{path}: {key} must be a {kind.__name__}, not {table[key]!r}")
    if table["topology"] not in TOPOLOGIES:
        raise C3Error(f"{path}: topology must be one of {', '.join(TOPOLOGIES)}, not {table['topology']!r}")
    if table["ranks"] < 1:
        raise C3Error(f"{path}: ranks must be at least 1, not {table['ranks']}")

    constants: dict[str, Constant] = {}
    parts = {section: _read_section(path, section, table[section], constants) for section in SECTIONS}
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


def _same_keys(path: Path, where: str, table: Mapping, expected: Mapping) -> None:
    for key in table:
        if key not in expected:
            raise C3Error(f"{path}: {unknown('key', f'{where}{key}', [f'{where}{name}' for name in expected])}")
    for key in expected:
        if key not in table:
            raise C3Error(f"{path}: key {where}{key} is missing")


def _read_section(path: Path, section: str, table: Mapping, constants: dict[str, Constant]) -> Any:
    kind = SECTIONS[section]
    _same_keys(path, f"{section}.", table, {item.name: item for item in fields(kind)})
    values = {}
    for item in fields(kind):
        constant = _read_constant(path, f"{section}.{item.name}", table[item.name], item.metadata)
        constants[constant.key] = constant
        values[item.name] = int(constant.value) if item.metadata["whole"] else float(constant.value)
    return kind(**values)


def _read_constant(path: Path, key: str, entry: Any, meta: Mapping) -> Constant:
    if not isinstance(entry, Mapping):
        raise C3Error(f"{path}: {key} must be a table {{ value, unit, evidence, source }}, not {entry!r}")
    _same_keys(
        path,
        f"{key}.",
        {name: entry[name] for name in entry if name != "calibrated_on"},
        dict.fromkeys(("value", "unit", "evidence", "source")),
    )
    value = entry["value"]
    _check_value(f"{path}: {key}.value", value, meta)
    if entry["unit"] != meta["unit"]:
        raise C3Error(f"{path}: {key}.unit must be {meta['unit']!r}, not {entry['unit']!r}")
    if entry["evidence"] not in EVIDENCE:
        raise C3Error(f"{path}: {key}.evidence must be one of {', '.join(EVIDENCE)}, not {entry['evidence']!r}")
    for name in ("source", "calibrated_on"):
        text = entry.get(name)
        if (name == "source" or name in entry) and not (isinstance(text, str) and text.strip()):
            raise C3Error(f"{path}: {key}.{name} must say where the number comes from, not {text!r}")
    return Constant(key, value, entry["unit"], entry["source"], entry["evidence"], entry.get("calibrated_on"))


def _check_value(where: str, value: Any, meta: Mapping) -> None:
    number: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not -sys.float_info.max <= number <= sys.float_info.max:  # not isfinite: an int can be too large for a float
        raise C3Error(f"{where} must be a finite number, not {value!r}")
    if meta["whole"] and value != int(value):
        raise C3Error(f"{where} must be a whole number, not {value!r}")
    if not meta["low"] <= value <= meta["high"]:
        raise C3Error(f"{where} must lie in [{meta['low']:g}, {meta['high']:g}] {meta['unit']}, not {value!r}")


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
