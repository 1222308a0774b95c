"""The commands that run whole studies: compare, landscape, consistency."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

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
    _run(
        run_study,
        study,
        out,
        jobs=jobs,
        launcher=launcher,
        processes=processes,
        record=record,
        dry_run=dry_run,
    )


File = Annotated[
    Path | None,
    typer.Argument(metavar="[EXPERIMENT.yaml]", help="the experiment file (docs/landscape.md, docs/consistency.md)"),
]
Preset = Annotated[str | None, typer.Option(help="a built-in experiment instead: quick")]
Out = Annotated[Path | None, typer.Option(help="folder for the runs and results; default runs/<experiment's name>")]
Record = Annotated[Path | None, typer.Option(help="keep experiment, results and report in this folder too")]
DryRun = Annotated[bool, typer.Option(help="say what it costs, and stop")]


@app.command()
def landscape(
    experiment: File = None,
    preset: Preset = None,
    out: Out = None,
    jobs: Annotated[int, typer.Option(help="processes at a time")] = 1,
    record: Record = None,
    dry_run: DryRun = False,
) -> None:
    """Look at the loss landscapes of diffusion models and GANs: lines, planes, spectra; started again it continues."""
    from headway.experiments.landscape_run import run_landscape

    file = _experiment("landscape", experiment, preset)
    positive("--jobs", jobs)
    _run(run_landscape, file, out, jobs=jobs, record=record, dry_run=dry_run)


@app.command()
def consistency(
    experiment: File = None,
    preset: Preset = None,
    out: Out = None,
    jobs: Annotated[int, typer.Option(help="trainings at a time")] = 1,
    record: Record = None,
    dry_run: DryRun = False,
) -> None:
    """Ask whether models trained apart make the same image of the same noise: diffusion models, GANs, controls."""
    from headway.experiments.consistency import run_consistency

    file = _experiment("consistency", experiment, preset)
    positive("--jobs", jobs)
    _run(run_consistency, file, out, jobs=jobs, record=record, dry_run=dry_run)


def _experiment(command: str, file: Path | None, preset: str | None) -> Path:
    """The experiment's file, given by itself or as a preset."""
    from headway.experiments.models import preset as preset_file

    if file is not None and preset is None:
        return file
    if file is None and preset is not None:
        return preset_file(command, preset)
    raise HeadwayError(f"{command} takes an experiment file or --preset quick, one of the two.")


def _run(study: Callable[..., Path | None], file: Path, out: Path | None, **options: Any) -> None:
    """Run a study, with the words for its end and for Ctrl-C."""
    try:
        page = study(file, out, command=_typed(sys.argv[1:]), tell=typer.echo, **options)
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command goes on from there.")
        raise typer.Exit(130) from None
    if page is not None:
        typer.echo(f"Page: {page}")


def _typed(words: Sequence[str]) -> str:
    """The command without the folders that it writes to: they are this machine's, and change no result."""
    folders = ("--out", "--record")
    pairs = zip(["", *words], words, strict=False)
    kept = [word for before, word in pairs if before not in folders and word.partition("=")[0] not in folders]
    return shlex.join(["headway", *kept])
