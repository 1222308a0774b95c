"""Figures of smoothness that compare two losses although their scales and offsets differ.

All are unchanged by a loss -> c loss + d with c > 0; :func:`edge_ratio` under Adam, whose preconditioner grows with the loss it
has been trained on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.errors import HeadwayError
from headway.landscape.curvature import gradient
from headway.landscape.directions import along
from headway.landscape.weights import Loss, flat, parameters, written

Array = NDArray[np.float64]


def stability_bound(beta: float, dampening: float | None = None) -> float:
    """The lr x curvature at which gradient descent with momentum stops converging on a quadratic: 2 (1 + beta) / (1 - dampening).

    m <- beta m + (1 - dampening) g, w <- w - lr m. With g = h w two steps combine to
    w'' - (1 + beta - lr h (1 - dampening)) w' + beta w = 0, whose roots stay inside the unit circle iff
    0 < lr h (1 - dampening) < 2 (1 + beta).

    Args:
        beta: 0 <= beta < 1. For Adam it is beta1, and h is an eigenvalue of the preconditioned Hessian: exact for a frozen
            preconditioner and past the bias correction of m (Cohen et al. 2022, arXiv 2207.14484).
        dampening: None for beta, the exponential average of Adam: 38 at beta 0.9. 0 for the heavy ball, as torch's SGD has it:
            3.8.
    """
    dampening = beta if dampening is None else dampening
    if not (0 <= beta < 1 and dampening < 1):
        raise HeadwayError(f"Momentum needs 0 <= beta < 1 and dampening < 1, got {beta} and {dampening}.")
    return 2 * (1 + beta) / (1 - dampening)


def edge_ratio(lr: float, highest: float, beta: float, dampening: float | None = None) -> float:
    """lr x highest eigenvalue over :func:`stability_bound`: 1 at the edge of stability, the steps diverge above it."""
    return lr * highest / stability_bound(beta, dampening)


def adam_preconditioner(module: nn.Module, optimizer: Optimizer) -> Tensor:
    """What Adam divides its steps by, sqrt(v / (1 - beta2^t)) + eps, as a vector (n,) in float64.

    Raises:
        HeadwayError: a weight the optimiser has not stepped yet, or an optimiser without Adam's second moments.
    """
    eps = {
        p: (float(group["eps"]), float(group["betas"][1])) for group in optimizer.param_groups for p in group["params"]
    }
    pieces = []
    for weight in parameters(module):
        state = optimizer.state.get(weight, {})
        if "exp_avg_sq" not in state:
            raise HeadwayError(
                f"The optimizer has no second moment for a weight of shape {tuple(weight.shape)}: give the Adam that trained "
                "these very weights, after a step."
            )
        small, beta2 = eps[weight]
        second = state.get("max_exp_avg_sq", state["exp_avg_sq"]).double() / (1 - beta2 ** float(state["step"]))
        pieces.append(second.sqrt().reshape(-1) + small)
    return torch.cat(pieces)


def eigenvalue_ratio(eigenvalues: ArrayLike, k: int = 5) -> float:
    """lambda_1 / lambda_k of the highest eigenvalues: 1 where k directions are equally sharp, large where one stands out.

    NaN where lambda_k is not positive: fewer than k directions curve upwards, and there is no ratio.
    """
    descending = np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1]
    if len(descending) < k:
        raise HeadwayError(f"lambda_1 / lambda_{k} needs {k} eigenvalues, got {len(descending)}.")
    return float(descending[0] / descending[k - 1]) if descending[k - 1] > 0 else float("nan")


def gradient_predictiveness(loss: Loss, module: nn.Module, step: Tensor, fractions: Iterable[float] = (1.0,)) -> Array:
    """|g(w + f d) - g(w)| / |g(w)| for each fraction f of a step d (n,): how far a gradient can be trusted.

    0 is perfect, 1 a gradient that has changed by its own length. After Santurkar et al. 2018, arXiv 1805.11604, who plot the
    numerator along the gradient; take the optimiser's own step, because its length is what training relies on. For a quadratic it
    is f |H d| / |g|. A vanishing gradient at w gives infinity or NaN.
    """
    origin, here = flat(module), gradient(loss, module)
    changes = []
    for fraction in fractions:
        with written(module, along(origin, step, fraction)):
            changes.append(float((gradient(loss, module) - here).norm()))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.array(changes, dtype=np.float64) / float(here.norm())


class Roughness(NamedTuple):
    """Three views of a curve scaled to the unit square, 0 each at best."""

    variation: float
    """Ups and downs beyond those of one valley with the same ends and floor: twice the summed height of all other bumps. 0 for
    monotone and for single-valleyed curves. It never falls when the grid is refined, until it counts rounding noise."""
    gap: float
    """Area between the curve and its lower convex envelope, 0 .. 1; 0 for convex curves. Converges with the grid (error of order
    spacing squared for a smooth curve), and small noise hardly shows."""
    bending: float
    """Integral of the squared second derivative, by second differences: 0 for a straight line, 64 for a centred parabola.
    Converges with the grid for smooth curves; for a kink it grows as 1 / spacing, for noise as 1 / spacing^4."""


def roughness(alphas: ArrayLike, losses: ArrayLike) -> Roughness:
    """How rough a loss is along a line, after scaling losses and alphas to 0 .. 1; compare curves on the same alphas only.

    Args:
        alphas, losses: (n,), n >= 3, alphas ascending, not necessarily evenly. A constant curve is perfectly smooth.

    Raises:
        HeadwayError: losses that are not finite, which have no scale. They are a finding of their own.
    """
    x, y = _unit(alphas, losses)
    variation = max(0.0, float(np.abs(np.diff(y)).sum() - y[0] - y[-1]))
    gap = float(np.trapezoid(y - _envelope(x, y), x))
    widths = (x[2:] - x[:-2]) / 2
    second = np.diff(np.diff(y) / np.diff(x)) / widths
    return Roughness(variation, gap, float((second**2 * widths).sum()))


def convexity_share(alphas: ArrayLike, losses: ArrayLike, tolerance: float = 1e-6) -> float:
    """The share of a line, 0 .. 1, on which the curve lies on or below the chord from each point's neighbour to the other.

    Args:
        alphas, losses: as in :func:`roughness`. tolerance: height above the chord, in units of the curve's range, that is taken
            for rounding. On a finer grid chords are closer to the curve, so choose no grid so fine that the tolerance decides.
    """
    x, y = _unit(alphas, losses)
    chord = y[:-2] + (y[2:] - y[:-2]) * (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    widths = x[2:] - x[:-2]
    return float(widths[y[1:-1] <= chord + tolerance].sum() / widths.sum())


def _unit(alphas: ArrayLike, losses: ArrayLike) -> tuple[Array, Array]:
    x, y = np.asarray(alphas, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 3 or not (np.diff(x) > 0).all():
        raise HeadwayError(
            f"A curve needs 3 or more ascending alphas and a loss for each, got {x.shape} and {y.shape}."
        )
    if not np.isfinite(y).all():
        raise HeadwayError(
            f"{(~np.isfinite(y)).sum()} of {len(y)} losses on this line are not finite: report them, and cut them off."
        )
    span = y.max() - y.min()
    return (x - x[0]) / (x[-1] - x[0]), (y - y.min()) / (span if span > 0 else 1.0)


def _envelope(x: Array, y: Array) -> Array:
    """The lower convex envelope of the points, at each of them."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1 and (y[hull[-1]] - y[hull[-2]]) * (x[i] - x[hull[-2]]) >= (y[i] - y[hull[-2]]) * (
            x[hull[-1]] - x[hull[-2]]
        ):
            hull.pop()
        hull.append(i)
    return np.interp(x, x[hull], y[hull])
