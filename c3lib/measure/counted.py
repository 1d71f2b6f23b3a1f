"""What the profiler runs: each arm of the premise test as one range of hardware counters.

``python -m c3lib.measure.counted NODE OUT``: writes to OUT one JSON line for each range, in the order of the ranges.
The profiler replays the whole program for each pass over its counters, so nothing here depends on chance.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import Any, Iterator

from c3lib.backends.cuda import CudaBackend
from c3lib.cuda.setting import Setting
from c3lib.errors import C3Error
from c3lib.files import write_text
from c3lib.hardware import load_node
from c3lib.measure.regions import COMPUTE_BOUND, MEMORY_BOUND, equal_transfer
from c3lib.transfer.builders import build_plan

GEMMS = (COMPUTE_BOUND[0], MEMORY_BOUND[0])
BLOCKS = (4, 16, 32, 64)
REPEATS = 5
EVICT_NBYTES = 2**28
"""Written before each range, several times the L2: nothing of what is counted is there by accident."""


def arms() -> list[tuple[str, bool, Setting | None]]:
    """``(name, with GEMM, setting of the transfer or None)``."""
    movers = [("copy_engine", Setting(gemm_first=False, high=True))]
    movers += [(f"sm_kernel:{blocks}", Setting(blocks=blocks, gemm_first=False, high=True)) for blocks in BLOCKS]
    found: list[tuple[str, bool, Setting | None]] = [("gemm", True, None)]
    return found + [(f"gemm+{name}", True, how) for name, how in movers] + [(name, False, how) for name, how in movers]


def run(backend: CudaBackend) -> list[dict[str, Any]]:
    """Every arm of every GEMM, ``REPEATS`` times; returns what each range was."""
    cuda, told = backend.rig.cuda, []
    scratch = cuda.torch.empty(EVICT_NBYTES, dtype=cuda.torch.uint8, device="cuda")

    @contextmanager
    def counted() -> Iterator[None]:
        scratch.fill_(0)
        cuda.torch.cuda.synchronize()
        cuda.torch.cuda.cudart().cudaProfilerStart()
        try:
            yield
            cuda.torch.cuda.synchronize()
        finally:
            cuda.torch.cuda.cudart().cudaProfilerStop()

    backend.control(how for _, _, how in arms() if how)
    for gemm in GEMMS:
        # An all-to-all sends every byte once: what it reads of device memory is its payload, cached or not.
        transfer = equal_transfer(backend, gemm, "all-to-all")
        backend.rig.load(gemm, build_plan(transfer.kind, transfer.nbytes, transfer.ranks, "host"))
        for repetition in range(REPEATS):
            for name, has_gemm, how in arms():
                region = backend.rig.run(how or Setting(), gemm=has_gemm, transfer=how is not None, around=counted())
                if not region.verified:
                    raise C3Error(f"premise: {name} beside {gemm} failed its check; nothing is counted")
                if has_gemm and how and not region.times.overlap_s > 0:
                    raise C3Error(f"premise: {name} did not run beside {gemm}; nothing would be proved")
                told.append(
                    {
                        "node": backend.node.name,
                        "evidence": backend.evidence,
                        "gemm": str(gemm),
                        "bound": gemm.bound(backend.node.gpu),
                        "arm": name,
                        "transport": how.transport if how else "none",
                        "blocks": how.blocks if how else 0,
                        "link_bytes": backend.rig.buffers.link_nbytes if how else 0,
                        "repetition": repetition,
                        "verified": region.verified,
                        "path": region.path,
                    }
                )
    return told


if __name__ == "__main__":
    _node, _out = sys.argv[1:]
    write_text(_out, "".join(json.dumps(row) + "\n" for row in run(CudaBackend(load_node(_node)))))
