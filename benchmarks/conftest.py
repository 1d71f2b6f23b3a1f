"""Benchmarks run on one core, so that their numbers mean the same on any machine: ``make bench``."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Bind the process to one of its cores, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
