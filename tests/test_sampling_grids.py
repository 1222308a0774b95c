"""Grids of noise levels."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.frameworks import EDM, VE, VP, Flow, framework
from headway.sampling import GRIDS, sigma_grid

FRAMEWORKS = [EDM(), VP(), VE(), Flow(), framework("vp", "released"), framework("edm", "propagated")]


@settings(max_examples=150, deadline=None)
@given(
    fw=st.sampled_from(FRAMEWORKS),
    kind=st.sampled_from(list(GRIDS)),
    steps=st.integers(2, 60),
    low=st.floats(1e-3, 0.5),
    high=st.floats(1.0, 150.0),
)
def test_a_grid_falls_from_sigma_max_to_sigma_min_and_then_to_zero(fw, kind, steps, low, high):
    sigmas = sigma_grid(fw, steps, kind, sigma_min=low, sigma_max=high)
    assert sigmas.shape == (steps + 1,)
    assert sigmas.dtype == torch.float64
    assert (sigmas.diff() < 0).all()
    assert (sigmas[0], sigmas[-2], sigmas[-1]) == (high, low, 0)


@pytest.mark.parametrize("kind", GRIDS)
def test_one_step_goes_from_sigma_max_to_zero(kind):
    assert sigma_grid(EDM(), 1, kind).tolist() == [80.0, 0.0]


def test_the_range_is_the_one_frameworks_sample_in():
    # VP trains up to 152 but is sampled from 80; VE ends at 0.02 (as in the published code of EDM and FDM).
    assert sigma_grid(VP(), 5)[[0, -2]].tolist() == [80.0, 0.002]
    assert sigma_grid(VE(), 5)[[0, -2]].tolist() == [80.0, 0.02]


def test_the_edm_grid_is_that_of_equation_5():
    n, rho = 18, 7
    expected = [(80 ** (1 / rho) + i / (n - 1) * (0.002 ** (1 / rho) - 80 ** (1 / rho))) ** rho for i in range(n)]
    assert sigma_grid(EDM(), n).tolist() == pytest.approx([*expected, 0.0])


def test_grids_are_uniform_in_what_they_are_named_after():
    assert sigma_grid(EDM(), 9, "logsnr")[:-1].log().diff().std() < 1e-12
    vp, momentum = VP(), framework("vp", "propagated")
    for fw in (vp, momentum):
        steps = fw.time(sigma_grid(fw, 9, "time")[:-1]).diff()
        assert steps.std() / steps.mean().abs() < 1e-9
    # The time of propagated momentum is the damped process's own, so its grid is another one.
    assert not torch.allclose(sigma_grid(vp, 9, "time"), sigma_grid(momentum, 9, "time"), rtol=1e-2)


def test_the_singlestep_grid_is_the_published_one():
    """25 evaluations: 24 intervals in 9 equal steps of log-SNR, of orders 3 (7 times), 2 and 1; cut in as many parts."""
    sigmas = sigma_grid(EDM(), 25, "singlestep")
    step = math.log(0.002 / 80) / 9
    lengths = [step / 3] * 21 + [step / 2] * 2 + [step]
    assert sigmas[:-1].log().diff().tolist() == pytest.approx(lengths)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"kind": "karras"}, "Unknown grid 'karras'"),
        ({"kind": "lognsr"}, "Did you mean 'logsnr'"),
        ({"rho": 0.0}, "rho"),
        ({"rho": math.nan}, "rho"),
        ({"rho": 5.0, "kind": "logsnr"}, "rho belongs to the grid 'edm'"),
        ({"sigma_min": -1.0}, "sigma_min"),
        ({"sigma_min": 0.0}, "sigma_min"),
        ({"sigma_min": 90.0}, "sigma_min=90"),
        ({"sigma_max": math.inf}, "sigma_max"),
        ({"sigma_max": math.nan}, "sigma_max"),
        ({"sigma_min": 1.0, "sigma_max": 1.0 + 1e-15, "steps": 50}, "do not fit"),
    ],
)
def test_values_that_make_no_grid_are_refused(arguments, message):
    with pytest.raises(HeadwayError, match=message):
        sigma_grid(EDM(), **{"steps": 10, **arguments})
