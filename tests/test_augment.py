"""Augmentation: exact where it can be, against scipy and closed forms where it resamples, and told to the network."""

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform

from headway.data.augment import (
    ANGLE,
    AXIS,
    CONDITION_DIM,
    SCALE,
    SHIFT,
    SHIFT_X,
    SHIFT_Y,
    STRETCH,
    X_FLIP,
    Y_FLIP,
    ZOOM,
    apply,
    augment_params,
)
from headway.errors import HeadwayError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int = 3, size: tuple[int, int] = (8, 8)) -> torch.Tensor:
    return torch.randn(n, 2, *size, generator=generator(1))


def params(n: int = 3, **values: float) -> torch.Tensor:
    """The same parameters for n images."""
    columns = {"x_flip": X_FLIP, "y_flip": Y_FLIP, "zoom": ZOOM, "angle": ANGLE, "stretch": STRETCH, "axis": AXIS}
    columns |= {"shift_x": SHIFT_X, "shift_y": SHIFT_Y}
    out = torch.zeros(n, 8)
    for name, value in values.items():
        out[:, columns[name]] = value
    return out


def blob(size: tuple[int, int], forward: np.ndarray | None = None, shift: tuple[float, float] = (0, 0)) -> torch.Tensor:
    """A smooth, lopsided picture drawn by formula in pixels (x, y) about the centre, after a forward map."""
    y, x = np.meshgrid(*(np.arange(s) - (s - 1) / 2 for s in size), indexing="ij")
    points = (
        np.stack([x - shift[0], y - shift[1]], axis=-1) @ np.linalg.inv(np.eye(2) if forward is None else forward).T
    )
    u, v = points[..., 0], points[..., 1]
    value = np.exp(-((u - 2) ** 2) / 30 - (v + 3) ** 2 / 14) - 0.6 * np.exp(-((u + 4) ** 2 + (v - 2) ** 2) / 12)
    return torch.tensor(value, dtype=torch.float32)[None, None]


def rotation(angle: float) -> np.ndarray:
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def test_nothing_is_the_identity_bit_for_bit_and_the_condition_is_zero():
    x = noise()
    out, condition = apply(x, params())
    assert torch.equal(out, x)
    assert torch.equal(condition, torch.zeros(3, CONDITION_DIM))


@pytest.mark.parametrize(("name", "dims"), [("x_flip", [-1]), ("y_flip", [-2])])
@pytest.mark.parametrize("size", [(8, 8), (7, 10)])
def test_flips_are_exact(name, dims, size):
    x = noise(size=size)
    out, condition = apply(x, params(**{name: 1}))
    assert torch.equal(out, x.flip(dims))
    assert condition.sum().item() == 3
    assert condition[:, X_FLIP if name == "x_flip" else Y_FLIP].tolist() == [1, 1, 1]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_quarter_turns_are_rot90(turns):
    x = noise()
    out, condition = apply(x, params(angle=turns * math.pi / 2))
    assert torch.allclose(out, torch.rot90(x, -turns, (-2, -1)), atol=1e-5)
    told = [math.cos(turns * math.pi / 2) - 1, math.sin(turns * math.pi / 2)]
    assert condition[0].tolist() == pytest.approx([0, 0, 0, *told, 0, 0, 0, 0], abs=1e-6)


def test_whole_pixel_shifts_move_the_pixels():
    x = noise(size=(16, 24))
    out, condition = apply(x, params(shift_x=1, shift_y=-0.5))  # 1/8 of 24 to the right, 1/16 of 16 up
    assert torch.allclose(out[:, :, :-1, 3:], x[:, :, 1:, :-3], atol=1e-5)
    assert condition[0].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, -0.5]


def test_borders_are_reflected():
    x = noise(size=(16, 16))
    out, _ = apply(x, params(shift_x=1))
    assert torch.allclose(out[..., :2], x[..., :2].flip(-1), atol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (24, 40)])
@pytest.mark.parametrize(
    ("values", "forward"),
    [
        ({"zoom": 1.0}, SCALE * np.eye(2)),
        ({"zoom": -1.5}, SCALE**-1.5 * np.eye(2)),
        ({"angle": 0.7}, rotation(0.7)),
        ({"stretch": 1.0}, np.diag([SCALE, 1 / SCALE])),
        ({"stretch": 1.2, "axis": 0.5}, rotation(0.5) @ np.diag([SCALE**1.2, SCALE**-1.2]) @ rotation(-0.5)),
    ],
)
def test_smooth_pictures_land_where_the_formula_says(size, values, forward):
    out, _ = apply(blob(size), params(1, **values))
    inner = (..., slice(6, -6), slice(6, -6))
    assert torch.allclose(out[inner], blob(size, forward)[inner], atol=0.025)
    assert not torch.allclose(blob(size)[inner], blob(size, forward)[inner], atol=0.1)


def test_all_together_are_applied_in_the_papers_order():
    size = (32, 40)
    values = {"zoom": 0.5, "angle": 0.6, "stretch": -0.8, "axis": 1.1, "shift_x": 0.3, "shift_y": -0.4}
    stretch = rotation(1.1) @ np.diag([SCALE**-0.8, SCALE**0.8]) @ rotation(-1.1)
    mirror = np.diag([-1.0, 1.0])
    forward = stretch @ rotation(0.6) @ (SCALE**0.5 * np.eye(2)) @ mirror
    out, _ = apply(blob(size), params(1, x_flip=1, **values))
    expected = blob(size, forward, (SHIFT * 0.3 * 40, -SHIFT * 0.4 * 32))
    swapped = blob(size, rotation(0.6) @ stretch @ mirror * SCALE**0.5, (SHIFT * 0.3 * 40, -SHIFT * 0.4 * 32))
    assert not torch.allclose(expected[..., 7:-7, 7:-7], swapped[..., 7:-7, 7:-7], atol=0.1)
    assert torch.allclose(out[..., 7:-7, 7:-7], expected[..., 7:-7, 7:-7], atol=0.025)


def test_bicubic_is_close_to_scipys_cubic_spline():
    picture, angle = blob((32, 32))[0, 0].double().numpy(), 1.3
    inverse = np.linalg.inv(rotation(angle))[::-1, ::-1]  # scipy counts (y, x)
    centre = np.full(2, 15.5)
    expected = affine_transform(picture, inverse, centre - inverse @ centre, order=3, mode="reflect")
    out, _ = apply(blob((32, 32)), params(1, angle=angle))
    assert np.abs(out[0, 0].numpy() - expected).max() < 0.025


def test_each_image_has_its_own_parameters():
    x, drawn = noise(6), augment_params(6, 0.7, generator())
    out, condition = apply(x, drawn)
    for index in range(6):
        alone, told = apply(x[index : index + 1], drawn[index : index + 1])
        assert torch.allclose(out[index : index + 1], alone, atol=1e-6)
        assert torch.allclose(condition[index : index + 1], told)


def test_the_draws_follow_the_generator():
    assert torch.equal(augment_params(64, 0.3, generator()), augment_params(64, 0.3, generator()))
    assert not torch.equal(augment_params(64, 0.3, generator()), augment_params(64, 0.3, generator(1)))


def test_the_generator_moves_by_the_number_of_images_alone():
    first, second = generator(), generator()
    augment_params(16, 0.0, first)
    augment_params(16, 0.9, second, x_flip=1.0)
    assert torch.equal(first.get_state(), second.get_state())


def test_the_draws_have_the_papers_laws():
    n, p = 200_000, 0.25
    drawn = augment_params(n, p, generator())
    error = 5 / math.sqrt(n)
    assert (drawn[:, [X_FLIP, Y_FLIP]].mean(0) - p / 2).abs().max() < error
    for column in (ZOOM, ANGLE, STRETCH, AXIS, SHIFT_X, SHIFT_Y):
        active = drawn[:, column][drawn[:, column] != 0]
        assert abs(len(active) / n - p) < error
        spread = math.pi / math.sqrt(3) if column in (ANGLE, AXIS) else 1.0
        assert active.std().item() == pytest.approx(spread, rel=0.02)
        assert active.mean().item() == pytest.approx(0, abs=0.05)
    assert torch.equal(drawn[:, STRETCH] != 0, drawn[:, AXIS] != 0)
    assert torch.equal(drawn[:, SHIFT_X] != 0, drawn[:, SHIFT_Y] != 0)
    both = ((drawn[:, ZOOM] != 0) & (drawn[:, ANGLE] != 0)).float().mean().item()
    assert both == pytest.approx(p * p, abs=error)


def test_x_flip_has_a_probability_of_its_own():
    drawn = augment_params(20_000, 0.0, generator(), x_flip=1.0)
    assert drawn[:, X_FLIP].mean().item() == pytest.approx(0.5, abs=0.02)
    assert not drawn[:, 1:].any()


def test_the_condition_is_zero_for_exactly_the_untouched_images():
    x, drawn = noise(500), augment_params(500, 0.12, generator())
    out, condition = apply(x, drawn)
    untouched = ~drawn.any(dim=1)
    assert 100 < untouched.sum() < 400
    assert torch.equal(condition.any(dim=1), ~untouched)
    assert torch.equal(out[untouched], x[untouched])
    assert all(not torch.equal(a, b) for a, b in zip(out[~untouched], x[~untouched], strict=True))


def test_the_input_is_left_alone():
    x = noise()
    before = x.clone()
    apply(x, augment_params(3, 1.0, generator()))
    assert torch.equal(x, before)


def test_errors_say_what_to_give():
    with pytest.raises(HeadwayError, match=r"p=1\.2 must lie between 0 and 1"):
        augment_params(4, 1.2, generator())
    with pytest.raises(HeadwayError, match=r"x_flip=-1"):
        augment_params(4, 0.1, generator(), x_flip=-1)
    with pytest.raises(HeadwayError, match=r"\(3, 8\)"):
        apply(noise(), torch.zeros(2, 8))
