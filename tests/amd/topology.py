"""The topology that the model serves in place of the kernel's: N modelled GPUs of one hive and one CPU node.

Values are like an MI300X where the runtime looks at them; it is not a dump of a machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GIB = 2**30
PCIE, XGMI = 2, 11  # link types in the kernel's files
CPU_MEMORY, GPU_MEMORY = 0, 1  # heap types
FIRST_RENDER_NODE = 128
FIRST_SIMD = 1 << 31


@dataclass(frozen=True)
class Topology:
    """``host_engines`` face the host, ``peer_engines`` the other GPUs. With ``one_engine_a_link`` the kernel names one
    engine for each link, as on bare metal with a whole hive; else any engine of the pool, as in a virtual machine."""

    gpus: int = 8
    host_engines: int = 2
    peer_engines: int = 14
    one_engine_a_link: bool = True

    def write(self, folder: Path) -> Path:
        """Write the tree of small files below ``folder``, which must not exist yet."""
        _put(folder / "generation_id", "1\n")
        _put(folder / "system_properties", _lines(platform_oem=0, platform_id=0, platform_rev=0))
        for node in range(self.gpus + 1):
            self._node(folder / "nodes" / str(node), node)
        return folder

    def _node(self, folder: Path, node: int) -> None:
        gpu = node - 1  # node 0 is the CPU
        _put(folder / "gpu_id", f"{1000 + node if node else 0}\n")
        _put(folder / "name", "ip discovery\n" if node else "\n")
        shared = {"mem_banks_count": 1, "io_links_count": self.gpus, "p2p_links_count": 0}
        _put(folder / "properties", _lines(**shared, **(self._gpu(gpu) if node else CPU)))
        heap = (GPU_MEMORY, 192 * GIB) if node else (CPU_MEMORY, 16 * GIB)
        bank = {"heap_type": heap[0], "size_in_bytes": heap[1], "flags": 0, "width": 8192, "mem_clk_max": 1300}
        _put(folder / "mem_banks/0/properties", _lines(**bank))
        for index, (level, kib) in enumerate([(1, 32), (2, 4096), (3, 262144)] if node else []):
            cache = {"processor_id_low": FIRST_SIMD + 2048 * node, "level": level, "size": kib, "cache_line_size": 128}
            cache |= {"cache_lines_per_tag": 1, "association": 16, "latency": 0, "type": 9}
            _put(folder / f"caches/{index}/properties", _lines(**cache) + "sibling_map " + ",".join("1" * 64) + "\n")
        for index, other in enumerate(peer for peer in range(self.gpus + 1) if peer != node):
            _put(folder / f"io_links/{index}/properties", self._link(node, other))

    def _gpu(self, gpu: int) -> dict[str, int]:
        return {
            "cpu_cores_count": 0, "cpu_core_id_base": 0, "simd_count": 1216,
            "simd_id_base": FIRST_SIMD + 2048 * (gpu + 1), "caches_count": 3, "max_waves_per_simd": 8,
            "lds_size_in_kb": 64, "gds_size_in_kb": 0, "num_gws": 64, "wave_front_size": 64, "array_count": 32,
            "simd_arrays_per_engine": 1, "cu_per_simd_array": 10, "simd_per_cu": 4, "max_slots_scratch_cu": 32,
            "gfx_target_version": 90402, "vendor_id": 4098,
            "device_id": 29857, "location_id": 0x1500 + 0x1000 * gpu, "domain": 0,
            "drm_render_minor": FIRST_RENDER_NODE + gpu, "hive_id": 1, "num_sdma_engines": self.host_engines,
            "num_sdma_xgmi_engines": self.peer_engines, "num_sdma_queues_per_engine": 8, "num_cp_queues": 24,
            "max_engine_clk_fcompute": 2100, "max_engine_clk_ccompute": 3000, "local_mem_size": 0, "fw_version": 150,
            "capability": 0x2002, "debug_prop": 0, "sdma_fw_version": 19, "unique_id": 1000 + gpu, "num_xcc": 8,
        }  # fmt: skip

    def _link(self, node: int, other: int) -> str:
        between_gpus = node > 0 and other > 0
        engines = 0
        if between_gpus:
            # Our own pairing, not the kernel's: each GPU meets each peer on another even engine.
            one = 1 << 2 * ((node - 1) ^ (other - 1))
            pool = ((1 << self.peer_engines) - 1) << self.host_engines
            engines = one & pool if self.one_engine_a_link else pool
        bandwidth = 64000
        return _lines(
            type=XGMI if between_gpus else PCIE, version_major=0, version_minor=0, node_from=node, node_to=other,
            weight=15 if between_gpus else 20, min_latency=0, max_latency=0, min_bandwidth=bandwidth,
            max_bandwidth=bandwidth, recommended_transfer_size=0, recommended_sdma_engine_id_mask=engines, flags=1,
        )  # fmt: skip


CPU = {
    "cpu_cores_count": 2, "cpu_core_id_base": 0, "simd_count": 0, "simd_id_base": 0, "caches_count": 0,
    "max_engine_clk_ccompute": 3000,
}  # fmt: skip


def _lines(**values: int) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
