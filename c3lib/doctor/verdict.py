"""What a machine can measure and why not, which node files fit it, and the command to go on with."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from c3lib.doctor.finding import Reading
from c3lib.hardware import Node

THINGS = {
    "gpu": "a GPU that can be opened",
    "packages": "the packages that measuring needs, built for these GPUs",
    "hip": "HIP, on all the GPUs that AMD's runtime lists",
    "engines": "copies over the host link by copy engine",
    "peers": "copies between GPUs by copy engine",
    "library": "the vendor's collective library between GPUs",
    "zero_cu": "the library on copy engines",
    "link_counters": "counters of the links",
    "energy": "counter of energy",
    "profiler": "the vendor's profiler",
}
"""What measuring takes; a :class:`Reading` says of each that it lacks why."""

_NEEDS = (
    ("a GEMM beside transfers over the host link", ("gpu", "engines"), "nvidia"),
    ("a GEMM beside collectives between GPUs", ("gpu", "packages", "hip", "peers", "library"), ""),
    ("the vendor's library without compute units", ("gpu", "zero_cu"), ""),
    ("bytes that the links carried (links)", ("gpu", "peers", "link_counters"), "nvidia"),
    ("energy of each strategy (energy)", ("gpu", "energy"), "nvidia"),
    ("memory traffic and cache of a GEMM beside a transfer (premise)", ("gpu", "engines", "profiler"), "nvidia"),
)
SUITES = {"host": "conccl30_host", "switch": "conccl30_nvlink", "mesh": "conccl30"}
"""The suite whose scenarios are long enough to measure on a topology."""

EXPLAIN = "c3 explain --gemm 8192x8192x8192 --collective all-gather --size 896MiB --node mi300x_8"


@dataclass(frozen=True)
class Ability:
    """Something to measure, whether it can be measured here, and if not, why."""

    what: str
    can: bool
    why_not: str = ""


@dataclass(frozen=True)
class Verdict:
    """What can be measured; names of node files that fit, the largest first; what to do ``first``, and ``next``."""

    abilities: tuple[Ability, ...]
    nodes: tuple[str, ...]
    first: str
    next: str


def judge(reading: Reading, blocked: str, refused: str, nodes: Iterable[Node]) -> Verdict:
    """The verdict on a reading.

    ``blocked``: why no GPU can be reached. ``refused``: what environment variables are in the way. Empty for nothing.
    """
    no_hardware = f"this is no hardware ({reading.stand_in}), so nothing that it says is a measurement"
    in_the_way = refused or (no_hardware if reading.stand_in else blocked)
    abilities = [Ability("what the model says, every figure, and what was measured elsewhere", True)]
    for what, things, only in _NEEDS:
        if only and reading.vendor and only != reading.vendor:
            continue
        why = in_the_way or next((reading.lacks[thing] for thing in things if thing in reading.lacks), "")
        abilities.append(Ability(what, not why, why))
    fit = [] if reading.stand_in else fitting(reading, nodes)
    measures = any(ability.can for ability in abilities[1:])
    return Verdict(tuple(abilities), tuple(node.name for node in fit), *_next(reading, in_the_way, fit, measures))


def fitting(reading: Reading, nodes: Iterable[Node]) -> list[Node]:
    """Nodes of these GPUs, and of no more than there are and can reach one another; those of most GPUs first."""
    found = [
        node
        for node in nodes
        if node.vendor == reading.vendor
        and gpus_of(node) <= len(reading.gpus)
        and (gpus_of(node) == 1 or "peers" not in reading.lacks)
        and all(node.gpu.is_like(gpu.cus, gpu.memory_nbytes) for gpu in reading.gpus[: gpus_of(node)])
    ]
    return sorted(found, key=lambda node: (-gpus_of(node), node.name))


def gpus_of(node: Node) -> int:
    """GPUs that a node takes: on topology ``host`` its peers stand in host memory."""
    return 1 if node.topology == "host" else node.ranks


def _next(reading: Reading, in_the_way: str, fit: Sequence[Node], measures: bool) -> tuple[str, str]:
    """What to do first (empty if nothing), and the command."""
    if not reading.gpus and not in_the_way:
        in_the_way = reading.lacks.get("gpu", "no GPU was found")
    if in_the_way or not measures:
        why = in_the_way or next(iter(reading.lacks.values()), "nothing answered")
        return f"nothing can be measured here: {why}", EXPLAIN
    if fit:
        return "", shlex.join(["c3", "measure", "--node", fit[0].name, "--suite", SUITES[fit[0].topology]])
    near = "h200_1" if reading.vendor == "nvidia" else "mi300x_8"
    first = f"no node file fits: copy data/hardware/{near}.toml to NAME.toml there and change what differs"
    suite = SUITES["host" if reading.vendor == "nvidia" else "mesh"]
    return first, f"c3 measure --node NAME --suite {suite}"
