"""What the layers without an AMD GPU prove and what not, said at the end of every run that selects one of them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

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
}


def layer_of(nodeid: str) -> str | None:
    """``L0``, ``L1`` or ``L2`` by the name of the test's file, ``tests/amd/test_l1_faults.py``."""
    found = re.search(r"amd/test_(l\d)_", nodeid)
    return found[1].upper() if found else None


def ran_and_why_not(reports: Iterable[Any]) -> dict[str, tuple[int, set[str]]]:
    """For each layer how many tests ran, and the reasons why others did not."""
    counts: dict[str, tuple[int, set[str]]] = {layer: (0, set()) for layer in PROVES}
    for report in reports:
        layer = layer_of(getattr(report, "nodeid", ""))
        if layer in counts:
            ran, reasons = counts[layer]
            if not report.skipped:
                ran += 1
            elif report.longrepr:
                reasons.add(re.sub("^Skipped: ", "", report.longrepr[2]))
            counts[layer] = ran, reasons
    return counts


def say(write_line: Callable[[str], None], counts: dict[str, tuple[int, set[str]]]) -> None:
    """Print it; nothing where no layer was selected."""
    if not any(ran or reasons for ran, reasons in counts.values()):
        return
    write_line("AMD layers: no AMD GPU took part, and nothing they show is a measurement")
    for layer, (ran, reasons) in counts.items():
        why = "; ".join(sorted(reasons)) or "no test selected"
        proves, not_proved = PROVES[layer]
        said = f"{ran} run. Proves: {proves}. Does not prove: {not_proved}." if ran else f"NOT RUN ({why})"
        if ran and reasons:
            said += f" In part not run: {why}"
        write_line(textwrap.fill(said, 118, initial_indent=f"  {layer}  ", subsequent_indent=" " * 6))
