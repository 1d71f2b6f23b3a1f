"""How many processes of this machine can work at a time."""

import os


def cores() -> int:
    """Cores that this process may use, which a container or a job of a cluster may limit; at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
