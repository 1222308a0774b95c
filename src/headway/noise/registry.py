"""Densities by name, for recipes: ``noise: {name: clts, horizon: 0.7}``."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torch import Tensor

from headway.errors import refuse_unknown_options, unknown
from headway.noise.clts import clts
from headway.noise.density import Density
from headway.noise.online import EntropyRate, TaskDifficulty
from headway.noise.rivals import beta, cosmap, laplace, log_normal, logit_normal, mode, speed, two_phase


def framework(base: Density) -> Density:
    """The framework's own density."""
    return base


# Each takes the framework's density and its own options by keyword; the first line of its docstring says what it is.
DENSITIES: dict[str, Callable[..., Density]] = {
    "framework": framework,
    "clts": clts,
    "log-normal": log_normal,
    "logit-normal": logit_normal,
    "mode": mode,
    "cosmap": cosmap,
    "laplace": laplace,
    "beta": beta,
    "speed": speed,
    "two-phase": two_phase,
    "task-difficulty": TaskDifficulty,
    "adaptive": EntropyRate,
}


def options(name: str) -> dict[str, object]:
    """The options of that density and their defaults."""
    if name not in DENSITIES:
        raise unknown("noise density", name, DENSITIES)
    parameters = inspect.signature(DENSITIES[name]).parameters
    return {key: value.default for key, value in parameters.items() if key not in ("base", "loss_weight")}


def build(
    name: str, base: Density, loss_weight: Callable[[Tensor], Tensor] | None = None, /, **chosen: object
) -> Density:
    """The density of that name.

    Args:
        name: one of ``DENSITIES``. base: the framework's own density.
        loss_weight: the run's loss weight w(sigma) on |D - x0|^2, which only "adaptive" wants to know.
        chosen: the density's options (see :func:`options`).

    Raises:
        HeadwayError: unknown name or option, naming the nearest right one; a value out of range.
    """
    refuse_unknown_options(f"noise density {name!r}", chosen, options(name))
    given = {"loss_weight": loss_weight} if name == "adaptive" else {}
    return DENSITIES[name](base, **chosen, **given)
