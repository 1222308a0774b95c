"""Laws of the learning rate and of beta1, who may own them, and the optimisers they drive."""

from __future__ import annotations

import itertools
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from headway.errors import HeadwayError
from headway.optim import LAWS, OPTIMIZERS, after_warmup, beta1_of, check_owner, law, make_optimizer, set_rates

share = st.floats(0, 1)
momentum = st.floats(0, 0.9999)

# tau, beta1, lr / lr0, one-step noise variance of the update for unit gradient noise: compensated, and not.
MDLRC = [
    (0.0, 0.9000, 1.00, 0.0526, 0.0526),
    (0.2, 0.8780, 0.82, 0.0437, 0.0649),
    (0.4, 0.8438, 0.64, 0.0347, 0.0847),
    (0.6, 0.7826, 0.46, 0.0258, 0.1220),
    (0.8, 0.6429, 0.28, 0.0170, 0.2174),
    (1.0, 0.0000, 0.10, 0.0100, 1.0000),
]


@pytest.mark.parametrize(("tau", "beta1", "factor", "compensated", "uncompensated"), MDLRC)
def test_the_table_of_mdlrc(tau, beta1, factor, compensated, uncompensated):
    rates = law("mdlrc")(tau, 0.9)
    assert rates.beta1 == pytest.approx(beta1, abs=5e-5)
    assert rates.factor == pytest.approx(factor, abs=1e-12)
    noise = (1 - rates.beta1) / (1 + rates.beta1)
    assert rates.factor**2 * noise == pytest.approx(compensated, abs=5e-5)
    assert noise == pytest.approx(uncompensated, abs=5e-5)


@given(share, st.floats(0, 1, exclude_max=True))
def test_beta1_never_leaves_its_range(tau, b0):
    for options in ({}, {"beta_end": b0 / 2}, {"floor": b0 / 2}):
        factor, beta1 = law("mdlrc", **options)(tau, b0)
        assert 0 <= beta1 <= b0 < 1
        assert 0 < factor <= 1


@given(share, momentum)
def test_mdlrc_is_the_demon_rule_and_a_straight_line(tau, b0):
    factor, beta1 = law("mdlrc")(tau, b0)
    assert 0 <= beta1 <= b0 < 1
    # beta1 / (1 - beta1) falls linearly to 0; the rate's factor is 1 - b0 tau.
    assert beta1 * (1 - b0) == pytest.approx((1 - tau) * b0 * (1 - beta1), rel=1e-9, abs=1e-12)
    assert factor == pytest.approx(1 - b0 * tau, rel=1e-9)
    assert 1 - b0 - 1e-12 <= factor <= 1


@given(share, momentum, share)
def test_every_variant_keeps_its_bounds_and_its_controls_split_it(tau, b0, part):
    low = part * b0
    for options in ({}, {"beta_end": low}, {"floor": low}):
        factor, beta1 = law("mdlrc", **options)(tau, b0)
        assert (low if options else 0) <= beta1 * (1 + 1e-15) <= b0 * (1 + 1e-15)
        assert factor * (1 - beta1) == pytest.approx(1 - b0, rel=1e-12)  # the weight of the newest gradient stays
        assert law("decay-only", **options)(tau, b0) == (1.0, beta1)
        assert law("compensation-only", **options)(tau, b0) == (factor, b0)


def test_variants_end_where_they_say():
    assert law("mdlrc", beta_end=0.5)(1.0, 0.9) == pytest.approx((0.2, 0.5))
    assert law("mdlrc", beta_end=0.5)(0.5, 0.9).beta1 == pytest.approx(0.7)
    assert law("mdlrc", floor=0.5)(1.0, 0.9) == pytest.approx((0.2, 0.5))
    assert law("mdlrc", floor=0.5)(0.4, 0.9) == law("mdlrc")(0.4, 0.9)
    assert law("mdlrc")(1.0, 0.9).beta1 == 0
    assert law("compensation-only")(1.0, 0.9) == pytest.approx((0.1, 0.9))


@given(share, momentum)
def test_laws_of_the_rate_alone(tau, b0):
    assert law("constant")(tau, b0) == (1.0, b0)
    assert law("cosine")(tau, b0) == (pytest.approx(math.cos(math.pi * tau / 2) ** 2, abs=1e-15), b0)
    assert law("cosine", end=0.1)(tau, b0).factor == pytest.approx(0.1 + 0.9 * math.cos(math.pi * tau / 2) ** 2)
    expected = 1.0 if tau <= 0.25 else 0.5 / math.sqrt(tau)
    assert law("inverse-sqrt", knee=0.25)(tau, b0) == (pytest.approx(expected), b0)


def test_tau_starts_after_the_warmup():
    assert [after_warmup(i, 110, 10) for i in (0, 10, 60, 110, 500)] == [0, 0, 0.5, 1, 1]
    assert [after_warmup(i, 4) for i in range(6)] == [0, 0.25, 0.5, 0.75, 1, 1]
    for total, warmup in ((10, 10), (0, 0), (10, -1)):
        with pytest.raises(HeadwayError, match="warm-up must end"):
            after_warmup(0, total, warmup)


@pytest.mark.parametrize(
    ("name", "options", "tau", "b0", "message"),
    [
        ("mdlrk", {}, 0, 0.9, "Did you mean 'mdlrc'"),
        ("mdlrc", {"betaend": 0.5}, 0, 0.9, "Did you mean 'beta_end'"),
        ("constant", {"floor": 0.5}, 0, 0.9, "no options"),
        ("mdlrc", {"beta_end": 0.95}, 0, 0.9, "beta_end must lie between"),
        ("decay-only", {"floor": -0.1}, 0, 0.9, "floor must lie between"),
        ("mdlrc", {"beta_end": 0.5, "floor": 0.4}, 0, 0.9, "not both"),
        ("mdlrc", {}, 1.1, 0.9, "tau in"),
        ("mdlrc", {}, 0.5, 1.0, "beta1 in"),
        ("cosine", {"end": 2}, 0, 0.9, "share of the rate"),
        ("inverse-sqrt", {"knee": 0}, 0, 0.9, "knee"),
    ],
)
def test_wrong_laws_are_refused(name, options, tau, b0, message):
    with pytest.raises(HeadwayError, match=message):
        law(name, **options)(tau, b0)


# Optimiser, law -> what both would own. Every other pair is allowed.
TWO_OWNERS = {
    ("muon", "mdlrc"): "beta1",
    ("muon", "decay-only"): "beta1",
    ("schedulefree", "mdlrc"): "learning rate and beta1",
    ("schedulefree", "decay-only"): "beta1",
    ("schedulefree", "compensation-only"): "learning rate",
    ("schedulefree", "cosine"): "learning rate",
    ("schedulefree", "inverse-sqrt"): "learning rate",
}


@pytest.mark.parametrize(("optimizer", "name"), list(itertools.product(OPTIMIZERS, LAWS)))
def test_two_owners_are_refused_by_name(optimizer, name):
    if both := TWO_OWNERS.get((optimizer, name)):
        with pytest.raises(HeadwayError, match=f"Two owners of {both}: optimizer '{optimizer}' .* law '{name}'"):
            check_owner(optimizer, name)
    else:
        check_owner(optimizer, name)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 8), nn.SiLU(), nn.Linear(8, 1))


def train(net, optimizer, steps, start=0, rates=lambda i: None):
    for i in range(start, start + steps):
        if (now := rates(i)) is not None:
            set_rates(optimizer, *now)
        x = torch.randn(4, 1, 4, 4, generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad()
        (net(x).flatten() - x.mean((1, 2, 3))).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_made_optimizers_train_and_resume_as_if_never_stopped(name):
    def rates(i):
        return 1e-2 * law("compensation-only")(i / 12, 0.9).factor, 0.9

    whole, first, second = network(), network(), network()
    made = [make_optimizer(name, net.parameters(), lr=1e-2, weight_decay=0.01) for net in (whole, first, second)]
    train(whole, made[0], 12, rates=rates)
    train(first, made[1], 6, rates=rates)
    second.load_state_dict(first.state_dict())
    made[2].load_state_dict(made[1].state_dict())
    train(second, made[2], 6, start=6, rates=rates)
    for a, b, start in zip(whole.parameters(), second.parameters(), network().parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, start)


def test_sgd_is_an_average_of_gradients():
    """A constant gradient moves it by lr a step, whatever beta1 does: the meaning that laws give to the rate."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = make_optimizer("sgd", [weight], lr=0.1)
    for i in range(5):
        set_rates(optimizer, 0.1, 0.9 - 0.2 * i)
        weight.grad = torch.ones(1)
        optimizer.step()
    assert weight.item() == pytest.approx(-0.5)
    assert beta1_of(optimizer.param_groups[0]) == pytest.approx(0.1)


def test_muon_takes_matrices_and_adamw_the_rest():
    net, alone = network(), network()
    optimizer = make_optimizer("muon", net.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.8, 0.99))
    matrices = [p for p in alone.parameters() if p.ndim == 2]
    others = [p for p in alone.parameters() if p.ndim != 2]
    apart = [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=1e-2, weight_decay=0.1, betas=(0.8, 0.99)),
    ]
    train(net, optimizer, 3)
    both = SimpleNamespace(zero_grad=lambda: alone.zero_grad(), step=lambda: [part.step() for part in apart])
    train(alone, both, 3)
    for a, b in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(a, b)
    set_rates(optimizer, 0.5, 0.7)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    assert optimizer.param_groups[0]["momentum"] == 0.95  # Muon's own
    assert optimizer.param_groups[1]["betas"] == (0.7, 0.99)
    assert len(optimizer.state) == len(list(net.parameters()))
    with pytest.raises(HeadwayError, match="none: use optimizer adamw"):
        make_optimizer("muon", [nn.Parameter(torch.zeros(3))], lr=0.1)
    make_optimizer("muon", [nn.Parameter(torch.zeros(3, 3))], lr=0.1)  # nothing for AdamW


def test_schedule_free_comes_from_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "schedulefree", None)  # not installed
    with pytest.raises(HeadwayError, match=r"headway\[schedulefree\]"):
        make_optimizer("schedulefree", [nn.Parameter(torch.zeros(1))], lr=0.1)

    def stand_in(params, lr, betas, eps, weight_decay, warmup_steps=0):
        return dict(locals())

    monkeypatch.setitem(sys.modules, "schedulefree", SimpleNamespace(AdamWScheduleFree=stand_in))
    made = make_optimizer("schedulefree", [], lr=0.1, betas=(0.9, 0.99), weight_decay=0.2, warmup_steps=7)
    assert made == {"params": [], "lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.2, "warmup_steps": 7}


def test_the_real_schedule_free_trains():
    pytest.importorskip("schedulefree")
    net = network()
    optimizer = make_optimizer("schedulefree", net.parameters(), lr=1e-2)
    optimizer.train()
    train(net, optimizer, 3)
    optimizer.eval()
    assert all(torch.isfinite(p).all() for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("adamv", {}, "Did you mean 'adamw'"),
        ("adamw", {"fussed": True}, "Did you mean 'fused'"),
        ("sgd", {"momentum": 0.5}, "optimizer 'sgd' has no option 'momentum'"),
        ("muon", {"nesterof": True}, "Did you mean 'nesterov'"),
    ],
)
def test_wrong_optimizers_are_refused(name, options, message):
    with pytest.raises(HeadwayError, match=message):
        make_optimizer(name, network().parameters(), lr=0.1, **options)
