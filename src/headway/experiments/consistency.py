"""The consistency experiment: a file in; trained models, their images of the same noises, scores, verdicts and a page out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from headway.compare.record import Entry, images_of, keep, versions
from headway.compare.run import timed
from headway.compare.study import Sampler
from headway.errors import HeadwayError, suggest
from headway.experiments.consistency_analysis import analyse, as_json
from headway.experiments.consistency_models import LEVELS, Models, label
from headway.experiments.consistency_page import answer, build_page
from headway.experiments.models import Experiment, finished
from headway.gan import GanRecipe, load_recipe
from headway.recipes import Recipe
from headway.recipes.sections import Positive
from headway.sampling import find_solver
from headway.training import Run
from headway.training.guards import locked
from headway.training.run import write_text

CHECKPOINTS = 10  # a tenth of the budget apart, a recipe's default
Tell = Callable[[str], None]


class ConsistencyExperiment(Experiment):
    """All that decides the experiment. The first diffusion model is the reference: each model's ``differs`` says how it differs
    from that, and ``prediction`` and ``technique`` are questions of their own.

    Attributes:
        samplers: the first one makes the curves. noises: seeds 0 .. noises - 1. curve_noises: of these, for the curves.
        shown: noises in the pictures. couple: two diffusion models whose steps, training and swaps are looked at; None: the first.
    """

    samplers: tuple[Sampler, ...] = (Sampler(solver="heun", steps=18), Sampler(solver="ancestral", steps=64))
    noises: Annotated[int, Field(ge=8)] = 1000
    curve_noises: Annotated[int, Field(ge=8)] = 256
    shown: Positive = 12
    couple: tuple[str, str] | None = None

    @model_validator(mode="after")
    def _check(self) -> ConsistencyExperiment:
        if not self.samplers or len({label(sampler) for sampler in self.samplers}) < len(self.samplers):
            raise HeadwayError("samplers must be different ones, and at least one, such as {solver: heun, steps: 18}.")
        for name in self.couple or ():
            if name not in self.models:
                raise HeadwayError(f"couple names the model {name!r}, which is not there.{suggest(name, self.models)}")
        return self

    def settings(self, name: str) -> tuple[str, list[str]]:
        """With all checkpoints kept of the models whose training is looked at."""
        base, overrides = super().settings(name)
        kind = [n for n in self.models if self._is_gan(n) == self._is_gan(name)]
        looked_at = {*kind[:2], *(self.couple or ())}
        log = ["log.samples=0", *([f"log.keep={CHECKPOINTS + 2}"] if name in looked_at else [])]
        return base, [*log, *overrides]

    def _is_gan(self, name: str) -> bool:
        return (self.models[name].base or self.base) == "gan"


def run_consistency(
    file: str | Path,
    out: str | Path | None = None,
    *,
    jobs: int = 1,
    record: Path | None = None,
    dry_run: bool = False,
    command: str = "",
    tell: Tell = print,
) -> Path | None:
    """Run, or go on with, the experiment: models that are trained and images that are drawn are not made again.

    Args:
        file: the experiment. out: folder for models, images, results and page; default runs/NAME. jobs: trainings at a time.
        record: keep experiment, results and page here too. dry_run: say what would be done, and stop. tell: for people.

    Returns:
        The page; None after a dry run.

    Raises:
        HeadwayError: an experiment that is not possible; a folder that holds another one; no diffusion model that was trained.
    """
    experiment: ConsistencyExperiment = ConsistencyExperiment.load(file)
    out = Path("runs") / experiment.name if out is None else Path(out)
    experiment.refuse_another(out)
    tell(f"{experiment.question}\n{estimate(experiment, out)}")
    if dry_run:
        return None
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        write_text(out / "experiment.yaml", experiment.to_yaml())
        runs, failed = experiment.train(out, jobs, tell)
        tell("Drawing images of the same noises:")
        models = Models(runs, out, experiment.noises, experiment.curve_noises, tell)
        there = experiment.couple is not None and set(experiment.couple) <= set(models.diffusion)
        differs = {name: model.differs for name, model in experiment.models.items()}
        found = analyse(models, experiment.samplers, differs, experiment.couple if there else None)
        write_text(out / "results.json", json.dumps(as_json(found), allow_nan=False))
        page = build_page(experiment, models, found, failed, command, versions())
        recipe = models.trained[models.reference].recipe
        data = f"{images_of(recipe.data)}, {recipe.train.images:,} images a model, {experiment.noises:,} noises"
        entry = Entry(experiment.question, data, ", ".join(runs), answer(found))
        written = keep(page, out, ("experiment.yaml", "results.json"), record, entry)
    tell(answer(found).replace("**", ""))
    return written


def estimate(experiment: ConsistencyExperiment, out: Path) -> str:
    """What is to be trained and sampled, and about how long it takes here, for people."""
    models = {name: _recipe(experiment, name) for name in experiment.models}
    diffusion = {name: recipe for name, recipe in models.items() if isinstance(recipe, Recipe)}
    left = [n for n, m in experiment.models.items() if m.run is None and not finished(Run(out / "models" / n))]
    nfe = [find_solver(sampler.solver).nfe(sampler.steps) for sampler in experiment.samplers]
    few = min(experiment.curve_noises, experiment.noises)
    of_each = experiment.noises * sum(nfe)
    of_curves = few * (2 * sum(nfe) + (2 * CHECKPOINTS + LEVELS) * nfe[0])
    speeds: dict[str, tuple[float, float]] = {}
    seconds = 0.0
    for name, recipe in diffusion.items():
        network = recipe.network.model_dump_json()
        if network not in speeds:
            speeds[network] = timed(recipe)
        training, sampling = speeds[network]
        seconds += sampling * of_each + (training * recipe.train.images if name in left else 0)
    seconds += next(iter(speeds.values()))[1] * of_curves if speeds else 0
    images = sum(models[name].train.images for name in left)
    gans = len(models) - len(diffusion)
    return (
        f"To train: {len(left)} of {len(models)} models, {images:,} images. To sample: {len(diffusion)} diffusion models x "
        f"{experiment.noises:,} noises x {' + '.join(map(str, nfe))} NFE, and {of_curves:,} NFE of curves: "
        f"{len(diffusion) * of_each + of_curves:,} network evaluations. {gans} GANs take one a noise. About {seconds / 60:.0f} min "
        "without the GANs as fast as this machine is now, less what is drawn already."
    )


def _recipe(experiment: ConsistencyExperiment, name: str) -> Recipe | GanRecipe:
    run = experiment.models[name].run
    if run is not None:
        return load_recipe(Run.existing(run).recipe_file)
    return experiment.recipe(name)
