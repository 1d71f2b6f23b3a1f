"""What AMD nodes measure in another way than NVIDIA's: each kernel alone, by CUs, by who moves the bytes, by size."""

from __future__ import annotations

from functools import partial
from typing import Any

from c3lib.amd.setting import Setting
from c3lib.backends.hip import LIBRARY, HipBackend
from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES, Node
from c3lib.measure.regions import COMPUTE_BOUND, MEMORY_BOUND, SIZES, Transfer, region_row
from c3lib.measure.rounds import Group
from c3lib.model.contention import split_sweep
from c3lib.transfer.builders import build_plan
from c3lib.workload import Gemm

EXPERIMENTS = ("isolated", "suite")
"""What an AMD node has; the others rest on counters and calls of NVIDIA's."""

LARGE_NBYTES = 2**30


def open_backend(node: Node) -> HipBackend:
    """The backend, on real hardware; raises :class:`C3Error` where it is no measurement, or a control fails."""
    backend = HipBackend(node)
    if backend.evidence != "measured":
        raise C3Error(
            f"c3 measure: {'; '.join(backend.rig.runtime.stand_ins)}: what runs here is {backend.evidence}, so "
            "nothing is written; to see it run, use c3 run --backend hip --suite no_gpu"
        )
    backend.about()  # its controls: better before hours of measuring than after
    return backend


def isolated(backend: HipBackend) -> list[Group]:
    """GEMMs on fewer and fewer CUs; transfers by SDMA engines and by RCCL on CUs of its own, and by size."""
    withheld = [Setting(withheld=count) for count in split_sweep(backend.node)]
    groups = [_group(backend, gemm, None, withheld) for gemm in (*COMPUTE_BOUND, *MEMORY_BOUND)]
    by_cus = [Setting(), *(Setting(LIBRARY, withheld=count) for count in split_sweep(backend.node))]
    groups += [_group(backend, None, Transfer(LARGE_NBYTES, kind=kind), by_cus) for kind in COLLECTIVES]
    both = [Setting(), Setting(LIBRARY)]
    ranks = backend.node.ranks
    return groups + [
        _group(backend, None, Transfer(ranks * size, kind=kind), both)
        for kind in COLLECTIVES
        for size in SIZES
        if ranks * size < LARGE_NBYTES
    ]


def _group(backend: HipBackend, gemm: Gemm | None, transfer: Transfer | None, settings: list[Setting]) -> Group:
    node = backend.node

    def load() -> None:
        plan = build_plan(transfer.kind, transfer.nbytes, node.ranks, node.topology) if transfer else None
        backend.rig.load(gemm, plan)

    def arm(how: Setting, turn: int) -> list[dict[str, Any]]:
        region = backend.rig.run(how, gemm=gemm is not None, transfer=transfer is not None)
        return [region_row(backend, "isolated", gemm, transfer, how, region, turn)]

    return Group(f"isolated {gemm or ''} {transfer or ''}", load, {str(how): partial(arm, how) for how in settings})
