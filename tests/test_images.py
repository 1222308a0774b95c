"""Sheets of images and PNG files."""

import numpy as np
import pytest
import torch
from PIL import Image

from headway.errors import HeadwayError
from headway.images import tile, to_uint8, write_png


def test_bytes_survive_the_round_trip_and_values_outside_are_clipped():
    levels = torch.arange(256)
    assert torch.equal(to_uint8(levels.float() / 127.5 - 1).long(), levels)
    assert to_uint8(torch.tensor([-7.0, 7.0])).tolist() == [0, 255]


def test_images_lie_row_by_row_and_empty_places_are_black():
    images = torch.stack([torch.full((3, 40, 50), value) for value in (-0.2, 0.0, 0.2, 0.4, 1.0)])
    sheet = tile(images)
    assert sheet.shape == (80, 150, 3)
    assert sheet.dtype == np.uint8
    values = [[sheet[row * 40 + 20, column * 50 + 20, 0] for column in range(3)] for row in range(2)]
    assert values == [
        to_uint8(torch.tensor([-0.2, 0.0, 0.2])).tolist(),
        [*to_uint8(torch.tensor([0.4, 1.0])).tolist(), 0],
    ]
    spaced = tile(images, columns=5, gap=3)
    assert spaced.shape == (40, 250 + 4 * 3, 3)
    assert (spaced[:, 50:53] == 128).all()
    assert tile(images, columns=5).shape == (40, 250, 3)


def test_an_image_stays_itself_on_the_sheet():
    image = torch.rand(1, 3, 32, 33) * 2 - 1
    assert np.array_equal(tile(image), to_uint8(image)[0].permute(1, 2, 0).numpy())


def test_small_images_are_enlarged_pixel_by_pixel():
    image = torch.rand(1, 1, 8, 8) * 2 - 1
    sheet = tile(image)
    assert sheet.shape == (32, 32, 1)
    assert np.array_equal(sheet[::4, ::4], sheet[3::4, 3::4])
    assert np.array_equal(sheet[::4, ::4, 0], to_uint8(image)[0, 0].numpy())


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_reads_back_as_written_and_replaces_the_old_one(tmp_path, channels):
    path = tmp_path / "new" / "sheet.png"
    for seed in range(2):
        array = np.random.default_rng(seed).integers(0, 256, (7, 5, channels), dtype=np.uint8)
        write_png(array, path)
        assert np.array_equal(np.asarray(Image.open(path)).reshape(7, 5, channels), array)
    assert [p.name for p in path.parent.iterdir()] == ["sheet.png"]


def test_a_write_that_fails_leaves_the_old_picture_alone(tmp_path, monkeypatch):
    path = tmp_path / "sheet.png"
    write_png(np.zeros((4, 4, 1), np.uint8), path)
    before = path.read_bytes()

    def fail(self, file, format):
        file.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        write_png(np.ones((4, 4, 1), np.uint8), path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_no_picture_is_refused():
    for images in (torch.zeros(0, 3, 8, 8), torch.zeros(3, 8, 8), torch.zeros(2, 4, 8, 8)):
        with pytest.raises(HeadwayError, match="A sheet needs images"):
            tile(images)
    with pytest.raises(HeadwayError, match="columns"):
        tile(torch.zeros(2, 1, 8, 8), columns=0)
    with pytest.raises(HeadwayError, match="PNG"):
        write_png(np.zeros((4, 4, 1), np.float32), "never.png")
