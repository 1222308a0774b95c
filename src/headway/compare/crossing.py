"""Where a learning curve reaches a target: what a given quality costs, in images, seconds or NFE.

A measured curve is noisy and would cross a target several times, the first time by luck. So the best decreasing curve
through the logs of its distances is taken first (isotonic regression, Barlow et al. 1972), and the crossing is read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import isotonic_regression

from headway.errors import HeadwayError

Array = NDArray[np.float64]
Curve = tuple[ArrayLike, ArrayLike]
"""Positions (k,), increasing, and the distances measured there (k,)."""
Side = Literal["exact", "not before", "not after"]

# A target read from a plateau must be reached by that plateau: rounding in exp and log may not decide.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Reached:
    """Where a curve reaches a target.

    Attributes:
        at: position on the cost axis, in its units (images, seconds or NFE).
        bound: "exact"; or "not before": the curve had not reached the target at its last position, ``at``;
            or "not after": it had reached it already at its first position, ``at``.
    """

    at: float
    bound: Side


def monotone(values: ArrayLike) -> Array:
    """The decreasing curve nearest to distances (k,) in the mean square of their logs, equal weights; again distances (k,)."""
    return np.exp(_decreasing_logs(values))


def reach(positions: ArrayLike, values: ArrayLike, target: float, *, log_axis: bool = False) -> Reached:
    """The first position at which the monotone curve is as low as the target.

    Args:
        positions: (k,), increasing, in any unit of cost; at least 0, above 0 with ``log_axis``.
        values: distances (k,) > 0 measured there; lower is better.
        target: a distance > 0.
        log_axis: between measured positions log distance is linear in the position, or with True in its log (for NFE).
    """
    _refuse_unless_positive(np.asarray(target, dtype=float), "A target")
    at, logs = _monotone_curve(positions, values)
    if log_axis and at[0] == 0:
        raise HeadwayError("Expected positions above 0 on a log axis, got 0 as the first.")
    above = logs - np.log(target)
    there = np.flatnonzero(above <= ROUNDING)
    if not there.size:
        return Reached(float(at[-1]), "not before")
    i = int(there[0])
    if i == 0:
        return Reached(float(at[0]), "not after")
    part = min(1.0, above[i - 1] / (above[i - 1] - above[i]))
    if log_axis:
        return Reached(float(at[i - 1] * (at[i] / at[i - 1]) ** part), "exact")
    return Reached(float(at[i - 1] + part * (at[i] - at[i - 1])), "exact")


def target_of(curves: Sequence[Curve], share: float = 0.8) -> float:
    """The distance to be reached: the seeds' geometric mean at ``share`` of the budget, read from the monotone curves.

    The end of a curve is no good target: it lies on the plateau, where a slight gain in quality looks like a large one in cost.

    Args:
        curves: positions and distances of the baseline, one pair a seed; a curve's last position is its budget.
        share: of the budget, in (0, 1].
    """
    if not curves:
        raise HeadwayError("A target needs the baseline's curve of at least one seed, got none.")
    if not 0 < share <= 1:
        raise HeadwayError(f"Expected a share of the budget in (0, 1], got {share}.")
    logs = []
    for positions, values in curves:
        at, curve = _monotone_curve(positions, values)
        if share * at[-1] < at[0]:
            raise HeadwayError(
                f"The target lies at {share * at[-1]:g}, before the first measurement at {at[0]:g}; measure earlier."
            )
        logs.append(np.interp(share * at[-1], at, curve))
    return float(np.exp(np.mean(logs)))


def _monotone_curve(positions: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    """Positions (k,) and log distances (k,) of the monotone curve."""
    at, logs = np.asarray(positions, dtype=float), _decreasing_logs(values)
    if at.shape != logs.shape:
        raise HeadwayError(f"Expected one distance a position, got {at.size} positions and {logs.size} distances.")
    if not np.isfinite(at).all() or at[0] < 0 or (np.diff(at) <= 0).any():
        raise HeadwayError(f"Expected positions that increase from 0 or more, got {at.tolist()}.")
    return at, logs


def _decreasing_logs(values: ArrayLike) -> Array:
    distances = np.asarray(values, dtype=float)
    if distances.ndim != 1 or not distances.size:
        raise HeadwayError(f"Expected a row of at least one distance, got shape {distances.shape}.")
    _refuse_unless_positive(distances, "Distances")
    logs: Array = isotonic_regression(np.log(distances), increasing=False).x
    return logs


def _refuse_unless_positive(values: Array, what: str) -> None:
    wrong = values[~(np.isfinite(values) & (values > 0))]
    if wrong.size:
        raise HeadwayError(f"{what} must be finite and above 0, since logs are taken; got {wrong[0]}.")
