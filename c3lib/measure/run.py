"""``c3 measure``: every experiment in turn, each written whole with its provenance when it is done."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Iterable

import pandas as pd

from c3lib.backends.cuda import CudaBackend
from c3lib.backends.regions import SWEEP_REPEATS
from c3lib.cuda.device import require_gpu
from c3lib.errors import C3Error, unknown
from c3lib.files import DATA, ROOT
from c3lib.hardware import Node, load_node
from c3lib.measure import amd, counted, energy, ficco, ficco_losses, fsdp_step, links, premise, regions, suite
from c3lib.measure.journal import Journal, content_id
from c3lib.measure.rounds import run_rounds
from c3lib.region import NO_TRANSFER
from c3lib.results import provenance, write_table
from c3lib.suites import load_suite, require_sized
from c3lib.workload import whole

EXPERIMENTS = (
    *("premise", "fsdp_step", "links", "isolated", "suite", "order", "transports", "break_even"),
    *("ficco", "ficco_losses", "energy"),
)
"""In the order in which they run. ``premise`` and ``fsdp_step`` come first: their programs want GPUs for themselves."""

_SCHEDULES = {"ficco": ficco.PROBLEMS, "ficco_losses": ficco_losses.PROBLEMS}
"""Experiments of finer-grain schedules, and the set of problems of each."""

_ONE_GPU, _SEVERAL = ("premise", *_SCHEDULES), ("fsdp_step", "links", "transports")
"""Experiments of a node of one GPU only, and of several only."""

_DEVICE = ("device", "gpus", "driver", "nccl", "hsa_runtime", "hip", "libraries")
"""What of the provenance of two runs has to be the same, that one may go on from the other's rows."""

_SORTED = ("scenario", "gemm", "problem", "strategy", "schedule", "repetition")
"""Columns by which a table's rows are ordered, those that it has."""

FEWER = {"energy": 3, "links": 3, "ficco_losses": 5}
"""Repetitions at most of experiments that are loops of many runs themselves, or long."""


def measure(
    node: str,
    suite_name: str,
    out: Path,
    experiments: Iterable[str] = (),
    repeats: int = 9,
    seed: int = 0,
    quiet: bool = False,
) -> list[Path]:
    """Run experiments and write ``<out>/<experiment>.csv`` (the suite's under its own name); returns what was written.

    By default all experiments of the node. A table that is there already is measured anew; an experiment that was cut
    short goes on from its finished rows.

    Raises:
        C3Error: unknown node, suite or experiment; a suite sized for other links; everything the device can say; a
            transfer that failed its byte check or a path without proof (the rows stay in the journal, nothing is
            published).
    """
    there = load_node(node)
    repeats = whole("repeats", repeats, least=1)
    known = experiments_of(there)
    chosen = list(experiments) or known
    for name in chosen:
        if name in _SCHEDULES:
            ficco.require_host(there, name)
        if name not in known:
            raise unknown(f"experiment of {node}", name, known)
    load_suite(suite_name, there.ranks)
    require_sized(suite_name, there)
    session = _Session(there, suite_name, Path(out), repeats, seed, quiet)
    if there.vendor == "amd":
        session.backend  # noqa: B018 -- before anything is written: without an AMD GPU there is nothing to measure
    else:
        require_gpu(CudaBackend.check_node(there))
    if "premise" in chosen and len(set(chosen)) > 1 and not premise.profiler():
        print(f"c3 measure: leaves premise out: {premise.NO_PROFILER}", file=sys.stderr)
        chosen = [name for name in chosen if name != "premise"]
    written = []
    for name in EXPERIMENTS:
        if name in chosen:
            written += session.run(name)
    return written


def experiments_of(node: Node) -> list[str]:
    """The experiments that a node has."""
    if node.vendor == "amd":
        return list(amd.EXPERIMENTS)
    other = _SEVERAL if node.topology == "host" else _ONE_GPU
    return [name for name in EXPERIMENTS if name not in other]


class _Session:
    """One call of ``c3 measure``: the backend is opened when the first experiment needs it."""

    def __init__(self, node: Node, suite_name: str, out: Path, repeats: int, seed: int, quiet: bool):
        self.node, self.suite_name, self.out = node, suite_name, out
        self.repeats, self.seed, self.quiet = repeats, seed, quiet
        self._backend: Any = None

    @property
    def backend(self) -> Any:
        """The backend of the node's vendor."""
        if self._backend is None:
            self._backend = amd.open_backend(self.node) if self.node.vendor == "amd" else CudaBackend(self.node)
        return self._backend

    def run(self, name: str) -> list[Path]:
        """One experiment, written; a suite writes its sweep as well."""
        started = time.perf_counter()
        if name == "premise":
            rows = premise.premise_rows(self.node.name)
            return [self._write(name, rows, started, repeats=counted.REPEATS)]
        if name == "fsdp_step":
            rows, told = fsdp_step.fsdp_rows(self.node, self.repeats, self.seed)
            return [self._write(name, rows, started, repeats=self.repeats, **told)]
        repeats, told = min(self.repeats, FEWER.get(name, self.repeats)), {}
        if name in _SCHEDULES:
            bench = ficco.Bench(self.backend)
            told["schedule_control"] = ficco.controls(bench)
        journal = Journal(self.out / f"{self._file(name)}.unfinished.jsonl", self._same(name, repeats))
        try:
            make: dict[str, Any] = {
                "isolated": lambda: (amd if self.node.vendor == "amd" else regions).isolated(self.backend),
                "links": lambda: links.link_groups(self.backend),
                "order": lambda: regions.order(self.backend),
                "transports": lambda: regions.transports(self.backend),
                "break_even": lambda: regions.break_even(self.backend),
                "suite": lambda: suite.suite_groups(self.backend, self.suite_name, journal),
                "ficco": lambda: ficco.ficco_groups(bench),
                "ficco_losses": lambda: ficco_losses.loss_groups(bench),
                "energy": lambda: energy.energy_groups(self.backend, self.suite_name, journal),
            }
            run_rounds(make[name](), journal, repeats, self.seed, name, self.quiet)
        finally:
            journal.close()
            if name in _SCHEDULES:
                bench.clear()
        tables: dict[str, list[dict[str, Any]]] = {}
        for row in journal.rows:
            row.pop("setting", None)
            tables.setdefault(row.pop("table", name), []).append(row)
        for table, rows in tables.items():
            _require_sound(table, pd.DataFrame(rows), self.out)  # all of them before the first is written
        repeated = {"sweep": SWEEP_REPEATS}
        written = [
            self._write(table, rows, started, repeats=repeated.get(table, repeats), **told)
            for table, rows in tables.items()
        ]
        journal.remove()
        return written

    def _same(self, name: str, repeats: int) -> dict[str, Any]:
        """What has to be the same for an experiment to go on from the rows of a run that was cut short."""
        same = {"experiment": name, "node": self.node.name, "suite": self.suite_name, "repeats": repeats}
        same |= {"seed": self.seed, "code": content_id(ROOT / "c3lib")}
        same["node_file"] = content_id(DATA / "hardware" / f"{self.node.name}.toml")
        same["suite_file"] = content_id(DATA / "suites" / f"{self.suite_name}.csv")
        if name in _SCHEDULES:
            same["problems_file"] = content_id(DATA / "problems" / f"{_SCHEDULES[name]}.csv")
        about = {**self.backend.about(), "libraries": provenance()["libraries"]}
        return same | {key: about[key] for key in _DEVICE if key in about}

    def _ran(self, table: str) -> dict[str, str]:
        """What the rows of a table are about: a set of problems for schedules, else the suite."""
        if table not in _SCHEDULES:
            return {"suite": self.suite_name}
        path = DATA / "problems" / f"{_SCHEDULES[table]}.csv"
        return {"problems": _SCHEDULES[table], "problems_id": content_id(path)}

    def _file(self, table: str) -> str:
        return self.suite_name if table == "suite" else table

    def _write(self, table: str, rows: list[dict[str, Any]], started: float, **more: Any) -> Path:
        frame = pd.DataFrame(rows)
        _require_sound(table, frame, self.out)
        about = {**more, "experiment": table, "node": self.node.name, "seed": self.seed, **self._ran(table)}
        about |= {"date": datetime.now(UTC).date().isoformat(), "seconds": round(time.perf_counter() - started, 1)}
        about |= self.backend.about()
        keys = [name for name in _SORTED if name in frame]
        if table not in ("premise", "fsdp_step"):
            frame = frame.sort_values(keys, kind="stable")
        for column in frame.select_dtypes("float"):
            frame[column] = frame[column].map(lambda value: float(f"{value:.7g}"))
        return write_table(frame, self.out / f"{self._file(table)}.csv", **about)


def _require_sound(table: str, frame: pd.DataFrame, out: Path) -> None:
    wrong = frame[~frame["verified"].eq(True)]  # compared with True: an empty value is not a verification
    if len(wrong):
        first = wrong.iloc[0].to_dict()
        raise C3Error(
            f"{table}: {len(wrong)} of {len(frame)} rows failed their check and nothing is published; delete the "
            f"journal ({out}/*.unfinished.jsonl) to measure it anew. The first: {first}"
        )
    without = frame[
        frame["path"].fillna("").eq("") | ((frame["path"] == NO_TRANSFER) & frame.get("transport", "none").ne("none"))
    ]
    if len(without):
        raise C3Error(f"{table}: {len(without)} rows have no proof of path and nothing is published")
