"""Weight averages and the learning rate, against their closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.errors import HeadwayError
from headway.optim import WeightAverage, ema_decay, learning_rate


def test_decay_is_the_closed_form():
    for k in range(11):
        nimg, half_life = k * 100, 5000.0
        effective = min(half_life, 0.05 * nimg)
        assert ema_decay(nimg, 100, half_life) == pytest.approx(0.5 ** (100 / effective) if k else 0.0)
    assert ema_decay(10**9, 100, 5000.0) == pytest.approx(0.5 ** (100 / 5000))
    assert ema_decay(0, 100, 5000.0, rampup=0) == pytest.approx(0.5 ** (100 / 5000))


def test_the_first_update_copies_and_the_rest_follow():
    network = nn.Linear(2, 2)
    average = WeightAverage(network, half_life=1000, rampup=0.05)
    expected = None
    for k in range(5):
        with torch.no_grad():
            network.weight.fill_(float(k + 1))
        average.update(network, k * 100, 100)
        decay = ema_decay(k * 100, 100, 1000, 0.05)
        expected = float(k + 1) if expected is None else decay * expected + (1 - decay) * (k + 1)
        assert average.network.weight.unique().item() == pytest.approx(expected)
    assert not average.network.weight.requires_grad
    assert not average.network.training


def test_half_life_is_what_it_says():
    network = nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    average = WeightAverage(network, half_life=640, rampup=0)
    nn.init.zeros_(network.weight)
    for step in range(10):
        average.update(network, step * 64, 64)
    assert average.network.weight.item() == pytest.approx(0.5)


@pytest.mark.parametrize(("nimg", "expected"), [(1, 1e-5), (50, 5e-4), (100, 1e-3), (10**9, 1e-3)])
def test_learning_rate_ramps_and_is_never_zero(nimg, expected):
    assert learning_rate(nimg, 1e-3, 100) == pytest.approx(expected)
    assert learning_rate(nimg, 1e-3, 0) == 1e-3


def test_nonsense_is_refused():
    with pytest.raises(HeadwayError):
        learning_rate(0, 1.0, 10)
    with pytest.raises(HeadwayError):
        ema_decay(0, 0, 10)
