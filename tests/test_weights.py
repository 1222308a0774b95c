"""Loss weights: each paper's formula on each prediction, both ends of the SNR, the algebra, and the learnt weight."""

from __future__ import annotations

import math

import pytest
import torch
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr
from torch import nn

import headway
from headway.denoiser import convert as restate
from headway.errors import HeadwayError
from headway.ideal import GaussianMixture
from headway.weighting import (
    PREDICTIONS,
    WEIGHTS,
    Uncertainty,
    convert,
    debiased,
    min_snr,
    p2,
    soft_min_snr,
    speed,
    weight_for,
)

SNR = torch.logspace(-12, 12, 97, dtype=torch.float64)
D = 0.5  # sigma_data


def t_flow(r):
    return 1 / (1 + r**0.5)


# Each formula written out for each prediction, as its paper or field.md's table has it; r = SNR.
FORMULAS = {
    ("min-snr", "x0"): lambda r: r.clamp(max=5),
    ("min-snr", "eps"): lambda r: r.clamp(max=5) / r,
    ("min-snr", "v"): lambda r: r.clamp(max=5) / (r + 1),
    ("min-snr", "flow"): lambda r: r.clamp(max=5) * t_flow(r) ** 2,
    ("min-snr", "edm"): lambda r: r.clamp(max=5) * (D**2 / (1 + D**2 * r)),
    ("soft-min-snr", "x0"): lambda r: 4 * r / (r + 4),
    ("soft-min-snr", "eps"): lambda r: 4 / (r + 4),
    ("soft-min-snr", "v"): lambda r: 4 * r / ((r + 4) * (r + 1)),
    ("soft-min-snr", "flow"): lambda r: 4 * r / (r + 4) * t_flow(r) ** 2,
    # k-diffusion's form, (sigma sigma_data)^2 / (sigma^2 + sigma_data^2)^2 on the network's output
    ("soft-min-snr", "edm"): lambda r: (D**2 / r) / (1 / r + D**2) ** 2,
    ("p2", "x0"): lambda r: r / (1 + r),
    ("p2", "eps"): lambda r: 1 / (1 + r),
    ("p2", "v"): lambda r: r / ((r + 1) * (1 + r)),
    ("p2", "flow"): lambda r: r / (1 + r) * t_flow(r) ** 2,
    ("p2", "edm"): lambda r: r / (1 + r) * (D**2 / (1 + D**2 * r)),
    ("debiased", "x0"): lambda r: r.sqrt(),
    ("debiased", "eps"): lambda r: 1 / r.sqrt(),
    ("debiased", "v"): lambda r: r.sqrt() / (1 + r),
    ("debiased", "flow"): lambda r: r.sqrt() * t_flow(r) ** 2,
    ("debiased", "edm"): lambda r: r.sqrt() * (D**2 / (1 + D**2 * r)),
}

# (limit at SNR 0, limit at SNR infinity); inf: refused there. at_clean: SpeeD's weight on eps at t = 0.
AT_CLEAN = 0.4 + 0.2 * (0.1 - 20 * math.exp(-10.05)) / (
    19.9**0.5 * math.exp(-(19.9 - 0.01) / 39.8) - 20 * math.exp(-10.05)
)
LIMITS = {
    "min-snr": {"x0": (0, 5), "eps": (1, 0), "v": (0, 0), "flow": (0, 0), "edm": (0, 0)},
    "soft-min-snr": {"x0": (0, 4), "eps": (1, 0), "v": (0, 0), "flow": (0, 0), "edm": (0, 0)},
    "p2": {"x0": (0, 1), "eps": (1, 0), "v": (0, 0), "flow": (0, 0), "edm": (0, 0)},
    "debiased": {"x0": (0, math.inf), "eps": (math.inf, 0), "v": (0, 0), "flow": (0, 0), "edm": (0, 0)},
    "speed": {
        "x0": (0, math.inf),
        "eps": (0.4, AT_CLEAN),
        "v": (0, AT_CLEAN),
        "flow": (0, AT_CLEAN),
        "edm": (0, AT_CLEAN),
    },
}
every = pytest.mark.parametrize(("name", "prediction"), [(name, p) for name in WEIGHTS for p in PREDICTIONS])


@pytest.mark.parametrize(("name", "prediction"), FORMULAS)
def test_formulas(name, prediction):
    expected = FORMULAS[name, prediction](SNR)
    got = WEIGHTS[name](SNR, prediction=prediction)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)
    single = WEIGHTS[name](SNR.float(), prediction=prediction)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), FORMULAS[name, prediction](SNR.float().double()), rtol=1e-7, atol=0)


@every
def test_at_both_ends_the_limit_or_a_sentence(name, prediction):
    for end, value, limit in zip(("0", "infinity"), (0.0, math.inf), LIMITS[name][prediction], strict=True):
        snr = torch.tensor([[1.0, value]])
        if limit == math.inf:
            with pytest.raises(
                HeadwayError, match=f"The {name} weight on {prediction}-prediction is infinite at SNR {end}"
            ):
                WEIGHTS[name](snr, prediction=prediction)
            continue
        got = WEIGHTS[name](snr, prediction=prediction)
        assert got.shape == (1, 2)
        assert float(got[0, 1]) == pytest.approx(limit, rel=1e-6, abs=0)
        assert float(WEIGHTS[name](value, prediction=prediction)) == pytest.approx(limit, rel=1e-12, abs=0)
        # The neighbourhood of the end agrees with it: the limit is of this function.
        near = float(WEIGHTS[name](1e-30 if end == "0" else 1e30, prediction=prediction))
        assert near == pytest.approx(limit, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("gamma", "clean", "noisy"), [(0.5, math.inf, 0), (0.99, math.inf, 0), (1, 1, 0), (2, 0, 0)])
def test_ends_depend_on_the_options(gamma, clean, noisy):
    if clean == math.inf:
        with pytest.raises(HeadwayError, match="p2 weight on x0-prediction is infinite at SNR infinity"):
            p2(math.inf, gamma=gamma, prediction="x0")
    else:
        assert p2(math.inf, gamma=gamma, prediction="x0") == clean
    assert p2(0.0, gamma=gamma, prediction="x0") == noisy
    assert p2(math.inf, gamma=gamma, prediction="v") == 0
    assert p2(0.0, k=2.0, gamma=gamma) == pytest.approx(2.0**-gamma)


@every
def test_every_float32_snr_gives_a_number(name, prediction):
    snr = torch.tensor([1e-45, 1e-38, 1e-20, 1e20, 3e38])
    assert torch.isfinite(WEIGHTS[name](snr.double(), prediction=prediction)).all()
    assert not WEIGHTS[name](snr, prediction=prediction).isnan().any()


def test_shapes_types_and_nonsense():
    snr = torch.tensor([[0.5, 2.0], [9.0, 40.0]])
    assert min_snr(snr).shape == snr.shape
    assert min_snr(snr.bfloat16()).dtype == torch.bfloat16
    assert min_snr(torch.tensor([3, 10])).tolist() == [1.0, 0.5]
    assert min_snr(10.0) == 0.5
    assert min_snr(10.0, 2.0, "x0") == 2.0
    assert min_snr(torch.tensor([-1.0, math.nan, 1.0])).isnan().tolist() == [True, True, False]
    for call, message in [
        (lambda: min_snr(1.0, prediction="epsilon"), "Did you mean 'eps'"),
        (lambda: min_snr(1.0, gamma=0.0), "gamma > 0"),
        (lambda: soft_min_snr(1.0, gamma=math.inf), "gamma > 0"),
        (lambda: p2(1.0, k=-1.0), "k > 0"),
        (lambda: speed(1.0, lam=0.4), "lam in"),
        (lambda: speed(1.0, tau=0.0), "tau in"),
        (lambda: min_snr(1.0, prediction="edm", sigma_data=0.0), "sigma_data"),
    ]:
        with pytest.raises(HeadwayError, match=message):
            call()


@every
def test_the_loss_of_one_denoiser_is_the_same_in_every_prediction(name, prediction):
    """Image by image: w_x0 |x0 - D|^2 is the multiplier times the squared error of the prediction that D amounts to."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(3, 1, 2, 2, dtype=torch.float64, generator=generator)
    denoiser = GaussianMixture(means, 0.1 * torch.eye(4, dtype=torch.float64).repeat(3, 1, 1))
    x0 = denoiser.draw(64, generator)
    sigma = torch.logspace(-3, 3, 64, dtype=torch.float64)
    s = sigma.reshape(-1, 1, 1, 1)
    x = x0 + s * torch.randn(x0.shape, dtype=torch.float64, generator=generator)
    estimate = denoiser(x, sigma)
    if prediction == "edm":
        fw = headway.framework("edm", sigma_data=0.7)
        said, wanted = ((y - fw.c_skip(s) * x) / fw.c_out(s) for y in (estimate, x0))
    else:
        said, wanted = (restate(y, x, sigma, "x0", prediction) for y in (estimate, x0))
    multiplier = WEIGHTS[name](sigma**-2, prediction=prediction, sigma_data=0.7)
    loss = multiplier * (said - wanted).square().flatten(1).mean(1)
    expected = weight_for(name)(sigma) * (estimate - x0).square().flatten(1).mean(1)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    assert loss.sum() == pytest.approx(float(expected.sum()), rel=1e-9)


@pytest.mark.parametrize(("name", "prediction"), [("vp", "eps"), ("ve", "eps"), ("edm", "edm"), ("flow", "flow")])
def test_frameworks_own_weights_are_plain_losses_of_their_own_targets(name, prediction):
    fw = headway.framework(name, sigma_data=0.3)
    snr = torch.cat([SNR, torch.tensor([0.0, math.inf], dtype=torch.float64)])
    got = convert(lambda r: fw.weight(r.rsqrt()), snr, prediction, sigma_data=0.3)
    torch.testing.assert_close(got, torch.ones_like(snr), rtol=1e-12, atol=0)


def test_speed_is_the_released_formula_without_its_grid():
    """On 1000 DDPM steps: min-max of the numerical gradient of 1 - alpha_bar to [1 - lam, lam]; from step tau on, 1."""
    bar = (1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0)
    slope = torch.gradient(1 - bar)[0]
    for lam, tau in ((0.6, 1.0), (0.8, 1.0), (0.6, 0.7)):
        expected = (1 - lam) + (2 * lam - 1) * (slope - slope.min()) / (slope.max() - slope.min())
        if tau < 1:
            expected[round(1000 * tau) :] = 1
        got = speed(bar / (1 - bar), lam, tau)
        apart = (got - expected).abs()
        if tau < 1:  # the continuous time of a step is not exactly its index
            assert (apart > 0.01).sum() <= 2
        else:
            assert apart.max() < 0.002
            assert got.min() >= 1 - lam - 1e-12
            assert got.max() <= lam + 1e-12
    fastest = (19.9**0.5 - 0.1) / 19.9
    assert (bar.log().abs() - (9.95 * fastest**2 + 0.1 * fastest)).abs().argmin() in range(215, 223)
    assert speed(bar / (1 - bar)).argmax() in range(215, 223)


def test_ours_are_not_the_wrong_formulas_of_public_code():
    bar = (1 - torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)).cumprod(0)
    r = (bar / (1 - bar))[[0, 50, 200, 500, 999]]
    approx = lambda values: pytest.approx(values, rel=0.01)  # noqa: E731
    # SpeeD's min-SNR baseline: a stray index makes it 5 / (SNR + 1). Here are both right forms and the wrong one.
    assert min_snr(r).tolist() == approx([5.0e-4, 0.155, 1, 1, 1])
    assert min_snr(r, prediction="v").tolist() == approx([5.0e-4, 0.150, 0.656, 0.0784, 4.04e-5])
    assert (5 / (r + 1)).tolist() == approx([5.0e-4, 0.150, 1.72, 4.61, 5.00])
    # min-SNR of eps used for v, as in several trainers: no longer bounded by the paper's weight.
    assert not torch.allclose(min_snr(r, prediction="v"), r.clamp(max=5) / r)
    # OneTrainer's P2 for v, (2 + SNR)^-gamma; public trainers' debiased for v, 1 / (SNR + 1) and 1 / sqrt(SNR + 1).
    assert p2(4.0, prediction="v") == pytest.approx(4 / 25)
    assert p2(4.0, prediction="v") != pytest.approx(1 / 6)
    assert debiased(4.0, prediction="v") == pytest.approx(2 / 5)
    assert debiased(4.0, prediction="v") not in (pytest.approx(1 / 5), pytest.approx(5**-0.5))
    # diffusers' "sigma_sqrt" is sigma^-2: SNR on x0, a plain eps loss.
    assert convert(lambda snr: snr, 4.0, "eps") == 1


@pytest.mark.parametrize("zero_terminal", [False, True])
def test_the_snr_of_diffusers_schedulers(zero_terminal):
    scheduler = DDPMScheduler(beta_schedule="scaled_linear", rescale_betas_zero_snr=zero_terminal)
    t = torch.arange(1000)
    snr = compute_snr(scheduler, t)
    if zero_terminal:
        snr[-1] = 0.0  # which diffusers' schedulers keep from being exact
    for prediction, formula in (("eps", lambda r: r.clamp(max=5) / r), ("v", lambda r: r.clamp(max=5) / (r + 1))):
        got = min_snr(snr, prediction=prediction)
        assert torch.isfinite(got).all()
        torch.testing.assert_close(got[:-1], formula(snr)[:-1], rtol=1e-6, atol=0)
    assert float(min_snr(snr)[-1]) == 1


def test_weights_by_name():
    sigma = torch.tensor([[1e-3, 0.2], [1.0, 80.0]], dtype=torch.float32)
    for name, options in (("min-snr", {"gamma": 3.0}), ("p2", {"k": 2.0, "gamma": 0.5}), ("speed", {"lam": 0.7})):
        got = weight_for(name, **options)(sigma)
        assert got.shape == sigma.shape
        assert got.dtype == torch.float32
        expected = WEIGHTS[name](sigma.double() ** -2, prediction="x0", **options)
        torch.testing.assert_close(got.double(), expected, rtol=1e-7, atol=0)
    assert weight_for("min-snr")(torch.tensor([0.0, math.inf])).tolist() == [5.0, 0.0]
    with pytest.raises(HeadwayError, match="debiased weight on x0-prediction is infinite at SNR infinity"):
        weight_for("debiased")(torch.zeros(1))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("min_snr", {}, "Did you mean 'min-snr'"),
        ("min-snr", {"gama": 5}, "Did you mean 'gamma'"),
        ("min-snr", {"prediction": "v"}, "has no option"),
        ("debiased", {"gamma": 5}, "has no options, got 'gamma'"),
        ("min-snr", {"gamma": -5}, "gamma > 0"),
    ],
)
def test_wrong_names_and_options_are_refused_at_once(name, options, message):
    with pytest.raises(HeadwayError, match=message):
        weight_for(name, **options)


def test_the_learnt_weight_starts_as_none_and_finds_the_log_of_the_loss():
    sigma = torch.logspace(-2, 1.5, 200)
    level = 0.4 * sigma.log() - 1 + 0.5 * (sigma.log() / 2).sin()  # some loss that depends on the noise level
    losses = level.exp()
    learnt = Uncertainty(features=64, seed=1)
    first = learnt.loss(losses, sigma)
    assert torch.equal(first.objective, losses)
    assert torch.equal(first.u, torch.zeros(200))
    optimizer = torch.optim.Adam(learnt.parameters(), lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        learnt.loss(losses, sigma).objective.mean().backward()
        optimizer.step()
    last = learnt.loss(losses, sigma)
    assert (last.u - level).abs().max() < 0.1
    assert last.objective.mean().item() == pytest.approx(level.mean().item() + 1, abs=1e-3)  # its minimum, 1 + ln L
    assert torch.equal(last.loss, losses)


def test_the_learnt_weight_reports_the_loss_when_the_objective_is_negative():
    learnt = Uncertainty()
    nn.init.constant_(learnt.bias, -5.0)
    estimate = torch.full((3,), 0.01, requires_grad=True)
    result = learnt.loss(estimate, torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64))
    assert (result.objective < 0).all()
    assert result.loss.tolist() == pytest.approx([0.01] * 3)
    assert not result.loss.requires_grad
    result.objective.sum().backward()
    assert estimate.grad.tolist() == pytest.approx([math.exp(5)] * 3)
    assert learnt.weight.grad is not None


def test_all_processes_have_the_same_features():
    a, b, c = Uncertainty(seed=3), Uncertainty(seed=3), Uncertainty(seed=4)
    assert torch.equal(a.frequencies, b.frequencies)
    assert not torch.equal(a.frequencies, c.frequencies)
    c.load_state_dict(a.state_dict())
    assert torch.equal(c.phases, a.phases)
    assert a(torch.rand(2, 3) + 0.1).shape == (2, 3)
    with pytest.raises(HeadwayError, match="at least one feature"):
        Uncertainty(features=0)
