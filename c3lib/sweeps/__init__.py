"""Sweeps of the model over grids of any size: resumable, in parallel, Parquet out (``c3 sweep``, docs/sweeps.md).

from c3lib.sweeps import read_sweep, sweep
sweep("grid.toml", "build/sweep")
frame = read_sweep("build/sweep")
"""

from c3lib.sweeps.folder import read_sweep
from c3lib.sweeps.run import sweep

__all__ = ["read_sweep", "sweep"]
