"""The image policy: what pixels a file stands for, whatever its format, depth, orientation and transparency."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from headway.data.policy import decode


def saved(image: Image.Image, kind: str, **options: object) -> Image.Image:
    """The image as it comes back from a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return Image.open(io.BytesIO(buffer.getvalue()))


def png16(values: np.ndarray) -> Image.Image:
    """A 16-bit PNG (Pillow writes only gray ones): 1 gray, 2 gray and alpha, 3 colour, 4 colour and alpha channels."""
    height, width, channels = values.shape
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return Image.open(io.BytesIO(b"\x89PNG\r\n\x1a\n" + data))


def colours(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


UPRIGHT = {  # what a viewer does with the stored rows, by the EXIF standard's table of tag 0x0112
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["png", "tiff", "webp", "jpeg"])
def test_all_eight_exif_orientations_are_applied(kind: str, orientation: int) -> None:
    stored = np.zeros((16, 24, 3), np.uint8)
    stored[:8, :8], stored[8:, :8], stored[:8, 16:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"webp": {"lossless": True}, "jpeg": {"quality": 100, "subsampling": 0}}.get(kind, {})
    pixels = decode(saved(Image.fromarray(stored), kind, exif=exif, **options))
    np.testing.assert_allclose(pixels.transpose(1, 2, 0), UPRIGHT[orientation](stored), atol=4)


def test_transparency_is_composited_on_white() -> None:
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[..., :3] = (200, 100, 0)
    rgba[0, :, 3] = (0, 255, 128)
    half = np.round(np.array([200, 100, 0]) * 128 / 255 + 255 * 127 / 255)
    pixels = decode(saved(Image.fromarray(rgba), "png"))
    np.testing.assert_array_equal(pixels[:, 0, 0], [255, 255, 255])
    np.testing.assert_array_equal(pixels[:, 0, 1], [200, 100, 0])
    np.testing.assert_allclose(pixels[:, 0, 2], half, atol=1)


@pytest.mark.parametrize("mode", ["LA", "La", "PA", "P", "L", "I;16"])
def test_every_kind_of_transparency_is_seen(mode: str) -> None:
    black = np.zeros((2, 2), np.uint8)
    if mode in ("LA", "La"):
        image = Image.merge("LA", [Image.fromarray(black)] * 2).convert(mode)
    elif mode == "PA":
        image = Image.new("RGBA", (2, 2), (0, 0, 0, 0)).convert("PA")
    elif mode == "P":
        image = saved(Image.fromarray(black, "P"), "png", transparency=0)
    else:
        image = saved(Image.fromarray(black).convert(mode), "png", transparency=0)
        assert image.mode == mode
    assert (decode(image) == 255).all()


def test_gif_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    image = saved(frames[0], "gif", save_all=True, append_images=frames[1:])
    assert image.n_frames == 2
    assert decode(image)[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["png", "tiff", "big-endian tiff"])
def test_16_bit_gray_is_scaled_and_neither_clipped_nor_wrapped(kind: str) -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    if kind == "big-endian tiff":
        entries = [
            (256, 3, 256),
            (257, 3, 256),
            (258, 3, 16),
            (262, 3, 1),
            (273, 4, 8),
            (278, 3, 256),
            (279, 4, 131072),
        ]
        directory = struct.pack(">H", len(entries))
        for tag, form, value in entries:
            directory += struct.pack(">HHI", tag, form, 1) + (
                struct.pack(">HH", value, 0) if form == 3 else struct.pack(">I", value)
            )
        data = b"MM\0*" + struct.pack(">I", 8 + 131072) + values.astype(">u2").tobytes() + directory + b"\0" * 4
        image = Image.open(io.BytesIO(data))
    else:
        image = saved(Image.fromarray(values), kind)
    assert image.mode.startswith("I;16")
    np.testing.assert_array_equal(decode(image)[0], np.rint(values / 257))


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_16_bit_pngs_of_more_channels_are_scaled(channels: int) -> None:
    values = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64, 1).repeat(channels, 2)
    alpha = values[..., -1:] / 65535 if channels in (2, 4) else 1.0
    want = values[..., :1] / 257 * alpha + 255 * (1 - alpha)
    pixels = decode(png16(values))
    assert len(pixels) == (1 if channels == 2 else 3)
    assert np.abs(pixels.transpose(1, 2, 0) - want).max() <= 2  # Pillow keeps the high byte: up to 1, twice with alpha


def test_cmyk_and_palettes_become_colours() -> None:
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert decode(saved(cmyk, "tiff"))[:, 0, 0].tolist() == [255, 0, 0]
    np.testing.assert_allclose(decode(saved(cmyk, "jpeg", quality=100))[:, 0, 0], [255, 0, 0], atol=3)
    picture = Image.new("RGB", (8, 8), (10, 200, 30))
    assert decode(saved(picture.convert("P", palette=Image.Palette.ADAPTIVE), "png"))[:, 0, 0].tolist() == [10, 200, 30]


def test_what_stores_no_colour_is_gray_and_the_rest_is_not() -> None:
    gray = Image.linear_gradient("L")
    no_colour = [saved(gray, kind) for kind in ("png", "gif", "bmp", "tiff", "jpeg")]
    no_colour += [saved(gray.convert("1"), "png"), saved(gray.convert("LA"), "png"), saved(gray.convert("P"), "png")]
    assert [len(decode(image)) for image in no_colour] == [1] * 8
    assert all(np.array_equal(decode(image)[0], np.asarray(gray)) for image in no_colour[:4])
    colour = [saved(gray.convert("RGB"), "png"), saved(Image.fromarray(colours(8, 8)).convert("P"), "png")]
    assert [len(decode(image)) for image in colour] == [3, 3]


def test_channels_convert_only_on_request() -> None:
    picture = colours(8, 8)
    luma = picture @ np.array([0.299, 0.587, 0.114])
    assert np.abs(decode(Image.fromarray(picture), channels=1)[0] - luma).max() <= 0.51
    gray = Image.fromarray(picture[..., 0])
    assert (decode(gray, channels=3) == picture[..., 0]).all()


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_without_an_agreed_range_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="8 or 16 bits"):
        decode(saved(Image.new(mode, (4, 4), 1), "tiff"))


def test_the_crop_is_central_and_of_the_wanted_aspect() -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    assert (decode(Image.fromarray(wide), size=(5, 5)) == 255).all()
    assert (decode(Image.fromarray(wide.swapaxes(0, 1)), size=(10, 10)) == 255).all()
    pixels = decode(Image.fromarray(wide), size=(10, 20))
    assert pixels.shape == (3, 10, 20)
    np.testing.assert_array_equal(pixels[0, 0], [0] * 5 + [255] * 10 + [0] * 5)


def test_shrinking_averages_rather_than_picks() -> None:
    checks = ((np.indices((64, 64)).sum(0) % 2) * 255).astype(np.uint8)
    assert np.abs(decode(Image.fromarray(checks), size=(8, 8)).astype(int) - 127.5).max() < 2


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(1, 40)] * 4))
def test_any_size_gives_any_size_and_the_same_size_the_same_bits(sizes: tuple[int, int, int, int]) -> None:
    height, width, new_height, new_width = sizes
    picture = colours(height, width)
    assert decode(Image.fromarray(picture), size=(new_height, new_width)).shape == (3, new_height, new_width)
    np.testing.assert_array_equal(decode(Image.fromarray(picture), size=(height, width)), picture.transpose(2, 0, 1))
