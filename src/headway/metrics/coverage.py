"""Precision, recall, density and coverage: whether samples lie where real images lie, and the other way round.

Sources: Kynkaanniemi et al. 2019, arXiv 1904.06991, equations 1 and 2; Naeem et al. 2020, arXiv 2002.09797.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.metrics.neighbours import check, nearest, squared_distances


@dataclass(frozen=True)
class Overlap:
    """How two sets of features overlap; each figure depends on both counts and on k."""

    precision: float
    """Share of the samples inside the ball of some reference image, 0 to 1."""
    recall: float
    """Share of the reference images inside the ball of some sample, 0 to 1."""
    density: float
    """How many balls of reference images hold a sample, on average, over k; about 1 for equal distributions."""
    coverage: float
    """Share of the reference images whose ball holds some sample, 0 to 1."""


def overlap(samples: Tensor, reference: Tensor, k: int = 5) -> Overlap:
    """Precision, recall, density and coverage of samples (n, d) against a reference (m, d), n, m > k.

    The ball of a row reaches to its k-th nearest neighbour in its own set, and is closed. For equal distributions and m
    rows against n the expected coverage is 1 - prod_{i=1..k} (m - i)/(m + n - i), close to 1 - 2^-k for n = m, in
    whatever dimension (Naeem et al.); the other figures depend on the distribution too.
    """
    check(samples, reference, k + 1)
    ours, theirs = _balls(samples, k), _balls(reference, k)
    inside = torch.zeros(
        len(samples), dtype=torch.int64, device=samples.device
    )  # how many reference balls hold a sample
    covered, recalled = torch.zeros(2, len(reference), dtype=torch.bool, device=samples.device)
    for rows, columns, pairs in squared_distances(samples, reference):
        held = pairs <= theirs[columns]
        inside[rows] += held.sum(dim=1)
        covered[columns] |= held.any(dim=0)
        recalled[columns] |= (pairs <= ours[rows, None]).any(dim=0)
    return Overlap(
        precision=float((inside > 0).double().mean()),
        recall=float(recalled.double().mean()),
        density=float(inside.double().mean()) / k,
        coverage=float(covered.double().mean()),
    )


def _balls(rows: Tensor, k: int) -> Tensor:
    """Squared radii, a trace wider, so that rounding does not put outside what lies on the edge or in the centre."""
    radii, _ = nearest(rows, rows, k, same=True)
    spread = rows.float().var(dim=0, correction=0).sum(dtype=torch.float64)
    return radii[:, -1].square() * (1 + 1e-9) + 1e-12 * spread
