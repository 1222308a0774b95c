"""The commands: train, sample, evaluate, info, report, demo. Each only reads its arguments, calls the library and prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.support import average, bar, first_process, positive, print_quality, resolved
from headway.errors import HeadwayError

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
    """Train a model, or go on with a run: the same command again resumes. The preset gan is a GAN, to compare with."""
    from headway import gan

    chosen = gan.load_recipe(recipe).with_overrides(overrides or [])
    if data is not None:
        chosen = chosen.with_data(data)
    if dry_run:
        typer.echo(resolved(chosen).to_yaml(), nl=False)
        return
    from headway.studies import write_report
    from headway.training import train as run_training

    # A run folder as the recipe means that run: go on with it.
    folder = out or (Path(recipe) if Path(recipe).is_dir() else Path("runs") / chosen.name)
    if isinstance(chosen, gan.GanRecipe):
        trained = gan.train(chosen, folder, tell=typer.echo)
    else:
        trained = run_training(chosen, folder, tell=typer.echo)
    if first_process():
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
    from headway.studies import generate

    positive("--count", count)
    folder, drawn = generate(
        run,
        count,
        seed=seed,
        out=out,
        solver=solver,
        steps=steps,
        grid=grid,
        label=label,
        guidance=guidance,
        ema=average(ema),
        batch=batch,
        progress=True,
    )
    if first_process():
        cost = f"{drawn.solver}, {drawn.steps} steps, {drawn.nfe} NFE an image, {drawn.seconds:.1f} s"
        typer.echo(f"{count} images in {folder} ({cost}). Together: {folder / 'grid.png'}")


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
    figures: Annotated[
        bool, typer.Option("--figures", help="also KID, precision, recall, density, coverage, MMD and copies")
    ] = False,
) -> None:
    """Measure a run: Frechet distance beside its floor (real images) and ceiling (pixel Gaussian)."""
    from headway.studies import evaluate as measure
    from headway.studies import write_report
    from headway.training import Run

    if count is not None:
        positive("--count", count)
    with bar("sampling") as progress:
        record = measure(
            run,
            n=count,
            extractor=extractor,
            weights=weights,
            data=data,
            solver=solver,
            steps=steps,
            guidance=guidance,
            ema=average(ema),
            batch=batch,
            progress=progress,
            figures=figures,
        )
    if first_process():
        print_quality(record)
        page = write_report([run], Run(run).report)
        typer.echo(f"Page: {page}")


@app.command()
def info(
    what: Annotated[
        str | None, typer.Argument(metavar="RUN|PRESET|RECIPE", help="a run folder, a preset or a YAML file")
    ] = None,
    data: Data = None,
    techniques: Annotated[bool, typer.Option("--techniques", help="list all techniques a recipe can name")] = False,
    time: Annotated[bool, typer.Option("--time", help="with --techniques: measure what each costs in a step")] = False,
) -> None:
    """What a recipe decides and costs: parameters, FLOPs, memory, hours; and the published figures, where there are any."""
    if techniques:
        from headway.studies.overhead import SETUP, overheads
        from headway.studies.techniques import listing

        step, costs = overheads() if time else (0.0, [])
        typer.echo(listing(costs))
        if time:
            typer.echo(f"\nOne step: {1000 * step:.4g} ms ({SETUP}).")
        return
    if time:
        raise HeadwayError("--time measures the techniques: give --techniques with it.")
    if what is None:
        raise HeadwayError("info needs a run folder, a preset or a recipe file; or --techniques for a list of those.")
    from headway.gan import load_recipe
    from headway.studies.cost import describe
    from headway.training import Run

    recipe = load_recipe(what)
    if data is not None:
        recipe = recipe.with_data(data)
    is_run = Path(what).is_dir()
    typer.echo(describe(recipe if is_run else resolved(recipe), Run(what) if is_run else None), nl=False)


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
            with bar("sampling") as progress:
                evaluations = [measure(folder, progress=progress)]
        print_quality(evaluations[-1])
        write_report([folder], Run(folder).report)
    page = write_report(folders, out / "index.html", title="EDM with and without momentum, on handwritten digits")
    typer.echo(f"Runs: {folders[0]} and {folders[1]}\nPage: {page}")
