"""Clocks, power, temperature and energy of the GPUs, by NVML: read before and after every timed region.

NVML has all GPUs of the machine in the order of their places, CUDA those that CUDA_VISIBLE_DEVICES shows it, in an
order that CUDA_DEVICE_ORDER changes. So a GPU is asked for by where it sits, never by its number.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, Sequence

from c3lib.cuda.device import Cuda
from c3lib.errors import C3Error
from c3lib.region import Health


@cache
def _nvml() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


@cache
def _handle(pci_bus_id: str) -> Any:
    nvml = _nvml()
    try:
        return nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
    except nvml.NVMLError as error:
        raise C3Error(f"cuda: NVML does not know the GPU at {pci_bus_id}: {error}") from error


def driver_version() -> str:
    """Version of the kernel driver."""
    version = _nvml().nvmlSystemGetDriverVersion()
    return version.decode() if isinstance(version, bytes) else str(version)


class Traffic(NamedTuple):
    """Bytes that a GPU's NVLinks have carried since the driver was loaded: payload, and all with what packets add."""

    sent_nbytes: int
    received_nbytes: int
    sent_raw_nbytes: int
    received_raw_nbytes: int


def read_traffic(cuda: Cuda) -> Traffic:
    """The counters of all NVLinks of a GPU, in steps of 1 KiB. Raises :class:`C3Error` where it does not tell them."""
    nvml, handle = _nvml(), _handle(cuda.pci_bus_id)
    every_link = 0xFFFFFFFF
    names = ("DATA_TX", "DATA_RX", "RAW_TX", "RAW_RX")
    fields = [(getattr(nvml, f"NVML_FI_DEV_NVLINK_THROUGHPUT_{name}"), every_link) for name in names]
    values = nvml.nvmlDeviceGetFieldValues(handle, fields)
    if any(value.nvmlReturn for value in values):
        raise C3Error(f"cuda: GPU {cuda.index} does not tell the traffic of its NVLinks")
    return Traffic(*(int(value.value.ullVal) * 1024 for value in values))


def read_health(cudas: Sequence[Cuda]) -> Health:
    """The state of some GPUs now; NaN for what a GPU does not tell."""
    each = [_read(cuda) for cuda in cudas]
    return Health(
        sm_mhz=min(one.sm_mhz for one in each),
        memory_mhz=min(one.memory_mhz for one in each),
        power_w=sum(one.power_w for one in each),
        temperature_c=max(one.temperature_c for one in each),
        energy_j=sum(one.energy_j for one in each),
    )


def _read(cuda: Cuda) -> Health:
    nvml, handle = _nvml(), _handle(cuda.pci_bus_id)

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
