"""Stratified quantiles: one in each stratum, each uniform by itself, and a lower variance of the mean."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

import headway
from headway.noise import stratified


def blocks(count, n=64, seed=0):
    uniforms = torch.rand(count, n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.stack([stratified(block) for block in uniforms])


def test_one_in_each_stratum():
    for q in blocks(50):
        assert sorted((q * 64).long().tolist()) == list(range(64))


def test_each_quantile_is_uniform_and_so_is_its_place():
    q = blocks(4000)
    for i in (0, 1, 31, 63):
        assert stats.kstest(q[:, i].numpy(), "uniform").pvalue > 0.01
    # The order is chance: which stratum image 0 gets, and which of two images is noisier.
    assert stats.chisquare(np.bincount((q[:, 0] * 64).long().numpy(), minlength=64)).pvalue > 0.01
    assert abs(float((q[:, 5] > q[:, 6]).float().mean()) - 0.5) < 0.03
    # The jitter within a stratum is uniform too.
    assert stats.kstest((q[:, 3] * 64 % 1).numpy(), "uniform").pvalue > 0.01


def test_it_lowers_the_variance_of_the_mean():
    density = headway.framework("edm").density

    def mean_loss(q):
        sigma = density.icdf(q)
        return (sigma.square() / (0.25 + sigma.square())).mean(1)

    plain = torch.rand(2000, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a, b = mean_loss(plain), mean_loss(blocks(2000))
    assert abs(a.mean() - b.mean()) < 5 * a.std() / 2000**0.5
    assert b.var() < a.var() / 100


def test_quantiles_stay_inside():
    almost_one = 1 - 2.0**-53
    q = stratified(torch.tensor([[0.5, almost_one]] * 64, dtype=torch.float64))
    assert q.max() < 1
    assert float(headway.framework("edm").density.icdf(q).max()) < float("inf")
    assert stratified(torch.rand(8, 2)).dtype == torch.float64
    assert stratified(torch.tensor([[0.3, 0.25]])).tolist() == [0.25]
