"""Immiscible assignment: optimal, without replacement, within blocks and classes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from headway.coupling import COUPLINGS, find_coupling, immiscible, independent
from headway.errors import HeadwayError


def pair(n, shape=(1, 4, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=generator), torch.randn(n, *shape, generator=generator)


def cost(images, noise, permutation):
    return float((images - noise[permutation]).double().square().sum())


def test_it_is_the_best_permutation():
    for seed in range(5):
        images, noise = pair(6, seed=seed)
        images = 2 * images + 1  # norms that differ
        best = min(cost(images, noise, list(p)) for p in itertools.permutations(range(6)))
        assert cost(images, noise, immiscible(images, noise)) == pytest.approx(best, rel=1e-6)


def test_each_noise_is_used_once_within_its_block():
    images, noise = pair(150)
    permutation = immiscible(images, noise)
    assert permutation.dtype == torch.int64
    for start, stop in ((0, 64), (64, 128), (128, 150)):
        assert sorted(permutation[start:stop].tolist()) == list(range(start, stop))
    # A block is assigned alike whatever else is in the batch.
    assert torch.equal(immiscible(images[64:128], noise[64:128]) + 64, permutation[64:128])
    small = immiscible(images, noise, block=10)
    assert all(sorted(small[s : s + 10].tolist()) == list(range(s, s + 10)) for s in range(0, 150, 10))


def test_labels_keep_noise_within_its_class():
    images, noise = pair(200)
    labels = torch.randint(3, (200,), generator=torch.Generator().manual_seed(0))
    permutation = immiscible(images, noise, labels)
    assert torch.equal(labels[permutation], labels)
    assert torch.equal(permutation // 64, torch.arange(200) // 64)
    images, noise, labels = images[:64], noise[:64], torch.arange(64) % 5
    permutation = immiscible(images, noise, labels)
    assert torch.equal(labels[permutation], labels)
    assert sorted(permutation.tolist()) == list(range(64))
    for label in range(5):
        own = (labels == label).nonzero().flatten()
        alone = immiscible(images[own], noise[own])
        assert torch.equal(permutation[own], own[alone])
    assert cost(images, noise, immiscible(images, noise)) < cost(images, noise, permutation)
    assert cost(images, noise, permutation) < cost(images, noise, independent(images, noise))


def test_without_labels_the_noise_of_a_class_is_no_longer_gaussian():
    """Why labels matter: unlabelled assignment gives bright images bright noise."""
    means = {"plain": [], "by class": []}
    for seed in range(60):
        images, noise = pair(32, seed=seed)
        labels = torch.arange(32) % 2
        images += 2 * labels[:, None, None, None]
        means["plain"].append(noise[immiscible(images, noise)][labels == 1].mean())
        means["by class"].append(noise[immiscible(images, noise, labels)][labels == 1].mean())
    assert np.mean(means["plain"]) > 0.1
    assert abs(np.mean(means["by class"])) < 4 / np.sqrt(60 * 16 * 16)
    assert stats.ttest_1samp(means["plain"], 0).pvalue < 1e-6


def test_independent_changes_nothing():
    assert independent(*pair(9)).tolist() == list(range(9))


def test_wrong_input_is_refused():
    images, noise = pair(8)
    with pytest.raises(HeadwayError, match="one shape"):
        immiscible(images, noise[:4])
    with pytest.raises(HeadwayError, match="class label"):
        immiscible(images, noise, torch.zeros(7))
    with pytest.raises(HeadwayError, match="at least 1"):
        immiscible(images, noise, block=0)
    with pytest.raises(HeadwayError, match="Did you mean 'immiscible'"):
        find_coupling("imiscible")
    assert find_coupling("immiscible") is COUPLINGS["immiscible"]
