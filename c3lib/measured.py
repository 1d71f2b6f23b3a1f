"""Tables of what a device measured: their columns, where they lie, and how they are read.

``data/measured/<node>/<experiment>.csv``, each with a sidecar beside it. Reading needs pandera, writing does not.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from c3lib.errors import C3Error
from c3lib.files import DATA, names_in

FOLDER = DATA / "measured"

EXPERIMENTS = {
    "isolated": "each kernel alone: GEMMs by SMs, transfers by transport, blocks, direction and size",
    "suite": "every scenario of the suite under every strategy",
    "sweep": "the configurations that c3_rp and c3_sp_rp choose from",
    "order": "a GEMM beside an SM kernel of more and more blocks: which is first, and with what priority",
    "transports": "between GPUs: each transport alone and beside each GEMM, launched first and second",
    "links": "between GPUs: what the NVLink counters saw of each transport, payload and all",
    "break_even": "small transfers beside a GEMM: from which size on overlap pays",
    "energy": "joules of a scenario by strategy",
    "ficco": "over the host link: finer-grain schedules by transport, and their kernels and exchanges alone",
    "ficco_losses": "GEMMs and exchanges whole, cut, and beside each other: what cutting and sharing cost",
    "premise": "hardware counters: what a transfer does to memory traffic and the L2 cache",
    "fsdp_step": "between GPUs: a training step under FSDP2 by who gathers the parameters, and of the model unsharded",
}
"""Names of the tables, and what each holds. ``suite`` stands for the suite's own name in the file's name."""

TRANSPORTS = {
    "copy_engine": "copy engine",
    "bare_copy": "copy engine, nobody waited for",
    "sm_kernel": "SM kernel",
    "nccl": "NCCL",
    "nccl_unclustered": "NCCL, no clusters",
    "nccl_registered": "NCCL, registered buffers",
    "nccl_zero_cta": "NCCL, zero CTAs",
    "sdma": "SDMA engines",
    "rccl": "RCCL",
}
"""What moved the bytes, as a table's column ``transport`` has it, and its name in text; ``none`` where nothing did.

``bare_copy`` is copies without the ranks waiting for one another, ``sm_kernel`` the project's own copy kernel. NCCL's
``blocks`` are those that ran; with zero CTAs it hands the bytes to copy engines where it can.
"""

ENGINE_DRIVEN = ("copy_engine", "bare_copy", "nccl_zero_cta", "sdma")
"""Transports that take no SM while bytes move, as long as no blocks ran."""

UNCLUSTERED = ("sm_kernel", "nccl_unclustered")
"""Transports whose thread blocks are launched one by one, also where the library's start in clusters."""


def table_path(node: str, experiment: str, folder: Path = FOLDER) -> Path:
    """Where a table lies."""
    return folder / node / f"{experiment}.csv"


def measured_nodes(folder: Path = FOLDER) -> list[str]:
    """Nodes that something was measured on."""
    return sorted(path.name for path in folder.glob("*") if path.is_dir() and names_in(path, ".csv"))


def read_measured(node: str, experiment: str, folder: Path = FOLDER) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table and its provenance.

    Raises:
        C3Error: nothing of the kind was measured on that node, a schema is violated, CSV and sidecar disagree, or
            no hardware ran the rows.
    """
    from c3lib.results import read_table

    known = names_in(folder / node, ".csv") if (folder / node).is_dir() else []
    if experiment not in known:
        have = ", ".join(known) or "nothing"
        others = [name for name in measured_nodes(folder) if experiment in names_in(folder / name, ".csv")]
        where = f"it was measured on {', '.join(others)}" if others else "nor was it on any other node"
        raise C3Error(f"nothing called {experiment!r} was measured on {node}, which has {have}; {where}")
    path = table_path(node, experiment, folder)
    rows, about = read_table(path, schemas().get(experiment, schemas()["suite"]))
    expected = {"node": node, "evidence": "measured"} | ({} if experiment in EXPERIMENTS else {"suite": experiment})
    for column, value in expected.items():
        if not rows[column].eq(value).all():
            raise C3Error(f"{path}: column {column} must be {value!r} in every row")
    return rows, about


@cache
def schemas() -> dict[str, Any]:
    """A pandera schema for each experiment."""
    import pandera.pandas as pa

    from c3lib import schema as rows

    text, flag, count = rows._text, rows._flag, rows._count
    seconds = rows._seconds
    maybe = rows._number(pa.Check.ge(0), nullable=True)
    measured = {"node": text(), "evidence": text(checks=pa.Check.isin(("measured",)))}
    setting = {
        "transport": text(checks=pa.Check.isin(("none", *TRANSPORTS))),
        "batched": flag(),
        "blocks": count(),
        "first": text(checks=pa.Check.isin(("gemm", "transfer"))),
        "high_priority": flag(),
        "sms_asked": count(),
        "sms_granted": count(),
        "partition": text(checks=pa.Check.isin(("none", "sm target", "green context", "cu mask"))),
    }
    health = dict.fromkeys(("sm_mhz_before", "sm_mhz", "power_w_before", "power_w", "temperature_c"), maybe)
    region = {
        **measured,
        "experiment": text(),
        "gemm": text(),
        "dtype": text(),
        "bound": text(checks=pa.Check.isin(("compute", "memory", "none"))),
        "collective": text(),
        "direction": text(checks=pa.Check.isin(("in", "out", "both", "none"))),
        "total_bytes": count(),
        "link_bytes": count(),
        "copies": count(),
        **setting,
        "repetition": count(),
        "gemm_s": maybe,
        "transfer_s": maybe,
        "region_s": seconds(),
        "overlap_s": maybe,
        **health,
        "verified": flag(),
        "path": text(),
    }
    regions = pa.DataFrameSchema(region, strict=True, ordered=True)
    suite = rows.RESULTS.add_columns(
        {
            **setting,
            "link_bytes": count(),
            "own_alone_s": maybe,
            "own_fraction": rows._number(nullable=True),
            "overlap_s": maybe,
            **health,
        }
    )
    counted = {
        **measured,
        "gemm": text(),
        "bound": text(),
        "arm": text(),
        "transport": text(),
        "blocks": count(),
        "link_bytes": count(),
        "counter": text(),
        "unit": text(),
        "value": maybe,
        "repetition": count(),
        "verified": flag(),
        "path": text(),
    }
    energy = {
        **measured,
        "scenario": text(),
        "gemm": text(),
        "bound": text(),
        "strategy": text(),
        **setting,
        "repetition": count(),
        "runs": count(1),
        "seconds_per_run": seconds(),
        "joules_per_run": seconds(),
        "sm_mhz": maybe,
        "power_w": maybe,
        "verified": flag(),
        "path": text(),
    }
    links = {
        **measured,
        "gemm": text(),
        "collective": text(),
        "total_bytes": count(1),
        **setting,
        "in_place": flag(),
        "repetition": count(),
        "runs": count(1),
        "seconds_per_run": seconds(),
        "plan_bytes": count(1),
        **dict.fromkeys(("sent_bytes", "received_bytes", "sent_raw_bytes", "received_raw_bytes"), seconds()),
        "verified": flag(),
        "path": text(),
    }
    sweep = {
        **measured,
        "suite": text(),
        "scenario": text(),
        "strategy": text(),
        **setting,
        "repetition": count(),
        "gemm_end_s": seconds(),
        "collective_end_s": seconds(),
        "concurrent_s": seconds(),
        "verified": flag(),
        "path": text(),
    }
    training = {
        **measured,
        "model": text(),
        "size": text(),
        "layers": count(1),
        "hidden": count(1),
        "tokens": count(1),  # a GPU and step
        "ranks": count(2),
        "parameter_bytes": count(1),
        "block_bytes": count(1),
        "transport": setting["transport"],  # of the all-gather; none: the model unsharded
        "repetition": count(),
        "steps": count(1),
        "step_s": seconds(),
        "loss": rows._number(),
        "verified": flag(),
        "path": text(),
    }
    problem = {
        **measured,
        "problem": text(),
        "collective": text(),
        **dict.fromkeys(("m", "n", "k"), count(1)),
        "dtype": text(),
    }
    movers = text(checks=pa.Check.isin(("none", "copy_engine", "sm_kernel")))
    schedules = {
        **problem,
        "ranks": count(2),
        "pieces": count(1),
        "piece_bytes": count(1),
        "received_bytes": count(1),
        "schedule": text(),
        "lanes": text(checks=pa.Check.isin(("both", "kernels", "exchanges"))),
        "transport": movers,  # none: kernels alone
        **dict.fromkeys(("blocks", "sms_withheld", "copies", "operations"), count()),
        "memory_bytes": count(1),
        "repetition": count(),
        "time_s": seconds(),  # since the gate opened
        **dict.fromkeys(("gemm_start_s", "gemm_end_s", "exchange_start_s", "exchange_end_s", "overlap_s"), maybe),
        "step_ends_us": text(),  # of each exchange step, since the gate opened
        **health,
        "verified": flag(),
        "path": text(),
    }
    losses = {
        **problem,
        "measured": text(checks=pa.Check.isin(("gemm", "exchange"))),
        "cut": text(checks=pa.Check.isin(("none", "m", "n", "k"))),
        "parts": count(1),
        "beside": text(checks=pa.Check.isin(("nothing", "exchange", "gemm"))),
        "transport": movers,  # of the exchange, measured or beside
        **dict.fromkeys(("blocks", "sms_withheld", "moved_bytes"), count()),
        "repetition": count(),
        "time_s": seconds(),
        **health,
        "verified": flag(),
        "path": text(),
    }
    strict = lambda columns: pa.DataFrameSchema(columns, strict=True, ordered=True)  # noqa: E731
    return {
        **dict.fromkeys(("isolated", "order", "break_even"), regions),
        "transports": strict({**region, "in_place": flag()}),
        "suite": suite,
        "premise": strict(counted),
        "energy": strict(energy),
        "links": strict(links),
        "sweep": strict(sweep),
        "fsdp_step": strict(training),
        "ficco": strict(schedules),
        "ficco_losses": strict(losses),
    }
