"""Densities of the training noise level, against scipy's laws, quadrature and the published drawing rules."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from scipy.integrate import quad

import headway
from headway.errors import HeadwayError
from headway.noise import LogNormal, LogUniform


def damped(low, high):
    """sigma of the critically damped process at a time uniform between two ends."""

    def draw(u):
        t = low + (high - low) * u
        b = 0.1 * t + 9.95 * t**2
        return np.sqrt(np.expm1(2 * b) - 2 * b - 2 * b**2) / (1 + b)

    return draw


def vp(u):
    t = 1 + u * (1e-5 - 1)
    return np.sqrt(np.expm1(9.95 * t**2 + 0.1 * t))


def flow(u):
    t = special.expit(stats.norm.ppf(u))
    return t / (1 - t)


def momentum(name, **options):
    return headway.framework(name, "propagated", density="momentum", **options)


# A density, and how its paper or code draws sigma from a uniform number u (None: no paper does).
CASES = {
    "vp": (headway.framework("vp").density, vp),
    "ve": (headway.framework("ve").density, lambda u: 0.02 * (100 / 0.02) ** u),
    "edm": (headway.framework("edm").density, lambda u: np.exp(-1.2 + 1.2 * stats.norm.ppf(u))),
    "flow": (headway.framework("flow").density, flow),
    "log-normal": (LogNormal(0.4, 2.0), stats.lognorm(s=2.0, scale=math.exp(0.4)).ppf),
    "log-uniform": (LogUniform(0.1, 3), stats.loguniform(0.1, 3).ppf),
    "momentum": (momentum("edm").density, damped(*momentum("edm").time_range)),
    "momentum of ve": (momentum("ve").density, damped(*momentum("ve").time_range)),
    "under-damped": (momentum("vp", zeta=0.5).density, None),
    "over-damped": (momentum("flow", zeta=2.0).density, None),
}
each = pytest.mark.parametrize("name", CASES)
BOUNDED = [name for name in CASES if name not in ("edm", "flow", "log-normal")]
Q = torch.tensor([1e-9, 1e-4, 0.01, 0.2, 0.5, 0.8, 0.99, 1 - 1e-6], dtype=torch.float64)


@each
def test_cdf_and_icdf_are_inverse(name):
    density = CASES[name][0]
    sigma = density.icdf(Q.reshape(2, 4))
    assert sigma.shape == (2, 4)
    torch.testing.assert_close(density.cdf(sigma).flatten(), Q, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(density.icdf(density.cdf(sigma)), sigma, rtol=1e-9, atol=0)
    single = density.icdf(Q.float()[1:-1])
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), sigma.flatten()[1:-1], rtol=5e-6, atol=0)
    torch.testing.assert_close(density.cdf(single).double(), Q[1:-1], rtol=0, atol=1e-6)
    assert torch.equal(density.icdf(Q, 0.7), density.icdf(Q))  # progress is for curricula


@each
def test_log_prob_is_the_slope_of_cdf(name):
    density = CASES[name][0]

    def per_log_sigma(x):
        return math.exp(float(density.log_prob(torch.tensor(math.exp(x), dtype=torch.float64))) + x)

    cuts = density.icdf(Q).log().tolist()  # the integral between quantiles is their difference; so all of it is 1
    parts = [quad(per_log_sigma, a, b, epsabs=1e-12, epsrel=1e-10)[0] for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(parts, Q.diff().numpy(), rtol=1e-8)
    sigma = density.icdf(Q[2:-1])
    h = sigma * 1e-5
    slope = (density.cdf(sigma + h) - density.cdf(sigma - h)) / (2 * h)
    torch.testing.assert_close(density.log_prob(sigma).exp(), slope, rtol=1e-6, atol=0)
    torch.testing.assert_close(density.log_prob(sigma.float()).double(), density.log_prob(sigma), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name][1]])
def test_draws_follow_the_published_rule(name):
    density, rule = CASES[name]
    u = torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    reference = rule(np.random.default_rng(2).random(200_000))
    assert stats.kstest(density.icdf(u).numpy(), reference).pvalue > 0.01
    # Quantile by quantile too: VP's published rule runs from noisy to clean.
    np.testing.assert_allclose(density.icdf(u), rule(1 - u.numpy() if name == "vp" else u.numpy()), rtol=1e-9)


def test_flow_is_drawn_unclamped():
    below, above = CASES["flow"][0].icdf(torch.tensor([1e-12, 1 - 1e-9], dtype=torch.float64)).tolist()
    assert below < 0.002 < 80 < above


@pytest.mark.parametrize("name", BOUNDED)
def test_nothing_outside_the_support(name):
    density = CASES[name][0]
    outside = density.icdf(torch.tensor([0.0, 1.0], dtype=torch.float64)) * torch.tensor([0.99, 1.01])
    assert density.cdf(outside).tolist() == [0.0, 1.0]
    assert density.log_prob(outside).tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize(
    ("density", "options"),
    [(LogNormal, (0, 0)), (LogNormal, (0, math.nan)), (LogUniform, (0, 1)), (LogUniform, (2, 1))],
)
def test_impossible_densities_are_refused(density, options):
    with pytest.raises(HeadwayError, match="needs"):
        density(*options)
