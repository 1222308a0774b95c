"""One batch's training loss: draw, noise, denoise, weigh."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.data import Feed
from headway.data.augment import apply, augment_params
from headway.denoiser import Denoiser, drop_labels, expand
from headway.recipes import Recipe
from headway.training.draws import Draws
from headway.weighting import warmed_up


@dataclass(frozen=True)
class Losses:
    """Per image, all (n,): the weighted loss to minimise, the squared error of x0 behind it, and the noise level."""

    weighted: Tensor
    squared_error: Tensor
    sigma: Tensor


class Objective:
    """w(sigma) |D(x0 + sigma eps; sigma) - x0|^2, mean over pixels, for ranges of global image indices."""

    def __init__(self, recipe: Recipe, feed: Feed, draws: Draws) -> None:
        self.recipe = recipe
        self.feed = feed
        self.draws = draws
        self.conditional = bool(recipe.data.labels)

    def prefetch(self, start: int, stop: int) -> None:
        """Say which images come next, so that they can be read meanwhile."""
        self.feed.prefetch(self.draws.indices(start, stop))

    def __call__(self, denoiser: Denoiser, start: int, stop: int, nimg: int) -> Losses:
        """The losses of images start .. stop - 1, in the step that began at ``nimg`` images.

        Everything that depends on progress uses ``nimg``, the same for all parts of a batch.
        """
        recipe, fw = self.recipe, denoiser.framework
        x0, labels = self.feed.batch(self.draws.indices(start, stop))
        device = x0.device
        quantile, flip, drop = self.draws.uniforms(start, stop).unbind(1)
        if recipe.data.xflip:
            x0 = torch.where(expand(flip < 0.5, x0).to(device), x0.flip(-1), x0)
        condition = None
        if recipe.data.augment > 0:
            # The horizontal flip is always on in EDM's pipe, whatever the probability of the rest.
            params = self.draws.torch_blocks(
                "augment", start, stop, lambda n, g: augment_params(n, recipe.data.augment, g, x_flip=1.0)
            )
            x0, condition = apply(x0, params)
        if labels is not None and self.conditional:
            labels = drop_labels(labels, drop.to(device), recipe.train.label_drop)
        sigma = fw.density.icdf(quantile, nimg / recipe.train.images).to(device)
        x = x0 + expand(sigma, x0).to(x0.dtype) * self.draws.noise(start, stop).to(device, non_blocking=True)
        estimate = denoiser(x, sigma, labels if self.conditional else None, condition)
        error = (estimate.float() - x0).square().flatten(1).mean(1)
        weight = warmed_up(fw.weight(sigma), nimg, int(recipe.weight.warmup), smooth=recipe.weight.smooth)
        return Losses(error * weight.to(error.dtype), error.detach(), sigma)
