"""The Gaussian control: what a model that knew only the data's mean and covariance would make of the same noise."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.frameworks.base import Framework
from headway.ideal import GaussianMixture

_CHUNK = 4096


class MatchedGaussian(GaussianMixture):
    """The Gaussian with given mean and covariance: an ideal denoiser for any solver, and its probability flow in closed form.

    All in float64. An eigenvalue that is rounding error counts as 0, so a covariance of any rank is exact. The
    eigen-decomposition is dense: half a minute for d = 3072 (32 x 32 colour) on one core, and it grows as d^3.

    Args:
        mean: (C, H, W). covariance: (d, d), d = C H W. framework: EDM by default; only its sigma range matters.
    """

    def __init__(self, mean: Tensor, covariance: Tensor, framework: Framework | None = None) -> None:
        super().__init__(mean[None].double(), covariance[None].double(), framework=framework)
        rounding = self.variances.max() * self.variances.numel() * torch.finfo(torch.float64).eps
        self.variances = torch.where(self.variances > rounding, self.variances, 0)

    @classmethod
    def of(cls, images: Tensor, framework: Framework | None = None) -> MatchedGaussian:
        """The Gaussian with the mean and the unbiased covariance of images (N, C, H, W), N >= 2."""
        if images.ndim < 2 or len(images) < 2:
            raise HeadwayError(f"A covariance needs images (N, C, H, W) with N >= 2, got shape {tuple(images.shape)}.")
        flat = images.flatten(1)
        mean = flat.mean(0, dtype=torch.float64)
        scatter = mean.new_zeros(len(mean), len(mean))
        for part in torch.split(flat, _CHUNK):
            centred = part.double() - mean
            scatter += centred.T @ centred
        return cls(mean.reshape(images.shape[1:]), scatter / (len(images) - 1), framework)

    def flow(self, x: Tensor, sigma: float, to: float = 0.0) -> Tensor:
        """Where the probability flow from x at noise level ``sigma`` is at level ``to``: exactly, without steps.

        x(to) = mu + U diag(sqrt((l + to^2) / (l + sigma^2))) U^T (x - mu), l and U the eigenvalues and -vectors of the
        covariance. It solves dx/dsigma = (x - D(x; sigma)) / sigma (Karras et al. 2022, arXiv 2206.00364, equations 1 and 3)
        with D(x; sigma) = mu + U diag(l / (l + sigma^2)) U^T (x - mu).

        Args:
            x: (B, C, H, W) = x0 + sigma eps, as a sampler starts: sigma_max times noise. sigma > 0, to >= 0.

        Returns:
            (B, C, H, W) in x's dtype.
        """
        if not (sigma > 0 and to >= 0):
            raise HeadwayError(f"The flow goes from a sigma > 0 to one >= 0, got {sigma} and {to}.")
        mean, variances, axes = self.means[0], self.variances[0], self.axes[0]
        ratio = ((variances + to**2) / (variances + sigma**2)).sqrt()
        along = (x.double().flatten(1) - mean) @ axes
        return (mean + (along * ratio) @ axes.T).reshape(x.shape).to(x.dtype)
