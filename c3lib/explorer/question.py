"""What the explorer can be asked, and the answer as data: the same numbers as ``c3 explain`` and ``c3 advise``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from c3lib.advisor.advice import Advice, advise_all
from c3lib.explain import EVIDENCE, Explanation, explain
from c3lib.hardware import Node, load_node
from c3lib.model.timeline import timeline
from c3lib.strategy import strategy
from c3lib.suites import MATRICES
from c3lib.workload import Collective, Gemm, Scenario, format_size

FREE = "free"
"""The layer whose three dimensions are set one by one."""

LAYERS = (FREE, *MATRICES)


@dataclass(frozen=True)
class Question:
    """A GEMM beside a collective on a node, and the strategy whose timeline is shown.

    Raises:
        C3Error: an unknown node, collective, dtype or strategy; a dimension that is no positive integer.
    """

    gemm: Gemm
    kind: str = "all-gather"
    nbytes: int = 2**28
    node: str = "mi300x_8"
    strategy: str = "conccl"

    def __post_init__(self) -> None:
        strategy(self.strategy)
        self.collective  # noqa: B018 -- refuses what cannot be

    @property
    def machine(self) -> Node:
        """The node."""
        return load_node(self.node)

    @property
    def collective(self) -> Collective:
        """The collective, over all ranks of the node."""
        return Collective(self.kind, self.nbytes, self.machine.ranks)

    def on(self, node: str) -> Question:
        """The same question of another node."""
        return replace(self, node=node)

    def shell(self) -> str:
        """The line that asks the same in a shell."""
        dtype = "" if self.gemm.dtype == "bf16" else f" --dtype {self.gemm.dtype}"
        size = f"{self.nbytes // 2**20}MiB" if self.nbytes % 2**20 == 0 else str(self.nbytes)
        return f"c3 explain --gemm {self.gemm} --collective {self.kind} --size {size} --node {self.node}{dtype}"

    def python(self) -> str:
        """The expression that asks the same in Python, after ``import c3lib``."""
        dtype = "" if self.gemm.dtype == "bf16" else f', "{self.gemm.dtype}"'
        gemm = f"c3lib.Gemm({self.gemm.m}, {self.gemm.n}, {self.gemm.k}{dtype})"
        collective = f'c3lib.Collective("{self.kind}", {self.nbytes}, {self.machine.ranks})'
        return f'c3lib.explain({gemm}, {collective}, "{self.node}")'


def layer_gemm(layer: str, tokens: int, dtype: str = "bf16") -> Gemm:
    """The GEMM of ``tokens`` rows by the weight matrix of a model's layer (a name of :data:`LAYERS`)."""
    return Gemm(tokens, *MATRICES[layer], dtype)


@dataclass(frozen=True)
class Answer:
    """All that is shown of a question; times in seconds.

    ``timeline`` as :func:`c3lib.model.timeline.timeline` gives it, and what it is of; ``reached_tflops`` of the GEMM
    alone.
    """

    question: Question
    explanation: Explanation
    advice: Advice
    timeline: pd.DataFrame
    reached_tflops: float


def answer(question: Question) -> Answer:
    """Ask the model."""
    node, gemm = question.machine, question.gemm
    found = explain(gemm, question.collective, node)
    pair = Scenario(f"{gemm}, {question.kind} {format_size(question.nbytes)}", gemm, question.collective)
    return Answer(
        question=question,
        explanation=found,
        advice=advise_all([pair], node)[0],
        timeline=timeline(pair, node, question.strategy).assign(
            strategy=question.strategy, node=node.name, evidence=EVIDENCE, scenario=pair.name
        ),
        reached_tflops=gemm.flops / found.gemm_alone_s / 1e12,
    )
