"""Judging samples: their distance from the training images, between a floor and a ceiling measured the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headway.data import ImageSet
from headway.data.cache import directory
from headway.data.imageset import digest, to_unit
from headway.errors import HeadwayError
from headway.images import to_uint8
from headway.metrics import cache as disk
from headway.metrics.baseline import gaussian_batches
from headway.metrics.classifier import ClassifierExtractor
from headway.metrics.features import Extractor, metric_name
from headway.metrics.frechet import FeatureStats, frechet_distance

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Quality:
    """How far a set of samples is from the training images, and all that is needed to read the number."""

    name: str
    """Extractor and sample count, such as "fd-classifier@5k"; only equal names compare."""
    value: float
    """Fréchet distance of the samples from the training images; lower is better."""
    n: int
    """How many samples were judged."""
    floor: float
    """The distance of `floor_n` real images that were held out: better than this means memorised or lucky."""
    floor_n: int
    ceiling: float
    """The distance of n samples of a Gaussian with the training images' mean and covariance: a model without a model."""
    extractor: str
    """Name and weights digest of the extractor; only equal ones compare."""
    accuracy: float | None
    """Held-out accuracy of the extractor, if it is a classifier (of classes or orientations)."""
    reference_n: int
    """How many training images the samples are compared with: all of them."""
    classes_found: int | None
    """How many classes the classifier sees at least once in the samples."""
    class_counts: tuple[int, ...] | None
    """How many samples it sees of each class."""
    warnings: tuple[str, ...]
    """Sentences on what makes the number doubtful."""


class Judge:
    """Measures sets of `n` samples against one data set, with one extractor.

    What belongs to the data alone (reference, floor, ceiling) is computed when first asked for, once, and kept in
    `cache`/statistics. The reference is all of `train`; the floor takes n images of `heldout`, or all if it has fewer.

    All images are first rounded to the 256 levels of a PNG, so the number is that of the saved files.

    In several processes each one judges its share of the n samples, and `reduce` sums a float64 tensor on the
    extractor's device over processes; then `quality` must be called by all of them, and returns the same in all.
    """

    def __init__(
        self,
        train: ImageSet,
        heldout: ImageSet,
        extractor: Extractor,
        *,
        n: int,
        batch: int = 256,
        cache: Path | str | None = None,
        reduce: Callable[[Tensor], Tensor] | None = None,
        progress: Progress | None = None,
    ) -> None:
        if n < 2:
            raise HeadwayError(f"Cannot judge {n} samples: a covariance needs at least 2, and a fair one thousands.")
        if train.images.shape[1:] != heldout.images.shape[1:]:
            raise HeadwayError(
                f"The training images are {train.images.shape[1:]}, the held-out ones {heldout.images.shape[1:]}; "
                "give two parts of one data set."
            )
        self.train, self.heldout, self.extractor = train, heldout, extractor
        self.n, self.batch, self.cache, self.reduce, self.progress = n, batch, cache, reduce, progress
        self.floor_n = min(n, len(heldout))
        self.name = metric_name(extractor.name, n)

    def prepare(self) -> None:
        """Measure reference, floor and ceiling now. One process that does so first saves the others the work."""
        for figure in ("reference", "floor", "ceiling"):
            getattr(self, figure)

    @cached_property
    def reference(self) -> FeatureStats:
        """Statistics of all training images."""
        rows = np.arange(len(self.train))
        return self._kept("reference", self.train, len(rows), _pixels(self.train, rows, self.batch))

    @cached_property
    def floor(self) -> float:
        """Distance of `floor_n` held-out images, drawn once and for all, from the training images."""
        rows = np.sort(np.random.default_rng(0).permutation(len(self.heldout))[: self.floor_n])
        batches = _pixels(self.heldout, rows, self.batch)
        return frechet_distance(self._kept("heldout", self.heldout, len(rows), batches), self.reference)

    @cached_property
    def ceiling(self) -> float:
        """Distance of n samples of the `gaussian_baseline` from the training images."""
        batches = gaussian_batches(self.train, self.n, seed=0)
        return frechet_distance(self._kept("gaussian", self.train, self.n, batches), self.reference)

    def stats(self, images: Tensor | Iterable[Tensor]) -> FeatureStats:
        """Feature statistics of images float (n, C, H, W) in [-1, 1], or of batches of them, in this process alone."""
        stats, counts = self._look(images)
        _check(counts)
        return stats

    def quality(self, images: Tensor | Iterable[Tensor]) -> Quality:
        """Judge n samples, float (n, C, H, W) in [-1, 1], in one tensor or in batches of any size."""
        stats, counts = self._look(images)
        if self.reduce:
            counts = self.reduce(counts)  # before the checks, so that all processes fail together
        seen = _check(counts)
        if seen != self.n:
            raise HeadwayError(f"Got {seen} samples, but this judge and its floor are for {self.n}; give just as many.")
        if self.reduce:
            stats = stats.reduce(self.reduce)
        value = frechet_distance(stats, self.reference)
        classifier = self.extractor if isinstance(self.extractor, ClassifierExtractor) else None
        classes = tuple(int(count) for count in counts[2:].tolist()) if classifier else None
        return Quality(
            name=self.name,
            value=value,
            n=seen,
            floor=self.floor,
            floor_n=self.floor_n,
            ceiling=self.ceiling,
            extractor=self.extractor.identity,
            accuracy=getattr(self.extractor, "accuracy", None),
            reference_n=self.reference.n,
            classes_found=sum(count > 0 for count in classes) if classes else None,
            class_counts=classes,
            warnings=tuple(self._doubts(stats, value)),
        )

    def _doubts(self, stats: FeatureStats, value: float) -> Iterator[str]:
        if stats.shortage:
            yield stats.shortage
        if self.reference.shortage:
            yield f"The training set is small: {self.reference.shortage}"
        if self.floor_n < self.n:
            yield (
                f"The floor is that of {self.floor_n} held-out images, for {self.n} samples: fewer images give a larger "
                "distance, so hold out more to compare the two."
            )
        if value < 1e-6 * float(self.reference.cov.trace()):
            yield "The distance is zero: these samples are the training images, or a copy of their statistics."

    def _look(self, images: Tensor | Iterable[Tensor]) -> tuple[FeatureStats, Tensor]:
        """Statistics of the finite images, and counts: images, those that are not finite, then those of each class."""
        classifier = self.extractor if isinstance(self.extractor, ClassifierExtractor) else None
        device = self.extractor.device
        stats = FeatureStats(self.extractor.dim, device)
        counts = torch.zeros(2 + self.train.classes, dtype=torch.float64, device=device)
        for given in [images] if isinstance(images, Tensor) else images:
            self._check_kind(given)
            for batch in given.detach().split(self.batch):
                finite = batch.isfinite().flatten(1).all(dim=1)
                counts[0] += len(batch)
                counts[1] += int((~finite).sum())
                if not finite.any():
                    continue
                features = self.extractor(to_unit(to_uint8(batch[finite])))
                stats.update(features)
                if classifier:
                    counts[2:] += torch.bincount(classifier.classify(features), minlength=self.train.classes)
        return stats, counts

    def _check_kind(self, images: Tensor) -> None:
        expected = self.train.images.shape[1:]
        if images.ndim != 4 or images.shape[1:] != expected or not images.is_floating_point():
            raise HeadwayError(
                f"Expected samples of shape (n, {', '.join(map(str, expected))}), floating point in [-1, 1], "
                f"got {tuple(images.shape)} of {images.dtype}."
            )

    def _kept(self, what: str, images: ImageSet, n: int, batches: Iterator[Tensor]) -> FeatureStats:
        """Statistics of n images made from a set, from the cache if they were measured before."""
        recipe = {
            "version": 1,
            "what": what,
            "images": images.fingerprint,
            "n": n,
            "extractor": self.extractor.identity,
            "probe": self._probe,
        }
        path = directory(self.cache) / "statistics" / f"{digest(recipe)}.safetensors"
        if stored := disk.load(path, recipe):
            return FeatureStats.restore(stored, self.extractor.device)
        stats = self.stats(self._reported(batches, n))
        disk.save(path, recipe, stats.state())
        return stats

    @cached_property
    def _probe(self) -> str:
        """Digest of the features of a few images: code that changed under the same name and weights shows here."""
        features = self.extractor(self.train.pixels(range(min(8, len(self.train)))))
        return hashlib.sha256(features.cpu().numpy().tobytes()).hexdigest()

    def _reported(self, batches: Iterator[Tensor], n: int) -> Iterator[Tensor]:
        done = 0
        for batch in batches:
            yield batch
            done += len(batch)
            if self.progress:
                self.progress(done, n)


def _check(counts: Tensor) -> int:
    """The number of images, if there are any and all are finite."""
    seen, bad = (int(count) for count in counts[:2].tolist())
    if seen == 0:
        raise HeadwayError("There are no samples to judge; generate some first.")
    if bad:
        raise HeadwayError(f"{bad} of {seen} samples contain NaN or infinity: the model or the sampler has diverged.")
    return seen


def _pixels(images: ImageSet, rows: np.ndarray, batch: int) -> Iterator[Tensor]:
    for start in range(0, len(rows), batch):
        yield images.pixels(rows[start : start + batch])
