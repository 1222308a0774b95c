"""The extractor for sets without labels: a classifier that learns which way up an image is.

Telling four orientations apart needs to know what the images show, and needs no labels (Gidaris et al. 2018, arXiv 1803.07728).
Its features are weaker than those of a classifier of real classes; where there are labels, or FID weights, use those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from headway.data import ImageSet
from headway.data.imageset import digest
from headway.metrics.classifier import classifier_for
from headway.metrics.features import ModuleExtractor

NAMES = ("upright", "upside down", "left", "right")
IMAGES = 10_000
"""Most images that are turned: four copies of each lie in memory."""


class OrientationExtractor(ModuleExtractor):
    """The features in front of the orientation classifier's head."""

    accuracy: float
    """Share of held-out images whose orientation it tells, 0 to 1; 0.25 is chance."""


def orientations(images: ImageSet) -> ImageSet:
    """Each image (the first 10,000) in four orientations, labelled by it.

    Images that are not square are mirrored instead of turned by a right angle.
    """
    pixels = np.asarray(images.images[:IMAGES])
    square = pixels.shape[2] == pixels.shape[3]
    upside_down = pixels[:, :, ::-1, ::-1]
    sideways = [np.rot90(pixels, k, (2, 3)) for k in (1, 3)] if square else [pixels[..., ::-1], pixels[:, :, ::-1]]
    turned = np.stack([pixels, upside_down, *sideways], 1).reshape(-1, *pixels.shape[1:])
    return replace(
        images,
        images=turned,
        labels=np.tile(np.arange(4, dtype=np.int64), len(pixels)),
        label_names=NAMES,
        fingerprint=digest([images.fingerprint, "orientations"]),
        groups=None,
    )


def orientation_for(
    train: ImageSet,
    heldout: ImageSet,
    device: torch.device | str = "cpu",
    cache: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> OrientationExtractor:
    """The orientation classifier of a training set, trained now or taken from the cache; see :func:`classifier_for`."""
    classifier = classifier_for(orientations(train), orientations(heldout), device, cache, progress)
    shape = (train.channels, *train.size)
    extractor = OrientationExtractor(classifier.module, "orientation", shape, device)
    extractor.accuracy = classifier.accuracy
    return extractor
