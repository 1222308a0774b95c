"""The ideal denoisers, which are the oracle of other tests, against brute force, autograd and torch's own distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

import headway
from headway.errors import HeadwayError

each_sigma = pytest.mark.parametrize("sigma", [0.002, 0.05, 0.3, 1.0, 7.0, 80.0])
close = torch.testing.assert_close
ONE = torch.eye(4, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mixture(k=3):
    """Means, covariances and weights of k components on images of 1x2x2."""
    factors = 0.5 * normal(k, 4, 4, seed=1)
    return normal(k, 1, 2, 2), factors @ factors.mT + 0.01 * ONE, torch.tensor([0.2, 0.5, 0.3][:k]).double()


@each_sigma
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ideal_denoiser_is_the_posterior_mean(sigma, dtype):
    data = normal(20, 3, 4, 4).clamp(-1, 1).to(dtype).double()
    x = (data[:8] + sigma * normal(8, 3, 4, 4, seed=1)).to(dtype)
    expected = []
    for one in x.double():  # Bayes, image by image
        log = torch.stack([-(one - y).square().sum() / (2 * sigma**2) for y in data])
        p = (log - log.max()).exp()
        expected.append(sum(w * y for w, y in zip(p / p.sum(), data, strict=True)))
    D = headway.IdealDenoiser(data)
    close(D(x, sigma), torch.stack(expected).to(dtype), rtol=0, atol=1e-11 if dtype == torch.float64 else 2e-5)
    close(D(x, torch.full((8,), sigma, dtype=dtype)), D(x, sigma))
    points = headway.GaussianMixture(data, torch.zeros(20, 48, 48, dtype=torch.float64))
    close(points(x.double(), sigma), torch.stack(expected), rtol=0, atol=1e-10)


def test_ideal_denoiser_minimises_the_loss():
    """In one dimension, with the expectation as a sum over x: L(D + h) - L(D) = integral of p h^2, exactly, for any h."""
    data = torch.tensor([[-1.0], [-0.2], [0.7]], dtype=torch.float64)
    for sigma in (0.1, 0.5, 2.0):
        x = torch.linspace(-1 - 9 * sigma, 1 + 9 * sigma, 4001, dtype=torch.float64)[:, None]
        p = (-(x - data.T).square() / (2 * sigma**2)).exp() / (sigma * math.sqrt(2 * math.pi)) * (x[1] - x[0]) / 3
        best = headway.IdealDenoiser(data)(x, sigma)
        for h in (0.01 * torch.sin(5 * x), torch.full_like(x, -0.1), 0.3 * normal(*x.shape)):
            loss, least = ((p * (estimate - data.T).square()).sum() for estimate in (best + h, best))
            close(loss - least, (p.sum(1, keepdim=True) * h.square()).sum(), rtol=1e-9, atol=1e-15)


@each_sigma
def test_mixture_against_torch_distributions_and_tweedie(sigma):
    means, covariances, weights = mixture()
    D = headway.GaussianMixture(means, covariances, 7 * weights)  # weights need not sum to 1
    x = (D.draw(10, torch.Generator().manual_seed(3)) + sigma * normal(10, 1, 2, 2)).requires_grad_()
    smoothed = MultivariateNormal(means.flatten(1), covariances + sigma**2 * ONE)
    reference = MixtureSameFamily(Categorical(weights), smoothed).log_prob(x.flatten(1))
    close(D.log_prob(x, sigma), reference, rtol=1e-9, atol=1e-9)
    (score,) = torch.autograd.grad(D.log_prob(x, sigma).sum(), x)  # Tweedie: D = x + sigma^2 grad log p
    close(D(x, sigma), x + sigma**2 * score, rtol=1e-9, atol=1e-9)
    close(headway.convert(D(x, sigma), x, sigma, "x0", "score"), score, rtol=1e-7, atol=1e-7 / sigma)


@each_sigma
def test_one_component_is_linear(sigma):
    means, covariances, _ = mixture(1)
    x = normal(6, 1, 2, 2)
    gain = covariances[0] @ torch.linalg.inv(covariances[0] + sigma**2 * ONE)
    expected = means.flatten(1) + (x - means).flatten(1) @ gain.T
    close(headway.GaussianMixture(means, covariances)(x, sigma).flatten(1), expected, rtol=1e-9, atol=1e-9)


def test_draws_and_that_the_denoiser_is_unbiased_on_them():
    means, covariances, weights = mixture()
    D, n, flat = headway.GaussianMixture(means, covariances, weights), 200_000, means.flatten(1)
    draws = D.draw(n, torch.Generator().manual_seed(0))
    assert torch.equal(draws, D.draw(n, torch.Generator().manual_seed(0)))
    assert draws.shape == (n, 1, 2, 2)
    mean = weights @ flat
    covariance = (weights[:, None, None] * (covariances + flat[:, :, None] * flat[:, None])).sum(0) - mean[
        :, None
    ] * mean
    spread = covariance.diagonal().sqrt()
    assert ((draws.flatten(1).mean(0) - mean).abs() / spread).max() < 4.5 / math.sqrt(n)
    assert ((draws.flatten(1).T.cov() - covariance).abs() / (spread[:, None] * spread)).max() < 6 * math.sqrt(2 / n)
    x = draws + 0.6 * normal(n, 1, 2, 2, seed=5)  # E[(x0 - D(x)) g(x)] = 0 for any g: D is the minimiser
    for g in (torch.ones_like(x), x.sin(), D(x, 0.6)):
        product = (draws - D(x, 0.6)).flatten(1)[:, :, None] * g.flatten(1)[:, None]
        assert (product.mean(0).abs() / product.std(0)).max() < 4.5 / math.sqrt(n)


def test_the_state_decides_dtype_and_device():
    means, covariances, weights = mixture()
    x, single = normal(4, 1, 2, 2), headway.GaussianMixture(means.float(), covariances, weights)
    assert single(x, 1.0).dtype == single.log_prob(x, 1.0).dtype == torch.float64
    assert single.draw(2).dtype == torch.float32  # the means'
    for D in (single.double(), headway.IdealDenoiser(means)):
        close(D(x.float(), 0.5), D(x, 0.5).float(), rtol=1e-4, atol=1e-5)
        assert D(x.to("meta"), torch.ones(4, device="meta")).device.type == "meta"
        assert (D.shape, D.framework.name) == ((1, 2, 2), "edm")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: headway.IdealDenoiser(torch.zeros(0, 1, 2, 2)), "N >= 1"),
        (lambda: headway.IdealDenoiser(torch.zeros(3)), "N, "),
        (lambda: headway.GaussianMixture(torch.zeros(2, 3), torch.zeros(2, 2, 2)), r"\(2, 3, 3\)"),
        (lambda: headway.GaussianMixture(torch.zeros(2, 3), torch.zeros(2, 3, 3), torch.ones(1)), "2 positive weights"),
        (lambda: headway.GaussianMixture(torch.zeros(1, 3), torch.zeros(1, 3, 3), torch.tensor([-1.0])), "positive"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(HeadwayError, match=words):
        make()
