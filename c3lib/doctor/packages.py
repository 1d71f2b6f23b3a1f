"""The packages that measuring on a vendor's GPUs needs, and whose GPUs torch is built for; none of them is loaded."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from c3lib.doctor.finding import Line

PACKAGES = {
    "nvidia": ("torch", "cuda-core", "cuda-bindings", "nvidia-ml-py"),
    "amd": ("torch", "hip-python"),
}
"""Distributions that measuring on a vendor's GPUs needs."""

_BUILDS = {"cuda": "nvidia", "hip": "amd"}


def versions(vendor: str) -> dict[str, str | None]:
    """Versions of the distributions that a vendor's GPUs need, None for those that are not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES.get(vendor, PACKAGES["nvidia"]):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def torch_vendor() -> str:
    """The vendor whose GPUs torch is built for, by its own file ``version.py``; empty for a CPU's, or without torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    built = re.search(r"^(cuda|hip)\b[^=\n]*= *['\"]\w", text, re.MULTILINE)  # of the two, one is not None
    return _BUILDS[built[1]] if built else ""


def wrong(vendor: str) -> list[str]:
    """What of the packages is missing or built for something else, one sentence each; empty where all are right."""
    found, said = versions(vendor), []
    if missing := [name for name, there in found.items() if there is None]:
        said.append(
            f"packages are missing: {', '.join(missing)}; `make test` sets them up, or `pip install -e '.[gpu]'` here"
        )
    if (torch := found.get("torch")) and torch_vendor() != vendor:
        said.append(f"torch {torch} is not built for {vendor.upper()} GPUs")
    return said


def lines(vendor: str) -> list[Line]:
    """The packages that measuring needs, with their versions, and what is wrong with them."""
    have = ", ".join(f"{name} {there}" for name, there in versions(vendor).items() if there)
    said = [Line("packages", "ok", have)] if have else []
    return said + [Line("packages", "no", sentence) for sentence in wrong(vendor)]
