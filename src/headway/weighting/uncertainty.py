"""The learnt weight of EDM2: a network of one layer that follows the logarithm of the loss at every noise level."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError


class UncertainLoss(NamedTuple):
    """Per image, all (n,): what to minimise (it can be negative); the loss itself; u(sigma)."""

    objective: Tensor
    loss: Tensor
    u: Tensor


class Uncertainty(nn.Module):
    """L / exp(u(sigma)) + u(sigma), with u learnt beside the denoiser (Karras et al. 2024, EDM2, arXiv 2312.02696).

    For a given loss the best u is ln L, and there the objective's gradient in the denoiser is that of ln L: every noise level
    counts the same. u is linear in random Fourier features of c_noise = ln(sigma) / 4 and starts at 0, where the objective is the
    loss. It is for training only: give its parameters to the optimiser and its state to the checkpoint.

    Args:
        features: number of random features. seed: of the features, so that all processes have the same.
    """

    frequencies: Tensor
    phases: Tensor

    def __init__(self, features: int = 128, seed: int = 0) -> None:
        super().__init__()
        if features < 1:
            raise HeadwayError(f"The learnt weight needs at least one feature, got {features}.")
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("frequencies", 2 * math.pi * torch.randn(features, generator=generator))
        self.register_buffer("phases", 2 * math.pi * torch.rand(features, generator=generator))
        # A vector, not a matrix of one row: Muon would orthogonalise that.
        self.weight = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, sigma: Tensor) -> Tensor:
        """u(sigma), of sigma's shape, in the module's dtype; sigma > 0."""
        c_noise = (0.25 * sigma.log()).to(self.frequencies.dtype)[..., None]
        features = math.sqrt(2 / len(self.frequencies)) * (c_noise * self.frequencies + self.phases).cos()
        return features @ self.weight + self.bias

    def loss(self, loss: Tensor, sigma: Tensor) -> UncertainLoss:
        """The objective for losses (n,), each already weighted by w(sigma) of the framework or of :func:`weight_for`."""
        u = self(sigma)
        return UncertainLoss(loss * (-u).exp() + u, loss.detach(), u.detach())
