"""The weakest model worth the name, for comparison: a Gaussian over pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from headway.data import ImageSet


def gaussian_baseline(train: ImageSet, n: int, seed: int = 0) -> Tensor:
    """n samples float32 (n, C, H, W) of the Gaussian with the mean and covariance of the training pixels, cut to [-1, 1].

    A model should beat it: it knows no more than colours and which pixels go together. Of a large set a random part
    stands for all: 8,192 images, fewer where one image has more than 32,768 values.
    """
    return torch.cat([torch.empty(0, *train.images.shape[1:]), *gaussian_batches(train, n, seed)])


def gaussian_batches(train: ImageSet, n: int, seed: int) -> Iterator[Tensor]:
    """Samples mean + X^T z / sqrt(N - 1), X the N centred images as rows and z standard normal: exact, of any size."""
    most = min(8192, 2**28 // train.images[0].size)
    rows = np.sort(np.random.default_rng(seed).permutation(len(train))[:most])
    data = train.pixels(rows).flatten(1)
    mean = data.mean(dim=0)
    data -= mean
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, n, 256):
        z = torch.randn(min(256, n - start), len(data), generator=generator)
        samples = mean + z @ data / math.sqrt(max(1, len(data) - 1))
        yield samples.clamp(-1, 1).view(-1, *train.images.shape[1:])
