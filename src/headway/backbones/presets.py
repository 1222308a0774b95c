"""Networks by name: the presets, `build`, and the count of their operations."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from headway.backbones.dit import DiT, DiTPreset
from headway.backbones.unet import UNet, UNetPreset
from headway.errors import HeadwayError, unknown

NetworkPreset = UNetPreset | DiTPreset

_DDPMPP = UNetPreset(model_channels=128, channel_mult=(2, 2, 2), blocks=4, attention=(16,), family="ddpmpp")
_NCSNPP = replace(_DDPMPP, family="ncsnpp", embedding="fourier")

PRESETS: dict[str, NetworkPreset] = {
    "tiny": UNetPreset(model_channels=48, channel_mult=(1,), blocks=1, patch=2, middle=False),
    "small": UNetPreset(model_channels=32, channel_mult=(1, 2), blocks=1, patch=2),
    "base": UNetPreset(model_channels=96, channel_mult=(1, 2, 2), blocks=2, attention=(16,)),
    "large": UNetPreset(
        model_channels=192, channel_mult=(1, 1, 2, 3, 4), blocks=2, attention=(16, 8), head_channels=64
    ),
    "ddpmpp": _DDPMPP,
    "ddpmpp-64": replace(_DDPMPP, channel_mult=(1, 2, 2, 2)),
    "ncsnpp": _NCSNPP,
    "ncsnpp-64": replace(_NCSNPP, channel_mult=(1, 2, 2, 2)),
    "dit-tiny": DiTPreset(width=128, depth=4, heads=4, patch=4),
    "dit-s": DiTPreset(width=384, depth=12, heads=6, patch=2),
    "dit-b": DiTPreset(width=768, depth=12, heads=12, patch=2),
}


def build(
    preset: str,
    *,
    channels: int,
    size: tuple[int, int],
    classes: int = 0,
    augment_dim: int = 0,
    dropout: float = 0.0,
    patch: int | None = None,
    seed: int = 0,
    **overrides: Any,
) -> nn.Module:
    """A network F(x, c_noise, labels=None, augment=None) with fresh weights.

    Args:
        preset: a name in `PRESETS`.
        channels: of the images.
        size: (H, W) of the images; any size, padded inside to what the network needs.
        classes: number of classes; 0 for a network without labels.
        augment_dim: length of the augmentation vector, 9 for `headway.data.augment`; 0 for none.
        dropout: probability, in [0, 1).
        patch: overrides the preset's patch.
        seed: of the weights. The global random state is neither read nor moved.
        overrides: any other field of the preset, such as `channel_mult=(1, 2, 2, 2)`.

    Raises:
        HeadwayError: for an unknown preset or override, or a value that makes no network.
    """
    if preset not in PRESETS:
        raise unknown("network preset", preset, PRESETS)
    if min(channels, *size) < 1 or min(classes, augment_dim) < 0:
        raise HeadwayError(
            f"A network for images of {channels} channels and size {size} with {classes} classes and an augmentation vector "
            f"of {augment_dim} cannot be: channels and size start at 1, classes and augment_dim at 0."
        )
    if not 0 <= dropout < 1:
        raise HeadwayError(f"dropout={dropout} must be at least 0 and less than 1.")
    chosen = _override(preset, overrides if patch is None else {**overrides, "patch": patch})
    shape: dict[str, Any] = {"channels": channels, "size": size, "classes": classes, "augment_dim": augment_dim}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would reseed every GPU as well
        if isinstance(chosen, UNetPreset):
            return UNet(chosen, dropout=dropout, **shape)
        return DiT(chosen, dropout=dropout, **shape)


def _override(name: str, overrides: dict[str, Any]) -> NetworkPreset:
    """The preset with some fields replaced, every field checked."""
    preset = PRESETS[name]
    known = {field.name: getattr(preset, field.name) for field in fields(preset)}
    for key in overrides:
        if key not in known:
            raise unknown(f"setting of network preset {name!r}", key, known)
    try:
        return TypeAdapter(type(preset)).validate_python({**known, **overrides})
    except ValidationError as error:
        first = error.errors()[0]
        setting = first["loc"][0]
        raise HeadwayError(
            f"Setting {setting!r} of network preset {name!r} was {overrides[str(setting)]!r}: {first['msg']}."
        ) from error


def flops(network: nn.Module, channels: int, size: tuple[int, int]) -> int:
    """Floating-point operations of one forward pass for one image, a multiply-add counting as two.

    Matrix products, convolutions and attention are counted, element-wise work is not (`torch.utils.flop_counter`).
    Nothing is computed: the network runs on shapes alone (the meta device), wherever its weights are.
    """
    tensors = itertools.chain(network.named_parameters(), network.named_buffers())
    shapes = {name: tensor.to("meta") for name, tensor in tensors}
    image, c_noise = torch.zeros(1, channels, *size, device="meta"), torch.zeros(1, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        functional_call(network, shapes, (image, c_noise))
    return int(counter.get_total_flops())
