"""Sweeps over grids: the model's own numbers, the same table however it is computed, bad grids told in a sentence."""

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import c3lib
from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.files import ROOT, held
from c3lib.hardware import load_node
from c3lib.model.contention import predict
from c3lib.model.kernels import batch
from c3lib.strategy import STRATEGIES
from c3lib.sweeps import read_sweep, run, sweep
from c3lib.sweeps.axes import CONSTANTS, NAMES
from c3lib.sweeps.folder import MANIFEST, part_name
from c3lib.sweeps.grid import read_grid
from c3lib.sweeps.rows import CODE
from c3lib.sweeps.summary import summary
from c3lib.workload import Collective, Gemm, Scenario

EXAMPLE = ROOT / "docs" / "examples" / "sweep.toml"
ONE = {"collective": "all-gather", "m": 8192, "n": 8192, "k": 8192, "size": "896MiB"}
SMALL = {
    "axes": {
        "node": ["mi300x_8", "h200_1"],
        "strategy": ["c3_sp", "c3_rp", "conccl"],
        "collective": ["all-to-all", "all-gather"],
        "m": {"from": 16, "to": 4096, "steps": 5, "scale": "log", "multiple": 16},
        "dtype": ["bf16", "fp8"],
        "size": [0, "1MiB", 10**9],
    },
    "zip": [{"label": ["up", "down"], "n": [4096, 14336], "k": [14336, 4096]}],
}


def many_parts(nodes: int = 320) -> dict:
    """A part is of at most 64 nodes: small, and yet of several parts."""
    constant = {"from": 0.0, "to": 5.0, "steps": nodes}
    return {"axes": {**ONE, "strategy": ["c3_sp", "conccl"], "interference.memory_queueing": constant}}


def parts(folder: Path) -> dict[str, str]:
    """Name and SHA-256 of each part: equal ones are equal tables, to the last bit."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.parquet"))}


def part_path(folder: Path, number: int) -> Path:
    (found,) = folder.glob(f"part-{number:06}-*.parquet")
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The sweep of ``many_parts`` done in one go, in this process."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    assert sweep(many_parts(), folder, workers=1).parts == 5
    return folder


# --- the same numbers by every way in ---


def test_a_row_is_what_explain_and_predict_say(tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text(
        '[axes]\nnode = ["h200_1", "mi300x_8"]\ncollective = ["all-gather", "all-to-all"]\nm = [96, 8192]\nn = 8192\n'
        'k = 4096\nsize = ["1MiB", "896MiB"]\ndtype = ["bf16", "fp8"]\n'
    )
    result = CliRunner().invoke(app, ["sweep", str(grid), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    frame = read_sweep(tmp_path / "out")
    assert len(frame) == 2 * 2 * 2 * 2 * 2 * len(STRATEGIES)
    assert set(frame["evidence"]) == {"modelled"}
    for _, group in frame.groupby(["node", "collective", "m", "total_bytes", "dtype"], observed=True):
        row = group.iloc[0]
        node = load_node(row["node"])
        gemm = Gemm(int(row["m"]), 8192, 4096, row["dtype"])
        collective = Collective(row["collective"], int(row["total_bytes"]), node.ranks)
        told = c3lib.explain(gemm, collective, node)
        assert list(group["strategy"]) == list(STRATEGIES)
        for name in ("speedup", "fraction_of_ideal", "cus_taken"):
            np.testing.assert_array_equal(group[name], told.table[name])
        np.testing.assert_array_equal(group["concurrent_s"], told.table["time_s"])
        for name in ("gemm_alone_s", "collective_alone_s", "ideal"):
            assert (group[name] == getattr(told, name)).all()
        assert list(group.loc[group["best"], "strategy"]) == [told.best.strategy]
        assert list(group["oracle"]) == [outcome.oracle for outcome in told.outcomes]
        assert group.loc[group["best_with_oracles"], "concurrent_s"].item() == told.table["time_s"].min()
        for how, time_s in zip(STRATEGIES.values(), group["concurrent_s"], strict=True):
            assert predict(*batch([Scenario("", gemm, collective)], node), node, how).time_s[0] == time_s


def test_constants_are_those_of_a_node_changed_by_hand(tmp_path):
    axes = {**ONE, "interference": {"memory_queueing": [0, 1.5]}, "link.dma_gbs": [24, 48], "dma.copy_us": 100}
    sweep({"axes": axes}, tmp_path / "a")
    frame = read_sweep(tmp_path / "a")
    assert len(frame) == 4 * len(STRATEGIES)
    scenario = Scenario("", Gemm(8192, 8192, 8192), Collective("all-gather", 896 * 2**20, 8))
    for row in frame.to_dict("records"):
        keys = ("interference.memory_queueing", "link.dma_gbs", "dma.copy_us")
        node = load_node("mi300x_8").with_constants({key: row[key] for key in keys})
        time_s = predict(*batch([scenario], node), node, STRATEGIES[row["strategy"]]).time_s[0]
        assert time_s == row["concurrent_s"]
    assert frame["concurrent_s"].nunique() > 4


def test_every_point_of_the_grid_stands_in_its_order(tmp_path):
    sweep(SMALL, tmp_path / "a")
    frame = read_sweep(tmp_path / "a")
    zips = SMALL["zip"][0]
    expected = [
        (node, collective, m, dtype, size, label, n, k, strategy)
        for node in ("mi300x_8", "h200_1")
        for collective in ("all-to-all", "all-gather")
        for m in (16, 64, 256, 1024, 4096)
        for dtype in ("bf16", "fp8")
        for size in (0, 2**20, 10**9)
        for label, n, k in zip(zips["label"], zips["n"], zips["k"], strict=True)
        for strategy in ("c3_sp", "c3_rp", "conccl")
    ]
    columns = ["node", "collective", "m", "dtype", "total_bytes", "label", "n", "k", "strategy"]
    assert list(frame[columns].itertuples(index=False, name=None)) == expected
    empty = frame["total_bytes"] == 0
    assert frame.loc[empty, "fraction_of_ideal"].isna().all()
    assert not frame.loc[~empty, "fraction_of_ideal"].isna().any()
    best = frame.groupby(frame.index // 3)["best"].sum()
    assert (best == 1).all()
    assert not frame.loc[frame["strategy"] == "c3_rp", "best"].any()  # an oracle
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a"), frame)
    assert list(read_sweep(tmp_path / "a", ["speedup", "m"]).columns) == ["speedup", "m"]


def test_the_summary_is_the_tables(tmp_path):
    sweep(SMALL, tmp_path / "a")
    frame = read_sweep(tmp_path / "a")
    for row in summary(tmp_path / "a"):
        group = frame[frame["strategy"] == row["strategy"]]
        assert row["best_share"] == pytest.approx(group["best"].mean())
        assert row["loss_share"] == pytest.approx((group["speedup"] < 1).mean())
        assert row["speedup_mean"] == pytest.approx(group["speedup"].mean())
        assert row["speedup_max"] == group["speedup"].max()


def test_the_example_runs_and_answers_in_json(tmp_path):
    result = CliRunner().invoke(app, ["sweep", str(EXAMPLE), "--out", str(tmp_path / "a"), "--json"])
    content = json.loads(result.stdout)
    assert content["evidence"] == "modelled"
    assert content["rows"] == len(read_sweep(tmp_path / "a", ["best"])) == content["scenarios"] * 6
    shares = [row["best_share"] for row in content["strategies"]]
    assert sum(shares) == pytest.approx(1)


def test_the_grid_of_the_page_is_what_it_says(tmp_path):
    page = (ROOT / "docs" / "sweeps.md").read_text()
    path = tmp_path / "grid.toml"
    path.write_text(re.search("```toml\n(.+?)```", page, re.DOTALL).group(1))
    grid = read_grid(path)
    assert (grid.scenarios, grid.strategies) == (2 * 7 * 2 * 2 * 2, ("c3_sp", "conccl"))
    done = sweep(path, tmp_path / "out")
    columns = re.findall(r"`(\w+)`", re.search(r"Columns: (.+?)They mean", page, re.DOTALL).group(1))
    assert set(columns[1:]) <= set(read_sweep(done.folder).columns)


@given(st.data())
@settings(max_examples=25)
def test_any_grid_is_its_product_however_it_is_cut(tmp_path_factory, data):
    numbers = st.lists(st.integers(1, 20000), min_size=1, max_size=3, unique=True)
    axes = {name: data.draw(numbers, name) for name in ("m", "n", "k", "size")}
    axes["collective"] = data.draw(st.permutations(["all-gather", "all-to-all"]))[: data.draw(st.integers(1, 2))]
    axes["strategy"] = data.draw(st.permutations(list(STRATEGIES)))[: data.draw(st.integers(1, 6))]
    if data.draw(st.booleans()):
        axes["dma.copy_us"] = data.draw(st.lists(st.floats(0, 1e3), min_size=1, max_size=3, unique=True))
    order = data.draw(st.permutations(list(axes)))
    grid = read_grid({"axes": {name: axes[name] for name in order}})
    varied = [name for name in order if name != "strategy"]
    varied.sort(key=lambda name: name not in CONSTANTS)
    points = list(itertools.product(*(axes[name] for name in varied)))
    assert grid.scenarios == len(points)
    grid.__dict__["part_scenarios"] = data.draw(st.integers(1, len(points)))  # cached: now of this size
    found = []
    for number in range(grid.parts):
        block = grid.block(number)
        constants = [values for _, values, count in block.nodes for _ in range(count)]
        kinds, kind = block.words["collective"]
        for index, values in enumerate(constants):
            row = {**values, "collective": kinds[kind[index]]}
            row |= {name: int(block.numbers[name][index]) for name in ("m", "n", "k", "size")}
            found.append(tuple(row[name] for name in varied))
    assert found == points


# --- resuming ---


def test_what_is_there_is_kept_and_what_is_missing_added(tmp_path, whole, monkeypatch):
    folder, written = tmp_path / "a", []
    write = run.write_bytes

    def fail_at_third(path, content):
        if len(written) == 2:
            raise C3Error(f"{path}: cannot be written: No space left on device; nothing was changed")
        written.append(path.name)
        return write(path, content)

    monkeypatch.setattr(run, "write_bytes", fail_at_third)
    with pytest.raises(C3Error, match="No space left"):
        sweep(many_parts(), folder, workers=1)
    with pytest.raises(C3Error, match="3 of 5 parts are missing; run the sweep again"):
        read_sweep(folder)
    monkeypatch.undo()
    done = sweep(many_parts(), folder, workers=1)
    assert (done.kept, done.parts) == (2, 5)
    assert parts(folder) == parts(whole)
    assert sweep(many_parts(), folder).kept == 5


@pytest.mark.parametrize("how", ["cut short", "of another sweep", "empty", "another part"])
def test_a_part_that_is_not_whole_is_computed_again(tmp_path, whole, how):
    folder = tmp_path / "a"
    shutil.copytree(whole, folder)
    path = part_path(folder, 1)
    if how == "cut short":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "another part":
        path.write_bytes(part_path(folder, 2).read_bytes())
    else:
        sweep(many_parts(319), tmp_path / "b", workers=1)
        path.write_bytes(part_path(tmp_path / "b", 1).read_bytes())
    with pytest.raises(C3Error, match=r"part-000001-\w+\.parquet: is damaged, or not of this sweep"):
        read_sweep(folder)
    assert sweep(many_parts(), folder, workers=1).kept == 4
    assert parts(folder) == parts(whole)


@given(st.data())
@settings(max_examples=60)
def test_any_byte_that_changed_is_noticed(whole, data):
    path, content = part_path(whole, 3), part_path(whole, 3).read_bytes()
    changed = bytearray(content)
    changed[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        path.write_bytes(changed)
        with pytest.raises(C3Error, match=r"part-000003-\w+\.parquet: is damaged"):
            read_sweep(whole)
    finally:
        path.write_bytes(content)


@given(st.data())
@settings(max_examples=100)
def test_a_forged_part_is_read_or_told_in_a_sentence(whole, data):
    """Whoever makes a part that proves itself, and is no Parquet or not ours, gets no more than a sentence."""
    path, about = part_path(whole, 3), json.loads((whole / MANIFEST).read_text())
    content = path.read_bytes()
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(len(content) * 2 // 3, len(content) - 1))] = data.draw(st.integers(0, 255))
    changed = changed[: data.draw(st.sampled_from([None, 0, 1, 12, len(content) - 1]))]
    forged = path.with_name(part_name(3, bytes(changed), about))
    path.unlink()
    try:
        forged.write_bytes(changed)
        with contextlib.suppress(C3Error):
            assert len(read_sweep(whole)) > 0
    finally:
        forged.unlink()
        path.write_bytes(content)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path, whole):
    before = parts(whole)
    with pytest.raises(C3Error, match="holds a sweep of another grid") as caught:
        sweep(many_parts(321), whole)
    assert "\n" not in str(caught.value)
    assert parts(whole) == before
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(C3Error, match="is not empty and holds no sweep"):
        sweep(many_parts(), tmp_path, fresh=True)
    with pytest.raises(C3Error, match="holds no sweep"):
        read_sweep(tmp_path)
    with pytest.raises(C3Error, match=r"notes\.txt: must be a folder"):
        sweep(many_parts(), tmp_path / "notes.txt")
    assert os.listdir(tmp_path) == ["notes.txt"]


FOREIGN = ["part-0.parquet", "part-notes.parquet", "part-00000-0b5e-c000.snappy.parquet", ".part-mine", "notes.txt"]
PART_LIKE = "part-000009-0123456789abcdef.parquet"


def test_beginning_anew_and_going_on_remove_nothing_but_the_sweeps_own_files(tmp_path):
    sweep({"axes": ONE}, tmp_path)
    for name in FOREIGN:
        (tmp_path / name).write_text("mine")
    (tmp_path / "part-folder.parquet").mkdir()
    (tmp_path / PART_LIKE).write_text("of an earlier grid")
    assert sweep({"axes": ONE}, tmp_path).kept == 1
    assert sweep({"axes": {**ONE, "m": 1}}, tmp_path, fresh=True).kept == 0
    assert [(tmp_path / name).read_text() for name in FOREIGN] == ["mine"] * len(FOREIGN)
    assert (tmp_path / "part-folder.parquet").is_dir()
    assert len(list(tmp_path.glob("part-00000?-*.parquet"))) == 1


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing"])
def test_what_is_no_file_under_a_parts_name_is_told_and_left(tmp_path, kind):
    sweep({"axes": ONE}, tmp_path)
    path = tmp_path / PART_LIKE
    {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link to nothing": lambda: path.symlink_to("no")}[kind]()
    before = sorted(os.listdir(tmp_path))
    for act in (
        lambda: sweep({"axes": ONE}, tmp_path),
        lambda: sweep({"axes": ONE}, tmp_path, fresh=True),
        lambda: read_sweep(tmp_path),
    ):
        with pytest.raises(C3Error, match=f"^{path}: must be an ordinary file"):
            act()
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("fresh", [False, True])
def test_a_part_that_cannot_be_removed_is_told(tmp_path, monkeypatch, fresh):
    sweep({"axes": ONE}, tmp_path)
    path = tmp_path / PART_LIKE
    path.write_text("")

    def unlink(self, missing_ok=False):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(C3Error, match=r"\.parquet: cannot be removed: Operation not permitted"):
        sweep({"axes": ONE}, tmp_path, fresh=fresh)


def test_another_version_of_the_model_is_refused_and_fresh_begins_anew(tmp_path):
    folder = tmp_path / "a"
    sweep({"axes": ONE}, folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "model": "0" * 64}))
    with pytest.raises(C3Error, match="was begun with another version of the model"):
        sweep({"axes": ONE}, folder)
    assert sweep({"axes": ONE}, folder, fresh=True).kept == 0
    assert sweep({"axes": {**ONE, "m": [1, 2]}}, folder, fresh=True).rows == 12
    for damaged in ("", "{}", "[1]", '{"rows": true}', "[" * 10000, json.dumps({**manifest, "parts": 10**30})):
        (folder / MANIFEST).write_text(damaged)
        with pytest.raises(C3Error, match=r"_sweep\.json: is damaged"):
            read_sweep(folder)


def test_the_models_version_is_that_of_all_that_its_numbers_come_from():
    code = "import sys, c3lib.model.sweep, c3lib.metrics; print(*(n for n in sys.modules if n.startswith('c3lib.')))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    used = {name.removeprefix("c3lib.").replace(".", "/") + ".py" for name in done.stdout.split()}
    assert set(CODE) == used - {"errors.py", "files.py", "model.py"} | {"sweeps/rows.py"}


def test_two_sweeps_into_one_folder_at_once_are_refused(tmp_path):
    with held(tmp_path, "sweep"):
        code = f"from c3lib.sweeps import sweep; sweep({ {'axes': ONE} }, {str(tmp_path)!r})"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "another sweep is writing here; wait for it, or stop it" in done.stderr


def command(grid: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "c3lib", "sweep", str(grid), "--out", str(out), *more]


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> tuple[Path, Path]:
    """A grid of 8 parts, as a file, and its sweep."""
    folder = tmp_path_factory.mktemp("long")
    grid = folder / "grid.toml"
    grid.write_text(
        '[axes]\ncollective = "all-gather"\nn = 8192\nk = 8192\nstrategy = "conccl"\n'
        "m = { from = 16, to = 16384, steps = 1024, multiple = 16 }\n"
        'size = { from = "1MiB", to = "768MiB", steps = 768 }\n'
    )
    assert sweep(grid, folder / "sweep", workers=1).parts == 8
    return grid, folder / "sweep"


@pytest.mark.parametrize("after", [0, 3], ids="killed with {} parts".format)
def test_killed_at_any_moment_it_ends_with_the_same_table(tmp_path, long, after):
    grid, finished = long
    process = subprocess.Popen(command(grid, tmp_path / "a", "--quiet"), cwd=ROOT, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("a/part-*"))) < after or not (tmp_path / "a" / MANIFEST).exists():
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()
    workers_end(process.pid)
    (tmp_path / "a" / ".part-000006-0123456789abcdef.parquet.x1y2_z34").write_bytes(b"left half-written")
    assert len(parts(tmp_path / "a")) < 8
    assert sweep(grid, tmp_path / "a", workers=1).kept >= after
    assert parts(tmp_path / "a") == parts(finished)
    assert list(tmp_path.glob("a/.part*")) == []


def workers_end(session: int) -> None:
    """Processes that a killed sweep had started end by themselves."""
    until = time.monotonic() + 20
    while left := [stat for stat in Path("/proc").glob("[0-9]*/stat") if _session(stat) == session]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


def _session(stat: Path) -> int:
    try:
        return int(stat.read_text().rsplit(")", 1)[1].split()[3])
    except OSError:
        return -1


def test_ctrl_c_ends_at_once_and_keeps_what_is_finished(tmp_path, long):
    grid, finished = long
    process = subprocess.Popen(
        command(grid, tmp_path / "a", "--workers", "2"), cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True
    )
    while len(list(tmp_path.glob("a/part-*"))) < 2:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers too
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert stderr == b"c3: interrupted\n"
    sweep(grid, tmp_path / "a", workers=1)
    assert parts(tmp_path / "a") == parts(finished)


def test_a_worker_that_dies_is_told_in_a_sentence(tmp_path, long):
    grid, finished = long
    process = subprocess.Popen(
        command(grid, tmp_path / "a", "--workers", "2"), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    while len(list(tmp_path.glob("a/part-*"))) < 2:
        time.sleep(0.002)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(int(workers[0]), signal.SIGKILL)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 2
    assert stderr.startswith("c3: a worker process died (out of memory?); what is finished is kept")
    assert stderr.count("\n") == 1
    sweep(grid, tmp_path / "a", workers=1)
    assert parts(tmp_path / "a") == parts(finished)


# --- grids that cannot be ---


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"m": None}, "grid: axes.m is missing"),
        ({"M": 1}, "grid: axes: unknown axis 'M'"),
        ({"m": "8192"}, "grid: axes.m must be a whole number, not '8192'"),
        ({"m": 0}, "grid: axes.m must be a whole number of at least 1, not 0"),
        ({"m": [8, True]}, "grid: axes.m must be a whole number, not True"),
        ({"m": [8, 8]}, "grid: axes.m: 8 stands twice"),
        ({"m": []}, "grid: axes.m must have at least one value"),
        ({"m": 2**60}, "grid: axes.m must be at most"),
        ({"m": {"from": 1, "to": 8}}, "grid: axes.m.steps is missing"),
        ({"m": {"from": 1, "to": 8, "step": 1}}, "grid: axes.m: unknown key 'step' (did you mean 'steps'?)"),
        ({"m": {"from": 8, "to": 8, "steps": 2}}, "grid: axes.m.from must be less than to, not 8 and 8"),
        ({"m": {"from": 1, "to": 8, "steps": 1}}, "grid: axes.m.steps must be a whole number of at least 2, not 1"),
        (
            {"m": {"from": 1, "to": 8, "steps": 2, "scale": "ln"}},
            "grid: axes.m.scale must be 'linear' or 'log', not 'ln'",
        ),
        (
            {"m": {"from": 1, "to": 8, "steps": 2, "multiple": 0}},
            "grid: axes.m.multiple must be a whole number of at least 1",
        ),
        (
            {"m": {"from": 9, "to": 15, "steps": 2, "multiple": 16}},
            "grid: axes.m: no multiple of 16 lies between 9 and 15",
        ),
        ({"size": {"from": 0, "to": "1MiB", "steps": 3, "scale": "log"}}, "grid: axes.size.from must be more than 0"),
        ({"size": "896 MB of it"}, "grid: axes.size: size must read like 896MiB"),
        ({"size": 1.5}, "grid: axes.size must be a whole number or text such as '896MiB', not 1.5"),
        ({"dtype": "int4"}, "grid: axes.dtype: unknown dtype 'int4'"),
        ({"node": "h200_3"}, "grid: axes.node: unknown node 'h200_3'"),
        ({"strategy": {"from": 1, "to": 2, "steps": 2}}, "grid: axes.strategy must be a list of names, not a range"),
        ({"strategy": ["conccl", 3]}, "grid: axes.strategy must be a name in quotes, or a list of them, not 3"),
        ({"label": "x" * 201}, "grid: axes.label: a label has 1 to 200 letters, not 201"),
        ({"gpu.cu": 1}, "grid: axes: unknown axis 'gpu.cu' (did you mean 'gpu.cus'?)"),
        ({"gpu.cus": 2.5}, "grid: axes.gpu.cus must be a whole number, not 2.5"),
        ({"gpu.cus": float("nan")}, "grid: axes.gpu.cus must be a finite number, not nan"),
        ({"gpu.cus": 10**400}, "grid: axes.gpu.cus must be a finite number, not a number of more than 60 digits"),
        ({"dma": {"copy_us": 1}, "dma.copy_us": 2}, "grid: axes.dma.copy_us stands twice"),
        ({"link.dma_gbs": 1000}, "constants that cannot be had together: mi300x_8: link.dma_gbs must not exceed"),
        (
            {"m": {"from": 1, "to": 10**12, "steps": 10**12}},
            "axes.m has 1,000,000,000,000 values, and an axis can have at most",
        ),
        ({"gpu.launch_us": {"from": 1, "to": 9, "steps": 10001}}, "10,001 nodes with their constants, at most 10,000"),
    ],
)
def test_a_bad_axis_is_named_in_one_sentence(change, said):
    axes = {name: value for name, value in {**ONE, **change}.items() if value is not None}
    with pytest.raises(C3Error) as caught:
        read_grid({"axes": axes})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"axis": {}}, "grid: unknown key 'axis' (did you mean 'axes'?)"),
        ({"axes": [1]}, "grid: axes must be a table of axes, not a list"),
        ({"axes": ONE, "zip": {"a": 1}}, "grid: zip must be a list of tables"),
        ({"axes": ONE, "zip": [{}]}, "grid: zip 1 must have at least one axis"),
        ({"axes": ONE, "zip": [{"m": [1]}]}, "grid: zip 1.m stands twice in the grid"),
        ({"axes": ONE, "zip": [{"strategy": ["conccl"]}]}, "grid: zip 1.strategy: strategies are compared"),
        (
            {"axes": ONE, "zip": [{"label": ["a", "b"], "dtype": ["bf16"]}]},
            "grid: zip 1: axes must be equally long, not label 2, dtype 1",
        ),
        (
            {"axes": {**ONE, **{key: {"from": 1, "to": 10**6, "steps": 10**6} for key in "mnk"}}},
            "grid: the grid has 6,000,000,000,000,000,000 rows, and a sweep can have at most 100,000,000",
        ),
    ],
)
def test_a_bad_grid_is_told_in_one_sentence(grid, said):
    with pytest.raises(C3Error) as caught:
        read_grid(grid)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[axes", "not valid TOML"),
        ("a = " + "9" * 5000, "not valid TOML"),
        ("a = " + "[" * 50_000, "not valid TOML"),
        ("a." * 50_000 + "b = 1", "line 1: a key of a grid has at most one dot"),
        ("\n[" + "'a b'." * 20_000 + "c]", "line 2: a key of a grid has at most one dot"),
        ("#" * 200_000, "is larger than 131072 bytes"),
        ("[axes]\n" + '"' + "x" * 100_000 + '" = 1', "unknown axis 'xxx"),
    ],
    ids=range(7),
)
def test_hostile_files_are_refused_quickly(tmp_path, text, said):
    path = tmp_path / "grid.toml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(C3Error) as caught:
        read_grid(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 3000
    assert time.process_time() - started < 5


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([*NAMES[:9], "1MiB"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["from", "to", "steps", "scale", "multiple"]), inner, max_size=5
        )
    ),
    max_leaves=10,
)
RANGES = st.fixed_dictionaries(
    {
        "from": st.integers(-5, 10**15) | st.floats(),
        "to": st.integers(-5, 10**15) | st.floats(),
        "steps": st.integers(0, 10**13),
    },
    optional={"scale": st.sampled_from(["log", "linear", "x"]), "multiple": st.integers(-2, 10**6) | st.floats()},
)


@given(st.sampled_from(NAMES), ANYTHING | RANGES)
@settings(max_examples=300)
def test_any_axis_is_taken_or_told_in_a_sentence(name, spec):
    grid, error = read_or_told({"axes": {**ONE, name: spec}})
    if grid is None:
        assert error.startswith("grid: ")
        assert len(error.splitlines()) == 1
        assert len(error) < 3000
    else:
        assert 1 <= grid.rows <= 10**8
        assert grid.block(0).numbers["m"].min() >= 1


def read_or_told(grid: dict) -> tuple:
    """The grid, or what is wrong with it; any other exception passes."""
    try:
        return read_grid(grid), ""
    except C3Error as error:
        return None, str(error)


@given(st.text(alphabet=st.sampled_from("[]{}axes=mnk.\"'size zip\n0123456789,#"), max_size=60) | st.text(max_size=60))
def test_any_text_is_a_grid_or_told_in_a_sentence(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "grid.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(C3Error, match=r"grid\.toml: .+"):  # nothing so short holds the five axes that are needed
        read_grid(path)


def test_arguments_are_checked(tmp_path):
    with pytest.raises(C3Error, match="sweep: workers must be a whole number of at least 1"):
        sweep({"axes": ONE}, tmp_path / "a", workers=0)
    with pytest.raises(C3Error, match="give either dask or workers"):
        sweep({"axes": ONE}, tmp_path / "a", workers=1, dask="tcp://127.0.0.1:1")
    with pytest.raises(C3Error, match=r"nothing\.toml: no such file"):
        sweep(tmp_path / "nothing.toml", tmp_path / "a")
    sweep({"axes": ONE}, tmp_path / "a")
    with pytest.raises(C3Error, match="unknown column 'speed'"):
        read_sweep(tmp_path / "a", ["speed"])


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(C3Error, match=r"needs pyarrow: .*\[sweep\]"):
        sweep({"axes": ONE}, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(C3Error, match=r"--dask needs dask\.distributed: .*\[sweep\]"):
        sweep({"axes": ONE}, tmp_path / "a", dask="tcp://127.0.0.1:1")
    assert not (tmp_path / "a").exists()
