"""Folders and zip archives of picture files, and the labels that come with them."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from headway.data import policy
from headway.data.raw import RawSet, number_labels
from headway.errors import HeadwayError


def read_folder(root: Path, labels: Path | None) -> RawSet:
    """The pictures anywhere below a folder, in the order of their relative names; links are followed."""
    found = {path.relative_to(root).as_posix(): path for path in _walk(str(root))}
    names = _pictures(found, root)
    read_inside = found["dataset.json"].read_bytes if "dataset.json" in found else None
    numbers, label_names = _labels(names, root, labels, read_inside)
    return RawSet(
        name=root.resolve().name,
        where=str(root),
        stamp=[str(root.resolve()), [(name, *_stamp(found[name])) for name in names]],
        names=names,
        open=lambda i: Image.open(found[names[i]]),
        labels=numbers,
        label_names=label_names,
    )


def read_zip(path: Path, labels: Path | None) -> RawSet:
    """The pictures in a zip archive, in the order of their names."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise HeadwayError(f"{path} is not a whole zip archive ({error}); make or download it again.") from error
    found = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    names = _pictures(found, path)
    read_inside = partial(archive.read, "dataset.json") if "dataset.json" in found else None
    numbers, label_names = _labels(names, path, labels, read_inside)
    return RawSet(
        name=path.stem,
        where=str(path),
        stamp=[(name, found[name].file_size, found[name].CRC) for name in names],
        names=names,
        open=lambda i: Image.open(io.BytesIO(archive.read(names[i]))),
        labels=numbers,
        label_names=label_names,
    )


def _walk(folder: str, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All files below a folder. Links are followed, but not back to a folder that the walk is in."""
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise HeadwayError(f"Cannot list {folder}: {error.strerror}.") from error
    for entry in entries:
        if entry.is_dir():
            yield from _walk(entry.path, above | {real})
        else:
            yield Path(entry.path)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat() if path.exists() else path.lstat()  # a dangling link is a broken picture, reported later
    return status.st_size, status.st_mtime_ns


def _pictures(found: Mapping[str, object], where: Path) -> list[str]:
    def wanted(name: str) -> bool:
        path = PurePosixPath(name)
        # Hidden files, and the twins that macOS puts into archives, are not pictures whatever they are called.
        hidden = any(part.startswith(".") or part == "__MACOSX" for part in path.parts)
        return path.suffix.lower() in policy.EXTENSIONS and not hidden

    names = sorted(filter(wanted, found))
    if not names:
        others = f"; it has {len(found)} other files, such as {min(found)}" if found else ""
        raise HeadwayError(f"{where} has no images: looked for {', '.join(sorted(policy.EXTENSIONS))}{others}.")
    return names


def _labels(
    names: list[str], where: Path, given: Path | None, read_inside: Callable[[], bytes] | None
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Class numbers and class names. First of: the file given, a dataset.json inside, the sub-folders, none."""
    labels: Sequence[object] | None
    if given is None and read_inside is None:
        origin, labels = str(where), _from_folders(names)
    else:
        origin = str(given or f"dataset.json in {where}")
        try:
            data = given.read_bytes() if given else read_inside() if read_inside else b""
        except (OSError, zipfile.BadZipFile, zlib.error) as error:
            raise HeadwayError(f"Cannot read the labels {origin}: {error}.") from error
        labels = _from_json(data, names, origin)
    return (None, None) if labels is None else number_labels(labels, origin)


def _from_json(data: bytes, names: list[str], origin: str) -> list[object] | None:
    """Labels of `names` from {name: label}, or from dataset_tool's {"labels": [[name, label], ...] or null}."""
    try:
        table = json.loads(data)
        if isinstance(table.get("labels", 0), list | None):
            table = None if table["labels"] is None else dict(table["labels"])
    except (ValueError, TypeError, AttributeError) as error:
        raise HeadwayError(
            f'{origin} is no label file ({error}); expected JSON {{"file name": label, ...}} or '
            '{"labels": [["file name", label], ...]}.'
        ) from error
    if table is None:
        return None
    missing = [name for name in names if name not in table]
    if missing:
        raise HeadwayError(
            f"{origin} has labels for {len(names) - len(missing)} of {len(names)} images; the first without one is "
            f"{missing[0]!r} (names are relative to the data folder)."
        )
    return [table[name] for name in names]


def _from_folders(names: list[str]) -> list[str] | None:
    """The first-level folder of each picture, if all lie in folders and in more than one.

    Folders around everything, which archives often have, say nothing and are passed over.
    """
    folders = [PurePosixPath(name).parts[:-1] for name in names]
    while all(folders) and len({parts[0] for parts in folders}) == 1:
        folders = [parts[1:] for parts in folders]
    return [parts[0] for parts in folders] if all(folders) else None
