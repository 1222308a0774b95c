"""Judging samples: their distance from the training images, between a floor and a ceiling measured the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headway.data import ImageSet
from headway.data.cache import directory
from headway.data.imageset import digest
from headway.errors import HeadwayError
from headway.metrics import cache as disk
from headway.metrics.baseline import gaussian_batches
from headway.metrics.classifier import ClassifierExtractor
from headway.metrics.features import Extractor, metric_name
from headway.metrics.figures import REFERENCE, VERSION, Figures, check_counts, some
from headway.metrics.frechet import FeatureStats, frechet_distance
from headway.metrics.looking import check_seen, look, pixels
from headway.metrics.neighbours import nearest
from headway.metrics.quality import Quality

Progress = Callable[[int, int], None]


class Judge:
    """Measures sets of `n` samples against one data set, with one extractor.

    What belongs to the data alone (reference, floor, ceiling) is computed when first asked for, once, and kept in
    `cache`/statistics. The reference is all of `train`; the floor takes n images of `heldout`, or all if it has fewer.

    All images are first rounded to the 256 levels of a PNG, so the number is that of the saved files.

    With `figures`, the features of all training images and of up to 10,000 held-out ones are kept too, in memory and in
    `cache`/features, and `quality` adds the further figures (see `Quality.figures`) and their floor.

    In several processes each one judges its share of the n samples, and `reduce` sums a float64 tensor on the
    extractor's device over processes; then `quality` must be called by all of them, and returns the same in all. The
    figures need `gather` as well: it joins the rows of a float32 tensor on that device, of any number, over processes.
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
        figures: bool = False,
        gather: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        if n < 2:
            raise HeadwayError(f"Cannot judge {n} samples: a covariance needs at least 2, and a fair one thousands.")
        if train.images.shape[1:] != heldout.images.shape[1:]:
            raise HeadwayError(
                f"The training images are {train.images.shape[1:]}, the held-out ones {heldout.images.shape[1:]}; "
                "give two parts of one data set."
            )
        if figures:
            check_counts(len(train), len(heldout), n)
            if reduce and not gather:
                raise HeadwayError("The further figures need all features in each process: give gather beside reduce.")
        self.train, self.heldout, self.extractor = train, heldout, extractor
        self.n, self.batch, self.cache, self.reduce, self.progress = n, batch, cache, reduce, progress
        self.figures, self.gather = figures, gather
        self.floor_n = min(n, len(heldout))
        self.name = metric_name(extractor.name, n)

    def prepare(self) -> None:
        """Measure reference, floor and ceiling now. One process that does so first saves the others the work."""
        for figure in ("reference", "floor", "ceiling", *(["figures_floor"] if self.figures else [])):
            getattr(self, figure)

    @cached_property
    def reference(self) -> FeatureStats:
        """Statistics of all training images."""
        rows = np.arange(len(self.train))
        return self._kept("reference", self.train, len(rows), pixels(self.train, rows, self.batch))

    @cached_property
    def floor(self) -> float:
        """Distance of `floor_n` held-out images, drawn once and for all, from the training images."""
        rows = np.sort(np.random.default_rng(0).permutation(len(self.heldout))[: self.floor_n])
        batches = pixels(self.heldout, rows, self.batch)
        return frechet_distance(self._kept("heldout", self.heldout, len(rows), batches), self.reference)

    @cached_property
    def ceiling(self) -> float:
        """Distance of n samples of the `gaussian_baseline` from the training images."""
        batches = gaussian_batches(self.train, self.n, seed=0)
        return frechet_distance(self._kept("gaussian", self.train, self.n, batches), self.reference)

    @cached_property
    def figures_floor(self) -> dict[str, float]:
        """The further figures of `floor_n` held-out images, of 10,000 if there are more."""

        def measured() -> dict[str, Tensor]:
            figures = self._gallery.floor(self.floor_n)
            return {key: torch.tensor(value, dtype=torch.float64) for key, value in figures.items()}

        kept = self._cached("statistics", f"figures {VERSION}", self._both, self.floor_n, measured)
        return {key: float(value) for key, value in kept.items()}

    @cached_property
    def _gallery(self) -> Figures:
        """The features that the further figures compare with."""
        held = some(len(self.heldout), REFERENCE)

        def measured() -> dict[str, Tensor]:
            rows = np.arange(len(self.train))
            batches = self._reported(pixels(self.train, rows, self.batch), len(rows))
            train = look(batches, self.extractor, self.train, self.batch, keep=True).features
            batches = pixels(self.heldout, held, self.batch)
            heldout = look(batches, self.extractor, self.heldout, self.batch, keep=True).features
            return {"train": train, "heldout": heldout, "heldout_nearest": nearest(heldout, train)[0]}

        kept = self._cached("features", "features", self._both, len(held), measured)
        return Figures(**{key: value.to(self.extractor.device) for key, value in kept.items()})

    @property
    def _both(self) -> str:
        return digest(self.train.fingerprint, self.heldout.fingerprint)

    def stats(self, images: Tensor | Iterable[Tensor]) -> FeatureStats:
        """Feature statistics of images float (n, C, H, W) in [-1, 1], or of batches of them, in this process alone."""
        seen = look(images, self.extractor, self.train, self.batch)
        check_seen(seen.counts)
        return seen.stats

    def quality(self, images: Tensor | Iterable[Tensor]) -> Quality:
        """Judge n samples, float (n, C, H, W) in [-1, 1], in one tensor or in batches of any size."""
        seen = look(images, self.extractor, self.train, self.batch, keep=self.figures)
        stats, counts = seen.stats, seen.counts
        if self.reduce:
            counts = self.reduce(counts)  # before the checks, so that all processes fail together
        n = check_seen(counts)
        if n != self.n:
            raise HeadwayError(f"Got {n} samples, but this judge and its floor are for {self.n}; give just as many.")
        if self.reduce:
            stats = stats.reduce(self.reduce)
        value = frechet_distance(stats, self.reference)
        classifier = self.extractor if isinstance(self.extractor, ClassifierExtractor) else None
        classes = tuple(int(count) for count in counts[2:].tolist()) if classifier else None
        quality = Quality(
            name=self.name,
            value=value,
            n=n,
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
        return self._with_figures(quality, seen.features) if self.figures else quality

    def _with_figures(self, quality: Quality, features: Tensor) -> Quality:
        further = self._gallery.measure(self.gather(features) if self.gather else features)
        return replace(
            quality,
            warnings=(*quality.warnings, *self._gallery.doubts(further, self.floor_n)),
            figures=further.values,
            figures_floor=self.figures_floor,
            figures_setup=further.setup,
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

    def _kept(self, what: str, images: ImageSet, n: int, batches: Iterator[Tensor]) -> FeatureStats:
        """Statistics of n images made from a set, from the cache if they were measured before."""
        state = self._cached(
            "statistics", what, images.fingerprint, n, lambda: self.stats(self._reported(batches, n)).state()
        )
        return FeatureStats.restore(state, self.extractor.device)

    def _cached(
        self, folder: str, what: str, images: str, n: int, measure: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """Tensors made from n images of this fingerprint, from the cache if they were measured before."""
        recipe = {
            "version": 1,
            "what": what,
            "images": images,
            "n": n,
            "extractor": self.extractor.identity,
            "probe": self._probe,
        }
        path = directory(self.cache) / folder / f"{digest(recipe)}.safetensors"
        stored = disk.load(path, recipe)
        if stored is None:
            stored = measure()
            disk.save(path, recipe, stored)
        return stored

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
