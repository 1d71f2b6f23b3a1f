"""``c3 advise``: one GEMM beside one collective, a model's layers, or a table of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from c3lib.errors import C3Error
from c3lib.shell import Json, NodeName, Strategies, show

_WAYS = {
    "--gemm": ("--gemm", "--collective", "--size"),
    "--config": ("--config", "--tokens"),
    "--table": ("--table", "--out"),
}
"""The ways to ask, and what each needs."""


def advise(
    gemm: Annotated[str, typer.Option(metavar="MxNxK", help="One GPU's GEMM.", show_default=False)] = "",
    collective: Annotated[str, typer.Option(metavar="KIND", help="all-gather or all-to-all.", show_default=False)] = "",
    size: Annotated[
        str,
        typer.Option(
            help="Total, such as 896MiB: gathered output, or what one rank sends in an all-to-all.", show_default=False
        ),
    ] = "",
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A model's config.json, as Hugging Face has it.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Rows of one rank's GEMMs: its tokens.")] = None,
    fsdp: Annotated[int, typer.Option(help="Ranks that shard the parameters.")] = 1,
    tp: Annotated[int, typer.Option(help="Ranks of tensor parallelism.")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks that share the experts: 1 or all.")] = 1,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=".csv or .parquet: m,n,k,collective,nbytes[,dtype][,node][,ranks]."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The table with the advice behind.")] = None,
    node: NodeName = "mi300x_8",
    dtype: Annotated[str, typer.Option(help="Elements: bf16, fp16, fp32 or fp8.")] = "bf16",
    strategies: Strategies = None,
    json: Json = False,
) -> None:
    """Overlap or not, by which strategy, on DMA engines or not, how many CUs to withhold, below which size to fall
    back, and what it gains over serial, with an interval from the model's measured error.

    \b
    Three ways to ask:
      a pair    --gemm 8192x8192x8192 --collective all-gather --size 896MiB
      a model   --config config.json --tokens 8192 --fsdp 8 (or --tp, --ep)
      a table   --table pairs.csv --out advice.csv

    A program that drives no DMA engines asks for what it can run: --strategy c3_base --strategy c3_sp.

    \b
    Example:
      c3 advise --gemm 8192x8192x8192 --collective all-gather --size 896MiB --node h200_2
    """
    given: dict[str, object] = {"--gemm": gemm, "--collective": collective, "--size": size}
    given |= {"--config": config, "--tokens": tokens, "--table": table, "--out": out}
    way = _way({name for name, value in given.items() if value not in (None, "")})
    if way != "--config" and (fsdp, tp, ep) != (1, 1, 1):
        raise C3Error("--fsdp, --tp and --ep are of a model: give --config and --tokens with them")
    if table is not None and out is not None:
        from c3lib.advisor.table import advise_table

        rows = advise_table(table, out, node, strategies, dtype=dtype, progress=True)
        show({"table": table, "out": out, "rows": rows}, f"wrote {out}: {rows} rows", json)
        return
    if config is not None and tokens is not None:
        from c3lib.advisor.layers import Parallelism
        from c3lib.advisor.plan import advise_model

        found = advise_model(config, Parallelism(tokens, fsdp, tp, ep), node, dtype=dtype, strategies=strategies)
        show(found.to_dict(), str(found), json)
        return
    from c3lib.advisor.advice import advise as advised
    from c3lib.hardware import load_node
    from c3lib.workload import Collective, Gemm, parse_size

    there = load_node(node)
    pair = Gemm.parse(gemm, dtype), Collective(collective, parse_size(size), there.ranks)
    result = advised(*pair, there, strategies)
    show(result.to_dict(), str(result), json)


def _way(given: set[str]) -> str:
    """Which of the ways is asked. Raises :class:`C3Error` for none, for parts of two, and where one lacks a part."""
    asked = [way for way, needs in _WAYS.items() if given & set(needs)]
    if not asked:
        raise C3Error("say what to advise on: --gemm, --collective and --size; or --config; or --table")
    if len(asked) > 1:
        first, other = (next(name for name in _WAYS[way] if name in given) for way in asked[:2])
        raise C3Error(f"{first} and {other} are two ways to ask; give one")
    lacking = [name for name in _WAYS[asked[0]] if name not in given]
    if lacking:
        have = next(name for name in _WAYS[asked[0]] if name in given)
        raise C3Error(f"{have} needs {' and '.join(lacking)} too")
    return asked[0]
