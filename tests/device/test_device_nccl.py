"""NCCL on all GPUs from one process: right bytes, thread blocks as asked for, and what zero CTAs really run."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from c3lib.cuda.activity import Activity, blocks, recorded, summary
from c3lib.cuda.buffers import Buffers
from c3lib.cuda.device import Cuda
from c3lib.cuda.nccl import VARIANTS, Clique, Nccl
from c3lib.cuda.streams import new_stream
from c3lib.transfer.builders import build_plan

SHARD_NBYTES = 8 << 20
FLAG_NBYTES = 64  # what is smaller is no data but a flag of NCCL's barrier
ARMS = [
    (variant, kind, in_place)
    for variant in VARIANTS
    for kind in ("all-gather", "all-to-all")
    for in_place in (True, False)
    if (variant, kind, in_place) != ("nccl_zero_cta", "all-to-all", True)  # which NCCL does not have
]
each_arm = pytest.mark.parametrize(("variant", "kind", "in_place"), ARMS)


@pytest.fixture(scope="module")
def clique_of(cudas: tuple[Cuda, ...]) -> Iterator[Callable[..., Clique]]:
    """``clique_of(variant, ctas)``: one clique for all tests that ask for the same, closed at the end."""
    made: dict[tuple[str, int], Clique] = {}

    def clique_of(variant: str, ctas: int = 0) -> Clique:
        if (variant, ctas) not in made:
            made[variant, ctas] = Clique(cudas, variant, ctas)
        return made[variant, ctas]

    yield clique_of
    for clique in made.values():
        clique.close()


class Arm:
    """Buffers and transport of one arm, and its runs."""

    def __init__(self, clique: Clique, kind: str, in_place: bool, drop: int | None = None):
        self.cudas, ranks = clique.cudas, len(clique.cudas)
        plan = build_plan(kind, ranks * SHARD_NBYTES, ranks, "switch")
        self.buffers = Buffers(self.cudas, plan, room=clique.allocate if clique.windowed else None)
        self.mover = Nccl(clique, self.buffers, in_place=in_place, drop=drop)
        self.streams = [new_stream(cuda) for cuda in self.cudas]

    def run(self) -> None:
        self.mover.enqueue(self.streams)
        for stream in self.streams:
            stream.sync()

    def record(self) -> list[Activity]:
        """What a run lets the GPUs run; its bytes are checked too."""
        self.buffers.prepare(3)
        found = recorded(self.run)
        check = self.buffers.check(3)
        assert check.verified, f"{check.first}; {summary(found)}"
        return found


@pytest.fixture
def arm_of(clique_of: Callable[..., Clique]) -> Iterator[Callable[..., Arm]]:
    """``arm_of(variant, kind, in_place, ctas=, drop=)``, its windows taken back after the test."""
    made: list[Arm] = []

    def arm_of(variant: str, kind: str, in_place: bool, ctas: int = 0, drop: int | None = None) -> Arm:
        made.append(Arm(clique_of(variant, ctas), kind, in_place, drop))
        return made[-1]

    yield arm_of
    for arm in made:
        arm.mover.close()


def copied(found: list[Activity], name: str) -> int:
    """Bytes of data that copies of a name moved."""
    return sum(each.nbytes for each in found if each.short_name == name and each.nbytes > FLAG_NBYTES)


@each_arm
def test_every_byte_arrives_by_the_run_alone(arm_of: Any, variant: str, kind: str, in_place: bool) -> None:
    arm = arm_of(variant, kind, in_place)
    for iteration in range(2):
        arm.buffers.prepare(iteration)
        untouched = arm.buffers.check(iteration)
        assert not untouched.verified, "the bytes were there before the run"
        arm.run()
        check = arm.buffers.check(iteration)
        assert check.verified, check.first
        assert check.compared_nbytes == sum(arm.buffers.plan.dst_nbytes)


@each_arm
def test_the_negative_control_is_noticed_on_every_rank(arm_of: Any, variant: str, kind: str, in_place: bool) -> None:
    arm = arm_of(variant, kind, in_place, drop=0)
    arm.buffers.prepare(0)
    arm.run()
    check = arm.buffers.check(0)
    assert not check.verified
    assert check.wrong_nbytes >= 16 * (len(arm.cudas) - 1)


@pytest.mark.parametrize("variant", ["nccl_registered", "nccl_zero_cta"])
def test_windows_can_be_taken_back_and_made_again(arm_of: Any, variant: str) -> None:
    for iteration in range(2):
        arm = arm_of(variant, "all-gather", True)
        arm.buffers.prepare(iteration)
        arm.run()
        check = arm.buffers.check(iteration)
        assert check.verified, check.first
        arm.mover.close()


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_kernels_have_the_blocks_that_were_asked_for(arm_of: Any, kind: str) -> None:
    seen = {}
    for ctas in (2, 8):
        arm = arm_of("nccl", kind, True, ctas)
        found = arm.record()
        seen[ctas] = blocks(found)
        kernels = [each for each in found if each.short_name.startswith("nccl")]
        assert {each.device for each in kernels} == {cuda.index for cuda in arm.cudas}, summary(found)
        assert 0 < seen[ctas] <= ctas, summary(found)
    if kind == "all-gather":  # NCCL may spread sends and receives over fewer blocks
        assert seen == {2: 2, 8: 8}


def test_registered_windows_still_run_kernels(arm_of: Any) -> None:
    found = arm_of("nccl_registered", "all-gather", True).record()
    assert blocks(found) > 0, summary(found)


def test_zero_cta_in_place_moves_by_peer_copies_alone(arm_of: Any) -> None:
    arm = arm_of("nccl_zero_cta", "all-gather", True)
    found = arm.record()
    ranks = len(arm.cudas)
    assert blocks(found) == 0, summary(found)
    assert [each.name for each in found if each.kind == "kernel"] == [], summary(found)
    assert copied(found, "Memcpy PtoP") == ranks * (ranks - 1) * SHARD_NBYTES, summary(found)
    assert copied(found, "Memcpy DtoD") == 0, summary(found)


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_zero_cta_out_of_place_copies_own_blocks_within_each_gpu(arm_of: Any, kind: str) -> None:
    """A copy within a GPU may run on SMs, whatever the policy is called: it must be seen in the record."""
    arm = arm_of("nccl_zero_cta", kind, False)
    found = arm.record()
    ranks = len(arm.cudas)
    assert blocks(found) == 0, summary(found)
    assert copied(found, "Memcpy PtoP") == ranks * (ranks - 1) * SHARD_NBYTES, summary(found)
    assert copied(found, "Memcpy DtoD") == ranks * SHARD_NBYTES, summary(found)
