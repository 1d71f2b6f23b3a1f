"""The commands about measured data.

``c3 doctor`` says what a machine can measure, ``c3 measure`` takes it, ``c3 constants`` reads the node's constants from
it, ``c3 judge`` holds the model against it, ``c3 overlap`` tells what overlaps between GPUs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from c3lib.errors import C3Error
from c3lib.shell import Json, NodeName, show
from c3lib.terminal import records


def doctor(json: Json = False) -> None:
    """What this machine can measure and what not, and why; which node file fits it, and the command to go on with.

    Looks at GPUs, engines and the path that copies really take, links, library, counters and environment. Works with
    no GPU too. Each probe has a time-out, so that a driver that hangs is one sentence on the page.

    \b
    Example:
      c3 doctor
    """
    from c3lib.doctor import diagnose

    content, text = diagnose()
    show(content, text, json)


def measure(
    node: NodeName = "h200_1",
    suite: Annotated[
        str,
        typer.Option("--suite", metavar="NAME", help="A suite.", show_default="the one for the node's topology"),
    ] = "",
    experiments: Annotated[
        list[str] | None,
        typer.Option("--experiment", metavar="NAME", help="One of them; again for more. Default: all."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the tables. Default: data/measured/NODE.")] = None,
    repeats: Annotated[int, typer.Option(help="Repetitions of each arm.", min=1)] = 9,
    seed: Annotated[int, typer.Option(help="Of the order of arms.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Measure on this machine's GPUs: each experiment that the node has.

    Every transferred byte is checked; a run that is cut short goes on where it stopped.

    \b
    Example:
      c3 measure --node h200_1 --suite conccl30_host --experiment suite --out build/measured
    """
    from c3lib.doctor.verdict import SUITES
    from c3lib.hardware import load_node
    from c3lib.measure.run import measure as measured
    from c3lib.measured import FOLDER

    if out is not None and out.exists() and not out.is_dir():
        raise C3Error(f"--out {out}: must be a folder")
    suite = suite or SUITES[load_node(node).topology]
    for path in measured(node, suite, out or FOLDER / node, experiments or (), repeats, seed, quiet):
        typer.echo(f"wrote {path}")


def constants(
    node: NodeName = "h200_1",
    toml: Annotated[bool, typer.Option("--toml", help="Print lines for data/hardware/NODE.toml.")] = False,
    json: Json = False,
) -> None:
    """Constants of a node as its tables isolated and order give them, beside what its file holds.

    \b
    Example:
      c3 constants --node h200_1 --toml
    """
    from c3lib import listings
    from c3lib.derive import derive

    found = derive(node)
    if toml and not json:
        typer.echo(found.to_toml())
        return
    content = {"node": node, "evidence": "measured", "constants": found.to_rows()}
    title = f"{node}: constants from its measured tables, beside those of its file"
    show(content, listings.of_derived(title, found.to_rows()), json)


def judge(
    node: NodeName = "h200_1",
    suite: Annotated[
        str,
        typer.Option("--suite", metavar="NAME", help="A suite.", show_default="the one that was measured there"),
    ] = "",
    json: Json = False,
) -> None:
    """Predicted against measured concurrent times: errors of the model beside those of max(Tg, Tc) and Tg + Tc.

    \b
    Example:
      c3 judge --node h200_1 --suite conccl30_host
    """
    from c3lib import listings
    from c3lib.judge import judge as judged
    from c3lib.judge import measured_suite, scorecard, verdicts
    from c3lib.predicted import kept

    suite = suite or measured_suite(node)
    rows = judged(node, suite)
    scores = scorecard(rows)
    title = f"{suite} on {node}: concurrent times predicted (modelled) against measured, mean absolute errors"
    evidence = {"predicted_s": "modelled", "measured_s": "measured"}
    content: dict[str, Any] = {"node": node, "suite": suite, "evidence": evidence, "targets": verdicts(scores)}
    before = kept(node, suite)
    content["predicted_before_the_run"] = before
    content |= {"scores": records(scores), "rows": records(rows)}
    show(content, listings.of_judgement(title, scores, verdicts(scores), before), json)


def overlap(node: NodeName = "h200_2", json: Json = False) -> None:
    """Between GPUs, what overlaps with a GEMM and what does not: copy engines, SM kernels, NCCL in its modes.

    \b
    Example:
      c3 overlap --node h200_2
    """
    from c3lib import listings
    from c3lib.measured import read_measured
    from c3lib.overlap import by_way, summary

    rows, _ = read_measured(node, "transports")
    table = summary(rows)
    content = {"node": node, "evidence": "measured", "ways": records(by_way(table)), "rows": records(table)}
    title = f"{node}: a collective beside GEMMs about as long, by the way that moves its bytes (measured)"
    show(content, listings.of_overlap(title, by_way(table)), json)
