"""``c3``: the package's questions from a shell. Commands are thin; what they need is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from c3lib import __version__, cli_advise, cli_ficco, cli_measured, cli_sweep, cli_trace
from c3lib.errors import C3Error
from c3lib.shell import Group, Json, Kind, NodeName, Size, Strategies, SuiteName, show
from c3lib.terminal import records

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help, which a pipe can take
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
model = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What the contention model rests on.")
app.add_typer(model, name="model", short_help="what the contention model rests on: c3 model params")
app.add_typer(cli_trace.trace, name="trace", short_help="what overlap costs in a profiler's trace: c3 trace analyze")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"c3lib {__version__}")
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """A GEMM and a collective on the same GPU at the same time: which resource is to blame for the slowdown, how
    much of the ideal speedup is left, and what moving the collective to DMA engines would buy.

    Every number says whether it is reported, modelled or measured.

    \b
    Example:
      c3 explain --gemm 8192x8192x8192 --collective all-gather --size 896MiB
    """


@app.command(short_help="one GEMM beside one collective: each strategy, who is to blame, what to do")
def explain(
    gemm: Annotated[str, typer.Option(metavar="MxNxK", help="One GPU's GEMM.")],
    collective: Kind,
    size: Size,
    node: NodeName = "mi300x_8",
    dtype: Annotated[str, typer.Option(help="Elements of the GEMM: bf16, fp16, fp32 or fp8.")] = "bf16",
    json: Json = False,
) -> None:
    """One GEMM beside one collective: time and fraction of ideal of each strategy, who is to blame, and what to do.

    \b
    Example:
      c3 explain --gemm 8192x8192x8192 --collective all-gather --size 896MiB --node mi300x_8
    """
    from c3lib.explain import explain as explained
    from c3lib.hardware import load_node
    from c3lib.workload import Collective, Gemm, parse_size

    there = load_node(node)
    result = explained(Gemm.parse(gemm, dtype), Collective(collective, parse_size(size), there.ranks), there)
    show(result.to_dict(), str(result), json)


@app.command(short_help="the nodes; with a name, its constants and where they come from")
def nodes(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A node to show in full.", show_default=False)] = "",
    json: Json = False,
) -> None:
    """List the nodes; with a name, every constant of that node with its unit, evidence and source.

    \b
    Example:
      c3 nodes mi300x_8
    """
    from c3lib import listings
    from c3lib.hardware import load_node, node_names

    if name:
        node = load_node(name)
        constants = [vars(constant) for constant in node.constants.values()]
        show({"node": name, "title": node.title, "constants": constants}, listings.of_constants(node), json)
        return
    found = [load_node(known) for known in node_names()]
    fields = ("name", "title", "vendor", "topology", "ranks")
    content = []
    for node in found:
        labels = [constant.evidence for constant in node.constants.values()]
        evidence = {label: labels.count(label) for label in sorted(set(labels))}  # of how many constants
        content.append({**{field: getattr(node, field) for field in fields}, "evidence": evidence})
    show(content, listings.of_nodes(found), json)


@app.command(short_help="the scenarios of a suite, each kernel alone")
def suite(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="A suite.")] = "conccl30",
    node: NodeName = "mi300x_8",
    json: Json = False,
) -> None:
    """The scenarios of a suite with the times of GEMM and collective alone, the GEMM's bound and the length class.

    \b
    Example:
      c3 suite conccl30 --node mi300x_8
    """
    from c3lib import listings
    from c3lib.experiment import run_suite
    from c3lib.hardware import load_node
    from c3lib.suites import load_suite, suite_names

    rows = run_suite(node, name, ["c3_base"])
    columns = ["scenario", "gemm", "dtype", "bound", "collective", "total_bytes", "gemm_alone_s", "collective_alone_s"]
    found = rows[[*columns, "ideal", "length_class"]].copy()
    found["origin"] = [scenario.origin for scenario in load_suite(name, load_node(node).ranks)]
    evidence = rows["evidence"].iloc[0]
    title = f"{name} on {node}, each kernel alone ({evidence}); suites: {', '.join(suite_names())}"
    content = {"suite": name, "node": node, "evidence": evidence, "scenarios": records(found)}
    show(content, listings.of_suite(title, records(found)), json)


@app.command(short_help="a suite under strategies: means, and every row as CSV")
def run(
    node: NodeName = "mi300x_8",
    suite: SuiteName = "conccl30",
    strategies: Strategies = None,
    backend: Annotated[str, typer.Option(metavar="NAME", help="What answers.")] = "model",
    repeats: Annotated[int, typer.Option(help="Repetitions; a model is run once whatever this says.")] = 9,
    out: Annotated[Path | None, typer.Option(help="Write every row to this CSV, its provenance beside it.")] = None,
    json: Json = False,
) -> None:
    """Run a suite under strategies: means over the scenarios, and on request every row as CSV. Where a row's bytes
    were wrong there are no means, only the CSV.

    \b
    Example:
      c3 run --node mi300x_8 --suite conccl30 --strategy c3_sp --strategy conccl
    """
    if out is not None and out.exists() and not out.is_file():
        raise C3Error(f"--out {out}: must be an ordinary file")
    from c3lib import listings
    from c3lib.experiment import run_suite, summarise
    from c3lib.results import write_table
    from c3lib.strategy import STRATEGIES

    rows = run_suite(node, suite, strategies or list(STRATEGIES), backend, repeats)
    if out is not None:  # rows that failed their byte check too, marked as such: they are what to look at then
        write_table(rows, out, node=node, suite=suite, backend=backend, repeats=repeats, seed=0)
    means = summarise(rows)
    evidence = means["evidence"].iloc[0]
    content = {"node": node, "suite": suite, "backend": backend, "evidence": evidence, "out": out}
    text = listings.of_summary(f"{suite} on {node} by {backend} ({evidence})", means)
    text += f"\n\n{listings.written(out, len(rows))}" if out is not None else ""
    show({**content, "summary": records(means), "rows": records(rows)}, text, json)


app.command(short_help="overlap or not, how, and what it gains: a pair, a model, a table")(cli_advise.advise)
app.command(short_help="what this machine can measure and what not, and why")(cli_measured.doctor)
app.command(short_help="run the experiments on this machine's GPU, bytes checked")(cli_measured.measure)
app.command(short_help="what the measured tables give for the constants of a node")(cli_measured.constants)
app.command(short_help="the model's predictions beside what was measured")(cli_measured.judge)
app.command(short_help="between GPUs: what overlaps with a GEMM, and what ran")(cli_measured.overlap)
app.command(short_help="a GEMM that consumes what a collective delivers, cut finer than shards")(cli_ficco.ficco)
app.command(short_help="the model over a grid of any size, into Parquet files")(cli_sweep.sweep)
app.command(short_help="notebooks by sets of parameters, in parallel")(cli_sweep.batch)


@app.command(short_help="what the papers report beside what the model gives")
def claims(
    claim: Annotated[str, typer.Argument(metavar="[ID]", help="One claim in full.", show_default=False)] = "",
    node: NodeName = "mi300x_8",
    suite: SuiteName = "conccl30",
    json: Json = False,
) -> None:
    """What the two papers report beside what the model gives, with a verdict; with an id, all about one claim.

    \b
    Example:
      c3 claims conccl.speedup.max
    """
    from c3lib import listings
    from c3lib.claims import claims_table, count, evaluator, load_claims, require_claim

    found = claims_table(node, suite)
    if claim:
        row = require_claim(found, claim)
        how, note = evaluator(row["id"]), load_claims().set_index("id").loc[row["id"], "note"]
        about = {**row, "rule": how.rule, "tolerance_because": how.because, "note": note, "evidence": "modelled"}
        show(about, listings.of_claim(about), json)
        return
    numbers = count(found)
    content = {"node": node, "suite": suite, "evidence": "modelled", "count": numbers, "claims": records(found)}
    title = f"ConCCL ({suite}) and FiCCO: reported beside modelled on {node}"
    show(content, listings.of_claims(title, found, numbers), json)


@model.command(short_help="every constant behind a modelled time, and what it moves")
def params(
    node: NodeName = "mi300x_8",
    suite: SuiteName = "conccl30",
    swing: Annotated[float, typer.Option(help="How far each constant is moved, as a fraction of it.")] = 0.2,
    json: Json = False,
) -> None:
    """Every constant that a modelled time depends on, what it was calibrated on, and which headline it moves most.

    \b
    Example:
      c3 model params --node mi300x_8 --swing 0.1
    """
    from c3lib import listings
    from c3lib.hardware import load_node
    from c3lib.model.sensitivity import tornado

    there = load_node(node)
    effects = tornado(there, swing=swing, suite=suite)
    moved = effects.drop(columns=["key", "unit", "value"])
    constants = [
        {**vars(there.constants[str(key)]), "sensitivity": records(moved.loc[index])}
        for key, index in effects.groupby("key", sort=False).groups.items()
    ]
    content = {"node": node, "suite": suite, "swing": swing, "evidence": "modelled", "constants": constants}
    title = f"What modelled times on {node} depend on; moves most: constant {swing:.0%} lower and higher, over {suite}"
    show(content, listings.of_params(title, there, effects), json)


@app.command(short_help="the copies that make up a collective, proved byte by byte")
def plan(
    collective: Kind,
    size: Size,
    node: NodeName = "mi300x_8",
    algorithm: Annotated[str, typer.Option(help="flat, ring (all-gather) or pairwise (all-to-all).")] = "flat",
    prove: Annotated[bool, typer.Option("--prove", help="Run it on this computer and compare every byte.")] = False,
    json: Json = False,
) -> None:
    """The copies that make up a collective on a node: who sends which bytes where, on which engine.

    \b
    Example:
      c3 plan --collective all-gather --size 1MiB --prove
    """
    from c3lib import listings, transfer
    from c3lib.hardware import load_node
    from c3lib.transfer.builders import build_plan
    from c3lib.workload import parse_size

    there, nbytes = load_node(node), parse_size(size)
    built = build_plan(collective, nbytes, there.ranks, there.topology, algorithm)
    if prove and nbytes * there.ranks > 2**30:
        raise C3Error(f"--prove: {size} on {there.ranks} ranks is more than 1 GiB; prove it with a smaller size")
    proof = transfer.prove(built) if prove else None
    content = {"plan": str(built), "evidence": "proved on the host" if proof else "built"}
    show(
        {**content, "proof": proof and proof.as_row(), "copies": built.to_rows()}, listings.of_plan(built, proof), json
    )
