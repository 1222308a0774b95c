"""The denoiser as solvers see it: labels bound, classifier-free guidance applied, network evaluations counted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headway.denoiser import DenoiserLike
from headway.errors import HeadwayError

Interval = tuple[float, float]


def check_guidance(scale: float, interval: Interval | None, labels: Tensor | None) -> None:
    """Refuse a guidance that cannot be meant; labels (N,) are those of the whole run."""
    if not math.isfinite(scale):
        raise HeadwayError(f"guidance must be a finite number (1 is none), got {scale}.")
    if interval is not None and not 0 <= interval[0] < interval[1]:
        raise HeadwayError(f"guidance_interval must be (low, high) in sigma with 0 <= low < high, got {interval}.")
    if scale != 1 and labels is None:
        raise HeadwayError(f"guidance={scale:g} needs a model with classes, and this one has none; leave it out.")
    if scale != 1 and labels is not None and bool((labels < 0).any()):
        raise HeadwayError(f"guidance={scale:g} needs a label for every image; give labels=.")


class Guided:
    """denoise(x, sigma) of one batch; ``nfe`` counts the network evaluations per image as they happen.

    D = D_none + g (D_label - D_none) (Ho & Salimans 2022, arXiv 2207.12598, with g = 1 + w): g = 1 is no guidance and costs
    one evaluation, otherwise both are evaluated, in one call of twice the batch that counts as two. With an interval,
    guidance acts where low < sigma <= high (Kynkäänniemi et al. 2024, arXiv 2404.07724) and nothing is spent on it elsewhere.

    Args:
        labels: (B,) int64, -1 for "no label"; None for a model without classes. scale: g.
    """

    def __init__(self, denoiser: DenoiserLike, labels: Tensor | None, scale: float, interval: Interval | None) -> None:
        self.denoiser, self.labels, self.scale = denoiser, labels, scale
        self.low, self.high = interval or (0.0, math.inf)
        self.nfe = 0

    def __call__(self, x: Tensor, sigma: Tensor) -> Tensor:
        if self.scale == 1 or self.labels is None or not self.low < sigma <= self.high:
            self.nfe += 1
            return self._evaluate(x, sigma, self.labels)
        self.nfe += 2
        labels = torch.cat([self.labels, torch.full_like(self.labels, -1)])
        conditional, unconditional = self._evaluate(torch.cat([x, x]), sigma, labels).chunk(2)
        return unconditional + self.scale * (conditional - unconditional)

    def _evaluate(self, x: Tensor, sigma: Tensor, labels: Tensor | None) -> Tensor:
        estimate = self.denoiser(x, sigma.to(x.device).expand(len(x)), labels)
        if estimate.shape != x.shape:
            raise HeadwayError(
                f"The denoiser must return images of the shape it was given, {tuple(x.shape)}, "
                f"got {tuple(estimate.shape)}."
            )
        return estimate.to(x.dtype)
