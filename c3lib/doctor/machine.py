"""What the operating system shows of a machine's GPUs before any driver is called: files, and nothing that can hang."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from c3lib.doctor.finding import Line

_PCI_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
_PCI_CLASSES = ("0x03", "0x12")  # display controllers and processing accelerators
_CONTROL = {"nvidia": "dev/nvidiactl", "amd": "dev/kfd"}
_FILES = {"nvidia": ("dev", r"nvidia\d+"), "amd": ("dev/dri", r"render\w+")}  # one for each GPU


@dataclass(frozen=True)
class Machine:
    """``on_bus``: GPUs that stand on the PCI bus, by vendor. ``driver``: whether a vendor's kernel driver is there.

    ``closed``: device files that are there but may not be opened for reading and writing; ``shut``: so many of them
    that no GPU can be reached.
    """

    on_bus: dict[str, int]
    driver: dict[str, bool]
    closed: dict[str, tuple[str, ...]]
    shut: dict[str, bool]

    @property
    def vendor(self) -> str:
        """Whose GPUs to look at: a driver's that is there, else the bus says; empty for none."""
        for found in (self.driver, self.on_bus):
            for vendor in _CONTROL:
                if found.get(vendor):
                    return vendor
        return ""


def look(root: Path = Path("/")) -> Machine:
    """The machine's device files and PCI bus below ``root``."""
    on_bus: dict[str, int] = dict.fromkeys(_CONTROL, 0)
    for device in _entries(root / "sys/bus/pci/devices"):
        vendor = _PCI_VENDORS.get(_text(device / "vendor"))
        if vendor and _text(device / "class").startswith(_PCI_CLASSES):
            on_bus[vendor] += 1
    driver = {vendor: (root / control).exists() for vendor, control in _CONTROL.items()}
    closed, shut = {}, {}
    for vendor, control in _CONTROL.items():
        folder, pattern = _FILES[vendor]
        files = [path for path in _entries(root / folder) if re.fullmatch(pattern, path.name)]
        closed[vendor] = tuple(str(path) for path in (root / control, *files) if path.exists() and not _opens(path))
        shut[vendor] = str(root / control) in closed[vendor] or (bool(files) and not any(map(_opens, files)))
    return Machine(on_bus, driver, closed, shut)


def _opens(path: Path) -> bool:
    return os.access(path, os.R_OK | os.W_OK)


def _entries(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(folder.iterdir())
    except OSError:
        return


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def lines(machine: Machine) -> list[Line]:
    """What there is: the system, then one sentence for each thing that is in the way of a driver."""
    said = [Line("system", "ok", f"{platform.system()} {platform.release()}, Python {platform.python_version()}")]
    if reason := blocked(machine):
        said.append(Line("GPUs", "no", reason))
    elif machine.closed[machine.vendor]:
        said.append(Line("GPUs", "note", _denied(machine, machine.vendor)))
    return said


def blocked(machine: Machine) -> str:
    """Why no GPU can be reached: one sentence, empty where nothing is in the way so far."""
    vendor = machine.vendor
    if not vendor:
        return "no GPU here: none on the PCI bus, and neither /dev/nvidiactl nor /dev/kfd"
    name, count = {"nvidia": "NVIDIA", "amd": "AMD"}[vendor], machine.on_bus[vendor]
    if not machine.driver[vendor]:
        gpus = f"{count} {name} GPU{'s stand' if count > 1 else ' stands'} on the PCI bus"
        if vendor == "nvidia":
            return f"{gpus}, but there is no /dev/nvidiactl: its driver is not loaded, or a container was not given it"
        return f"{gpus}, but there is no /dev/kfd: load the amdgpu driver, or give a container /dev/kfd and /dev/dri"
    return _denied(machine, vendor) if machine.shut[vendor] else ""


def _denied(machine: Machine, vendor: str) -> str:
    closed, groups = machine.closed[vendor], " (groups render and video)" if vendor == "amd" else ""
    more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
    return f"no permission to open {closed[0]}{more}: ask for access to the {vendor.upper()} devices{groups}"
