"""L2: what the model saw of a plan, which no library can have made up: packets, bytes, whose engines.

Also what surrounds it: the private runtime leaves the system as it was, and nothing on it counts as hardware.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import get_runtime
import pytest
from cases import SPLITS_COPIES, Case
from layers import Layer
from run_real import Real
from scenarios_of_plans import SPLIT
from scenarios_of_transfers import plans_around_splits
from topology import Topology

PEER_QUEUE = 3  # the kernel interface's number for queues of engines that face peers


def peer_queues(found: dict) -> list[dict]:
    """The model's queues of engines that face peers."""
    return [queue for queue in found["witness"]["queues"] if queue["type"] == PEER_QUEUE]


@pytest.mark.parametrize(("mode", "who"), [("push", 0), ("pull", 1)])
def test_the_engine_that_copies_is_that_of_the_agent_given_as_source(l2: Layer, tmp_path: Path, mode, who) -> None:
    found = l2.run(Case(mode, f"one_{mode}"), tmp_path)
    assert found["facts"] == {"ends": True}
    assert [(queue["gpu"], queue["packets"], queue["nbytes"]) for queue in peer_queues(found)] == [(who, 1, 4096)]


def test_an_all_gather_of_8_ranks_uses_7_engines_of_each_gpu_and_moves_what_the_plan_says(l2: Layer, tmp_path) -> None:
    found = l2.run(Case("all-gather", "one_all_gather"), tmp_path)
    assert found["facts"] == {"all-gather": "exact"}
    engines: Counter[int] = Counter()
    nbytes: Counter[int] = Counter()
    for queue in peer_queues(found):
        engines[queue["gpu"]] += 1
        nbytes[queue["gpu"]] += queue["nbytes"]
    assert engines == dict.fromkeys(range(8), 7)
    assert nbytes == dict.fromkeys(range(8), 8 * 65536)  # seven peers and the copy within the GPU
    assert found["witness"]["kernels"] == 0


@pytest.mark.parametrize(
    ("scenario", "variables", "packets"),
    [
        ("one_of_64_mib", {}, 1),
        ("one_of_64_mib", SPLITS_COPIES, 17),
        ("one_packet", SPLITS_COPIES, 1),
        ("one_packet_and_a_byte", SPLITS_COPIES, 2),
    ],
)
def test_a_copy_is_one_packet_or_where_told_so_several(l2: Layer, tmp_path, scenario, variables, packets: int) -> None:
    found = l2.run(Case(scenario, scenario, variables=variables), tmp_path)
    assert found["facts"] == {"ends": True}
    assert [queue["packets"] for queue in peer_queues(found)] == [packets]


def test_the_backend_s_transport_crosses_splits_where_copies_are_split(l2: Layer, tmp_path: Path) -> None:
    def packets(name: str, variables: dict[str, str]) -> int:
        found = l2.run(Case(name, "transfers_around_splits", variables=variables), tmp_path / name)
        assert list(found["facts"].values()) == ["exact"] * len(plans_around_splits())
        return sum(queue["packets"] for queue in peer_queues(found))

    copies = [copy for plan in plans_around_splits() for copy in plan.copies if copy["src_rank"] != copy["dst_rank"]]
    more = sum(-(-int(copy["nbytes"]) // SPLIT) - 1 for copy in copies)
    assert more > 0
    assert packets("split", SPLITS_COPIES) - packets("whole", {}) == more


def test_amd_s_library_ends_the_process_when_it_is_told_of_a_fault(l2: Layer, tmp_path: Path) -> None:
    """What a forgotten access does on a driver that reports faults, as a real one does: it cannot pass unnoticed."""
    case = Case("fault", "access", variables={"C3_MODEL_REPORTS_FAULTS": "1"})
    with pytest.raises(AssertionError, match="exit status -6") as ended:
        l2.run(case, tmp_path)
    assert "Memory access fault by GPU node-1" in str(ended.value)
    assert "Page not present" in str(ended.value)


def test_the_library_is_amd_s_own_as_debian_built_it(real_runtime: Real, l2: Layer, tmp_path: Path) -> None:
    versions = get_runtime.versions(real_runtime.root)
    assert versions["libhsa-runtime64-1"].startswith(get_runtime.VERSION)
    found = l2.run(Case("there", "what_is_there"), tmp_path)
    assert "1.13.0" in found["build"]
    assert found["missing"] == ["hsa_amd_memory_get_preferred_copy_engine"]  # came later than 6.1.2: the double has it
    assert found["facts"]["is_hardware"] is False


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="this machine has AMD's driver, so a GPU may be there")
def test_without_the_model_there_is_no_gpu(real_runtime: Real, tmp_path: Path) -> None:
    """The control of all of L2: it is the model that answers, not something that this machine has."""
    command = real_runtime.command("-c", "from c3lib.amd.runtime import open_runtime as o; print(o().gpus)")
    at = command.index("--preload")
    environment = real_runtime.environment(tmp_path, Topology()) | {"LD_LIBRARY_PATH": str(real_runtime.library.parent)}
    done = subprocess.run(
        command[:at] + command[at + 2 :], env=environment, capture_output=True, text=True, cwd=get_runtime.REPOSITORY
    )
    assert done.returncode != 0
    assert "/dev/kfd" in done.stderr.splitlines()[-1]
