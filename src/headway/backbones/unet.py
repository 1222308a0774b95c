"""U-Nets over diffusers' UNet2DModel: the plain one, and EDM's DDPM++ and NCSN++ (Song et al. 2021; Karras et al. 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch.nn.functional as F
from diffusers.models.attention_processor import Attention
from diffusers.models.embeddings import GaussianFourierProjection, TimestepEmbedding
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.unets.unet_2d import UNet2DModel
from pydantic import Field
from torch import Tensor, nn

from headway.backbones.parts import Condition, Positive, on_canvas, round_up
from headway.backbones.residual import make_residual
from headway.errors import HeadwayError


@dataclass(frozen=True, kw_only=True)
class UNetPreset:
    """What decides a U-Net; every field can be overridden in `build`."""

    model_channels: Positive
    """Width of the first level before its multiplier; a multiple of 4, above 128 of 32."""
    channel_mult: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Width of each level over model_channels, finest level first."""
    blocks: Positive
    """Residual blocks per level on the way down (one more on the way up)."""
    attention: tuple[Positive, ...] = ()
    """Resolutions with self-attention: r stands for the level whose longer side is at most r and above r/2."""
    embedding: Literal["positional", "fourier"] = "positional"
    """How c_noise enters: sines of 10,000 geometric periods, or random Fourier features of scale 16."""
    family: Literal["plain", "ddpmpp", "ncsnpp"] = "plain"
    """plain: stock UNet2DModel; ddpmpp: EDM's DDPM++; ncsnpp: that with FIR resampling and the residual input path."""
    patch: Positive = 1
    """Side of the pixel blocks folded into channels before the network and unfolded after it."""
    middle: bool = True
    """Whether there is a middle block at the coarsest level."""
    middle_attention: bool = True
    """Whether the middle block has self-attention."""
    head_channels: Positive | None = None
    """Channels per attention head; None for one head."""
    init: Literal["xavier", "orthogonal", "torch"] = "xavier"
    """Law of the first weights: EDM's Xavier, or orthogonal, both with silent ends of branches; torch: the layers' own."""


class UNet(nn.Module):
    """F(x, c_noise, labels, augment) -> (B, C, H, W) for images of any size."""

    def __init__(
        self,
        preset: UNetPreset,
        *,
        channels: int,
        size: tuple[int, int],
        classes: int = 0,
        augment_dim: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check(preset)
        width = 4 * preset.model_channels
        attends = _attention_levels(preset, size)
        groups = min(32, preset.model_channels // 4)
        edm = preset.family != "plain"
        down, up = ("ResnetDownsampleBlock2D", "ResnetUpsampleBlock2D") if edm else ("DownBlock2D", "UpBlock2D")
        self.patch = preset.patch
        self.multiple = preset.patch * 2 ** (len(preset.channel_mult) - 1)
        self.condition = Condition(classes, augment_dim, width)
        self.unet = UNet2DModel(
            in_channels=channels * preset.patch**2,
            out_channels=channels * preset.patch**2,
            time_embedding_dim=width,
            freq_shift=1,
            block_out_channels=tuple(preset.model_channels * m for m in preset.channel_mult),
            layers_per_block=preset.blocks,
            down_block_types=tuple("AttnDownBlock2D" if a else down for a in attends),
            up_block_types=tuple("AttnUpBlock2D" if a else up for a in reversed(attends)),
            downsample_type="resnet" if edm else "conv",
            upsample_type="resnet" if edm else "conv",
            mid_block_type="UNetMidBlock2D" if preset.middle else None,
            add_attention=preset.middle_attention,
            attention_head_dim=preset.head_channels,
            resnet_time_scale_shift="default" if edm else "scale_shift",
            norm_num_groups=groups,
            attn_norm_num_groups=groups,
            norm_eps=1e-6,
            dropout=dropout,
            class_embed_type="identity" if classes or augment_dim else None,
        )
        if preset.embedding == "fourier":
            # UNet2DModel's own "fourier" takes the logarithm of its input and divides the output by it.
            self.unet.time_proj = GaussianFourierProjection(preset.model_channels, scale=16.0, log=False)
            self.unet.time_embedding = TimestepEmbedding(2 * preset.model_channels, width)
        if edm:
            _make_ddpmpp(self.unet)
        if preset.family == "ncsnpp":
            make_residual(self.unet)
        if preset.init != "torch":
            _initialise(self.unet, nn.init.xavier_uniform_ if preset.init == "xavier" else nn.init.orthogonal_)

    def forward(
        self, x: Tensor, c_noise: Tensor, labels: Tensor | None = None, augment: Tensor | None = None
    ) -> Tensor:
        """
        Args:
            x: (B, C, H, W), already scaled by c_in.
            c_noise: (B,) float.
            labels: (B,) long, -1 for no label; None for no label anywhere.
            augment: (B, augment_dim) float; None for not augmented.
        """
        height, width = x.shape[-2:]
        h = on_canvas(x, round_up(height, self.multiple), round_up(width, self.multiple))
        h = F.pixel_unshuffle(h, self.patch)
        h = self.unet(h, c_noise, self.condition(x, labels, augment)).sample
        return on_canvas(F.pixel_shuffle(h, self.patch), height, width)


def _check(preset: UNetPreset) -> None:
    multiple = 32 if preset.model_channels > 128 else 4
    if preset.model_channels % multiple:
        raise HeadwayError(
            f"model_channels={preset.model_channels} does not divide into the groups of the normalisation: "
            f"give a multiple of {multiple}."
        )
    heads = preset.head_channels
    if heads is not None and any(preset.model_channels * m % heads for m in preset.channel_mult):
        raise HeadwayError(
            f"head_channels={heads} does not divide the level widths "
            f"{[preset.model_channels * m for m in preset.channel_mult]}: give a divisor of all of them."
        )


def _attention_levels(preset: UNetPreset, size: tuple[int, int]) -> list[bool]:
    """Which levels attend. A resolution that no level has is an error: it would silently train another network."""
    multiple = preset.patch * 2 ** (len(preset.channel_mult) - 1)
    sides = [round_up(max(size), multiple) // preset.patch // 2**level for level in range(len(preset.channel_mult))]
    for resolution in preset.attention:
        if not any(resolution / 2 < side <= resolution for side in sides):
            raise HeadwayError(
                f"attention at {resolution} has no level: a {size[0]}x{size[1]} image has levels of side "
                f"{', '.join(map(str, sides))}. Give attention=[] or one of those."
            )
    return [any(resolution / 2 < side <= resolution for resolution in preset.attention) for side in sides]


def _make_ddpmpp(unet: Any) -> None:
    """Divide every residual sum by sqrt(2), and on the way up let only the last block of a level attend."""
    for module in unet.modules():
        if isinstance(module, ResnetBlock2D):
            module.output_scale_factor = math.sqrt(2)
        elif isinstance(module, Attention):
            module.rescale_output_factor = math.sqrt(2)
    for level in unet.up_blocks:
        for index in range(len(getattr(level, "attentions", ())) - 1):
            level.attentions[index] = nn.Identity()


def _initialise(unet: nn.Module, law: Callable[..., Tensor]) -> None:
    """EDM's start: weights by ``law`` and zero biases, with what ends a residual branch or the network scaled to 1e-5."""
    for name, parameter in unet.named_parameters():
        if name.endswith(("conv2.weight", "to_out.0.weight", "conv_out.weight")):
            law(parameter, gain=1e-5)
        elif name.endswith(("to_q.weight", "to_k.weight", "to_v.weight")):
            law(parameter, gain=math.sqrt(0.2))
        elif parameter.ndim > 1:
            law(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
