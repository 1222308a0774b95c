"""A set of images in memory or in a memory map, and its split into a training part and a held-out part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from headway.data import cache
from headway.errors import HeadwayError

_CHUNK = 1 << 24  # pixels read at a time, so that a memory map never has to fit into memory


def digest(*parts: object) -> str:
    """SHA-256, in hex, of plain values (anything JSON knows)."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def to_unit(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 0..255 to float32 in [-1, 1], symmetric about zero and the same bits on every device."""
    return (pixels.float() - 127.5) * (1 / 127.5)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of one size, with labels where the source has them. Made by `open_images`, or directly from arrays."""

    images: np.ndarray
    """uint8 (N, C, H, W); may be a read-only memory map of a cache file."""
    labels: np.ndarray | None
    """int64 (N,), class numbers from 0."""
    label_names: tuple[str, ...] | None
    """One name a class; where the source has labels but no names, the numbers are the names."""
    name: str
    """A short name for titles."""
    fingerprint: str
    """Hex digest of pixels and labels: equal where the same images in the same order would be trained on."""
    groups: np.ndarray | None = None
    """int64 (N,): images of one number are near duplicates, which `split` keeps on one side."""

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or 0 in self.images.shape:
            raise HeadwayError(
                f"{self.name}: expected uint8 images of shape (N, C, H, W) with N > 0, "
                f"got {self.images.dtype} {self.images.shape}."
            )
        for what, column in (("labels", self.labels), ("groups", self.groups)):
            if column is not None and column.shape != (len(self.images),):
                raise HeadwayError(
                    f"{self.name}: {len(self.images)} images but {what} of shape {column.shape}; give one an image."
                )
        if self.labels is None:
            return
        low, top = int(self.labels.min()), int(self.labels.max())
        names = self.label_names or tuple(str(label) for label in range(top + 1))
        if low < 0 or top >= len(names):
            raise HeadwayError(
                f"{self.name}: labels run from {low} to {top}, but there are {len(names)} label names; give labels from "
                "0 and one name a class."
            )
        object.__setattr__(self, "label_names", names)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        return int(self.images.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return int(self.images.shape[2]), int(self.images.shape[3])

    @property
    def classes(self) -> int:
        """How many classes there are, also those that no image of this part has; 0 without labels."""
        return 0 if self.labels is None else len(self.label_names or ())

    def pixels(self, indices: Sequence[int] | np.ndarray | torch.Tensor | None = None) -> torch.Tensor:
        """float32 (n, C, H, W) in [-1, 1], all images or those asked for."""
        rows = np.array(self.images) if indices is None else self.images[torch.as_tensor(indices).cpu().numpy()]
        return to_unit(torch.from_numpy(rows))

    def std(self) -> float:
        """sigma_data (EDM, arXiv 2206.00364, table 1): root mean square of the pixels in [-1, 1] around their mean.

        Computed from how often each of the 256 values occurs: exact up to float64 rounding, in whatever order.
        """
        counts = np.zeros(256, np.int64)
        for rows in _chunks(self.images):
            counts += np.bincount(rows.ravel(), minlength=256)
        values = np.arange(256) / 127.5 - 1
        share = counts / counts.sum()
        return float(np.sqrt(share @ (values - share @ values) ** 2))

    def subset(self, indices: np.ndarray, name: str) -> ImageSet:
        """The images of these indices, in this order. The subset of a memory map is a memory map too, beside it."""
        indices = np.asarray(indices, np.int64)
        fingerprint = digest(self.fingerprint, hashlib.sha256(indices.tobytes()).hexdigest())
        if isinstance(self.images, np.memmap):
            path = Path(str(self.images.filename)).with_name(f"{fingerprint[:32]}.npy")
            images: np.ndarray | None = cache.fetch(path)
            if images is None:
                images, _ = cache.store(path, (self.images[i] for i in indices))
        else:
            images = self.images[indices]
        return replace(
            self,
            images=images,
            labels=None if self.labels is None else self.labels[indices],
            groups=None if self.groups is None else self.groups[indices],
            name=name,
            fingerprint=fingerprint,
        )


def _chunks(images: np.ndarray) -> list[np.ndarray]:
    step = max(1, _CHUNK // images[0].size)
    return [images[start : start + step] for start in range(0, len(images), step)]


def split(images: ImageSet, heldout: float = 0.1, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """(train, held-out): disjoint, covering, the same for the same arguments.

    `heldout` is the fraction of images held out, of every class alike up to rounding. Groups are never divided (a
    group counts for the class of its first image). Both parts keep the order of the whole.
    """
    if not 0 < heldout < 1:
        raise HeadwayError(f"Cannot hold out {heldout} of {images.name}: give a fraction between 0 and 1, such as 0.1.")
    groups = np.arange(len(images)) if images.groups is None else images.groups
    _, first, group, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    classes = np.zeros(len(sizes)) if images.labels is None else images.labels[first]
    shuffled = np.random.default_rng(seed).permutation(len(sizes))
    out = np.zeros(len(sizes), bool)
    owed = 0.0  # what rounding left over goes to the next class, so that many small classes still add up
    for label in np.unique(classes):
        mine = shuffled[classes[shuffled] == label]
        totals = np.concatenate([[0], np.cumsum(sizes[mine])])
        owed += heldout * totals[-1]
        take = int(np.abs(totals - owed).argmin())
        out[mine[:take]] = True
        owed -= totals[take]
    held = out[group]
    if held.all() or not held.any():
        raise HeadwayError(
            f"Cannot hold out {heldout} of {images.name}: its {len(images)} images in {len(sizes)} groups leave one "
            "side empty; add images or change the fraction."
        )
    return (
        images.subset(np.flatnonzero(~held), f"{images.name} train"),
        images.subset(np.flatnonzero(held), f"{images.name} held-out"),
    )
