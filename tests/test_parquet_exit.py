"""A process that has read Parquet ends as it should: no thread of Arrow's is left that may outlive Python.

Such a thread may hold the last reference to bytes of Python's; it waits for an interpreter that has ended, and the
process aborts after all is done (exit status 134).
"""

import subprocess
import sys

from c3lib.files import ROOT

EXAMPLE = ROOT / "docs" / "examples" / "sweep.toml"

READING = """
import sys
from pathlib import Path
import pandas, pyarrow.dataset
from c3lib.advisor.table import advise_table
from c3lib.sweeps import read_sweep, sweep
from c3lib.sweeps.summary import summary

def threads():  # but that which Arrow's allocator keeps, which knows nothing of Python
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    return sum(name != "jemalloc_bg_thd" for name in names)

if __name__ == "__main__":
    out = Path(sys.argv[1])
    sweep(sys.argv[2], out, workers=1)
    before = threads()  # NumPy's among them
    assert len(read_sweep(out)) > 0 and len(summary(out)) == 6
    pairs = read_sweep(out, ["m", "n", "k", "collective", "total_bytes"]).head(9)
    pairs = pairs.rename(columns={"total_bytes": "nbytes"}).astype({"collective": str})
    table = pyarrow.Table.from_pandas(pairs, preserve_index=False, nthreads=1)
    pyarrow.parquet.write_table(table, out / "in.parquet")
    assert advise_table(out / "in.parquet", out / "out.parquet") == 9
    print(threads() - before)
    pandas.read_parquet(next(out.glob("part-*")))
    print(threads() - before)
"""


def test_what_reads_parquet_starts_no_thread_of_arrows(tmp_path):
    program = tmp_path / "reading.py"
    program.write_text(READING)
    words = [sys.executable, program, tmp_path / "out", EXAMPLE]
    done = subprocess.run(words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    ours, pandas = done.stdout.split()
    assert ours == "0", done.stderr
    assert int(pandas) > 0, "what is looked for would have been seen"


def test_fresh_sweeps_end_well(tmp_path):
    """Each of several: one that aborts does so about every other time."""
    for number in range(3):
        words = [sys.executable, "-m", "c3lib", "sweep", EXAMPLE, "--out", tmp_path / str(number)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert "rows" in done.stdout
