"""Copies of training images among samples: those nearer to one than held-out images come.

The distance of held-out images from their nearest training image says how near real, new images come by themselves.
The three sets are compared so by Meehan et al. 2020, arXiv 2004.05675; the count below an order statistic and its law
are those of an exceedance test (Gumbel and von Schelling 1950).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.stats import betabinom
from torch import Tensor

from headway.errors import HeadwayError
from headway.metrics.neighbours import nearest


@dataclass(frozen=True)
class Copies:
    """How near samples come to training images, against held-out images."""

    flagged: int
    """How many samples are at `threshold` or nearer to a training image."""
    share: float
    """Share of the samples flagged; about `quantile` for new images like the held-out ones."""
    threshold: float
    """The distance that the share `quantile` of the held-out images does not exceed."""
    chance: float
    """Probability of as many flagged or more if the samples were drawn as the held-out images were; exact but for ties."""
    identical: int
    """How many samples are a training image, up to 1/10,000 of the held-out images' median distance."""
    ratio: float
    """Median distance of the samples over that of the held-out images; about 1 for new images, 0 for copies."""
    pairs: Tensor
    """int64 (pairs, 2) of sample and its nearest training image, the closest first."""
    distances: Tensor
    """float64 (pairs,): their distances."""


def find_copies(samples: Tensor, train: Tensor, heldout: Tensor, *, quantile: float = 0.01, pairs: int = 16) -> Copies:
    """Compare samples (n, d) and held-out images (m, d) by their nearest training images (N, d): pixels or features.

    `train` is the whole training set: a copy of an image left out is not found. `pairs` is how many closest pairs to name.
    """
    return compare_nearest(nearest(samples, train), nearest(heldout, train)[0], quantile=quantile, pairs=pairs)


def compare_nearest(
    samples: tuple[Tensor, Tensor], heldout: Tensor, *, quantile: float = 0.01, pairs: int = 16
) -> Copies:
    """`find_copies` for nearest neighbours found before: `samples` is what `nearest` returns, `heldout` distances (m, 1)."""
    if not 0 < quantile < 1:
        raise HeadwayError(f"The quantile of held-out distances must lie between 0 and 1, got {quantile}.")
    distances, where = samples[0][:, 0], samples[1][:, 0]
    real = heldout[:, 0].sort().values
    n, m = len(distances), len(real)
    if not n or not m:
        raise HeadwayError(f"Cannot look for copies among {n} samples with {m} held-out images; give some of both.")
    median = float(real.median())
    if median == 0:
        raise HeadwayError(
            "Half of the held-out images are training images too, so they cannot tell what a new image looks like; hold "
            "out images that have no duplicate in the training set."
        )
    rank = max(1, math.floor(quantile * m))
    threshold = real[rank - 1]
    flagged = int((distances <= threshold).sum())
    # Of m + n exchangeable distances, those of samples below the rank-th held-out one are beta-binomial.
    chance = float(betabinom.sf(flagged - 1, n, rank, m + 1 - rank))
    closest = distances.argsort(stable=True)[:pairs]
    return Copies(
        flagged=flagged,
        share=flagged / n,
        threshold=float(threshold),
        chance=chance,
        identical=int((distances <= 1e-4 * median).sum()),
        ratio=float(distances.median()) / median,
        pairs=torch.stack([closest, where[closest]], dim=1),
        distances=distances[closest],
    )
