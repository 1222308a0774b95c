"""The commands that run whole studies: compare, landscape, consistency."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.commands import app
from headway.cli.support import positive
from headway.errors import HeadwayError


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


@app.command()
def landscape(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.yaml]", help="the experiment file (docs/landscape.md)")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="a built-in experiment instead: quick")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for the runs and results; default runs/<experiment's name>")
    ] = None,
    jobs: Annotated[int, typer.Option(help="processes at a time")] = 1,
    record: Annotated[Path | None, typer.Option(help="keep experiment, results and report in this folder too")] = None,
    dry_run: Annotated[bool, typer.Option(help="say what it costs, and stop")] = False,
) -> None:
    """Look at the loss landscapes of diffusion models and GANs: lines, planes, spectra; started again it continues."""
    from headway.experiments.landscape import preset as preset_file
    from headway.experiments.landscape_run import run_landscape

    positive("--jobs", jobs)
    if experiment is not None and preset is None:
        file = experiment
    elif experiment is None and preset is not None:
        file = preset_file(preset)
    else:
        raise HeadwayError("landscape takes an experiment file or --preset quick, one of the two.")
    command = "headway " + " ".join(sys.argv[1:])
    try:
        page = run_landscape(file, out, jobs=jobs, record=record, dry_run=dry_run, command=command, tell=typer.echo)
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on from there.")
        raise typer.Exit(130) from None
    if page is not None:
        typer.echo(f"Page: {page}")


@app.command()
def consistency(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.yaml]", help="the experiment file (docs/consistency.md)")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="a built-in experiment instead: quick")] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for the runs and results; default runs/<experiment's name>")
    ] = None,
    jobs: Annotated[int, typer.Option(help="trainings at a time")] = 1,
    record: Annotated[Path | None, typer.Option(help="keep experiment, results and report in this folder too")] = None,
    dry_run: Annotated[bool, typer.Option(help="say what it costs, and stop")] = False,
) -> None:
    """Ask whether models trained apart make the same image of the same noise: diffusion models, GANs, controls."""
    from headway.experiments.consistency import preset as preset_file
    from headway.experiments.consistency import run_consistency

    positive("--jobs", jobs)
    if experiment is not None and preset is None:
        file = experiment
    elif experiment is None and preset is not None:
        file = preset_file(preset)
    else:
        raise HeadwayError("consistency takes an experiment file or --preset quick, one of the two.")
    command = "headway " + " ".join(sys.argv[1:])
    try:
        page = run_consistency(file, out, jobs=jobs, record=record, dry_run=dry_run, command=command, tell=typer.echo)
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on from there.")
        raise typer.Exit(130) from None
    if page is not None:
        typer.echo(f"Page: {page}")
