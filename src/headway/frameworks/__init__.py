"""Diffusion frameworks (VP, VE, EDM, flow), plain or with momentum (FDM)."""

from __future__ import annotations

from typing import Literal

from headway.errors import HeadwayError, unknown
from headway.frameworks.base import Framework, Prediction
from headway.frameworks.edm import EDM
from headway.frameworks.flow import Flow
from headway.frameworks.momentum import Kind, Momentum, with_momentum
from headway.frameworks.oscillator import Oscillator
from headway.frameworks.ve import VE
from headway.frameworks.vp import VP

__all__ = ["EDM", "FRAMEWORKS", "VE", "VP", "Flow", "Framework", "Momentum", "Oscillator", "framework"]

FRAMEWORKS: dict[str, type[Framework]] = {"vp": VP, "ve": VE, "edm": EDM, "flow": Flow}
Name = Literal["vp", "ve", "edm", "flow"]


def framework(
    name: Name,
    momentum: Kind | None = None,
    *,
    multiplier: float | None = None,
    zeta: float = 1.0,
    prediction: Prediction | None = None,
    sigma_data: float = 0.5,
    density: Literal["base", "momentum"] = "base",
) -> Framework:
    """A diffusion framework by name, plain (``momentum=None``) or with momentum.

    Args:
        name: "vp", "ve", "edm" or "flow".
        momentum: None, "released" (as published), "literal", "propagated" or "unit"; see :mod:`headway.frameworks.momentum`.
        multiplier, zeta, density: options of momentum.
        prediction: None = the framework's own target; "eps", "x0" or "v" otherwise. The weight stays the framework's.
        sigma_data: standard deviation of the data in [-1, 1]; EDM uses it.

    Raises:
        HeadwayError: for an unknown name or options that do not go together.
    """
    if name not in FRAMEWORKS:
        raise unknown("framework", name, FRAMEWORKS)
    base = FRAMEWORKS[name](sigma_data=sigma_data, prediction=prediction)
    if momentum is None:
        if multiplier is not None or zeta != 1 or density != "base":
            raise HeadwayError(
                "multiplier, zeta and density are options of momentum: name a momentum kind, or leave them out."
            )
        return base
    return with_momentum(base, momentum, multiplier=multiplier, zeta=zeta, density=density)
