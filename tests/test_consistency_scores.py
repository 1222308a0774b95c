"""Consistency scores: against brute force, against Lin's formula, against other libraries, and the coverage of the interval."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch.nn import functional as F

from headway.consistency import (
    consistency_score,
    cosine,
    derangement,
    interval,
    psnr,
    same_and_random,
    ssim,
)
from headway.errors import HeadwayError
from headway.images import to_uint8


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pair(n: int, shape: tuple[int, ...], rho: float = 0.8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two stacks of correlation rho in every entry."""
    a, own = torch.randn(2, n, *shape, dtype=torch.float64, generator=rng(seed)).unbind()
    return a, rho * a + math.sqrt(1 - rho**2) * own


def images(n: int = 5, shape: tuple[int, ...] = (3, 32, 32)) -> tuple[torch.Tensor, torch.Tensor]:
    smooth = torch.from_numpy(ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(n, *shape)), (0, 0, 1, 1)))
    return (a := (2 * smooth).clamp(-1, 1)), (a + 0.2 * torch.randn(a.shape, generator=rng(), dtype=a.dtype)).clamp(
        -1, 1
    )


def brute_force(a: torch.Tensor, b: torch.Tensor, noises: torch.Tensor | None = None) -> float:
    """Every pair by itself; pairs of one noise are no random pairs."""
    noises = torch.arange(len(a)) if noises is None else noises
    a, b = a[noises], b[noises]
    distance = (a[:, None] - b[None]).flatten(2).square().sum(2)
    return float(1 - distance.diagonal().mean() / distance[noises[:, None] != noises].mean())


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_the_score_is_that_of_all_pairs_one_by_one(offset):
    a, b = pair(40, (2, 3, 4))
    a, b = 3 * a + offset, b + offset + 0.5
    found = consistency_score(a, b, rng())
    assert found.score == pytest.approx(brute_force(a, b), abs=1e-11)
    assert found.score == pytest.approx(1 - found.same / found.random)
    assert found.same == pytest.approx(float((a - b).flatten(1).square().sum(1).mean()))


def test_each_resample_is_a_score_of_the_noises_it_drew():
    a, b = pair(12, (3,))
    found = consistency_score(a, b, rng(7), resamples=70)
    generator = rng(7)
    drawn = torch.cat([torch.randint(12, (rows, 12), generator=generator) for rows in (64, 6)])
    expected = [brute_force(a, b, noises) for noises in drawn]
    assert found.replicates.tolist() == pytest.approx(expected, abs=1e-11)


def test_the_score_is_lins_concordance():
    # Unbiased estimates of covariance, variances and squared difference of means; of vectors, their traces.
    a, b = pair(50, (4,), rho=0.6)
    b = 1.7 * b + 0.4
    joint = np.cov(a.T, b.T)
    cross, spread = np.trace(joint[:4, 4:]), np.trace(joint)
    offset = float((a.mean(0) - b.mean(0)).square().sum()) - (spread - 2 * cross) / 50
    assert consistency_score(a, b, rng()).score == pytest.approx(2 * cross / (spread + offset), abs=1e-12)


def test_synthetic_pairs_have_the_concordance_they_were_made_with():
    n, rho, scale, shift = 20_000, 0.7, 2.0, 1.0
    a, b = pair(n, (5,), rho)
    found = consistency_score(a, scale * b + shift, rng(), resamples=1)
    assert found.score == pytest.approx(2 * rho * scale / (1 + scale**2 + shift**2), abs=0.01)


def test_landmarks():
    a, b = pair(400, (6,), rho=0.0)
    assert consistency_score(a, a, rng()).score == 1
    assert consistency_score(a, -a, rng()).score == pytest.approx(-1, abs=0.02)
    chance = consistency_score(a, b, rng(), confidence=0.999)
    assert chance.low < 0 < chance.high
    # A model that makes one image whatever the noise says nothing about the noise.
    assert consistency_score(a, torch.ones_like(a), rng()).score == pytest.approx(0, abs=1e-12)


def test_the_interval_covers_as_often_as_it_says():
    rho, hits = 0.8, 0
    for seed in range(200):
        found = consistency_score(*pair(60, (3,), rho, seed), rng(seed), resamples=200, confidence=0.9)
        hits += found.low < rho < found.high
    assert 0.82 < hits / 200 < 0.96  # 0.9 within 4 standard errors, less a little for n = 60


def test_replicates_of_one_generator_state_belong_together():
    a, b = pair(100, (4,), rho=0.9)
    c = b + 0.01 * torch.randn(b.shape, dtype=b.dtype, generator=rng(3))
    one, other = consistency_score(a, b, rng(5)), consistency_score(a, c, rng(5))
    low, high = interval(one.replicates - other.replicates)
    assert high - low < 0.1 * (one.high - one.low)


def test_psnr_is_that_of_the_bytes():
    a, b = ((images(5)[k] * 127.5 + 127.5).round() / 127.5 - 1 for k in (0, 1))
    error = (to_uint8(a).double() - to_uint8(b).double()).square().flatten(1).mean(1)
    torch.testing.assert_close(psnr(a, b), 10 * (255**2 / error).log10())
    assert psnr(a, a).tolist() == [math.inf] * 5


def reference_ssim(x: np.ndarray, y: np.ndarray, radius: int, sigma: float) -> float:
    """Of one channel in 0 .. 255, with scipy's Gaussian filter in place of a convolution."""

    def blur(z: np.ndarray) -> np.ndarray:
        inside = slice(radius, -radius)
        return ndimage.gaussian_filter(z, sigma, radius=radius)[inside, inside]

    mx, my = blur(x), blur(y)
    vx, vy, vxy = blur(x * x) - mx**2, blur(y * y) - my**2, blur(x * y) - mx * my
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    return float(np.mean((2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))))


@pytest.mark.parametrize(
    ("shape", "radius"), [((3, 32, 32), 5), ((1, 11, 20), 5), ((1, 8, 8), 3), ((1, 10, 9), 4), ((2, 3, 3), 1)]
)
def test_ssim_is_wangs_of_the_pictures_with_a_window_that_fits(shape, radius):
    a, b = images(70, shape)
    pictures = [(127.5 * (stack + 1)).numpy() for stack in (a, b)]
    size = 2 * radius + 1
    expected = [
        np.mean([reference_ssim(x, y, radius, 1.5 * size / 11) for x, y in zip(p, q, strict=True)])
        for p, q in zip(*pictures, strict=True)
    ]
    assert ssim(a, b).tolist() == pytest.approx(expected, abs=1e-9)
    assert ssim(a, a).tolist() == pytest.approx([1] * 70)


def test_ssim_is_skimages():
    metrics = pytest.importorskip("skimage.metrics")
    a, b = images()
    options = {"channel_axis": 0, "gaussian_weights": True, "use_sample_covariance": False, "sigma": 1.5}
    expected = [
        metrics.structural_similarity(x.numpy() + 1, y.numpy() + 1, data_range=2, **options)
        for x, y in zip(a, b, strict=True)
    ]
    assert ssim(a, b).tolist() == pytest.approx(expected, abs=1e-6)


def test_ssim_is_torchmetrics():
    """Theirs also counts windows that reach over the edge, on a mirrored border."""
    functional = pytest.importorskip("torchmetrics.functional.image")
    a, b = images()
    expected = functional.structural_similarity_index_measure(a + 1, b + 1, data_range=2.0, reduction="none")
    a, b = (F.pad(stack, (5, 5, 5, 5), mode="reflect") for stack in (a, b))
    assert ssim(a, b).tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_the_chance_level_pairs_no_noise_with_itself_and_favours_none():
    counts = torch.zeros(5, 5)
    generator = rng()
    for _ in range(4000):
        counts[torch.arange(5), derangement(5, generator)] += 1
    assert counts.diagonal().sum() == 0
    assert counts[~torch.eye(5, dtype=torch.bool)].sub(1000).abs().max() < 110  # 4 standard errors
    a, b = pair(200, (3, 8, 8), rho=0.9)
    for measure in (psnr, ssim, cosine):
        same, random = same_and_random(measure, a, b, rng())
        assert same.shape == random.shape == (200,)
        assert same.mean() > random.mean() + 4 * random.std() / math.sqrt(200)
    assert cosine(a, b).mean() == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: psnr(torch.zeros(3, 1, 8, 8), torch.zeros(2, 1, 8, 8)), r"\(3, 1, 8, 8\) and \(2, 1, 8, 8\)"),
        (lambda: ssim(torch.zeros(3, 1, 2, 8), torch.zeros(3, 1, 2, 8)), "3 x 3"),
        (lambda: ssim(torch.zeros(3, 8), torch.zeros(3, 8)), "3 x 3"),
        (lambda: cosine(torch.zeros(3), torch.zeros(3)), "same noises"),
        (lambda: derangement(1, rng()), "2 or more"),
        (lambda: consistency_score(*pair(7, (3,)), rng()), "got 7 and 1000"),
        (lambda: consistency_score(*pair(9, (3,)), rng(), resamples=0), "got 9 and 0"),
        (lambda: consistency_score(*pair(9, (3,)), rng(), confidence=95), "got 95"),
        (lambda: consistency_score(torch.ones(9, 2), torch.ones(9, 2), rng()), "one and the same"),
    ],
)
def test_what_cannot_be_scored_is_refused(call, message):
    with pytest.raises(HeadwayError, match=message):
        call()
