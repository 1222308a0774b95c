"""Figures of smoothness: bounds by simulation, curves whose figures are known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam

from headway.errors import HeadwayError
from headway.landscape import (
    adam_preconditioner,
    convexity_share,
    edge_ratio,
    eigenvalue_ratio,
    flat,
    gradient,
    gradient_predictiveness,
    hessian,
    roughness,
    stability_bound,
)


def still_there_after(steps, optimizer_for, curvature):
    """|w| after some steps on curvature w^2 / 2 from 1."""
    w = nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = optimizer_for([w])
    for _ in range(steps):
        optimizer.zero_grad()
        (curvature * w.square() / 2).backward()
        optimizer.step()
    return abs(w.item())


@pytest.mark.parametrize(("beta", "dampening"), [(0.0, None), (0.5, None), (0.9, None), (0.9, 0.0), (0.9, 0.5)])
def test_the_bound_is_where_sgd_stops_converging(beta, dampening):
    bound = stability_bound(beta, dampening)
    inside = beta if dampening is None else dampening

    def sgd(weights):
        return SGD(weights, lr=1e-2, momentum=beta, dampening=inside)

    assert still_there_after(300, sgd, 0.97 * bound / 1e-2) < 1e-3
    assert still_there_after(300, sgd, 1.03 * bound / 1e-2) > 1e3
    assert edge_ratio(1e-2, bound / 1e-2, beta, dampening) == pytest.approx(1)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_the_bound_is_where_adam_stops_converging(beta):
    """A huge eps freezes the preconditioner at eps, and a long past ends the bias correction."""
    eps = 1e40

    def adam(weights):
        optimizer = Adam(weights, lr=1e-2 * eps, betas=(beta, 0.999), eps=eps)
        nothing = torch.zeros((), dtype=torch.float64)
        optimizer.state[weights[0]] = {"step": torch.tensor(1e6), "exp_avg": nothing, "exp_avg_sq": nothing.clone()}
        return optimizer

    assert still_there_after(300, adam, 0.97 * stability_bound(beta) / 1e-2) < 1e-3
    assert still_there_after(300, adam, 1.03 * stability_bound(beta) / 1e-2) > 1e3


def test_known_bounds():
    assert stability_bound(0.9) == pytest.approx(38)
    assert stability_bound(0.9, 0.0) == pytest.approx(3.8)
    assert stability_bound(0.0) == 2
    with pytest.raises(HeadwayError, match="0 <= beta < 1"):
        stability_bound(1.0)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adams_step_is_momentum_over_the_preconditioner(amsgrad):
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    groups = [{"params": [net.weight]}, {"params": [net.bias], "eps": 1e-3, "betas": (0.9, 0.9)}]
    optimizer = Adam(groups, lr=1e-2, amsgrad=amsgrad)
    for scale in (3.0, 1.0, 0.1):
        optimizer.zero_grad()
        before = flat(net)
        (scale * net(torch.randn(8, 4, dtype=torch.float64)).square().mean()).backward()
        optimizer.step()
    moments = torch.cat([optimizer.state[p]["exp_avg"].reshape(-1) for p in net.parameters()]) / (1 - 0.9**3)
    assert torch.allclose(before - flat(net), 1e-2 * moments / adam_preconditioner(net, optimizer))
    with pytest.raises(HeadwayError, match="second moment"):
        adam_preconditioner(nn.Linear(4, 3), optimizer)


def test_eigenvalue_ratio():
    assert eigenvalue_ratio([1.0, 8.0, 4.0, 2.0, 3.0, -9.0]) == 8
    assert eigenvalue_ratio([6.0, 3.0], k=2) == 2
    assert math.isnan(eigenvalue_ratio([6.0, -3.0], k=2))
    with pytest.raises(HeadwayError, match="needs 5"):
        eigenvalue_ratio([1.0])


class Quadratic(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))


def test_gradient_predictiveness_of_a_quadratic():
    curvatures = torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)
    net, d = Quadratic(), torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64)

    def loss(module):
        return (curvatures * module.w.square()).sum() / 2

    want = (curvatures * d).norm() / (curvatures * net.w.detach()).norm()
    found = gradient_predictiveness(loss, net, d, [0.0, 0.5, 1.0, 2.0])
    assert found == pytest.approx(want.item() * np.array([0, 0.5, 1, 2]))
    assert gradient_predictiveness(lambda m: -7 * loss(m) + 3, net, d) == pytest.approx([want.item()])
    minimum = flat(net)
    assert gradient_predictiveness(lambda m: (m.w - minimum).square().sum(), net, d)[0] == math.inf


def test_gradient_predictiveness_of_a_small_step_is_the_hessians():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)).double()
    x = torch.randn(16, 4, dtype=torch.float64)

    def loss(module):
        return (module(x) - x[:, :1].exp()).square().mean()

    slope = gradient(loss, net)
    step = -1e-6 * slope
    want = np.linalg.norm(hessian(loss, net).matvec(step.numpy())) / slope.norm().item()
    assert gradient_predictiveness(loss, net, step)[0] == pytest.approx(want, rel=1e-4)


X = np.linspace(-0.5, 1.5, 201)


def test_curves_of_known_roughness():
    line = roughness(X, 5 - 3 * X)
    assert line == pytest.approx((0, 0, 0), abs=1e-12)
    valley = roughness(X, (X - 0.5) ** 2)
    assert valley == pytest.approx((0, 0, 64), rel=0.02)
    # Between two minima at 0 and 1 a barrier of half the range: one bump, counted up and down.
    unit = (X + 0.5) / 2
    double = roughness(unit, np.cos(4 * np.pi * unit))
    assert double.variation == pytest.approx(2, abs=1e-3)
    assert double.bending == pytest.approx((4 * np.pi) ** 4 / 8, rel=0.02)
    # A hill: its envelope is the floor, its area is 2/3.
    hill = roughness(X, 1 - (X - 0.5) ** 2)
    assert hill == pytest.approx((2, 2 / 3, 64), rel=0.02)
    assert roughness(X, np.full_like(X, 3.0)) == (0, 0, 0)


def test_uneven_grids():
    x = np.sort(np.random.default_rng(0).uniform(0, 1, 400))
    assert roughness(x, (x - 0.5) ** 2)[:2] == pytest.approx((0, 0), abs=1e-12)
    assert convexity_share(x, (x - 0.5) ** 2) == 1


@settings(max_examples=25)
@given(st.floats(1e-6, 1e6), st.floats(-1e3, 1e3), st.integers(0, 2**31))
def test_units_of_loss_and_line_do_not_matter(scale, shift, seed):
    y = np.random.default_rng(seed).standard_normal(20).cumsum()
    x = np.linspace(0, 1, 20)
    assert roughness(3 * x - 7, scale * (y + shift)) == pytest.approx(roughness(x, y), rel=1e-6, abs=1e-9)
    assert convexity_share(3 * x - 7, scale * (y + shift)) == pytest.approx(convexity_share(x, y))


def test_how_the_figures_depend_on_the_grid():
    def at(n, noise=0.0):
        x = np.linspace(0, 1, n)
        y = (x - 0.4) ** 2 + 0.05 * np.cos(20 * x)
        return np.array(roughness(x, y + noise * np.random.default_rng(0).standard_normal(n)))

    assert at(401) == pytest.approx(at(201), rel=0.01)
    assert at(101)[0] <= at(201)[0] <= at(401)[0]
    noisy, smooth = at(401, noise=1e-3), at(401)
    assert noisy[0] > smooth[0] + 0.2  # each wiggle counts
    assert noisy[1] == pytest.approx(smooth[1], abs=0.02)
    assert noisy[2] > 100 * smooth[2]


def test_convexity_share():
    unit = (X + 0.5) / 2
    assert convexity_share(X, X**2) == 1
    assert convexity_share(X, -(X**2)) == 0
    assert convexity_share(X, 2 + 3 * X) == 1
    assert convexity_share(unit, np.sin(2 * np.pi * unit)) == pytest.approx(0.5, abs=0.02)
    assert convexity_share(unit, unit**2 + 1e-8 * np.random.default_rng(0).standard_normal(201)) == 1


def test_curves_without_a_scale_are_refused():
    with pytest.raises(HeadwayError, match="2 of 4"):
        roughness([0, 1, 2, 3], [1.0, math.inf, math.nan, 2.0])
    with pytest.raises(HeadwayError, match="ascending"):
        convexity_share([0, 2, 1], [1.0, 2.0, 3.0])
    with pytest.raises(HeadwayError, match="3 or more"):
        roughness([0, 1], [1.0, 2.0])
