"""The two parts of NCSN++ that UNet2DModel lacks: FIR resampling and the residual input path (Song et al. 2021, app. H)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fir(nn.Module):
    """Halves or doubles the resolution with the separable filter [1, 3, 3, 1] / 8 instead of a box."""

    kernel: Tensor

    def __init__(self, direction: str) -> None:
        """
        Args:
            direction: "down" or "up".
        """
        super().__init__()
        taps = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
        self.up = direction == "up"
        self.register_buffer("kernel", torch.outer(taps, taps)[None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H/2, W/2), or (B, C, 2H, 2W)."""
        channels = images.shape[1]
        kernel = self.kernel.to(images.dtype).expand(channels, 1, 4, 4)
        if self.up:  # only one input pixel in four is under the filter, so it is four times as strong
            return F.conv_transpose2d(images, 4 * kernel, stride=2, padding=1, groups=channels)
        return F.conv2d(images, kernel, stride=2, padding=1, groups=channels)


class ResidualInput(nn.Module):
    """A level on the way down whose result is averaged with a filtered copy of what came in above it.

    UNet2DModel hands the running copy to every block that has a `skip_conv`, which is what makes this fit.
    """

    def __init__(self, block: nn.Module, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.block = block
        self.skip_conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.fir = Fir("down")

    def forward(
        self, hidden_states: Tensor, temb: Tensor, skip_sample: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
        hidden, states = self.block(hidden_states, temb)
        hidden = (hidden + self.fir(self.skip_conv(skip_sample))) / math.sqrt(2)
        return hidden, (*states[:-1], hidden), hidden


def make_residual(unet: Any) -> None:
    """Give a UNet2DModel with residual-block resampling the FIR filter and the residual input path, in place."""
    in_channels = unet.config.in_channels
    for index, block in enumerate(unet.down_blocks[:-1]):
        block.downsamplers[0].downsample = Fir("down")
        out_channels = block.downsamplers[0].out_channels
        unet.down_blocks[index] = ResidualInput(block, in_channels, out_channels)
        in_channels = out_channels
    for block in unet.up_blocks[:-1]:
        block.upsamplers[0].upsample = Fir("up")
