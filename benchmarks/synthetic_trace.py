"""A synthetic training trace of any size with the events of torch.profiler: ``synthetic_trace.py OUT SIZE_MB``.

One step is a layer: CPU operators with their shapes, launches, a GEMM, an elementwise kernel and, on another stream,
an all-gather that runs beside every second GEMM, which then takes 1.25 times as long. The answers are known. Events are
written without line breaks, so that a file has more of them than a profiler's of the same size.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

GEMM_US, BESIDE_US, OTHER_US, GATHER_US, STEP_US = 400.0, 500.0, 100.0, 300.0, 1000.0
GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
OTHER = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _kernel(name: str, ts: float, dur: float, stream: int, number: int, grid: list[int], **more: object) -> dict:
    args = {
        "External id": number, "queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": number,
        "registers per thread": 168, "shared memory": 213_000, "blocks per SM": 1.0, "warps per SM": 12.0,
        "grid": grid, "block": [384, 1, 1], "est. achieved occupancy %": 19, **more,
    }  # fmt: skip
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def _cpu(name: str, ts: float, number: int, dims: list[list[int]]) -> dict:
    args = {
        "External id": number, "Sequence number": number, "Fwd thread id": 0, "Record function id": 0,
        "Concrete Inputs": [""] * len(dims), "Input type": ["c10::BFloat16"] * len(dims),
        "Input Strides": [[size[1], 1] for size in dims], "Input Dims": dims, "Ev Idx": number,
    }  # fmt: skip
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 77, "tid": 77, "ts": ts, "dur": 20.25, "args": args}


def _launch(ts: float, number: int) -> dict:
    args = {"External id": number, "cbid": 211, "correlation": number}
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": 77, "ts": ts, "dur": 4.5,
        "args": args,
    }  # fmt: skip


def step(number: int) -> list[dict]:
    """The events of one layer; the even ones have an all-gather beside their GEMM."""
    start, first = 5_143_125_858_081.997 + number * STEP_US, 4 * number + 1
    beside = number % 2 == 0
    events = [
        _cpu("aten::linear", start - 90, first + 3, [[4096, 8192], [8192, 8192]]),
        _cpu("aten::mm", start - 80, first, [[4096, 8192], [8192, 8192]]),
        _launch(start - 70, first),
        _cpu("aten::add_", start - 50, first + 1, [[4096, 8192], [4096, 8192]]),
        _launch(start - 45, first + 1),
        _kernel(GEMM, start, BESIDE_US if beside else GEMM_US, 7, first, [132, 1, 1]),
        _kernel(OTHER, start + 600, OTHER_US, 7, first + 1, [65536, 1, 1]),
    ]
    if beside:
        told = {
            "Collective name": "_allgather_base", "In msg nelems": 29_360_128, "Out msg nelems": 234_881_024,
            "Group size": 8, "dtype": "BFloat16",
        }  # fmt: skip
        events.append(_kernel(GATHER, start + 350, GATHER_US, 13, first + 2, [24, 1, 1], **told))
    return events


def write(path: Path, nbytes: int) -> int:
    """Write at least ``nbytes`` of text (gzipped where the name ends in .gz); how many steps they are."""
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as file:
        size = file.write(
            '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],\n"traceEvents": [\n'
        )
        steps = 0
        while size < nbytes or steps % 2:
            texts = map(json.dumps, step(steps))
            size += file.write((",\n" if steps else "") + ",\n".join(texts))
            steps += 1
        file.write('\n], "traceName": "synthetic"}\n')
    return steps


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), int(float(sys.argv[2]) * 1e6)), "steps")
