"""Decoded images on disk: .npy files that appear whole or not at all, opened as memory maps.

Two processes that make the same file at once each write their own temporary one; the last rename wins, and both are
right. A file that is not whole is made again.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from headway.errors import HeadwayError


def directory(given: Path | str | None = None) -> Path:
    """Where caches live: `given`, else $HEADWAY_CACHE, else ~/.cache/headway."""
    return Path(given or os.environ.get("HEADWAY_CACHE") or "~/.cache/headway").expanduser()


def fetch(path: Path) -> np.memmap | None:
    """The images uint8 (N, C, H, W) of a cache file as a read-only memory map, or None if it is not there or not whole."""
    try:
        images = np.lib.format.open_memmap(path, mode="r")
        whole = path.stat().st_size == images.offset + images.nbytes
    except Exception:  # whatever is wrong with a damaged file, the answer is to make it again
        return None
    return images if whole and images.dtype == np.uint8 and images.ndim == 4 else None


def store(path: Path, rows: Iterable[np.ndarray]) -> tuple[np.memmap, str]:
    """Write uint8 rows (C, H, W) of one shape, as they come, as one array (N, C, H, W); its map, and its SHA-256.

    If `rows` raises, nothing is left behind.
    """
    content = hashlib.sha256()
    count, shape = 0, (0, 0, 0)
    with replacing(path) as file:
        for row in rows:
            if count == 0:
                shape = row.shape
                _write_header(file, (0, *shape))
            count += 1
            content.update(data := row.tobytes())
            file.write(data)
        file.seek(0)
        _write_header(file, (count, *shape))  # numpy pads headers so that the first axis can grow in place
    return np.lib.format.open_memmap(path, mode="r"), content.hexdigest()


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` at the end, if nothing went wrong."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise HeadwayError(
            f"Cannot write the cache in {path.parent}: {error.strerror or error}; "
            "set HEADWAY_CACHE to a folder that is writable and has room."
        ) from error
    finally:
        if temporary.exists():
            temporary.unlink()
