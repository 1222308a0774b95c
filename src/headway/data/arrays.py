"""Sources that are arrays already: .npz, .npy and IDX (the format of MNIST). Nothing here unpickles."""

from __future__ import annotations

import gzip
import math
import re
import zipfile
import zlib
from pathlib import Path

import numpy as np

from headway.data.raw import RawSet, from_array, number_labels
from headway.errors import HeadwayError

_IDX_IMAGES = re.compile(r"images([-.])idx3-ubyte(\.gz)?$")


def read_npz(path: Path) -> RawSet:
    """`images` (or `x`, `arr_0`), and optionally `labels` (or `y`), `label_names` and `base` (groups)."""
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
            keys = archive.files
            content = {key: archive[key] for key in _NPZ_KEYS if key in keys}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise HeadwayError(f"Cannot read {path}: {_why(error)}.") from error
    images = next((content[key] for key in ("images", "x", "arr_0") if key in content), None)
    if images is None:
        raise HeadwayError(
            f"{path} has no images: expected an array named images, x or arr_0, found {', '.join(keys) or 'none'}."
        )
    labels, names = content.get("labels", content.get("y")), None
    if labels is not None:
        labels, names = number_labels(_column(labels, len(images), f"labels of {path}").tolist(), str(path))
    if labels is not None and "label_names" in content:
        names = tuple(str(name) for name in content["label_names"].ravel())
    groups = content.get("base")
    if groups is not None:
        groups = np.unique(_column(groups, len(images), f"base of {path}"), return_inverse=True)[1]
    return from_array(images, path, labels=labels, label_names=names, groups=groups)


_NPZ_KEYS = ("images", "x", "arr_0", "labels", "y", "label_names", "base")


def read_npy(path: Path) -> RawSet:
    """One array of images, opened as a memory map."""
    try:
        images = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise HeadwayError(f"Cannot read {path}: {_why(error)}.") from error
    return from_array(images, path)


def is_idx(path: Path) -> bool:
    """Whether this is a file, or a folder with files, that the IDX reader takes."""
    return any(_IDX_IMAGES.search(file.name) for file in (path.iterdir() if path.is_dir() else [path]))


def read_idx(path: Path, *, test: bool = False) -> RawSet | None:
    """An IDX file of images, or the training (with `test`, the test) images of a folder; labels lie beside them.

    A folder with one image file is that set; of a file or such a folder there is no test set, which gives None.
    """
    if not path.is_dir():
        return None if test else _idx_set(path, path.name.split("-images")[0])
    files = sorted(file for file in path.iterdir() if _IDX_IMAGES.search(file.name))
    parts = {
        "train": [file for file in files if "train" in file.name],
        "test": [file for file in files if "t10k" in file.name or "test" in file.name],
    }
    if len(files) == 1:
        return None if test else _idx_set(files[0], path.resolve().name)
    if len(files) != 2 or any(len(part) != 1 for part in parts.values()):
        raise HeadwayError(
            f"{path} has the IDX image files {', '.join(file.name for file in files)} where one train and one t10k (or "
            "test) file were expected; give the file itself."
        )
    return _idx_set(parts["test" if test else "train"][0], path.resolve().name)


def _idx_set(path: Path, name: str) -> RawSet:
    images = _idx(path, ndim=3)
    stem = _IDX_IMAGES.sub(r"labels\1idx1-ubyte", path.name)
    beside = [file for file in (path.with_name(stem), path.with_name(stem + ".gz")) if file.exists()]
    labels = _idx(beside[0], ndim=1).astype(np.int64) if beside else None
    if labels is not None:
        labels = _column(labels, len(images), str(beside[0]))
    return from_array(images, path, name=name, labels=labels)


def _idx(path: Path, ndim: int) -> np.ndarray:
    """An IDX array of bytes: two zero bytes, type 8, number of axes, big-endian uint32 lengths, then the values."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise HeadwayError(f"Cannot read {path}: {_why(error)}.") from error
    start = 4 + 4 * ndim
    if data[:4] != bytes([0, 0, 8, ndim]) or len(data) < start:
        raise HeadwayError(f"{path} is not an IDX file of unsigned bytes with {ndim} axes.")
    shape = tuple(int(length) for length in np.frombuffer(data[4:start], ">u4"))
    if len(data) != start + math.prod(shape):
        raise HeadwayError(
            f"{path} promises {shape} bytes but holds {len(data) - start}; it is damaged, so download it again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _column(values: np.ndarray, count: int, what: str) -> np.ndarray:
    if values.shape != (count,):
        raise HeadwayError(f"{what}: {count} images but an array of shape {values.shape}; expected one value an image.")
    return values


def _why(error: Exception) -> str:
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return "it holds Python objects, and Headway does not unpickle"
    return str(error) or type(error).__name__
