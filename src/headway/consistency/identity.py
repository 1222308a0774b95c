"""The cause the consistency paper names: at high noise the predicted noise is nearly the input itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.consistency.gaussian import MatchedGaussian
from headway.denoiser import DenoiserLike, convert
from headway.errors import HeadwayError
from headway.sampling.sample import device_of, eval_mode
from headway.sampling.seeding import choose_labels


@dataclass(frozen=True)
class IdentityCurve:
    """What :func:`eps_cosine` returns.

    Attributes:
        sigmas: (S,) float64. cosines: (S, n) float64, one per noise level and image, on the CPU.
    """

    sigmas: Tensor
    cosines: Tensor = field(repr=False)

    @property
    def mean(self) -> Tensor:
        """(S,) mean over images."""
        return self.cosines.mean(1)

    @property
    def error(self) -> Tensor:
        """(S,) standard error of the mean."""
        return self.cosines.std(1) / math.sqrt(self.cosines.shape[1])


def eps_cosine(
    denoiser: DenoiserLike,
    images: Tensor,
    sigmas: Sequence[float] | Tensor,
    generator: torch.Generator,
    *,
    labels: int | Sequence[int] | Tensor | None = None,
    batch: int = 64,
) -> IdentityCurve:
    """The cosine of the predicted noise (x - D(x; sigma)) / sigma with the input x = image + sigma eps, over sigma.

    The paper (Xu et al. 2024, arXiv 2404.07946) compares with the network's input of VP, x / sqrt(1 + sigma^2); the cosine does
    not see the factor. Every noise level has the same eps, one per image. 1: the network hands its input on.

    Args:
        images: (n, C, H, W), n >= 2, the data to add noise to. sigmas: (S,), > 0. generator: on the CPU.
        labels: as :func:`headway.sample` takes them. batch: images at a time.
    """
    levels = torch.as_tensor(sigmas, dtype=torch.float64).cpu()
    if levels.ndim != 1 or not bool((levels > 0).all()):
        raise HeadwayError(f"sigmas must be a list of noise levels > 0, got {sigmas}.")
    if len(images) < 2 or batch < 1:
        raise HeadwayError(f"A standard error needs 2 images and a batch of 1 or more, got {len(images)} and {batch}.")
    device = device_of(denoiser)
    chosen = choose_labels(labels, range(len(images)), getattr(denoiser, "classes", 0))
    noise = torch.randn(images.shape, dtype=torch.float64, generator=generator)
    cosines = torch.empty(len(levels), len(images), dtype=torch.float64)
    with torch.no_grad(), eval_mode(denoiser):
        for first in range(0, len(images), batch):
            part = slice(first, first + batch)
            y, eps = images[part].to(device, torch.float64), noise[part].to(device)
            own = None if chosen is None else chosen[part].to(device)
            for row, sigma in zip(cosines, levels, strict=True):
                x = y + float(sigma) * eps
                x0 = denoiser(x, sigma.to(device).expand(len(x)), own).to(x.dtype)
                row[part] = F.cosine_similarity(convert(x0, x, sigma, "x0", "eps").flatten(1), x.flatten(1)).cpu()
    return IdentityCurve(levels, cosines)


def gaussian_eps_cosine(gaussian: MatchedGaussian, sigmas: Sequence[float] | Tensor) -> Tensor:
    """:func:`eps_cosine` of the Gaussian's ideal denoiser on its own data, (S,) float64, in the limit of many dimensions.

    E<eps, x> / sqrt(E|eps|^2 E|x|^2) = d / sqrt(sum_k 1 / (l_k + sigma^2) (|mu|^2 + sum_k (l_k + sigma^2))), l the
    eigenvalues of the covariance: a ratio of means in the place of the mean ratio, with an error of the order 1 / d. It is 1 at
    every noise level where all l are equal and mu = 0: the cosine alone does not say that a task is easy.
    """
    levels = torch.as_tensor(sigmas, dtype=torch.float64, device=gaussian.variances.device)
    total = gaussian.variances[0] + levels[:, None].square()
    return total.shape[1] / ((1 / total).sum(1) * (gaussian.means.square().sum() + total.sum(1))).sqrt()
