"""A convolutional generator and discriminator of one family (DCGAN, SNGAN), built for images of any shape.

Both halve or double the side with 4x4 convolutions of stride 2 until the smaller side is 4 to 8 pixels, and have the more
channels the smaller the side (Radford et al. 2016; Miyato et al. 2018, table 3). Sides that do not halve so often are centred
on a canvas that does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from headway.backbones.parts import on_canvas
from headway.sampling import seed_noise
from headway.sampling.seeding import check_seeds

Norm = Literal["batch", "none"]
Init = Literal["normal", "orthogonal", "default"]
Shape = tuple[int, int, int]
Weighted = nn.Linear | nn.Conv2d | nn.ConvTranspose2d

MAX_FACTOR = 8  # channels at the smallest side, as a multiple of those at the full one
STATISTICS_LATENTS = 1024


class Generator(nn.Module):
    """G(z): images (n, C, H, W) in (-1, 1) from latents z (n, latent), standard normal.

    Args:
        shape: (C, H, W). width: channels at the full side; they double with each halving, up to eightfold.
        depth: convolutions a side, the resampling one included. latent: length of z. norm: before each ReLU.
    """

    def __init__(self, shape: Shape, *, width: int, depth: int, latent: int, norm: Norm) -> None:
        super().__init__()
        self.shape, self.latent = shape, latent
        small, widths = _plan(shape, width)
        self.start = (widths[-1], *small)
        self.project = nn.Sequential(nn.Linear(latent, math.prod(self.start)), nn.Unflatten(1, self.start))
        layers: list[nn.Module] = _activated(widths[-1], norm)
        for wide, narrow in zip(widths[:0:-1], widths[-2::-1], strict=True):
            layers += [nn.ConvTranspose2d(wide, narrow, 4, 2, 1), *_activated(narrow, norm)]
            for _ in range(depth - 1):
                layers += [nn.Conv2d(narrow, narrow, 3, 1, 1), *_activated(narrow, norm)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(widths[0], shape[0], 3, 1, 1), nn.Tanh())

    def forward(self, z: Tensor) -> Tensor:
        images: Tensor = self.layers(self.project(z))
        return on_canvas(images, *self.shape[1:])

    @torch.no_grad()
    def images(self, seeds: Iterable[int], batch: int = 256) -> Tensor:
        """One image a seed, (N, C, H, W) float32 on the CPU; in eval mode, and left in the mode in which it was.

        A seed's latent is drawn for it alone, so that the batch and the other seeds change rounding only.
        """
        seeds, training = check_seeds(seeds), self.training
        device = next(self.parameters()).device
        self.eval()
        try:
            parts = [self(self.latents(seeds[i : i + batch]).to(device)).cpu() for i in range(0, len(seeds), batch)]
        finally:
            self.train(training)
        return torch.cat(parts)

    def latents(self, seeds: Sequence[int]) -> Tensor:
        """The latents (N, latent) of seeds, float32 on the CPU; see :func:`headway.sampling.seed_noise`."""
        return seed_noise(seeds, (self.latent,), 0).float()

    @torch.no_grad()
    def settle(self) -> None:
        """Measure batch normalisation's statistics anew, on fixed latents: those of averaged weights are nobody's else.

        A function of the weights alone ("standing statistics", Brock et al. 2019, section 4.2).
        """
        norms = [module for module in self.modules() if isinstance(module, nn.BatchNorm2d)]
        if not norms:
            return
        training = self.training
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches that follow
        device = next(self.parameters()).device
        self.train()
        for first in range(0, STATISTICS_LATENTS, 256):
            self(seed_noise(range(first, first + 256), (self.latent,), 1).float().to(device))
        self.train(training)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


class Discriminator(nn.Module):
    """D(x): one number an image, (n,), large for real ones.

    Without normalisation over the batch, so that each number is a function of its own image.

    Args:
        shape, width, depth: as :class:`Generator` has them.
    """

    def __init__(self, shape: Shape, *, width: int, depth: int) -> None:
        super().__init__()
        small, widths = _plan(shape, width)
        self.canvas = [side << (len(widths) - 1) for side in small]
        layers: list[nn.Module] = [nn.Conv2d(shape[0], widths[0], 3, 1, 1), nn.LeakyReLU(0.1)]
        for narrow, wide in itertools.pairwise(widths):
            for _ in range(depth - 1):
                layers += [nn.Conv2d(narrow, narrow, 3, 1, 1), nn.LeakyReLU(0.1)]
            layers += [nn.Conv2d(narrow, wide, 4, 2, 1), nn.LeakyReLU(0.1)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * math.prod(small), 1))

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.layers(on_canvas(images, *self.canvas))
        return output.squeeze(1)


def build(
    shape: Shape,
    *,
    width: int = 16,
    depth: int = 1,
    latent: int = 64,
    norm: Norm = "batch",
    spectral: bool = True,
    init: Init = "orthogonal",
    seed: int = 0,
) -> tuple[Generator, Discriminator]:
    """A generator and a discriminator of the same width and depth, in training mode.

    Args:
        spectral: spectral normalisation of the discriminator (Miyato et al. 2018): every weight, as a matrix
            (out, in x k x k), is divided by its largest singular value, tracked by a power iteration a forward pass.
        init: of the weights: "normal" N(0, 0.02^2) with zero biases (DCGAN), "orthogonal" with zero biases, or torch's own.
        seed: of the weights. The global random state is neither read nor moved.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        generator = Generator(shape, width=width, depth=depth, latent=latent, norm=norm)
        discriminator = Discriminator(shape, width=width, depth=depth)
        for layer in [*_weighted(generator), *_weighted(discriminator)]:
            _initialise(layer, init)
        if spectral:
            for layer in _weighted(discriminator):
                spectral_norm(layer)
    return generator, discriminator


def _plan(shape: Shape, width: int) -> tuple[tuple[int, int], list[int]]:
    """The smallest sides, and the channels at each side from the full one down."""
    height, size = shape[1:]
    halvings = max(1, int(math.log2(max(min(height, size), 4) / 4)))
    small = -(-height >> halvings), -(-size >> halvings)
    return small, [width * min(2**i, MAX_FACTOR) for i in range(halvings + 1)]


def _activated(channels: int, norm: Norm) -> list[nn.Module]:
    return [*([nn.BatchNorm2d(channels)] if norm == "batch" else []), nn.ReLU()]


def _weighted(network: nn.Module) -> list[Weighted]:
    return [m for m in network.modules() if isinstance(m, Weighted)]


def _initialise(layer: Weighted, init: Init) -> None:
    if init == "default":
        return
    if init == "normal":
        nn.init.normal_(layer.weight, std=0.02)
    else:
        nn.init.orthogonal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
