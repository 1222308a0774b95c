"""Momentum in the frameworks: the published numbers, what changes and what must not, and the combinations refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway.errors import HeadwayError
from headway.frameworks import Oscillator


def grid(low, high, n=200):
    return torch.logspace(math.log10(low), math.log10(high), n, dtype=torch.float64)


def b_of(t):
    return 0.1 * t + 9.95 * t * t


@pytest.mark.parametrize(
    ("name", "multiplier", "numbers"),  # sigma: c_in of the published code, to the digits given
    [
        ("edm", 1, {10: 0.987386, 20: 0.862467, 30: 0.579264, 40: 0.279713, 60: 0.0229625, 80: 4.77203e-4}),
        ("edm", 2, {10: 0.954779, 20: 0.629107, 30: 0.218904, 40: 0.0379833, 80: 3.93517e-8}),
        ("vp", 1, {20: 0.984856, 40: 0.839381, 80: 0.230614}),
        ("vp", 2, {20: 0.946299, 40: 0.582337, 80: 0.0242932}),
        ("ve", 1, {10: 0.994462, 30: 0.763451, 100: 4.77203e-4}),
    ],
)
def test_released_is_the_published_code(name, multiplier, numbers):
    fw = headway.framework(name, "released", multiplier=multiplier)
    for sigma, c_in in numbers.items():
        assert float(fw.c_in(sigma)) == pytest.approx(c_in, rel=3e-6)


VP_RANGE = math.sqrt(math.expm1(9.95e-10 + 1e-6)), math.sqrt(math.expm1(10.05))
LINEAR = {"vp": VP_RANGE, "ve": (0.02, 100), "edm": (0.002, 80), "flow": (0.002, 80)}
LITERAL = {
    "vp": lambda s: (math.sqrt(0.01 + 39.8 * math.log1p(s * s)) - 0.1) / 19.9,
    "ve": lambda s: math.log(s / 0.02) / math.log(100 / 0.02),
    "flow": lambda s: s / (1 + s),
}


@pytest.mark.parametrize("multiplier", [None, 0.7])
@pytest.mark.parametrize(("name", "kind"), [*((n, "released") for n in LINEAR), *((n, "literal") for n in LITERAL)])
def test_released_and_literal_by_formula(name, kind, multiplier):
    fw = headway.framework(name, kind, multiplier=multiplier)
    m = multiplier or {"vp": 2, "ve": 1, "edm": 2, "flow": 2}[name]
    low, high = LINEAR[name]
    for sigma in grid(low, high).tolist():
        b = m * b_of((sigma - low) / (high - low) if kind == "released" else LITERAL[name](sigma))
        assert float(fw.c_in(sigma)) == pytest.approx((1 + b) * math.exp(-b), rel=1e-11)


@pytest.mark.parametrize("name", LINEAR)
def test_propagated_is_the_critically_damped_process(name):
    fw = headway.framework(name, "propagated")
    t = torch.linspace(0.3, 0.8, 101, dtype=torch.float64)
    b = b_of(t)
    sigma = ((2 * b).exp() - 1 - 2 * b - 2 * b * b).sqrt() / (1 + b)
    pairs = [(fw.sigma(t), sigma), (fw.b(sigma), b), (fw.time(sigma), t), (fw.c_in(sigma), (1 + b) * (-b).exp())]
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    assert fw.time_range == tuple(float(fw.time(end)) for end in headway.framework(name).sampling_range)
    assert float(fw.b(0.002)) == pytest.approx(0.01453, abs=5e-6)
    assert float(fw.b(80.0)) == pytest.approx(6.3811, abs=5e-5)


@pytest.mark.parametrize("prediction", [None, "v"])
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("released", {"zeta": 0.5}),
        ("literal", {}),
        ("unit", {}),
        ("propagated", {}),
        ("propagated", {"density": "momentum"}),
    ],
)
def test_only_the_input_changes(name, kind, options, prediction):
    base = headway.framework(name, prediction=prediction)
    if (name, kind) == ("edm", "literal"):
        kind = "released"
    fw = headway.framework(name, kind, prediction=prediction, **options)
    sigma, q = grid(base.sigma_min, base.sigma_max), torch.linspace(0.01, 0.99, 9, dtype=torch.float64)
    for function in ("c_skip", "c_out", "c_noise", "weight", *(("time",) if kind != "propagated" else ())):
        assert torch.equal(getattr(fw, function)(sigma), getattr(base, function)(sigma))
    for attribute in ("name", "sigma_min", "sigma_max", "sampling_range", "sigma_data", "prediction"):
        assert getattr(fw, attribute) == getattr(base, attribute)
    assert torch.equal(fw.c_in(sigma), fw.scale(sigma))  # the network sees the scaled process, as it stands
    assert torch.equal(fw.density.icdf(q), base.density.icdf(q)) != ("density" in options)
    if kind == "unit":
        assert (fw.c_in(sigma) == 1).all()
        assert torch.equal(fw.c_in(sigma), base.c_in(sigma)) == (name == "ve")


def test_unit_is_what_edm_training_sees_of_released():
    """99 % of EDM's training noise levels have 0.996 < s <= 1, so the control must stand beside every claim."""
    fw = headway.framework("edm", "released")
    c_in = fw.c_in(fw.density.icdf(torch.linspace(0.0005, 0.99, 1000, dtype=torch.float64)))
    assert 0.996 < float(c_in.min()) < float(c_in.max()) <= 1


def test_under_damped_released_changes_sign_where_documented():
    fw = headway.framework("edm", "released", zeta=0.5, multiplier=2)
    t = (math.sqrt(0.01 + 39.8 * Oscillator(0.5).b_max / 2) - 0.1) / 19.9  # 2 B(t) = B*
    sigma = 0.002 + t * 79.998
    assert float(fw.c_in(sigma * 0.999)) > 0 > float(fw.c_in(sigma * 1.001))


@given(
    name=st.sampled_from(list(LINEAR)),
    zeta=st.floats(0.02, 5),
    multiplier=st.floats(0.05, 8),
    place=st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_damping_any_multiplier(name, zeta, multiplier, place):
    released = headway.framework(name, "released", zeta=zeta, multiplier=multiplier)
    propagated = headway.framework(name, "propagated", zeta=zeta, density="momentum")
    low, high = released.sigma_min / 10, released.sigma_max * 10
    sigma = torch.tensor([low * (high / low) ** p for p in place], dtype=torch.float64)
    assert (released.c_in(sigma).abs() <= 1 + 1e-3).all()  # just above 1 below sigma_min, where t' < 0
    c_in, b, top = propagated.c_in(sigma), propagated.b(sigma), propagated.oscillator.b_max
    assert ((b > 0) & (b < top) & (c_in > 0) & (c_in <= 1)).all()  # under-damped motion ends before B*
    torch.testing.assert_close(propagated.oscillator.variance(b).sqrt() / c_in, sigma, rtol=1e-9, atol=0)
    torch.testing.assert_close(propagated.sigma(propagated.time(sigma)), sigma, rtol=1e-10, atol=0)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("literal", {"name": "edm"}, ["literal", "released", "EDM"]),
        ("propagated", {"multiplier": 2.0}, ["multiplier", "2"]),
        ("released", {"density": "momentum"}, ["density", "propagated"]),
        ("propagated", {"density": "uniform"}, ["'uniform'", "base, momentum"]),
        ("unit", {"multiplier": 2.0}, ["unit", "multiplier"]),
        ("unit", {"zeta": 0.5}, ["unit", "zeta"]),
        ("relased", {}, ["'relased'", "Did you mean 'released'"]),
        *[("released", {"multiplier": m}, ["multiplier", str(m)]) for m in (0.0, -1.0, math.inf, math.nan)],
        *[("propagated", {"zeta": z}, ["zeta", str(z)]) for z in (0.0, -1.0, math.inf, math.nan)],
    ],
)
def test_meaningless_combinations_are_refused(kind, options, words):
    with pytest.raises(HeadwayError) as error:
        headway.framework(**{"name": "vp", "momentum": kind, **options})
    assert all(word in str(error.value) for word in words), error.value
