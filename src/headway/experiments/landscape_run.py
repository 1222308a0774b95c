"""Running the experiment on loss landscapes: what it costs, the models, the pieces of each, what was found."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.compare.launchers import Job, local
from headway.compare.record import Entry, images_of, keep, versions
from headway.compare.run import last_words
from headway.errors import HeadwayError
from headway.experiments.landscape import LandscapeExperiment
from headway.experiments.landscape_cost import estimate, work, written
from headway.experiments.landscape_kept import asked, found_piece
from headway.experiments.landscape_page import answer, build_page
from headway.experiments.landscape_pieces import PIECES
from headway.experiments.landscape_surfaces import write_surfaces
from headway.gan import load_recipe
from headway.studies.evaluation import make_judge
from headway.training import Run
from headway.training.guards import locked
from headway.training.processes import Processes
from headway.training.run import write_text

EVERY = 20.0  # seconds between two words of progress
DECIDES = ("batch", "seed", "bands", "curvature")  # what no point is kept without; grids may change

Tell = Callable[[str], None]


def run_landscape(
    file: str | Path,
    out: str | Path | None = None,
    *,
    jobs: int = 1,
    record: Path | None = None,
    dry_run: bool = False,
    command: str = "",
    tell: Tell = print,
) -> Path | None:
    """Train the models, look at their losses, write page, results and surfaces; started again it goes on.

    Args:
        file: the experiment. out: folder for all of it, default runs/NAME. jobs: processes at a time.
        record: keep experiment, results and pages in this folder too. dry_run: say what it costs, and stop.

    Returns:
        The page; None after a dry run.

    Raises:
        HeadwayError: a file that is not an experiment, a folder that holds another one, no model that could be trained.
    """
    experiment: LandscapeExperiment = LandscapeExperiment.load(file)
    out = Path("runs") / experiment.name if out is None else Path(out)
    experiment.refuse_another(out, DECIDES)
    tell(experiment.question)
    tell(estimate(experiment, out, jobs).describe(jobs))
    if dry_run:
        return None
    for folder in (out / "pieces", out / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(out):
        write_text(out / "experiment.yaml", experiment.to_yaml())
        runs, failed = experiment.train(out, jobs, tell)
        if not runs:
            raise HeadwayError(f"No model could be trained; the reasons are in {out / 'logs'}.")
        failed |= look_at_all(experiment, out, runs, jobs, tell)
        results = gather(experiment, out, runs, failed)
    write_text(out / "results.json", json.dumps(results, allow_nan=False))
    write_surfaces(results, out / "surfaces.html")
    page = build_page(experiment, results, command, versions())
    files = ("experiment.yaml", "results.json", "surfaces.html")
    recipe = load_recipe(next(iter(runs.values())).recipe_file)
    data = f"{images_of(recipe.data)}, {recipe.train.images:,} images a model"
    entry = Entry(experiment.question, data, ", ".join(experiment.models), answer(results).replace("**", ""))
    written = keep(page, out, files, record, entry)
    tell(answer(results).replace("**", ""))
    return written


def look_at_all(
    experiment: LandscapeExperiment, out: Path, runs: Mapping[str, Run], jobs: int, tell: Tell
) -> dict[str, str]:
    """Measure all pieces that are not there yet; why some failed, by job.

    A process takes all pieces of a model, for starting one costs seconds; a piece each where there are more jobs than models.
    """
    gans = {name: name in experiment.gans(runs) for name in runs}
    partners = {name: experiment.partner(name, gans) for name in runs}
    pending = []
    for name, run in runs.items():
        left = [piece for piece in PIECES if _found(experiment, out, run, name, piece, partners[name]) is None]
        for share in [left] if len(runs) >= jobs else [[piece] for piece in left]:
            if share:
                title = f"{name} {'+'.join(share)}"
                pending.append(Job(title, _command(out, name, share, partners[name]), out / "logs" / f"{title}.log"))
    if not pending:
        return {}
    if any("fidelity" in job.name for job in pending):
        tell("Preparing the reference (data, extractor, floor and ceiling) ...")
        make_judge(next(iter(runs.values())).folder, experiment.samples, processes=Processes()).prepare()
    failed: dict[str, str] = {}
    whole = [w for name in runs for w in work(experiment, name, gans[name], partners[name] is not None).values()]
    total = sum(part.weight for part in whole)
    since = time.perf_counter()
    with _reporting(lambda: written(experiment, out, runs) / total, since, tell):
        for done, (job, code) in enumerate(local(pending, jobs, 1), 1):
            if code:
                failed[job.name] = last_words(job.log)
            minutes = (time.perf_counter() - since) / 60
            tell(
                f"{done} of {len(pending)} jobs, {minutes:.1f} min: {job.name}"
                f"{f' failed: {failed[job.name]} (all of it: {job.log})' if code else ''}"
            )
    return failed


def gather(
    experiment: LandscapeExperiment, out: Path, runs: Mapping[str, Run], failed: Mapping[str, str]
) -> dict[str, Any]:
    """All that was found, as JSON has it: {"models": {name: {...}}, "failed": {...}}."""
    gans = {name: name in experiment.gans(runs) for name in runs}
    models = {}
    for name, run in runs.items():
        recipe, partner = load_recipe(run.recipe_file), experiment.partner(name, gans)
        pieces = {piece: _found(experiment, out, run, name, piece, partner) for piece in PIECES}
        models[name] = {
            "kind": "gan" if gans[name] else "diffusion",
            "differs": experiment.models[name].differs,
            "seed": recipe.train.seed,
            "method": recipe.method,
            "images": recipe.train.images,
        } | {piece: found or {} for piece, found in pieces.items()}
    return {"name": experiment.name, "question": experiment.question, "models": models, "failed": dict(failed)}


def _found(
    experiment: LandscapeExperiment, out: Path, run: Run, name: str, piece: str, partner: str | None
) -> dict[str, Any] | None:
    return found_piece(out, name, piece, asked(experiment, piece, partner, run))


def _command(out: Path, name: str, pieces: Sequence[str], partner: str | None) -> tuple[str, ...]:
    module = "headway.experiments.landscape_pieces"
    return (sys.executable, "-m", module, str(out), name, ",".join(pieces), partner or "")


@contextmanager
def _reporting(share: Callable[[], float], since: float, tell: Tell) -> Iterator[None]:
    """Every now and then, say how much is done."""
    over = threading.Event()

    def report() -> None:
        while not over.wait(EVERY):
            done = min(1.0, share())
            tell(f"{done:.0%} of the landscapes, {(time.perf_counter() - since) / 60:.1f} min")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
