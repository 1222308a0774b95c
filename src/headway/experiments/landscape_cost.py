"""What the experiment on loss landscapes costs: evaluations, Hessian-vector products, minutes; and how much of it is done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from headway.experiments.landscape import PLAYERS, LandscapeExperiment
from headway.experiments.landscape_frozen import Frozen, Scene
from headway.experiments.landscape_kept import asked, experiment_run, found_piece, points_folder
from headway.experiments.models import finished
from headway.gan import GanRecipe, load_recipe
from headway.landscape import hessian
from headway.recipes import Recipe
from headway.sampling import find_solver
from headway.training import Run, open_data
from headway.training.processes import automatic_precision

# Products that the eigenvalue solver takes at a stage, as measured on small networks: for the five highest, and for the highest
# after preconditioning.
SOLVER_PRODUCTS = 60
EVALUATIONS = 6  # without gradient, that a product is worth
GRADIENTS = 2.5  # that a product is worth
START = 6.0  # seconds that a process takes to start and to read its data


@dataclass(frozen=True)
class Work:
    """Evaluations of frozen losses without gradient, and Hessian-vector products."""

    evaluations: int = 0
    products: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.evaluations + other.evaluations, self.products + other.products)

    @property
    def weight(self) -> int:
        """All of it, in evaluations."""
        return self.evaluations + EVALUATIONS * self.products


def work(experiment: LandscapeExperiment, name: str, gan: bool, partner: bool) -> dict[str, Work]:
    """The work of each piece of one model; its products are estimated, because the eigenvalue solver takes what it needs."""
    landscapes = len(PLAYERS) if gan else 1
    bands, technique = experiment.bands_of(name, gan), not (gan or experiment.is_reference(name))
    lines = len(experiment.line_names(bands, partner)) * experiment.lines.points
    planes = len(experiment.plane_names(bands)) * experiment.planes.points**2
    rows = experiment.stages_of(name, gan) + len(bands) + technique
    turning = 2 * 4 * experiment.curvature.rotation if gan else 0  # J and its transpose, of two players, in two units
    return {
        "lines": Work(evaluations=lines * landscapes),
        "planes": Work(evaluations=planes * landscapes),
        "curvature": Work(products=rows * landscapes * row_products(experiment) + turning),
        "fidelity": Work(),
    }


def row_products(experiment: LandscapeExperiment) -> int:
    """Products of one row of the piece curvature."""
    return SOLVER_PRODUCTS + experiment.curvature.probes * experiment.curvature.steps


def written(experiment: LandscapeExperiment, out: Path, names: Iterable[str]) -> int:
    """Work of these models that has been written down, in evaluations."""
    files = [file for name in names for file in points_folder(out, name).glob("*/*.jsonl")]
    row = Work(products=row_products(experiment)).weight
    return sum(file.read_bytes().count(b"\n") * (row if file.stem == "curvature" else 1) for file in files)


@dataclass(frozen=True)
class Cost:
    """What is left to do: models to train, work, and seconds on an idle machine, one process at a time."""

    models: int
    work: Work
    train: float
    look: float
    sample: float

    def describe(self, jobs: int) -> str:
        parts = [f"{what} {seconds / 60:.1f}" for what, seconds in self._seconds.items()]
        return (
            f"To do: {self.models} models to train, {self.work.evaluations:,} evaluations of frozen losses, about "
            f"{self.work.products:,} Hessian-vector products. Estimate: {sum(self._seconds.values()) / 60 / jobs:.1f} min on an "
            f"idle machine, {jobs} at a time (process minutes: {', '.join(parts)})."
        )

    @property
    def _seconds(self) -> Mapping[str, float]:
        return {"training": self.train, "landscapes": self.look, "samples": self.sample}


def estimate(experiment: LandscapeExperiment, out: Path, jobs: int) -> Cost:
    """What is left to do in a folder, by the time of an evaluation and of a product for the first model of each kind."""
    runs = {name: experiment_run(experiment, out, name) for name in experiment.models}
    recipes = {name: _recipe(experiment, name, run) for name, run in runs.items()}
    gans = {name: isinstance(recipe, GanRecipe) for name, recipe in recipes.items()}
    timed = {
        gan: _timed(experiment, next(r for n, r in recipes.items() if gans[n] == gan), jobs)
        for gan in set(gans.values())
    }
    models, total, train, look, sample = 0, Work(), 0.0, 0.0, 0.0
    for name, recipe in recipes.items():
        evaluation, product = timed[gans[name]]
        trained = experiment.models[name].run is not None or finished(runs[name])
        if not trained:
            models += 1
            players = len(PLAYERS) if gans[name] else 1
            train += START + recipe.train.images / experiment.batch * players * product / GRADIENTS
        partner = experiment.partner(name, gans)
        before = total
        for piece, own in work(experiment, name, gans[name], partner is not None).items():
            if trained and found_piece(out, name, piece, asked(experiment, piece, partner, runs[name])) is not None:
                continue
            total += own
            look += own.evaluations * evaluation + own.products * product
            if piece == "fidelity":
                sample += experiment.samples / experiment.batch * _passes(recipe) * evaluation
        look += START * (total != before)
    return Cost(models, total, train, look, sample)


def _passes(recipe: Recipe | GanRecipe) -> int:
    """Passes through the network that an image takes."""
    if isinstance(recipe, GanRecipe):
        return 1
    return find_solver(recipe.sampling.solver).nfe(recipe.sampling.steps)


def _recipe(experiment: LandscapeExperiment, name: str, run: Run) -> Recipe | GanRecipe:
    """The resolved recipe of a model that is there, or that is to be trained."""
    if experiment.models[name].run is not None:
        Run.existing(run.folder)
    if run.recipe_file.is_file():
        return load_recipe(run.recipe_file)
    recipe = experiment.recipe(name)
    images, heldout = open_data(recipe)
    if isinstance(recipe, GanRecipe):
        return recipe.resolved(images, len(heldout))
    return recipe.resolved(images, len(heldout), automatic_precision())


def _timed(experiment: LandscapeExperiment, recipe: Recipe | GanRecipe, jobs: int) -> tuple[float, float]:
    """Seconds of an evaluation and of a product, mean over the model's landscapes, with a job's share of the cores."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))
    try:
        scenes = Frozen(recipe, experiment.batch, experiment.seed, device).scenes(recipe, None)
        evaluation, product = np.mean([_times(scene) for scene in scenes.values()], axis=0)
    finally:
        torch.set_num_threads(threads)
    return float(evaluation), float(product)


def _times(scene: Scene) -> tuple[float, float]:
    h = hessian(scene.loss, scene.module)
    vector = np.ones(h.shape[0])
    with torch.no_grad():
        evaluation = _seconds(lambda: float(scene.loss(scene.module)))
    return evaluation, _seconds(lambda: h.matvec(vector))


def _seconds(call: Callable[[], object]) -> float:
    """The shortest of a few calls: what else the machine does only adds."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)
