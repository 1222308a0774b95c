"""The damped oscillator against what it is derived from: its equation, its stochastic process, and SGD with momentum."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch

from headway.frameworks import Oscillator
from headway.frameworks.oscillator import integrated_beta, time_of_integrated_beta

ZETAS = (0.1, 0.5, 0.9, 1 - 1e-9, 1.0, 1 + 1e-9, 1.1, 2.0, 5.0)
Z = np.array(ZETAS)


def f64(values):
    return torch.as_tensor(values, dtype=torch.float64)


def of_all(quantity, b):
    """mean, variance or kick at B for every zeta of ZETAS."""
    return np.array([float(getattr(Oscillator(zeta), quantity)(f64(b))) for zeta in ZETAS])


def rk4(slope, y, end, steps, keep):
    """The classical fourth-order method from 0 to end; ``keep`` evenly spaced (t, y)."""
    h, rows = end / steps, []
    for k in range(steps):
        t = k * h
        a = slope(t, y)
        b = slope(t + h / 2, y + h / 2 * a)
        c = slope(t + h / 2, y + h / 2 * b)
        y = y + h / 6 * (a + 2 * b + 2 * c + slope(t + h, y + h * c))
        rows.append((t + h, y))
    return rows[steps // keep - 1 :: steps // keep]


def test_mean_solves_the_equation_of_motion_in_time():
    """x'' + (2 zeta beta - beta'/beta) x' + beta^2 x = 0 with beta = 0.1 + 19.9 t, x(0) = 1, x'(0) = 0, to 1e-8."""

    def slope(t, y):
        beta = 0.1 + 19.9 * t
        return np.stack([y[1], -(2 * Z * beta - 19.9 / beta) * y[1] - beta**2 * y[0]])

    for t, (x, velocity) in rk4(slope, np.stack([Z**0, 0 * Z]), 1.0, 16000, keep=20):
        b = float(integrated_beta(f64(t)))
        assert np.abs(x - of_all("mean", b)).max() < 1e-8
        assert np.abs(velocity + (0.1 + 19.9 * t) * of_all("kick", b)).max() < 1e-7


def test_variance_solves_the_moment_equations():
    """Of dx = v dB, dv = (-2 zeta v - x) dB + 2 sqrt(zeta) dW: Lyapunov's equation for the covariance of (x, v)."""

    def slope(_, p):
        xx, xv, vv = p
        return np.stack([2 * xv, vv - xx - 2 * Z * xv, -2 * (2 * Z * vv + xv) + 4 * Z])

    for b, (xx, _, _) in rk4(slope, np.zeros((3, len(Z))), 8.0, 8000, keep=20):
        assert np.abs(xx - of_all("variance", b)).max() < 1e-9


@pytest.mark.parametrize("zeta", [0.5, 1.0, 2.0])
def test_monte_carlo_of_the_process(zeta):
    """100,000 paths; exact turns of (x, v) between half steps of exact friction and noise: the error is O(step^2)."""
    rng, n, h = np.random.default_rng(0), 100_000, 0.05
    kept = math.exp(-zeta * h)  # e^(-2 zeta h / 2), the friction of half a step
    x, v = np.full(n, 0.7), np.zeros(n)
    for k in range(1, 81):
        v = kept * v + math.sqrt(1 - kept**2) * rng.standard_normal(n)
        x, v = math.cos(h) * x + math.sin(h) * v, math.cos(h) * v - math.sin(h) * x
        v = kept * v + math.sqrt(1 - kept**2) * rng.standard_normal(n)
        if k % 20 == 0:
            mean, variance = (float(f(f64(k * h))) for f in (Oscillator(zeta).mean, Oscillator(zeta).variance))
            assert abs(x.mean() - 0.7 * mean) < 5 * math.sqrt(variance / n) + 2e-3
            assert abs(x.var() / variance - 1) < 5 * math.sqrt(2 / n) + 2e-3


@pytest.mark.parametrize("zeta", [0.5, 1.0, 2.0])
def test_heavy_ball_tends_to_the_kernel(zeta):
    """x_{k+1} = x_k - eta g_k + gamma (x_k - x_{k-1}) with gamma = (1 - zeta sqrt(eta))^2 and gradient noise, eta -> 0.

    Mean and variance follow the oscillator at B = sqrt(eta) k, with an error that halves with sqrt(eta).
    """
    errors = []
    for h in (0.02, 0.01, 0.005):  # sqrt(eta)
        gamma, noise, worst = (1 - zeta * h) ** 2, np.diag([4 * zeta * h**3, 0]), 0.0
        step = np.array([[1 - h * h + gamma, -gamma], [1, 0]])
        state, covariance = np.ones(2), np.zeros((2, 2))
        for k in range(1, round(6 / h) + 1):
            state, covariance = step @ state, step @ covariance @ step.T + noise
            if k % round(0.5 / h) == 0:
                mean, variance = (float(f(f64(k * h))) for f in (Oscillator(zeta).mean, Oscillator(zeta).variance))
                worst = max(worst, abs(state[0] - mean), abs(covariance[0, 0] - variance))
        errors.append(worst)
    assert errors[-1] < 0.02
    assert [errors[0] / errors[1], errors[1] / errors[2]] == pytest.approx([2, 2], abs=0.2)


def test_heavy_ball_against_plain_sgd():
    """A diffusion step is an SGD step (a x + b eps = x - eta g), and momentum forgets x0 in 1/sqrt(eta) steps, not 1/eta."""
    eta, b, x, eps = 1e-4, 0.014, 0.3, -1.2
    assert x - eta * (x - b / eta * eps) == pytest.approx((1 - eta) * x + b * eps, rel=1e-12)
    before = now = plain = 1.0
    for _ in range(600):
        before, now = now, now - eta * now + (1 - math.sqrt(eta)) ** 2 * (now - before)
        plain -= eta * plain
    kernel = float(Oscillator().mean(f64(600 * math.sqrt(eta))))
    assert [now, kernel, plain] == pytest.approx([1.68e-2, 1.74e-2, 0.942], rel=3e-3)


def test_published_values_of_the_kernel():
    t = f64([0.2, 0.4, 0.6, 0.8, 1.0])
    wanted = f64([0.933558, 0.514656, 0.121620, 0.0117953, 4.77203e-4])
    torch.testing.assert_close(Oscillator().mean(integrated_beta(t)), wanted, rtol=3e-6, atol=0)
    torch.testing.assert_close(time_of_integrated_beta(integrated_beta(t * 1e-6)), t * 1e-6, rtol=1e-14, atol=0)


def test_no_cancellation_at_small_b():
    """Against sixty decimal digits: the noise level is right to 1e-13 from B = 1e-7 up, across the seam to the series."""
    with localcontext() as context:
        context.prec = 60
        for b in (1e-7, 1e-5, 1e-3, 0.01453, 0.05, 0.0999999, 0.1, 0.1000001, 0.2, 1.0, 6.3811):
            x = Decimal(b)
            sigma = ((2 * x).exp() - 1 - 2 * x - 2 * x * x).sqrt() / (1 + x)
            assert float(Oscillator().sigma(f64(b))) == pytest.approx(float(sigma), rel=1e-13)


@pytest.mark.parametrize("zeta", ZETAS)
def test_slope_inverse_cost_and_end(zeta, monkeypatch):
    oscillator = Oscillator(zeta)
    b = torch.logspace(-4, math.log10(min(0.95 * oscillator.b_max, 8 * max(1, zeta))), 300, dtype=torch.float64)
    sigma = oscillator.sigma(b.requires_grad_())
    (slope,) = torch.autograd.grad(sigma.log().sum(), b)
    torch.testing.assert_close(oscillator.log_slope(b), slope, rtol=1e-8, atol=0)
    calls = []
    monkeypatch.setattr(oscillator, "log_slope", lambda at: calls.append(at) or Oscillator.log_slope(oscillator, at))
    torch.testing.assert_close(oscillator.solve(sigma.detach()), b.detach(), rtol=5e-12, atol=0)
    assert len(calls) <= 15  # Newton's method is quadratic, and runs at every training step
    if zeta < 0.95:  # under-damped motion passes zero at B*, and not before
        assert oscillator.b_max == pytest.approx((math.pi - math.acos(zeta)) / math.sqrt(1 - zeta**2), rel=1e-12)
        assert float(oscillator.mean(f64(oscillator.b_max))) == pytest.approx(0, abs=1e-14)
        assert (oscillator.mean(torch.linspace(0, oscillator.b_max * (1 - 1e-9), 1000).double()) > 0).all()
