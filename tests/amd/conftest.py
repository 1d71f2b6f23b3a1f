"""Fixtures of the AMD layers: AMD's header, our double of its library, the real library over the model.

Nothing here needs an AMD GPU, and nothing that is seen here is a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import build_double
import get_runtime
import pytest
from cases import Case
from get_runtime import NotObtained, header_folder
from layers import Layer, this_python
from run_real import Real, clean_environment, real

HERE = Path(__file__).parent
T = TypeVar("T")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are of the tier ``amd``."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("amd")


def _or_not_run(layer: str, obtain: Callable[[], T]) -> T:
    """What ``obtain`` gives; where it cannot be had, a skip that says why and which command would get it."""
    try:
        return obtain()
    except NotObtained as error:
        pytest.skip(f"{layer} not run: {error}; to obtain it: {get_runtime.COMMAND}")


@pytest.fixture(scope="session")
def hsa_include() -> Path:
    """Folder to compile with, -I: it has AMD's ``hsa/hsa.h``."""
    return _or_not_run("L0 and L1", lambda: header_folder(get_runtime.runtime_root()))


@pytest.fixture(scope="session")
def double(hsa_include: Path) -> Path:
    """Our double of ``libhsa-runtime64.so.1``, compiled against AMD's header."""
    return _or_not_run("L1", build_double.double)


@pytest.fixture(scope="session")
def real_runtime() -> Real:
    """AMD's own runtime and the model below it."""
    return _or_not_run("L2", real)


@pytest.fixture(scope="session")
def l1(double: Path) -> Layer:
    """The layer of the double, for scenarios."""

    def start(case: Case, folder: Path) -> tuple[list[str], Mapping[str, str]]:
        wanted = case.topology
        ours = {
            "C3_DOUBLE_GPUS": str(wanted.gpus),
            "C3_DOUBLE_HOST_ENGINES": str(wanted.host_engines),
            "C3_DOUBLE_PEER_ENGINES": str(wanted.peer_engines),
        }
        if case.sdma_queues is not None:
            ours["C3_DOUBLE_QUEUES"] = str(case.sdma_queues)
        return this_python(), clean_environment() | ours

    return Layer("L1", double, start)


@pytest.fixture(scope="session")
def l2(real_runtime: Real) -> Layer:
    """The layer of the real library, for scenarios."""

    def start(case: Case, folder: Path) -> tuple[list[str], Mapping[str, str]]:
        return real_runtime.command(), real_runtime.environment(folder, case.topology, case.sdma_queues)

    return Layer("L2", real_runtime.library, start)
