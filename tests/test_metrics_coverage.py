"""Precision, recall, density and coverage: by hand, by scikit-learn, and in expectation."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from headway.errors import HeadwayError
from headway.metrics import Overlap, neighbours, overlap


def normal(n: int, d: int, seed: int = 0, mean: float = 0.0) -> torch.Tensor:
    return mean + torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def test_points_on_a_line_by_hand():
    # Balls of the reference reach 1, 1, 1 and 8; those of the samples 4.5, 4.5 and 25.
    assert overlap(column(0.5, 5, 30), column(0, 1, 2, 10), k=1) == Overlap(2 / 3, 1, 1, 3 / 4)


def by_sklearn(samples: np.ndarray, reference: np.ndarray, k: int) -> tuple[float, float, float, float]:
    def radii(x):
        return NearestNeighbors(n_neighbors=k + 1, algorithm="brute").fit(x).kneighbors(x)[0][:, k]

    tree = NearestNeighbors(n_neighbors=len(reference), algorithm="brute").fit(reference)
    distances, order = tree.kneighbors(samples)
    pairs = np.empty_like(distances)
    np.put_along_axis(pairs, order, distances, axis=1)
    held = pairs <= radii(reference)
    recalled = (pairs <= radii(samples)[:, None]).any(axis=0)
    return held.any(axis=1).mean(), recalled.mean(), held.sum() / (k * len(samples)), held.any(axis=0).mean()


@pytest.mark.parametrize("block", [11, 2048])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_scikit_learn_finds_the_same(k, block, monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", block)
    samples, reference = normal(130, 4, 0, 0.4), normal(170, 4, 1)
    found = astuple(overlap(samples, reference, k))
    assert found == pytest.approx(by_sklearn(samples.numpy(), reference.numpy(), k), abs=1e-12)
    assert all(0.2 < value < 2 for value in found)


@pytest.mark.parametrize(("n", "m", "k"), [(300, 300, 5), (300, 300, 1), (100, 400, 3)])
def test_coverage_of_equal_distributions_is_as_expected(n, m, k):
    expected = 1 - math.prod((m - i) / (m + n - i) for i in range(1, k + 1))
    draws = [overlap(normal(n, 6, 2 * i), normal(m, 6, 2 * i + 1), k).coverage for i in range(40)]
    assert np.mean(draws) == pytest.approx(expected, abs=4 * np.std(draws) / math.sqrt(40))


def test_dropped_modes_cost_recall_and_stray_samples_cost_precision():
    left, right = normal(200, 3), normal(200, 3, 1, 50.0)
    dropped = overlap(normal(200, 3, 2), torch.cat([left, right]))
    assert dropped.precision > 0.9
    assert dropped.recall < 0.51
    assert dropped.coverage < 0.51
    stray = overlap(torch.cat([normal(200, 3, 2), normal(200, 3, 3, 50.0)]), left)
    assert stray.precision < 0.51
    assert stray.recall > 0.9
    assert stray.coverage > 0.9


def test_copies_of_points_are_inside_even_where_balls_have_no_size():
    points = normal(9, 3).repeat_interleave(4, dim=0) + 1000  # each point four times: balls of radius 0 at k = 3
    assert overlap(points, points, k=3) == Overlap(1, 1, 4 / 3, 1)


def test_too_few_points_are_refused():
    with pytest.raises(HeadwayError, match="at least 6 rows a side, got 5 and 9"):
        overlap(normal(5, 2), normal(9, 2))
