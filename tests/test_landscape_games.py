"""Games of two losses: the Jacobian of their field against torch's dense one, and games whose rotation is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import nn
from torch.func import functional_call

from headway.errors import HeadwayError
from headway.landscape import flat, jacobian, preconditioned, rotation_share


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


class Point(nn.Module):
    def __init__(self, n, seed):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n, generator=generator(seed), dtype=torch.float64))


A = torch.randn(6, 4, generator=generator(9), dtype=torch.float64)


def mixture(bilinear, potential):
    """Players x (6) and y (4): zero-sum x A y, plus a potential of both."""
    x, y = Point(6, 1), Point(4, 2)

    def common():
        return potential * (x.w.square().sum() / 2 + x.w @ A @ y.w + (y.w**4).sum())

    return [
        (x, lambda m: bilinear * (m.w @ A @ y.w) + common()),
        (y, lambda m: -bilinear * (x.w @ A @ m.w) + common()),
    ]


def test_a_single_loss_does_not_rotate():
    share, error = rotation_share(jacobian(mixture(0.0, 1.0)), 10, generator())
    assert (share, error) == pytest.approx((0, 0), abs=1e-25)


def test_a_bilinear_zero_sum_game_does_nothing_else():
    assert rotation_share(jacobian(mixture(1.0, 0.0)), 10, generator()) == pytest.approx((1, 0), abs=1e-12)


@pytest.mark.parametrize("bilinear", [0.5, 1.0, 3.0])
def test_mixtures_in_closed_form(bilinear):
    operator = jacobian(mixture(bilinear, 1.0))
    y = Point(4, 2).w.detach()
    turning = 2 * bilinear**2 * A.square().sum()
    straight = 2 * A.square().sum() + 6 + (12 * y**2).square().sum()
    share, error = rotation_share(operator, 400, generator())
    assert abs(share - (turning / (turning + straight)).item()) < 4 * error
    assert error < 0.03


def test_the_standard_error_is_that_of_repetitions():
    operator = aslinearoperator(np.random.default_rng(0).standard_normal((8, 8)))
    runs = [rotation_share(operator, 30, generator(seed)) for seed in range(200)]
    assert np.std([run.value for run in runs]) == pytest.approx(np.mean([run.error for run in runs]), rel=0.2)


def gan():
    """A pair as people train it: BatchNorm in the generator, spectral norm in the discriminator, non-saturating losses."""
    torch.manual_seed(0)
    g = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.SiLU(), nn.Linear(5, 3)).double()
    d = nn.Sequential(
        torch.nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), nn.LeakyReLU(0.2), nn.Linear(4, 1)
    ).double()
    z, x = torch.randn(7, 2, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    soft = nn.functional.softplus
    return g, d, lambda g, d: soft(-d(g(z))).mean(), lambda g, d: (soft(d(g(z))) + soft(-d(x))).mean()


def test_jacobian_of_a_gan_against_the_dense_one():
    g, d, loss_g, loss_d = gan()
    d.eval()  # spectral norm's power iteration stands still
    operator = jacobian([(g, lambda m: loss_g(m, d)), (d, lambda m: loss_d(g, m))])

    names = [(g, n, p.shape) for n, p in g.named_parameters()] + [(d, n, p.shape) for n, p in d.named_parameters()]
    size = len(flat(g))
    buffers = {n: b.clone() for n, b in g.named_buffers()}

    def field(vector):
        cut = vector.split([shape.numel() for _, _, shape in names])
        values = [(m, n, v.view(s)) for (m, n, s), v in zip(names, cut, strict=True)]

        def bound(module):
            own = {n: v for m, n, v in values if m is module}
            kept = {n: b.clone() for n, b in buffers.items()} if module is g else {}
            return lambda x: functional_call(module, {**own, **kept}, (x,))

        first = torch.autograd.grad(loss_g(bound(g), bound(d)), vector, create_graph=True)[0][:size]
        second = torch.autograd.grad(loss_d(bound(g), bound(d)), vector, create_graph=True)[0][size:]
        return torch.cat([first, second])

    dense = torch.autograd.functional.jacobian(field, torch.cat([flat(g), flat(d)]).requires_grad_()).numpy()
    assert operator @ np.eye(len(dense)) == pytest.approx(dense, abs=1e-12)
    assert np.stack([operator.rmatvec(row) for row in np.eye(len(dense))]) == pytest.approx(dense, abs=1e-12)

    want = np.square(dense - dense.T).sum() / (np.square(dense - dense.T).sum() + np.square(dense + dense.T).sum())
    share, error = rotation_share(operator, 200, generator())
    assert abs(share - want) < 4 * error
    assert 0 < share < 1


def test_a_gan_in_training_mode_stays_as_it_was():
    g, d, loss_g, loss_d = gan()
    before = {n: t.clone() for m in (g, d) for n, t in m.state_dict().items()}
    operator = jacobian([(g, lambda m: loss_g(m, d)), (d, lambda m: loss_d(g, m))])
    rotation_share(operator, 2, generator())
    after = {n: t for m in (g, d) for n, t in m.state_dict().items()}
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_preconditioned_games_keep_what_they_are():
    diagonal = torch.rand(10, generator=generator(), dtype=torch.float64) + 0.1
    for weights, want in (((0.0, 1.0), 0), ((1.0, 0.0), 1)):
        operator = preconditioned(jacobian(mixture(*weights)), diagonal)
        assert rotation_share(operator, 5, generator()).value == pytest.approx(want, abs=1e-12)


def test_hidden_players_are_refused():
    g, d, loss_g, loss_d = gan()
    with pytest.raises(HeadwayError, match=r"player 1 does not reach .* detach"):
        jacobian([(g, lambda m: loss_g(m, d)), (d, lambda m: loss_d(lambda z: g(z).detach(), m))])
    with pytest.raises(HeadwayError, match="share weights"):
        jacobian([(g, lambda m: loss_g(m, d)), (g, lambda m: loss_g(m, d))])
    with pytest.raises(HeadwayError, match="at least 2"):
        rotation_share(jacobian(mixture(1.0, 0.0)), 1, generator())
    with pytest.raises(HeadwayError, match="zero here"):
        rotation_share(aslinearoperator(np.zeros((3, 3))), 2, generator())
