"""CLTS for other people's trainers: draws their timesteps, needs torch alone and nothing of the rest of Headway."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.noise.clts import INDICATORS, Curriculum, TruncatedNormal
from headway.noise.stratify import stratified


class CurriculumTimesteps:
    """Timesteps that go from uniform to harder ones as training proceeds (CLTS, Xu et al. 2024, arXiv 2404.07946).

    Stateless: what it draws depends on ``progress`` and the generator alone, so it works under any number of processes without
    communication; ``state_dict`` is empty and there for symmetry.

    Args:
        scheduler: an object like diffusers' ``DDPMScheduler``, or the number T of timesteps; t is 0 (clean) .. T - 1 (noise).
        continuous: instead of a scheduler: real t in [0, 1], 1 being noise, as SD3-like flow matching has it.
        horizon: the progress at which the Gaussian stands alone, in (0, 1]. mu, std: of the Gaussian in t / T.
        indicator: "time", or "noise-rate" for the Gaussian in sqrt(1 - alpha_bar_t), which needs a scheduler.
        reversed: from the Gaussian to uniform, a control. stratified: spread each batch's draws evenly.

    Raises:
        HeadwayError: an option out of range; a scheduler whose timesteps do not run from clean to noise.
    """

    def __init__(
        self,
        scheduler: object | int | None = None,
        *,
        continuous: bool = False,
        horizon: float = 0.7,
        mu: float = 0.3,
        std: float = 0.5,
        indicator: str = "time",
        reversed: bool = False,
        stratified: bool = False,
    ) -> None:
        if (scheduler is None) != continuous:
            raise HeadwayError(
                "Give either a scheduler (or its number of timesteps), or continuous=True for t in [0, 1]."
            )
        if indicator not in INDICATORS:
            raise unknown("indicator", indicator, INDICATORS)
        self.continuous, self.stratified = continuous, stratified
        self.law = Curriculum(TruncatedNormal(mu, std), horizon, reversed)
        if not continuous:
            noisiness = _noisiness(scheduler, indicator)
            gaussian = (-0.5 * ((noisiness - mu) / std).square()).exp()
            self._gaussian = gaussian / gaussian.sum()
        elif indicator != "time":
            raise HeadwayError("The noise-rate indicator needs a scheduler: continuous t has no alpha_bar_t.")

    def probabilities(self, progress: float) -> Tensor:
        """P(t) for t = 0 .. T - 1, (T,) float64: (1 - gamma) / T + gamma exp(-(t / T - mu)^2 / 2 std^2) / Z."""
        if self.continuous:
            raise HeadwayError(
                "Continuous timesteps have no vector of probabilities: they have a density, 1 / importance."
            )
        gamma = self.law.gamma(progress)
        return (1 - gamma) / len(self._gaussian) + gamma * self._gaussian

    def sample(
        self,
        batch_size: int,
        progress: float,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """(batch_size,) timesteps at ``progress``, the share of the training budget that is done: int64, or float32 in [0, 1].

        Drawn on the generator's device (else the CPU), then moved to ``device``.
        """
        source = generator.device if generator is not None else torch.device("cpu")
        uniforms = torch.rand(batch_size, 2, dtype=torch.float64, generator=generator, device=source)
        q = stratified(uniforms) if self.stratified else uniforms[:, 0].contiguous()
        if self.continuous:
            t = self.law.icdf(q, progress).float()
        else:
            cumulative = self.probabilities(progress).cumsum(0).to(source)
            t = torch.searchsorted(cumulative, q, right=True).clamp(max=len(cumulative) - 1)
        return t if device is None else t.to(device)

    def importance(self, t: Tensor, progress: float) -> Tensor:
        """Factors for the loss, float32 like ``t`` in shape: with them the mean loss is that of uniform timesteps."""
        if self.continuous:
            return self.law.pdf(t.double(), progress).reciprocal().float()
        density = len(self._gaussian) * self.probabilities(progress)
        return density.to(t.device)[t].reciprocal().float()

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state:
            raise HeadwayError(f"CurriculumTimesteps has no state, but was given {', '.join(state)}.")


def _noisiness(scheduler: object, indicator: str) -> Tensor:
    """What the Gaussian is a function of, for each timestep: (T,) in [0, 1]."""
    if isinstance(scheduler, int) and not isinstance(scheduler, bool):
        if scheduler < 1:
            raise HeadwayError(f"There must be at least one timestep, got {scheduler}.")
        if indicator != "time":
            raise HeadwayError(
                "The noise-rate indicator needs a scheduler with alphas_cumprod, got a number of timesteps."
            )
        return torch.arange(scheduler, dtype=torch.float64) / scheduler
    kept = getattr(scheduler, "alphas_cumprod", None)
    if not isinstance(kept, Tensor):
        raise HeadwayError(
            f"{type(scheduler).__name__} has no alphas_cumprod, so its timesteps may not be 0 (clean) .. T - 1 (noise): "
            "for flow matching use continuous=True, else give the number of timesteps."
        )
    if indicator == "time":
        return torch.arange(len(kept), dtype=torch.float64) / len(kept)
    return (1 - kept.double().cpu()).clamp(min=0).sqrt()
