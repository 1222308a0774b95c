"""A DDPM loop with diffusers' scheduler and network, made faster in three lines: curriculum, momentum decay, min-SNR."""

import os

import torch
from diffusers import DDPMScheduler, UNet2DModel

import headway
from headway.data import load

steps, batch = int(os.environ.get("HEADWAY_EXAMPLE_STEPS", "1000")), 64
torch.manual_seed(0)
images, _ = load("digits")
pixels = images.pixels()
network = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    block_out_channels=(32, 64),
    down_block_types=("DownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "UpBlock2D"),
    norm_num_groups=8,
)
scheduler = DDPMScheduler(num_train_timesteps=1000, prediction_type="v_prediction")
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

noise = headway.CurriculumTimesteps(scheduler, horizon=0.7)
momentum = headway.MomentumDecay(optimizer, total_steps=steps, warmup_steps=min(50, steps // 2))

for step in range(steps):
    x0 = pixels[torch.randint(len(pixels), (batch,))]
    eps = torch.randn_like(x0)
    t = noise.sample(batch, progress=step / steps)
    x = scheduler.add_noise(x0, eps, t)
    target = scheduler.get_velocity(x0, eps, t)
    error = (network(x, t).sample - target).square().flatten(1).mean(1)
    alpha_bar = scheduler.alphas_cumprod[t]
    loss = (headway.min_snr(alpha_bar / (1 - alpha_bar), prediction="v") * error).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    momentum.step()

group = optimizer.param_groups[0]
print(f"loss {loss.item():.4f}; at the end beta1 {group['betas'][0]:.3f}, learning rate {group['lr']:.2e}")
