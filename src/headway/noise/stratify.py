"""Low-discrepancy quantiles: one in each n-th of the distribution, in random order."""

from __future__ import annotations

import torch
from torch import Tensor


def stratified(uniforms: Tensor) -> Tensor:
    """Quantiles (n,) of a block of n images from its independent uniforms (n, 2): q_i = (rank_i + jitter_i) / n.

    rank is a random permutation, the order of the first numbers, so that which image is noisy stays chance; jitter_i is the second
    number. Each q_i by itself is exactly uniform on (0, 1); together they are evenly spread, which lowers
    the variance of a block's mean loss. A pure function: what is keyed by image stays keyed by image.
    """
    uniforms = uniforms.double()
    rank = uniforms[:, 0].argsort()
    # The last jitter before 1 would round up to q = 1, an infinite sigma.
    return ((rank + uniforms[:, 1]) / len(uniforms)).clamp(max=1 - torch.finfo(torch.float64).eps)
