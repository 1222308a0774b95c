"""The Gaussian control: against integrating its flow, against the covariance of images, and at any rank."""

import numpy as np
import pytest
import torch

from headway.consistency import MatchedGaussian
from headway.errors import HeadwayError
from headway.ideal import GaussianMixture
from headway.sampling import sample, seed_noise


def images(n: int = 200) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(12, 12, dtype=torch.float64, generator=generator)
    return (0.2 * torch.randn(n, 12, dtype=torch.float64, generator=generator) @ mixing + 0.3).reshape(n, 1, 3, 4)


@pytest.mark.parametrize("n", [200, 5])  # of 5 images the covariance has rank 4
def test_the_flow_is_what_fine_steps_integrate_to(n):
    data = images(n)
    covariance = torch.from_numpy(np.cov(data.flatten(1).T))
    denoiser = GaussianMixture(data.mean(0, keepdim=True), covariance[None])
    fine = sample(denoiser, range(16), solver="heun", steps=400).images
    exact = MatchedGaussian.of(data).flow(80 * seed_noise(range(16), (1, 3, 4), 0), 80)
    torch.testing.assert_close(exact.float(), fine, rtol=0, atol=2e-4)


def test_it_is_its_own_ideal_denoiser():
    data = images()
    gaussian = MatchedGaussian.of(data.float())
    denoiser = GaussianMixture(data.mean(0, keepdim=True), torch.from_numpy(np.cov(data.flatten(1).T))[None])
    x = torch.randn(8, 1, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(gaussian(x, 0.7), denoiser(x, 0.7), rtol=0, atol=1e-6)


def test_a_covariance_that_lacks_rank_is_exact():
    data = images(5)
    gaussian = MatchedGaussian.of(data)
    assert int((gaussian.variances > 0).sum()) == 4
    x0 = gaussian.flow(80 * seed_noise(range(50), (1, 3, 4), 0), 80)
    plane = (data - data.mean(0)).flatten(1)
    offset = (x0 - data.mean(0)).flatten(1)
    within = offset @ torch.linalg.pinv(plane) @ plane
    torch.testing.assert_close(offset, within, rtol=0, atol=1e-12)
    single = torch.full((3, 1, 2, 2), 0.25)
    torch.testing.assert_close(MatchedGaussian.of(single).flow(torch.randn(3, 1, 2, 2), 80), single)


def test_the_flow_carries_the_noisy_law_to_the_data_law():
    # Linear: the covariance it makes of N(mu, C + sigma^2) is M (C + sigma^2) M^T, and has to be C + to^2.
    gaussian, sigma, to = MatchedGaussian.of(images()), 5.0, 0.5
    covariance = (gaussian.axes[0] * gaussian.variances[0]) @ gaussian.axes[0].T
    eye = torch.eye(12, dtype=torch.float64)
    centred = gaussian.means.reshape(1, 1, 3, 4)
    matrix = (gaussian.flow(eye.reshape(12, 1, 3, 4) + centred, sigma, to) - centred).flatten(1)
    torch.testing.assert_close(matrix.T @ (covariance + sigma**2 * eye) @ matrix, covariance + to**2 * eye)


def test_the_flow_can_stop_on_its_way_and_keeps_the_dtype():
    gaussian = MatchedGaussian.of(images())
    x = 80 * seed_noise(range(6), (1, 3, 4), 0)
    torch.testing.assert_close(gaussian.flow(gaussian.flow(x, 80, 2.0), 2.0), gaussian.flow(x, 80))
    torch.testing.assert_close(gaussian.flow(gaussian.flow(x, 80, 2.0), 2.0, 80), x)
    assert gaussian.flow(x.float(), 80).dtype == torch.float32


def test_images_that_need_parts_have_the_same_covariance():
    data = images(9000).float() + 100  # far from zero, and more than one part
    covariance = np.cov(data.double().flatten(1).T)
    gaussian = MatchedGaussian.of(data)
    found = (gaussian.axes[0] * gaussian.variances[0]) @ gaussian.axes[0].T
    torch.testing.assert_close(found, torch.from_numpy(covariance), rtol=0, atol=1e-11)


def test_what_has_no_flow_is_refused():
    with pytest.raises(HeadwayError, match="N >= 2"):
        MatchedGaussian.of(images(1))
    with pytest.raises(HeadwayError, match=r"got 0\.0 and"):
        MatchedGaussian.of(images()).flow(images(3), 0.0)
