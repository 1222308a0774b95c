"""From a raw set to one array: every picture through the image policy, once, into the cache."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import UnidentifiedImageError

from headway.data import cache, policy
from headway.data.imageset import digest
from headway.data.raw import RawSet
from headway.errors import HeadwayError

_THREADS = min(16, os.cpu_count() or 1)  # Pillow lets other threads run while it decodes


def decode(
    raw: RawSet, size: tuple[int, int] | None, channels: int | None, *, skip_broken: bool, directory: Path
) -> tuple[np.ndarray, np.ndarray, str]:
    """(images as a memory map, indices of the pictures that they are, SHA-256 of the pixels).

    Broken pictures are an error that lists them, or with `skip_broken` left out with a warning that counts them.
    """
    key = digest(policy.VERSION, raw.stamp, size, channels, skip_broken)
    path = directory / f"{re.sub(r'[^A-Za-z0-9_-]', '_', raw.name)[:40]}-{key[:32]}.npy"
    images: np.ndarray | None = cache.fetch(path)
    index = _read_index(path)
    if images is None or index is None or len(images) + len(index["broken"]) != len(raw.names):
        broken: dict[str, str] = {}
        images, content = cache.store(path, _rows(raw, size, channels, broken, skip_broken))
        index = {"content": content, "broken": broken}
        with cache.replacing(path.with_suffix(".json")) as file:
            file.write(json.dumps(index).encode())
    if index["broken"]:
        warnings.warn(f"Skipped: {_list_broken(index['broken'], raw)}.", stacklevel=4)
    kept = np.array([i for i, name in enumerate(raw.names) if name not in index["broken"]])
    return images, kept, index["content"]


def _read_index(path: Path) -> dict[str, Any] | None:
    try:
        index = json.loads(path.with_suffix(".json").read_bytes())
        return index if isinstance(index["content"], str) and isinstance(index["broken"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _rows(
    raw: RawSet, size: tuple[int, int] | None, channels: int | None, broken: dict[str, str], skip_broken: bool
) -> Iterator[np.ndarray]:
    """Decoded pictures (C, H, W) in order, all of one shape; the broken ones are noted with the reason instead."""

    def one(i: int) -> np.ndarray | str:
        try:
            with raw.open(i) as image:
                return policy.decode(image, size, channels)
        except UnidentifiedImageError:
            return "not an image"
        except Exception as error:  # broken files make Pillow raise almost anything
            return str(error) or type(error).__name__

    first: tuple[str, tuple[int, ...]] | None = None
    for name, row in zip(raw.names, _in_order(one, len(raw.names)), strict=True):
        if isinstance(row, str):
            broken[name] = row
            continue
        first = first or (name, row.shape)
        if row.shape != first[1]:
            raise _differ(raw, *first, name, row.shape)
        yield row
    if broken and (first is None or not skip_broken):
        advice = "nothing is left" if first is None else "repair or remove them, or pass skip_broken"
        raise HeadwayError(f"{_list_broken(broken, raw)}; {advice}.")


def _in_order(task: Callable[[int], np.ndarray | str], count: int) -> Iterator[np.ndarray | str]:
    """task(0), task(1), ... from threads that work a few tasks ahead of the reader, so that results do not pile up."""
    coming: deque[Future[np.ndarray | str]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for i in range(count):
            coming.append(pool.submit(task, i))
            if len(coming) > 2 * _THREADS:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


def _differ(raw: RawSet, first: str, shape: tuple[int, ...], other: str, other_shape: tuple[int, ...]) -> HeadwayError:
    if shape[0] != other_shape[0]:
        kinds = {1: "gray", 3: "colour"}
        return HeadwayError(
            f"{raw.where} mixes gray and colour: {first} is {kinds[shape[0]]} and {other} is {kinds[other_shape[0]]}; "
            "pass channels=1 or channels=3 to convert all."
        )
    (h, w), (other_h, other_w) = shape[1:], other_shape[1:]
    return HeadwayError(
        f"{raw.where} has images of different sizes: {first} is {w}x{h} and {other} is {other_w}x{other_h} (width x "
        "height); pass size= to crop and resize all."
    )


def _list_broken(broken: dict[str, str], raw: RawSet) -> str:
    listed = ", ".join(f"{name} ({reason})" for name, reason in list(broken.items())[:10])
    more = f" and {len(broken) - 10} more" if len(broken) > 10 else ""
    return f"{len(broken)} of {len(raw.names)} images in {raw.where} cannot be read: {listed}{more}"
