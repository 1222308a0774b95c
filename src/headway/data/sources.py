"""`open_images` and `load`: from what the user names (a built-in set, a folder, an archive, an array) to an ImageSet."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from headway.data import arrays, cifar, files, policy
from headway.data.cache import directory as cache_directory
from headway.data.decode import decode
from headway.data.imageset import ImageSet, digest, split
from headway.data.raw import RawSet
from headway.errors import HeadwayError, suggest

BUILT_IN = ("digits", "fashion")
"""Sets known by name: 1,797 handwritten digits 8x8 (in the package); Fashion-MNIST 28x28 (a Debian package)."""

_IN_MEMORY = 1 << 30  # larger arrays go through the cache, so that training can stream them

_FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def open_images(
    source: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: Literal[1, 3] | None = None,
    labels: Path | str | None = None,
    skip_broken: bool = False,
    cache: Path | None = None,
) -> ImageSet:
    """All images of a source (of one with a test split, its training images).

    source: a built-in name, or a folder, .zip, .npz, .npy, IDX file or folder, or CIFAR .tar.gz (docs/data.md).
    size: N for N x N, or (H, W): centre crop to the aspect, then Lanczos; None wants all images of one size.
    channels: 1 or 3 converts; None keeps what the files store and wants them all alike.
    labels: a JSON file {relative file name: class number or name}, for folders and zips.
    skip_broken: leave unreadable pictures out, with a warning, instead of refusing them all.
    cache: where decoded images are kept; else $HEADWAY_CACHE, else ~/.cache/headway.

    Raises HeadwayError for everything that a user can set right.
    """
    raw = _read(source, labels)
    assert raw is not None
    return _image_set(raw, size, channels, skip_broken, cache)


def load(
    source: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: Literal[1, 3] | None = None,
    labels: Path | str | None = None,
    skip_broken: bool = False,
    cache: Path | None = None,
    heldout: float = 0.1,
    seed: int = 0,
) -> tuple[ImageSet, ImageSet]:
    """(train, held-out): `open_images`, then the source's own test split where it has one, else `split`."""
    images = open_images(source, size=size, channels=channels, labels=labels, skip_broken=skip_broken, cache=cache)
    raw = _read(source, labels, test=True)
    if raw is None:
        return split(images, heldout, seed)
    raw = replace(raw, name=f"{raw.name} test", label_names=images.label_names)
    return images, _image_set(raw, size, channels, skip_broken, cache)


def _image_set(
    raw: RawSet, size: int | tuple[int, int] | None, channels: int | None, skip_broken: bool, directory: Path | None
) -> ImageSet:
    shape = (size, size) if isinstance(size, int) else size and tuple(size)
    if shape is not None and (len(shape) != 2 or min(shape) < 1):
        raise HeadwayError(f"size is {size!r} where a number of pixels or a pair (height, width) was expected.")
    if channels not in (None, 1, 3):
        raise HeadwayError(f"channels is {channels!r} where 1 (gray), 3 (colour) or None (as stored) was expected.")
    array = raw.array
    as_it_is = array is not None and shape in (None, array.shape[2:]) and channels in (None, array.shape[1])
    if array is not None and as_it_is and array.nbytes <= _IN_MEMORY:
        images = np.array(array, order="C")  # a copy: the file of a mapped .npy is the user's to change
        kept, content = np.arange(len(images)), hashlib.sha256(images.data).hexdigest()
    else:
        images, kept, content = decode(
            raw, shape, channels, skip_broken=skip_broken, directory=cache_directory(directory)
        )
    labels = None if raw.labels is None else raw.labels[kept]
    return ImageSet(
        images=images,
        labels=labels,
        label_names=raw.label_names,
        name=raw.name,
        fingerprint=digest(images.shape, content, None if labels is None else labels.tolist(), raw.label_names),
        groups=None if raw.groups is None else raw.groups[kept],
    )


def _read(source: str | Path, labels: Path | str | None, *, test: bool = False) -> RawSet | None:
    """What the right reader finds. With `test`: the test split, or None where the source has none."""
    name, path = str(source), Path(source).expanduser()
    label_file = None if labels is None else Path(labels).expanduser()
    if name in BUILT_IN and isinstance(source, str) and path.exists():
        raise HeadwayError(
            f"{name!r} is a built-in set and a path here; write './{name}' for the path, or work in another folder."
        )
    if not path.exists():
        if name not in BUILT_IN:
            siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            raise HeadwayError(
                f"There is no {name!r}: expected a path, or one of the built-in sets {', '.join(BUILT_IN)}."
                + suggest(path.name, [*BUILT_IN, *siblings])
            )
        _refuse_labels(label_file, name)
        return _built_in(name, test)
    pictures = path.is_dir() and not arrays.is_idx(path)
    if pictures or path.suffix.lower() == ".zip":
        if test:
            return None
        return files.read_folder(path, label_file) if pictures else files.read_zip(path, label_file)
    _refuse_labels(label_file, name)
    if arrays.is_idx(path):
        return arrays.read_idx(path, test=test)
    if path.name.lower().endswith((".tar.gz", ".tgz", ".tar")):
        return cifar.read_cifar(path, test=test)
    if path.suffix.lower() in (".npz", ".npy"):
        read = arrays.read_npz if path.suffix.lower() == ".npz" else arrays.read_npy
        return None if test else read(path)
    if path.suffix.lower() in policy.EXTENSIONS:
        raise HeadwayError(f"{path} is a single image; give the folder that holds the images.")
    raise HeadwayError(
        f"{path} is no image source: expected a folder, .zip, .npz, .npy, an IDX file (...-images-idx3-ubyte[.gz]) or a "
        f"CIFAR .tar.gz, or one of the built-in sets {', '.join(BUILT_IN)}."
    )


def _refuse_labels(labels: Path | None, name: str) -> None:
    if labels is not None:
        raise HeadwayError(
            f"A label file is for folders and zips of images; {name} brings its own labels, so leave it out."
        )


def _built_in(name: str, test: bool) -> RawSet | None:
    if name == "digits":
        return None if test else arrays.read_npz(Path(__file__).with_name("digits.npz"))
    folder = Path(os.environ.get("HEADWAY_FASHION") or "/usr/share/datasets/fashion-mnist").expanduser()
    if not folder.is_dir() or not arrays.is_idx(folder):
        raise HeadwayError(
            f"Fashion-MNIST is not in {folder}: install it (Debian, Ubuntu: apt-get install dataset-fashion-mnist), or "
            "set HEADWAY_FASHION, or name as data, the folder that holds its four IDX files."
        )
    raw = arrays.read_idx(folder, test=test)
    return raw and replace(raw, name="fashion", label_names=_FASHION)
