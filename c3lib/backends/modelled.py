"""The contention model as a backend: every row it gives is ``modelled``."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from c3lib.backends.base import AD_HOC, Timings
from c3lib.hardware import Node
from c3lib.model.contention import predict
from c3lib.model.kernels import batch
from c3lib.strategy import Strategy
from c3lib.workload import Scenario


class Modelled:
    """Predicts with :func:`c3lib.model.contention.predict`."""

    name = "model"
    evidence = "modelled"
    deterministic = True

    def __init__(self, node: Node, suite: str = AD_HOC) -> None:
        self.node = node

    def run(self, scenarios: Sequence[Scenario], strategy: Strategy, repetition: int) -> Timings:
        """Timings of one strategy; ``repetition`` makes no difference to a model."""
        gemm, collective = batch(scenarios, self.node)
        result = predict(gemm, collective, self.node, strategy)
        return Timings(
            gemm_alone_s=result.gemm_alone_s,
            collective_alone_s=result.collective_alone_s,
            gemm_end_s=result.gemm_end_s,
            collective_end_s=result.collective_end_s,
            concurrent_s=result.time_s,
            cus_taken=result.cus_taken,
            verified=np.full(len(scenarios), False),  # a model moves no bytes
            path="model",
        )
