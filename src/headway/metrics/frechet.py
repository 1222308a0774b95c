"""The Fréchet distance between two sets of features, and the float64 statistics it needs.

Source: Heusel et al. 2017, arXiv 1706.08500, equation 6; Dowson and Landau 1982 for the distance between Gaussians.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from headway.errors import HeadwayError


class FeatureStats:
    """Mean and covariance of feature vectors, gathered in batches, in float64.

    Batches are joined by the pairwise update of Chan, Golub and LeVeque (1979), which does not cancel as the sum of
    squares does: the result depends on the order of the batches by rounding only, however far the mean is from zero.
    """

    def __init__(self, dim: int, device: torch.device | str = "cpu") -> None:
        self.n = 0
        self.mean = torch.zeros(dim, dtype=torch.float64, device=device)
        self.scatter = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        """Sum over vectors of (f - mean)(f - mean)^T."""

    @classmethod
    def of(cls, features: Tensor) -> FeatureStats:
        """The statistics of all features (n, d) at once."""
        if features.ndim != 2:
            raise HeadwayError(
                f"Expected features of shape (n, d), got {tuple(features.shape)}; flatten each to a row."
            )
        stats = cls(features.shape[1], features.device)
        stats.update(features)
        return stats

    @classmethod
    def restore(cls, state: dict[str, Tensor], device: torch.device | str = "cpu") -> FeatureStats:
        """The inverse of `state`."""
        stats = cls(len(state["mean"]), device)
        stats.n, stats.mean, stats.scatter = int(state["n"]), state["mean"].to(device), state["scatter"].to(device)
        return stats

    def state(self) -> dict[str, Tensor]:
        """All there is to keep, as tensors: "n", "mean", "scatter"."""
        return {"n": torch.tensor(self.n), "mean": self.mean, "scatter": self.scatter}

    @property
    def dim(self) -> int:
        return len(self.mean)

    @property
    def cov(self) -> Tensor:
        """Unbiased covariance (d, d), exactly symmetric. Needs two vectors."""
        if self.n < 2:
            raise HeadwayError(f"A covariance needs at least 2 feature vectors, got {self.n}; give more images.")
        return (self.scatter + self.scatter.T) / (2 * (self.n - 1))

    @property
    def shortage(self) -> str | None:
        """A sentence if there are too few vectors for a covariance of full rank, else None."""
        if self.n > self.dim:
            return None
        return (
            f"{self.n} images for {self.dim} features leave the covariance singular and the distance strongly biased "
            f"upwards; use more than {self.dim} images, several times as many if you can."
        )

    def update(self, features: Tensor) -> None:
        """Take in a batch of features (n, d) of any dtype and device; n may be 0."""
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise HeadwayError(f"Expected features of shape (n, {self.dim}), got {tuple(features.shape)}.")
        if not features.isfinite().all():
            bad = int((~features.isfinite().all(dim=1)).sum())
            raise HeadwayError(
                f"{bad} of {len(features)} feature vectors contain NaN or infinity; look at the images they come from."
            )
        if len(features) == 0:
            return
        batch = features.detach().to(self.mean.device, torch.float64)
        mean = batch.mean(dim=0)
        centred = batch - mean
        self._join(len(batch), mean, centred.T @ centred)

    def merge(self, other: FeatureStats) -> None:
        """Take in all that `other` has seen."""
        if other.dim != self.dim:
            raise HeadwayError(f"Cannot merge statistics of {other.dim} features into statistics of {self.dim}.")
        if other.n:
            self._join(other.n, other.mean.to(self.mean.device), other.scatter.to(self.mean.device))

    def _join(self, n: int, mean: Tensor, scatter: Tensor) -> None:
        total = self.n + n
        delta = mean - self.mean
        self.scatter = self.scatter + scatter + torch.outer(delta, delta) * (self.n * n / total)
        self.mean = self.mean + delta * (n / total)
        self.n = total

    def reduce(self, total: Callable[[Tensor], Tensor]) -> FeatureStats:
        """The statistics over all processes; every process must call it, also one that has seen nothing.

        `total` sums a float64 tensor (on the device of these statistics) over processes, for example
        `lambda t: accelerator.reduce(t, "sum")`.
        """
        moments = total(torch.cat([self.mean.new_tensor([self.n]), self.n * self.mean]))
        joint = FeatureStats(self.dim, self.mean.device)
        joint.n = round(moments[0].item())
        joint.mean = moments[1:] / max(joint.n, 1)
        # Scatter about a common mean simply adds up; the means go first so that nothing cancels.
        delta = self.mean - joint.mean
        joint.scatter = total(self.scatter + self.n * torch.outer(delta, delta))
        return joint


def frechet_distance(a: FeatureStats | Tensor, b: FeatureStats | Tensor) -> float:
    """Fréchet distance of the Gaussians fitted to two sets: |mu_a - mu_b|^2 + tr(A + B - 2 (AB)^1/2).

    `a`, `b` are statistics or plain features (n, d), n >= 2, which may differ in n. The result is a finite float >= 0,
    in squared units of the features. Covariances of any rank are fine; plain features warn when n <= d.

    The trace of (AB)^1/2 equals that of (A^1/2 B A^1/2)^1/2, which is the sum of the singular values of A^1/2 B^1/2.
    Taken so, no square root is drawn of a difference that should have been zero, so a rank deficient covariance costs
    no accuracy and nothing ever turns complex.
    """
    a, b = _stats(a), _stats(b)
    if a.dim != b.dim:
        raise HeadwayError(f"Cannot compare {a.dim} features with {b.dim}; use one extractor for both sets.")
    cov_a, cov_b = a.cov, b.cov.to(a.mean.device)
    offset = (a.mean - b.mean.to(a.mean.device)).square().sum()
    overlap = torch.linalg.svdvals(_root(cov_a) @ _root(cov_b).T).sum()
    distance = offset + cov_a.trace() + cov_b.trace() - 2 * overlap
    return max(0.0, float(distance))


def _stats(given: FeatureStats | Tensor) -> FeatureStats:
    if isinstance(given, FeatureStats):
        return given
    stats = FeatureStats.of(torch.as_tensor(given))
    if stats.shortage:
        warnings.warn(stats.shortage, stacklevel=3)
    return stats


def _root(cov: Tensor) -> Tensor:
    """R (r, d) of full rank r with R^T R = cov; directions that are rounding error are left out."""
    values, vectors = torch.linalg.eigh(cov)
    kept = values > values[-1] * len(cov) * torch.finfo(cov.dtype).eps
    root: Tensor = (vectors[:, kept] * values[kept].sqrt()).T
    return root
