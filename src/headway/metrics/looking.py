"""Looking at images: from batches of them to feature statistics, counts and, where wanted, the features themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.data import ImageSet
from headway.data.imageset import to_unit
from headway.errors import HeadwayError
from headway.images import to_uint8
from headway.metrics.classifier import ClassifierExtractor
from headway.metrics.features import Extractor
from headway.metrics.frechet import FeatureStats


@dataclass
class Seen:
    """What one process has seen."""

    stats: FeatureStats
    """Of the finite images."""
    counts: Tensor
    """float64: images, those that are not finite, then those of each class."""
    features: Tensor
    """float32 (n, d) of the finite images, n = 0 where they were not to be kept."""


def look(
    images: Tensor | Iterable[Tensor], extractor: Extractor, like: ImageSet, batch: int, *, keep: bool = False
) -> Seen:
    """Look at images float (n, C, H, W) in [-1, 1] of the shape and classes of `like`, in one tensor or in batches.

    They are first rounded to the 256 levels of a PNG and go through the extractor `batch` at a time.
    """
    classifier = extractor if isinstance(extractor, ClassifierExtractor) else None
    device = extractor.device
    stats = FeatureStats(extractor.dim, device)
    counts = torch.zeros(2 + like.classes, dtype=torch.float64, device=device)
    kept = [torch.empty(0, extractor.dim, device=device)]
    for given in [images] if isinstance(images, Tensor) else images:
        _check_kind(given, like)
        for part in given.detach().split(batch):
            finite = part.isfinite().flatten(1).all(dim=1)
            counts[0] += len(part)
            counts[1] += int((~finite).sum())
            if not finite.any():
                continue
            features = extractor(to_unit(to_uint8(part[finite])))
            stats.update(features)
            if keep:
                kept.append(features)
            if classifier:
                counts[2:] += torch.bincount(classifier.classify(features), minlength=like.classes)
    return Seen(stats, counts, torch.cat(kept))


def check_seen(counts: Tensor) -> int:
    """The number of images, if there are any and all are finite."""
    seen, bad = (int(count) for count in counts[:2].tolist())
    if seen == 0:
        raise HeadwayError("There are no samples to judge; generate some first.")
    if bad:
        raise HeadwayError(f"{bad} of {seen} samples contain NaN or infinity: the model or the sampler has diverged.")
    return seen


def pixels(images: ImageSet, rows: np.ndarray, batch: int) -> Iterator[Tensor]:
    """The images of these rows, in batches."""
    for start in range(0, len(rows), batch):
        yield images.pixels(rows[start : start + batch])


def _check_kind(images: Tensor, like: ImageSet) -> None:
    expected = like.images.shape[1:]
    if images.ndim != 4 or images.shape[1:] != expected or not images.is_floating_point():
        raise HeadwayError(
            f"Expected samples of shape (n, {', '.join(map(str, expected))}), floating point in [-1, 1], "
            f"got {tuple(images.shape)} of {images.dtype}."
        )
