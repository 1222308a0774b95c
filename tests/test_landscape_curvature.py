"""Curvature against the dense Hessian of a small network, and against quadratic forms of known spectrum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import nn
from torch.func import functional_call

from headway.errors import HeadwayError
from headway.landscape import (
    flat,
    gradient,
    hessian,
    lanczos,
    loss_at,
    preconditioned,
    spectral_density,
    top_eigenvalues,
    trace,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x):
        q, k, v = self.qkv(x.flatten(2).transpose(1, 2)).unsqueeze(1).chunk(3, dim=-1)
        return x + nn.functional.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU(), Attention(), nn.Conv2d(4, 1, 3, padding=1)
    ).to(dtype)


def task(dtype=torch.float64):
    x, y = torch.randn(2, 3, 1, 4, 4, generator=generator(), dtype=torch.float64).to(dtype)
    return lambda module: (module(x) - y).square().mean()


@pytest.fixture(scope="module")
def dense():
    """The whole Hessian (n, n) in float64, by forward-over-reverse differentiation of torch.func."""
    net, loss = network(), task()
    shapes = {name: p.shape for name, p in net.named_parameters()}

    def of(vector):
        sizes = [shape.numel() for shape in shapes.values()]
        named = {k: v.view(s) for (k, s), v in zip(shapes.items(), vector.split(sizes), strict=True)}
        return loss(lambda x: functional_call(net, named, (x,)))

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.func.hessian(of)(flat(net)).numpy()


def test_products_are_those_of_the_dense_hessian(dense):
    operator = hessian(task(), network())
    assert operator @ np.eye(len(dense)) == pytest.approx(dense, abs=1e-12)
    assert operator.rmatvec(dense[0]) == pytest.approx(dense @ dense[0], abs=1e-12)


def test_float32_networks(dense):
    v = np.random.default_rng(0).standard_normal(len(dense))
    got = hessian(task(torch.float32), network(torch.float32)).matvec(v)
    assert got.dtype == np.float64
    assert np.linalg.norm(got - dense @ v) < 1e-5 * np.linalg.norm(dense @ v)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_top_eigenvalues(dense, dtype):
    operator, values = hessian(task(dtype), network(dtype)), np.linalg.eigvalsh(dense)
    assert top_eigenvalues(operator, 5, generator()) == pytest.approx(values[:-6:-1], rel=1e-3)
    assert top_eigenvalues(operator, 3, generator(), lowest=True) == pytest.approx(values[:3], rel=1e-3)


def test_preconditioned(dense):
    diagonal = torch.rand(len(dense), generator=generator(), dtype=torch.float64) + 0.1
    operator = preconditioned(hessian(task(), network()), diagonal)
    matrix = operator @ np.eye(len(dense))
    assert matrix == pytest.approx(matrix.T, abs=1e-12)
    want = np.sort(np.linalg.eigvals(dense / diagonal.numpy()[:, None]).real)
    assert top_eigenvalues(operator, 3, generator()) == pytest.approx(want[:-4:-1], rel=1e-3)
    with pytest.raises(HeadwayError, match="positive"):
        preconditioned(operator, diagonal - 0.2)


def test_gradient_is_the_slope():
    net, loss = network(), task()
    slope, d = gradient(loss, net), torch.randn(len(flat(net)), generator=generator(1), dtype=torch.float64)
    h = 1e-5
    difference = (loss_at(loss, net, flat(net) + h * d) - loss_at(loss, net, flat(net) - h * d)) / (2 * h)
    assert (slope @ d).item() == pytest.approx(difference, rel=1e-6)
    assert all(p.grad is None for p in net.parameters())


def test_gradients_are_found_without_gradient_mode():
    with torch.no_grad():
        assert hessian(task(), network()).matvec(np.ones(len(flat(network())))).any()


def test_weights_that_do_not_matter_or_matter_linearly():
    net = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)}).double()
    x = torch.ones(1, 2, dtype=torch.float64)
    assert not hessian(lambda m: m["used"](x).sum(), net).matvec(np.ones(6)).any()
    curved = hessian(lambda m: m["used"](x).square().sum(), net).matvec(np.ones(6))
    assert curved == pytest.approx([6, 6, 6, 0, 0, 0])


def test_a_step_ends_the_operator():
    net, loss = network(), task()
    operator = hessian(loss, net)
    loss_at(loss, net, flat(net))
    with pytest.raises(HeadwayError, match="make it anew"):
        operator.matvec(np.ones(operator.shape[0]))


def test_errors_say_what_to_do():
    net = network()
    with pytest.raises(HeadwayError, match="no_grad"):
        hessian(lambda m: torch.zeros(()), net)
    with pytest.raises(HeadwayError, match="no_grad"):
        gradient(lambda m: m[0].weight, net)
    with pytest.raises(HeadwayError, match="not finite"):
        hessian(lambda m: (m[0].weight - m[0].weight.detach()).abs().sqrt().sum(), net).matvec(np.ones(len(flat(net))))
    with pytest.raises(HeadwayError, match="got k=3"):
        top_eigenvalues(aslinearoperator(np.eye(3)), 3, generator())
    with pytest.raises(HeadwayError, match="at least 2"):
        trace(aslinearoperator(np.eye(3)), 1, generator())


def rotated(values, seed=0):
    """A dense symmetric matrix with these eigenvalues."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    return (q * values) @ q.T


def test_lanczos_is_a_similarity():
    matrix = rotated(np.linspace(-1, 4, 30))
    diagonal, off = lanczos(aslinearoperator(matrix), 30, np.ones(30))
    values = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
    assert values == pytest.approx(np.linspace(-1, 4, 30), abs=1e-10)


def test_lanczos_finds_no_eigenvalue_twice():
    """Without reorthogonalisation a far outlier comes back as ghosts within some dozens of steps."""
    values = np.append(np.linspace(0, 1, 199), 1e4)
    diagonal, off = lanczos(aslinearoperator(rotated(values)), 100, np.ones(200))
    found = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
    assert (found > 2).sum() == 1
    assert found[-1] == pytest.approx(1e4)


def test_lanczos_ends_when_nothing_is_left():
    diagonal, _ = lanczos(aslinearoperator(rotated(np.repeat([1.0, 2.0, 5.0], 10))), 20, np.ones(30))
    assert len(diagonal) == 3
    assert len(lanczos(aslinearoperator(np.zeros((4, 4))), 4, np.ones(4))[0]) == 1


def test_spectrum_of_a_known_matrix():
    values = np.concatenate([np.zeros(240), np.full(50, 1.0), np.full(10, -3.0)])
    spectrum = spectral_density(aslinearoperator(rotated(values)), probes=60, steps=20, generator=generator())
    assert spectrum.weights.sum(axis=1) == pytest.approx(np.ones(60))
    for power in (1, 2, 3):
        mean, error = spectrum.expectation(lambda x, p=power: x**p)
        assert abs(mean - (values**power).mean()) < 4 * error
        assert error < 0.2
    grid = np.linspace(-5, 5, 2001)
    density = spectrum.density(grid, width=0.1)
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-6)
    assert np.trapezoid(density[grid > 0.5], grid[grid > 0.5]) == pytest.approx(50 / 300, abs=0.02)
    assert spectrum.positive_share() == pytest.approx(50 / 80, abs=0.05)


def test_few_steps_already_have_the_moments():
    """m steps integrate every polynomial below degree 2 m exactly over the probe's own measure."""
    matrix, v = rotated(np.linspace(-2, 3, 40)), 2.0 * (np.arange(40) % 2) - 1
    diagonal, off = lanczos(aslinearoperator(matrix), 4, v)
    nodes, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
    for degree in range(8):
        assert vectors[0] ** 2 @ nodes**degree == pytest.approx(v @ np.linalg.matrix_power(matrix, degree) @ v / 40)


def test_trace(dense):
    mean, error = trace(hessian(task(), network()), 200, generator())
    assert abs(mean - np.trace(dense)) < 4 * error
    assert error < 0.2 * np.trace(dense)
    exact = trace(aslinearoperator(np.diag([1.0, 2.0, 4.0])), 2, generator())
    assert exact == (7.0, 0.0)
