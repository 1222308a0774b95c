"""What a judge returns: the number and all that is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    """Sentences on what makes the numbers doubtful."""
    figures: dict[str, float] = field(default_factory=dict)
    """Where they were asked for, the further figures: kid, precision, recall, density, coverage, mmd, copies (share of the
    samples flagged as copies of training images), nearest_ratio (median distance of the samples from the nearest training
    image over that of held-out images)."""
    figures_floor: dict[str, float] = field(default_factory=dict)
    """The same figures of the held-out images."""
    figures_setup: dict[str, float] = field(default_factory=dict)
    """What they depend on: reference_n (training images compared with, but for copies: all), neighbours_k, neighbours_n
    (images a side in precision, recall, density and coverage), mmd_sigma, copy_distance (flagged up to it)."""
