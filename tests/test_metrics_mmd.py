"""The Gaussian MMD: closed forms between Gaussians, and a bandwidth that follows the reference's scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headway.errors import HeadwayError
from headway.metrics import gaussian_mmd2, median_bandwidth, neighbours


def normal(n: int, d: int, seed: int = 0, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + std * torch.randn(n, d, generator=generator, dtype=torch.float64)


def mean_kernel(d: int, gap: float, variance: float, sigma: float) -> float:
    """E exp(-|x - y|^2 / (2 sigma^2)) for x - y normal, each coordinate with mean `gap` and `variance`."""
    wide = sigma**2 + variance
    return (sigma**2 / wide) ** (d / 2) * math.exp(-d * gap**2 / (2 * wide))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.4, 1.0), (0.0, 1.5), (0.3, 0.7)])
@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_between_gaussians_it_is_the_closed_form(mean, std, sigma):
    d = 3
    exact = (
        mean_kernel(d, 0, 2, sigma) + mean_kernel(d, 0, 2 * std**2, sigma) - 2 * mean_kernel(d, mean, 1 + std**2, sigma)
    )
    draws = [gaussian_mmd2(normal(200, d, i, mean, std), normal(150, d, 1000 + i), sigma) for i in range(60)]
    assert np.mean(draws) == pytest.approx(exact, abs=4 * np.std(draws) / np.sqrt(60) + 1e-6)


def test_cmmd_is_its_biased_twin():
    """The estimate with each row paired with itself, as CMMD's code takes it, differs by the stated bias."""
    a, b = normal(40, 6), normal(40, 6, 1, 0.5)

    def kernel(x, y):
        return torch.exp(-torch.cdist(x, y).square() / 200)

    off = 1 - torch.eye(40)
    aa, bb = ((kernel(x, x) * off).sum() / off.sum() for x in (a, b))
    biased = kernel(a, a).mean() + kernel(b, b).mean() - 2 * kernel(a, b).mean()
    assert gaussian_mmd2(a, b, sigma=10) == pytest.approx(float(biased - (2 - aa - bb) / 40), rel=1e-9)


def test_the_bandwidth_is_the_median_distance_of_the_reference():
    assert median_bandwidth(torch.tensor([[0.0], [1.0], [3.0]])) == 2
    reference = normal(700, 20, 1)
    assert median_bandwidth(reference) == pytest.approx(math.sqrt(2 * 20), rel=0.05)
    twins = normal(5000, 20, 1)
    assert median_bandwidth(twins) == pytest.approx(float(torch.pdist(twins).median()), rel=0.01)


def test_units_and_origin_of_the_features_do_not_matter():
    a, b = normal(300, 4, 0, 0.3), normal(200, 4, 1)
    plain = gaussian_mmd2(a, b)
    assert plain > 0.001
    assert gaussian_mmd2(50 * a, 50 * b) == pytest.approx(plain, rel=1e-9)
    assert gaussian_mmd2(a + 1e4, b + 1e4) == pytest.approx(plain, rel=1e-6)


def test_blocks_do_not_matter(monkeypatch):
    a, b = normal(50, 4, 0, 0.3), normal(31, 4, 1)
    whole = gaussian_mmd2(a, b)
    monkeypatch.setattr(neighbours, "BLOCK", 7)
    assert gaussian_mmd2(a, b) == pytest.approx(whole, rel=1e-11)


def test_what_has_no_bandwidth_is_refused():
    with pytest.raises(HeadwayError, match="their median distance is 0; give sigma"):
        gaussian_mmd2(normal(9, 2), torch.zeros(9, 2))
    with pytest.raises(HeadwayError, match="must be above 0"):
        gaussian_mmd2(normal(9, 2), normal(9, 2), sigma=0.0)
