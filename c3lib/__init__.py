"""c3lib: concurrent computation and communication (C3) on GPUs, measured, modelled and explained.

    import c3lib
    node = c3lib.load_node("mi300x_8")
    gemm = c3lib.Gemm(8192, 8192, 8192)
    collective = c3lib.Collective("all-gather", nbytes=896 * 2**20, ranks=8)
    print(c3lib.explain(gemm, collective, node))

Names are loaded on first use, so that ``import c3lib`` costs nothing.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "C3Error": "errors",
    "Gemm": "workload",
    "Collective": "workload",
    "Scenario": "workload",
    "load_suite": "suites",
    "Node": "hardware",
    "load_node": "hardware",
    "node_names": "hardware",
    "Advice": "advisor.advice",
    "advise": "advisor.advice",
    "advise_model": "advisor.plan",
    "Parallelism": "advisor.layers",
    "STRATEGIES": "strategy",
    "Strategy": "strategy",
    "TransferPlan": "transfer",
    "explain": "explain",
    "run_suite": "experiment",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'c3lib' has no attribute {name!r}")
    return getattr(import_module(f"c3lib.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
