"""Tables as a device would have measured them, for tests of what reads them: made of the model, in a scratch folder."""

import numpy as np
import pandas as pd

from c3lib import metrics
from c3lib.experiment import run_suite
from c3lib.hardware import load_node
from c3lib.measured import table_path
from c3lib.model import contention, kernels
from c3lib.results import write_table
from c3lib.schema import RESULTS
from c3lib.strategy import STRATEGIES
from c3lib.suites import load_suite

NODE, SUITE = load_node("h200_1"), "conccl30_host"
SCENARIOS = load_suite(SUITE, NODE.ranks)
SETTING = {
    "transport": "copy_engine",
    "batched": True,
    "blocks": 0,
    "first": "gemm",
    "high_priority": False,
    "sms_asked": 0,
    "sms_granted": 0,
    "partition": "none",
}
"""Copy engines beside a GEMM that has every SM."""

HEALTH = {
    "sm_mhz_before": 1900.0,
    "sm_mhz": 1900.0,
    "power_w_before": 400.0,
    "power_w": 500.0,
    "temperature_c": 50.0,
}
SWEPT = ((2, 0), (4, 0), (8, 0), (2, 2), (8, 8), (32, 32))
"""Thread blocks and withheld SMs of the configurations that a made-up sweep tried."""


def suite_rows(repeats=3, wobble=0.02, node=NODE, suite=SUITE, library="sm_kernel", **changed) -> pd.DataFrame:
    """A table of the suite: the model's times, each repetition ``wobble`` longer than the one before.

    ``library``: transport of the strategies that use SMs. ``changed``: columns, as values or as functions of the rows.
    """
    model = pd.concat([run_suite(node, suite, [name]) for name in STRATEGIES], ignore_index=True)
    scenarios = load_suite(suite, node.ranks)
    _, collective = kernels.batch(scenarios, node)
    default = np.tile(kernels.library_field(collective, node, "default_cus"), len(STRATEGIES)).astype(int)
    frames = []
    for repetition in range(repeats):
        factor = 1 + wobble * (repetition - repeats // 2)
        frame = model.assign(repetition=repetition, backend="cuda", evidence="measured", verified=True, path="traced")
        times = [name for name in frame if name.endswith("_s")]
        frame[times] *= factor
        dma = frame["strategy"].str.startswith("conccl").to_numpy()
        frame = frame.assign(**SETTING, link_bytes=frame["rank_bytes"] * 2 * (node.ranks - 1), overlap_s=0.0)
        frame["transport"] = np.where(dma, "copy_engine", library)
        frame["batched"] = dma
        withheld = np.concatenate([_withheld(how, scenarios, node) for how in STRATEGIES.values()]).astype(int)
        frame["blocks"] = np.where(dma, 0, np.where(withheld > 0, np.minimum(withheld, default), default))
        frame["first"] = np.where(frame["strategy"].isin(["c3_base", "c3_rp"]), "gemm", "transfer")
        frame["sms_granted"] = frame["sms_asked"] = withheld
        frame["partition"] = np.where(frame["sms_granted"] > 0, "sm target", "none")
        blocks = frame["blocks"].to_numpy().reshape(len(STRATEGIES), -1)
        own_s = [
            kernels.own_time_s(collective, node, how.transport, n)
            for how, n in zip(STRATEGIES.values(), blocks, strict=True)
        ]
        frame["own_alone_s"] = np.concatenate(own_s) * factor
        frames.append(frame.assign(**HEALTH))
    rows = pd.concat(frames, ignore_index=True)
    for name, value in changed.items():
        rows[name] = value(rows) if callable(value) else value
    ideal = metrics.ideal_speedup(rows["gemm_alone_s"], rows["own_alone_s"])
    realised = metrics.realised_speedup(rows["gemm_alone_s"], rows["own_alone_s"], rows["concurrent_s"])
    rows["own_fraction"] = metrics.fraction_of_ideal(realised, ideal)
    more = ["link_bytes", "own_alone_s", "own_fraction", "overlap_s", *HEALTH]
    return rows[[*RESULTS.columns, *SETTING, *more]]


def _withheld(how, scenarios, node):
    """SMs that the model's strategy withholds from each GEMM of the suite."""
    gemm, collective = kernels.batch(scenarios, node)
    if how.partition == "sweep":
        return contention.best_split(gemm, collective, node, how)
    return contention.withheld_cus(gemm, node) if how.partition == "memory-bound" else np.zeros(len(scenarios))


def sweep_rows(suite: pd.DataFrame, time_s) -> pd.DataFrame:
    """A table of the sweep over the suite's scenarios; ``time_s`` gives the concurrent time of its rows."""
    chosen = suite[suite["strategy"].isin(["c3_rp", "c3_sp_rp"])]
    frames = []
    for blocks, sms in SWEPT:
        frame = chosen[["node", "evidence", "suite", "scenario", "strategy", *SETTING, "repetition"]].copy()
        frame["blocks"], frame["sms_asked"], frame["sms_granted"] = blocks, sms, sms
        frame["partition"] = "sm target" if sms else "none"
        ends = time_s(chosen.assign(**frame[list(SETTING)]))
        frames.append(
            frame.assign(gemm_end_s=ends, collective_end_s=ends, concurrent_s=ends, verified=True, path="traced")
        )
    return pd.concat(frames, ignore_index=True)


def write(folder, rows: pd.DataFrame, experiment=SUITE, node=NODE.name) -> None:
    """Write a table and its sidecar where it is looked for."""
    write_table(rows, table_path(node, experiment, folder), repeats=int(rows["repetition"].nunique()))


def isolated_rows(time_s, transport="sm_kernel") -> pd.DataFrame:
    """A table of isolated transfers by SM kernel, 128 MiB both ways; ``time_s`` maps thread blocks to seconds."""
    rows = [
        {
            "node": NODE.name,
            "evidence": "measured",
            "experiment": "isolated",
            "gemm": "none",
            "dtype": "none",
            "bound": "none",
            "collective": "all-gather",
            "direction": "both",
            "total_bytes": 2**27,
            "link_bytes": 2**24 * 14,
            "copies": 14,
            **SETTING,
            "transport": transport,
            "batched": False,
            "blocks": blocks,
            "repetition": 0,
            "gemm_s": np.nan,
            "transfer_s": time_s(blocks),
            "region_s": time_s(blocks),
            "overlap_s": 0.0,
            **HEALTH,
            "verified": True,
            "path": "traced",
        }
        for blocks in (2, 4, 8, 32)
    ]
    return pd.DataFrame(rows)
