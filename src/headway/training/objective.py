"""One batch's training loss: draw, couple, noise, denoise, weigh. Each slot has one owner, chosen by the recipe."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway import noise
from headway.coupling import find_coupling
from headway.data import Feed
from headway.data.augment import apply, augment_params
from headway.denoiser import Denoiser, drop_labels, expand
from headway.frameworks import Framework
from headway.recipes import Recipe
from headway.training.draws import BLOCK, Draws
from headway.weighting import Uncertainty, warmed_up, weight_for


@dataclass(frozen=True)
class Losses:
    """Per image, all (n,).

    Attributes:
        objective: what to minimise; with a learnt weight it can be negative. weighted: w(sigma) times the squared error.
        squared_error: of x0. sigma: the noise level.
    """

    objective: Tensor
    weighted: Tensor
    squared_error: Tensor
    sigma: Tensor


class Objective:
    """w(sigma) |D(x0 + sigma eps; sigma) - x0|^2, mean over pixels, for ranges of global image indices."""

    def __init__(self, recipe: Recipe, framework: Framework, feed: Feed, draws: Draws) -> None:
        self.recipe = recipe
        self.feed = feed
        self.draws = draws
        self.conditional = recipe.classes > 0
        name, options = recipe.weight.name, recipe.weight.options
        self.uncertainty = Uncertainty(**options).to(feed.device) if name == "uncertainty" else None
        named = name not in ("framework", "uncertainty")
        self.weight = weight_for(name, **options) if named else framework.weight
        self.base = framework.density
        self.density = noise.build(recipe.noise.name, self.base, self.weight, **recipe.noise.options)

    def prefetch(self, start: int, stop: int) -> None:
        """Say which images come next, so that they can be read meanwhile."""
        self.feed.prefetch(self.draws.indices(start, stop))

    def __call__(self, denoiser: Denoiser, start: int, stop: int, nimg: int) -> Losses:
        """The losses of images start .. stop - 1, in the step that began at ``nimg`` images.

        Everything that depends on progress uses ``nimg``, the same for all parts of a batch.
        """
        recipe = self.recipe
        progress = nimg / recipe.train.images
        x0, labels = self.feed.batch(self.draws.indices(start, stop))
        labels = labels if self.conditional else None
        _, flip, drop = self.draws.uniforms(start, stop).to(x0.device).unbind(1)
        eps = self._noise(start, stop).to(x0.device, non_blocking=True)
        if recipe.data.xflip:
            x0 = torch.where(expand(flip < 0.5, x0), x0.flip(-1), x0)
        condition = None
        if recipe.data.augment > 0:
            # The horizontal flip is always on in EDM's pipe, whatever the probability of the rest.
            params = self.draws.torch_blocks(
                "augment", start, stop, lambda n, g: augment_params(n, recipe.data.augment, g, x_flip=1.0)
            )
            x0, condition = apply(x0, params)
        if labels is not None:
            labels = drop_labels(labels, drop, recipe.train.label_drop)
        # Noise levels and weights are made on the CPU, where their checks do not wait for a GPU.
        sigma = self.density.icdf(self.draws.quantiles(start, stop, recipe.noise.draws == "stratified"), progress)
        weight = warmed_up(self.weight(sigma), nimg, int(recipe.weight.warmup), smooth=recipe.weight.smooth)
        if recipe.noise.importance:
            weight = weight * noise.importance(self.density, self.base, sigma, progress)
        sigma, weight = sigma.to(x0.device), weight.to(x0)
        estimate = denoiser(x0 + expand(sigma, x0).to(x0.dtype) * eps, sigma, labels, condition)
        error = (estimate.float() - x0).square().flatten(1).mean(1)
        weighted = error * weight
        objective = weighted if self.uncertainty is None else self.uncertainty.loss(weighted, sigma).objective
        losses = Losses(objective, weighted.detach(), error.detach(), sigma)
        if isinstance(self.density, noise.Online):
            self.density.observe(sigma, losses.weighted, losses.squared_error)
        return losses

    def _noise(self, start: int, stop: int) -> Tensor:
        """Each image's own noise, or the noise that the coupling gives it within its block of image indices."""
        coupling = self.recipe.noise.coupling
        if coupling == "independent":
            return self.draws.noise(start, stop)
        # Whole blocks, whatever part of them is asked for: then the cut of a batch decides nothing.
        first, last = start // BLOCK * BLOCK, -(-stop // BLOCK) * BLOCK
        x0, labels = self.feed.batch(self.draws.indices(first, last))
        eps = self.draws.noise(first, last).to(x0.device)
        permutation = find_coupling(coupling)(x0, eps, labels if self.conditional else None)
        return eps[permutation][start - first : stop - first]
