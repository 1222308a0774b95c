"""Transformers over diffusers' DiTTransformer2DModel (Peebles and Xie 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from diffusers.models.embeddings import TimestepEmbedding, Timesteps
from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel
from torch import Tensor, nn

from headway.backbones.parts import Condition, Positive, on_canvas, round_up
from headway.errors import HeadwayError


@dataclass(frozen=True, kw_only=True)
class DiTPreset:
    """What decides a transformer; every field can be overridden in `build`."""

    width: Positive
    """Channels of a token; a multiple of 4 and of heads."""
    depth: Positive
    """Transformer blocks."""
    heads: Positive
    """Attention heads."""
    patch: Positive
    """Side of the square of pixels that is one token."""


class _Given(nn.Module):
    """Stands where each block would compute an embedding of its own, and passes on the one that all blocks share."""

    def forward(self, embedding: Tensor, class_labels: None = None, hidden_dtype: None = None) -> Tensor:
        return embedding


class DiT(nn.Module):
    """F(x, c_noise, labels, augment) -> (B, C, H, W). Images are centred on a square canvas of whole tokens.

    diffusers gives every block its own noise and label embedding, with a label dropout of its own; here one embedding
    serves all blocks, as in the paper, and labels are dropped by whoever sets them to -1.
    """

    def __init__(
        self,
        preset: DiTPreset,
        *,
        channels: int,
        size: tuple[int, int],
        classes: int = 0,
        augment_dim: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        width = preset.width
        if width % 4 or width % preset.heads:
            raise HeadwayError(f"width={width} must be a multiple of 4 and of heads={preset.heads}.")
        self.patch = preset.patch
        self.noise = nn.Sequential(Timesteps(256, True, 1), TimestepEmbedding(256, width))
        self.condition = Condition(classes, augment_dim, width)
        self.dit = DiTTransformer2DModel(
            num_attention_heads=preset.heads,
            attention_head_dim=width // preset.heads,
            in_channels=channels,
            num_layers=preset.depth,
            dropout=dropout,
            sample_size=round_up(max(size), preset.patch),
            patch_size=preset.patch,
            num_embeds_ada_norm=1,
        )
        for block in self.dit.transformer_blocks:
            block.norm1.emb = _Given()
        self._initialise()

    def _initialise(self) -> None:
        """The paper's start: every block is the identity and the output is zero (adaLN-Zero)."""
        for name, parameter in self.dit.named_parameters():
            if parameter.ndim == 1 or name.endswith(("norm1.linear.weight", "proj_out_1.weight", "proj_out_2.weight")):
                nn.init.zeros_(parameter)
            else:
                nn.init.xavier_uniform_(parameter.flatten(1))
        for parameter in self.noise.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

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
        side = round_up(max(height, width), self.patch)
        embedding = self.noise(c_noise)
        condition = self.condition(x, labels, augment)
        if condition is not None:
            embedding = embedding + condition
        return on_canvas(self.dit(on_canvas(x, side, side), embedding).sample, height, width)
