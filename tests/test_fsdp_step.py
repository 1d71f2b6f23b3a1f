"""The experiment of a step under FSDP2: CPU processes end to end, what is noticed, what is refused, the figure."""

import copy
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("torch")

from c3lib.errors import C3Error
from c3lib.figures import fsdp_step as drawn
from c3lib.figures import style
from c3lib.files import ROOT
from c3lib.hardware import load_node
from c3lib.measure import fsdp_step
from c3lib.measure.fsdp_step import Job, control, judged, run_ranks
from c3lib.measure.run import _require_sound, experiments_of
from c3lib.measured import read_measured
from c3lib.results import write_table

TINY = Job(
    device="cpu", arms=("gloo", "nccl_zero_cta", "copy_engine", "none"), hidden=32, heads=2, layers=3, vocabulary=31,
    sizes=(("equal", 1, 9), ("half", 2, 9)), repeats=2, steps=2,
)  # fmt: skip
RAN = ("gloo", "copy_engine", "none")
CORRUPTED = """
import sys
from pathlib import Path
from c3lib.collectives import fsdp
from c3lib.measure import fsdp_rank

gather, calls = fsdp.CopyEngineAllGather.__call__, []

def corrupted(self, output_tensor, *given, **more):
    work = gather(self, output_tensor, *given, **more)
    calls.append(output_tensor)
    if len(calls) == 25:
        output_tensor[-1] += 1
    return work

fsdp.CopyEngineAllGather.__call__ = corrupted
fsdp_rank.main(Path(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def found():
    return run_ranks(TINY)


def test_losses_are_equal_and_every_row_is_verified(found, tmp_path):
    rows = judged(TINY, found)
    assert len(rows) == len(TINY.sizes) * len(RAN) * TINY.repeats
    frame = pd.DataFrame(rows)
    _require_sound("fsdp_step", frame, tmp_path)
    assert (frame["step_s"] > 0).all()
    sharded = frame[frame["transport"] != "none"]
    assert (sharded.groupby(["size", "repetition"])["loss"].nunique() == 1).all()
    assert sharded["loss"].nunique() == len(TINY.sizes) * TINY.repeats
    assert frame.loc[frame["transport"] == "none"].groupby("size")["loss"].nunique().tolist() == [1, 1]
    assert frame.loc[frame["size"] == "half", "tokens"].unique().tolist() == [18]
    assert found[0]["left_out"] == found[1]["left_out"] != "", "there is no NCCL between CPUs"
    parameters = 2 * 31 * 32 + 3 * (12 * 32**2 + 2 * 32) + 32
    assert frame["parameter_bytes"].unique().tolist() == [2 * parameters]
    assert frame["block_bytes"].unique().tolist() == [2 * (12 * 32**2 + 2 * 32)]


def spoiled(found, change):
    """What the ranks found, changed on the last of them."""
    found = copy.deepcopy(found)
    change(found[-1])
    return pd.DataFrame(judged(TINY, found)).groupby("transport")["verified"].all().to_dict()


def test_every_part_of_the_check_counts(found):
    good = dict.fromkeys(RAN, True)
    assert spoiled(found, lambda rank: None) == good

    def last(arm, value):
        return lambda rank: [run["losses"].__setitem__(-1, value) for run in rank["runs"] if run["arm"] == arm]

    for arm, failing in (("copy_engine", "copy_engine"), ("none", "none"), ("gloo", "copy_engine")):
        for value in ((9.25).hex(), "nan"):
            assert not spoiled(found, last(arm, value))[failing]
    for arm in ("gloo", "copy_engine"):
        assert spoiled(found, lambda rank, arm=arm: rank["shards_equal"].update({arm: False})) == good | {arm: False}
    wrong = {"equal": {**found[-1]["begun"]["equal"], "none": (9.25).hex()}}
    assert spoiled(found, lambda rank: rank["begun"].update(wrong)) == good | {"gloo": False, "none": False}
    wrong = {"equal": {**found[-1]["begun"]["equal"], "copy_engine": (9.25).hex()}}
    assert spoiled(found, lambda rank: rank["begun"].update(wrong)) == good | {"copy_engine": False}


def test_copies_left_out_change_the_loss(found):
    assert control(found).startswith("copies of rank 0 left out, loss of rank 1 ")
    whole = [{"control": [rank["control"][0]] * 2} for rank in found]
    with pytest.raises(C3Error, match="no loss changed; nothing is proved"):
        control(whole)


def test_a_hook_that_spoils_one_element_is_noticed(tmp_path):
    (tmp_path / "corrupted.py").write_text(CORRUPTED)
    rows = judged(TINY, run_ranks(TINY, [str(tmp_path / "corrupted.py")]))
    verified = pd.DataFrame(rows).groupby("transport")["verified"].all().to_dict()
    assert verified == {"copy_engine": False, "gloo": True, "none": True}
    with pytest.raises(C3Error, match="rows failed their check and nothing is published"):
        _require_sound("fsdp_step", pd.DataFrame(rows), tmp_path)


# --- who took which path ---


def activities(*names):
    from c3lib.cuda.activity import Activity

    kinds = {True: "memcpy", False: "kernel"}
    return [
        Activity(
            kinds[name.startswith("Mem")], name, 0, 7, 0.0, 1e-3, None if name.startswith("Mem") else (24, 1, 1), 8
        )
        for name in names
    ]


COPY, GEMM = "Memcpy PtoP (Device -> Device)", "nvjet_tst_128x256_64x4"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_the_path_names_what_moved_parameters():
    from c3lib.measure.fsdp_rank import path_of

    told = "(activity records of one step on rank 0)"
    ran = activities(GEMM, GATHER, GATHER, SCATTER)
    assert path_of("nccl", ran) == (
        "ncclDevKernel_AllGather_RING_LL x2 of 24 blocks, ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL x1 of 24 blocks"
        f" {told}"
    )
    ran = activities(GEMM, COPY, COPY, SCATTER)
    assert path_of("copy_engine", ran).startswith("Memcpy PtoP x2, ncclDevKernel_ReduceScatter")
    assert path_of("none", activities(GEMM, "Memcpy DtoD (Device -> Device)")) == "no transfer"


@pytest.mark.parametrize(
    ("arm", "ran"),
    [
        ("nccl", [GEMM, SCATTER]),
        ("nccl", [GATHER, COPY]),
        ("copy_engine", [GEMM, SCATTER]),
        ("copy_engine", [COPY, GATHER]),
        ("nccl_zero_cta", ["ncclSymkDevKernel_AllGather_LL(x)", SCATTER]),
    ],
)
def test_another_path_than_the_name_says_is_refused(arm, ran):
    from c3lib.measure.fsdp_rank import path_of

    with pytest.raises(C3Error, match=f"arm {arm} took another path than its name says"):
        path_of(arm, activities(*ran))


# --- processes that fail or hang ---


def program(folder, text):
    path = folder / "program.py"
    path.write_text("import sys, time\nfrom pathlib import Path\nat = Path(sys.argv[1], sys.argv[2])\n" + text)
    return [str(path)]


def test_a_process_that_fails_is_told_with_its_words(tmp_path):
    text = (
        "at.with_suffix('.at').write_text('arm gloo')\nif sys.argv[2] == '0': time.sleep(60)\nraise SystemExit('gone')"
    )
    with pytest.raises(C3Error, match=r"rank 1 failed in arm gloo: ended with status 1: gone"):
        run_ranks(TINY, program(tmp_path, text))


def test_processes_that_hang_are_killed_and_said_to_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(fsdp_step, "STALL_S", 1.0)
    text = "at.with_suffix('.at').write_text(f'arm {sys.argv[2]}')\ntime.sleep(60)"
    with pytest.raises(C3Error, match=r"no further for 1 s and have been killed: rank 0 in arm 0, rank 1 in arm 1"):
        run_ranks(TINY, program(tmp_path, text))


def test_more_repetitions_may_take_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(fsdp_step, "LIMIT_S", 0.5)
    monkeypatch.setattr(fsdp_step, "REPEAT_S", 0.5)
    text = "time.sleep(4)\nat.with_suffix('.json').write_text('{}')"
    assert run_ranks(replace(TINY, repeats=99), program(tmp_path, text)) == [{}, {}]
    with pytest.raises(C3Error, match=r"not done after 1\.5 s and have been killed: rank 0 in its start"):
        run_ranks(replace(TINY, repeats=1), program(tmp_path, text))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(tmp_path, how):
    text = f"import os\nPath({str(tmp_path)!r}, sys.argv[2] + '.pid').write_text(str(os.getpid()))\ntime.sleep(300)"
    parent = (
        "import sys\nfrom c3lib.measure.fsdp_step import Job, run_ranks\n"
        "run_ranks(Job(device='cpu'), sys.argv[1:])"
    )  # fmt: skip
    started = subprocess.Popen(
        [sys.executable, "-c", parent, *program(tmp_path, text)], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    try:
        ranks = [int(waited(tmp_path / f"{rank}.pid", 60)) for rank in range(2)]
        assert all(map(runs, ranks))
    finally:
        started.send_signal(how)
        started.wait(30)
    end = time.monotonic() + 10
    while any(map(runs, ranks)) and time.monotonic() < end:
        time.sleep(0.05)
    left = [rank for rank in ranks if runs(rank)]
    for rank in left:
        os.kill(rank, signal.SIGKILL)
    assert not left


def waited(path, limit_s):
    """What a file says as soon as it says something."""
    end = time.monotonic() + limit_s
    while not (text := path.read_text() if path.exists() else "") and time.monotonic() < end:
        time.sleep(0.05)
    return text


def runs(process):
    """Whether a process is there and not only waits to be forgotten."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- the figure ---


def table(plain=1.0, zero=0.97, engine=0.95, unsharded=0.85):
    arms = {"nccl": plain, "nccl_zero_cta": zero, "copy_engine": engine, "none": unsharded}
    return pd.DataFrame(
        {
            "node": "h200_2", "evidence": "measured", "model": "decoder", "size": size, "layers": 8, "hidden": 6144,
            "tokens": tokens, "ranks": 2, "parameter_bytes": 10, "block_bytes": 1, "transport": arm,
            "repetition": repetition, "steps": 3, "step_s": share * tokens * 4e-5 * (1 + repetition / 100),
            "loss": 9.0, "verified": True, "path": "no transfer" if arm == "none" else "p",
        }
        for size, tokens in (("half", 2048), ("equal", 1024)) for arm, share in arms.items() for repetition in range(5)
    )  # fmt: skip


def test_ratios_are_those_of_the_same_repetition():
    found = drawn.steps(table())
    assert found["size"].tolist() == ["equal"] * 4 + ["half"] * 4
    part = found[found["size"] == "equal"].set_index("transport")
    assert part["median"].to_dict() == pytest.approx(
        {"nccl": 1, "nccl_zero_cta": 0.97, "copy_engine": 0.95, "none": 0.85}
    )
    assert part.loc["copy_engine", ["low", "high"]].tolist() == pytest.approx([0.95, 0.95])
    assert part["exposed"].to_dict() == pytest.approx(
        {"nccl": 1, "nccl_zero_cta": 0.8, "copy_engine": 2 / 3, "none": 0}
    )
    assert part.loc["nccl", "step_s"] == pytest.approx(1024 * 4e-5 * 1.02)


def test_figure_and_finding_say_what_was_measured():
    stamp = style.stamp_of(drawn.step_time(table()))
    assert stamp.startswith("measured · h200_2 · 8 blocks of 6144, 5 repetitions")
    text = drawn.finding_step(table())
    assert "With 1024 tokens a GPU plain FSDP2 takes 41.8 ms a step, the model unsharded 35.5 ms" in text
    assert "all-gather by copy engine: -5.0 % [-5.0 %, -5.0 %], 67 % of the time beyond the unsharded model's" in text
    assert "no difference that can be told from none" in drawn.finding_step(table(engine=1.0))
    only = table()
    only = only[only["transport"] != "nccl_zero_cta"]
    assert "zero CTAs" not in drawn.finding_step(only)
    assert style.stamp_of(drawn.step_time(only))


def test_rows_that_lack_their_measure_or_their_check_are_refused():
    rows = table()
    with pytest.raises(C3Error, match="no arm 'none' of size 'half' in repetition 3"):
        drawn.steps(rows[(rows["transport"] != "none") | (rows["size"] != "half") | (rows["repetition"] != 3)])
    rows.loc[7, "verified"] = False
    for function in (drawn.step_time, drawn.finding_step):
        with pytest.raises(C3Error, match="byte check"):
            function(rows)


def test_the_table_is_one_that_can_be_read(tmp_path):
    write_table(table(), tmp_path / "h200_2" / "fsdp_step.csv")
    assert read_measured("h200_2", "fsdp_step", tmp_path)[0].equals(table())
    write_table(table().assign(transport="gloo"), tmp_path / "h200_2" / "fsdp_step.csv")
    with pytest.raises(C3Error, match="transport"):
        read_measured("h200_2", "fsdp_step", tmp_path)


def test_it_is_an_experiment_of_several_gpus_and_comes_before_they_are_opened():
    assert "fsdp_step" not in experiments_of(load_node("h200_1"))
    assert experiments_of(load_node("h200_2"))[0] == "fsdp_step"
