"""Our kernels, compiled at run time: the copy kernel that stands in for a CU-driven collective, patterns, the hold."""

from __future__ import annotations

from functools import cache
from typing import Any

from c3lib.cuda.device import Cuda, checked, said_clearly

BLOCK = 512
"""Threads of a copy block. 8 loads of 16 bytes each in flight: 64 KiB a block, so 2 blocks cover the host link."""

CODE = r"""
typedef unsigned long long u64;

// The rule of c3lib.transfer.exactness.pattern; a test compares the two.
__device__ u64 mixed(u64 word) {
  word *= 0x9E3779B97F4A7C15ull; word ^= word >> 31;
  word *= 0xD1342543DE82EF95ull; word ^= word >> 31;
  return word;
}
__device__ u64 pattern_word(u64 key, u64 index) { return mixed(key + index) | 0x8080808080808080ull; }
__device__ unsigned char pattern_byte(u64 key, u64 at) { return pattern_word(key, at / 8) >> (8 * (at % 8)); }

extern "C" __global__ void fill(unsigned char* out, u64 nbytes, u64 seed) {
  u64 key = mixed(seed);
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (nbytes + 7) / 8; i += gridDim.x * (u64)blockDim.x) {
    if (8 * i + 8 <= nbytes) ((u64*)out)[i] = pattern_word(key, i);
    else for (u64 at = 8 * i; at < nbytes; ++at) out[at] = pattern_byte(key, at);
  }
}

// Compares got[0, nbytes) with bytes [offset, offset + nbytes) of a pattern; wrong[0] counts, wrong[1] is the first.
extern "C" __global__ void compare(const unsigned char* got, u64 nbytes, u64 seed, u64 offset, u64 base, u64* wrong) {
  u64 key = mixed(seed);
  bool aligned = offset % 8 == 0 && (u64)got % 8 == 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (nbytes + 7) / 8; i += gridDim.x * (u64)blockDim.x) {
    if (aligned && 8 * i + 8 <= nbytes && ((const u64*)got)[i] == pattern_word(key, offset / 8 + i)) continue;
    for (u64 at = 8 * i; at < nbytes && at < 8 * i + 8; ++at)
      if (got[at] != pattern_byte(key, offset + at)) { atomicAdd(wrong, 1ull); atomicMin(wrong + 1, base + at); }
  }
}

struct Chunk { const char* src; char* dst; u64 nbytes; };
__device__ u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }

// Chunks are taken in turn by whichever block is free. told: for each block its SM + 1, its start and its end (ns).
extern "C" __global__ void __launch_bounds__(512)
copy(const Chunk* chunks, unsigned count, unsigned* ticket, u64* told) {
  __shared__ unsigned mine;
  unsigned sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (threadIdx.x == 0) { told[3 * blockIdx.x] = sm + 1; told[3 * blockIdx.x + 1] = now(); }
  for (;;) {
    if (threadIdx.x == 0) mine = atomicAdd(ticket, 1);
    __syncthreads();
    unsigned index = mine;
    __syncthreads();
    if (index >= count) break;
    Chunk c = chunks[index];
    u64 done = 0;
    if (((u64)c.src | (u64)c.dst) % 16 == 0) {
      const uint4* src = (const uint4*)c.src; uint4* dst = (uint4*)c.dst;
      u64 words = c.nbytes / 16, i = threadIdx.x;
      for (; i + 7 * blockDim.x < words; i += 8 * blockDim.x) {
        uint4 kept[8];
        #pragma unroll
        for (int j = 0; j < 8; ++j) kept[j] = src[i + j * blockDim.x];
        #pragma unroll
        for (int j = 0; j < 8; ++j) dst[i + j * blockDim.x] = kept[j];
      }
      for (; i < words; i += blockDim.x) dst[i] = src[i];
      done = 16 * words;
    }
    for (u64 at = done + threadIdx.x; at < c.nbytes; at += blockDim.x) c.dst[at] = c.src[at];
  }
  __syncthreads();
  if (threadIdx.x == 0) told[3 * blockIdx.x + 2] = now();
}

struct Rows { const char* src; char* dst; u64 nbytes, rows, src_pitch, dst_pitch; };

// As copy, of rows that lie apart: each part is `rows` of `nbytes`, their starts a pitch from one another.
extern "C" __global__ void __launch_bounds__(512)
copy_rows(const Rows* parts, unsigned count, unsigned* ticket, u64* told) {
  __shared__ unsigned mine;
  unsigned sm; asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (threadIdx.x == 0) { told[3 * blockIdx.x] = sm + 1; told[3 * blockIdx.x + 1] = now(); }
  for (;;) {
    if (threadIdx.x == 0) mine = atomicAdd(ticket, 1);
    __syncthreads();
    unsigned index = mine;
    __syncthreads();
    if (index >= count) break;
    Rows c = parts[index];
    unsigned step = blockDim.x;
    if (((u64)c.src | (u64)c.dst | c.nbytes | c.src_pitch | c.dst_pitch) % 16 == 0) {
      unsigned width = c.nbytes / 16, words = width * (unsigned)c.rows, i = threadIdx.x;
      for (; i + 7 * step < words; i += 8 * step) {
        uint4 kept[8];
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
          unsigned at = i + j * step;
          kept[j] = *(const uint4*)(c.src + at / width * c.src_pitch + at % width * 16);
        }
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
          unsigned at = i + j * step;
          *(uint4*)(c.dst + at / width * c.dst_pitch + at % width * 16) = kept[j];
        }
      }
      for (; i < words; i += step)
        *(uint4*)(c.dst + i / width * c.dst_pitch + i % width * 16) =
            *(const uint4*)(c.src + i / width * c.src_pitch + i % width * 16);
    } else {
      unsigned width = c.nbytes, words = width * (unsigned)c.rows;
      for (unsigned i = threadIdx.x; i < words; i += step)
        c.dst[i / width * c.dst_pitch + i % width] = c.src[i / width * c.src_pitch + i % width];
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) told[3 * blockIdx.x + 2] = now();
}

// Two blocks an SM with all of its threads and shared memory: no other block fits. Gives up after limit_ns.
extern "C" __global__ void hold(volatile unsigned* released, unsigned* arrived, u64 limit_ns) {
  u64 start = now();
  if (threadIdx.x == 0) {  // one thread polls: a thousand would fill the host link with their reads
    atomicAdd_system(arrived, 1);
    while (!*released && now() - start < limit_ns) __nanosleep(2000);
  }
  __syncthreads();
}

// A wait of a known length on one thread: what a clock must read as long.
extern "C" __global__ void pause(u64 ns) { u64 start = now(); while (now() - start < ns); }
"""


@cache
def kernels(cuda: Cuda) -> dict[str, Any]:
    """The compiled kernels by name."""
    with cuda.current(), said_clearly("compiling the copy kernel"):
        options = cuda.core.ProgramOptions(arch=f"sm_{cuda.device.arch}", std="c++17")
        module = cuda.core.Program(CODE, "c++", options).compile("cubin")
        found = {name: module.get_kernel(name) for name in ("fill", "compare", "copy", "copy_rows", "hold", "pause")}
    attribute = cuda.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    shared = cuda.device.properties.max_shared_memory_per_block_optin
    handle = cuda.driver.CUkernel(int(found["hold"].handle))
    checked(
        cuda,
        cuda.driver.cuKernelSetAttribute(attribute, shared, handle, cuda.device.device_id),
        "asking for all of an SM's shared memory",
    )
    return found


def launch(cuda: Cuda, stream: Any, name: str, grid: int, block: int, *arguments: Any, shared: int = 0) -> None:
    """Launch one of our kernels on a stream of cuda.core."""
    config = cuda.core.LaunchConfig(grid=grid, block=block, shmem_size=shared)
    with cuda.current():
        cuda.core.launch(stream, config, kernels(cuda)[name], *arguments)
