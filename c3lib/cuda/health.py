"""Clocks, power, temperature and energy of the GPU, by NVML: read before and after every timed region."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Health:
    """One reading. ``energy_j`` counts since the driver was loaded and moves in steps of some tens of milliseconds."""

    sm_mhz: float
    memory_mhz: float
    power_w: float
    temperature_c: float
    energy_j: float


@cache
def _handle(index: int) -> tuple[Any, Any]:
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)


def driver_version(index: int = 0) -> str:
    """Version of the kernel driver."""
    nvml, _ = _handle(index)
    version = nvml.nvmlSystemGetDriverVersion()
    return version.decode() if isinstance(version, bytes) else str(version)


def read_health(index: int = 0) -> Health:
    """The GPU's state now; NaN for what this GPU does not tell."""
    nvml, handle = _handle(index)

    def read(call: Any, *arguments: Any) -> float:
        try:
            return float(call(handle, *arguments))
        except nvml.NVMLError:
            return float("nan")

    return Health(
        sm_mhz=read(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        memory_mhz=read(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
        power_w=read(nvml.nvmlDeviceGetPowerUsage) / 1e3,
        temperature_c=read(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        energy_j=read(nvml.nvmlDeviceGetTotalEnergyConsumption) / 1e3,
    )
