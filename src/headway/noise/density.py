"""Densities of the training noise level, p(sigma | progress).

A density is three functions: ``cdf``, its inverse ``icdf``, and ``log_prob``. Every way of drawing sigma (plain, stratified,
keyed by image index) supplies quantiles q in (0, 1) and calls ``icdf``, so all of them are one code. Quantile 0 is clean,
1 is noisy. ``progress`` in [0, 1] is the share of the training budget that is done; the static densities here ignore it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headway.errors import HeadwayError


def check(name: str, value: object, interval: str) -> None:
    """Refuse an option that is no number of ``interval``, written as in mathematics: "[0, 1)"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    inside = False
    if isinstance(value, int | float) and not isinstance(value, bool):
        above = value >= low if interval[0] == "[" else value > low
        inside = above and (value <= high if interval[-1] == "]" else value < high)
    if not inside:
        raise HeadwayError(f"{name} must be a number in {interval}, got {value!r}.")


class Density(Protocol):
    """p(sigma | progress). ``sigma`` > 0 and ``q`` are tensors of any shape; what comes back has that shape."""

    def cdf(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        """P(sigma' <= sigma), in [0, 1]."""
        ...

    def icdf(self, q: Tensor, progress: float = 0.0) -> Tensor:
        """The sigma whose cdf is q, for q in (0, 1)."""
        ...

    def log_prob(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        """Natural logarithm of the density per unit of sigma; -inf outside the support."""
        ...


@dataclass(frozen=True)
class LogNormal:
    """ln sigma ~ N(mean, std^2) (Karras et al. 2022, table 1: -1.2 and 1.2).

    With mean 0 and std 1 this is also the logit-normal(0, 1) density of rectified flow (Esser et al. 2024, section 3.1):
    t = sigma / (1 + sigma) gives logit t = ln sigma.
    """

    mean: float = -1.2
    std: float = 1.2

    def __post_init__(self) -> None:
        if not self.std > 0:
            raise HeadwayError(f"The log-normal density needs std > 0, got {self.std}.")

    def cdf(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        # torch's ndtr computes the lower tail as (1 + erf) / 2 and cancels there; log_ndtr does not.
        log_q: Tensor = torch.special.log_ndtr((sigma.log() - self.mean) / self.std)
        return log_q.exp()

    def icdf(self, q: Tensor, progress: float = 0.0) -> Tensor:
        z: Tensor = torch.special.ndtri(q)
        return (self.mean + self.std * z).exp()

    def log_prob(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        z = (sigma.log() - self.mean) / self.std
        return -0.5 * z.square() - sigma.log() - math.log(self.std * math.sqrt(2 * math.pi))


@dataclass(frozen=True)
class LogUniform:
    """ln sigma uniform between two ends (the VE framework's density)."""

    sigma_min: float
    sigma_max: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma_min < self.sigma_max:
            raise HeadwayError(
                f"The log-uniform density needs 0 < sigma_min < sigma_max, got {self.sigma_min} and {self.sigma_max}."
            )

    @property
    def _width(self) -> float:
        return math.log(self.sigma_max / self.sigma_min)

    def cdf(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        return ((sigma / self.sigma_min).log() / self._width).clamp(0, 1)

    def icdf(self, q: Tensor, progress: float = 0.0) -> Tensor:
        return self.sigma_min * (self._width * q).exp()

    def log_prob(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        inside = (sigma >= self.sigma_min) & (sigma <= self.sigma_max)
        return torch.where(inside, -sigma.log() - math.log(self._width), -math.inf)


@dataclass(frozen=True)
class UniformTime:
    """Time uniform on [t_min, t_max], pushed through an increasing map sigma(t).

    Args:
        sigma, time: the map and its inverse. slope: d time / d sigma as a function of sigma, all elementwise on tensors.
    """

    sigma: Callable[[Tensor], Tensor]
    time: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    t_min: float
    t_max: float

    def cdf(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        return ((self.time(sigma) - self.t_min) / (self.t_max - self.t_min)).clamp(0, 1)

    def icdf(self, q: Tensor, progress: float = 0.0) -> Tensor:
        return self.sigma(self.t_min + (self.t_max - self.t_min) * q)

    def log_prob(self, sigma: Tensor, progress: float = 0.0) -> Tensor:
        time = self.time(sigma)
        inside = (time >= self.t_min) & (time <= self.t_max)
        return torch.where(inside, self.slope(sigma).log() - math.log(self.t_max - self.t_min), -math.inf)
