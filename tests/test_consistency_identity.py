"""The eps-network and the identity: against the Gaussian's curve, and against what the cosine must be."""

import pytest
import torch
from torch import Tensor, nn

from headway.consistency import MatchedGaussian, eps_cosine, gaussian_eps_cosine
from headway.denoiser import Denoiser
from headway.errors import HeadwayError
from headway.frameworks import EDM, framework

SIGMAS = [0.01, 0.1, 0.5, 1.0, 5.0, 50.0]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def law(spread: float, mean: float) -> MatchedGaussian:
    """Dimension 400, eigenvalues from 1 / spread to spread."""
    variances = torch.logspace(-1, 1, 400, base=spread, dtype=torch.float64)
    axes = torch.linalg.qr(torch.randn(400, 400, dtype=torch.float64, generator=rng(1)))[0]
    covariance = (axes * variances) @ axes.T
    return MatchedGaussian(torch.full((1, 20, 20), mean), (covariance + covariance.T) / 2)


@pytest.mark.parametrize(("spread", "mean"), [(30.0, 0.0), (30.0, 1.5), (3.0, 0.5)])
def test_the_gaussians_curve_is_the_formula(spread, mean):
    gaussian = law(spread, mean)
    curve = eps_cosine(gaussian, gaussian.draw(100, rng()), SIGMAS, rng(2))
    expected = gaussian_eps_cosine(gaussian, SIGMAS)
    assert ((curve.mean - expected).abs() < 4 * curve.error + 2 / 400).all()
    assert expected.diff().min() > 0
    assert expected[0] < 0.97 < 0.999 < expected[-1]


def test_for_white_data_the_cosine_is_1_at_every_noise_level():
    white = law(1.0, 0.0)
    assert gaussian_eps_cosine(white, SIGMAS).tolist() == pytest.approx([1.0] * 6)
    assert eps_cosine(white, white.draw(8, rng()), SIGMAS, rng()).cosines.min() > 1 - 1e-9


def test_the_cosine_per_image_is_that_of_eps_with_the_networks_input():
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.5)
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x: Tensor, c_noise: Tensor, labels: Tensor) -> Tensor:
            return self.dropout(self.conv(x)) + 0.1 * labels[:, None, None, None]

    torch.manual_seed(0)
    denoiser = Denoiser(Network().double(), framework("vp"), shape=(1, 6, 6), classes=3)
    images = torch.randn(5, 1, 6, 6, generator=rng())
    labels = [0, 1, 2, 0, 1]
    curve = eps_cosine(denoiser, images, [0.5, 20.0], rng(3), labels=labels, batch=2)
    assert denoiser.network.dropout.training
    noise = torch.randn(5, 1, 6, 6, dtype=torch.float64, generator=rng(3))
    denoiser.eval()
    for row, sigma in zip(curve.cosines, (0.5, 20.0), strict=True):
        scaled = (images + sigma * noise) / (1 + sigma**2) ** 0.5
        # VP's own network is handed exactly this and answers eps.
        time = denoiser.framework.c_noise(sigma).expand(5)
        eps = denoiser.network(scaled, time, torch.tensor(labels)).detach()
        expected = [float(e.flatten() @ x.flatten() / (e.norm() * x.norm())) for e, x in zip(eps, scaled, strict=True)]
        assert row.tolist() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(curve.mean, curve.cosines.mean(1))
    torch.testing.assert_close(curve.error, curve.cosines.var(1).div(5).sqrt())


def test_at_high_noise_a_denoiser_that_knows_only_the_mean_looks_the_same():
    class Constant(nn.Module):
        framework, shape = EDM(), (1, 20, 20)

        def forward(self, x: Tensor, sigma: Tensor, labels: Tensor | None) -> Tensor:
            return torch.full_like(x, 0.5)

    gaussian = law(3.0, 0.5)
    images = gaussian.draw(50, rng())
    ideal, constant = (eps_cosine(d, images, [0.3, 50.0], rng()).mean for d in (gaussian, Constant()))
    assert ideal[1] == pytest.approx(float(constant[1]), abs=1e-4)
    assert ideal[0] != pytest.approx(float(constant[0]), abs=1e-2)


def test_what_makes_no_sense_is_refused():
    gaussian = law(3.0, 0.0)
    images = gaussian.draw(3, rng())
    for sigmas in ([1.0, 0.0], 1.0):
        with pytest.raises(HeadwayError, match="noise levels > 0"):
            eps_cosine(gaussian, images, sigmas, rng())
    with pytest.raises(HeadwayError, match="got 1 and 64"):
        eps_cosine(gaussian, images[:1], [1.0], rng())
    with pytest.raises(HeadwayError, match="no classes"):
        eps_cosine(gaussian, images, [1.0], rng(), labels=1)
