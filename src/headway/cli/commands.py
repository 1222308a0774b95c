"""The commands: train, sample, evaluate, info, report, demo. Each only reads its arguments, calls the library and prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.recipes import Recipe

app = typer.Typer(
    name="headway",
    help="Train diffusion models in fewer images, seconds and sampling steps, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")]
Data = Annotated[
    str | None, typer.Option(help="folder, zip, array or IDX file, CIFAR tarball, or 'digits' / 'fashion'")
]
Solver = Annotated[
    str | None, typer.Option(help="euler (DDIM), heun, dpmpp-2m, dpmpp-3s, ancestral, churn; default: the recipe's")
]
Steps = Annotated[int | None, typer.Option(help="solver steps; default: the recipe's")]
Ema = Annotated[
    str | None, typer.Option(help="which weight average, by half-life in images, or 'raw'; default: the first")
]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE|PRESET", help="a YAML file or a preset such as edm-fdm")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key=value ...]", help="for example train.images=200k")
    ] = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(help="run folder; default runs/<preset>")] = None,
    dry_run: Annotated[bool, typer.Option(help="print the full recipe and stop")] = False,
) -> None:
    """Train a model, or go on with a run: the same command again resumes."""
    from headway.recipes import Recipe

    chosen = Recipe.load(recipe).with_overrides(overrides or [])
    if data is not None:
        chosen = chosen.with_data(data)
    if dry_run:
        typer.echo(_resolved(chosen).to_yaml(), nl=False)
        return
    from headway.studies import write_report
    from headway.training import train as run_training

    # A run folder as the recipe means that run: go on with it.
    folder = out or (Path(recipe) if Path(recipe).is_dir() else Path("runs") / chosen.name)
    trained = run_training(chosen, folder, tell=typer.echo)
    if _first_process():
        page = write_report([folder], trained.run.report)
        typer.echo(f"Run {folder}: {trained.nimg:,} images. Page: {page}")
    if trained.interrupted:
        raise typer.Exit(130)


@app.command()
def sample(
    run: RunArgument,
    count: Annotated[int, typer.Option(help="how many images")] = 64,
    seed: Annotated[int, typer.Option(help="seed of the first image; each has its own")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="folder for the PNGs; default RUN/generated/CHECKPOINT-SOLVER-STEPS")
    ] = None,
    solver: Solver = None,
    steps: Steps = None,
    grid: Annotated[str | None, typer.Option(help="noise levels: edm, logsnr, time; default: the solver's")] = None,
    label: Annotated[int | None, typer.Option(help="class of all images; default: all classes in turn")] = None,
    guidance: Annotated[
        float | None, typer.Option(help="classifier-free guidance, 1 = off; default: the recipe's")
    ] = None,
    ema: Ema = None,
    batch: Annotated[int, typer.Option(help="images at a time")] = 64,
) -> None:
    """Sample images from a run into PNG files and a grid."""
    import json

    import torch

    from headway.images import tile, write_png
    from headway.training import Run
    from headway.training.processes import Processes
    from headway.training.run import choose_average, load_checkpoint, write_text

    _positive("--count", count)
    folder = Run.existing(run)
    recipe = folder.recipe()
    processes = Processes()
    found = folder.newest_checkpoint()
    average = choose_average(found, _ema(ema))
    settings = {
        "nimg": int(found.name),
        "ema": average,
        "solver": solver or recipe.sampling.solver,
        "steps": steps if steps is not None else recipe.sampling.steps,
        "grid": grid,
        "label": label,
        "guidance": guidance if guidance is not None else recipe.sampling.guidance,
    }
    where = _sampling_folder(
        out or run / "generated" / f"{found.name}-{settings['solver']}-{settings['steps']}", settings
    )
    denoiser = load_checkpoint(recipe, found, average, processes.device)
    labels: Any = None
    if label is not None:
        labels = torch.full((count,), label)
    elif denoiser.classes:
        labels = torch.arange(count) % denoiser.classes
    drawn = processes.sample(
        denoiser,
        range(seed, seed + count),
        labels,
        solver=settings["solver"],
        steps=settings["steps"],
        grid=grid,
        guidance=settings["guidance"],
        batch=batch,
        progress=processes.main,
    )
    if processes.main:
        where.mkdir(parents=True, exist_ok=True)
        write_text(where / "sampling.json", json.dumps(settings, indent=1) + "\n")
        for one, number in zip(drawn.uint8().permute(0, 2, 3, 1).numpy(), drawn.seeds, strict=True):
            write_png(one, where / f"{number:06d}.png")
        write_png(tile(drawn.images, gap=2), where / "grid.png")
        rate = f"{drawn.solver}, {drawn.steps} steps, {drawn.nfe} NFE an image, {drawn.seconds:.1f} s"
        typer.echo(f"{count} images in {where} ({rate}). Together: {where / 'grid.png'}")


@app.command()
def evaluate(
    run: RunArgument,
    count: Annotated[
        int | None, typer.Option(help="samples; default: the recipe's (as many as are held out, 5,000 at most)")
    ] = None,
    extractor: Annotated[
        str | None,
        typer.Option(
            help="classifier, orientation (no labels needed), inception, or your own as package.module:Factory"
        ),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="weights file of the standard FID network")] = None,
    data: Annotated[str | None, typer.Option(help="where the training images lie now, if they moved")] = None,
    solver: Solver = None,
    steps: Steps = None,
    guidance: Annotated[
        float | None, typer.Option(help="classifier-free guidance, 1 = off; default: the recipe's")
    ] = None,
    ema: Ema = None,
    batch: Annotated[int, typer.Option(help="images at a time")] = 128,
) -> None:
    """Measure a run: Frechet distance beside its floor (real images) and ceiling (pixel Gaussian)."""
    from headway.studies import evaluate as measure
    from headway.studies import write_report
    from headway.training import Run

    if count is not None:
        _positive("--count", count)
    with _bar("sampling") as progress:
        record = measure(
            run,
            n=count,
            extractor=extractor,
            weights=weights,
            data=data,
            solver=solver,
            steps=steps,
            guidance=guidance,
            ema=_ema(ema),
            batch=batch,
            progress=progress,
        )
    if _first_process():
        _print_quality(record)
        page = write_report([run], Run(run).report)
        typer.echo(f"Page: {page}")


@app.command()
def info(
    what: Annotated[str, typer.Argument(metavar="RUN|PRESET|RECIPE", help="a run folder, a preset or a YAML file")],
    data: Data = None,
) -> None:
    """What a recipe decides and costs: parameters, FLOPs, memory, hours; and the published figures, where there are any."""
    from headway.recipes import Recipe
    from headway.studies.cost import describe
    from headway.training import Run

    recipe = Recipe.load(what)
    is_run = Path(what).is_dir()
    if data is not None:
        recipe = recipe.with_data(data)
    typer.echo(describe(recipe if is_run else _resolved(recipe), Run(what) if is_run else None), nl=False)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders to show side by side")],
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("report.html"),
) -> None:
    """Write one self-contained page about one run, or several side by side."""
    from headway.studies import write_report

    typer.echo(f"Page: {write_report(runs, out)}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="folder for the two runs and the page")] = Path("runs/demo"),
    images: Annotated[str | None, typer.Option(help="budget of each run; default: the presets'")] = None,
) -> None:
    """Train EDM with and without momentum on handwritten digits, sample and measure both, show them side by side."""
    from headway.studies import evaluate as measure
    from headway.studies import write_report
    from headway.training import Run
    from headway.training import train as run_training

    folders = [out / "edm", out / "edm-fdm"]
    for folder in folders:
        typer.echo(f"Training {folder.name} on 8x8 handwritten digits:")
        overrides = [] if images is None else [f"train.images={images}"]
        trained = run_training(f"digits-{folder.name}", folder, overrides=overrides, tell=typer.echo)
        if trained.interrupted:
            raise typer.Exit(130)
        evaluations = Run(folder).evaluations()
        if not evaluations or evaluations[-1]["nimg"] != trained.nimg:
            with _bar("sampling") as progress:
                evaluations = [measure(folder, progress=progress)]
        _print_quality(evaluations[-1])
        write_report([folder], Run(folder).report)
    page = write_report(folders, out / "index.html", title="EDM with and without momentum, on handwritten digits")
    typer.echo(f"Runs: {folders[0]} and {folders[1]}\nPage: {page}")


def _sampling_folder(folder: Path, settings: dict[str, Any]) -> Path:
    """The folder, if it is free or holds images of the same settings: a folder never mixes two."""
    import json

    if folder.exists() and not folder.is_dir():
        raise HeadwayError(f"{folder} is a file: choose another --out for the images.")
    note = folder / "sampling.json"
    if note.is_file() and (there := json.loads(note.read_text(encoding="utf-8"))) != settings:
        other = ", ".join(f"{key} {there.get(key)}" for key in settings if there.get(key) != settings[key])
        raise HeadwayError(f"{folder} holds images of other settings ({other}): choose another --out, or delete it.")
    return folder


def _resolved(recipe: Recipe) -> Recipe:
    """With every ``auto`` decided, where the data are named."""
    if recipe.data.source is None:
        return recipe
    from headway.training import open_data
    from headway.training.processes import automatic_precision

    images, heldout = open_data(recipe)
    return recipe.resolved(images, len(heldout), automatic_precision())


def _print_quality(record: dict[str, Any]) -> None:
    typer.echo(
        f"{record['name']}: {record['value']:.4g}   "
        f"(real held-out images {record['floor']:.4g}, pixel Gaussian {record['ceiling']:.4g})"
    )
    if record["classes_found"] is not None:
        typer.echo(f"Classes found among the samples: {record['classes_found']} of {len(record['class_counts'])}.")
    for warning in record["warnings"]:
        typer.echo(f"Note: {warning}")


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise HeadwayError(f"{name} must be at least 1, got {value}.")


def _ema(text: str | None) -> Any:
    if text is None or text == "raw":
        return text
    if not text.isdigit():
        raise HeadwayError(f"--ema is a half-life in images or 'raw', got {text!r}.")
    return int(text)


def _first_process() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def _bar(title: str) -> Any:
    """A progress bar as a context; entered it gives a function of (done, total)."""
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import Progress

    @contextmanager
    def bar() -> Any:
        progress = Progress(console=Console(stderr=True), transient=True, disable=not _first_process())
        task = progress.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            progress.start()  # only now: an error before the first image should stand alone
            progress.update(task, completed=done, total=total)

        try:
            yield show
        finally:
            progress.stop()

    return bar()
