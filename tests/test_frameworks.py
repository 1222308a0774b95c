"""The frameworks' formulas, against the published table, diffusers and plain float64 arithmetic."""

from __future__ import annotations

import math
from math import expm1, hypot, log, log1p, sqrt

import pytest
import torch
from diffusers import EDMEulerScheduler

import headway
from headway.errors import HeadwayError


def vp_time(s):
    return (sqrt(0.01 + 39.8 * log1p(s * s)) - 0.1) / 19.9


# Per framework, as functions of sigma with Python's math alone, and the ranges trained on and sampled.
COLUMNS = ("time", "scale", "c_skip", "c_out", "c_in", "c_noise", "weight")
TABLE = {
    "vp": (vp_time, lambda s: 1 / hypot(1, s), lambda s: 1, lambda s: -s, lambda s: 1 / hypot(1, s),
           lambda s: 999 * vp_time(s), lambda s: s**-2, (sqrt(expm1(1.000995e-6)), sqrt(expm1(10.05))), (0.002, 80)),
    "ve": (lambda s: log(s / 0.02) / log(5000), lambda s: 1, lambda s: 1, lambda s: s, lambda s: 1,
           lambda s: log(s / 2), lambda s: s**-2, (0.02, 100), (0.02, 80)),
    "edm": (lambda s: s, lambda s: 1, lambda s: 0.25 / (s * s + 0.25), lambda s: 0.5 * s / hypot(s, 0.5),
            lambda s: 1 / hypot(s, 0.5), lambda s: log(s) / 4, lambda s: (s * s + 0.25) / (0.5 * s) ** 2,
            (0.002, 80), (0.002, 80)),
    "flow": (lambda s: s / (1 + s), lambda s: 1 / (1 + s), lambda s: 1 / (1 + s), lambda s: -s / (1 + s),
             lambda s: 1 / (1 + s), lambda s: 1000 * s / (1 + s), lambda s: ((1 + s) / s) ** 2,
             (0.002, 80), (0.002, 80)),
}  # fmt: skip
PREDICTIONS = {
    "eps": (lambda s: 1, lambda s: -s),
    "x0": (lambda s: 0, lambda s: 1),
    "v": (lambda s: 1 / (1 + s * s), lambda s: -s / hypot(1, s)),
}


def wide(fw, n=301):
    """From a tenth of the range to ten times it, in float64; float32 numbers, so that both dtypes see the same."""
    return torch.logspace(math.log10(fw.sigma_min / 10), math.log10(fw.sigma_max * 10), n).double()


def close(a, b, rtol=1e-12, atol=0.0):
    a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (a, b))
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("prediction", [None, *PREDICTIONS])
def test_every_column_of_the_table(name, prediction):
    fw, (*columns, trained, sampled) = headway.framework(name, prediction=prediction), TABLE[name]
    if prediction:  # changes these two alone
        columns[2:4] = PREDICTIONS[prediction]
    sigma = wide(fw)
    for column, formula in zip(COLUMNS, columns, strict=True):
        close(getattr(fw, column)(sigma), [float(formula(s)) for s in sigma.tolist()], atol=1e-15)
    close((fw.sigma_min, fw.sigma_max), trained)
    close(fw.time_range, [columns[0](s) for s in trained], rtol=1e-9)
    assert fw.sampling_range == sampled
    close(fw.sigma(fw.time(sigma)), sigma, rtol=1e-15 * fw.sigma_max + 1e-14)  # flow's 1 - t loses what sigma gains


@pytest.mark.parametrize("sigma_data", [0.25, 0.5, 1.7])
def test_edm_input_and_target_have_unit_variance(sigma_data):
    fw = headway.framework("edm", sigma_data=sigma_data)
    s, one = wide(fw), torch.ones(301)
    close(fw.c_in(s).square() * (sigma_data**2 + s.square()), one)
    target = ((1 - fw.c_skip(s)) * sigma_data).square() + (fw.c_skip(s) * s).square()  # variance of c_out F
    close(target / fw.c_out(s).square(), one, rtol=1e-9)
    close(fw.weight(s) * fw.c_out(s).square(), one)  # the loss is the network's plain squared error


def test_edm_against_diffusers():
    scheduler = EDMEulerScheduler(sigma_data=0.5, prediction_type="epsilon")
    fw, x, f = headway.framework("edm"), torch.tensor(0.7).double(), torch.tensor(-0.3).double()
    for s in torch.logspace(-2.5, 1.9, 9, dtype=torch.float64):
        close(fw.c_in(s) * x, scheduler.precondition_inputs(x, s), rtol=1e-9)
        close(fw.c_noise(s), scheduler.precondition_noise(s), rtol=1e-6)
        close(fw.c_skip(s) * x + fw.c_out(s) * f, scheduler.precondition_outputs(x, f, s), rtol=1e-9)


KINDS = [
    (name, kind, zeta)
    for name in TABLE
    for kind, zetas in {
        None: [1],
        "unit": [1],
        "released": [1, 0.5],
        "literal": [1, 2],
        "propagated": [1, 0.5, 2],
    }.items()
    for zeta in zetas
    if (name, kind) != ("edm", "literal")
]


@pytest.mark.parametrize(("name", "kind", "zeta"), KINDS)
def test_numbers_tensors_dtypes_devices(name, kind, zeta):
    fw = headway.framework(name, kind, zeta=zeta)
    sigma = wide(fw).reshape(7, 43)
    for function in COLUMNS:
        call = getattr(fw, function)
        wanted, single, number = call(sigma), call(sigma.float()), call(float(sigma[3, 5]))
        assert (wanted.shape, wanted.dtype, single.dtype) == (sigma.shape, torch.float64, torch.float32)
        assert wanted.isfinite().all()
        assert (number.shape, number.dtype) == ((), torch.float64)
        close(number, wanted[3, 5], atol=1e-14)
        # Float32's tolerance: 4e-7 relative; absolute for scales and times, which pass through or near 0.
        close(single, wanted, rtol=4e-7, atol=4e-7 if function in ("scale", "c_in", "time") else 0.0)
        if kind != "propagated":  # whose iteration looks at values, which meta tensors have not
            assert call(sigma.to("meta")).device.type == "meta"
    inside = sigma[(sigma >= fw.sampling_range[0]) & (sigma <= fw.sampling_range[1])]
    close(fw.sigma(fw.time(inside)), inside)
    close(fw.sigma(fw.time(inside.float())), inside, rtol=1e-5)
    assert fw.sigma(0.5).shape == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "edn"}, ["'edn'", "Did you mean 'edm'"]),
        ({"prediction": "x_0"}, ["'x_0'", "eps, x0, v", "Did you mean 'x0'"]),
        *[({"sigma_data": bad}, ["sigma_data", str(bad)]) for bad in (0.0, math.nan, math.inf)],
        *[
            ({option: bad}, ["momentum"])
            for option, bad in (("multiplier", 2.0), ("zeta", 0.5), ("density", "momentum"))
        ],
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(HeadwayError) as error:
        headway.framework(**{"name": "edm", **arguments})
    assert all(word in str(error.value) for word in words), error.value
