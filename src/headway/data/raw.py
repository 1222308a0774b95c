"""What a reader finds in a source, before the image policy is applied: where the pictures are, and their labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from headway.errors import HeadwayError

_MOST_CLASSES = 100_000  # a larger label is an identity number, for which no one wants an embedding table


@dataclass(frozen=True)
class RawSet:
    """Pictures that can be opened one by one, or an array of pixels that may be used as it is."""

    name: str
    """Short, for titles."""
    where: str
    """The source as the user knows it, for messages."""
    stamp: object
    """Plain values that change when the source changes: the identity that caches are keyed by."""
    names: Sequence[str]
    """One a picture, for messages."""
    open: Callable[[int], Image.Image]
    labels: np.ndarray | None = None
    label_names: tuple[str, ...] | None = None
    groups: np.ndarray | None = None
    array: np.ndarray | None = None
    """uint8 (N, C, H, W) where the source holds pixels rather than picture files."""


def from_array(
    array: np.ndarray,
    path: Path,
    *,
    name: str | None = None,
    labels: np.ndarray | None = None,
    label_names: tuple[str, ...] | None = None,
    groups: np.ndarray | None = None,
) -> RawSet:
    """The raw set of an array found in the file `path`: uint8 (N, H, W), (N, H, W, C) or (N, C, H, W), C 1 or 3."""
    array = _channels_first(array, path)
    status = path.stat()
    return RawSet(
        name=name or path.name.split(".")[0],
        where=str(path),
        stamp=[str(path.resolve()), status.st_size, status.st_mtime_ns, len(array)],
        names=[f"image {i}" for i in range(len(array))],
        open=lambda i: Image.fromarray(array[i, 0] if len(array[i]) == 1 else array[i].transpose(1, 2, 0)),
        labels=labels,
        label_names=label_names,
        groups=groups,
        array=array,
    )


def _channels_first(array: np.ndarray, path: Path) -> np.ndarray:
    if array.dtype != np.uint8:
        raise HeadwayError(
            f"{path} holds {array.dtype} values where uint8 images (0..255) were expected; scale and convert them first."
        )
    if 0 in array.shape:
        raise HeadwayError(f"{path} holds no images: its array has shape {array.shape}.")
    if array.ndim == 3:
        return array[:, None]
    first, last = (array.ndim == 4 and array.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        raise HeadwayError(
            f"{path} holds an array of shape {array.shape} where (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 "
            f"channels was expected{', and both its axes 1 and 3 could be channels' if first else ''}; reshape it."
        )
    return array if first else array.transpose(0, 3, 1, 2)


def number_labels(labels: Sequence[object], where: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels as class numbers int64 (N,), and the names of the classes if the labels were strings.

    Names are numbered in alphabetical order, or in numerical order if all of them are numbers.
    """
    if all(isinstance(label, str) for label in labels):
        names = sorted({str(label) for label in labels})
        if all(name.isdecimal() for name in names):
            names.sort(key=int)
        number = {name: i for i, name in enumerate(names)}
        return np.array([number[str(label)] for label in labels], np.int64), tuple(names)
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < _MOST_CLASSES:
            raise HeadwayError(
                f"{where} has the label {label!r} where class numbers from 0 (below {_MOST_CLASSES}), or names for "
                "all images, were expected."
            )
    return np.array(labels, np.int64), None
