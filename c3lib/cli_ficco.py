"""``c3 ficco``: a GEMM that consumes what a collective delivers, under every finer-grain schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from c3lib.errors import C3Error
from c3lib.shell import Json, NodeName, show
from c3lib.terminal import paragraph, records

if TYPE_CHECKING:
    from c3lib.ficco import Problem


def ficco(
    gemm: Annotated[
        str, typer.Option("--gemm", metavar="MxNxK", help="The GEMM of all ranks; each computes N / ranks columns.")
    ] = "",
    collective: Annotated[
        str | None,
        typer.Option(
            "--collective",
            metavar="KIND",
            help="all-gather or all-to-all, which delivers A.",
            show_default="all-gather",
        ),
    ] = None,
    node: NodeName = "mi300x_8",
    transport: Annotated[
        str, typer.Option("--transport", metavar="NAME", help="Who moves the pieces: dma or cu.")
    ] = "dma",
    pieces: Annotated[
        int,
        typer.Option("--pieces", metavar="N", help="Pieces of a shard.", show_default="as many as ranks", min=0),
    ] = 0,
    ranks: Annotated[
        int, typer.Option("--ranks", metavar="N", help="GPUs.", show_default="all of the node", min=0)
    ] = 0,
    dtype: Annotated[str | None, typer.Option(help="Elements: bf16, fp16, fp32 or fp8.", show_default="bf16")] = None,
    problem_set: Annotated[
        str, typer.Option("--set", metavar="NAME", help="A set of GEMMs in place of one, such as ficco16.")
    ] = "",
    tasks: Annotated[
        str, typer.Option("--tasks", metavar="SCHEDULE", help="List what one rank does under this schedule.")
    ] = "",
    prove: Annotated[
        bool,
        typer.Option("--prove", help="Prove every schedule right, on paper and by torch on the CPU (needs torch)."),
    ] = False,
    json: Json = False,
) -> None:
    """A GEMM whose A a collective delivers, cut finer than shards and overlapped: each schedule's time and speedup over
    serial, who limits it, the memory that it takes, and which one the heuristic picks.

    The schedules are the project's own reading of FiCCO (arXiv 2512.10236); every time is modelled.

    \b
    Example:
      c3 ficco --gemm 131072x16384x16384 --collective all-gather --node mi300x_8
    """
    if bool(gemm) == bool(problem_set):
        raise C3Error("give either --gemm MxNxK or --set NAME")
    if tasks and not gemm:
        raise C3Error("--tasks lists the tasks of one GEMM: give --gemm MxNxK")
    if prove and not gemm:
        raise C3Error("--prove proves the schedules of one GEMM: give --gemm MxNxK")
    if prove and tasks:
        raise C3Error("give either --tasks SCHEDULE or --prove")
    for option, value in (("--collective", collective), ("--dtype", dtype)):
        if problem_set and value is not None:
            raise C3Error(f"{option} is of one GEMM, and each row of a set has its own: give --gemm MxNxK")
    from c3lib import listings_ficco as listings
    from c3lib.ficco import build
    from c3lib.ficco.sets import Row, load_problems, problem
    from c3lib.finer import require_possible, schedule_rows
    from c3lib.hardware import load_node
    from c3lib.schedule_choice import choose
    from c3lib.workload import Gemm

    there = load_node(node)
    count = ranks or there.ranks
    if problem_set:
        problems = load_problems(problem_set, count, pieces=pieces)
    else:
        whole = Gemm.parse(gemm, "bf16" if dtype is None else dtype)
        kind = "all-gather" if collective is None else collective
        problems = [Row(gemm, problem(kind, whole.m, whole.n, whole.k, count, whole.dtype, pieces), "asked")]
    require_possible(there, problems, [transport])
    if prove:
        proofs = _proofs(problems[0].problem)
        show(
            {"problem": str(problems[0].problem), "proofs": proofs}, "\n\n".join(map(paragraph, proofs.values())), json
        )
        return
    memory = there.gpu.hbm_capacity_gb * 1e9
    if gemm:  # a problem that does not even fit unscheduled is refused with what is missing
        build("serial", problems[0].problem, problems[0].problem.busiest, memory)
    if tasks:
        program = build(tasks, problems[0].problem, problems[0].problem.busiest, memory)
        content = {"program": str(program), "memory_bytes": program.peak_nbytes, "tasks": program.to_rows()}
        show(content, listings.of_program(program), json)
        return
    rows = schedule_rows(there, problems, [transport])
    fitting = rows[rows["fits"]].groupby("problem")["schedule"].agg(list)
    choices = {
        row.name: choose(row.problem, there, transport, fitting[row.name]) for row in problems if row.name in fitting
    }
    content = {
        "node": node,
        "evidence": "modelled",
        "transport": transport,
        "schedules": records(rows),
        "chosen": {name: {"schedule": choice.schedule, "reason": choice.reason} for name, choice in choices.items()},
    }
    if problem_set:
        text = listings.of_problem_set(f"{problem_set} on {node} by {transport} (modelled)", rows, choices)
    else:
        text = listings.of_schedules(rows, choices[gemm], memory)
    show(content, text, json)


def _proofs(problem: Problem) -> dict[str, str]:
    """A sentence for each schedule; a bar on a terminal, as they take seconds."""
    from tqdm import tqdm

    from c3lib.ficco import SCHEDULES
    from c3lib.ficco.prove import prove

    with tqdm(SCHEDULES, desc="prove", unit="schedule", delay=1, disable=None, leave=False) as names:
        return {name: prove(problem, name) for name in names}
