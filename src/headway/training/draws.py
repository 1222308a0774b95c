"""The randomness of training, keyed by image: the same bits whatever the batch, the accumulation, the number of processes.

The global image index i counts the images of a run from 0. What image i is, its noise, its sigma's quantile, its flip and its
label drop are drawn in blocks of 64 consecutive indices, each from a generator keyed by (what, seed, block). A resumed run,
or another rank, makes the same blocks again: there is no state to save. The numbers are made on the CPU (numpy's Philox, whose
key has 128 bits; torch's CPU generator keeps 32 bits of a seed), so they do not depend on the device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headway.noise import stratified

BLOCK = 64


def key(*parts: object) -> bytes:
    """128 bits from what is being drawn; different parts give independent streams."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()


def _generator(*parts: object) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key(*parts), np.uint64)))


class Draws:
    """All draws of a run. ``start`` and ``stop`` are global image indices; every method covers images start .. stop - 1.

    Args:
        seed: of the run. images: number of training images. shape: (C, H, W).
    """

    def __init__(self, seed: int, images: int, shape: tuple[int, int, int]) -> None:
        self.seed = seed
        self.images = images
        self.shape = shape
        self._orders: dict[int, Tensor] = {}

    def indices(self, start: int, stop: int) -> Tensor:
        """Which images: each epoch is a permutation of all of them. (n,) int64."""
        parts = []
        for epoch in range(start // self.images, (stop - 1) // self.images + 1):
            begin = epoch * self.images
            parts.append(self._order(epoch)[max(0, start - begin) : stop - begin])
        return torch.cat(parts)

    def noise(self, start: int, stop: int) -> Tensor:
        """Standard normal (n, C, H, W) float32."""
        shape = (BLOCK, *self.shape)
        return self._blocks("noise", start, stop, lambda g: torch.from_numpy(g.standard_normal(shape, np.float32)))

    def uniforms(self, start: int, stop: int) -> Tensor:
        """(n, 3) float64 in (0, 1): the quantile of sigma, the flip, the label drop."""
        draw = self._blocks("uniforms", start, stop, lambda g: torch.from_numpy(g.random((BLOCK, 3))))
        return draw.clamp(min=torch.finfo(torch.float64).tiny)

    def quantiles(self, start: int, stop: int, stratify: bool) -> Tensor:
        """(n,) float64 in (0, 1): the quantile of sigma, independent or one in each 64th of a block's distribution."""
        if not stratify:
            return self.uniforms(start, stop)[:, 0]
        return self._blocks("strata", start, stop, lambda g: stratified(torch.from_numpy(g.random((BLOCK, 2)))))

    def torch_blocks(self, what: str, start: int, stop: int, draw: Callable[[int, torch.Generator], Tensor]) -> Tensor:
        """Draws of a function that wants a torch generator: ``draw(n, generator)`` gives one row an image."""

        def block(g: np.random.Generator) -> Tensor:
            return draw(BLOCK, torch.Generator().manual_seed(int(g.integers(2**63))))

        return self._blocks(what, start, stop, block)

    def _blocks(self, what: str, start: int, stop: int, draw: Callable[[np.random.Generator], Tensor]) -> Tensor:
        first = start // BLOCK
        parts = [draw(_generator(what, self.seed, block)) for block in range(first, (stop - 1) // BLOCK + 1)]
        return torch.cat(parts)[start - first * BLOCK : stop - first * BLOCK]

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            # A batch may span epochs, but none goes back: older orders than the last are of no more use.
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = torch.from_numpy(_generator("order", self.seed, epoch).permutation(self.images))
        return self._orders[epoch]
