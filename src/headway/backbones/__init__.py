"""Networks F(x, c_noise, labels, augment) by name, built over diffusers' UNet2DModel and DiTTransformer2DModel."""

from headway.backbones.presets import PRESETS, NetworkPreset, build, flops

__all__ = ["PRESETS", "NetworkPreset", "build", "flops"]
