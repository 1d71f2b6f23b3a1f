"""One explanation must feel instant: at most 50 ms after import."""

from c3lib.explain import explain
from c3lib.workload import Collective, Gemm


def test_explain_takes_at_most_50_ms(benchmark):
    gemm, collective = Gemm(64, 106496, 16384), Collective("all-to-all", 896 * 2**20, 8)
    benchmark(explain, gemm, collective)
    assert benchmark.stats.stats.median <= 0.05
