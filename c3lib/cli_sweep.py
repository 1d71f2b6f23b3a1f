"""The commands for many questions at once: ``c3 sweep`` over a grid of the model, ``c3 batch`` over notebooks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from c3lib.shell import Json, show
from c3lib.terminal import number, paragraph, table

Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Begin anew: nothing of an earlier run in the folder is kept.")]


def sweep(
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="The axes (docs/sweeps.md).", show_default=False)],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the Parquet files.", show_default=False)],
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Use a Dask cluster, such as tcp://host:8786.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes.", show_default="one a core")] = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """The model over a grid: nodes and their constants, GEMMs, collectives, sizes and strategies, into Parquet files.

    A sweep that is cut short, however it was, goes on where it stopped when the same command is given again.

    \b
    Example:
      c3 sweep docs/examples/sweep.toml --out build/sweep
    """
    from c3lib.sweeps import sweep as swept
    from c3lib.sweeps.summary import summary

    done = swept(grid, out, dask=dask, workers=workers, fresh=fresh, progress=not quiet)
    rows = summary(out)
    head = ("strategy", "best in % of scenarios", "a loss in %", "mean speedup", "largest")
    cells = [
        (
            row["strategy"] + (" *" if row["oracle"] else ""),
            "-" if row["oracle"] else f"{row['best_share'] * 100:.1f}",
            f"{row['loss_share'] * 100:.1f}",
            f"{row['speedup_mean']:.2f}x",
            f"{row['speedup_max']:.2f}x",
        )
        for row in rows
    ]
    kept = f", {done.kept} of them from before" if done.kept else ""
    under = ", ".join(row["strategy"] for row in rows)
    title = (
        f"{done.rows:,} rows ({done.scenarios:,} scenarios under {under}; {done.evidence}) in {out}: "
        f"{done.parts} part{'' if done.parts == 1 else 's'}{kept}; {done.time_s:.1f} s"
    )
    notes = ["A loss: longer than one kernel after the other; speedups are over that too."]
    if any(row["oracle"] for row in rows):
        notes.append("* oracle: known only afterwards, so never the best.")
    notes.append(f'Read it: c3lib.sweeps.read_sweep("{out}"), or any reader of Parquet folders.')
    content = {**asdict(done), "strategies": rows}
    show(content, "\n".join([paragraph(title), "", table(head, cells), *notes]), json)


def batch(
    params: Annotated[
        Path, typer.Argument(metavar="PARAMS.yaml", help="Notebooks and parameters.", show_default=False)
    ],
    jobs: Annotated[int | None, typer.Option(help="Runs at a time.", show_default="one a core")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of the runs. Default: build/batch/NAME of the file.")
    ] = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Notebooks by sets of parameters, several at a time; one that fails stops no other, and the exit status is 1 then.

    What was run before is kept while its notebook, parameters, data and modules are the same.

    \b
    Example:
      c3 batch docs/examples/batch.yaml --out build/batch
    """
    from c3lib.batch import batch as ran
    from c3lib.batch.run import SUMMARY, Outcome
    from c3lib.files import ROOT

    folder = out or ROOT / "build" / "batch" / params.stem

    def say(outcomes: list[Outcome]) -> None:
        head = ("run", "status", "seconds", "error")
        cells = [(row.run, row.status, number(row.time_s, ".1f"), row.error) for row in outcomes]
        counts = {
            status: sum(row.status == status for row in outcomes) for status in ("done", "kept", "failed", "not run")
        }
        title = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        lines = [f"{len(outcomes)} runs: {title}; in {folder}, summary in {SUMMARY}", "", table(head, cells)]
        if counts["failed"]:
            lines.append("How far a failed run came: executed/*.failed.ipynb in its folder.")
        content = {"folder": folder, **counts, "runs": [asdict(row) for row in outcomes]}
        show(content, "\n".join(lines), json)

    outcomes = ran(params, folder, jobs=jobs, fresh=fresh, progress=not quiet, told=say)
    if any(row.status == "failed" for row in outcomes):
        raise typer.Exit(1)
