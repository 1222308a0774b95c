"""The damped oscillator behind FDM: mean and variance of a diffusion process with momentum.

Internal time is B = integral of beta. The process is dx = v dB, dv = (-2 zeta v - x) dB + 2 sqrt(zeta) dW with x(0) = x0, v(0) = 0.
With h the response of x to a unit kick of v, and c the response's cosine-like companion, everything follows from

    mean = c + zeta h,    mean' = -h,    variance = 1 - e^(-2 zeta B) - 2 zeta h mean,    variance' = 4 zeta h^2,

one form for under-damped (zeta < 1), critically damped (1: mean (1 + B) e^-B) and over-damped (> 1) motion. Derived from
Wu et al. 2023 (arXiv 2306.06991), section 3: SGD with heavy-ball momentum, whose continuous limit this is.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headway.errors import HeadwayError

BETA_MIN, BETA_D = 0.1, 19.9
# Below this the closed form of the variance loses digits to cancellation: 1e-3 is the difference of numbers near 1.
_SERIES_BELOW = 0.1
_SERIES_TERMS = 14


def integrated_beta(t: Tensor) -> Tensor:
    """B(t) = 0.1 t + 9.95 t^2, the integral of beta(t) = 0.1 + 19.9 t; B(1) = 10.05."""
    return t * (BETA_MIN + 0.5 * BETA_D * t)


def time_of_integrated_beta(b: Tensor) -> Tensor:
    """The inverse of :func:`integrated_beta` for B >= 0."""
    return 2 * b / ((BETA_MIN**2 + 2 * BETA_D * b).sqrt() + BETA_MIN)


class Oscillator:
    """Mean, variance and noise-to-signal ratio of the damped process, as functions of B (any shape, float64 for full precision)."""

    def __init__(self, zeta: float = 1.0) -> None:
        if not (zeta > 0 and math.isfinite(zeta)):
            raise HeadwayError(f"The damping zeta must be a positive number (1 is critical damping), got {zeta}.")
        self.zeta = zeta
        self.w = math.sqrt(abs(1 - zeta**2))
        # Under-damped motion swings through zero at B*: beyond it the mean is negative.
        self.b_max = (math.pi - math.acos(zeta)) / self.w if zeta < 1 else math.inf
        self._series = _variance_series(zeta)
        self._series_below = _SERIES_BELOW / max(1.0, zeta)

    def _responses(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """(h, c): the response to a kick, h(0) = 0, h'(0) = 1, and c = e^(-zeta B) cos(wB) or its hyperbolic form."""
        z, w = self.zeta, self.w
        if z == 1:
            decay = (-b).exp()
            return b * decay, decay
        if z < 1:
            decay = (-z * b).exp()
            return decay * (w * b).sin() / w, decay * (w * b).cos()
        slow = (-b / (z + w)).exp()  # z - w = 1 / (z + w) without cancellation
        return slow * -(-2 * w * b).expm1() / (2 * w), slow * (1 + (-2 * w * b).exp()) / 2

    def kick(self, b: Tensor) -> Tensor:
        """h(B), the response of x to a unit velocity; also -d mean / dB."""
        return self._responses(b)[0]

    def mean(self, b: Tensor) -> Tensor:
        """E[x(B)] / x0; (1 + B) e^-B at critical damping."""
        h, c = self._responses(b)
        return c + self.zeta * h

    def variance(self, b: Tensor) -> Tensor:
        """Var[x(B)]; 1 - e^-2B (1 + 2B + 2B^2) at critical damping."""
        h, c = self._responses(b)
        closed = -(-2 * self.zeta * b).expm1() - 2 * self.zeta * h * (c + self.zeta * h)
        series = torch.zeros_like(b)
        for coefficient in reversed(self._series):
            series = series * b + coefficient
        return torch.where(b < self._series_below, series * b**3, closed)

    def sigma(self, b: Tensor) -> Tensor:
        """sigma_p(B) = sqrt(variance) / mean, the noise level at which the process stands at B; for 0 <= B < b_max."""
        return self.variance(b).sqrt() / self.mean(b)

    def log_slope(self, b: Tensor) -> Tensor:
        """d ln sigma_p / dB, positive."""
        h = self.kick(b)
        return 2 * self.zeta * h.square() / self.variance(b) + h / self.mean(b)

    def solve(self, sigma: Tensor) -> Tensor:
        """B(sigma), the inverse of :meth:`sigma`, by Newton's method on ln sigma_p as a function of ln B; for sigma > 0."""
        target = sigma.log()
        top = self.b_max * (1 - 1e-14)
        b = (0.75 * sigma.square() / self.zeta) ** (1 / 3)  # sigma_p^2 -> 4 zeta B^3 / 3 as B -> 0
        b = torch.minimum(b, 1 + 2 * self.zeta * sigma.log1p()).clamp(max=0.9 * self.b_max)
        for _ in range(40):
            step = (target - self.sigma(b).log()) / (self.log_slope(b) * b)
            # Never beyond B*, where the mean vanishes, and never more than a factor: the first guess can be far off.
            b = torch.minimum(b * step.clamp(-0.7, 0.7).exp(), (b + top) / 2 if math.isfinite(top) else b * 2.1)
            # The step just taken was quadratic: what it leaves is of the order of its square.
            if bool((step.abs() <= 1e-9).all()):
                break
        return b


def _variance_series(zeta: float) -> list[float]:
    """Coefficients of variance(B) / B^3 in powers of B: h by its recurrence, squared, times 4 zeta, integrated."""
    h = [0.0, 1.0]
    for k in range(_SERIES_TERMS):
        h.append(-(2 * zeta * (k + 1) * h[k + 1] + h[k]) / ((k + 1) * (k + 2)))
    square = [sum(h[i] * h[k - i] for i in range(k + 1)) for k in range(_SERIES_TERMS + 2)]
    return [4 * zeta * square[k] / (k + 1) for k in range(2, _SERIES_TERMS + 2)]
