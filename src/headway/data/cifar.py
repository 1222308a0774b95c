"""CIFAR-10 and CIFAR-100 as their authors distribute them (cs.toronto.edu/~kriz/cifar.html): one .tar.gz.

The "binary version" is records of label bytes and 3072 pixel bytes. The "python version" is pickles, which can run
any program when read; `_Reader` reads the plain values that these files consist of and refuses everything else.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from headway.data.raw import RawSet, from_array
from headway.errors import HeadwayError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """Where a version keeps things. The parts that are there tell the versions apart."""

    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    """The key of the labels in a pickle."""
    label_bytes: int = 0
    """How many label bytes begin a binary record (the last is the class); 0 for pickles."""


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_LAYOUTS = (
    _Layout(tuple(f"{name}.bin" for name in _BATCHES), "test_batch.bin", "batches.meta.txt", "", label_bytes=1),
    _Layout(("train.bin",), "test.bin", "fine_label_names.txt", "", label_bytes=2),
    _Layout(_BATCHES, "test_batch", "batches.meta", "labels"),
    _Layout(("train",), "test", "meta", "fine_labels"),
)


def read_cifar(path: Path, *, test: bool = False) -> RawSet:
    """The training (with `test`, the test) images of a CIFAR archive; of CIFAR-100 the labels are the fine ones."""
    wanted = {name for layout in _LAYOUTS for name in (*layout.train, layout.test, layout.meta)}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if member.isfile() and name in wanted and (file := archive.extractfile(member)):
                    found[name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise HeadwayError(f"{path} is not a whole tar archive ({error}); download it again.") from error
    for layout in _LAYOUTS:
        if found.keys() >= {*layout.train, layout.test, layout.meta}:
            break
    else:
        raise HeadwayError(
            f"{path} is not a CIFAR archive: expected the binary or the python version of CIFAR-10 or CIFAR-100, whole. "
            "Pictures in a tar archive have to be unpacked, or packed as .zip."
        )
    parts = [layout.test] if test else layout.train
    read = _binary if layout.label_bytes else _pickled
    batches = [read(found[part], layout, f"{part} in {path}") for part in parts]
    return from_array(
        np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32),
        path,
        labels=np.concatenate([labels for _, labels in batches]),
        label_names=_class_names(found[layout.meta], layout, f"{layout.meta} in {path}"),
    )


def _binary(data: bytes, layout: _Layout, where: str) -> tuple[np.ndarray, np.ndarray]:
    record = layout.label_bytes + _PIXELS
    if not data or len(data) % record:
        raise HeadwayError(f"{where} has {len(data)} bytes, which is no multiple of {record}; download it again.")
    records = np.frombuffer(data, np.uint8).reshape(-1, record)
    return records[:, layout.label_bytes :], records[:, layout.label_bytes - 1].astype(np.int64)


def _pickled(data: bytes, layout: _Layout, where: str) -> tuple[np.ndarray, np.ndarray]:
    content = _load(data, where)
    pixels, labels = (content.get(key) if isinstance(content, dict) else None for key in ("data", layout.labels))
    pixels = pixels.value if isinstance(pixels, _Array) else None
    if pixels is None or pixels.shape[1:] != (_PIXELS,) or not isinstance(labels, list):
        raise HeadwayError(f"{where} has no uint8 data of shape (N, {_PIXELS}) with a list {layout.labels}.")
    if len(labels) != len(pixels) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise HeadwayError(f"{where} has {len(pixels)} images but not as many class numbers as {layout.labels}.")
    return pixels, np.array(labels, np.int64)


def _class_names(data: bytes, layout: _Layout, where: str) -> tuple[str, ...]:
    if layout.label_bytes:
        return tuple(data.decode("ascii", "replace").split())
    content = _load(data, where)
    names = content.get(layout.labels[:-1] + "_names") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise HeadwayError(f"{where} has no list of class names.")
    return tuple(names)


def _load(data: bytes, where: str) -> Any:
    try:
        return _Reader(io.BytesIO(data), encoding="latin1").load()
    except HeadwayError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise HeadwayError(f"{where} is damaged ({type(error).__name__}: {error}); download it again.") from error


class _Array:
    """Stands for numpy's array while reading: takes the state numpy writes, and only that of plain bytes."""

    value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        content = content.encode("latin1") if isinstance(content, str) else content  # written by Python 2
        if not (isinstance(dtype, _Dtype) and dtype.code in ("u1", "|u1") and isinstance(content, bytes)):
            raise HeadwayError("A CIFAR pickle holds an array that is not of bytes; Headway does not read it.")
        self.value = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """Stands for numpy's dtype while reading: keeps the code, and ignores the byte order that follows it."""

    def __init__(self, code: object) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


class _Reader(pickle.Unpickler):
    """A pickle reader that knows four names. They are the ones numpy's arrays are written with, and each is answered
    by code of this file, so that not even numpy's own constructors are driven by what a file says."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy", "ndarray"): self._reconstruct,
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._encode,
        }
        if (module, name) not in known:
            raise HeadwayError(
                f"A pickle in this archive asks for {module}.{name}, which no CIFAR file does; it may be harmful, and "
                "was not read further."
            )
        return known[module, name]

    def _reconstruct(self, *_: object) -> _Array:
        return _Array()

    def _dtype(self, code: object, *_: object) -> _Dtype:
        return _Dtype(code)

    def _encode(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise HeadwayError(
                f"A pickle in this archive asks for the encoding {encoding!r}, which no CIFAR file does."
            )
        return text.encode("latin1")
