"""Curricula and tilts: a law pi(u) on the quantiles u of a base density.

With u = P(sigma' <= sigma) under the base (0 clean, 1 noisy; under VP it is the time itself) any law on [0, 1] makes a density
of sigma for every framework: p(sigma) = base(sigma) pi(u). The law that is uniform gives the base back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headway.noise.density import Density, check


class Law(Protocol):
    """A law of u in [0, 1]. Tensors are float64, contiguous, of any shape; ``progress`` >= 0 is the share of the budget done."""

    def cdf(self, u: Tensor, progress: float) -> Tensor: ...

    def icdf(self, q: Tensor, progress: float) -> Tensor: ...

    def pdf(self, u: Tensor, progress: float) -> Tensor: ...


@dataclass
class Tilted:
    """The density base(sigma) pi(u). Computed in float64, whatever comes in; what goes out has the type that came in."""

    base: Density
    law: Law

    def cdf(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        return self.law.cdf(self.base.cdf(sigma.double(), progress), progress).to(sigma.dtype)

    def icdf(self, q: Tensor, progress: float = 0.0) -> Tensor:
        # A column of a table of uniforms is not contiguous, which torch's searches warn about.
        return self.base.icdf(self.law.icdf(q.double().contiguous(), progress), progress).to(q.dtype)

    def log_prob(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        wide = sigma.double()
        base = self.base.log_prob(wide, progress)
        tilt = self.law.pdf(self.base.cdf(wide, progress), progress).log()
        # Outside the base's support a law that is infinite at its ends must not make -inf + inf.
        return torch.where(base == -math.inf, base, base + tilt).to(sigma.dtype)


def importance(density: Density, base: Density, sigma: Tensor, progress: float = 0.0) -> Tensor:
    """The factor base(sigma) / density(sigma) that makes a loss drawn from ``density`` estimate the mean under ``base``.

    For a tilt of that base it is 1 / pi(u). The mean is exact where ``density`` covers the support of ``base``; noise levels
    that it never draws (a task-difficulty curriculum's locked ones) no factor brings back. Shape and type of ``sigma``.
    """
    return (base.log_prob(sigma, progress) - density.log_prob(sigma, progress)).exp()


def invert(f: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], y: Tensor) -> Tensor:
    """x in [0, 1] with f(x) = y, for an increasing f: a table first, then Newton's steps, and bisection where they go astray."""
    nodes = torch.linspace(0, 1, 257, dtype=y.dtype, device=y.device)
    values = f(nodes)
    k = torch.bucketize(y, values[1:-1])
    low, high, last = nodes[k], nodes[k + 1], torch.ones_like(y)
    share = (y - values[k]) / (values[k + 1] - values[k])
    x = torch.where(share.isfinite(), low + share * (high - low), low)
    for _ in range(100):
        error = f(x) - y
        step = error / slope(x)
        # Newton squares its error: after a step of 1e-8 nothing is left that float64 can tell.
        done = step.abs() <= 1e-8
        if bool(done.all()):
            return (x - step).clamp(0, 1)
        low, high = torch.where(error < 0, x, low), torch.where(error > 0, x, high)
        # Steps that do not halve may go back and forth over a steep place for ever.
        good = done | ((x - step >= low) & (x - step <= high) & (step.abs() <= last / 2))
        step = torch.where(good, step, x - (low + high) / 2)
        x, last = x - step, step.abs()
    return x


class Steps:
    """pi(u) constant between edges.

    Args:
        inner: n - 1 inner edges in (0, 1), increasing. masses: n weights >= 0, the last > 0; they need not sum to 1.
    """

    def __init__(self, inner: Sequence[float], masses: Sequence[float]) -> None:
        total = math.fsum(masses)
        shares = torch.tensor([mass / total for mass in masses], dtype=torch.float64)
        self._edges = torch.tensor([0.0, *inner, 1.0], dtype=torch.float64)
        self._heights = shares / self._edges.diff()
        self._below = torch.cat([shares.new_zeros(1), shares.cumsum(0)])

    def cdf(self, u: Tensor, progress: float) -> Tensor:
        edges, heights, below = self._on(u)
        k = torch.bucketize(u, edges[1:-1], right=True)
        return (below[k] + (u - edges[k]) * heights[k]).clamp(max=1)

    def icdf(self, q: Tensor, progress: float) -> Tensor:
        edges, heights, below = self._on(q)
        # right: a step of no mass is passed over.
        k = torch.bucketize(q, below[1:-1], right=True)
        return (edges[k] + (q - below[k]) / heights[k]).clamp(max=1)

    def pdf(self, u: Tensor, progress: float) -> Tensor:
        edges, heights, _ = self._on(u)
        return heights[torch.bucketize(u, edges[1:-1], right=True)]

    def _on(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._edges.to(like.device), self._heights.to(like.device), self._below.to(like.device)


@dataclass(frozen=True)
class Power:
    """u = q^(1/alpha), the law Beta(alpha, 1): below 1 it favours clean images, at 1 it is uniform."""

    alpha: float

    def __post_init__(self) -> None:
        check("alpha", self.alpha, "[0.1, 10]")

    def cdf(self, u: Tensor, progress: float) -> Tensor:
        return u**self.alpha

    def icdf(self, q: Tensor, progress: float) -> Tensor:
        return q ** (1 / self.alpha)

    def pdf(self, u: Tensor, progress: float) -> Tensor:
        return self.alpha * u ** (self.alpha - 1)
