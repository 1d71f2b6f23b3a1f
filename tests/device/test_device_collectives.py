"""The collectives between processes that share one GPU, and between GPUs where there are several: the same cases.

Bytes are compared with what gloo makes of the same inputs on the CPU. Each process is a child that is killed on a hang.
"""

from pathlib import Path

import pytest
from collective_ranks import cases_for, launch

pytestmark = pytest.mark.device

LIMIT_S = 50  # less than that of a test, so that a hang ends with what the children said
ALONE = ["fsdp", "memory_that_cannot_be_shared", "what_ran"]


def gpus() -> int:
    import torch

    return torch.cuda.device_count()


@pytest.fixture(params=["2 sharing", "3 sharing", "one GPU each"])
def ranks(request: pytest.FixtureRequest) -> tuple[int, str]:
    """How many processes, and whether they share a GPU."""
    if request.param == "one GPU each":
        if gpus() < 2:
            pytest.skip("one GPU only")
        return min(gpus(), 4), "cuda"
    return int(request.param.split()[0]), "cuda-shared"


def values(folder: Path, ranks: tuple[int, str], cases: list[str], **settings: str) -> dict[str, list]:
    """What each case gave, by rank; fails with what it raised."""
    found = launch(folder, *ranks, cases, LIMIT_S, **settings)
    failed = [
        f"{name}, rank {n}: {said[name]['error']}"
        for n, said in enumerate(found)
        for name in cases
        if "error" in said[name]
    ]
    assert not failed, "\n".join(failed)
    return {name: [said[name]["value"] for said in found] for name in cases}


def test_bytes_streams_and_refusals(ranks, tmp_path):
    world, _ = ranks
    found = values(tmp_path, ranks, [name for name in cases_for("cuda") if name not in ALONE])
    assert found["a_dropped_copy_is_noticed"] == [rank != 1 for rank in range(world)]
    # While the last rank is late the others are not through, though their callers' streams are; then all are.
    assert found["caller_is_not_held_up"] == [[False, True]] * (world - 1) + [[True]]
    assert (
        found["signals_by_copy"] == [[True]] * world
    )  # the driver writes to peers' flags, and the other way works too
    assert found["no_graph"][0] == ["collectives by copy engine count their calls, so no CUDA graph can repeat one"]
    assert (
        "input_tensor: overlaps output_tensor, but is not this rank's part (part 1) of it"
        in found["wrong_arguments"][1]
    )
    for said in found["ranks_disagree"]:
        assert said[1] == "output_split_sizes: rank 0 expects 24 bytes of rank 1, whose input_split_sizes send it 28"
    for said in found["ranks_disagree_in_registered_memory"]:
        assert "collective number 1 of this group is all-gather of" in said[-1]
    assert found["absent_peer"][0][1] == "rank 0 has waited 0.2 s for rank 1 in all-gather (collective number 2)"
    for rank, said in enumerate(found["late_peer"][:-1]):
        assert said[0].startswith(
            f"collective number 1 is not over on rank {rank} after 0.3 s: missing are the signals "
        )
        assert f"'ready' of rank {world - 1} (its last was that of number 0)" in said[0]


def test_fsdp_losses_are_the_same_to_the_last_bit(ranks, tmp_path):
    for losses in values(tmp_path, ranks, ["fsdp"])["fsdp"]:
        plain = losses["implicit plain"]
        assert len(set(plain)) == len(plain)
        assert losses["broken"] != plain
        assert {name for name, found in losses.items() if found != plain} == {"broken"}


def test_memory_that_cannot_be_shared_is_refused(tmp_path):
    setting = "expandable_segments:True"
    cases, ranks = ["memory_that_cannot_be_shared"], (2, "cuda-shared")
    found = values(tmp_path, ranks, cases, PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    for said in found[cases[0]]:
        assert said[0].startswith(
            "output: its GPU memory cannot be opened by other processes (cuIpcGetMemHandle: CUDA_"
        )


def test_only_copies_run_between_gpus(tmp_path):
    """No kernel, and one copy for each peer."""
    if gpus() < 2:
        pytest.skip("one GPU only")
    for said in values(tmp_path, (2, "cuda"), ["what_ran"])["what_ran"]:
        assert [name for name in said if not name.startswith("Mem")] == []
        assert [name for name in said if name.startswith("Memcpy PtoP")] != []
