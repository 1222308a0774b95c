"""The further figures of a judge: kernel distances, k-nearest-neighbour figures and copies, of samples and held-out images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from headway.errors import HeadwayError
from headway.metrics.coverage import overlap
from headway.metrics.kid import kernel_distance
from headway.metrics.memorisation import Copies, compare_nearest
from headway.metrics.mmd import gaussian_mmd2, median_bandwidth
from headway.metrics.neighbours import nearest

REFERENCE = 10_000
"""Most training images (fixed, drawn at random) that all figures but those of copies compare with, and most held-out ones."""
NEIGHBOURS = 5
"""k of precision, recall, density and coverage."""
VERSION = 1
"""Raise it whenever the same features would give other figures: cached ones are then measured again."""
FEW = 1000
"""Below so many images a side the k-nearest-neighbour figures come with a warning."""


@dataclass(frozen=True)
class Measured:
    """The figures of one set of images."""

    values: dict[str, float]
    """kid, precision, recall, density, coverage, mmd, copies (share of the images flagged), nearest_ratio."""
    setup: dict[str, float]
    """What the values depend on: reference_n, neighbours_k, neighbours_n (images a side), mmd_sigma, copy_distance."""
    copies: Copies
    n: int
    """How many images there were."""


class Figures:
    """Figures of samples against training images, and the same of held-out images.

    `train` (N, d) are the features of all training images, `heldout` (m, d) those of held-out ones in random order and
    `heldout_nearest` (m, 1) their distances from the nearest training image.
    """

    def __init__(self, train: Tensor, heldout: Tensor, heldout_nearest: Tensor) -> None:
        self.train, self.heldout, self.heldout_nearest = train, heldout, heldout_nearest
        self.reference = train[torch.from_numpy(some(len(train), REFERENCE)).to(train.device)]

    @cached_property
    def sigma(self) -> float:
        return median_bandwidth(self.reference)

    def floor(self, n: int) -> dict[str, float]:
        """The figures of the first n held-out images, or of as many as there are."""
        return self.measure(self.heldout[:n]).values

    def measure(self, samples: Tensor) -> Measured:
        """The figures of samples (n, d)."""
        # Coverage and recall depend on the ratio of the counts, so both sides have the same.
        count = min(len(samples), len(self.reference))
        chosen = torch.from_numpy(some(len(samples), count)).to(samples.device)
        near = overlap(samples[chosen], self.reference[:count], NEIGHBOURS)
        copies = compare_nearest(nearest(samples, self.train), self.heldout_nearest)
        values = {
            "kid": kernel_distance(samples, self.reference),
            "precision": near.precision,
            "recall": near.recall,
            "density": near.density,
            "coverage": near.coverage,
            "mmd": gaussian_mmd2(samples, self.reference, self.sigma),
            "copies": copies.share,
            "nearest_ratio": copies.ratio,
        }
        setup = {
            "reference_n": len(self.reference),
            "neighbours_k": NEIGHBOURS,
            "neighbours_n": count,
            "mmd_sigma": self.sigma,
            "copy_distance": copies.threshold,
        }
        return Measured(values, setup, copies, len(samples))

    def doubts(self, measured: Measured, floor_n: int) -> Iterator[str]:
        """Sentences on what makes these figures, beside those of floor_n held-out images, doubtful."""
        copies, n, count = measured.copies, measured.n, int(measured.setup["neighbours_n"])
        if 2 * copies.identical > n:
            yield (
                f"{copies.identical} of {n} samples are training images: no figure here says how good new images are, so "
                "give samples of the model."
            )
        elif copies.chance < 1e-3:
            yield (
                f"{copies.flagged} of {n} samples are as near to a training image as one held-out image in a hundred: "
                "look whether they are copies."
            )
        if count < FEW:
            yield (
                f"Precision, recall, density and coverage are those of {count} images a side, and noisy; they compare only "
                f"with others of as many, so use {FEW} or more."
            )
        if (beside := min(floor_n, len(self.reference))) != count:
            yield (
                f"Precision, recall, density and coverage of the held-out images are those of {beside} a side, for {count} "
                "of the samples: the two compare roughly, so hold out more."
            )


def some(n: int, most: int) -> np.ndarray:
    """`most` of the numbers below n, or all, in an order drawn once and for all."""
    return np.random.default_rng(0).permutation(n)[:most]


def check_counts(train: int, heldout: int, n: int) -> None:
    """Refuse sets that are too small for the figures."""
    if min(train, heldout, n) <= NEIGHBOURS:
        raise HeadwayError(
            f"The further figures need more than {NEIGHBOURS} images of each kind (their nearest neighbours), got {train} "
            f"for training, {heldout} held out and {n} samples; give more, or leave the figures out."
        )
