"""Frozen losses: a checkpoint's own training loss on draws that never change, as a function of the weights alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from headway.data import Feed
from headway.denoiser import Denoiser
from headway.errors import HeadwayError
from headway.gan import LOSSES, GanRecipe, r1_penalty
from headway.gan.state import GanState
from headway.landscape import Loss
from headway.landscape.weights import guarded
from headway.noise import Density
from headway.optim import after_warmup, law, learning_rate
from headway.recipes import Recipe
from headway.recipes.sections import NoiseSection, WeightSection
from headway.training import open_data
from headway.training.draws import Draws
from headway.training.objective import Objective
from headway.training.run import build_framework
from headway.training.state import TrainingState

Band = tuple[float, float]
EVERY_SIGMA: Band = (0.0, float("inf"))


@dataclass(frozen=True)
class Scene:
    """A network, its frozen loss, and how its optimiser would step there.

    Attributes:
        module: the network as it was trained, no average. loss: of that module, the same number at every call.
        optimizer: with the checkpoint's second moments; None for untrained weights. lr, beta1: of the step that led here.
    """

    module: nn.Module
    loss: Loss
    optimizer: Optimizer | None
    lr: float
    beta1: float


@dataclass(frozen=True)
class Game:
    """The two scenes of a GAN, and its players with losses that reach each other's weights."""

    scenes: dict[str, Scene]
    players: list[tuple[nn.Module, Loss]]


@dataclass(frozen=True)
class InBand:
    """A density of sigma given that sigma lies in a band; the whole range changes no bit of it."""

    whole: Density
    band: Band

    def _ends(self, progress: float) -> tuple[float, float]:
        low, high = (
            float(end > 0) if end in EVERY_SIGMA else float(self.whole.cdf(torch.tensor(end).double(), progress))
            for end in self.band
        )
        return low, high

    def cdf(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        low, high = self._ends(progress)
        return ((self.whole.cdf(sigma, progress) - low) / (high - low)).clamp(0, 1)

    def icdf(self, q: Tensor, progress: float = 0.0) -> Tensor:
        low, high = self._ends(progress)
        return self.whole.icdf(low + (high - low) * q, progress)

    def log_prob(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        low, high = self._ends(progress)
        inside = (sigma >= self.band[0]) & (sigma <= self.band[1])
        return torch.where(inside, self.whole.log_prob(sigma, progress) - torch.tensor(high - low).log(), -torch.inf)


class Frozen:
    """One batch of images and the seed of all that is drawn with it, shared by all models that learn from the same images.

    Args:
        recipe: a resolved one; it names the images. batch: how many. seed: of the draws, apart from the models' own.
    """

    def __init__(self, recipe: Recipe | GanRecipe, batch: int, seed: int, device: torch.device) -> None:
        images, _ = open_data(recipe)
        if recipe.data.fingerprint not in (None, images.fingerprint):
            raise HeadwayError(f"{recipe.data.source} no longer holds the images that this model was trained on.")
        self.batch, self.device = batch, device
        self.feed = Feed(images, device)
        self.draws = Draws(seed, len(images), recipe.image_shape)

    def diffusion(
        self, recipe: Recipe, found: Path | None, band: Band = EVERY_SIGMA, *, reference: bool = False
    ) -> Scene:
        """A diffusion model's scene.

        Args:
            found: the checkpoint; None for the untrained weights. band: draw sigma in it only, by the same density.
            reference: the loss by the framework's own density and weight, whatever the recipe trains with: one measure for
                models that were trained by different ones.
        """
        own = self._objective(recipe)
        state = TrainingState(recipe, own.density, own.uncertainty, self.device)
        if found is not None:
            state.restore(found)
        nimg = state.nimg
        objective = own
        if reference:
            base = recipe.framework.model_copy(update={"density": "base"})
            plain = {"framework": base, "noise": NoiseSection(), "weight": WeightSection(warmup=0)}
            objective = self._objective(recipe.model_copy(update=plain))
        objective.density, objective.base = InBand(objective.density, band), InBand(objective.base, band)
        framework = build_framework(recipe)

        def loss(network: nn.Module) -> Tensor:
            denoiser = Denoiser(network, framework, shape=recipe.image_shape, classes=recipe.classes)
            return objective(denoiser, 0, self.batch, nimg).objective.mean()

        optimizer = None if found is None else state.optimizer
        return Scene(state.network.eval(), loss, optimizer, *rates(recipe, nimg))

    def gan(self, recipe: GanRecipe, found: Path | None) -> Game:
        """A GAN's two scenes, each player's loss with the other held still, and the game of both.

        The generator runs in training mode, its batch normalised by itself as in training; the discriminator in evaluation
        mode, so that spectral normalisation keeps its singular vectors.
        """
        state = GanState(recipe, self.device)
        if found is not None:
            state.restore(found)
        generator, discriminator = state.generator.train(), state.discriminator.eval()
        losses, r1, width = LOSSES[recipe.loss.name], recipe.loss.r1, recipe.network.latent
        real, _ = self.feed.batch(self.draws.indices(0, self.batch))
        if recipe.data.xflip:
            flip = self.draws.uniforms(0, self.batch)[:, 1].to(real.device) < 0.5
            real = torch.where(flip[:, None, None, None], real.flip(-1), real)
        latents = self.draws.torch_blocks("latent", 0, self.batch, lambda n, g: torch.randn(n, width, generator=g))
        latents = latents.to(self.device)
        with torch.no_grad(), guarded(generator):
            fake = generator(latents)

        def fools(g: nn.Module) -> Tensor:
            return losses.generator(discriminator(g(latents)))

        def tells(images: Callable[[], Tensor]) -> Loss:
            def loss(d: nn.Module) -> Tensor:
                value = losses.discriminator(*d(torch.cat([real, images()])).chunk(2))
                if r1:
                    with torch.enable_grad():
                        value = value + r1 * r1_penalty(d, real)
                return value

            return loss

        optim = recipe.optim
        with_rates = {
            "generator": (generator, fools, optim.lr),
            "discriminator": (discriminator, tells(lambda: fake), float(optim.lr_discriminator)),
        }
        scenes = {
            name: Scene(module, loss, None if found is None else state.optimizers[name], lr, optim.betas[0])
            for name, (module, loss, lr) in with_rates.items()
        }
        return Game(scenes, [(generator, fools), (discriminator, tells(lambda: generator(latents)))])

    def scenes(self, recipe: Recipe | GanRecipe, found: Path | None) -> dict[str, Scene]:
        """All scenes of a checkpoint: "diffusion", or "generator" and "discriminator"."""
        if isinstance(recipe, GanRecipe):
            return self.gan(recipe, found).scenes
        return {"diffusion": self.diffusion(recipe, found)}

    def _objective(self, recipe: Recipe) -> Objective:
        return Objective(recipe, build_framework(recipe), self.feed, self.draws)


def rates(recipe: Recipe, nimg: int) -> tuple[float, float]:
    """Learning rate and beta1 of the step after which ``nimg`` images had been seen."""
    optim, train, ramp = recipe.optim, recipe.train, int(recipe.optim.lr_ramp)
    before = max(0, nimg - train.batch)
    now = law(optim.law, **optim.options)(after_warmup(before, train.images, ramp), optim.betas[0])
    return learning_rate(before + train.batch, optim.lr, ramp) * now.factor, now.beta1


def folded(module: nn.Module) -> nn.Module:
    """The module with spectral normalisation worked into its weights; the same function to the last bit, in evaluation mode.

    Its singular vectors are those of the checkpoint, so far from there W / (u^T W v) has poles that no training meets: lines
    and planes are drawn over the normalised weights themselves. A module without it is returned as it is.
    """
    if not any(parametrize.is_parametrized(part) for part in module.modules()):
        return module
    plain = copy.deepcopy(module).eval()
    for part in plain.modules():
        if parametrize.is_parametrized(part):
            names = list(part.parametrizations)  # type: ignore[arg-type]
            weights = {name: nn.Parameter(getattr(part, name).detach().clone()) for name in names}
            # Not torch's remove_parametrizations: it takes them from the class, which the copy shares with the original.
            part.__class__ = type(part).__bases__[0]
            del part.parametrizations
            for name, weight in weights.items():
                part.register_parameter(name, weight)
    return plain
