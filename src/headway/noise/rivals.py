"""The densities a user would pick instead of CLTS, each by its paper's formula, written in sigma."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.noise.density import Density, LogNormal, check
from headway.noise.quantile import Power, Steps, Tilted, invert
from headway.noise.spaces import COSINE_TIME, FLOW_TIME, in_space


def log_normal(base: Density, *, mean: float = -1.2, std: float = 1.2) -> LogNormal:
    """ln sigma ~ N(mean, std^2): EDM's density (Karras et al. 2022, arXiv 2206.00364, table 1)."""
    check("mean", mean, "[-100, 100]")
    check("std", std, "[0.01, 100]")
    return LogNormal(mean, std)


def logit_normal(base: Density, *, mean: float = 0.0, std: float = 1.0) -> LogNormal:
    """logit t ~ N(mean, std^2) in flow's time: SD3's choice (Esser et al. 2024, arXiv 2403.03206, section 3.1).

    logit t = ln(t / (1 - t)) = ln sigma, so in sigma it is a log-normal density.
    """
    return log_normal(base, mean=mean, std=std)


@dataclass(frozen=True)
class ModeLaw:
    """t = q + scale (q - sin^2(pi q / 2)), the law of SD3's mode sampling with its u = 1 - q."""

    scale: float

    def __post_init__(self) -> None:
        # At the ends of this range the map's slope vanishes somewhere; beyond it the map is not increasing.
        check("scale", self.scale, f"(-1, {2 / (math.pi - 2):.6f})")

    def cdf(self, u: Tensor, progress: float) -> Tensor:
        return invert(lambda q: self.icdf(q, progress), self._slope, u)

    def icdf(self, q: Tensor, progress: float) -> Tensor:
        return q + self.scale * (q - (math.pi / 2 * q).sin().square())

    def pdf(self, u: Tensor, progress: float) -> Tensor:
        return self._slope(self.cdf(u, progress)).reciprocal()

    def _slope(self, q: Tensor) -> Tensor:
        return 1 + self.scale * (1 - math.pi / 2 * (math.pi * q).sin())


def mode(base: Density, *, scale: float = 1.29) -> Tilted:
    """SD3's mode sampling with heavy tails, in flow's time; scale 0 is uniform t (Esser et al. 2024, section 3.1)."""
    return Tilted(FLOW_TIME, ModeLaw(scale))


def cosmap(base: Density) -> Density:
    """SD3's CosMap, t = 1 - 1 / (tan(pi q / 2) + 1): the cosine schedule's noise levels (Esser et al. 2024, section 3.1)."""
    return COSINE_TIME


@dataclass(frozen=True)
class Laplace:
    """log SNR = -2 ln sigma ~ Laplace(mean, scale)."""

    mean: float = 0.0
    scale: float = 0.5

    def __post_init__(self) -> None:
        check("mean", self.mean, "[-100, 100]")
        check("scale", self.scale, "[0.01, 100]")

    def cdf(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        z = (2 * sigma.log() + self.mean) / self.scale
        half = (-z.abs()).exp() / 2
        return torch.where(z < 0, half, 1 - half)

    def icdf(self, q: Tensor, progress: float = 0.0) -> Tensor:
        z = torch.where(q < 0.5, (2 * q).log(), -(2 * (1 - q)).log())
        return ((self.scale * z - self.mean) / 2).exp()

    def log_prob(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        # Per unit of sigma: |d log SNR / d sigma| = 2 / sigma.
        log_sigma = sigma.log()
        return -(2 * log_sigma + self.mean).abs() / self.scale - math.log(self.scale) - log_sigma


def laplace(base: Density, *, mean: float = 0.0, scale: float = 0.5) -> Laplace:
    """Laplace in the log SNR, centred where signal and noise are equal (Hang et al. 2024, arXiv 2407.03297)."""
    return Laplace(mean, scale)


def beta(base: Density, *, alpha: float = 0.8, space: str | Density = "framework") -> Tilted:
    """B-TTDM: time ~ Beta(alpha, 1), drawn as q^(1/alpha) (Zheng et al., ECCV 2024)."""
    return Tilted(in_space(base, space), Power(alpha))


def speed(base: Density, *, k: float = 5.0, tau: float = 0.7, space: str | Density = "framework") -> Tilted:
    """SpeeD's asymmetric sampling: k times fewer draws per unit of time beyond tau (Wang et al. 2024, arXiv 2405.17403).

    pi(u) = k / (1 + tau (k - 1)) below tau and 1 / (1 + tau (k - 1)) above.
    """
    check("k", k, "[1, inf)")
    check("tau", tau, "(0, 1)")
    return Tilted(in_space(base, space), Steps([tau], [k * tau, 1 - tau]))


@dataclass(frozen=True)
class TwoPhase:
    """One density up to progress ``switch``, another from there on."""

    first: Density
    second: Density
    switch: float

    def __post_init__(self) -> None:
        check("switch", self.switch, "[0, 1]")

    def at(self, progress: float) -> Density:
        check("progress", progress, "[0, inf)")
        return self.first if progress < self.switch else self.second

    def cdf(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        return self.at(progress).cdf(sigma, progress)

    def icdf(self, q: Tensor, progress: float = 0.0) -> Tensor:
        return self.at(progress).icdf(q, progress)

    def log_prob(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        return self.at(progress).log_prob(sigma, progress)


def two_phase(
    base: Density, *, switch: float = 0.4, mean: float = 0.8, std: float = 1.0, space: str | Density = "flow"
) -> TwoPhase:
    """Curriculum Sampling: logit-normal first, then uniform in time (Sun 2026, arXiv 2603.12517).

    Args:
        base: the framework's density. switch: the progress from which time is uniform. mean, std: of logit t before.
        space: uniform in what: "flow" (its time, as in the paper), "vp", "framework" (its own density), or a density.
    """
    return TwoPhase(logit_normal(base, mean=mean, std=std), in_space(base, space), switch)
