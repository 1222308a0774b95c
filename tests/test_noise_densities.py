"""Every named density: a true density, drawn by its paper's rule, built from a recipe's words and refused when they are wrong."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.training_utils import compute_density_for_timestep_sampling
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from scipy.integrate import fixed_quad

import headway
from headway.errors import HeadwayError
from headway.noise import DENSITIES, Density, UniformTime, build, importance, options
from headway.noise.quantile import Steps
from headway.noise.spaces import COSINE_TIME, FLOW_TIME, VP_TIME

BASES = {name: headway.framework(name).density for name in ("vp", "ve", "edm", "flow")}
DOCS = Path(__file__).parents[1] / "docs"


def trained_adaptive(base: Density) -> Density:
    density = build("adaptive", base, memory=500.0)
    sigma = base.icdf((torch.arange(2000, dtype=torch.float64) + 0.5) / 2000)
    density.observe(sigma, sigma, sigma.square() / (sigma.square() + 0.25))
    density.reduce()
    return density


# Name, base, options and progress of a density in every kind of state.
CASES = {
    "clts": ("clts", "edm", {}, 0.35),
    "clts at the end": ("clts", "flow", {"std": 0.1}, 1.0),
    "clts in vp's space": ("clts", "edm", {"space": "vp"}, 0.5),
    "clts in flow's space": ("clts", "ve", {"space": "flow", "reversed": True}, 0.2),
    "clts by noise rate": ("clts", "flow", {"indicator": "noise-rate", "std": 0.2}, 0.6),
    "log-normal": ("log-normal", "vp", {"mean": -0.4, "std": 1.0}, 0.0),
    "logit-normal": ("logit-normal", "flow", {"mean": 0.5, "std": 1.5}, 0.0),
    "mode": ("mode", "flow", {}, 0.0),
    "mode of negative scale": ("mode", "flow", {"scale": -0.7}, 0.0),
    "cosmap": ("cosmap", "flow", {}, 0.0),
    "laplace": ("laplace", "vp", {}, 0.0),
    "laplace elsewhere": ("laplace", "edm", {"mean": 1.0, "scale": 1.5}, 0.0),
    "beta": ("beta", "vp", {}, 0.0),
    "beta above 1": ("beta", "edm", {"alpha": 2.5}, 0.0),
    "speed": ("speed", "vp", {}, 0.0),
    "two-phase before": ("two-phase", "flow", {}, 0.39),
    "two-phase after": ("two-phase", "flow", {}, 0.4),
    "adaptive": ("adaptive", "edm", {}, 0.0),
    "framework": ("framework", "ve", {}, 0.0),
}
each = pytest.mark.parametrize("case", CASES)
Q = torch.tensor([1e-6, 1e-3, 0.02, 0.2, 0.35, 0.5, 0.69, 0.8, 0.97, 1 - 1e-4], dtype=torch.float64)


def density_of(case: str) -> tuple[Density, float]:
    name, base, chosen, progress = CASES[case]
    if name == "adaptive":
        return trained_adaptive(BASES[base]), progress
    return build(name, BASES[base], **chosen), progress


@each
def test_cdf_and_icdf_are_inverse(case):
    density, progress = density_of(case)
    sigma = density.icdf(Q.reshape(2, 5), progress)
    assert sigma.shape == (2, 5)
    assert (sigma.flatten().diff() > 0).all()
    torch.testing.assert_close(density.cdf(sigma, progress).flatten(), Q, rtol=1e-9, atol=1e-12)
    single = density.icdf(Q.float(), progress)
    assert (
        single.dtype == density.cdf(single, progress).dtype == density.log_prob(single, progress).dtype == torch.float32
    )
    torch.testing.assert_close(single[1:-1].double(), sigma.flatten()[1:-1], rtol=2e-5, atol=0)


@each
def test_log_prob_is_the_slope_of_cdf(case):
    density, progress = density_of(case)

    def per_log_sigma(x):
        return (density.log_prob(torch.from_numpy(np.exp(x)), progress) + torch.from_numpy(x)).exp().numpy()

    # The integral between quantiles is their difference, over bins in which a step is constant and a kink at an end.
    q = torch.cat([Q, torch.arange(1, 33, dtype=torch.float64)[:-1] / 32]).unique()
    if isinstance(law := getattr(density, "law", None), Steps):
        sigma = density.base.icdf(torch.cat([q, law._edges[1:-1]]).unique())
        q = density.cdf(sigma, progress)
    else:
        sigma = density.icdf(q, progress)
    parts = [fixed_quad(per_log_sigma, a, b, n=200)[0] for a, b in itertools.pairwise(sigma.log().tolist())]
    np.testing.assert_allclose(parts, q.diff().numpy(), rtol=2e-6, atol=1e-9)


@each
@pytest.mark.filterwarnings("error")
def test_a_column_of_uniforms_will_do(case):
    density, progress = density_of(case)
    columns = torch.rand(50, 3, dtype=torch.float64)
    assert torch.equal(density.icdf(columns[:, 0], progress), density.icdf(columns[:, 0].contiguous(), progress))
    density.cdf(columns[:, 1], progress), density.log_prob(columns[:, 2], progress)


@pytest.mark.parametrize("case", ["beta", "clts by noise rate", "speed"])
def test_nothing_outside_the_support(case):
    name, _, chosen, progress = CASES[case]
    density = build(name, BASES["ve"], **chosen)
    outside = torch.tensor([0.019, 101.0])
    assert density.log_prob(outside, progress).tolist() == [-math.inf, -math.inf]
    assert density.cdf(outside, progress).tolist() == pytest.approx([0.0, 1.0])


# --- the papers' own ways of drawing, in numpy ---


def sigma_of_vp(t):
    return np.sqrt(np.expm1(9.95 * t**2 + 0.1 * t))


def sigma_of_flow(t):
    return t / (1 - t)


def mixture(rng, n, share, mu=0.3, std=0.5):
    """A density mixture is drawn by choosing a component."""
    gaussian = stats.truncnorm(-mu / std, (1 - mu) / std, mu, std).rvs(n, random_state=rng)
    return np.where(rng.random(n) < share, gaussian, rng.random(n))


def by_noise_rate(rng, n):
    """Rejection: a proposal of the base is kept with probability (1 - gamma) / M + gamma G / M."""
    sigma = np.exp(rng.standard_normal(200 * n))
    gaussian = np.exp(-0.5 * ((sigma / np.sqrt(1 + sigma**2) - 0.3) / 0.2) ** 2)
    gamma = 0.6 / 0.7
    keep = (1 - gamma) + gamma * gaussian / gaussian.mean()
    return sigma[rng.random(len(sigma)) < keep / keep.max()][:n]


def mode(scale):
    def draw(rng, n):
        torch.manual_seed(3)
        return sigma_of_flow(compute_density_for_timestep_sampling("mode", n, mode_scale=scale).double().numpy())

    return draw


def speed(rng, n, k=5, steps=1000, tau=700):
    p = np.where(np.arange(steps) < tau, k, 1.0)
    return sigma_of_vp((rng.choice(steps, n, p=p / p.sum()) + rng.random(n)) / steps)


RULES = {
    "clts": lambda rng, n: np.exp(-1.2 + 1.2 * stats.norm.ppf(mixture(rng, n, 0.5))),
    "clts at the end": lambda rng, n: np.exp(stats.norm.ppf(mixture(rng, n, 1.0, std=0.1))),
    "clts in vp's space": lambda rng, n: sigma_of_vp(mixture(rng, n, 0.5 / 0.7)),
    "clts in flow's space": lambda rng, n: sigma_of_flow(mixture(rng, n, 1 - 0.2 / 0.7)),
    "clts by noise rate": by_noise_rate,
    "log-normal": lambda rng, n: rng.lognormal(-0.4, 1.0, n),
    "logit-normal": lambda rng, n: sigma_of_flow(special.expit(rng.normal(0.5, 1.5, n))),
    "mode": mode(1.29),
    "mode of negative scale": mode(-0.7),
    "cosmap": lambda rng, n: sigma_of_flow(1 - 1 / (np.tan(np.pi / 2 * rng.random(n)) + 1)),
    "laplace": lambda rng, n: np.exp(-rng.laplace(0.0, 0.5, n) / 2),
    "laplace elsewhere": lambda rng, n: np.exp(-rng.laplace(1.0, 1.5, n) / 2),
    "beta": lambda rng, n: sigma_of_vp(rng.beta(0.8, 1.0, n)),
    "beta above 1": lambda rng, n: np.exp(-1.2 + 1.2 * stats.norm.ppf(rng.beta(2.5, 1.0, n))),
    "speed": speed,
    "two-phase before": lambda rng, n: sigma_of_flow(special.expit(rng.normal(0.8, 1.0, n))),
    "two-phase after": lambda rng, n: sigma_of_flow(rng.random(n)),
}


@pytest.mark.parametrize("case", RULES)
def test_draws_follow_the_published_rule(case):
    density, progress = density_of(case)
    u = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = density.icdf(u, progress)
    rule = RULES[case](np.random.default_rng(2), 20_000)
    assert stats.kstest(drawn.numpy(), rule).pvalue > 0.01
    assert stats.kstest(density.cdf(torch.from_numpy(rule), progress).numpy(), "uniform").pvalue > 0.01


def test_speed_is_the_papers_two_levels():
    density, t = build("speed", VP_TIME, k=5, tau=0.7), torch.tensor([0.2, 0.69, 0.71, 0.9], dtype=torch.float64)
    levels = (density.log_prob(VP_TIME.icdf(t)) - VP_TIME.log_prob(VP_TIME.icdf(t))).exp()
    torch.testing.assert_close(levels, torch.tensor([5, 5, 1, 1], dtype=torch.float64) / (1 + 0.7 * 4))


def test_speeds_published_code_draws_something_else():
    """Half of its draws are reflected about step 642 (its linear schedule), which its paper's formula does not do."""
    rng = np.random.default_rng(0)
    p = np.where(np.arange(1000) < 700, 5, 1.0)
    t = rng.choice(1000, 50_000, p=p / p.sum())
    released = np.concatenate([t, np.where(t < 642, 642 - t, t - 642)])
    assert (released < 358).mean() > 0.54  # the paper: 0.358 * 5 / 3.8 = 0.471
    sigma = torch.tensor(sigma_of_vp(np.array(0.358)))
    assert float(build("speed", VP_TIME).cdf(sigma)) == pytest.approx(0.358 * 5 / 3.8, abs=1e-4)


def test_times_are_the_frameworks():
    sigma = torch.tensor([1.1e-3, 0.1, 1.0, 30.0, 150.0], dtype=torch.float64)
    for ours, theirs in ((VP_TIME, BASES["vp"]), (FLOW_TIME, headway.framework("flow"))):
        mine = ours.cdf(sigma)
        expected = theirs.cdf(sigma) if isinstance(theirs, UniformTime) else theirs.time(sigma)
        torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(VP_TIME.log_prob(sigma), BASES["vp"].log_prob(sigma))
    # The cosine schedule (Nichol & Dhariwal 2021, s = 0): alpha_bar = cos^2(pi t / 2).
    t = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    torch.testing.assert_close(1 / (1 + COSINE_TIME.sigma(t).square()), (math.pi / 2 * t).cos().square())


@pytest.mark.parametrize(
    "case", ["clts", "clts by noise rate", "clts in vp's space", "beta", "speed", "adaptive", "laplace elsewhere"]
)
def test_importance_leaves_the_mean_loss_unchanged(case):
    density, progress = density_of(case)
    base = BASES[CASES[case][1]]

    def loss(sigma):
        return sigma / (1 + sigma) + 0.3 * (sigma.log().square() / 20).clamp(max=3)

    u = torch.rand(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    expected = loss(base.icdf((torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000)).mean()
    drawn = density.icdf(u, progress)
    corrected = importance(density, base, drawn, progress) * loss(drawn)
    error = corrected.std() / math.sqrt(len(u))
    assert abs(corrected.mean() - expected) < 4 * error
    assert abs(loss(drawn).mean() - expected) > 20 * error, "the correction had nothing to do"


# --- words ---


def test_build_by_name():
    assert set(options("clts")) == {"horizon", "mu", "std", "indicator", "space", "reversed"}
    assert options("cosmap") == {}
    base = BASES["edm"]
    assert build("framework", base) is base
    with pytest.raises(HeadwayError, match="Did you mean 'clts'"):
        build("cltss", base)
    with pytest.raises(HeadwayError, match=r"no option 'horizn': it has horizon.*Did you mean 'horizon'"):
        build("clts", base, horizn=0.5)
    with pytest.raises(HeadwayError, match="'cosmap' has no options, got 'scale'"):
        build("cosmap", base, scale=1)
    with pytest.raises(HeadwayError, match="no option"):
        build("clts", base, base=base)
    with pytest.raises(HeadwayError, match="Did you mean 'flow'"):
        build("beta", base, space="flov")


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("clts", {"horizon": 0}),
        ("clts", {"horizon": 1.5}),
        ("clts", {"horizon": "0.7"}),
        ("clts", {"horizon": True}),
        ("clts", {"mu": -0.1}),
        ("clts", {"mu": math.nan}),
        ("clts", {"std": 0}),
        ("clts", {"std": -0.5, "indicator": "noise-rate"}),
        ("clts", {"reversed": "yes"}),
        ("clts", {"indicator": "snr"}),
        ("clts", {"space": 3}),
        ("logit-normal", {"std": 0}),
        ("log-normal", {"mean": math.inf}),
        ("mode", {"scale": 2}),
        ("mode", {"scale": -1}),
        ("laplace", {"scale": 0}),
        ("beta", {"alpha": 0}),
        ("speed", {"k": 0.5}),
        ("speed", {"tau": 1}),
        ("two-phase", {"switch": 1.1}),
        ("task-difficulty", {"clusters": 0}),
        ("task-difficulty", {"clusters": 2.5}),
        ("task-difficulty", {"patience": -1}),
        ("adaptive", {"floor": 0}),
        ("adaptive", {"memory": 0}),
        ("adaptive", {"bins": 10**9}),
        ("adaptive", {"gate": -1}),
    ],
)
def test_nonsense_is_refused(name, chosen):
    with pytest.raises(HeadwayError, match=next(iter(chosen))):
        build(name, BASES["edm"], **chosen)


@pytest.mark.parametrize("progress", [-0.1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["clts", "two-phase"])
def test_impossible_progress_is_refused(name, progress):
    with pytest.raises(HeadwayError, match="progress"):
        build(name, BASES["edm"]).icdf(Q, progress)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_options_make_a_density_or_a_sentence(data):
    name = data.draw(st.sampled_from(sorted(DENSITIES)))
    numbers = st.one_of(
        st.floats(-8, 8), st.integers(-2, 50), st.sampled_from([math.nan, math.inf, -math.inf, None, "x"])
    )
    chosen = {key: data.draw(numbers) for key in options(name) if data.draw(st.booleans()) and key != "space"}
    progress = data.draw(st.floats(0, 1.5))
    try:
        density = build(name, BASES["edm"], **chosen)
    except HeadwayError:
        return
    q = torch.tensor([0.01, 0.3, 0.7, 0.99], dtype=torch.float64)
    sigma = density.icdf(q, progress)
    torch.testing.assert_close(density.cdf(sigma, progress), q, rtol=0, atol=1e-6)
    assert density.log_prob(sigma, progress).isfinite().all()


def test_every_technique_has_its_page_and_plot():
    for name in [*DENSITIES, "stratified", "immiscible"]:
        if name in ("framework", "log-normal"):
            continue
        page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        assert f"plots/{name}.png" in page
        assert (DOCS / "plots" / f"{name}.png").stat().st_size < 40_000
