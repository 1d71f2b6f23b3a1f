"""What the layers without an AMD GPU prove and what not, said at the end of every run that selects one of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

LIBRARY = "library driven"
"""The property of a test's report that names the library it drove, by its build string."""

PROVES = {
    "L0": (
        "our table of AMD's functions is that of AMD's header: names, arity, widths, layout, constants",
        "how AMD's library behaves",
    ),
    "L1": (
        "on our double of the library, plans move every byte, and hangs, corruption, dropped copies and errors are "
        "noticed, named and bounded in time",
        "that AMD's library behaves so; L2 runs the same scenarios",
    ),
    "L2": (
        "AMD's own user-space library (ROCr), unmodified, does on chosen SDMA engines what our code takes it to do",
        "anything of a GPU: bandwidth, latency, overlap, coherence, kernels, real faults; the driver and the engines "
        "below the library are our model",
    ),
    "HIP": (
        "on stand-ins for HIP, the words of masks, the order in which work is queued, how records are read, and the "
        "sentences of errors",
        "that HIP, RCCL or torch for ROCm do so",
    ),
}
NOT_BUILT = "L3  not built; HIP is stand-ins only (test_hip_parts, test_hip_mask)"
"""What L3 would be: AMD's own HIP runtime over the model."""


@dataclass
class Layer:
    """How many tests of a layer ran, the reasons why others did not, and the libraries that they drove."""

    ran: int = 0
    reasons: set[str] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)

    @property
    def could_not_be_had(self) -> bool:
        """Nothing of it ran, or something that it needs could not be obtained."""
        return not self.ran or any(" not run: " in reason for reason in self.reasons)


def layer_of(nodeid: str) -> str | None:
    """``L0``, ``L1``, ``L2`` or ``HIP`` by the name of the test's file, ``tests/amd/test_l1_faults.py``."""
    found = re.search(r"amd/test_(l\d|hip)_", nodeid)
    return found[1].upper() if found else None


def ran_and_why_not(reports: Iterable[Any]) -> dict[str, Layer]:
    """For each layer what ran, of what, and why the rest did not."""
    layers = {name: Layer() for name in PROVES}
    for report in reports:
        layer = layers.get(layer_of(getattr(report, "nodeid", "")) or "")
        if layer is None:
            continue
        properties = getattr(report, "user_properties", None)  # None: a file that could not be imported ran nothing
        if not report.skipped and properties is not None:
            layer.ran += 1
            layer.libraries |= {value for name, value in properties if name == LIBRARY}
        elif report.skipped and report.longrepr:
            layer.reasons.add(re.sub("^Skipped: ", "", report.longrepr[2]))
    return layers


def say(write_line: Callable[[str], None], layers: dict[str, Layer]) -> None:
    """Print it; nothing where no layer was selected."""
    if not any(layer.ran or layer.reasons for layer in layers.values()):
        return
    write_line("AMD layers: no AMD GPU took part, and nothing they show is a measurement")
    for name, layer in layers.items():
        write_line(textwrap.fill(_line(name, layer), 118, initial_indent=f"  {name:<4}", subsequent_indent=" " * 6))
    write_line(f"  {NOT_BUILT}")


def _line(name: str, layer: Layer) -> str:
    why = "; ".join(sorted(layer.reasons)) or "no test selected"
    if not layer.ran:
        return f"NOT RUN ({why})"
    proves, not_proved = PROVES[name]
    on = f" on {'; '.join(sorted(layer.libraries))}" if layer.libraries else ""
    if layer.could_not_be_had:
        return f"{layer.ran} run{on}, IN PART NOT RUN ({why}). Only all of it proves: {proves}."
    rest = f" In part not run: {why}" if layer.reasons else ""
    return f"{layer.ran} run{on}. Proves: {proves}. Does not prove: {not_proved}.{rest}"
