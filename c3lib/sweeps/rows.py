"""One part of a sweep: its scenarios by the model, as a Parquet file; the same bytes wherever it is computed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from c3lib import metrics
from c3lib.errors import C3Error, lacking
from c3lib.files import DATA
from c3lib.hardware import COLLECTIVES, Node, load_node
from c3lib.model import kernels
from c3lib.model.kernels import CollectiveBatch
from c3lib.model.sweep import CHUNK, Sweep, evaluate
from c3lib.strategy import STRATEGIES, strategy
from c3lib.sweeps.axes import SIZE
from c3lib.sweeps.grid import Block
from c3lib.workload import DTYPE_BYTES

if TYPE_CHECKING:
    import pyarrow

EVIDENCE = "modelled"

_MODEL = ("contention", "kernels", "resident", "shared_gpu", "sharing", "sweep")
CODE = (
    *("constants.py", "hardware.py", "metrics.py", "strategy.py", "sweeps/rows.py", "workload.py"),
    *(f"model/{name}.py" for name in _MODEL),
)
"""What the numbers depend on, beside the nodes' files (a test holds the list)."""

RESULTS = (
    "strategy",
    "oracle",
    "gemm_alone_s",
    "collective_alone_s",
    "concurrent_s",
    "ideal",
    "speedup",
    "fraction_of_ideal",
    "cus_taken",
    "best",
    "best_with_oracles",
    "evidence",
)
"""Columns after those of the axes; named and meant as in :data:`c3lib.schema.RESULTS`."""


@cache
def model_id(nodes: tuple[str, ...]) -> str:
    """SHA-256 of the code and the nodes' files that the numbers depend on: two places that share it agree."""
    home, digest = Path(__file__).resolve().parent.parent, hashlib.sha256()
    for file in (*(home / name for name in CODE), *(DATA / "hardware" / f"{name}.toml" for name in sorted(nodes))):
        digest.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def part(block: Block, about: Mapping[str, str]) -> bytes:
    """The block's rows as a Parquet file; ``about`` goes into its metadata and holds the sweep's ``model``.

    Raises:
        C3Error: this process has another version of the model than the sweep, or lacks pyarrow.
    """
    names = tuple(sorted(about["nodes"].split()))
    if about["model"] != model_id(names):
        raise C3Error("a worker has another version of c3lib, or of a node's file, than the sweep was begun with")
    pyarrow = arrow()
    table = _table(block).replace_schema_metadata({**about, "part": str(block.number)})
    sink = pyarrow.BufferOutputStream()
    words = [name for name in table.column_names if pyarrow.types.is_dictionary(table.schema.field(name).type)]
    pyarrow.parquet.write_table(table, sink, compression="zstd", use_dictionary=words, row_group_size=len(table) or 1)
    return sink.getvalue().to_pybytes()


def arrow() -> Any:
    """pyarrow with its Parquet part. Raises :class:`C3Error` where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise lacking("a sweep, which is written as Parquet,", "pyarrow", "sweep") from None
    return pyarrow


@lru_cache(maxsize=128)
def _node(name: str, constants: tuple[tuple[str, float], ...]) -> Node:
    return load_node(name).with_constants(dict(constants))


def modelled(block: Block) -> Sweep:
    """Times of the block's scenarios, ``(scenarios,)`` alone and ``(scenarios, strategies)`` concurrent, in seconds."""
    chosen = [strategy(name) for name in block.strategies]
    kinds, kind = block.words["collective"]
    types, dtype = block.words["dtype"]
    kind = np.array([COLLECTIVES.index(name) for name in kinds])[kind]
    element_bytes = np.array([DTYPE_BYTES[name] for name in types], float)[dtype]
    parts, first = [], 0
    for name, constants, count in block.nodes:
        node, stop = _node(name, tuple(constants.items())), first + count
        for begin in range(first, stop, CHUNK):
            rows = slice(begin, min(begin + CHUNK, stop))
            m, n, k, nbytes = (block.numbers[column][rows] for column in ("m", "n", "k", SIZE))
            peers = node.ranks - 1
            sent = peers * -(-nbytes // node.ranks)  # as Collective.sent_bytes
            collective = CollectiveBatch(kind[rows], sent.astype(float), np.full(len(sent), float(peers)))
            parts.append(evaluate(kernels.gemm_batch(m, n, k, element_bytes[rows], node), collective, node, chosen))
        first = stop
    joined = {
        name: np.concatenate([getattr(item, name) for item in parts])
        for name in ("gemm_alone_s", "collective_alone_s", "time_s", "cus_taken")
    }
    return Sweep(strategies=block.strategies, **joined)


def _best(times: NDArray, names: tuple[str, ...], oracles: bool) -> NDArray:
    """The fastest of each row, bool ``(scenarios, strategies)``; of equals the simplest, the first of STRATEGIES."""
    columns = [names.index(name) for name, how in STRATEGIES.items() if name in names and (oracles or not how.oracle)]
    best = np.zeros(times.shape, bool)
    if columns:
        fastest = np.array(columns)[times[:, columns].argmin(-1)]
        best[np.arange(len(times)), fastest] = True
    return best


def _table(block: Block) -> pyarrow.Table:
    """Rows of a block: each scenario under each strategy in turn."""
    pa = arrow()
    found, how_many = modelled(block), len(block.strategies)
    alone = found.gemm_alone_s[:, None], found.collective_alone_s[:, None]
    ideal, speedup = metrics.ideal_speedup(*alone), metrics.realised_speedup(*alone, found.time_s)
    scenarios = len(found.time_s)

    def words(names: tuple[str, ...], codes: NDArray) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))

    each = lambda values: np.repeat(values, how_many, axis=0).reshape(-1)  # noqa: E731
    turn = lambda values: np.tile(np.asarray(values), scenarios)  # noqa: E731
    counts = [count for *_, count in block.nodes]
    names = tuple(dict.fromkeys(name for name, *_ in block.nodes))
    where = np.repeat([names.index(name) for name, *_ in block.nodes], counts)
    columns: dict[str, Any] = {}
    if "label" in block.words:
        columns["label"] = words(block.words["label"][0], each(block.words["label"][1]))
    columns["node"] = words(names, each(where))
    for key in block.nodes[0][1]:
        columns[key] = each(np.repeat([constants[key] for _, constants, _ in block.nodes], counts))
    columns["collective"] = words(block.words["collective"][0], each(block.words["collective"][1]))
    columns |= {name: each(block.numbers[name]) for name in ("m", "n", "k")}
    columns["dtype"] = words(block.words["dtype"][0], each(block.words["dtype"][1]))
    columns["total_bytes"] = each(block.numbers[SIZE])
    results = (
        words(block.strategies, turn(np.arange(how_many))),
        turn([STRATEGIES[name].oracle for name in block.strategies]),
        each(found.gemm_alone_s),
        each(found.collective_alone_s),
        found.time_s.reshape(-1),
        each(ideal),
        speedup.reshape(-1),
        metrics.fraction_of_ideal(speedup, ideal).reshape(-1),
        found.cus_taken.reshape(-1),
        _best(found.time_s, block.strategies, oracles=False).reshape(-1),
        _best(found.time_s, block.strategies, oracles=True).reshape(-1),
        words((EVIDENCE,), np.zeros(scenarios * how_many)),
    )
    return pa.table({**columns, **dict(zip(RESULTS, results, strict=True))})
