"""The analysis of random traces against counting what runs in every microsecond."""

import math
import statistics
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trace_cases import ADD, GATHER, GEMM, HOST, PEER, copy, kernel, write

from c3lib.trace.analysis import analyze
from c3lib.trace.values import LATEST_NS

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


ENDS = (-LATEST_NS, -LATEST_NS + 1, -1, 0, 1, LATEST_NS - 1, LATEST_NS)
LENGTHS = (0, 1, LATEST_NS // 3, LATEST_NS - 1, LATEST_NS)
extremes = st.lists(
    st.tuples(st.sampled_from(["gemm", "add", "gather", "host"]), st.sampled_from(ENDS), st.sampled_from(LENGTHS)),
    min_size=1,
    max_size=8,
)


def union(spans):
    """Length of the union, in Python's integers, which do not overflow."""
    marks = sorted({mark for span in spans for mark in span})
    inside = [(a, b) for a, b in pairwise(marks) if any(s <= a and b <= e for s, e in spans)]
    return sum(b - a for a, b in inside)


@settings(max_examples=100, deadline=None)
@given(extremes)
@example([("gemm", -LATEST_NS, LATEST_NS), ("gather", 0, LATEST_NS), ("gemm", LATEST_NS, LATEST_NS)])
@example([("gather", -LATEST_NS, LATEST_NS), ("gemm", 0, LATEST_NS), ("gemm", LATEST_NS, LATEST_NS)] * 100)
def test_times_at_the_border_add_up_without_an_overflow(tmp_path_factory, some):
    """The longest times that are read, on both sides of 0, one after the other and many at once, on two GPUs."""
    events = [
        MAKE[what](str(Decimal(start) / 1000), str(Decimal(length) / 1000)) | {"pid": device}
        for device in (0, 1)
        for what, start, length in some
    ]
    for event in events:
        event["args"]["device"] = event["pid"]
    path = write(tmp_path_factory.mktemp("border") / "t.json", events)

    def length(*kinds):
        return union([(start, start + length) for what, start, length in some if what in kinds])

    compute, gemms = ("gemm", "add"), ("gemm",)
    first, second = analyze([path])
    assert repr(first) == repr(replace(second, device=0))  # NaN is itself
    assert first.span_s == (max(s + length for _, s, length in some) - min(s for _, s, _ in some)) / 1e9
    assert first.busy_s == length(*MAKE) / 1e9
    assert (first.gemm_s, first.compute_s) == (length(*gemms) / 1e9, length(*compute) / 1e9)
    for hidden, kind in ((first.communication, "gather"), (first.host_copies, "host")):
        assert hidden.time_s == length(kind) / 1e9
        assert hidden.exposed_s == (length(kind, *compute) - length(*compute)) / 1e9
        assert hidden.beside_gemms_s == (length(kind) + length(*gemms) - length(kind, *gemms)) / 1e9
    for row in first.overlaps:
        assert 0 < row.overlapped_s <= row.runs * LATEST_NS / 1e9
        assert 0 < row.gemm_s <= LATEST_NS / 1e9
        assert 0 < row.transfer_s <= LATEST_NS / 1e9
