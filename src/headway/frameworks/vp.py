"""VP: the variance-preserving process (Ho et al. 2020, Song et al. 2021) in the EDM view (Karras et al. 2022, table 1)."""

from __future__ import annotations

from torch import Tensor

from headway.frameworks.base import Framework, Prediction, Value, as_tensor
from headway.noise import VP_TIME


class VP(Framework):
    """sigma(t) = sqrt(exp(beta_d t^2 / 2 + beta_min t) - 1), beta_min = 0.1, beta_d = 19.9, t in [1e-5, 1].

    Trains on sigma up to 152.17 with t uniform; samplers start from 80, as in EDM's and FDM's code. The network predicts eps.
    """

    name = "vp"
    density = VP_TIME
    time_range = (VP_TIME.t_min, VP_TIME.t_max)

    def __init__(self, sigma_data: float = 0.5, prediction: Prediction | None = None) -> None:
        super().__init__(sigma_data, prediction)
        self.sigma_min, self.sigma_max = (float(self.sigma(t)) for t in self.time_range)

    def sigma(self, t: Value) -> Tensor:
        return VP_TIME.sigma(as_tensor(t))

    def time(self, sigma: Value) -> Tensor:
        return VP_TIME.time(as_tensor(sigma))

    def scale(self, sigma: Value) -> Tensor:
        return (1 + as_tensor(sigma).square()).rsqrt()

    def c_in(self, sigma: Value) -> Tensor:
        return self.scale(sigma)

    def c_noise(self, sigma: Value) -> Tensor:
        return 999 * self.time(sigma)

    def weight(self, sigma: Value) -> Tensor:
        return as_tensor(sigma).square().reciprocal()

    def own_skip_out(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return sigma.new_ones(sigma.shape), -sigma
