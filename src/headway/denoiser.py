"""The denoiser: a network and its preconditioning as one function D(x; sigma), and the conversions between its readings.

Everything is in the unscaled variable x = x0 + sigma eps. D estimates x0; eps, v, the flow velocity and the score are other
ways of saying the same thing (Karras et al. 2022, section 2; Salimans & Ho 2022, appendix D for v).
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from headway.errors import HeadwayError, unknown
from headway.frameworks.base import Framework

Reading = Literal["x0", "eps", "v", "flow", "score"]
READINGS: tuple[Reading, ...] = ("x0", "eps", "v", "flow", "score")


def expand(sigma: Tensor, like: Tensor) -> Tensor:
    """sigma (B,) or scalar, shaped (B, 1, 1, 1) (or (1, ...)) to multiply ``like`` (B, ...)."""
    return sigma.reshape(-1, *[1] * (like.ndim - 1))


def convert(value: Tensor, x: Tensor, sigma: Tensor | float, source: Reading, target: Reading) -> Tensor:
    """Restate a prediction: the same knowledge about x = x0 + sigma eps, read as ``target`` instead of ``source``.

    x0: the clean image. eps: the noise. v = (eps - sigma x0) / sqrt(1 + sigma^2), the VP velocity. flow = eps - x0, the velocity
    of rectified flow. score = grad log p(x; sigma) = (x0 - x) / sigma^2.

    Args:
        value, x: (B, ...) tensors. sigma: (B,) or scalar, > 0.
    """
    for name in (source, target):
        if name not in READINGS:
            raise unknown("reading of a prediction", name, READINGS)
    s = expand(torch.as_tensor(sigma, dtype=x.dtype, device=x.device), x)
    root = (1 + s.square()).sqrt()
    match source:
        case "x0":
            x0 = value
        case "eps":
            x0 = x - s * value
        case "v":
            x0 = (x / root - s * value) / root
        case "flow":
            x0 = (x - s * value) / (1 + s)
        case "score":
            x0 = x + s.square() * value
    match target:
        case "x0":
            return x0
        case "eps":
            return (x - x0) / s
        case "v":
            return ((x - x0) / s - s * x0) / root
        case "flow":
            return (x - x0) / s - x0
        case "score":
            return (x0 - x) / s.square()


class DenoiserLike(Protocol):
    """What samplers and losses need: a framework and a call. :class:`Denoiser` and the ideal denoisers are such."""

    framework: Framework

    def __call__(self, x: Tensor, sigma: Tensor | float, labels: Tensor | None = None) -> Tensor: ...


class Denoiser(nn.Module):
    """D(x; sigma) = c_skip x + c_out F(c_in x; c_noise, labels), an estimate of x0.

    Args:
        network: any module F(x, c_noise, labels) with x (B, C, H, W), c_noise (B,), labels (B,) int64 or None, that returns
            (B, C, H, W). It may take ``augment=`` as well. Label -1 means "no label" (classifier-free guidance).
        framework: see :func:`headway.framework`.
        shape: (C, H, W) of an image, where known: lets :func:`headway.sample` do without being told.
        classes: how many labels there are; 0 for none.
    """

    def __init__(
        self, network: nn.Module, framework: Framework, *, shape: tuple[int, int, int] | None = None, classes: int = 0
    ) -> None:
        super().__init__()
        self.network = network
        self.framework = framework
        self.shape = shape
        self.classes = classes

    def forward(
        self, x: Tensor, sigma: Tensor | float, labels: Tensor | None = None, augment: Tensor | None = None
    ) -> Tensor:
        """The x0 estimate, (B, C, H, W) in x's dtype.

        The network runs in its own dtype; the sum is done in x's, so a float64 sampler state stays float64.

        Args:
            x: (B, C, H, W) = x0 + sigma eps. sigma: (B,) or scalar, > 0. labels: (B,) int64, -1 for none.
            augment: (B, A) condition of the augmentation; None when sampling.
        """
        sigma = torch.as_tensor(sigma, dtype=torch.float64)
        if sigma.device.type == "cpu" and not bool((sigma > 0).all()):  # on a GPU the look would cost a wait
            raise HeadwayError(f"sigma must be > 0, got {float(sigma.min()):g}.")
        sigma = sigma.to(x.device)
        if sigma.ndim > 1 or sigma.numel() not in (1, len(x)):
            raise HeadwayError(
                f"sigma must be a scalar or one value per image ({len(x)}), got shape {tuple(sigma.shape)}."
            )
        sigma = sigma.expand(len(x))
        fw = self.framework
        c_skip, c_out, c_in = (expand(c, x).to(x.dtype) for c in (fw.c_skip(sigma), fw.c_out(sigma), fw.c_in(sigma)))
        dtype = next((p.dtype for p in self.network.parameters() if p.is_floating_point()), x.dtype)
        options = {} if augment is None else {"augment": augment.to(dtype)}
        output: Tensor = self.network((c_in * x).to(dtype), fw.c_noise(sigma).to(dtype), labels, **options)
        return c_skip * x + c_out * output.to(x.dtype)


def drop_labels(labels: Tensor, uniform: Tensor, probability: float) -> Tensor:
    """Labels (B,) with -1 ("no label") where uniform (B,) in [0, 1) is below ``probability``: per image, not per batch."""
    return torch.where(uniform < probability, -1, labels)
