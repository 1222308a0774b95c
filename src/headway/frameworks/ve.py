"""VE: the variance-exploding process (Song et al. 2021) in the EDM view (Karras et al. 2022, table 1)."""

from __future__ import annotations

import math

from torch import Tensor

from headway.frameworks.base import Framework, Prediction, Value, as_tensor
from headway.noise import LogUniform


class VE(Framework):
    """sigma in [0.02, 100]; time is Song's geometric one, t = ln(sigma / sigma_min) / ln(sigma_max / sigma_min) in [0, 1].

    ln sigma is uniform in training. The network predicts -eps and sees x unscaled.
    """

    name = "ve"
    sigma_min = 0.02
    sigma_max = 100.0
    _width = math.log(sigma_max / sigma_min)

    def __init__(self, sigma_data: float = 0.5, prediction: Prediction | None = None) -> None:
        super().__init__(sigma_data, prediction)
        self.density = LogUniform(self.sigma_min, self.sigma_max)

    def sigma(self, t: Value) -> Tensor:
        return self.sigma_min * (self._width * as_tensor(t)).exp()

    def time(self, sigma: Value) -> Tensor:
        return (as_tensor(sigma) / self.sigma_min).log() / self._width

    def scale(self, sigma: Value) -> Tensor:
        sigma = as_tensor(sigma)
        return sigma.new_ones(sigma.shape)

    def c_in(self, sigma: Value) -> Tensor:
        return self.scale(sigma)

    def c_noise(self, sigma: Value) -> Tensor:
        return (0.5 * as_tensor(sigma)).log()

    def weight(self, sigma: Value) -> Tensor:
        return as_tensor(sigma).square().reciprocal()

    def own_skip_out(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return sigma.new_ones(sigma.shape), sigma
