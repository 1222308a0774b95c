"""Scans: the right numbers at the right places, once each."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from headway import landscape
from headway.errors import HeadwayError
from headway.landscape import Plane, flat, plane_through, random_direction


class Bowl(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))


def bowl(module):
    return (module.w.square() * torch.tensor([1.0, 10.0, 0.0])).sum()


def test_line_of_a_quadratic():
    net, d = Bowl(), torch.tensor([0.0, 1.0, 5.0])
    alphas = np.linspace(-0.5, 1.5, 9)
    losses = landscape.line(bowl, net, flat(net), d, alphas)
    assert losses == pytest.approx(1 + 10 * (2 + alphas) ** 2)
    assert torch.equal(net.w.detach(), torch.tensor([1.0, 2.0, 3.0]))


def test_plane_is_rows_of_y():
    net = Bowl()
    where = Plane(flat(net), torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 0]))
    xs, ys = [0.0, 1.0, 2.0], [-1.0, 0.0]
    grid = landscape.plane(bowl, net, where, xs, ys)
    assert grid == pytest.approx(np.array([[(1 + x) ** 2 + 10 * (2 + y) ** 2 for x in xs] for y in ys]))


def test_checkpoints_keep_their_losses_to_the_last_bit():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.Flatten(), nn.Linear(288, 4))
    x = torch.randn(16, 1, 8, 8)

    def loss(module):
        return module(x).square().mean()

    points = []
    for seed in range(3):
        torch.manual_seed(seed)
        for part in (net[0], net[4]):
            part.reset_parameters()
        points.append((flat(net), loss(net).item()))
    (a, at_a), (b, at_b), (c, at_c) = points
    assert landscape.line(loss, net, a, landscape.between(a, b), [0, 1]).tolist() == [at_a, at_b]
    assert landscape.line(loss, net, a, random_direction(net, torch.Generator()), [0])[0] == at_a
    where = plane_through(a, b, c)
    for (x_, y_), want in zip(where.coordinates([a, b, c]), (at_a, at_b, at_c), strict=True):
        assert landscape.plane(loss, net, where, [x_], [y_])[0, 0] == want


def test_a_scan_goes_on_where_it_was():
    net, d = Bowl(), torch.ones(3)
    alphas, done, calls = np.linspace(-1, 1, 7), {}, []

    def counted(module):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return bowl(module)

    with pytest.raises(KeyboardInterrupt):
        landscape.line(counted, net, flat(net), d, alphas, done)
    assert list(done) == alphas[:3].tolist()
    again = landscape.line(counted, net, flat(net), d, alphas, done)
    assert len(calls) == 8  # seven points, one of them twice
    assert (again == landscape.line(bowl, net, flat(net), d, alphas)).all()


def test_rows_may_be_shared_out_and_grids_refined():
    net, done, calls = Bowl(), {}, []
    where = Plane(flat(net), torch.tensor([1.0, 0, 0]), torch.tensor([0, 1.0, 0]))

    def counted(module):
        calls.append(1)
        return bowl(module)

    xs = np.linspace(-1, 1, 3)
    landscape.plane(counted, net, where, xs, xs[0::2], done)
    landscape.plane(counted, net, where, xs, xs[1::2], done)
    assert len(calls) == 9
    landscape.plane(counted, net, where, np.linspace(-1, 1, 5), np.linspace(-1, 1, 5), done)
    assert len(calls) == 25


def test_losses_that_are_not_finite_stay_so():
    net = Bowl()
    found = landscape.line(lambda m: torch.log(m.w[0]), net, flat(net), torch.tensor([1.0, 0, 0]), [-2, -1, 0])
    assert math.isnan(found[0])
    assert found[1:].tolist() == [-math.inf, 0.0]


def test_no_points_and_no_scalar():
    net = Bowl()
    assert landscape.line(bowl, net, flat(net), torch.ones(3), []).shape == (0,)
    assert landscape.plane(bowl, net, Plane(flat(net), torch.ones(3), torch.ones(3)), [1.0], []).shape == (0, 1)
    with pytest.raises(HeadwayError, match=r"one number, got a tensor of shape \(3,\)"):
        landscape.line(lambda m: m.w, net, flat(net), torch.ones(3), [0])
