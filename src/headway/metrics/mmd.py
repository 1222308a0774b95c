"""The maximum mean discrepancy of two sets of features: unbiased, with any kernel, and with a Gaussian one.

Sources: Gretton et al. 2012, JMLR 13:723-773, equation 3; Jayasumana et al. 2024, arXiv 2401.09603, for its use on images.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.metrics.neighbours import check, slices

Kernel = Callable[[Tensor, Tensor], Tensor]
"""Rows float64 (n, d) and (m, d) to kernel values (n, m)."""

BANDWIDTH_ROWS = 2000


def unbiased_mmd2(a: Tensor, b: Tensor, kernel: Kernel) -> float:
    """Unbiased estimate of MMD^2 of features (n, d) and (m, d), n, m >= 2, over all of them, in float64.

    mean k(a, a') + mean k(b, b') - 2 mean k(a, b), where no row is paired with itself. Its expectation is zero for equal
    distributions, whatever n and m, so it comes out negative about half the time then. Symmetric in a and b.
    """
    check(a, b, 2)
    return _within(a, kernel) + _within(b, kernel) - 2 * _between(a, b, kernel)


def gaussian_mmd2(samples: Tensor, reference: Tensor, sigma: float | None = None) -> float:
    """Unbiased MMD^2 with the kernel exp(-|x - y|^2 / (2 sigma^2)); between -2 and 2, about 0 for equal distributions.

    `sigma` is in units of the features, by default `median_bandwidth(reference)`. Numbers of different sigma must not be
    compared. CMMD is 1000 times the value at sigma = 10, on CLIP embeddings of unit length and on nothing else (its code
    counts each row as a pair with itself, which adds a bias of about (2 - k(a, a') - k(b, b')) / n).
    """
    sigma = median_bandwidth(reference) if sigma is None else sigma
    if not sigma > 0:
        raise HeadwayError(f"The bandwidth sigma must be above 0, got {sigma}.")
    # Distances do not change with the origin; about the mean of the reference they round least.
    centre = reference.mean(dim=0, dtype=torch.float64)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        x, y = x - centre, y - centre
        pairs = torch.addmm(y.square().sum(dim=1), x, y.T, alpha=-2) + x.square().sum(dim=1, keepdim=True)
        return pairs.clamp_(min=0).mul_(-0.5 / sigma**2).exp_()

    return unbiased_mmd2(samples, reference, kernel)


def median_bandwidth(reference: Tensor) -> float:
    """The median heuristic: the median distance between different rows of the reference (n, d), n >= 2.

    Of more than 2,000 rows, 2,000 evenly spaced ones stand for all. Source: Garreau et al. 2017, arXiv 1707.07269.
    """
    check(reference, reference, 2)
    step = -(-len(reference) // BANDWIDTH_ROWS)
    median = float(torch.pdist(reference[::step].double()).median())
    if median == 0:
        raise HeadwayError("Half of the reference features are equal, so their median distance is 0; give sigma.")
    return median


def _within(rows: Tensor, kernel: Kernel) -> float:
    """Mean kernel value over pairs of different rows. The kernel is symmetric: blocks below the diagonal are skipped."""
    total = torch.zeros((), dtype=torch.float64, device=rows.device)
    for i in slices(rows):
        x = rows[i].double()
        square = kernel(x, x)
        total += square.sum() - square.diagonal().sum()
        for j in slices(rows[: i.start]):
            total += 2 * kernel(x, rows[j].double()).sum()
    return float(total) / (len(rows) * (len(rows) - 1))


def _between(a: Tensor, b: Tensor, kernel: Kernel) -> float:
    total = torch.zeros((), dtype=torch.float64, device=a.device)
    for i in slices(a):
        for j in slices(b):
            total += kernel(a[i].double(), b[j].double()).sum()
    return float(total) / (len(a) * len(b))
