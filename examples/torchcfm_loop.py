"""torchcfm's own loop and network with the curriculum on its time, and momentum decay. (See docs/trainers.md to install it.)"""

import os

import torch
from torchcfm import ConditionalFlowMatcher
from torchcfm.models.unet import UNetModel

import headway
from headway.data import load

steps, batch = int(os.environ.get("HEADWAY_EXAMPLE_STEPS", "1000")), 64
torch.manual_seed(0)
images, _ = load("digits")
pixels = images.pixels()
network = UNetModel(dim=(1, 8, 8), num_channels=32, num_res_blocks=1, channel_mult=(1, 2), attention_resolutions="4")
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
matcher = ConditionalFlowMatcher(sigma=0.0)

noise = headway.CurriculumTimesteps(continuous=True, horizon=0.7)
momentum = headway.MomentumDecay(optimizer, total_steps=steps)

for step in range(steps):
    x1 = pixels[torch.randint(len(pixels), (batch,))]
    x0 = torch.randn_like(x1)
    # torchcfm goes from noise x0 at t = 0 to data x1 at t = 1; the curriculum counts from clean 0 to noise 1.
    t = 1 - noise.sample(batch, progress=step / steps)
    t, xt, ut = matcher.sample_location_and_conditional_flow(x0, x1, t)
    loss = (network(t, xt) - ut).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    momentum.step()

with torch.no_grad():
    x = torch.randn(64, 1, 8, 8)
    for i in range(50):
        x = x + network(torch.full((64,), i / 50), x) / 50
print(
    f"loss {loss.item():.3f}; samples' mean {x.mean():.2f}, std {x.std():.2f}; digits' {pixels.mean():.2f}, {pixels.std():.2f}"
)
