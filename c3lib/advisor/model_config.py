"""A transformer's weight matrices, from the ``config.json`` that Hugging Face's libraries store beside a model.

Only sizes are read: nothing of the file is executed, nothing is downloaded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from c3lib.errors import C3Error
from c3lib.files import ordinary, read_text
from c3lib.workload import whole

LARGEST_FILE = 2**20
"""Bytes of a config that are read at most; those of public models have a few thousand."""

MOST_LAYERS = 10_000
LARGEST_SIZE = 2**31
"""No dimension and no count of a config exceeds this; products of several of them stay exact (Python's integers)."""


@dataclass(frozen=True)
class Matrix:
    """A weight matrix: for each token ``n`` numbers from ``k``. The GEMM of ``t`` tokens is ``t x n x k``.

    ``split``: the side that tensor parallelism splits: ``"n"`` (column-parallel), ``"k"`` (row-parallel), ``""``: none.
    ``biases``: further parameters, one an output.
    """

    name: str
    n: int
    k: int
    split: str
    biases: int = 0

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.n * self.k + self.biases


@dataclass(frozen=True)
class Experts:
    """The routed experts of a layer, all alike: ``count`` of them, of which a token goes to ``per_token``."""

    count: int
    per_token: int
    matrices: tuple[Matrix, ...]

    @property
    def parameters(self) -> int:
        """Of all experts together, without the router."""
        return self.count * sum(matrix.parameters for matrix in self.matrices)


@dataclass(frozen=True)
class Layer:
    """A decoder layer. ``vectors``: parameters that are in no GEMM of note (norms, the router and its biases)."""

    kind: str  # "dense" or "MoE"
    attention: tuple[Matrix, ...]
    mlp: tuple[Matrix, ...]  # of every token: a dense layer's MLP, or the shared experts
    experts: Experts | None
    vectors: int

    @property
    def dense_parameters(self) -> int:
        """All but the routed experts."""
        return self.vectors + sum(matrix.parameters for matrix in (*self.attention, *self.mlp))

    @property
    def parameters(self) -> int:
        """All of the layer."""
        return self.dense_parameters + (self.experts.parameters if self.experts else 0)


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer. ``heads`` has what must divide by the tensor-parallel degree, by its key."""

    path: str
    family: str
    hidden: int
    layers: tuple[Layer, ...]
    heads: Mapping[str, int]
    other_parameters: int  # embeddings, last norm, output matrix

    @cached_property
    def parameters(self) -> int:
        """Of the whole model."""
        return self.other_parameters + sum(layer.parameters for layer in self.layers)

    @cached_property
    def active_parameters(self) -> int:
        """Those that a token meets: of the routed experts only as many as it goes to."""
        idle = (
            layer.experts.parameters * (layer.experts.count - layer.experts.per_token) // layer.experts.count
            for layer in self.layers
            if layer.experts
        )
        return self.parameters - sum(idle)


@dataclass(frozen=True)
class Config:
    """The keys of a config; each getter checks what it returns and names file and key when that is wrong."""

    path: Path
    keys: Mapping[str, Any]

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.keys.get(key) is not None

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number; ``default`` where the key is missing or null. Raises :class:`C3Error` for anything else."""
        value = self.keys.get(key)
        if value is None:
            if default is None:
                raise C3Error(f"{self.path}: key {key!r} is missing, a whole number of at least {least}")
            return default
        number = whole(f"{self.path}: key {key!r}", _short(value), least)
        if number > LARGEST_SIZE:
            raise C3Error(f"{self.path}: key {key!r} must be at most {LARGEST_SIZE}, not {number}")
        return number

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; ``default`` where the key is missing or null."""
        value = self.keys.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise C3Error(f"{self.path}: key {key!r} must be true or false, not {_short(value)!r}")
        return value

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers from 0; none where the key is missing or null."""
        value = self.keys.get(key)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise C3Error(f"{self.path}: key {key!r} must be a list of whole numbers, not {_short(value)!r}")
        return tuple(whole(f"{self.path}: every item of key {key!r}", _short(item), least=0) for item in value)

    def quotient(self, key: str, by: str, number: int, divisor: int) -> int:
        """``number / divisor``. Raises :class:`C3Error` unless it comes out even."""
        if number % divisor:
            raise C3Error(f"{self.path}: key {key!r} ({number}) must be a multiple of {by!r} ({divisor})")
        return number // divisor


def read_model(path: Path | str) -> Model:
    """The model of a ``config.json``, or of the folder that holds one.

    Raises:
        C3Error: no such file, larger than :data:`LARGEST_FILE`, not JSON, a family that is not known, or a key that is
            missing, impossible or there twice; file and key are named.
    """
    from c3lib.advisor.families import FAMILIES

    path = Path(path)
    with suppress(OSError):  # what is wrong with it is said below
        path = path / "config.json" if path.is_dir() else path
    ordinary(path, LARGEST_FILE)
    keys = _parse(path, read_text(path, LARGEST_FILE))
    name = keys.get("model_type")
    if name is None:
        raise C3Error(f"{path}: is not a model's config.json: it has no key 'model_type'")
    if not isinstance(name, str):
        raise C3Error(f"{path}: key 'model_type' must be one of {', '.join(FAMILIES)}, not {_short(name)!r}")
    if name not in FAMILIES:
        hint = "; give the file's part text_config" if isinstance(keys.get("text_config"), dict) else ""
        raise C3Error(f"{path}: key 'model_type': {_short(name)!r} is not known; known: {', '.join(FAMILIES)}{hint}")
    return build(Config(path, keys), name, FAMILIES[name])


Layers = tuple[Callable[[int], Layer], Mapping[str, int]]
"""What makes layer ``i`` (alike ones are one), and the heads that must divide by the tensor-parallel degree."""

Shape = Callable[[Config, int], Layers]
"""A family: the layers by a config and the hidden size."""


def build(config: Config, family: str, shape: Shape) -> Model:
    """The model of a config by a family's rules."""
    hidden, vocabulary = config.count("hidden_size"), config.count("vocab_size")
    number = config.count("num_hidden_layers")
    if number > MOST_LAYERS:
        raise C3Error(f"{config.path}: key 'num_hidden_layers' must be at most {MOST_LAYERS}, not {number}")
    layer, heads = shape(config, hidden)
    ends = vocabulary * hidden * (1 if config.flag("tie_word_embeddings") else 2) + hidden
    return Model(str(config.path), family, hidden, tuple(map(layer, range(number))), heads, ends)


def _parse(path: Path, text: str) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not a number of JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) < len(pairs):
            twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
            raise C3Error(f"{path}: key {_short(twice)!r} stands twice")
        return keys

    try:
        keys = json.loads(text.removeprefix("\ufeff"), parse_constant=refuse, object_pairs_hook=once)
    except RecursionError:
        raise C3Error(f"{path}: not a config: it is nested too deeply") from None
    except ValueError as error:  # a number of 5000 digits too
        raise C3Error(f"{path}: not valid JSON: {error}") from None
    if not isinstance(keys, dict):
        raise C3Error(f"{path}: must hold one JSON object, not {_short(keys)!r}")
    return keys


def _short(value: Any) -> Any:
    """A value for a message, or text that stands for one that is too long."""
    if value is None or isinstance(value, (bool, int, float)):
        return value if not isinstance(value, int) or abs(value) < 10**20 else "a larger number"
    if isinstance(value, str):
        return value if len(value) <= 40 else f"{value[:37]}..."
    return f"a {type(value).__name__} of {len(value)}"
