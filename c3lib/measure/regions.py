"""Experiments made of single regions: isolated curves, order and priority, break-even size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from c3lib.backends.cuda import CudaBackend, describe
from c3lib.cuda.rig import Region, Setting
from c3lib.measure.rounds import Group
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


@dataclass(frozen=True)
class Transfer:
    """A plan's size and the direction that counts; ``ranks`` 2 makes it a single copy each way."""

    nbytes: int
    direction: str = "both"
    ranks: int = 8
    kind: str = "all-gather"


def _arm(
    backend: CudaBackend, experiment: str, gemm: Gemm | None, transfer: Transfer | None, how: Setting, turn: int
) -> list[dict[str, Any]]:
    region = backend.rig.run(how, gemm=gemm is not None, transfer=transfer is not None)
    return [region_row(backend, experiment, gemm, transfer, how, region, turn)]


def region_row(
    backend: CudaBackend,
    experiment: str,
    gemm: Gemm | None,
    transfer: Transfer | None,
    how: Setting,
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
    }


def _group(
    backend: CudaBackend,
    experiment: str,
    gemm: Gemm | None,
    transfer: Transfer | None,
    arms: list[tuple[bool, bool, Setting]],
) -> Group:
    """Arms ``(with GEMM, with transfer, setting)`` of one GEMM and one transfer."""

    def load() -> None:
        plan = build_plan(transfer.kind, transfer.nbytes, transfer.ranks, "host") if transfer else None
        backend.rig.load(gemm, plan, transfer.direction if transfer else "both")

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
    by_blocks = alone([*COPY_ENGINES, *(Setting(blocks=blocks) for blocks in BLOCKS)])
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
    nbytes = seconds * node.link.cu_gbs * 1e9 * node.ranks / (node.ranks - 1)
    return Transfer(max(1, round(nbytes / 2**20)) * 2**20, kind=kind)


def order(backend: CudaBackend) -> list[Group]:
    """A GEMM beside SM kernels of more and more blocks and beside copy engines: four orders and SMs left free."""
    groups = []
    for gemm in (COMPUTE_BOUND[0], MEMORY_BOUND[0]):
        arms = [(True, False, Setting()), (False, True, Setting())]
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
        if gemm.bound(backend.node.gpu) == "memory":
            more = (8, 16, 32, 48, 64)
            arms += [(True, False, Setting(withheld=sms)) for sms in more]
            arms += [(True, True, Setting(withheld=sms, gemm_first=False, high=True)) for sms in more]
        groups.append(_group(backend, "order", gemm, equal_transfer(backend, gemm), arms))
        # One way at a time: which direction costs the GEMM its bandwidth.
        both = equal_transfer(backend, gemm)
        for way in ("in", "out"):
            arms = [(True, False, Setting()), (False, True, Setting()), (True, True, Setting(gemm_first=False))]
            groups.append(_group(backend, "order", gemm, Transfer(both.nbytes, way), arms))
    return groups


def break_even(backend: CudaBackend) -> list[Group]:
    """Transfers of 4 KiB and more beside a GEMM, by copy engine and by SM kernel, and each alone."""
    how = [Setting(gemm_first=False, high=True), Setting(blocks=32, gemm_first=False, high=True)]
    how += [Setting(blocks=4, withheld=4, gemm_first=False, high=True)]
    groups = []
    for gemm in (SMALL, COMPUTE_BOUND[1]):
        for size in SIZES[:-2]:
            arms = [(True, False, Setting())]
            for setting in how:
                arms += [(False, True, setting), (True, True, setting)]
            groups.append(_group(backend, "break_even", gemm, Transfer(size), arms))
    return groups
