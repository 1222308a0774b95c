"""CLTS, the curriculum timestep schedule (Xu et al. 2024, arXiv 2404.07946): from uniform to a Gaussian on harder noise levels.

    pi(u) = (1 - gamma) + gamma G(u),     gamma = min(1, progress / horizon)

is a mixture of densities, never of samples. u is 0 for clean images, 1 for noise. G is a Gaussian cut to [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.noise.density import Density, check
from headway.noise.quantile import Tilted, invert
from headway.noise.spaces import in_space

INDICATORS = ("time", "noise-rate")


class Target(Protocol):
    """What a curriculum leads to: a law of u in [0, 1] that does not change."""

    def cdf(self, u: Tensor) -> Tensor: ...

    def pdf(self, u: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class TruncatedNormal:
    """N(mu, std^2) cut to [0, 1]: phi((u - mu) / std) / (std [Phi((1 - mu) / std) - Phi(-mu / std)])."""

    mu: float = 0.3
    std: float = 0.5

    def __post_init__(self) -> None:
        check("mu", self.mu, "[0, 1]")
        check("std", self.std, "[0.01, 100]")

    def cdf(self, u: Tensor) -> Tensor:
        width = self.std * math.sqrt(2)
        return (((u - self.mu) / width).erf() + math.erf(self.mu / width)) / (2 * self._mass)

    def pdf(self, u: Tensor) -> Tensor:
        return (-0.5 * ((u - self.mu) / self.std).square()).exp() / (self.std * math.sqrt(2 * math.pi) * self._mass)

    @property
    def _mass(self) -> float:
        width = self.std * math.sqrt(2)
        return 0.5 * (math.erf((1 - self.mu) / width) + math.erf(self.mu / width))


class Tabulated:
    """A density that is linear between equally spaced nodes 0, 1/n, ..., 1, from its unnormalised values there (n + 1,)."""

    def __init__(self, values: Tensor) -> None:
        values = values.double()
        self._cells = len(values) - 1
        masses = (values[1:] + values[:-1]) / (2 * self._cells)
        self._values = values / masses.sum()
        self._below = torch.cat([values.new_zeros(1), masses.cumsum(0) / masses.sum()])

    def cdf(self, u: Tensor) -> Tensor:
        k, rest, left, right = self._cell(u)
        return self._below.to(u.device)[k] + rest * (left + rest / 2 * (right - left)) / self._cells

    def pdf(self, u: Tensor) -> Tensor:
        _, rest, left, right = self._cell(u)
        return left + rest * (right - left)

    def _cell(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        k = (u * self._cells).long().clamp(0, self._cells - 1)
        values = self._values.to(u.device)
        return k, u * self._cells - k, values[k], values[k + 1]


@dataclass(frozen=True)
class Curriculum:
    """The law (1 - gamma) + gamma target(u).

    Args:
        target: the law at the end. horizon: the progress at which it is reached, in (0, 1].
        reversed: the control that starts from the target and ends uniform, gamma = 1 - min(1, progress / horizon).
    """

    target: Target = field(default_factory=TruncatedNormal)
    horizon: float = 0.7
    reversed: bool = False

    def __post_init__(self) -> None:
        check("horizon", self.horizon, "(0, 1]")
        if not isinstance(self.reversed, bool):
            raise HeadwayError(f"reversed must be true or false, got {self.reversed!r}.")

    def gamma(self, progress: float) -> float:
        """The target's share at that progress, in [0, 1]."""
        check("progress", progress, "[0, inf)")
        share = min(1.0, progress / self.horizon)
        return 1 - share if self.reversed else share

    def cdf(self, u: Tensor, progress: float) -> Tensor:
        gamma = self.gamma(progress)
        return (1 - gamma) * u + gamma * self.target.cdf(u)

    def pdf(self, u: Tensor, progress: float) -> Tensor:
        gamma = self.gamma(progress)
        return (1 - gamma) + gamma * self.target.pdf(u)

    def icdf(self, q: Tensor, progress: float) -> Tensor:
        if self.gamma(progress) == 0:
            return q
        return invert(lambda u: self.cdf(u, progress), lambda u: self.pdf(u, progress), q)


def noise_rate_target(base: Density, mu: float, std: float, cells: int = 4096) -> Tabulated:
    """The Gaussian in the noise rate r = sigma / sqrt(1 + sigma^2) of the base's quantiles: G(u) ~ exp(-(r - mu)^2 / 2 std^2).

    Ours, after the paper's abstract, which calls the noise rate the indicator of difficulty. Normalised on a grid of u.
    """
    TruncatedNormal(mu, std)  # refuses the same values
    sigma = base.icdf(torch.linspace(0, 1, cells + 1, dtype=torch.float64))
    rate = (sigma.square().reciprocal() + 1).rsqrt()  # in this form also right where sigma is infinite
    return Tabulated((-0.5 * ((rate - mu) / std).square()).exp())


def clts(
    base: Density,
    *,
    horizon: float = 0.7,
    mu: float = 0.3,
    std: float = 0.5,
    indicator: str = "time",
    space: str | Density = "framework",
    reversed: bool = False,
) -> Tilted:
    """CLTS: uniform at first, later a Gaussian centred on quantile 0.3 (Xu et al. 2024, arXiv 2404.07946).

    Args:
        base: the framework's density. horizon: progress at which the Gaussian stands alone, in (0, 1].
        mu, std: of the Gaussian, mu in [0, 1], std in [0.01, 100].
        indicator: what the Gaussian is a function of: "time", the quantile u; or "noise-rate", sigma / sqrt(1 + sigma^2) at u.
        space: whose quantiles: "framework", "vp" (the paper's noise levels in any framework), "flow", or a density.
            Its density is then the one that the curriculum starts from.
        reversed: from the Gaussian to uniform, a control.
    """
    if indicator not in INDICATORS:
        raise unknown("indicator", indicator, INDICATORS)
    base = in_space(base, space)
    target = TruncatedNormal(mu, std) if indicator == "time" else noise_rate_target(base, mu, std)
    return Tilted(base, Curriculum(target, horizon, reversed))
