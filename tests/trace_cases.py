"""Traces by hand, in the form that torch.profiler writes on CUDA and on ROCm."""

import gzip
import json

GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
CUTLASS = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int> > >(Params)"
CIJK = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
RCCL = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
PEER = "Memcpy PtoP (Device -> Device)"
HOST = "Memcpy HtoD (Pinned -> Device)"
SENT = {
    "Collective name": "_allgather_base", "In msg nelems": 1024, "Out msg nelems": 8192, "Group size": 8,
    "dtype": "BFloat16",
}  # fmt: skip


def kernel(name, ts, dur, stream=7, device=0, grid=(132, 1, 1), **more):
    """A kernel from ``ts`` on for ``dur`` microseconds."""
    args = {"device": device, "stream": stream, "grid": list(grid), "block": [384, 1, 1], **more}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": stream, "ts": ts, "dur": dur, "args": args}


def copy(name, ts, dur, stream=20, nbytes=4096, **where):
    """A copy; without ``where`` it ran on GPU 0."""
    args = {"stream": stream, "bytes": nbytes, **(where or {"device": 0})}
    return {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def operator(name, external, dims=None, types=None, **more):
    """A CPU operator, with the shapes of its inputs if they are given."""
    args = {"External id": external, **({"Input Dims": dims, "Input type": types} if dims else {}), **more}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 9, "tid": 9, "ts": 1.5, "dur": 2.25, "args": args}


def write(path, events, **about):
    """A trace of these events."""
    text = json.dumps({"schemaVersion": 1, **about, "traceEvents": events, "traceName": "by hand"}, indent=1)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
