"""Sweeps on a real Dask cluster of several processes: the local table, whatever happens to the cluster."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from c3lib.cli import app
from c3lib.errors import C3Error
from c3lib.files import ROOT, write_bytes
from c3lib.sweeps import crew, run, sweep
from c3lib.sweeps.grid import read_grid
from c3lib.sweeps.rows import part

pytest.importorskip("distributed")

GRID = {
    "axes": {
        "strategy": ["conccl", "c3_sp"],
        "collective": "all-gather",
        "m": {"from": 16, "to": 8192, "steps": 512, "multiple": 16},
        "n": 8192,
        "k": 8192,
        "size": {"from": "1MiB", "to": "1024MiB", "steps": 1024},
    }
}
CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    how = dict(threads_per_worker=1, processes=True, dashboard_address=None)
    with LocalCluster(n_workers=int(sys.argv[1]), **how) as there:
        print(there.scheduler_address, *(worker.process.pid for worker in there.workers.values()), flush=True)
        sys.stdin.read()
"""


class Cluster:
    """A scheduler in a process, workers in processes of their own."""

    def __init__(self, folder: Path, workers: int):
        program = folder / "cluster.py"
        program.write_text(CLUSTER)
        self.process = subprocess.Popen(
            [sys.executable, program, str(workers)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.address, *pids = self.process.stdout.readline().split()
        self.workers = [int(pid) for pid in pids]

    def end(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.die()

    def die(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), 2)
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("local") / "sweep"
    assert sweep(GRID, folder, workers=1).parts == 11
    return folder


def parts(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.parquet"))}


def after(monkeypatch, count: int, happens) -> list[str]:
    """Something happens when so many parts are written; the list grows with each."""
    written: list[str] = []

    def write(path, content):
        written.append(path.name)
        if len(written) == count:
            happens()
        return write_bytes(path, content)

    monkeypatch.setattr(run, "write_bytes", write)
    return written


def test_a_worker_killed_in_mid_run_changes_nothing(tmp_path, two, local, monkeypatch):
    alive = {pid: Path(f"/proc/{pid}").exists() for pid in two.workers}
    assert list(alive.values()) == [True, True]
    written = after(monkeypatch, 2, lambda: os.kill(two.workers[0], signal.SIGKILL))
    done = sweep(GRID, tmp_path / "a", dask=two.address)
    assert (done.parts, done.kept, len(written)) == (11, 0, 11)
    assert parts(tmp_path / "a") == parts(local)
    stat = Path(f"/proc/{two.workers[0]}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_what_was_begun_here_is_finished_on_the_cluster(tmp_path, two, local, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    after(monkeypatch, 4, stop)
    with pytest.raises(KeyboardInterrupt):
        sweep(GRID, tmp_path / "a", workers=1)
    monkeypatch.undo()
    done = sweep(GRID, tmp_path / "a", dask=two.address)
    assert done.kept == 3
    assert parts(tmp_path / "a") == parts(local)


def test_a_cluster_that_dies_in_mid_run_is_a_sentence_and_nothing_is_lost(tmp_path, local, monkeypatch):
    cluster = Cluster(tmp_path, 1)
    try:
        after(monkeypatch, 2, cluster.die)
        with pytest.raises(C3Error) as caught:
            sweep(GRID, tmp_path / "a", dask=cluster.address)
    finally:
        cluster.die()
    assert str(caught.value).startswith(f"--dask {cluster.address}: ")
    assert str(caught.value).endswith("what is finished is kept, so run it again")
    monkeypatch.undo()
    assert sweep(GRID, tmp_path / "a", workers=1).kept >= 2
    assert parts(tmp_path / "a") == parts(local)


def test_a_cluster_without_workers_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "CONNECT_S", 1.0)
    cluster = Cluster(tmp_path, 0)
    try:
        with pytest.raises(C3Error, match="the cluster has no workers; nothing was changed"):
            sweep(GRID, tmp_path / "a", dask=cluster.address)
    finally:
        cluster.end()
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "nowhere.invalid:8786", "carrier://pigeon", "tcp://:", "?", "inproc://x"]
)
def test_no_cluster_there_is_one_sentence_within_seconds(tmp_path, address, monkeypatch):
    assert crew.CONNECT_S <= 5
    monkeypatch.setattr(crew, "CONNECT_S", 0.5)
    grid = tmp_path / "grid.toml"
    grid.write_text('[axes]\ncollective = "all-gather"\nm = 1\nn = 1\nk = 1\nsize = 1\n')
    started = time.monotonic()
    result = CliRunner().invoke(app, ["sweep", str(grid), "--out", str(tmp_path / "a"), "--dask", address])
    assert time.monotonic() - started < 15
    assert result.exit_code == 2
    assert result.stderr.startswith(f"c3: --dask {address}: no Dask cluster answers there (")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there is no Dask scheduler"),  # "HTTP/1.1": 3.07 EiB follow
        (
            (1).to_bytes(8, "little") + (2).to_bytes(8, "little") + b"\xff\xff",
            "what answers there is no Dask scheduler",
        ),
        (b"", ""),
    ],
    ids=["HTTP", "a frame of nothing", "nothing"],
)
def test_something_else_that_answers_there_is_no_cluster(tmp_path, monkeypatch, says, reason):
    monkeypatch.setattr(crew, "CONNECT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    there, _ = server.accept()
                    there.sendall(says)
                    there.recv(1 << 16)
                    there.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(C3Error) as caught:
            sweep(GRID, tmp_path / "a", dask=address)
    assert str(caught.value).startswith(f"--dask {address}: no Dask cluster answers there ({reason}")
    assert len(str(caught.value).splitlines()) == 1
    assert "EiB" not in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_an_empty_address_is_told_in_a_sentence(tmp_path):
    """It may come from a variable that is not set; the sweep must not run here instead."""
    grid = tmp_path / "grid.toml"
    grid.write_text('[axes]\ncollective = "all-gather"\nm = 1\nn = 1\nk = 1\nsize = 1\n')
    for address in ("", "  ", "tcp://a\n:1", " tcp://a:1", "tcp://\x1b[2J:1", "tcp://" + "a" * 5000):
        result = CliRunner().invoke(app, ["sweep", str(grid), "--out", str(tmp_path / "a"), "--dask", address])
        assert result.exit_code == 2
        assert result.stderr.startswith("c3: --dask: give the address of a Dask scheduler, such as tcp://")
        assert result.stderr.count("\n") == 1
        assert result.stderr[:-1].isprintable()
        assert len(result.stderr) < 300
        assert not (tmp_path / "a").exists()


def test_a_worker_with_another_model_is_refused():
    about = {"nodes": "mi300x_8", "model": "0" * 64}
    with pytest.raises(C3Error, match="a worker has another version of c3lib"):
        part(read_grid(GRID).block(0), about)
