"""Training's randomness: the same for an image whatever the cut, different between images, streams and seeds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headway.training.draws import BLOCK, Draws


def draws(seed: int = 0, images: int = 100) -> Draws:
    return Draws(seed, images, (1, 2, 3))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 500), st.lists(st.integers(1, 150), min_size=1, max_size=5))
def test_any_cut_gives_the_same_bits(start, lengths):
    stop = start + sum(lengths)
    whole = draws()
    for method in ("indices", "noise", "uniforms"):
        expected = getattr(whole, method)(start, stop)
        parts, at = [], start
        for length in lengths:
            parts.append(getattr(draws(), method)(at, at + length))
            at += length
        assert torch.equal(torch.cat(parts), expected)


def test_each_epoch_is_another_permutation_of_all_images():
    order = draws(images=37).indices(0, 37 * 3).reshape(3, 37)
    assert all(sorted(epoch.tolist()) == list(range(37)) for epoch in order)
    assert not torch.equal(order[0], order[1])


def test_seeds_streams_and_blocks_are_independent():
    a, b = draws(0).noise(0, 4 * BLOCK), draws(1).noise(0, 4 * BLOCK)
    assert not torch.equal(a, b)
    assert not torch.equal(a[:BLOCK], a[BLOCK : 2 * BLOCK])
    assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.1
    extra = draws().torch_blocks("augment", 0, 10, lambda n, g: torch.rand(n, 2, generator=g))
    other = draws().torch_blocks("other", 0, 10, lambda n, g: torch.rand(n, 2, generator=g))
    assert not torch.equal(extra, other)


def test_the_laws():
    noise, uniform = draws().noise(0, 6400).flatten(), draws().uniforms(0, 6400)
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-3
    for column in uniform.T:
        assert stats.kstest(column.numpy(), "uniform").pvalue > 1e-3
    assert uniform.dtype == torch.float64
    assert uniform.min() > 0


@pytest.mark.parametrize("epochs", [1, 7])
def test_a_batch_may_span_several_epochs(epochs):
    order = draws(images=5).indices(3, 5 + 5 * epochs)[2:]
    assert torch.bincount(order, minlength=5).tolist() == [epochs] * 5
