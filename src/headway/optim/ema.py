"""Exponential averages of the weights, with half-lives in images."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError


def ema_decay(nimg: int, batch: int, half_life: float, rampup: float = 0.05) -> float:
    """How much of the old average a step keeps: 0.5^(batch / min(half_life, rampup * nimg)) (Karras et al. 2022, appendix F).

    Args:
        nimg: images seen before this step; at 0 the average becomes a copy of the weights. batch: images of this step.
        half_life: in images. rampup: share of the images seen that the half-life may not exceed; 0 for no ramp-up.
    """
    if nimg < 0 or batch <= 0 or half_life <= 0:
        raise HeadwayError(f"EMA needs nimg >= 0, batch > 0, half_life > 0, got {nimg}, {batch}, {half_life}.")
    effective = min(half_life, rampup * nimg) if rampup > 0 else half_life
    return 0.5 ** (batch / effective) if effective > 0 else 0.0


class WeightAverage:
    """One weight average: a copy of the network that follows it. The network itself is never touched.

    Args:
        network: the bare network (not wrapped for several processes, not compiled). half_life: in images.
    """

    def __init__(self, network: nn.Module, half_life: int, rampup: float = 0.05) -> None:
        self.half_life = half_life
        self.rampup = rampup
        self.network = copy.deepcopy(network).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, network: nn.Module, nimg: int, batch: int) -> None:
        """Follow the weights after a step of ``batch`` images that began at ``nimg``. Buffers are copied."""
        decay = ema_decay(nimg, batch, self.half_life, self.rampup)
        averages: list[Tensor] = [p.data for p in self.network.parameters()]
        weights: list[Tensor] = [p.data for p in network.parameters()]
        torch._foreach_lerp_(averages, weights, 1 - decay)
        for average, buffer in zip(self.network.buffers(), network.buffers(), strict=True):
            average.copy_(buffer)
