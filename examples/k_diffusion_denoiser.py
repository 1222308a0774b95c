"""k-diffusion's Denoiser and its own loss: sigma from a Headway curriculum, any of Headway's weights, and momentum decay."""

import os

import k_diffusion as K
import torch
from diffusers import UNet2DModel

import headway
from headway.data import load
from headway.noise import LogNormal, clts

steps, batch, sigma_data = int(os.environ.get("HEADWAY_EXAMPLE_STEPS", "1000")), 64, 0.5


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
        self.unet = UNet2DModel(8, 1, 1, block_out_channels=(32, 64), norm_num_groups=8, **blocks)

    def forward(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return self.unet(x, 250 * sigma.log()).sample


torch.manual_seed(0)
images, _ = load("digits")
pixels = images.pixels()
denoiser = K.Denoiser(Inner(), sigma_data=sigma_data, weighting="karras")  # weighs its network's output by 1
optimizer = torch.optim.AdamW(denoiser.parameters(), lr=1e-3)

density = clts(LogNormal(-1.2, 1.2), horizon=0.7)
momentum = headway.MomentumDecay(optimizer, total_steps=steps)

for step in range(steps):
    x0 = pixels[torch.randint(len(pixels), (batch,))]
    sigma = density.icdf(torch.rand(batch, dtype=torch.float64).clamp(min=1e-9), step / steps).float()
    weight = headway.min_snr(sigma**-2, prediction="edm", sigma_data=sigma_data)
    loss = (weight * denoiser.loss(x0, torch.randn_like(x0), sigma)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    momentum.step()

sigmas = K.sampling.get_sigmas_karras(18, 0.002, 80.0)
x = K.sampling.sample_heun(denoiser, 80 * torch.randn(64, 1, 8, 8), sigmas, disable=True)
print(
    f"loss {loss.item():.3f}; samples' mean {x.mean():.2f}, std {x.std():.2f}; digits' {pixels.mean():.2f}, {pixels.std():.2f}"
)
