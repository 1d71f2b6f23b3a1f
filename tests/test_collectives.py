"""The collectives as CPU processes: bytes against gloo's, refusals, waits that end, FSDP2. GPUs: tests/device."""

import os

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from collective_ranks import cases_for, launch

from c3lib.collectives.board import poll, reached
from c3lib.collectives.copies import even_copies, uneven_copies
from c3lib.collectives.shared import SHARED_MEMORY
from c3lib.errors import C3Error
from c3lib.transfer.builders import build_plan

RANKS = 3
OUT_OF_STEP = "group: its ranks are out of step, it is of no more use: "


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list]:
    """What each case gave, by rank, all in the same processes; fails with what one raised."""
    cases = cases_for("cpu")
    ranks = launch(tmp_path_factory.mktemp("ranks"), RANKS, "cpu", cases, limit_s=150)
    failed = [
        f"{name}, rank {n}: {rank[name]['error']}"
        for n, rank in enumerate(ranks)
        for name in cases
        if "error" in rank[name]
    ]
    assert not failed, "\n".join(failed)
    ours = tuple(f"c3lib-{rank['pid']}-" for rank in ranks)
    assert [name for name in os.listdir(SHARED_MEMORY) if name.startswith(ours)] == []
    return {name: [rank[name]["value"] for rank in ranks] for name in cases}


def test_bytes_and_losses_are_those_of_torch_distributed(found):
    assert found["a_dropped_copy_is_noticed"] == [True, False, True]
    outside = "group: this rank is not in it; expected a group that it is in"
    warning = "all_gather_into_tensor: this rank is not in the group, nothing is done"
    assert found["subgroup"] == [[outside, outside, warning], [], []]
    assert found["numbers_wrap_around"] == [2**32 + 3] * RANKS
    check_losses(found["fsdp"])


def check_losses(ranks: list[dict[str, list[float]]]) -> None:
    """The hook changes no bit; a copy left out does."""
    for losses in ranks:
        plain = losses["implicit plain"]
        assert len(set(plain)) == len(plain)
        assert losses["broken"] != plain
        for name, found in losses.items():
            assert found == plain or name == "broken", name


def test_what_is_refused(found):
    gpus = torch.cuda.device_count()
    assert found["wrong_arguments"][1] == [
        "output_tensor: expected a tensor, got list",
        "input_tensor: expected a contiguous tensor, got strides (1, 3) for shape (3, 2)",
        "output_tensor: expected a contiguous tensor, got strides (2,) for shape (9,)",
        "output_tensor: expected dtype torch.float64, as input_tensor has, got torch.float32",
        "output_tensor: expected device cpu or cuda, got meta",
        "output_tensor: expected 18 elements, the 6 of input_tensor from each of 3 ranks, got 17",
        "input_tensor: overlaps output_tensor, but is not this rank's part (part 1) of it",
        "input_tensor: expected plain values, got a lazy conjugate or negative; call .resolve_conj() first",
        "input: overlaps output; an all-to-all cannot be done in place",
        "output: expected at least one dimension, to cut into blocks, got a scalar",
        "output: expected rows (dimension 0) divisible by 3 ranks, got 19",
        "output: expected 18 elements, as many as input, got 21",
        "input_split_sizes: expected one size for each of 3 ranks, got 2",
        "input_split_sizes: expected a sum of 18, the rows of input, got 15",
        "output_split_sizes: expected an integer of at least 0, got 6.5",
        "size: expected an integer of at least 0, got -1",
        "timeout_s: expected a positive number of seconds, got 0",
        "model: expected modules sharded by torch.distributed.fsdp.fully_shard, found none",
        "output_tensor: expected plain values, got a quantized tensor",
        "input_tensor: expected plain values, got a nested tensor",
        "group: expected a process group of torch.distributed, got int",
        "output_split_sizes: expected a list of integers, got Tensor",
        "input_split_sizes: expected a list of integers, got int",
        "size: expected an integer of at least 0, got 2.5",
        "dtype: expected a torch.dtype that is not quantized, got 'float32'",
        "dtype: expected a torch.dtype that is not quantized, got torch.qint8",
        "device: expected device cpu or cuda, got 'nowhere'",
        f"device: this process has {gpus} GPUs that CUDA can use, got cuda:{gpus}",
        f"size: expected at most {2**63 - 1} bytes, got {2**74}",
        "timeout_s: expected a positive number of seconds, got 'a'",
        "group: expected a process group of torch.distributed, got str",
        "group: expected a process group of torch.distributed, got str",
        "model: expected a torch.nn.Module, got int",
    ]
    for said in found["ranks_disagree"]:
        assert said[0] == (
            "all-gather (collective number 1): rank 0 calls all-gather of 216 bytes and rank 1 all-gather of 228 "
            "bytes; expected the same call on all ranks"
        )
        assert said[1:3] == [
            "output_split_sizes: rank 0 expects 24 bytes of rank 1, whose input_split_sizes send it 28",
            "size: rank 0 registers 40 bytes and rank 1 44; expected the same on all ranks",
        ]
        assert "rank 0 calls all-gather of 72 bytes and rank 1 all-to-all of 72 bytes" in said[3]
    call = "all-gather of 768 bytes at offset 0 of registered memory"
    for rank, said in enumerate(found["ranks_disagree_in_registered_memory"]):
        mine, other, peers = (0, 1, (1, 2)) if rank == 0 else (1, 0, (0,))  # whichever of these it hears first
        assert said[0] in [
            f"collective number 1 of this group is {call} {mine} on rank {rank}, but {call} {other} on rank {peer}; "
            "expected the same call on all ranks"
            for peer in peers
        ]
        assert said[1] == OUT_OF_STEP + said[0]
    check_waits(found)


def check_waits(found: dict[str, list]) -> None:
    """Each sentence names the rank, the peer, the step and the signal that it waited for."""
    none = "the last it gave was that of collective number"
    absent = found["absent_peer"][0]
    assert absent[0].startswith("rank 0 has waited 0.2 s for rank 1 to join collectives")
    assert absent[1] == "rank 0 has waited 0.2 s for rank 1 in all-gather (collective number 2)"
    ready = "rank 0 has waited {} s for signal 'ready' (step 1 of 2) of rank 1"
    assert absent[2] == f"all-gather (collective number 3): {ready.format(0.2)}; {none} 2"
    assert absent[3] == OUT_OF_STEP + absent[2]
    checked, waited = found["absent_peer_asynchronous"][0]
    missing = [
        f"'{signal}' of rank {peer} (its last was that of number 0)" for signal in ("ready", "done") for peer in (1, 2)
    ]
    assert (
        checked
        == f"collective number 1 is not over on rank 0 after 0.1 s: missing are the signals {', '.join(missing)}"
    )
    assert waited == f"all-gather (collective number 1): {ready.format(1)}; {none} 0"
    for rank, said in enumerate(found["late_peer"][:-1]):
        assert f"is not over on rank {rank} after 0.3 s" in said[0]
        assert "'ready' of rank 2 (its last was that of number 0)" in said[0]
    assert found["ctrl_c"][0] == ["stopped True", OUT_OF_STEP + "a wait was ended by KeyboardInterrupt"]


@pytest.mark.parametrize("number", [1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**33])
def test_a_flag_is_compared_as_the_driver_compares_it(number):
    for ahead in (0, 1, 2**31 - 1):
        assert reached((number + ahead) % 2**32, number)
    for behind in (1, 2, 2**31):
        assert not reached((number - behind) % 2**32, number)


def test_a_wait_ends_with_its_sentence():
    with pytest.raises(C3Error, match=r"^nobody came$"):
        poll(lambda: False, 0.01, lambda: "nobody came")


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_ranks_share_out_the_plan(kind, ranks):
    plan = build_plan(kind, 60 * ranks, ranks, "switch")
    parts = [even_copies(kind, 60 * ranks, ranks, rank) for rank in range(ranks)]
    assert all(copy.src_rank == rank for rank, part in enumerate(parts) for copy in part)
    assert sorted(map(str, plan)) == sorted(str(copy) for part in parts for copy in part)


def test_equal_splits_are_the_even_plan():
    sizes = [[7] * 4] * 4
    for rank in range(4):
        even = even_copies("all-to-all", 28, 4, rank)
        assert sorted(map(str, uneven_copies(rank, sizes, sizes, list(range(4))))) == sorted(map(str, even))


def test_uneven_copies_fill_every_output_once():
    sends = np.random.default_rng(3).integers(0, 5, (6, 6)).tolist()
    receives = [[row[rank] for row in sends] for rank in range(6)]
    inputs = [np.arange(100 * rank, 100 * rank + sum(sends[rank])) for rank in range(6)]
    outputs = [np.full(sum(receives[rank]), -1) for rank in range(6)]
    for rank in range(6):
        for copy in uneven_copies(rank, sends, receives, list(range(6))):
            part = inputs[copy.src_rank][copy.src_offset :][: copy.nbytes]
            outputs[copy.dst_rank][copy.dst_offset :][: copy.nbytes] = part
    starts = np.cumsum(sends, axis=1) - sends
    for rank, output in enumerate(outputs):
        wanted = [inputs[src][starts[src][rank] :][: sends[src][rank]] for src in range(6)]
        assert np.array_equal(output, np.concatenate(wanted))
