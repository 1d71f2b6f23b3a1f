"""The ladder three times over: reported, modelled, measured; a column each, because no two are of the same thing."""

from __future__ import annotations

import pandas as pd

from c3lib.experiment import run_suite
from c3lib.figures import ladder, measured_c3
from c3lib.hardware import PAPER_NODE

REPORTED, MODELLED, CALIBRATED = "reported, MI300X mesh", "modelled, MI300X mesh", "calibrated on it"
MEASURED, LOW, HIGH = "measured, {}", "low", "high"


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean fraction of ideal of each strategy, one row each.

    ``rows``: a measured suite. Columns: what arXiv 2412.14335 reports; what the model gives on the paper's node over
    ``conccl30``, and whether the reported rung set one of its constants; what was measured, against the strategy's own
    transport alone, with the bootstrap interval over scenarios.
    """
    modelled = ladder.rungs(run_suite(PAPER_NODE)).set_index("strategy")
    found = measured_c3.rungs(rows).set_index("strategy")
    table = pd.DataFrame(
        {
            REPORTED: modelled["reported"],
            MODELLED: modelled["fraction_of_ideal"],
            CALIBRATED: modelled["status"].eq("calibrated"),
            MEASURED.format(rows["node"].iloc[0]): found["own_fraction"],
            LOW: found["own_low"],
            HIGH: found["own_high"],
        }
    )
    return table.loc[found.index].rename_axis("strategy").reset_index()
