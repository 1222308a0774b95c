"""Ideal denoisers in closed form: of a finite data set, and of a Gaussian mixture. They are the oracles of every test.

Both are modules with a ``framework`` and a ``shape``, so :func:`headway.sample` takes them like a trained model.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError
from headway.frameworks import EDM
from headway.frameworks.base import Framework


class IdealDenoiser(nn.Module):
    """E[x0 | x] when x0 is uniform on a finite set of images: the minimiser of the training loss on that set.

    D(x; sigma) = sum_i softmax_i(-|x - y_i|^2 / (2 sigma^2)) y_i (Karras et al. 2022, appendix B.3). Sampling with it
    returns the images themselves.

    Args:
        data: (N, C, H, W) images. framework: EDM by default; only its sigma range matters here.
    """

    data: Tensor

    def __init__(self, data: Tensor, framework: Framework | None = None) -> None:
        super().__init__()
        if data.ndim < 2 or len(data) == 0:
            raise HeadwayError(f"The ideal denoiser needs data of shape (N, ...) with N >= 1, got {tuple(data.shape)}.")
        self.register_buffer("data", data)
        self.framework = framework or EDM()
        self.shape = tuple(data.shape[1:])

    def forward(self, x: Tensor, sigma: Tensor | float, labels: Tensor | None = None) -> Tensor:
        sigma = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
        y = self.data.to(x).flatten(1)
        # |x - y|^2 up to |x|^2, which the softmax does not see.
        distance = y.square().sum(1) - 2 * x.flatten(1) @ y.T
        posterior = (-distance / (2 * sigma.square()[:, None])).softmax(1)
        return (posterior @ y).reshape(x.shape)


class GaussianMixture(nn.Module):
    """E[x0 | x] when x0 is a mixture of Gaussians with full covariances; also its score and its samples.

    Args:
        means: (K, *shape). covariances: (K, d, d) with d the product of shape, symmetric, positive semi-definite.
        weights: (K,) positive, default equal. framework: EDM by default; only its sigma range matters here.
    """

    means: Tensor
    variances: Tensor
    axes: Tensor
    log_weights: Tensor

    def __init__(
        self,
        means: Tensor,
        covariances: Tensor,
        weights: Tensor | None = None,
        framework: Framework | None = None,
    ) -> None:
        super().__init__()
        k, d = len(means), means[0].numel()
        if covariances.shape != (k, d, d):
            raise HeadwayError(
                f"{k} components of dimension {d} need covariances ({k}, {d}, {d}), got {tuple(covariances.shape)}."
            )
        if weights is None:
            weights = torch.ones(k)
        if weights.shape != (k,) or not bool((weights > 0).all()):
            raise HeadwayError(f"{k} components need {k} positive weights, got {weights.tolist()}.")
        variances, axes = (part.to(means) for part in torch.linalg.eigh(covariances))
        self.register_buffer("means", means.flatten(1))
        self.register_buffer("variances", variances.clamp(min=0))
        self.register_buffer("axes", axes)
        self.register_buffer("log_weights", (weights.to(means) / weights.sum()).log())
        self.framework = framework or EDM()
        self.shape = tuple(means.shape[1:])

    def forward(self, x: Tensor, sigma: Tensor | float, labels: Tensor | None = None) -> Tensor:
        offset, total, log_joint = self._parts(x, sigma)
        shrunk = torch.einsum("bke,kde->bkd", offset * self.variances.to(x) / total, self.axes.to(x)) + self.means.to(x)
        return torch.einsum("bk,bkd->bd", log_joint.softmax(1), shrunk).reshape(x.shape)

    def log_prob(self, x: Tensor, sigma: Tensor | float) -> Tensor:
        """log p(x; sigma), (B,), of the data smoothed with noise of standard deviation sigma."""
        return self._parts(x, sigma)[2].logsumexp(1)

    def _parts(self, x: Tensor, sigma: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """x minus the means and the noisy variances, (B, K, d), both along the components' axes; log p(x, component), (B, K)."""
        sigma = torch.as_tensor(sigma, dtype=x.dtype, device=x.device).expand(len(x))
        total = self.variances.to(x) + sigma.square()[:, None, None]
        offset = torch.einsum("bkd,kde->bke", x.flatten(1)[:, None] - self.means.to(x), self.axes.to(x))
        quadratic = (offset.square() / total + total.log() + math.log(2 * math.pi)).sum(2)
        return offset, total, self.log_weights.to(x) - 0.5 * quadratic

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n exact samples, (n, *shape), on the means' device; ``generator`` must live there too."""
        component = torch.multinomial(self.log_weights.exp(), n, replacement=True, generator=generator)
        flat = self.means[component]
        noise = torch.randn(flat.shape, dtype=flat.dtype, device=flat.device, generator=generator)
        for k, (variances, axes) in enumerate(zip(self.variances, self.axes, strict=True)):
            own = component == k
            flat[own] += (noise[own] * variances.sqrt()) @ axes.T
        return flat.reshape(n, *self.shape)
