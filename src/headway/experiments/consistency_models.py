"""The trained models of a consistency experiment, and all that is drawn from them: made once, kept in the experiment's folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway import gan
from headway.compare.study import Sampler
from headway.consistency import Consistency, MatchedGaussian, Swapped, consistency_score, eps_cosine, trajectory
from headway.data.imageset import digest
from headway.denoiser import Denoiser, DenoiserLike
from headway.errors import HeadwayError
from headway.experiments.consistency_verdicts import NORMAL
from headway.metrics import cache as disk
from headway.recipes import Recipe
from headway.sampling import find_solver, sample, seed_noise, sigma_grid
from headway.studies.evaluation import make_judge
from headway.training import Run
from headway.training.processes import Processes
from headway.training.run import load_checkpoint

GAUSSIAN = "pixel Gaussian"
BATCH = 256
LEVELS = 12  # noise levels of the identity curve, and at most of the swaps
IDENTITY_IMAGES = 256

Model = DenoiserLike | gan.Generator
# Numbers over an axis: "at" (K,), and "value", "low", "high" (K,).
Curve = dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """One model from its newest checkpoint. ``key`` is of its weights: what is drawn is kept under it."""

    recipe: Recipe | gan.GanRecipe
    run: Run
    model: Model
    key: str


class Models:
    """Diffusion models and GANs of the same images, the first diffusion model being the reference.

    All diffusion models and the Gaussian are sampled over the noise levels that all of them know, so that the same seed is the
    same x at the start and the same noise at every step. Models with classes are sampled without a label.

    Args:
        runs: finished, by name. out: where images are kept. noises: seeds 0 .. noises - 1. few: of these, for the curves.
    """

    def __init__(self, runs: Mapping[str, Run], out: Path, noises: int, few: int, tell: Callable[[str], None]) -> None:
        self.folder, self.noises, self.few, self.tell = out / "images", noises, min(few, noises), tell
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes = Processes()
        self.trained = {name: self._open(run, run.newest_checkpoint()) for name, run in runs.items()}
        self.diffusion = [name for name, trained in self.trained.items() if isinstance(trained.model, Denoiser)]
        self.gans = [name for name in self.trained if name not in self.diffusion]
        if not self.diffusion:
            raise HeadwayError("No diffusion model of the experiment is trained, so there is nothing to compare with.")
        self.reference = self.diffusion[0]
        self._refuse_other_images()
        self.shape = self.trained[self.reference].recipe.image_shape
        ranges = [self.denoiser(name).framework.sampling_range for name in self.diffusion]
        self.low, self.high = max(low for low, _ in ranges), min(high for _, high in ranges)
        self.judge = make_judge(runs[self.reference].folder, noises, processes=self.processes)

    @cached_property
    def gaussian(self) -> MatchedGaussian:
        """The Gaussian with the training images' mean and covariance."""
        return MatchedGaussian.of(self.judge.train.pixels())

    def denoiser(self, name: str) -> Denoiser:
        model = self.trained[name].model
        assert isinstance(model, Denoiser)
        return model

    def images(self, name: str, sampler: Sampler) -> Tensor:
        """(noises, C, H, W) float32 in [-1, 1]; of a GAN whatever the sampler, of the Gaussian by its flow if it has no noise."""
        model = self.gaussian if name == GAUSSIAN else self.trained[name].model
        return self._images(name, model, [self._key(name)], sampler, self.noises)

    def over_steps(self, first: str, second: str, sampler: Sampler) -> Curve:
        """The score of two models' estimates of x0 at each step of the sampler, over the noise level (falling)."""

        def make() -> Curve:
            models = [self.gaussian if name == GAUSSIAN else self.denoiser(name) for name in (first, second)]
            paths = [trajectory(model, range(self.few), **self._options(sampler)) for model in models]
            pairs = zip(*(path.x0.clamp(-1, 1) for path in paths), strict=True)
            return _curve(paths[0].sigmas, [score(a, b) for a, b in pairs])

        return self._kept(f"{first} and {second}, {label(sampler)}, steps", [self._key(first), self._key(second)], make)

    def over_training(self, first: str, second: str, sampler: Sampler) -> Curve:
        """The score of two models over training images, at the checkpoints that both have; ``second`` may be the Gaussian."""
        found = [
            {int(path.name): path for path in self.trained[name].run.complete_checkpoints()}
            for name in (first, second)
            if name != GAUSSIAN
        ]
        shared = sorted(set.intersection(*map(set, found)))

        def images(name: str, nimg: int) -> Tensor:
            if name == GAUSSIAN:
                return self.images(name, sampler)[: self.few]
            then = self._open(self.trained[name].run, found[name == second][nimg])
            return self._images(f"{name} at {nimg}", then.model, [then.key], sampler, self.few)

        scores = [score(images(first, nimg), images(second, nimg)) for nimg in shared]
        return _curve(torch.tensor(shared), scores)

    def over_swaps(self, first: str, second: str, sampler: Sampler) -> tuple[Curve, Curve]:
        """Images of ``first`` down to a noise level and ``second`` below, scored against each one's own, over that level."""
        a, b = self.denoiser(first), self.denoiser(second)
        kind = find_solver(sampler.solver).grid
        grid = sigma_grid(a.framework, sampler.steps, kind, sigma_min=self.low, sigma_max=self.high)[1:-1]
        levels = grid[torch.linspace(0, len(grid) - 1, min(LEVELS, len(grid))).round().long()]
        keys = [self._key(first), self._key(second)]
        swapped = [
            self._images(f"{first} then {second}, {level:.3g}", Swapped(a, b, level), keys, sampler, self.few)
            for level in levels.tolist()
        ]
        own = [self.images(name, sampler)[: self.few] for name in (first, second)]
        return _curve(levels, [score(s, own[0]) for s in swapped]), _curve(levels, [score(s, own[1]) for s in swapped])

    def identity(self, name: str) -> Curve:
        """The cosine of predicted noise and input over the noise level: mean and 95 % interval over held-out images."""

        def make() -> Curve:
            images = self.judge.heldout.pixels(range(min(IDENTITY_IMAGES, len(self.judge.heldout))))
            found = eps_cosine(self.denoiser(name), images, self.levels, torch.Generator().manual_seed(0), batch=BATCH)
            half = NORMAL * found.error
            return {"at": found.sigmas, "value": found.mean, "low": found.mean - half, "high": found.mean + half}

        return self._kept(f"{name}, identity", [self._key(name), self.judge.heldout.fingerprint], make)

    @property
    def levels(self) -> Tensor:
        """Noise levels of the identity curve, rising to the highest that all models know."""
        return torch.logspace(math.log10(self.low), math.log10(self.high), LEVELS, dtype=torch.float64)

    def _open(self, run: Run, found: Path) -> Trained:
        recipe = gan.load_recipe(run.recipe_file)
        load: Any = gan.load_checkpoint if isinstance(recipe, gan.GanRecipe) else load_checkpoint
        weights = (found / "COMPLETE").read_text(encoding="utf-8")  # digests of all files of the checkpoint
        return Trained(recipe, run, load(recipe, found, None, self.processes.device), digest(weights))

    def _refuse_other_images(self) -> None:
        first = self.trained[self.reference].recipe
        for name, trained in self.trained.items():
            if trained.recipe.data.fingerprint != first.data.fingerprint:
                raise HeadwayError(
                    f"The models {self.reference!r} and {name!r} were trained on different images ({first.data.source} and "
                    f"{trained.recipe.data.source}, as they were resized and held out): compare models of the same ones."
                )

    def _key(self, name: str) -> str:
        return self.judge.train.fingerprint if name == GAUSSIAN else self.trained[name].key

    def _options(self, sampler: Sampler) -> dict[str, Any]:
        ends = {"sigma_min": self.low, "sigma_max": self.high}
        return {"solver": sampler.solver, "steps": sampler.steps, "batch": BATCH, "shape": self.shape} | ends

    def _images(self, what: str, model: Model, keys: list[str], sampler: Sampler, n: int) -> Tensor:
        """The first n, as pictures: cut to [-1, 1]."""

        def make() -> dict[str, Tensor]:
            if isinstance(model, gan.Generator):
                images = model.images(range(n))
            elif isinstance(model, MatchedGaussian) and not find_solver(sampler.solver).stochastic:
                images = model.flow(self.high * seed_noise(range(n), self.shape, 0), self.high).float()
            else:
                images = sample(model, range(n), **self._options(sampler)).images
            return {"images": images.clamp(-1, 1)}

        how = "" if isinstance(model, gan.Generator) else f", {label(sampler)}"
        return self._kept(f"{what}{how}, {n} images", keys, make)["images"]

    def _kept(self, what: str, keys: list[str], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Tensors from the folder if they were made before of the same weights in the same way."""
        recipe = {"what": what, "keys": keys, "range": [self.low, self.high], "few": self.few}
        path = self.folder / f"{what}.safetensors"
        stored = disk.load(path, recipe)
        if stored is None:
            self.tell(f"  {what}")
            stored = make()
            disk.save(path, recipe, stored)
        return stored


def label(sampler: Sampler) -> str:
    """ "heun 18"."""
    return f"{sampler.solver} {sampler.steps}"


def score(a: Tensor, b: Tensor) -> Consistency:
    """The consistency score with the replicates that belong to those of every other pair of as many noises."""
    return consistency_score(a, b, torch.Generator().manual_seed(0))


def _curve(at: Tensor, found: Sequence[Consistency]) -> Curve:
    columns = [[f.score for f in found], [f.low for f in found], [f.high for f in found]]
    value, low, high = (torch.tensor(column, dtype=torch.float64) for column in columns)
    return {"at": at.double(), "value": value, "low": low, "high": high}
