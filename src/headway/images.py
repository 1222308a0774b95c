"""Pictures for people: float images to bytes, many images as one sheet, and a PNG on disk."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from headway.errors import HeadwayError

# Smaller images are enlarged on a sheet: an 8x8 digit is a speck on a modern screen.
_MIN_SIDE = 32


def to_uint8(images: Tensor) -> Tensor:
    """Float images in [-1, 1], any shape, as uint8 0..255: rounded, and clipped where they lie outside."""
    return (images.double() * 127.5 + 127.5).round().clamp(0, 255).to(torch.uint8)


def tile(images: Tensor, columns: int | None = None, gap: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One sheet (H', W', C) uint8 of many images, row by row; empty places are black.

    Images with a side below 32 pixels are enlarged by a whole factor, each pixel to a square.

    Args:
        images: (N, C, H, W) float in [-1, 1], C 1 or 3, N >= 1. columns: images per row; default: as square as it goes.
        gap: gray pixels between images.
    """
    if images.ndim != 4 or len(images) == 0 or images.shape[1] not in (1, 3):
        raise HeadwayError(f"A sheet needs images (N, 1 or 3, H, W) with N >= 1, got shape {tuple(images.shape)}.")
    if columns is not None and columns < 1:
        raise HeadwayError(f"A sheet needs 1 or more columns, got {columns}.")
    n, channels, height, width = images.shape
    columns = columns or math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    factor = math.ceil(_MIN_SIDE / min(height, width))
    cells = torch.zeros(rows * columns, channels, height, width, dtype=torch.uint8)
    cells[:n] = to_uint8(images.detach().cpu())
    cells = cells.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    cells = torch.nn.functional.pad(cells, (0, gap, 0, gap), value=128)
    sheet = cells.reshape(rows, columns, *cells.shape[1:]).permute(0, 3, 1, 4, 2)
    sheet = sheet.reshape(rows * cells.shape[2], columns * cells.shape[3], channels)
    return sheet[: len(sheet) - gap, : sheet.shape[1] - gap].numpy()


def write_png(array: np.ndarray[Any, np.dtype[np.uint8]], path: str | os.PathLike[str]) -> None:
    """Write (H, W, 1 or 3) uint8 as a PNG. Whole or not at all: a reader never sees half a file."""
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3):
        raise HeadwayError(f"A PNG needs uint8 (H, W, 1 or 3), got {array.dtype} {array.shape}.")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        Image.fromarray(array.squeeze(2) if array.shape[2] == 1 else array).save(partial, format="png")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
