"""The analysis of random traces against counting what runs in every microsecond."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_cases import ADD, GATHER, GEMM, HOST, PEER, copy, kernel, write

from c3lib.trace.analysis import analyze

REDUCE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)"
COMPUTE, COMMUNICATION = ("gemm", "other gemm", "add"), ("gather", "reduce", "peer")
GEMMS, TRANSFERS = ("gemm", "other gemm"), (*COMMUNICATION, "host")
MAKE = {
    "gemm": lambda *when: kernel(GEMM, *when),
    "other gemm": lambda *when: kernel(GEMM, *when, grid=(64, 1, 1)),
    "add": lambda *when: kernel(ADD, *when, 8),
    "gather": lambda *when: kernel(GATHER, *when, 13),
    "reduce": lambda *when: kernel(REDUCE, *when, 14),
    "peer": lambda *when: copy(PEER, *when, inDevice=0, fromDevice=0, toDevice=1),
    "host": lambda *when: copy(HOST, *when),
    "local": lambda *when: copy("Memcpy DtoD (Device -> Device)", *when),
}
activities = st.lists(
    st.tuples(st.sampled_from(sorted(MAKE)), st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=14
)


def count(points):
    return pytest.approx(len(points) * 1e-6, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(activities)
def test_analysis_is_what_counting_gives(tmp_path_factory, some):
    (found,) = analyze(
        [write(tmp_path_factory.mktemp("oracle") / "t.json", [MAKE[what](*when) for what, *when in some])]
    )
    runs = [(what, set(range(start, start + length))) for what, start, length in some]

    def points(*kinds):
        return set().union(*(run for what, run in runs if what in kinds))

    compute, gemms = points(*COMPUTE), points(*GEMMS)
    assert found.busy_s == count(points(*MAKE))
    assert (found.gemm_s, found.compute_s) == (count(gemms), count(compute))
    for hidden, kinds in ((found.communication, COMMUNICATION), (found.host_copies, ("host",))):
        moving = points(*kinds)
        assert hidden.time_s == count(moving)
        assert hidden.exposed_s == count(moving - compute)
        assert hidden.overlapped_s == count(moving & compute)
        assert hidden.beside_gemms_s == count(moving & gemms)

    def alone(what):
        others = lambda run: set().union(*(other for _, other in runs if other is not run))  # noqa: E731
        return [len(run) for name, run in runs if name == what and run and not run & others(run)]

    beside = {what: [run for name, run in runs if name == what and run & points(*TRANSFERS)] for what in GEMMS}
    for what, grid in (("gemm", 132), ("other gemm", 64)):
        rows = [row for row in found.overlaps if row.gemm.grid[0] == grid]
        assert sum(row.runs for row in rows) == len(beside[what])
        for row in rows:
            assert row.gemm_alone_runs == len(alone(what))
            lost = row.runs * statistics.median(alone(what)) if alone(what) else math.nan
            assert math.isnan(row.lost_s) == math.isnan(lost)
            if alone(what):
                assert row.gemm_alone_s == pytest.approx(statistics.median(alone(what)) * 1e-6)
        if alone(what):
            longer = sum(map(len, beside[what])) - len(beside[what]) * statistics.median(alone(what))
            assert sum(row.lost_s for row in rows) == pytest.approx(longer * 1e-6, abs=1e-12)
    for row in found.overlaps:
        what = {"all-gather": "gather", "reduce-scatter": "reduce"}.get(row.transfer.collective, row.transfer.role[:4])
        mine = [run for name, run in runs if name == what and run & gemms]
        assert row.transfer_s == pytest.approx(statistics.median(map(len, mine)) * 1e-6)
        assert row.transfer_alone_runs == len(alone(what))
        assert row.overlapped_s <= len(points(what) & gemms) * 1e-6 * row.runs + 1e-12
