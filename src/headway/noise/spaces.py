"""Uniform times of the field, as densities of sigma, and the choice of one as the base of a tilt.

A tilt is written in the quantiles of a base. By default that is the framework's own density; ``space`` puts another one in its
place, so that a method lands on the noise levels its paper had, whatever the framework.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headway.errors import unknown
from headway.noise.density import Density, UniformTime


def _vp_sigma(t: Tensor) -> Tensor:
    return (t * (9.95 * t + 0.1)).expm1().sqrt()


def _vp_time(sigma: Tensor) -> Tensor:
    # The root of 9.95 t^2 + 0.1 t = ln(1 + sigma^2), in the form that does not cancel for small sigma.
    log_snr = sigma.square().log1p()
    return 2 * log_snr / ((0.01 + 39.8 * log_snr).sqrt() + 0.1)


def _vp_slope(sigma: Tensor) -> Tensor:
    return 2 * sigma / (1 + sigma.square()) / (0.01 + 39.8 * sigma.square().log1p()).sqrt()


# VP's time uniform on [1e-5, 1], beta from 0.1 to 20 (Song et al. 2021): what DDPM's uniform t is.
VP_TIME = UniformTime(_vp_sigma, _vp_time, _vp_slope, 1e-5, 1.0)

# Rectified flow's time uniform on [0, 1], 1 being noise: sigma = t / (1 - t).
FLOW_TIME = UniformTime(lambda t: t / (1 - t), lambda s: s / (1 + s), lambda s: (1 + s) ** -2, 0.0, 1.0)

# The cosine schedule's time uniform on [0, 1]: sigma = tan(pi t / 2).
COSINE_TIME = UniformTime(
    lambda t: (math.pi / 2 * t).tan(),
    lambda s: torch.atan(s) * (2 / math.pi),
    lambda s: 2 / math.pi / (1 + s.square()),
    0.0,
    1.0,
)

SPACES = {"vp": VP_TIME, "flow": FLOW_TIME}


def in_space(base: Density, space: str | Density) -> Density:
    """The base of a tilt: ``base`` itself for "framework", VP's time for "vp", flow's for "flow", or the density given."""
    if not isinstance(space, str) and callable(getattr(space, "icdf", None)):
        return space
    spaces = {"framework": base, **SPACES}
    if space not in spaces:
        raise unknown("space", space, spaces)
    return spaces[str(space)]
