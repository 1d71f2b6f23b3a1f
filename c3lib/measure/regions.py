"""Experiments made of single regions: isolated curves, order and priority, who overlaps with what, break-even size.

A node of one GPU measures its host link, in, out and both ways, with our SM kernel as the library; between GPUs there
is one direction, "both", and the library is NCCL.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from c3lib.backends.cuda import CudaBackend
from c3lib.backends.regions import RegionBackend, describe
from c3lib.cuda.nccl import VARIANTS
from c3lib.cuda.setting import Setting
from c3lib.hardware import COLLECTIVES
from c3lib.measure.rounds import Group
from c3lib.region import Region
from c3lib.transfer.builders import build_plan
from c3lib.workload import Gemm

COMPUTE_BOUND = (Gemm(8192, 8192, 8192), Gemm(4096, 8192, 8192))
MEMORY_BOUND = (Gemm(64, 106496, 16384), Gemm(32, 53248, 16384))
SMALL = Gemm(512, 8192, 8192)

BLOCKS = (1, 2, 3, 4, 6, 8, 16, 32, 64)
WITHHELD = (0, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 124)
LARGE_NBYTES = 2**27
SIZES = tuple(4**power for power in range(6, 16))  # 4 KiB to 1 GiB
COPY_ENGINES = (Setting(), Setting(batched=False))
BARE = Setting(batched=False, bare=True)
"""The copies alone, without the ranks waiting for one another: what the links give."""

NVLINK_NBYTES = 2**29
"""Large between GPUs: 256 MiB from each of two."""

NCCL_BLOCKS = (0, 1, 2, 4, 8, 16, 32)
"""Thread blocks asked of NCCL; 0 leaves it the choice."""


@dataclass(frozen=True)
class Transfer:
    """A plan's size and the direction that counts; 2 ``ranks`` make it a single copy each way, 0 means the node's."""

    nbytes: int
    direction: str = "both"
    ranks: int = 0
    kind: str = "all-gather"
    registered: bool = False


def _arm(
    backend: CudaBackend, experiment: str, gemm: Gemm | None, transfer: Transfer | None, how: Setting, turn: int
) -> list[dict[str, Any]]:
    region = backend.rig.run(how, gemm=gemm is not None, transfer=transfer is not None)
    return [region_row(backend, experiment, gemm, transfer, how, region, turn)]


def region_row(
    backend: RegionBackend,
    experiment: str,
    gemm: Gemm | None,
    transfer: Transfer | None,
    how: Any,
    region: Region,
    turn: int,
) -> dict[str, Any]:
    """One region as a row of the schema of :mod:`c3lib.measured`."""
    times, buffers = region.times, backend.rig.buffers if transfer else None
    setting = describe(how, region)
    if transfer is None:
        setting |= {"transport": "none", "batched": False}
    return {
        "node": backend.node.name,
        "evidence": backend.evidence,
        "experiment": experiment,
        "gemm": str(gemm or "none"),
        "dtype": gemm.dtype if gemm else "none",
        "bound": gemm.bound(backend.node.gpu) if gemm else "none",
        "collective": transfer.kind if transfer else "none",
        "direction": transfer.direction if transfer else "none",
        "total_bytes": transfer.nbytes if transfer else 0,
        "link_bytes": buffers.link_nbytes if buffers else 0,
        "copies": len(buffers.chosen) if buffers else 0,
        **setting,
        "repetition": turn,
        "gemm_s": times.gemm_end_s - times.gemm_start_s,
        "transfer_s": times.transfer_end_s - times.transfer_start_s,
        "region_s": times.end_s,
        "overlap_s": times.overlap_s,
        **region.health(),
        "verified": region.verified,
        "path": region.path,
        **({"in_place": how.in_place} if experiment == "transports" else {}),
    }


def _group(
    backend: CudaBackend,
    experiment: str,
    gemm: Gemm | None,
    transfer: Transfer | None,
    arms: list[tuple[bool, bool, Setting]],
) -> Group:
    """Arms ``(with GEMM, with transfer, setting)`` of one GEMM and one transfer; their movers' controls run at once."""
    backend.control(how for _, moves, how in arms if moves)

    def load() -> None:
        if transfer is None:
            backend.rig.load(gemm)
            return
        node = backend.node
        plan = build_plan(transfer.kind, transfer.nbytes, transfer.ranks or node.ranks, node.topology)
        backend.rig.load(gemm, plan, transfer.direction, transfer.registered)

    named = {
        f"{'g' * has_gemm}{'t' * moves} {how}": partial(
            _arm, backend, experiment, gemm if has_gemm else None, transfer if moves else None, how
        )
        for has_gemm, moves, how in arms
    }
    return Group(f"{experiment} {gemm or ''} {transfer or ''}", load, named)


def isolated(backend: CudaBackend) -> list[Group]:
    """GEMMs on fewer and fewer SMs; transfers by transport, blocks, direction and size; each alone."""
    name = "isolated"
    by_sms = [(True, False, Setting(withheld=sms)) for sms in WITHHELD]
    by_sms += [(True, False, Setting(withheld=sms, green=True)) for sms in (8, 16, 32, 64)]
    groups = [_group(backend, name, gemm, None, by_sms) for gemm in (*COMPUTE_BOUND, *MEMORY_BOUND)]
    alone = lambda settings: [(False, True, how) for how in settings]  # noqa: E731
    sm_kernels = [Setting(blocks=blocks) for blocks in BLOCKS]
    if backend.library:
        nccl = [Setting(library=backend.library, blocks=blocks) for blocks in NCCL_BLOCKS]
        large = alone([BARE, *COPY_ENGINES, *sm_kernels, *nccl])
        groups += [_group(backend, name, None, Transfer(NVLINK_NBYTES, kind=kind), large) for kind in COLLECTIVES]
        by_size = alone([*COPY_ENGINES, BARE, Setting(blocks=32), nccl[0]])
        groups += [_group(backend, name, None, Transfer(4 * size), by_size) for size in SIZES]
        return groups
    by_blocks = alone([*COPY_ENGINES, *sm_kernels])
    groups += [_group(backend, name, None, Transfer(LARGE_NBYTES, way), by_blocks) for way in ("in", "out", "both")]
    by_size = alone([*COPY_ENGINES, Setting(blocks=8), Setting(blocks=32)])
    groups += [_group(backend, name, None, Transfer(size), by_size) for size in SIZES]
    groups += [_group(backend, name, None, Transfer(2 * size, "in", 2), alone(COPY_ENGINES)) for size in SIZES]
    return groups


def equal_transfer(backend: CudaBackend, gemm: Gemm, kind: str = "all-gather") -> Transfer:
    """A transfer that takes the library's kernel about as long as the GEMM takes, by the node's constants."""
    import numpy as np

    from c3lib.model.kernels import gemm_batch, gemm_time_s

    node = backend.node
    seconds = gemm_time_s(gemm_batch(gemm.m, gemm.n, gemm.k, 2, node), np.array(node.gpu.cus), node).item()
    nbytes = seconds * node.link.cu_gbs * node.links_used() * 1e9 * node.ranks / (node.ranks - 1)
    return Transfer(max(1, round(nbytes / 2**20)) * 2**20, kind=kind)


def order(backend: CudaBackend) -> list[Group]:
    """A GEMM beside SM kernels of more and more blocks and beside copy engines: four orders and SMs left free."""
    groups = []
    library = backend.library
    for gemm in (COMPUTE_BOUND[0], MEMORY_BOUND[0]):
        arms = [(True, False, Setting()), (False, True, Setting())]
        for name in ("nccl", "nccl_unclustered") if library else ():
            for blocks in (0, 4, 8, 16):
                how = Setting(blocks=blocks, library=name)
                arms.append((False, True, how))
                for withheld in (0, blocks) if blocks else (0,):
                    beside = replace(how, withheld=withheld)
                    arms += [(True, True, beside), (True, True, replace(beside, gemm_first=False, high=True))]
        for blocks in (1, 2, 4, 8, 16, 32, 64):
            arms.append((False, True, Setting(blocks=blocks)))
            arms += [
                (True, True, Setting(blocks=blocks, gemm_first=first, high=high))
                for first in (True, False)
                for high in (True, False)
            ]
        arms += [
            (True, True, Setting(blocks=blocks, withheld=blocks, gemm_first=False)) for blocks in (2, 4, 8, 16, 32)
        ]
        arms += [
            (True, True, Setting(gemm_first=first, high=high)) for first in (True, False) for high in (True, False)
        ]
        if library or gemm.bound(backend.node.gpu) == "memory":
            more = (8, 16, 32, 48, 64) if gemm.bound(backend.node.gpu) == "memory" else (2, 4, 8, 16)
            arms += [(True, False, Setting(withheld=sms)) for sms in more]
            arms += [(True, True, Setting(withheld=sms, gemm_first=False, high=True)) for sms in more]
        groups.append(_group(backend, "order", gemm, equal_transfer(backend, gemm), arms))
        # One way at a time: which direction costs the GEMM its bandwidth.
        both = equal_transfer(backend, gemm)
        for way in () if library else ("in", "out"):
            arms = [(True, False, Setting()), (False, True, Setting()), (True, True, Setting(gemm_first=False))]
            groups.append(_group(backend, "order", gemm, Transfer(both.nbytes, way), arms))
    return groups


def transports(backend: CudaBackend) -> list[Group]:
    """Who overlaps with what, between GPUs: each transport alone and beside each GEMM, launched first and second.

    The buffers are memory that NCCL can register, for all transports. A row's transport says how NCCL ran; ``in_place``
    says whether a rank's own shard was where it belongs, or had to be moved by the library as well.
    """
    movers = [Setting(), Setting(batched=False), Setting(blocks=8), Setting(blocks=32)]
    groups = []
    for gemm in (*COMPUTE_BOUND, *MEMORY_BOUND):
        for kind in COLLECTIVES:
            libraries = [
                Setting(library=name, in_place=in_place)
                for name in VARIANTS
                for in_place in (True, False)
                if not (name == "nccl_zero_cta" and in_place and kind == "all-to-all")  # NCCL has none in place
            ]
            arms = [(True, False, Setting())]
            for how in [*movers, *libraries]:
                arms += [(False, True, how), (True, True, how), (True, True, replace(how, gemm_first=False, high=True))]
            transfer = replace(equal_transfer(backend, gemm, kind), registered=True)
            groups.append(_group(backend, "transports", gemm, transfer, arms))
    return groups


def break_even(backend: CudaBackend) -> list[Group]:
    """Transfers of 4 KiB and more beside a GEMM, by copy engine and by SM kernel, and each alone."""
    how = [Setting(gemm_first=False, high=True), Setting(blocks=32, gemm_first=False, high=True)]
    how += [Setting(blocks=4, withheld=4, gemm_first=False, high=True)]
    if backend.library:
        how[1:] = [Setting(library=backend.library, gemm_first=False, high=True)]
    groups = []
    for gemm in (SMALL, COMPUTE_BOUND[1]):
        for size in SIZES[:-2]:
            arms = [(True, False, Setting())]
            for setting in how:
                arms += [(False, True, setting), (True, True, setting)]
            groups.append(_group(backend, "break_even", gemm, Transfer(size), arms))
    return groups
