"""Nearest neighbours as scikit-learn finds them, and copies of training images found among samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from headway.errors import HeadwayError
from headway.metrics import find_copies, nearest, neighbours
from headway.metrics.memorisation import compare_nearest


def normal(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("block", "values"), [(13, 2**24), (2048, 2**24), (2048, 40)])
@pytest.mark.parametrize("k", [1, 4])
def test_scikit_learn_finds_the_same_neighbours(k, block, values, monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", block)
    monkeypatch.setattr(neighbours, "VALUES", values)
    queries, points = normal(70, 5), normal(90, 5, 1)
    distances, indices = nearest(queries, points, k)
    expected, order = NearestNeighbors(n_neighbors=k).fit(points.double().numpy()).kneighbors(queries.double().numpy())
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices, order)
    distances, indices = nearest(points, points, k, same=True)
    expected, order = NearestNeighbors(n_neighbors=k).fit(points.double().numpy()).kneighbors()
    np.testing.assert_allclose(distances, expected, rtol=1e-12)
    np.testing.assert_array_equal(indices, order)


def test_a_copy_is_at_distance_zero_however_far_from_the_origin():
    points = normal(3000, 64) + 1e4
    distances, indices = nearest(points[[7, 2999]], points)
    assert distances.flatten().tolist() == [0, 0]
    assert indices.flatten().tolist() == [7, 2999]


def test_no_block_is_large():
    sizes = [pairs.numel() for _, _, pairs in neighbours.squared_distances(normal(5000, 2), normal(9000, 2))]
    assert sum(sizes) == 5000 * 9000
    assert max(sizes) * 8 <= 32 * 2**20


def test_neighbours_that_are_not_there_are_refused():
    with pytest.raises(HeadwayError, match="Asked for 9 nearest neighbours among 8 points"):
        nearest(normal(9, 2), normal(9, 2), 9, same=True)
    with pytest.raises(HeadwayError, match="both sets are one, but they have 9 and 8 rows"):
        nearest(normal(9, 2), normal(8, 2), same=True)


def test_planted_copies_are_found_and_named():
    train, heldout, samples = normal(800, 12), normal(400, 12, 1), normal(300, 12, 2)
    clean = find_copies(samples, train, heldout)
    assert clean.share < 0.04
    assert clean.chance > 1e-3
    assert clean.identical == 0
    assert clean.ratio == pytest.approx(1, abs=0.1)
    planted = [5, 50, 200, *range(100, 120)]
    others = nearest(samples, train)[0][[i for i in range(300) if i not in planted]]
    samples[[5, 50, 200]] = train[[700, 3, 70]]
    samples[100:120] = train[100:120] + 0.01 * normal(20, 12, 3)
    found = find_copies(samples, train, heldout, pairs=23)
    assert found.identical == 3
    assert found.flagged == 23 + int((others <= found.threshold).sum())
    assert found.share == found.flagged / 300
    assert found.chance < 1e-6
    assert sorted(found.pairs[:3].tolist()) == [[5, 700], [50, 3], [200, 70]]
    assert sorted(found.pairs[3:].tolist()) == [[i, i] for i in range(100, 120)]
    assert found.distances[:3].tolist() == [0, 0, 0]
    assert found.distances.tolist() == sorted(found.distances)


def test_the_share_of_held_out_images_is_the_quantile():
    train, heldout = normal(500, 4), normal(1000, 4, 1)
    for quantile in (0.01, 0.1, 0.5):
        found = find_copies(heldout, train, heldout, quantile=quantile)
        assert found.share == pytest.approx(quantile, abs=1e-9)
        assert found.ratio == 1


def test_an_alarm_is_false_as_rarely_as_it_says():
    generator = torch.Generator().manual_seed(0)
    chances = []
    for _ in range(2000):
        samples, heldout = (torch.rand(n, 1, generator=generator).double() + 1 for n in (150, 200))
        chances.append(compare_nearest((samples, torch.zeros(150, 1, dtype=torch.int64)), heldout).chance)
    for level in (0.5, 0.1, 0.02):
        share = np.mean(np.array(chances) <= level)
        error = np.sqrt(level * (1 - level) / 2000)
        assert share <= level + 4 * error  # a count takes few values, so the share may fall short of the level
        assert share > level / 3


def test_what_tells_nothing_is_refused():
    train = normal(50, 3)
    with pytest.raises(HeadwayError, match="Half of the held-out images are training images"):
        find_copies(normal(9, 3, 1), train, train[:20])
    with pytest.raises(HeadwayError, match="quantile"):
        find_copies(normal(9, 3, 1), train, normal(9, 3, 2), quantile=1.0)
    with pytest.raises(HeadwayError, match="0 samples with 9 held-out"):
        find_copies(normal(0, 3), train, normal(9, 3, 2))
