"""The image policy: the one place that decides what pixels a picture file stands for.

Orientation, transparency, bit depth, colour and size are decided here and nowhere else; docs/data.md states the same
rules for people.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

VERSION = 1
"""Raise it whenever the same file would give other pixels: it is part of the key of every cache."""

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff"})

_GRAY_MODES = {"1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N"}


def decode(image: Image.Image, size: tuple[int, int] | None = None, channels: int | None = None) -> np.ndarray:
    """The pixels of an opened picture, uint8 (C, H, W).

    `size` (H, W) crops and resizes; `channels` 1 takes the luma (ITU-R 601), 3 replicates gray, None keeps what the
    file stores: 1 if it stores no colour, else 3. Raises whatever Pillow raises for a broken file, and ValueError for
    a pixel format without an agreed range.
    """
    mode = "L" if (channels or (1 if _stores_gray(image) else 3)) == 1 else "RGB"
    image = _on_white(_eight_bits(ImageOps.exif_transpose(image))).convert(mode)
    pixels = np.asarray(image if size is None else _fit(image, size))
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def _stores_gray(image: Image.Image) -> bool:
    """Whether the file stores no colour; an RGB file whose pixels happen to be gray does store it."""
    if image.mode in ("P", "PA"):
        palette = np.array(image.getpalette()).reshape(-1, 3)
        return bool((palette == palette[:, :1]).all())
    # Pillow gives 16-bit gray with alpha as RGBA; only the raw mode of the undecoded tile remembers.
    return image.mode in _GRAY_MODES or any(tile[3] == "LA;16B" for tile in getattr(image, "tile", []))


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit gray scaled to 8 bits, v / 257 rounded: Pillow's own conversion clips everything above 255 to white.

    16-bit colour needs nothing: Pillow reads the high byte of each sample.
    """
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels have no agreed range; save it with 8 or 16 bits")
    if not image.mode.startswith("I;16"):
        return image
    values = np.asarray(image).astype(np.uint32)
    gray = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if (clear := image.info.get("transparency")) is not None:
        gray.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
    return gray


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    if image.mode == "La":  # premultiplied gray converts to LA only
        image = image.convert("LA")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The largest centred crop of the wanted aspect, resized with Lanczos, whose support grows when it shrinks."""
    height, width = size
    crop_width = min(image.width, max(1, round(image.height * width / height)))
    crop_height = min(image.height, max(1, round(image.width * height / width)))
    left, top = (image.width - crop_width) // 2, (image.height - crop_height) // 2
    image = image.crop((left, top, left + crop_width, top + crop_height))
    return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.LANCZOS)
