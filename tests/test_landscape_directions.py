"""Directions: lengths by the definition, lines that meet their ends, planes with known coordinates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from headway.errors import HeadwayError
from headway.landscape import (
    Plane,
    along,
    between,
    flat,
    normalised,
    path_plane,
    plane_through,
    random_direction,
    written,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pieces(net, vector):
    """The vector as tensors by parameter name."""
    with written(net, vector):
        return {name: p.detach().double().clone() for name, p in net.named_parameters()}


def network():
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.GroupNorm(2, 6),
        nn.ConvTranspose2d(6, 4, 3, groups=2),
        nn.LayerNorm([4, 8, 8]),
        nn.Linear(8, 5),
    ).double()
    with torch.no_grad():
        net[4].weight[2].zero_()
    return net


def test_filters_get_the_length_of_their_weights():
    net = network()
    d = pieces(net, random_direction(net, generator()))
    conv, linear = net[0].weight.detach(), net[4].weight.detach()
    for i in range(6):
        assert d["0.weight"][i].norm().item() == pytest.approx(conv[i].norm().item())
    for i in range(5):
        assert d["4.weight"][i].norm().item() == pytest.approx(linear[i].norm().item())
    assert not d["4.weight"][2].any()  # a filter of zeros: no direction, and no NaN
    # A transposed convolution's outputs are its second axis, group by group.
    for group in range(2):
        for out in range(2):
            got, own = d["2.weight"][3 * group : 3 * group + 3, out], net[2].weight[3 * group : 3 * group + 3, out]
            assert got.norm().item() == pytest.approx(own.norm().item())
    for name in ("0.bias", "1.weight", "1.bias", "2.bias", "3.weight", "3.bias", "4.bias"):
        assert not d[name].any(), name


def test_options():
    net = network()
    noise = torch.randn(len(flat(net)), generator=generator(), dtype=torch.float64)
    d = pieces(net, normalised(net, noise, by="layer", vectors="layer"))
    for name, weight in net.named_parameters():
        assert d[name].norm().item() == pytest.approx(weight.norm().item()), name
        raw = pieces(net, noise)[name]
        assert torch.allclose(d[name] * raw.norm(), raw * weight.norm())
    with pytest.raises(HeadwayError, match="Did you mean 'filter'"):
        normalised(net, noise, by="filtre")


def test_normalised_directions_see_through_a_rescaling():
    """Filters scaled by 10 before a normalisation are the same network; so is the network moved along the direction."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.GroupNorm(4, 4, eps=0), nn.Flatten(), nn.Linear(144, 2)
    ).double()
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)

    def moved():
        with written(net, along(flat(net), random_direction(net, generator(5)), 0.5)):
            return net(x)

    before = moved()
    with torch.no_grad():
        net[0].weight.mul_(10)
    assert torch.allclose(moved(), before, atol=1e-12)


def test_parametrised_layers_are_known():
    torch.manual_seed(0)
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.ConvTranspose2d(3, 4, 2, bias=False)).double()
    d = random_direction(layer, generator()).view(3, 4, 2, 2)
    own = layer.parametrizations.weight.original
    assert torch.allclose(d.square().sum(dim=(0, 2, 3)), own.square().sum(dim=(0, 2, 3)))


def test_a_generator_decides():
    net = network()
    assert torch.equal(random_direction(net, generator(1)), random_direction(net, generator(1)))
    assert not torch.equal(random_direction(net, generator(1)), random_direction(net, generator(2)))


def test_lines_meet_both_ends_to_the_last_bit():
    start, end = torch.randn(10_000, generator=generator(1)), 1e-3 * torch.randn(10_000, generator=generator(2))
    end[::7] = 0  # layers that begin at zero
    direction = between(start, end)
    assert torch.equal(along(start, direction, 0.0), start)
    assert torch.equal(along(start, direction, 1.0).float(), end)
    assert torch.equal(along(start, direction, 1.5), start.double() + 1.5 * direction)
    poisoned = torch.full_like(direction, math.inf)
    assert torch.equal(along(start, poisoned, 0.0), start)


def test_plane_through_three_checkpoints():
    a, b, c = torch.randn(3, 500, generator=generator())
    plane = plane_through(a, b, c)
    (ax, ay), (bx, by), (cx, cy) = plane.coordinates([a, b, c])
    assert (ax, ay) == (0, 0)
    assert by == pytest.approx(0, abs=1e-12)
    assert cy > 0
    assert bx == pytest.approx((b - a).double().norm().item())
    assert math.hypot(cx - bx, cy - by) == pytest.approx((c.double() - b.double()).norm().item())
    assert torch.equal(plane.point(0, 0), a)
    assert torch.equal(plane.point(bx, by).float(), b)
    assert torch.equal(plane.point(cx, cy).float(), c)
    with pytest.raises(HeadwayError, match="one line"):
        plane_through(a, b, a + 0.5 * (b - a))
    with pytest.raises(HeadwayError, match="one line"):
        plane_through(a, a, c)


def test_coordinates_of_a_skew_plane():
    a, u, v = torch.randn(3, 50, generator=generator(), dtype=torch.float64)
    plane = Plane(a, u, 3 * v + u)
    assert plane.coordinates([plane.point(0.3, -0.7)]) == pytest.approx(np.array([[0.3, -0.7]]))


def test_path_plane_against_numpy():
    path = list(torch.randn(12, 300, generator=generator(), dtype=torch.float64).cumsum(0))
    found = path_plane(path)
    matrix = torch.stack(path).numpy()
    _, s, vt = np.linalg.svd(matrix - matrix.mean(0), full_matrices=False)
    assert found.explained == pytest.approx(s**2 / (s**2).sum(), abs=1e-12)
    for axis, want in zip((found.plane.u, found.plane.v), vt, strict=False):
        assert abs(axis.numpy() @ want) == pytest.approx(1)
        assert axis.norm().item() == pytest.approx(1)
    assert found.path == pytest.approx(((matrix - matrix[-1]) @ np.stack([found.plane.u, found.plane.v]).T), abs=1e-9)
    assert (found.path[0] >= 0).all()
    assert torch.equal(found.plane.point(*found.path[-1]), path[-1])


def test_a_random_walk_seems_to_lie_in_a_plane():
    """The null level of explained variance: 6 / (pi k)^2 (Antognini and Sohl-Dickstein 2018), 61 % and 15 % for noise alone."""
    path = list(torch.randn(100, 20_000, generator=generator(), dtype=torch.float64).cumsum(0))
    assert path_plane(path).explained[:2] == pytest.approx([6 / np.pi**2, 1.5 / np.pi**2], abs=0.02)


def test_paths_that_span_no_plane():
    step = torch.randn(20, generator=generator())
    with pytest.raises(HeadwayError, match="one line"):
        path_plane([i * step for i in range(5)])
    with pytest.raises(HeadwayError, match="at least 3"):
        path_plane([step, 2 * step])
