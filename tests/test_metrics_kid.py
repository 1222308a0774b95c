"""The kernel distance: the numbers of torchmetrics, of a double loop and of closed forms; unbiased at any count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from headway.errors import HeadwayError
from headway.metrics import frechet_distance, kernel_distance, kernel_distance_over_subsets, neighbours

PLENTY = 4000


def normal(n: int, d: int, seed: int = 0, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return mean + std * torch.randn(n, d, generator=generator, dtype=torch.float64)


def test_it_is_the_double_loop_over_all_pairs(monkeypatch):
    a, b = normal(23, 5).numpy(), normal(17, 5, 1, 0.5).numpy()

    def k(x, y):
        return (x @ y / 5 + 1) ** 3

    def within(x):
        return np.mean([k(x[i], x[j]) for i in range(len(x)) for j in range(len(x)) if i != j])

    expected = within(a) + within(b) - 2 * np.mean([k(x, y) for x in a for y in b])
    a, b = torch.from_numpy(a), torch.from_numpy(b)
    assert kernel_distance(a, b) == pytest.approx(expected, rel=1e-12)
    assert kernel_distance(b, a) == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr(neighbours, "BLOCK", 6)
    assert kernel_distance(a, b) == pytest.approx(expected, rel=1e-12)


def test_its_expectation_is_the_difference_of_moments_whatever_the_counts():
    """In one dimension with gamma = 1 the cubic kernel compares the first three moments."""
    mean, std = 0.5, 1.2
    moments = np.array([mean, mean**2 + std**2, mean**3 + 3 * mean * std**2]) - np.array([0, 1, 0])
    exact = float(moments**2 @ [3, 3, 1])
    draws = [kernel_distance(normal(12, 1, i), normal(7, 1, PLENTY + i, mean, std)) for i in range(PLENTY)]
    error = np.std(draws) / np.sqrt(PLENTY)
    assert np.mean(draws) == pytest.approx(exact, abs=4 * error)
    assert error < 0.2 * exact


def test_equal_distributions_are_zero_on_average_and_others_are_not():
    draws = [kernel_distance(normal(60, 8, 2 * i), normal(50, 8, 2 * i + 1)) for i in range(400)]
    error = np.std(draws) / 20
    assert abs(np.mean(draws)) < 4 * error
    assert min(draws) < 0
    assert kernel_distance(normal(60, 8), normal(50, 8, 1, 0.5)) > max(draws)


def test_subsets_are_those_of_the_generator():
    a, b = normal(300, 6), normal(200, 6, 1, 0.3)
    first = kernel_distance_over_subsets(a, b, torch.Generator().manual_seed(3), subsets=20, size=50)
    assert first == kernel_distance_over_subsets(a, b, torch.Generator().manual_seed(3), subsets=20, size=50)
    assert first != kernel_distance_over_subsets(a, b, torch.Generator().manual_seed(4), subsets=20, size=50)
    mean, std = first
    assert mean == pytest.approx(kernel_distance(a, b), abs=4 * std / np.sqrt(20))
    everything = kernel_distance_over_subsets(a[:200], b, torch.Generator(), subsets=2, size=200)
    assert everything == pytest.approx((kernel_distance(a[:200], b), 0), abs=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.zeros(5, 3), torch.zeros(5, 4), r"\(5, 3\) and \(5, 4\)"),
        (torch.zeros(5), torch.zeros(5), "two feature matrices"),
        (torch.zeros(1, 3), torch.zeros(5, 3), "at least 2 rows a side, got 1 and 5"),
        (torch.full((5, 3), float("nan")), torch.zeros(5, 3), "NaN"),
    ],
)
def test_what_cannot_be_compared_is_refused(a, b, message):
    with pytest.raises(HeadwayError, match=message):
        kernel_distance(a, b)


def test_subsets_larger_than_the_sets_are_refused():
    with pytest.raises(HeadwayError, match="subsets of 2 to 30 rows"):
        kernel_distance_over_subsets(normal(50, 2), normal(30, 2), torch.Generator())


# torchmetrics on the same features


class Flat(nn.Module):
    """Some pixels of images uint8 (n, 3, 8, 8) as features, in float64 as torchmetrics cannot make them by itself."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images[:, :, ::3, ::3].flatten(1).double() / 64 - 2


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    real = torch.randint(0, 256, (400, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return real, (real[:350].flip(0).float() * 0.9 + 20).to(torch.uint8)


def test_torchmetrics_gives_the_same_kernel_distance(images):
    kid = pytest.importorskip("torchmetrics.image.kid")
    real, fake = images

    def theirs(real: torch.Tensor, fake: torch.Tensor, subsets: int, size: int) -> tuple[float, float]:
        metric = kid.KernelInceptionDistance(feature=Flat(), subsets=subsets, subset_size=size)
        metric.update(real, real=True)
        metric.update(fake, real=False)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            mean, std = metric.compute()
        return float(mean), float(std)

    net = Flat()
    whole, _ = theirs(real[:350], fake, 1, 350)
    assert kernel_distance(net(fake), net(real[:350])) == pytest.approx(whole, rel=1e-4)
    ours = kernel_distance_over_subsets(net(fake), net(real), torch.Generator().manual_seed(7), subsets=10, size=90)
    assert ours == pytest.approx(theirs(real, fake, 10, 90), rel=1e-4)


def test_torchmetrics_gives_the_same_frechet_distance(images):
    fid = pytest.importorskip("torchmetrics.image.fid")
    real, fake = images
    metric = fid.FrechetInceptionDistance(feature=Flat(), input_img_size=(3, 8, 8)).set_dtype(torch.float64)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    net = Flat()
    assert frechet_distance(net(fake), net(real)) == pytest.approx(float(metric.compute()), rel=1e-4)
