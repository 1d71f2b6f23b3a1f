"""What crosses the links: the GPUs' own NVLink counters over many runs of a transfer, by transport.

The counters are of the hardware and know nothing of who asked for the bytes, so they prove a path independently: the
payload must be what the plan sends, and what the links carry on top of it is the price of a protocol.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from c3lib.backends.cuda import CudaBackend, describe
from c3lib.cuda.health import Traffic, read_traffic
from c3lib.cuda.nccl import VARIANTS
from c3lib.cuda.setting import Setting
from c3lib.errors import C3Error
from c3lib.hardware import COLLECTIVES
from c3lib.measure.regions import COMPUTE_BOUND, NVLINK_NBYTES
from c3lib.measure.rounds import Group
from c3lib.transfer.builders import build_plan

RUNS = 20
PAYLOAD = (0.99, 1.01)
"""Least and most of the plan's bytes that the counters may have seen each way, as a share, or nothing is proved; what a
library sends beside them was under 0.0002, and one transfer of the runs more or less is 0.05."""


def link_groups(backend: CudaBackend) -> list[Group]:
    """Each transport alone and beside a GEMM, ``RUNS`` transfers between two readings of the counters."""
    groups = []
    for kind in COLLECTIVES:
        movers = [Setting(), Setting(batched=False), Setting(blocks=8), Setting(blocks=32)]
        movers += [
            Setting(library=name, in_place=in_place)
            for name in VARIANTS
            for in_place in (True, False)
            if not (name == "nccl_zero_cta" and in_place and kind == "all-to-all")
        ]
        backend.control(movers)
        plan = build_plan(kind, NVLINK_NBYTES, backend.node.ranks, backend.node.topology)
        load = partial(backend.rig.load, COMPUTE_BOUND[0], plan, registered=True)
        arms = {f"{gemm} {how}": partial(_arm, backend, kind, how, gemm) for how in movers for gemm in (False, True)}
        groups.append(Group(f"links {kind} {NVLINK_NBYTES} {COMPUTE_BOUND[0]} {RUNS} runs", load, arms))
    return groups


def _arm(backend: CudaBackend, kind: str, how: Setting, gemm: bool, repetition: int) -> list[dict[str, Any]]:
    rig = backend.rig
    region = rig.run(how, gemm=gemm)  # warm, and the bytes of one run checked
    mover, (gemm_streams, streams) = rig.transport(how), rig.streams(how)
    before, start = read_traffic(rig.cuda), time.perf_counter()
    for turn in range(RUNS):
        if gemm:
            rig.enqueue_gemm(gemm_streams, turn, how)
        mover.restart(streams)
        mover.enqueue(streams)
    rig.synchronize()
    seconds, after = time.perf_counter() - start, read_traffic(rig.cuda)
    pairs = rig.buffers.plan.nbytes_per_pair
    sent, received = (int(line.sum() - pairs[0, 0]) for line in (pairs[0], pairs[:, 0]))
    moved = Traffic(*(one - other for one, other in zip(after, before, strict=True)))
    require_payload(how.transport, "sent", RUNS * sent, moved.sent_nbytes)
    require_payload(how.transport, "received", RUNS * received, moved.received_nbytes)
    return [
        {
            "node": backend.node.name,
            "evidence": backend.evidence,
            "gemm": str(COMPUTE_BOUND[0]) if gemm else "none",
            "collective": kind,
            "total_bytes": NVLINK_NBYTES,
            **describe(how, region),
            "in_place": how.in_place,
            "repetition": repetition,
            "runs": RUNS,
            "seconds_per_run": seconds / RUNS,
            "plan_bytes": sent,
            "sent_bytes": moved.sent_nbytes / RUNS,
            "received_bytes": moved.received_nbytes / RUNS,
            "sent_raw_bytes": moved.sent_raw_nbytes / RUNS,
            "received_raw_bytes": moved.received_raw_nbytes / RUNS,
            "verified": region.verified,
            "path": region.path,
        }
    ]


def require_payload(transport: str, way: str, planned_nbytes: int, seen_nbytes: int) -> None:
    """Raises :class:`C3Error` where the counters saw another number of bytes than :data:`PAYLOAD` allows."""
    least, most = (share * planned_nbytes for share in PAYLOAD)
    if not least <= seen_nbytes <= most:
        raise C3Error(
            f"links: GPU 0 should have {way} {planned_nbytes} bytes over NVLink by {transport}, its counters saw "
            f"{seen_nbytes}; nothing is proved"
        )
