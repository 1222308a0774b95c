"""The commands that run whole studies: compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.commands import app
from headway.cli.support import positive


@app.command()
def compare(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="the study file (docs/compare.md)")],
    out: Annotated[
        Path | None, typer.Option(help="folder for the runs and results; default runs/<study's name>")
    ] = None,
    jobs: Annotated[int, typer.Option(help="runs at a time")] = 1,
    launcher: Annotated[str, typer.Option(help="local, slurm or ray")] = "local",
    processes: Annotated[int, typer.Option(help="processes (GPUs) of each run")] = 1,
    record: Annotated[Path | None, typer.Option(help="keep study, results and report in this folder too")] = None,
    dry_run: Annotated[bool, typer.Option(help="say what would run, and how long, and stop")] = False,
) -> None:
    """Compare techniques over seeds: images, seconds and steps to the same quality; started again it continues."""
    from headway.compare import run_study

    positive("--jobs", jobs)
    positive("--processes", processes)
    command = "headway " + " ".join(sys.argv[1:])
    try:
        page = run_study(
            study,
            out,
            jobs=jobs,
            launcher=launcher,
            processes=processes,
            record=record,
            dry_run=dry_run,
            command=command,
            tell=typer.echo,
        )
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on from there.")
        raise typer.Exit(130) from None
    if page is not None:
        typer.echo(f"Page: {page}")
