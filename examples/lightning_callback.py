"""A Lightning module made faster in three lines: curriculum, min-SNR, and momentum decay as a callback of the Trainer."""

import os

import lightning
import torch
from diffusers import DDPMScheduler, UNet2DModel

import headway
from headway.data import load
from headway.integrations.lightning import MomentumDecayCallback

steps, batch = int(os.environ.get("HEADWAY_EXAMPLE_STEPS", "1000")), 64


class DigitsDDPM(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
        self.network = UNet2DModel(8, 1, 1, block_out_channels=(32, 64), norm_num_groups=8, **blocks)
        self.scheduler = DDPMScheduler(num_train_timesteps=1000)
        self.noise = headway.CurriculumTimesteps(self.scheduler, horizon=0.7)

    def training_step(self, x0: torch.Tensor, _: int) -> torch.Tensor:
        progress = self.global_step / self.trainer.estimated_stepping_batches
        t = self.noise.sample(len(x0), progress, device=self.device)
        eps = torch.randn_like(x0)
        error = (self.network(self.scheduler.add_noise(x0, eps, t), t).sample - eps).square().flatten(1).mean(1)
        alpha_bar = self.scheduler.alphas_cumprod.to(self.device)[t]
        return (headway.min_snr(alpha_bar / (1 - alpha_bar), prediction="eps") * error).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)  # no scheduler: the callback takes one as lr_scheduler=


lightning.seed_everything(0, verbose=False)
images, _ = load("digits")
data = torch.utils.data.DataLoader(images.pixels(), batch, shuffle=True, drop_last=True)
momentum = MomentumDecayCallback(warmup_steps=min(50, steps // 2))
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(max_steps=steps, callbacks=[momentum], **quiet)
trainer.fit(DigitsDDPM(), data)

group = trainer.optimizers[0].param_groups[0]
print(f"at the end beta1 {group['betas'][0]:.3f}, learning rate {group['lr']:.2e}")
