"""CLTS against the derived tables, scipy's truncated normal and the ways in which others got it wrong; the drop-in too."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import headway
from headway.errors import HeadwayError
from headway.noise import CurriculumTimesteps, clts
from headway.noise.clts import Curriculum, Tabulated, TruncatedNormal
from headway.noise.spaces import FLOW_TIME, VP_TIME

GRID = torch.linspace(0, 1, 20_001, dtype=torch.float64)
VP, EDM, VE, FLOW = (headway.framework(name).density for name in ("vp", "edm", "ve", "flow"))


# --- the law ---


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0, 1), std=st.floats(0.01, 100), horizon=st.floats(0.01, 1), progress=st.floats(0, 1.2))
def test_law_is_the_density_mixture(mu, std, horizon, progress):
    law = Curriculum(TruncatedNormal(mu, std), horizon)
    gamma = min(1.0, progress / horizon)
    normal = stats.truncnorm(-mu / std, (1 - mu) / std, mu, std)
    u = GRID[::50].contiguous()
    torch.testing.assert_close(
        law.pdf(u, progress), 1 - gamma + gamma * torch.from_numpy(normal.pdf(u)), rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(
        law.cdf(u, progress), (1 - gamma) * u + gamma * torch.from_numpy(normal.cdf(u)), atol=1e-9, rtol=0
    )
    q = u[1:-1]
    torch.testing.assert_close(law.cdf(law.icdf(q, progress), progress), q, rtol=0, atol=1e-12)


def test_icdf_is_exact_and_fast(monkeypatch):
    density, q = clts(EDM), torch.rand(512, dtype=torch.float64)
    closed = stats.truncnorm(-0.6, 1.4, 0.3, 0.5).ppf(q)  # at the end it is the truncated normal alone
    np.testing.assert_allclose(density.law.icdf(q, 1.0), closed, rtol=0, atol=1e-12)
    rounds, pdf = [], TruncatedNormal.pdf
    monkeypatch.setattr(TruncatedNormal, "pdf", lambda self, u: rounds.append(1) or pdf(self, u))
    for progress in (0.1, 0.5, 1.0):
        rounds.clear()
        density.icdf(q, progress)
        assert len(rounds) <= 3  # of Newton, for the whole batch


def test_it_begins_as_the_base_and_mass_moves_to_the_clean_side_ever_after():
    density, q = clts(EDM), GRID[1:-1:500]
    torch.testing.assert_close(density.icdf(q, 0.0), EDM.icdf(q), rtol=1e-12, atol=0)
    below_median = [float(density.cdf(EDM.icdf(torch.tensor(0.5).double()), p)) for p in np.linspace(0, 1, 21)]
    assert all(b > a for a, b in itertools.pairwise(below_median[:15]))
    assert below_median[14:] == pytest.approx([below_median[14]] * 7)  # from the horizon on nothing changes
    assert below_median[-1] == pytest.approx(0.591, abs=1e-3)


def test_reversed_runs_backwards():
    forward, backward, sigma = clts(FLOW), clts(FLOW, reversed=True), torch.tensor([0.1, 1.0, 9.0], dtype=torch.float64)
    for progress in (0.0, 0.2, 0.35, 0.7, 1.0):
        mirrored = max(0.0, 0.7 - progress)
        torch.testing.assert_close(backward.log_prob(sigma, progress), forward.log_prob(sigma, mirrored))


@pytest.mark.parametrize(("base", "sigma"), [(VP, 1.23), (VE, 0.26), (EDM, 0.16), (FLOW, 0.59)])
def test_quantile_0_3_is_another_sigma_in_each_framework_but_not_in_vps_space(base, sigma):
    def peak(density):
        at = density.base.icdf(GRID[1:-1])
        tilt = density.log_prob(at, 1.0) - density.base.log_prob(at)
        return float(at[tilt.argmax()])

    assert peak(clts(base)) == pytest.approx(sigma, abs=0.006)
    assert peak(clts(base, space="vp")) == pytest.approx(1.23, abs=0.006)
    own = clts(base, space=base)
    torch.testing.assert_close(own.icdf(GRID[1:-1:999], 0.4), clts(base).icdf(GRID[1:-1:999], 0.4))


def test_noise_rate_is_the_gaussian_in_r():
    density = clts(VP, indicator="noise-rate", std=0.2)
    sigma = VP.icdf(GRID[1:-1])
    tilt = (density.log_prob(sigma, 1.0) - VP.log_prob(sigma)).exp()
    rate = sigma / (1 + sigma.square()).sqrt()
    gaussian = (-0.5 * ((rate - 0.3) / 0.2).square()).exp()
    # It is tabulated, linear between 4097 quantiles; at its clean end the rate starts like a square root.
    torch.testing.assert_close(tilt, gaussian / gaussian.mean(), rtol=6e-3, atol=0)
    torch.testing.assert_close(tilt[20:], (gaussian / gaussian.mean())[20:], rtol=2e-4, atol=0)
    # Where the rate is the time, it is the time's Gaussian: sigma = t / sqrt(1 - t^2).
    time_is_rate = headway.noise.UniformTime(
        lambda t: t / (1 - t * t).sqrt(), lambda s: s / (1 + s * s).sqrt(), lambda s: (1 + s * s) ** -1.5, 0.0, 1.0
    )
    q = GRID[1:-1:99].contiguous()
    by_rate, by_time = (clts(time_is_rate, indicator=indicator) for indicator in ("noise-rate", "time"))
    torch.testing.assert_close(by_rate.law.icdf(q, 0.5), by_time.law.icdf(q, 0.5), rtol=0, atol=1e-7)


def test_tabulated_is_linear_between_nodes():
    table = Tabulated(torch.tensor([1.0, 3.0, 0.0]))  # triangles of masses 1 and 0.75
    u = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    torch.testing.assert_close(table.pdf(u) * 1.75, torch.tensor([1, 2, 3, 1.5, 0], dtype=torch.float64))
    torch.testing.assert_close(table.cdf(u) * 1.75, torch.tensor([0, 0.375, 1, 1.5625, 1.75], dtype=torch.float64))


# --- DDPM's timesteps ---

# Standard deviation in steps of 1000, then p(0) T, p(300) T, p(999) T and the mass on t < 500 of the Gaussian alone.
TABLE = [
    (100, 0.044, 3.99, 1e-10, 0.977),
    (250, 0.880, 1.81, 0.036, 0.762),
    (500, 1.033, 1.237, 0.465, 0.591),
    (1000, 1.014, 1.061, 0.831, 0.524),
]


@pytest.mark.parametrize(("std", "first", "peak", "last", "half"), TABLE)
def test_derived_table_of_the_discrete_form(std, first, peak, last, half):
    p = CurriculumTimesteps(1000, std=std / 1000).probabilities(1.0)
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    for value, expected in zip((p[0] * 1000, p[300] * 1000, p[:500].sum()), (first, peak, half), strict=True):
        assert float(value) == pytest.approx(expected, abs=10 ** -len(str(expected).split(".")[1]) * 0.51)
    assert float(p[999] * 1000) == pytest.approx(last, rel=0.02, abs=0) or std == 100
    assert float(p[999] * 1000) == pytest.approx(last, rel=1)


def test_discrete_form_is_the_mixture():
    noise = CurriculumTimesteps(1000, horizon=0.5)
    at_start, half_way, end = (noise.probabilities(p) for p in (0.0, 0.25, 0.5))
    assert torch.equal(CurriculumTimesteps(DDPMScheduler(1000), horizon=0.5).probabilities(0.5), end)
    assert torch.equal(at_start, torch.full((1000,), 1e-3, dtype=torch.float64))
    torch.testing.assert_close(half_way, (at_start + end) / 2)
    assert torch.equal(noise.probabilities(1.0), end)
    x = np.arange(1000) / 1000
    gaussian = np.exp(-((x - 0.3) ** 2) / (2 * 0.5**2))
    np.testing.assert_allclose(end, gaussian / gaussian.sum(), rtol=1e-12)


def test_it_is_no_spike():
    """A public baseline writes exp(-(t - mu)^2 / 2 * T^2): one step of 1000 gets everything at the end, and beyond it p < 0."""
    t = np.arange(1000.0)
    spike = np.exp(-((t - 300) ** 2) / 2 * 1000.0**2) / (1000 * math.sqrt(2 * math.pi))
    assert np.count_nonzero(spike) == 1
    noise = CurriculumTimesteps(1000)
    for progress in (0.5, 0.69, 0.7, 0.9, 1.0, 1.02):
        p = noise.probabilities(progress)
        assert p.min() > 0.4e-3
        assert p.max() < 1.3e-3
        drawn = noise.sample(10_000, progress, torch.Generator().manual_seed(0))
        assert len(drawn.unique()) > 900


def test_it_has_no_atoms():
    """A re-implementation mixes samples and clamps them: at the end 27 % of its draws are exactly 0 and 8 % exactly 1."""
    mixed = torch.normal(0.3, 0.5, (100_000,), generator=torch.Generator().manual_seed(0)).clamp(0, 1)
    assert float((mixed == 0).float().mean()) == pytest.approx(0.274, abs=0.005)
    t = CurriculumTimesteps(continuous=True).sample(100_000, 1.0, torch.Generator().manual_seed(0))
    assert t.min() > 0
    assert t.max() < 1
    assert len(t.unique()) > 99_000


# --- the drop-in ---


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_discrete_draws(stratified, progress):
    noise = CurriculumTimesteps(DDPMScheduler(50), stratified=stratified)
    t = noise.sample(20_000, progress, torch.Generator().manual_seed(1))
    assert t.dtype == torch.int64
    assert t.shape == (20_000,)
    counts = torch.bincount(t, minlength=50)
    expected = 20_000 * noise.probabilities(progress)
    if stratified:
        assert (counts - expected).abs().max() < 2
    else:
        assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 0.01
    assert torch.equal(t, noise.sample(20_000, progress, torch.Generator().manual_seed(1)))


def test_continuous_draws_are_flows_time_under_clts():
    noise = CurriculumTimesteps(continuous=True)
    t = noise.sample(20_000, 0.5, torch.Generator().manual_seed(1))
    assert t.dtype == torch.float32
    density = clts(FLOW_TIME)
    assert stats.kstest(density.cdf((t / (1 - t)).double(), 0.5).numpy(), "uniform").pvalue > 0.01
    torch.testing.assert_close(noise.importance(t, 0.5).reciprocal(), density.law.pdf(t.double(), 0.5).float())


def test_importance_restores_the_uniform_mean():
    noise = CurriculumTimesteps(DDPMScheduler(), horizon=0.9)
    loss = torch.rand(1000, dtype=torch.float64)
    weights = noise.importance(torch.arange(1000), 0.6).double()
    assert float((noise.probabilities(0.6) * weights * loss).sum()) == pytest.approx(float(loss.mean()), rel=1e-6)
    assert noise.importance(torch.zeros(2, 3, dtype=torch.int64), 0.6).shape == (2, 3)


def test_noise_rate_of_a_scheduler():
    linear = CurriculumTimesteps(DDPMScheduler(), indicator="noise-rate", std=0.1).probabilities(1.0)
    cosine = CurriculumTimesteps(
        DDPMScheduler(beta_schedule="squaredcos_cap_v2"), indicator="noise-rate", std=0.1
    ).probabilities(1.0)
    # Where sqrt(1 - alpha_bar) passes 0.3.
    assert int(linear.argmax()) in (91, 92, 93)
    assert int(cosine.argmax()) in (186, 187, 188)


@pytest.mark.parametrize(
    ("rate", "linear", "cosine"), [(0.5, 165, 328), (0.7, 255, 489), (0.9, 403, 710), (0.99, 621, 909)]
)
def test_the_noise_rate_names_other_timesteps_than_their_share_of_time(rate, linear, cosine):
    """The curriculum in the noise rate aims where sqrt(1 - alpha_bar) is mu, whatever the schedule."""
    for expected, schedule in ((linear, "linear"), (cosine, "squaredcos_cap_v2")):
        scheduler = DDPMScheduler(beta_schedule=schedule)
        rates = (1 - scheduler.alphas_cumprod).sqrt()
        assert float(rates[expected]) == pytest.approx(rate, abs=0.003)
        noise = CurriculumTimesteps(scheduler, indicator="noise-rate", mu=rate, std=0.02)
        assert abs(int(noise.probabilities(1.0).argmax()) - expected) <= 2


@pytest.mark.parametrize(("schedule", "rate"), [("linear", 0.778), ("squaredcos_cap_v2", 0.463)])
def test_a_third_of_the_way_is_another_noise_rate_in_every_schedule(schedule, rate):
    bar = DDPMScheduler(beta_schedule=schedule).alphas_cumprod[300]
    assert float((1 - bar).sqrt()) == pytest.approx(rate, abs=5e-4)


def test_it_trains_a_diffusers_loop():
    scheduler = DDPMScheduler()
    noise = headway.noise.CurriculumTimesteps(scheduler, horizon=0.7)
    x0, steps = torch.zeros(16, 1, 4, 4), 5
    for step in range(steps):
        t = noise.sample(len(x0), progress=step / steps)
        x = scheduler.add_noise(x0, torch.randn_like(x0), t)
        assert x.isfinite().all()


def test_it_has_no_state():
    noise = CurriculumTimesteps(1000)
    assert noise.state_dict() == {}
    noise.load_state_dict({})
    with pytest.raises(HeadwayError, match="no state"):
        noise.load_state_dict({"step": torch.tensor(3)})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "either a scheduler"),
        ({"scheduler": 1000, "continuous": True}, "either a scheduler"),
        ({"scheduler": 0}, "at least one"),
        ({"scheduler": FlowMatchEulerDiscreteScheduler()}, "continuous=True"),
        ({"scheduler": "ddpm"}, "alphas_cumprod"),
        ({"scheduler": 1000, "horizon": 0}, "horizon"),
        ({"scheduler": 1000, "std": 0}, "std"),
        ({"scheduler": 1000, "mu": 300}, "mu"),
        ({"scheduler": 1000, "indicator": "noise-rate"}, "alphas_cumprod"),
        ({"continuous": True, "indicator": "noise-rate"}, "scheduler"),
        ({"continuous": True, "indicator": "noise"}, "Did you mean 'noise-rate'"),
    ],
)
def test_drop_in_refuses_nonsense(arguments, says):
    with pytest.raises(HeadwayError, match=says):
        CurriculumTimesteps(**arguments)


def test_drop_in_refuses_wrong_calls():
    with pytest.raises(HeadwayError, match="progress"):
        CurriculumTimesteps(10).sample(4, -1)
    with pytest.raises(HeadwayError, match="Continuous"):
        CurriculumTimesteps(continuous=True).probabilities(0.1)


def test_vp_time_is_ddpms_time():
    """In the limit of many steps the discrete form is the continuous one."""
    p = CurriculumTimesteps(100_000).probabilities(0.4).cumsum(0)
    law = clts(VP_TIME).law
    torch.testing.assert_close(
        p[::1000], law.cdf(torch.arange(1, 100_001, 1000).double() / 100_000, 0.4), rtol=0, atol=1e-5
    )
