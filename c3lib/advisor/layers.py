"""Which GEMM of a model can run beside which collective, and of what size, when it is spread over the GPUs of a node.

Forward pass of one rank, ``tokens`` rows at a time; elements of ``b`` bytes. What is counted:

FSDP over ``f`` ranks
    While a layer computes, the parameters of the next one are gathered: an all-gather of ``b`` times its parameters on
    this rank (over ``tp``, without routed experts that stay where they are). It runs beside the layer's GEMMs one after
    the other, so each gets the share of it that its time alone has in theirs.
EP over ``e`` ranks
    Tokens go to the ranks of their experts and back: two all-to-alls, ``b * tokens * experts per token * hidden`` sent
    by a rank each time, if all experts get as many. They depend on the experts' GEMMs of the same tokens, so a second
    micro-batch must fill in: its dispatch runs beside gate+up, its combine beside down.
TP over ``t`` ranks, with sequence parallelism
    An all-gather of ``b * tokens * hidden`` before the attention's and the MLP's first GEMM, which need what it brings:
    data-dependent, so nothing runs beside them unless both are cut into pieces (:mod:`c3lib.advisor.dependent`).

Attention itself, norms and routers run beside the collectives too, which only makes them easier to hide; the last
layer has no next one; reduce-scatters (TP's outputs, gradients) are not covered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from c3lib.advisor.model_config import Experts, Layer, Matrix, Model
from c3lib.errors import C3Error, located
from c3lib.hardware import Node
from c3lib.workload import DTYPE_BYTES, Collective, Gemm, whole


@dataclass(frozen=True)
class Parallelism:
    """How a model is spread over the ranks of one node: FSDP (shards of data parallelism), tensor and expert parallel.

    ``tokens``: rows of the GEMMs of one rank (with ``tp``: of its tensor-parallel group). Expert parallelism takes all
    ``fsdp * tp`` ranks, or its own where both are 1. Raises :class:`C3Error` for values that are not whole from 1.
    """

    tokens: int
    fsdp: int = 1
    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("tokens", "fsdp", "tp", "ep"):
            whole(name, getattr(self, name), least=1)

    @property
    def ranks(self) -> int:
        """GPUs that it takes."""
        return max(self.fsdp * self.tp, self.ep)

    def check(self, model: Model, node: Node) -> None:
        """Raises :class:`C3Error` unless the model can be spread so over the node."""
        node.check_ranks(self.ranks, "fsdp x tp x ep")
        if self.ranks == 1:
            raise C3Error("one rank alone sends nothing: give fsdp, tp or ep a degree of at least 2")
        for key, heads in model.heads.items():
            if heads % self.tp:
                raise C3Error(f"{model.path}: key {key!r} ({heads}) must be a multiple of tp ({self.tp})")
        counts = {layer.experts.count for layer in model.layers if layer.experts}
        if self.ep > 1 and not counts:
            raise C3Error(
                f"{model.path}: a model of type {model.family} without experts, so ep must be 1, not {self.ep}"
            )
        if 1 < self.ep < self.ranks:
            raise C3Error(f"ep must be 1 or all ranks, fsdp x tp = {self.ranks}, not {self.ep}")
        for count in counts:
            if count % self.ep:
                raise C3Error(f"{model.path}: {count} experts cannot be dealt evenly to ep = {self.ep} ranks")
        for matrix in dict.fromkeys(matrix for layer in dict.fromkeys(model.layers) for matrix in self.matrices(layer)):
            if matrix.split and (matrix.n if matrix.split == "n" else matrix.k) % self.tp:
                raise C3Error(f"{model.path}: the matrix {matrix.name} cannot be split over tp = {self.tp} ranks")

    def matrices(self, layer: Layer) -> tuple[Matrix, ...]:
        """Those of a layer that tensor parallelism splits: experts only where they are not dealt to ranks whole."""
        return (*layer.attention, *layer.mlp, *(layer.experts.matrices if layer.experts and self.ep == 1 else ()))


@dataclass(frozen=True)
class Work:
    """GEMMs, by name, that run one after the other beside one collective, in ``times`` layers of a kind.

    ``dependent``: the GEMM needs what the collective brings, so it waits for it, unless both are cut finer.
    """

    name: str
    layer: str
    gemms: tuple[tuple[str, Gemm], ...]
    what: str
    collective: Collective
    times: int
    dependent: bool = False


def works(model: Model, how: Parallelism, dtype: str) -> list[Work]:
    """What runs beside what, once for each kind of layer (and, for FSDP, of the layer after it).

    Raises :class:`C3Error` for a GEMM or collective that is too large; the model's file and the layer are named.
    """
    found: list[Work] = []
    where = lambda layer: located(f"{model.path}, {layer.kind} layer, {how.tokens} tokens")  # noqa: E731
    if how.fsdp > 1:
        for (layer, following), times in Counter(pairwise(model.layers)).items():
            with where(layer):
                found.append(_sharded(layer, following, how, dtype, times))
    for layer, times in Counter(model.layers).items():
        with where(layer):
            found += _expert_parallel(layer, how, model.hidden, dtype, times)
            found += _tensor_parallel(layer, how, model.hidden, dtype, times)
    return found


def _sharded(layer: Layer, following: Layer, how: Parallelism, dtype: str, times: int) -> Work:
    name = layer.kind if following.kind == layer.kind else f"{layer.kind}, then {following.kind}"
    collective = Collective("all-gather", _gathered(following, how) * DTYPE_BYTES[dtype], how.fsdp)
    what = "all-gather of the next layer's parameters"
    return Work(f"{name}: FSDP", name, tuple(_gemms(layer, how, dtype)), what, collective, times)


def _expert_parallel(layer: Layer, how: Parallelism, hidden: int, dtype: str, times: int) -> Iterator[Work]:
    experts = layer.experts
    if how.ep == 1 or experts is None:
        return
    nbytes = -(-how.tokens // how.tp) * experts.per_token * hidden * DTYPE_BYTES[dtype]
    collective = Collective("all-to-all", nbytes, how.ep)
    for what, gemm in zip(("dispatch", "combine"), _expert_gemms(experts, how, dtype), strict=True):
        what = f"all-to-all, {what} of another micro-batch's tokens"
        yield Work(f"{layer.kind}: EP {gemm[0]}", layer.kind, (gemm,), what, collective, times)


def _tensor_parallel(layer: Layer, how: Parallelism, hidden: int, dtype: str, times: int) -> Iterator[Work]:
    if how.tp == 1:
        return
    collective = Collective("all-gather", how.tokens * hidden * DTYPE_BYTES[dtype], how.tp)
    inner = layer.mlp[:1] or (layer.experts.matrices[:1] if layer.experts and how.ep == 1 else ())
    for matrix in (*layer.attention[:1], *inner):
        gemm = next(item for item in _gemms(layer, how, dtype) if item[0] == matrix.name)
        group, what = f"{layer.kind}: TP {matrix.name}", "all-gather of its own input"
        yield Work(group, layer.kind, (gemm,), what, collective, times, dependent=True)


def _gathered(layer: Layer, how: Parallelism) -> int:
    """Parameters of a layer that FSDP gathers on one rank."""
    split = sum(matrix.parameters for matrix in (*layer.attention, *layer.mlp) if matrix.split)
    count = layer.dense_parameters - split + -(-split // how.tp)
    if layer.experts and how.ep == 1:
        count += -(-layer.experts.parameters // how.tp)
    return count


def _gemms(layer: Layer, how: Parallelism, dtype: str) -> Iterator[tuple[str, Gemm]]:
    """The GEMMs of one rank, in order, but for those of experts that EP deals to ranks: all-to-alls run beside them."""
    for matrix in (*layer.attention, *layer.mlp):
        n = matrix.n // how.tp if matrix.split == "n" else matrix.n
        k = matrix.k // how.tp if matrix.split == "k" else matrix.k
        yield matrix.name, Gemm(how.tokens, n, k, dtype)
    if layer.experts and how.ep == 1:
        yield from _expert_gemms(layer.experts, how, dtype)


def _expert_gemms(experts: Experts, how: Parallelism, dtype: str) -> Iterator[tuple[str, Gemm]]:
    """The grouped GEMMs of this rank's experts, each as one GEMM with the experts' columns side by side.

    So flops, weights and outputs are those of the group, if every expert gets as many tokens. With EP each rank has
    the tokens of all ``ep`` of them for its ``count / ep`` experts.
    """
    mine = experts.count // how.ep
    copies = how.tokens * experts.per_token * how.ep // (how.tp if how.ep > 1 else 1)
    rows = max(1, -(-copies // experts.count))
    for matrix in experts.matrices:
        tp = how.tp if how.ep == 1 else 1
        n = matrix.n // tp if matrix.split == "n" else matrix.n
        k = matrix.k // tp if matrix.split == "k" else matrix.k
        yield matrix.name, Gemm(rows, n * mine, k, dtype)
