"""The Fréchet distance against closed forms, scipy and a second formula; its statistics against numpy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway.errors import HeadwayError
from headway.metrics import FeatureStats, frechet_distance


def features(n: int, d: int, seed: int = 0, offset: float = 0.0) -> torch.Tensor:
    """Correlated Gaussian features in float64."""
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=g, dtype=torch.float64)
    return torch.randn(n, d, generator=g, dtype=torch.float64) @ mix + offset


def gaussian(mean: list[float], deviations: list[float]) -> FeatureStats:
    """Statistics that say exactly: diagonal Gaussian."""
    cov = torch.tensor(deviations, dtype=torch.float64).square().diag()
    return FeatureStats.restore(
        {"n": torch.tensor(101), "mean": torch.tensor(mean, dtype=torch.float64), "scatter": 100 * cov}
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 99), st.sampled_from([0.0, 1e4]))
def test_statistics_are_numpy_s_however_the_batches_fall(sizes, seed, offset):
    rows = features(sum(sizes) + 3, 5, seed, offset)
    stats = FeatureStats(5)
    for batch in rows.split([*sizes, 3]):
        stats.update(batch)
    np.testing.assert_allclose(stats.mean, rows.numpy().mean(0), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(stats.cov, np.cov(rows.numpy().T), rtol=1e-10, atol=1e-10)
    assert stats.n == len(rows)
    assert torch.equal(stats.cov, stats.cov.T)


def test_merging_in_any_order_is_taking_in_everything():
    parts = [features(n, 4, seed=n, offset=100.0) for n in (1, 7, 30)]
    whole = FeatureStats.of(torch.cat(parts))
    for order in ([0, 1, 2], [2, 0, 1]):
        merged = FeatureStats(4)
        for i in order:
            merged.merge(FeatureStats.of(parts[i]))
        torch.testing.assert_close(merged.cov, whole.cov, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-14, atol=1e-14)


def test_reducing_over_processes_is_taking_in_everything():
    parts = [features(n, 4, seed=n, offset=1e4) for n in (9, 0, 30)]  # one process has nothing
    barrier, shared = Barrier(3, timeout=30), [torch.empty(0)] * 3

    def run(rank: int) -> FeatureStats:
        def total(tensor: torch.Tensor) -> torch.Tensor:
            assert tensor.dtype == torch.float64
            shared[rank] = tensor
            barrier.wait()
            result = torch.stack(shared).sum(0)
            barrier.wait()
            return result

        return FeatureStats.of(parts[rank]).reduce(total)

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(run, range(3)))
    whole = FeatureStats.of(torch.cat(parts))
    for stats in results:
        assert stats.n == 39
        torch.testing.assert_close(stats.mean, whole.mean, rtol=1e-14, atol=0)
        torch.testing.assert_close(stats.cov, whole.cov, rtol=1e-10, atol=1e-10)


def test_low_precision_features_are_summed_in_float64():
    rows = (features(5000, 3) * 0.01 + 100).half()
    np.testing.assert_allclose(FeatureStats.of(rows).cov, np.cov(rows.double().numpy().T), rtol=1e-10)


def test_state_survives_storage():
    stats = FeatureStats.of(features(20, 3))
    again = FeatureStats.restore(stats.state())
    assert again.n == 20
    assert torch.equal(again.cov, stats.cov)
    assert torch.equal(again.mean, stats.mean)


def test_diagonal_gaussians_have_the_closed_form():
    a, b = gaussian([0, 1, 2], [1, 2, 0]), gaussian([3, 1, 0], [4, 2, 5])
    assert frechet_distance(a, b) == pytest.approx((9 + 0 + 4) + (9 + 0 + 25), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 12), st.integers(0, 999))
def test_equals_scipy_s_matrix_root(d, seed):
    a, b = features(8 * d, d, seed).numpy(), features(9 * d, d, seed + 1, offset=0.5).numpy()
    cov_a, cov_b = np.cov(a.T), np.cov(b.T)
    root = scipy.linalg.sqrtm(cov_a @ cov_b).real
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + np.trace(cov_a + cov_b - 2 * root)
    assert headway.frechet_distance(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(expected, rel=1e-7)


@pytest.mark.filterwarnings("ignore:.*features leave the covariance singular")
@pytest.mark.parametrize(("n", "m"), [(10, 10), (10, 200), (2, 64), (40, 60)])
def test_rank_deficient_covariances_cost_no_accuracy(n, m):
    # With centred rows X, Y the trace of (AB)^1/2 is the nuclear norm of X Y^T / sqrt((n - 1)(m - 1)).
    a, b = features(n, 64, 1).numpy(), features(m, 64, 2, offset=1.0).numpy()
    x, y = (a - a.mean(0)) / np.sqrt(n - 1), (b - b.mean(0)) / np.sqrt(m - 1)
    expected = ((a.mean(0) - b.mean(0)) ** 2).sum() + (x**2).sum() + (y**2).sum()
    expected -= 2 * np.linalg.svd(x @ y.T, compute_uv=False).sum()
    assert frechet_distance(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.filterwarnings("ignore:.*features leave the covariance singular")
@pytest.mark.parametrize("n", [5, 64, 65, 1000])
def test_a_set_is_at_distance_zero_from_itself(n):
    rows = features(n, 64, offset=10.0).float()
    shuffled = rows[torch.randperm(n, generator=torch.Generator().manual_seed(0))]
    assert 0 <= frechet_distance(rows, shuffled) < 1e-8 * float(rows.double().var(0).sum())


def test_constant_features_leave_the_distance_of_the_means():
    a, b = torch.zeros(100, 3), torch.tensor([1.0, 2.0, 2.0]).repeat(50, 1)
    assert frechet_distance(a, b) == pytest.approx(9)
    rows = features(100, 3)
    assert frechet_distance(a, rows) == pytest.approx(float(rows.mean(0).square().sum() + rows.var(0).sum()))


def test_turning_both_changes_nothing_and_scaling_both_scales_by_the_square():
    a, b = features(100, 6, 1), features(150, 6, 2)
    rotation = torch.linalg.qr(features(6, 6, 3)).Q
    value = frechet_distance(a, b)
    assert frechet_distance(b, a) == pytest.approx(value, rel=1e-10)
    assert frechet_distance(a @ rotation + 7, b @ rotation + 7) == pytest.approx(value, rel=1e-9)
    assert frechet_distance(1e-3 * a, 1e-3 * b) == pytest.approx(1e-6 * value, rel=1e-9)


def test_too_few_images_for_the_features_are_warned_about():
    with pytest.warns(UserWarning, match="8 images for 8 features"):
        frechet_distance(features(8, 8), features(9, 8))
    assert FeatureStats.of(features(9, 8)).shortage is None


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.zeros(1, 3), torch.zeros(5, 3), "at least 2"),
        (torch.zeros(0, 3), torch.zeros(5, 3), "at least 2"),
        (torch.zeros(5, 3), torch.zeros(5, 4), "3 features with 4"),
        (torch.tensor([[0.0], [float("nan")]]), torch.zeros(5, 1), "1 of 2 feature vectors contain NaN"),
        (torch.zeros(5), torch.zeros(5), r"\(n, d\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*features leave the covariance singular")
def test_refuses_what_has_no_distance(a, b, message):
    with pytest.raises(HeadwayError, match=message):
        frechet_distance(a, b)
