"""What a finished sweep says in a few lines: how often each strategy is the best, and where overlap is a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from c3lib.errors import C3Error
from c3lib.strategy import STRATEGIES
from c3lib.sweeps.folder import read_manifest, tables


def summary(folder: Path | str) -> list[dict[str, Any]]:
    """One row a strategy, over all scenarios; read part by part, so that memory does not grow.

    ``best_share`` is the share of scenarios where it is the fastest of those that a program can choose beforehand,
    ``loss_share`` that where it takes longer than one kernel after the other; speedups are over that too.

    Raises:
        C3Error: no sweep there, or a part that is missing or damaged.
    """
    folder = Path(folder)
    about = read_manifest(folder)
    names = about["strategies"]
    sums = {name: np.zeros(len(names)) for name in ("count", "best", "loss", "speedup")}
    highest = np.zeros(len(names))
    for table in tables(folder, about, ["strategy", "best", "speedup"]):
        strategies = table["strategy"].combine_chunks()
        if not set(said := strategies.dictionary.to_pylist()) <= set(names):
            raise C3Error(f"{folder}: holds rows of strategies that are not the sweep's; begin anew")
        which = np.array([names.index(name) for name in said], int)
        which = which[strategies.indices.to_numpy()]
        speedup, best = table["speedup"].to_numpy(), table["best"].to_numpy()
        for name, weights in {"count": None, "best": best, "loss": speedup < 1, "speedup": speedup}.items():
            sums[name] += np.bincount(which, weights, len(names))
        np.maximum.at(highest, which, speedup)
    return [
        {
            "strategy": name,
            "oracle": STRATEGIES[name].oracle,
            "best_share": sums["best"][index] / sums["count"][index],
            "loss_share": sums["loss"][index] / sums["count"][index],
            "speedup_mean": sums["speedup"][index] / sums["count"][index],
            "speedup_max": highest[index],
        }
        for index, name in enumerate(names)
    ]
