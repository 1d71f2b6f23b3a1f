"""``c3 trace``: traces of GPUs read and analysed, and what the model says or a table holds written as one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from c3lib.errors import C3Error
from c3lib.shell import Json, NodeName, show

trace = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Traces of GPUs: what overlap costs in yours (c3 trace analyze), the model's as one (c3 trace export).",
)


@trace.command(short_help="exposed communication and the cost of each overlap in a profiler's trace")
def analyze(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Chrome traces, plain or gzipped; one a rank.")
    ],
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="NAME", help="Say also what the advisor would change there; c3 nodes lists them."
        ),
    ] = "",
    top: Annotated[int, typer.Option("--top", metavar="N", help="Overlaps to show of each GPU.", min=0)] = 10,
    partial: Annotated[
        bool, typer.Option("--partial", help="Of a file that is cut off analyse what is there.")
    ] = False,
    json: Json = False,
) -> None:
    """What a trace of torch.profiler says of overlap: how much communication is exposed, and what each GEMM that ran
    beside a collective or a copy lost by it, against the same kernel alone elsewhere in the trace.

    CUDA and ROCm. Record it with ProfilerActivity.CUDA and export_chrome_trace; with record_shapes=True the shapes of
    the GEMMs are known too, which --node needs. Files of any size: they are read as a stream.

    \b
    Example:
      c3 trace analyze docs/traces_example.json --node mi300x_8
    """
    from c3lib.trace import page
    from c3lib.trace.advice import advise_overlaps
    from c3lib.trace.analysis import analyze as analyzed

    with _progress(files) as advance:
        found = analyzed(files, advance, partial)
    advised = advise_overlaps(found, node, top) if node else []
    show({"devices": page.content(found, advised, top)}, page.text(found, advised, top), json)


@trace.command(short_help="a modelled or measured run as a trace for Perfetto")
def export(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write; gzipped if it ends in .gz.")],
    gemm: Annotated[str, typer.Option(metavar="MxNxK", help="One GPU's GEMM, for the model.")] = "",
    collective: Annotated[str, typer.Option(metavar="KIND", help="all-gather or all-to-all.")] = "",
    size: Annotated[str, typer.Option(help="Total, such as 896MiB, as c3 explain takes it.")] = "",
    node: NodeName = "mi300x_8",
    dtype: Annotated[str, typer.Option(help="Elements of the GEMM: bf16, fp16, fp32 or fp8.")] = "bf16",
    strategy: Annotated[str, typer.Option(metavar="NAME", help="How the collective runs beside it.")] = "conccl",
    alone: Annotated[
        bool, typer.Option("--alone", help="Of the model: behind it each kernel alone, so that slowdowns show.")
    ] = False,
    measured: Annotated[
        str, typer.Option("--measured", metavar="NODE", help="In place of the model: what was measured there.")
    ] = "",
    scenario: Annotated[str, typer.Option(metavar="NAME", help="Of the suite measured there; c3 suite.")] = "",
    repetition: Annotated[
        int | None, typer.Option(metavar="N", help="Of the measured runs.", show_default="that of the median time")
    ] = None,
    json: Json = False,
) -> None:
    """Write a run as a Chrome trace, which ui.perfetto.dev shows: GEMM and collective as a profiler would record them,
    and, of the model, what limits each phase, the DMA engines, CUs, links and memory bandwidth in use.

    Every track says whether it is modelled or measured. The answer is what c3 trace analyze reads in the file.

    \b
    Example:
      c3 trace export --gemm 8192x8192x8192 --collective all-gather --size 896MiB --out build/trace.json
    """
    from c3lib.trace import export as exporting
    from c3lib.trace import page
    from c3lib.trace.analysis import analyze as analyzed
    from c3lib.workload import Collective, Gemm, parse_size

    model = {"--gemm": gemm, "--collective": collective, "--size": size}
    if measured:
        given: dict[str, object] = {**model, "--alone": alone or None}
        _refuse({name: value for name, value in given.items() if value}, "with --measured, which takes --scenario")
        if not scenario:
            raise C3Error("--scenario: say which of the suite that was measured; c3 suite lists them")
        built = exporting.measured(measured, scenario, strategy, repetition)
    else:
        for name, value in model.items():
            if not value:
                raise C3Error(f"{name}: say it, or --measured NODE for what was measured")
        _refuse({"--scenario": scenario, "--repetition": repetition}, "without --measured")
        from c3lib.hardware import load_node

        there = load_node(node)
        what = Gemm.parse(gemm, dtype), Collective(collective, parse_size(size), there.ranks)
        built = exporting.modelled(*what, there, strategy, alone=alone)
    exporting.write(built, out)
    found = analyzed([out])
    text = f"wrote {out}: open it in ui.perfetto.dev\n\n{page.text(found, [], 10)}"
    show({"out": out, **built["c3lib"], "devices": page.content(found, [], 10)}, text, json)


def _refuse(given: dict[str, object], where: str) -> None:
    for name, value in given.items():
        if value not in ("", None):
            raise C3Error(f"{name}: cannot be given {where}")


@contextmanager
def _progress(files: list[Path]) -> Iterator[Callable[[int], object]]:
    """What to call with the bytes read; a bar where a terminal sees it."""
    if not sys.stderr.isatty():
        yield lambda nbytes: None
        return
    from tqdm import tqdm

    total = sum(path.stat().st_size for path in files if path.is_file())
    with tqdm(total=total, desc="reading", unit="B", unit_scale=True, unit_divisor=1024, leave=False) as bar:
        yield bar.update
