"""Clock, power and temperature of the GPUs, as the kernel's driver shows them in sysfs; NaN for what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from c3lib.amd.agents import Gpu
from c3lib.region import Health

SYSFS = Path("/sys/bus/pci/devices")
_NAN = float("nan")


def read_health(gpus: Sequence[Gpu], sysfs: Path = SYSFS) -> Health:
    """The state of some GPUs now: clocks of the slowest, temperature of the hottest, power of all together."""
    each = [_read(sysfs / gpu.pci / "hwmon") for gpu in gpus]
    return Health(
        sm_mhz=min(one["freq1_input"] for one in each) / 1e6,
        memory_mhz=min(one["freq2_input"] for one in each) / 1e6,
        power_w=sum(one["power1"] for one in each) / 1e6,
        temperature_c=max(one["temp2_input"] for one in each) / 1e3,  # of the junction
        energy_j=_NAN,
    )


def unknown() -> Health:
    """Where there is no GPU to be asked."""
    return Health(_NAN, _NAN, _NAN, _NAN, _NAN)


def _read(folder: Path) -> dict[str, float]:
    values = {name: _number(folder, name) for name in ("freq1_input", "freq2_input", "temp2_input")}
    average = _number(folder, "power1_average")
    return {**values, "power1": average if average == average else _number(folder, "power1_input")}


def _number(folder: Path, name: str) -> float:
    for path in sorted(folder.glob(f"*/{name}")):
        try:
            return float(path.read_text())
        except (OSError, ValueError):
            continue
    return _NAN
