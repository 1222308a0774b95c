"""Where along the way from noise to image the image is decided: swapped models, and the estimates of every step."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.denoiser import DenoiserLike
from headway.errors import HeadwayError
from headway.sampling import Samples, sample


class Swapped(nn.Module):
    """Two models as one denoiser: ``first`` where the noise level is ``sigma`` or more, ``second`` below.

    The two may differ in network, framework and prediction: D(x; sigma) in x = x0 + sigma eps means the same for all, and each
    model scales its own input. A sampler starts where the first would and ends where the second would; the grid "time" is in
    the first's time. What decides is the sigma at which D is evaluated, so a step of Heun that crosses ``sigma`` begins with
    the one and is corrected by the other.

    Args:
        first, second: anything :func:`headway.sample` takes. sigma: > 0; above the whole range: the second alone.

    Raises:
        HeadwayError: for models of other images or classes, and where one would be asked outside what it was trained on.
    """

    def __init__(self, first: DenoiserLike, second: DenoiserLike, sigma: float) -> None:
        super().__init__()
        if not sigma > 0:
            raise HeadwayError(f"The models are swapped at a noise level sigma > 0, got {sigma}.")
        self.first, self.second, self.sigma = first, second, float(sigma)
        known = [getattr(part, "shape", None) for part in (first, second)]
        shapes = {tuple(shape) for shape in known if shape is not None}
        classes = {getattr(part, "classes", 0) for part in (first, second)}
        if len(shapes) > 1 or len(classes) > 1:
            raise HeadwayError(
                "Only models of images of one shape, with the same classes, can be swapped, got shapes "
                f"{_listed(shapes)} and {_listed(classes)} classes."
            )
        self.shape, self.classes = next(iter(shapes), None), classes.pop()
        self.framework = copy.copy(first.framework)
        self.framework.sigma_min = second.framework.sampling_range[0]
        low, high = self.framework.sampling_range
        if first.framework.sigma_min > max(sigma, low) or second.framework.sigma_max < min(sigma, high):
            raise HeadwayError(
                f"The sampler would ask the first model down to sigma {max(sigma, low):g} and the second from "
                f"{min(sigma, high):g}, but {_trained(first)} and {_trained(second)}; choose sigma where both were trained."
            )

    def forward(self, x: Tensor, sigma: Tensor | float, labels: Tensor | None = None) -> Tensor:
        """The estimate of x0, (B, C, H, W) in x's dtype. x: (B, C, H, W). sigma: (B,) or scalar. labels: (B,) or None."""
        sigma = torch.as_tensor(sigma, device=x.device).expand(len(x))
        early = sigma >= self.sigma
        x0 = torch.empty_like(x)
        for part, own in ((self.first, early), (self.second, ~early)):
            if bool(own.any()):
                x0[own] = part(x[own], sigma[own], None if labels is None else labels[own]).to(x.dtype)
        return x0


def _listed(values: Iterable[object]) -> str:
    return " and ".join(sorted(map(str, values)))


def _trained(part: DenoiserLike) -> str:
    fw = part.framework
    return f"{fw.describe()} knows {fw.sigma_min:g} .. {fw.sigma_max:g}"


@dataclass(frozen=True)
class Trajectory:
    """What :func:`trajectory` returns.

    Attributes:
        sigmas: (steps,) float64, the noise level of each estimate ("churn": after it added noise).
        x0: (steps, N, C, H, W) float32 on the CPU: the estimate D(x; sigma) each step starts with; the last is the image.
        samples: the images, and what made them.
    """

    sigmas: Tensor
    x0: Tensor = field(repr=False)
    samples: Samples


def trajectory(denoiser: DenoiserLike, seeds: Iterable[int], **options: Any) -> Trajectory:
    """:func:`headway.sample`, keeping the estimate of x0 of every step: ``steps`` times the memory of the images.

    With "dpmpp-3s" the estimates between its steps are those at its intermediate points.

    Args:
        options: as :func:`headway.sample` takes them, all but ``watch``.
    """
    sigmas: dict[int, float] = {}
    estimates: dict[int, list[Tensor]] = {}

    def watch(step: int, sigma: float, x0: Tensor) -> None:
        sigmas[step] = sigma
        estimates.setdefault(step, []).append(x0.to("cpu", torch.float32))

    samples = sample(denoiser, seeds, watch=watch, **options)
    x0 = torch.stack([torch.cat(batches) for batches in estimates.values()])
    return Trajectory(torch.tensor(list(sigmas.values()), dtype=torch.float64), x0, samples)
