"""Grids of noise levels for the samplers: where between sigma_max and sigma_min the steps begin."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.frameworks.base import Framework
from headway.sampling.solvers import singlestep_orders

DEFAULT_RHO = 7.0


def _line(first: float, last: float, points: int) -> Tensor:
    return torch.linspace(first, last, points, dtype=torch.float64)


def _edm(framework: Framework, points: int, low: float, high: float, rho: float) -> Tensor:
    """Uniform in sigma^(1/rho) (Karras et al. 2022, equation 5): the larger rho, the more steps at low noise."""
    return _line(high ** (1 / rho), low ** (1 / rho), points) ** rho


def _logsnr(framework: Framework, points: int, low: float, high: float, rho: float) -> Tensor:
    """Uniform in the logarithm of the signal-to-noise ratio, -2 ln sigma."""
    return _line(math.log(high), math.log(low), points).exp()


def _time(framework: Framework, points: int, low: float, high: float, rho: float) -> Tensor:
    """Uniform in the framework's time; for propagated momentum that is the time of the damped process."""
    return framework.sigma(_line(float(framework.time(high)), float(framework.time(low)), points))


def _singlestep(framework: Framework, points: int, low: float, high: float, rho: float) -> Tensor:
    """The grid of the published DPM-Solver in log-SNR: the solver's steps are equally long, whatever their order, and
    a step of order p is cut in p equal parts (Lu et al. 2022, arXiv 2206.00927, "DPM-Solver-fast")."""
    orders = singlestep_orders(points - 1)
    ends = _line(math.log(high), math.log(low), len(orders) + 1)
    parts = [_line(float(ends[k]), float(ends[k + 1]), order + 1)[1:] for k, order in enumerate(orders)]
    return torch.cat([ends[:1], *parts]).exp()


GRIDS: dict[str, Callable[[Framework, int, float, float, float], Tensor]] = {
    "edm": _edm,
    "logsnr": _logsnr,
    "time": _time,
    "singlestep": _singlestep,
}


def sigma_grid(
    framework: Framework,
    steps: int,
    kind: str = "edm",
    rho: float = DEFAULT_RHO,
    sigma_min: float | None = None,
    sigma_max: float | None = None,
) -> Tensor:
    """Noise levels (steps + 1,), float64: ``steps`` levels falling from sigma_max to sigma_min, then 0.

    One step has no room for sigma_min: it goes from sigma_max to 0.

    Args:
        kind: "edm" (uniform in sigma^(1/rho)), "logsnr" (uniform in ln sigma), "time" (uniform in the framework's time) or
            "singlestep" (what the published DPM-Solver of order 3 does in log-SNR; for solver "dpmpp-3s").
        rho: of the "edm" grid, > 0.
        sigma_min, sigma_max: > 0; default the framework's ``sampling_range``.

    Raises:
        HeadwayError: for values that make no such grid.
    """
    if kind not in GRIDS:
        raise unknown("grid", kind, GRIDS)
    if not isinstance(steps, int) or steps < 1:
        raise HeadwayError(f"A sampler needs a whole number of steps, 1 or more, got {steps}.")
    if not (rho > 0 and math.isfinite(rho)):
        raise HeadwayError(f"The grid's rho must be a positive number (7 is EDM's), got {rho}.")
    if rho != DEFAULT_RHO and kind != "edm":
        raise HeadwayError(f"rho belongs to the grid 'edm', got rho={rho:g} with {kind!r}; leave it out.")
    default_min, default_max = framework.sampling_range
    low = default_min if sigma_min is None else float(sigma_min)
    high = default_max if sigma_max is None else float(sigma_max)
    if not (0 < low < high < math.inf):
        raise HeadwayError(f"Sampling needs 0 < sigma_min < sigma_max, got sigma_min={low:g} and sigma_max={high:g}.")
    sigmas = GRIDS[kind](framework, steps, low, high, rho)
    # The ends are exactly what was asked for, not a round trip through powers, logarithms or time.
    sigmas[-1] = low
    sigmas[0] = high
    sigmas = torch.cat([sigmas, sigmas.new_zeros(1)])
    if not bool((sigmas.diff() < 0).all()):
        raise HeadwayError(
            f"{steps} steps do not fit between sigma_min={low:g} and sigma_max={high:g} on the grid {kind!r}; "
            "take fewer steps or a wider range."
        )
    return sigmas
