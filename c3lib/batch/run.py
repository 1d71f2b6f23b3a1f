"""Many notebooks at a time: a process a run, and what it made is kept until something that it rests on changes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from c3lib.batch.params import Job, read_jobs
from c3lib.cores import cores
from c3lib.errors import C3Error, shorten
from c3lib.files import ROOT, held, read_text, write_text
from c3lib.notebook import Value, shown
from c3lib.workload import whole

RECORD = "run.json"
SUMMARY = "summary.csv"
PATIENCE_S = 20.0
"""A run that is told to stop has so long to end its kernel."""


@dataclass(frozen=True)
class Outcome:
    """One run: ``status`` is "done", "kept" (of an earlier batch), "failed" or "not run"; ``error`` one sentence."""

    run: str
    notebook: str
    parameters: Mapping[str, Value]
    status: str
    time_s: float | None
    error: str = ""


def batch(
    params: Path | str,
    out: Path | str,
    *,
    jobs: int | None = None,
    fresh: bool = False,
    progress: bool = False,
    told: Callable[[list[Outcome]], None] = lambda outcomes: None,
) -> list[Outcome]:
    """Execute notebooks by the parameter sets of a YAML file, several at a time; in the file's order.

    ``out/<run>/`` holds what a run published (``files``) and the executed notebook (``executed``), and
    ``out/summary.csv`` a row a run, up to date after each. A run that fails leaves what it published before and stops
    no other. Runs whose notebook, parameters, data and modules are as they were are kept, unless ``fresh``.

    Args:
        jobs: runs at a time; default: one a core.
        told: called once at the end with the outcomes, also when the batch is interrupted.

    Raises:
        C3Error: a bad file or parameter, before anything runs; or a folder that cannot be written to.
    """
    at_a_time = cores() if jobs is None else whole("batch: jobs", jobs, least=1)
    todo, folder = read_jobs(params), Path(out).resolve()
    with held(folder, "batch"):
        outcomes = {job.name: _outcome(job, "not run", None) for job in todo}
        if not fresh:
            outcomes |= {job.name: kept for job in todo if (kept := _kept(folder / job.name, job)) is not None}
        crew = _Crew(folder)
        pool = futures.ThreadPoolExecutor(at_a_time)
        try:
            running = [pool.submit(crew.run, job) for job in todo if outcomes[job.name].status != "kept"]
            _summarise(folder, outcomes)
            for outcome in _watched(running, len(todo), progress):
                outcomes[outcome.run] = outcome
                _summarise(folder, outcomes)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            crew.stop()
            pool.shutdown()
            told(list(outcomes.values()))
    return list(outcomes.values())


def _watched(running: list[futures.Future], total: int, progress: bool) -> Any:
    from tqdm import tqdm

    with tqdm(
        total=total, initial=total - len(running), desc="batch", unit="run", disable=None if progress else True
    ) as bar:
        for future in futures.as_completed(running):
            yield future.result()
            bar.update()


class _Crew:
    """The processes that run notebooks now."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._alive: set[subprocess.Popen] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, job: Job) -> Outcome:
        """Run one job to its end, in a process of its own."""
        folder, started, began = self._folder / job.name, time.monotonic(), time.time()
        with self._lock:
            if self._stopped:
                return _outcome(job, "not run", None)
            # A session of its own: Ctrl-C reaches this process alone, which then stops the others in order.
            process = subprocess.Popen(
                [sys.executable, "-m", "c3lib.batch.job"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._alive.add(process)
        try:
            asked = {"notebook": str(job.notebook), "folder": str(folder), "parameters": dict(job.parameters)}
            answer = _asked(process, asked)
        finally:
            with self._lock:
                self._alive.discard(process)
        if self._stopped or "error" in answer:
            for empty in (folder / "executed", folder):  # nothing came of it
                with suppress(OSError):
                    empty.rmdir()
        if self._stopped:
            return _outcome(job, "not run", None)
        if "error" in answer:
            return _outcome(job, "failed", time.monotonic() - started, answer["error"])
        try:
            inputs = {path: _content(Path(path), began) for path in answer["dependencies"]}
            record = {"parameters": dict(job.parameters), **answer, "inputs": inputs}
            del record["dependencies"]  # which are the names of the inputs
            write_text(folder / RECORD, json.dumps(record, indent=1) + "\n")
        except C3Error as error:
            return _outcome(job, "failed", answer["time_s"], str(error))
        return _outcome(job, "done", answer["time_s"])

    def stop(self) -> None:
        """Tell those that still run to end, and wait until they have."""
        with self._lock:
            self._stopped = True
            alive = list(self._alive)
        for process in alive:
            process.terminate()
        for process in alive:
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _asked(process: subprocess.Popen, job: Mapping[str, Any]) -> dict[str, Any]:
    """What a run answers; its stdin is closed only then, since it ends with it."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[bytes] = []
    listener = threading.Thread(target=lambda: said.append(process.stderr.read()))  # type: ignore[union-attr]
    listener.start()
    try:
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = b""
    if line:
        process.stdin.close()
    code = process.wait()
    listener.join()
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()
    if line:
        return json.loads(line)
    if code < 0:
        return {"error": f"its process was killed (signal {-code}; out of memory?)"}
    words = b"".join(said).decode("utf-8", "replace").strip().split("\n")
    return {"error": f"its process ended without an answer (status {code}): {words[-1]}"}


def _outcome(job: Job, status: str, time_s: float | None, error: str = "") -> Outcome:
    first = next(iter(error.strip().split("\n")), "")
    return Outcome(job.name, shown(job.notebook), job.parameters, status, time_s, shorten(first, 500, bare=True))


def _kept(folder: Path, job: Job) -> Outcome | None:
    """The outcome of an earlier run, where all that it rests on and all that it made is still there."""
    try:
        record = json.loads(read_text(folder / RECORD))
        same = record["parameters"] == job.parameters and all(
            _content(Path(path)) == content for path, content in record["inputs"].items()
        )
        executed = folder / "executed" / job.notebook.name
        there = all(Path(path).exists() for path in (*record["published"], executed))
        return _outcome(job, "kept", float(record["time_s"])) if same and there and record["inputs"] else None
    except (C3Error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # no record, or not one that can be trusted: run again


def _content(path: Path, began: float = math.inf) -> str:
    """SHA-256 of a file's content, or of the names in a folder; "gone" where there is neither.

    What was changed since ``began`` is "changed": which content the run saw is not known, so it is not kept.
    """
    try:
        if path.stat().st_mtime > began:
            return "changed"
        content = "\n".join(sorted(os.listdir(path))).encode() if path.is_dir() else path.read_bytes()
    except OSError:
        return "gone"
    return hashlib.sha256(content).hexdigest()


def _summarise(folder: Path, outcomes: Mapping[str, Outcome]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("run", "notebook", "parameters", "status", "time_s", "error"))
    for outcome in outcomes.values():
        row = {**asdict(outcome), "parameters": json.dumps(dict(outcome.parameters))}
        row["time_s"] = "" if outcome.time_s is None else f"{outcome.time_s:.2f}"
        writer.writerow(row.values())
    write_text(folder / SUMMARY, text.getvalue())
