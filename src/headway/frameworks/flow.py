"""Rectified flow (Liu et al. 2023, Esser et al. 2024) written in sigma, so that it shares samplers with the others."""

from __future__ import annotations

from torch import Tensor

from headway.frameworks.base import Framework, Prediction, Value, as_tensor
from headway.noise import LogNormal


class Flow(Framework):
    """x_t = (1 - t) x0 + t eps, so t = sigma / (1 + sigma) and the forward scale is 1 - t = 1 / (1 + sigma).

    The network predicts the velocity eps - x0 from x_t; the weight makes the loss the plain squared error of the velocity.
    The training density is logit-normal(0, 1) in t, drawn unclamped; samplers work on sigma in [0.002, 80].
    """

    name = "flow"
    sigma_min = 0.002
    sigma_max = 80.0

    def __init__(self, sigma_data: float = 0.5, prediction: Prediction | None = None) -> None:
        super().__init__(sigma_data, prediction)
        self.density = LogNormal(0.0, 1.0)

    def sigma(self, t: Value) -> Tensor:
        t = as_tensor(t)
        return t / (1 - t)

    def time(self, sigma: Value) -> Tensor:
        sigma = as_tensor(sigma)
        return sigma / (1 + sigma)

    def scale(self, sigma: Value) -> Tensor:
        return 1 / (1 + as_tensor(sigma))

    def c_in(self, sigma: Value) -> Tensor:
        return self.scale(sigma)

    def c_noise(self, sigma: Value) -> Tensor:
        return 1000 * self.time(sigma)

    def weight(self, sigma: Value) -> Tensor:
        return (1 + as_tensor(sigma).reciprocal()).square()

    def own_skip_out(self, sigma: Tensor) -> tuple[Tensor, Tensor]:
        return self.scale(sigma), -self.time(sigma)
