"""Your own network in your own loop: EDM with momentum in a page, sampled with Heun. Plain torch around headway's maths."""

import os

import torch
from torch import nn

import headway
from headway.denoiser import expand
from headway.weighting import warmed_up

steps, batch = int(os.environ.get("HEADWAY_EXAMPLE_STEPS", "2000")), 128


class Network(nn.Module):
    """Any module F(x, c_noise, labels) will do; this one works on 2-d points shaped as (1, 1, 2) images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))

    def forward(self, x: torch.Tensor, c_noise: torch.Tensor, labels: torch.Tensor | None) -> torch.Tensor:
        return self.layers(torch.cat([x.flatten(1), c_noise[:, None]], 1)).reshape(x.shape)


angles = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) * 2 * torch.pi
circle = torch.stack([angles.cos(), angles.sin()], 1).reshape(-1, 1, 1, 2)

fw = headway.framework("edm", momentum="released", sigma_data=float(circle.std()))
torch.manual_seed(0)
denoiser = headway.Denoiser(Network(), fw, shape=(1, 1, 2))
optimizer = torch.optim.Adam(denoiser.parameters(), lr=2e-3)

for step in range(steps):
    x0 = circle[torch.randint(len(circle), (batch,))]
    sigma = fw.density.icdf(torch.rand(batch, dtype=torch.float64).clamp(min=1e-9))
    x = x0 + expand(sigma, x0).float() * torch.randn_like(x0)
    error = (denoiser(x, sigma) - x0).square().flatten(1).mean(1)
    loss = (warmed_up(fw.weight(sigma), step * batch, length=steps * batch // 20) * error).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

drawn = headway.sample(denoiser, seeds=range(256), solver="heun", steps=18)
radius = drawn.images.flatten(1).norm(dim=1)
print(f"{drawn.nfe} evaluations a sample; radius {radius.mean():.3f} +- {radius.std():.3f} (the circle's is 1)")
