"""Fixtures of the AMD layers: AMD's header, our double of its library, the real library over the model.

Nothing here needs an AMD GPU, and nothing that is seen here is a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

import amd_layers
import build_double
import build_model
import get_runtime
import pytest
from cases import Case
from get_runtime import NotObtained, header_folder
from layers import Layer, this_python
from run_real import Real, clean_environment, real

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are of the tier ``amd``."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("amd")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """A fixture that cannot be had is a skip which says why."""
    return (yield from _or_not_run(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """So is what a test itself asks for: a header to be read, another build of the double."""
    return (yield from _or_not_run(item))


def _or_not_run(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    except NotObtained as error:
        how = "" if build_model.NEEDS in str(error) else f"; to obtain it: {get_runtime.COMMAND}"
        pytest.skip(f"{amd_layers.layer_of(item.nodeid) or item.path.stem} not run: {error}{how}")


@pytest.fixture(scope="session")
def hsa_include() -> Path:
    """Folder to compile with, -I: it has AMD's ``hsa/hsa.h``."""
    return header_folder(get_runtime.runtime_root())


@pytest.fixture(scope="session")
def double(hsa_include: Path) -> Path:
    """Our double of ``libhsa-runtime64.so.1``, compiled against AMD's header."""
    return build_double.double()


@pytest.fixture(scope="session")
def real_runtime() -> Real:
    """AMD's own runtime and the model below it."""
    return real()


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
            ours["C3_DOUBLE_SDMA_QUEUES"] = str(case.sdma_queues)
        return this_python(), clean_environment() | ours

    return Layer("L1", double, start)


@pytest.fixture
def l2(real_runtime: Real, record_property: Callable[[str, object], None]) -> Layer:
    """The layer of the real library, for scenarios; the report names the build that was driven."""

    def start(case: Case, folder: Path) -> tuple[list[str], Mapping[str, str]]:
        return real_runtime.command(), real_runtime.environment(folder, case.topology, case.sdma_queues)

    def driven(build: str) -> None:
        package = get_runtime.versions(real_runtime.root)["libhsa-runtime64-1"]
        record_property(amd_layers.LIBRARY, f"libhsa-runtime64 {build} (package libhsa-runtime64-1 {package})")

    return Layer("L2", real_runtime.library, start, driven)
