"""VP: the variance-preserving process (Ho et al. 2020, Song et al. 2021) in the EDM view (Karras et al. 2022, table 1)."""

from __future__ import annotations

from torch import Tensor

from headway.frameworks.base import Framework, Prediction, Value, as_tensor
from headway.noise import UniformTime


class VP(Framework):
    """sigma(t) = sqrt(exp(beta_d t^2 / 2 + beta_min t) - 1), beta_min = 0.1, beta_d = 19.9, t in [1e-5, 1].

    Trains on sigma up to 152.17 with t uniform; samplers start from 80, as in EDM's and FDM's code. The network predicts eps.
    """

    name = "vp"
    beta_min = 0.1
    beta_d = 19.9
    time_range = (1e-5, 1.0)

    def __init__(self, sigma_data: float = 0.5, prediction: Prediction | None = None) -> None:
        super().__init__(sigma_data, prediction)
        self.sigma_min, self.sigma_max = (float(self.sigma(t)) for t in self.time_range)
        self.density = UniformTime(self.sigma, self.time, self._slope, *self.time_range)

    def sigma(self, t: Value) -> Tensor:
        t = as_tensor(t)
        return (t * (0.5 * self.beta_d * t + self.beta_min)).expm1().sqrt()

    def time(self, sigma: Value) -> Tensor:
        # The root of beta_d t^2 / 2 + beta_min t = ln(1 + sigma^2), in the form that does not cancel for small sigma.
        log_snr = as_tensor(sigma).square().log1p()
        return 2 * log_snr / ((self.beta_min**2 + 2 * self.beta_d * log_snr).sqrt() + self.beta_min)

    def _slope(self, sigma: Tensor) -> Tensor:
        root = (self.beta_min**2 + 2 * self.beta_d * sigma.square().log1p()).sqrt()
        return 2 * sigma / (1 + sigma.square()) / root

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
