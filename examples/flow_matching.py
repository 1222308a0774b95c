"""A flow-matching loop (t in [0, 1], velocity eps - x0) with the curriculum on its continuous time, and momentum decay."""

import os

import torch
from torch import nn

import headway

steps, batch = int(os.environ.get("HEADWAY_EXAMPLE_STEPS", "2000")), 256
torch.manual_seed(0)
angles = torch.rand(10_000) * 2 * torch.pi
circle = torch.stack([angles.cos(), angles.sin()], 1)
network = nn.Sequential(nn.Linear(3, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)

noise = headway.CurriculumTimesteps(continuous=True, horizon=0.7)
momentum = headway.MomentumDecay(optimizer, total_steps=steps)

for step in range(steps):
    x0 = circle[torch.randint(len(circle), (batch,))]
    eps = torch.randn_like(x0)
    t = noise.sample(batch, progress=step / steps)[:, None]
    x = (1 - t) * x0 + t * eps
    loss = (network(torch.cat([x, t], 1)) - (eps - x0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    momentum.step()

with torch.no_grad():
    x = torch.randn(1000, 2)
    for i in range(100, 0, -1):
        t = torch.full((1000, 1), i / 100)
        x = x - network(torch.cat([x, t], 1)) / 100
print(f"loss {loss.item():.3f}; radius of the samples {x.norm(dim=1).mean():.3f} (the circle's is 1)")
