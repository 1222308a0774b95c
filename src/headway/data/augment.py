"""Geometric augmentation that does not leak into the samples: the network is told what was done to each image.

Karras et al. 2022 ("EDM"), appendix F.2, after Karras et al. 2020 (ADA) and Jun et al. 2020. Drawing and applying are
apart: `augment_params` draws for a block of images from its own generator, `apply` is a pure function of the batch.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.errors import HeadwayError

CONDITION_DIM = 9
"""Length of the vector the network is told; the `augment_dim` to build a network with."""

SCALE = 2**0.2
"""Factor of isotropic scaling, and of stretching, at one standard deviation."""
SHIFT = 1 / 8
"""Translation at one standard deviation, over the side of the image."""

# Columns of the parameters; all zero means "not augmented".
X_FLIP, Y_FLIP, ZOOM, ANGLE, STRETCH, AXIS, SHIFT_X, SHIFT_Y = range(8)


def augment_params(n: int, p: float, generator: torch.Generator, *, x_flip: float | None = None) -> Tensor:
    """Draw what to do to n images: each transformation is active with probability p, on its own.

    The amount of randomness used depends on n alone, so a generator's later draws do not depend on p.

    Args:
        n: number of images.
        p: probability of each transformation, in [0, 1]; EDM: 0.12 for CIFAR-10, 0.15 for 64x64.
        generator: on the CPU.
        x_flip: probability of the x-flip instead of p. EDM's and FDM's runs use 1. An active flip still only flips
            half of the images, so 1 flips half of them.

    Returns:
        (n, 8) float32: x-flip and y-flip in {0, 1}, zoom ~ N(0, 1), angle ~ U(-pi, pi), stretch ~ N(0, 1) and its
        axis ~ U(-pi, pi), x- and y-shift ~ N(0, 1); zero where inactive.
    """
    x_flip = p if x_flip is None else x_flip
    for name, value in (("p", p), ("x_flip", x_flip)):
        if not 0 <= value <= 1:
            raise HeadwayError(f"Augmentation probability {name}={value} must lie between 0 and 1.")
    uniform, normal = torch.rand(n, 10, generator=generator), torch.randn(n, 4, generator=generator)
    active = uniform[:, :6] < torch.tensor([x_flip, p, p, p, p, p])
    flips = (uniform[:, 6:8] < 0.5).float()
    angle, axis = (math.pi * (2 * uniform[:, 8:] - 1)).unbind(1)
    zoom, stretch, shift_x, shift_y = normal.unbind(1)
    values = torch.stack([flips[:, 0], flips[:, 1], zoom, angle, stretch, axis, shift_x, shift_y], dim=1)
    return values * active[:, [0, 1, 2, 3, 4, 4, 5, 5]]


def apply(images: Tensor, params: Tensor) -> tuple[Tensor, Tensor]:
    """Transform a batch, and say what was done.

    In order: flips, zoom by SCALE^zoom, rotation by angle, stretch by SCALE^stretch along an axis and by its inverse
    across it, translation by SHIFT * shift sides. Flips are exact. The rest is one affine map with bicubic resampling
    (cubic convolution, a = -0.75) and reflected borders; bicubic can overshoot the range of the image a little.

    Args:
        images: (B, C, H, W) float.
        params: (B, 8) from `augment_params`. Keep them on the CPU: then which images move is known without waiting for
            the GPU. Untouched images are returned bit for bit.

    Returns:
        The images and the condition (B, 9) on their device: x-flip, y-flip, zoom, cos(angle) - 1, sin(angle),
        stretch cos(axis), stretch sin(axis), x-shift, y-shift.
    """
    if params.shape != (len(images), 8):
        raise HeadwayError(
            f"Augmentation parameters have shape {tuple(params.shape)}: expected ({len(images)}, 8), one row for an image."
        )
    moved = params[:, ZOOM:].any(dim=1).nonzero().flatten()
    matrix = _inverse_map(params[moved], images.shape[-2], images.shape[-1])
    flips = params.to(images.device)[:, :2, None, None, None].bool()
    images = torch.where(flips[:, 0], images.flip(-1), images)
    images = torch.where(flips[:, 1], images.flip(-2), images)
    if len(moved):
        index = moved.to(images.device)
        grid = F.affine_grid(matrix.to(images), [len(moved), *images.shape[1:]], align_corners=False)
        moving = F.grid_sample(images[index], grid, mode="bicubic", padding_mode="reflection", align_corners=False)
        images = images.index_copy(0, index, moving)
    return images, condition(params).to(images.device)


def condition(params: Tensor) -> Tensor:
    """The vector (B, 9) that tells the network what `apply` does with params (B, 8); zero for nothing."""
    x_flip, y_flip, zoom, angle, stretch, axis, shift_x, shift_y = params.unbind(1)
    parts = [x_flip, y_flip, zoom, angle.cos() - 1, angle.sin(), stretch * axis.cos(), stretch * axis.sin()]
    return torch.stack([*parts, shift_x, shift_y], dim=1)


def _inverse_map(params: Tensor, height: int, width: int) -> Tensor:
    """Where each output pixel comes from, as (B, 2, 3) in affine_grid's coordinates (the image spans [-1, 1]^2).

    The forward map in pixels about the centre is y = A R s x + t with A = rot(axis) diag(k, 1/k) rot(-axis).
    """
    _, _, zoom, angle, stretch, axis, shift_x, shift_y = params.unbind(1)
    k = SCALE**stretch
    cos2, sin2, cross = axis.cos() ** 2, axis.sin() ** 2, axis.cos() * axis.sin()
    off = cross * (1 / k - k)
    unstretch = _matrix(cos2 / k + sin2 * k, off, off, sin2 / k + cos2 * k)
    unrotate = _matrix(angle.cos(), angle.sin(), -angle.sin(), angle.cos())
    linear = unrotate @ unstretch / (SCALE**zoom)[:, None, None]
    shift = SHIFT * torch.stack([shift_x * width, shift_y * height], dim=1)[:, :, None]
    half = torch.tensor([width / 2, height / 2])
    return torch.cat([linear * half, -linear @ shift], dim=2) / half[:, None]


def _matrix(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """(B,) four times -> (B, 2, 2), row by row."""
    return torch.stack([a, b, c, d], dim=1).reshape(-1, 2, 2)
