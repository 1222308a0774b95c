"""What a diffusion framework is: noise range, time map, preconditioning, density, weight and forward scale, all in sigma.

Everything is written in the unscaled variable x = x0 + sigma * eps (the EDM view), in which samplers work for every framework.
All functions take a number or a tensor (any shape, device, floating dtype) and return a tensor of that shape; a number gives a
0-dimensional float64 tensor. Source of the table of preconditionings: Karras et al. 2022 (arXiv 2206.00364), table 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor

from headway.errors import HeadwayError, unknown
from headway.noise import Density

Prediction = Literal["eps", "x0", "v"]
Value = float | Tensor


def as_tensor(value: Value) -> Tensor:
    """Numbers become float64 tensors; floating tensors pass as they are."""
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


class Framework(ABC):
    """A diffusion framework. Subclasses state the formulas; see :func:`headway.framework` for the way to get one.

    Attributes:
        name: "vp", "ve", "edm" or "flow". sigma_min, sigma_max: the range the framework defines (trains on).
        sampling_range: the (sigma_min, sigma_max) samplers use: the framework's range within [0.002, 80], as EDM's sampler.
        time_range: the times of sigma_min and sigma_max. sigma_data: standard deviation of the data (EDM only uses it).
        prediction: what the network predicts: None (the framework's own target), "eps", "x0" or "v".
        density: the default density of the training sigma.
    """

    name: str
    sigma_min: float
    sigma_max: float
    density: Density

    def __init__(self, sigma_data: float = 0.5, prediction: Prediction | None = None) -> None:
        if not (sigma_data > 0 and math.isfinite(sigma_data)):
            raise HeadwayError(
                f"sigma_data must be a positive number (the data's standard deviation), got {sigma_data}."
            )
        if prediction not in (None, "eps", "x0", "v"):
            raise unknown("prediction", prediction, ["eps", "x0", "v"])
        self.sigma_data = sigma_data
        self.prediction = prediction

    @property
    def sampling_range(self) -> tuple[float, float]:
        return max(0.002, self.sigma_min), min(80.0, self.sigma_max)

    @property
    def time_range(self) -> tuple[float, float]:
        return float(self.time(self.sigma_min)), float(self.time(self.sigma_max))

    @abstractmethod
    def sigma(self, t: Value) -> Tensor:
        """sigma(t), increasing in the framework's time t."""

    @abstractmethod
    def time(self, sigma: Value) -> Tensor:
        """The inverse of :meth:`sigma`."""

    @abstractmethod
    def scale(self, sigma: Value) -> Tensor:
        """The factor s in the framework's own forward process: x_t = s (x0 + sigma eps)."""

    def c_skip(self, sigma: Value) -> Tensor:
        """Factor of x in D(x; sigma) = c_skip x + c_out F(c_in x; c_noise)."""
        return self._skip_out(as_tensor(sigma))[0]

    def c_out(self, sigma: Value) -> Tensor:
        """Factor of the network's output in D."""
        return self._skip_out(as_tensor(sigma))[1]

    @abstractmethod
    def c_in(self, sigma: Value) -> Tensor:
        """Factor of x at the network's input. The only thing that FDM changes (see ``momentum``)."""

    @abstractmethod
    def c_noise(self, sigma: Value) -> Tensor:
        """The number that tells the network the noise level."""

    @abstractmethod
    def weight(self, sigma: Value) -> Tensor:
        """Default loss weight w in w |D - x0|^2 (on x0-prediction, whatever the network predicts)."""

    @abstractmethod
    def own_skip_out(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """(c_skip, c_out) of the framework's own prediction target."""

    def _skip_out(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        match self.prediction:
            case "eps":
                return torch.ones_like(sigma), -sigma
            case "x0":
                return torch.zeros_like(sigma), torch.ones_like(sigma)
            case "v":
                return 1 / (1 + sigma.square()), -sigma / (1 + sigma.square()).sqrt()
            case None:
                return self.own_skip_out(sigma)

    def describe(self) -> str:
        """One line for people."""
        target = f", {self.prediction}-prediction" if self.prediction else ""
        return f"{self.name.upper() if self.name != 'flow' else 'flow'}{target}"
