"""Solvers against closed forms, a high-accuracy ODE solution and diffusers' schedulers."""

import math

import diffusers
import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from headway.frameworks import EDM
from headway.ideal import GaussianMixture
from headway.sampling import SOLVERS, sigma_grid
from headway.sampling.solvers import singlestep_orders

DETERMINISTIC = ["euler", "heun", "dpmpp-2m", "dpmpp-3s"]
MEAN, COVARIANCE = [0.3, -0.2], [[0.30, 0.12], [0.12, 0.10]]


def mixture() -> GaussianMixture:
    means = torch.tensor([[[[-0.6, 0.4]]], [[[0.7, 0.1]]], [[[0.0, -0.8]]]], dtype=torch.float64)
    covariances = torch.tensor(
        [[[0.09, 0.02], [0.02, 0.04]], [[0.04, -0.01], [-0.01, 0.09]], [[0.06, 0.0], [0.0, 0.05]]], dtype=torch.float64
    )
    return GaussianMixture(means, covariances, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))


def no_noise(step: int) -> torch.Tensor:
    raise AssertionError("a deterministic solver asked for noise")


def starts(sigma_max: float, n: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return sigma_max * torch.randn(n, 1, 1, 2, dtype=torch.float64, generator=generator)


def flow(denoiser: GaussianMixture, x: torch.Tensor, sigma_max: float, sigma_min: float) -> torch.Tensor:
    """The probability flow from sigma_max to sigma_min, by an eighth-order method in lambda = -ln sigma."""

    def slope(lam: float, flat: np.ndarray) -> np.ndarray:
        state = torch.from_numpy(flat).reshape(x.shape)
        return (denoiser(state, math.exp(-lam)) - state).flatten().numpy()

    span = (-math.log(sigma_max), -math.log(sigma_min))
    end = solve_ivp(slope, span, x.flatten().numpy(), method="DOP853", rtol=1e-12, atol=1e-12).y[:, -1]
    return torch.from_numpy(end).reshape(x.shape)


@pytest.mark.parametrize("grid", ["logsnr", "edm"])
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_the_error_falls_with_the_order_of_the_solver(name, grid):
    low, high = 0.05, 10.0
    denoiser, x = mixture(), starts(high)
    exact = flow(denoiser, x, high, low)
    # 3k + 2 intervals: the singlestep solver then ends with a step of order 2, whose one error is of third order.
    intervals = [47, 95, 191]
    errors = []
    for n in intervals:
        sigmas = sigma_grid(EDM(), n + 1, grid, sigma_min=low, sigma_max=high)[:-1]
        errors.append(float((SOLVERS[name].run(denoiser, x, sigmas, no_noise) - exact).abs().max()))
    slopes = -np.diff(np.log(errors)) / np.diff(np.log(intervals))
    assert slopes == pytest.approx([SOLVERS[name].order] * 2, abs=0.15)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_a_gaussian_is_carried_along_its_closed_form(name):
    """x(sigma) - mean shrinks along each axis with the standard deviation sqrt(variance + sigma^2)."""
    low, high = 0.002, 80.0
    mean, covariance = torch.tensor(MEAN, dtype=torch.float64), torch.tensor(COVARIANCE, dtype=torch.float64)
    denoiser, x = GaussianMixture(mean.reshape(1, 1, 1, 2), covariance[None]), starts(high, 16)
    variances, axes = torch.linalg.eigh(covariance)
    along = (x.flatten(1) - mean) @ axes * ((variances + low**2) / (variances + high**2)).sqrt()
    exact = (along @ axes.T + mean).reshape(x.shape)
    sigmas = sigma_grid(EDM(), 1200, "logsnr")[:-1]
    error = (SOLVERS[name].run(denoiser, x, sigmas, no_noise) - exact).abs().max()
    assert error < {1: 1e-2, 2: 1e-4, 3: 1e-6}[SOLVERS[name].order]


@pytest.mark.parametrize(
    ("intervals", "orders"),
    [(0, []), (1, [1]), (2, [2]), (3, [2, 1]), (4, [3, 1]), (5, [3, 2]), (24, [3] * 7 + [2, 1])],
)
def test_the_singlestep_orders_are_the_published_ones(intervals, orders):
    assert singlestep_orders(intervals) == orders


def deviation(name: str, steps: int, factor: float = 1.0, n: int = 20_000, **options: float) -> float:
    """How many standard errors the moments of stochastic samples are off; the noise of every step is ``factor`` too large."""
    mean = torch.tensor(MEAN, dtype=torch.float64)
    covariance = torch.tensor(COVARIANCE, dtype=torch.float64)
    one = torch.eye(2, dtype=torch.float64)
    generator = torch.Generator().manual_seed(7)

    def denoise(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return mean + (x - mean) @ torch.linalg.solve(covariance + sigma.square() * one, covariance)

    def noise(step: int = 0) -> torch.Tensor:
        return torch.randn(n, 2, dtype=torch.float64, generator=generator)

    low = 0.05
    sigmas = sigma_grid(EDM(), steps, "logsnr", sigma_min=low, sigma_max=40.0)[:-1]
    x = SOLVERS[name].run(denoise, sigmas[0] * noise(), sigmas, lambda step: factor * noise(step), **options)
    expected = covariance + low**2 * one
    variances = expected.diagonal()
    off_mean = (x.mean(0) - mean).abs() / (variances / n).sqrt()
    spread = ((variances[:, None] * variances + expected.square()) / n).sqrt()
    off_covariance = (x.T.cov() - expected).abs() / spread
    return float(torch.cat([off_mean, off_covariance.flatten()]).max())


@pytest.mark.parametrize(
    ("name", "steps", "options"),
    [("ancestral", 600, {}), ("churn", 150, {"s_churn": 30.0, "s_tmin": 0.0, "s_tmax": 100.0, "s_noise": 1.0})],
)
def test_stochastic_solvers_reach_the_right_mean_and_covariance(name, steps, options):
    assert deviation(name, steps, **options) < 4
    assert deviation(name, steps, factor=1.05, **options) > 8  # so the test can tell a wrong noise


@pytest.mark.parametrize("steps", [3, 10])
def test_ancestral_steps_are_exact_for_a_point(steps):
    """With all data at one point, x has variance sigma^2 at every level, however few the steps."""
    generator = torch.Generator().manual_seed(3)
    point, n = torch.tensor([0.5, -0.5], dtype=torch.float64), 40_000

    def noise(step: int = 0) -> torch.Tensor:
        return torch.randn(n, 1, 1, 2, dtype=torch.float64, generator=generator)

    sigmas = sigma_grid(EDM(), steps, sigma_min=0.3, sigma_max=20.0)[:-1]
    x = point + sigmas[0] * noise()
    x = SOLVERS["ancestral"].run(lambda x, sigma: point.expand_as(x), x, sigmas, noise)
    assert (x - point).square().mean().sqrt() == pytest.approx(0.3, rel=4 / math.sqrt(4 * n))


def test_churn_without_noise_is_heun_and_noise_stays_in_its_interval():
    denoiser, x, sigmas = mixture(), starts(80.0), sigma_grid(EDM(), 12)
    heun = SOLVERS["heun"].run(denoiser, x, sigmas, no_noise)
    churn = SOLVERS["churn"].run
    assert torch.equal(churn(denoiser, x, sigmas, no_noise, s_churn=0.0), heun)
    asked = []

    def noise(step: int) -> torch.Tensor:
        asked.append(step)
        return torch.zeros_like(x)

    churn(denoiser, x, sigmas, noise, s_churn=5.0, s_tmin=0.1, s_tmax=10.0)
    assert asked == [k for k, sigma in enumerate(sigmas[:-1].tolist()) if 0.1 <= sigma <= 10.0]


@pytest.mark.parametrize(("s_churn", "gamma"), [(3.0, 3.0 / 12), (40.0, math.sqrt(2) - 1)])
def test_churn_raises_the_noise_level_by_its_share_of_s_churn(s_churn, gamma):
    sigmas, seen = sigma_grid(EDM(), 12), []

    def denoise(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        seen.append(float(sigma))
        return mixture()(x, sigma)

    SOLVERS["churn"].run(
        denoise, starts(80.0), sigmas, lambda step: torch.zeros(1), s_churn=s_churn, s_tmin=0.0, s_tmax=100.0
    )
    assert seen[::2] == pytest.approx([float(sigma) * (1 + gamma) for sigma in sigmas[:-1]])
    assert seen[1::2] == sigmas[1:-1].tolist()


class TestDiffusers:
    """The same noise levels and the same denoiser give the outputs of diffusers' schedulers (which work in float32)."""

    steps = 18

    def edm_loop(self, scheduler, x):
        """Their EDM schedulers precondition by themselves, so they are fed the raw network output F."""
        denoiser, fw = mixture(), EDM(sigma_data=0.5)
        scheduler.set_timesteps(self.steps)
        for t in scheduler.timesteps:
            scheduler.scale_model_input(x, t)
            sigma = scheduler.sigmas[scheduler.step_index].double()
            network = (denoiser(x.double(), sigma) - fw.c_skip(sigma) * x.double()) / fw.c_out(sigma)
            x = scheduler.step(network, t, x).prev_sample
        return x.double()

    @pytest.mark.parametrize(
        ("scheduler", "name"), [("EDMEulerScheduler", "euler"), ("EDMDPMSolverMultistepScheduler", "dpmpp-2m")]
    )
    def test_edm_schedulers(self, scheduler, name):
        theirs = getattr(diffusers, scheduler)()
        x = starts(80.0, 8)
        expected = self.edm_loop(theirs, x)
        torch.testing.assert_close(theirs.sigmas.double(), sigma_grid(EDM(), self.steps), rtol=3e-6, atol=0)
        ours = SOLVERS[name].run(mixture(), x, theirs.sigmas.double(), no_noise)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)

    def test_heun(self):
        theirs = diffusers.HeunDiscreteScheduler(use_karras_sigmas=True, prediction_type="epsilon")
        theirs.set_timesteps(self.steps)
        x = state = starts(float(theirs.sigmas[0]), 8)
        for t in theirs.timesteps:
            theirs.scale_model_input(state, t)
            sigma = theirs.sigmas[theirs.step_index].double()
            state = theirs.step((state - mixture()(state, sigma)) / sigma, t, state).prev_sample
        sigmas = torch.cat([theirs.sigmas[:1], theirs.sigmas[1::2]]).double()  # theirs has each inner level twice
        assert len(theirs.timesteps) == SOLVERS["heun"].nfe(self.steps)
        torch.testing.assert_close(SOLVERS["heun"].run(mixture(), x, sigmas, no_noise), state, rtol=0, atol=1e-5)

    def test_ancestral(self):
        theirs = diffusers.EulerAncestralDiscreteScheduler(prediction_type="epsilon")
        theirs.set_timesteps(self.steps)
        x = state = starts(float(theirs.sigmas[0]), 8)
        generator = torch.Generator().manual_seed(5)
        for t in theirs.timesteps:
            theirs.scale_model_input(state, t)
            sigma = theirs.sigmas[theirs.step_index].double()
            eps = (state.double() - mixture()(state.double(), sigma)) / sigma
            state = theirs.step(eps, t, state, generator=generator).prev_sample
        generator.manual_seed(5)
        ours = SOLVERS["ancestral"].run(
            mixture(),
            x,
            theirs.sigmas.double(),
            lambda step: torch.randn(x.shape, dtype=torch.float64, generator=generator),
        )
        torch.testing.assert_close(ours, state.double(), rtol=0, atol=1e-5)
