"""Where a curve reaches a target: closed forms, scikit-learn's isotonic regression, and what must hold of any curve."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from headway.compare.crossing import Reached, monotone, reach, target_of
from headway.errors import HeadwayError

distances = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12)


@given(distances)
def test_monotone_is_the_isotonic_regression_of_the_logs(values):
    if len(values) > 1:
        oracle = IsotonicRegression(increasing=False).fit_transform(np.arange(len(values)), np.log(values))
        np.testing.assert_allclose(np.log(monotone(values)), oracle, atol=1e-9)
    assert (np.diff(monotone(values)) <= 0).all()


@given(distances)
def test_a_curve_that_falls_already_stays_as_it_is(values):
    falling = sorted(values, reverse=True)
    np.testing.assert_allclose(monotone(falling), falling, rtol=1e-12)


def test_a_bump_is_levelled_at_its_geometric_mean():
    np.testing.assert_allclose(monotone([100, 4, 16, 1]), [100, 8, 8, 1])


def test_an_exponential_curve_is_crossed_where_the_formula_says():
    at = np.linspace(10, 100, 7)
    reached = reach(at, 50 * np.exp(-at / 20), 50 * np.exp(-33.3 / 20))
    assert reached.bound == "exact"
    assert reached.at == pytest.approx(33.3)


def test_a_power_law_is_crossed_exactly_on_a_log_axis_and_not_on_a_linear_one():
    nfe = np.array([9, 18, 35, 79])
    target = 1000 * 25.0**-1.5
    assert reach(nfe, 1000 * nfe**-1.5, target, log_axis=True).at == pytest.approx(25)
    assert reach(nfe, 1000 * nfe**-1.5, target).at != pytest.approx(25, rel=0.01)


def test_a_lucky_dip_is_no_crossing():
    """The raw curve touches 10 at 2; the best decreasing one is there at the end of the bump's level only."""
    positions, values = [1, 2, 3, 4], [100, 10, 90, 9]
    assert reach(positions, values, 10).at > 3


@pytest.mark.parametrize("log_axis", [False, True])
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0.9, Reached(4, "not before")),
        (1, Reached(4, "exact")),
        (2, Reached(2, "exact")),  # the first position of a level, not its middle or end
        (8, Reached(1, "not after")),
        (9, Reached(1, "not after")),
    ],
)
def test_what_is_not_seen_is_a_bound(target, expected, log_axis):
    reached = reach([1, 2, 3, 4], [8, 2, 2, 1], target, log_axis=log_axis)
    assert reached.bound == expected.bound
    assert reached.at == pytest.approx(expected.at)


@given(distances, st.floats(1e-3, 1e6), st.floats(1e-2, 1e2), st.floats(1e-2, 1e2), st.booleans())
def test_units_do_not_matter(values, target, unit, scale, log_axis):
    """Costs in other units move the crossing by that factor; distances in other units do not move it."""
    at = np.arange(1.0, len(values) + 1)
    one = reach(at, values, target, log_axis=log_axis)
    other = reach(at * unit, np.array(values) * scale, target * scale, log_axis=log_axis)
    if one.bound == other.bound:  # a target hit to the last digit may be a bound in the one unit and exact in the other
        assert other.at == pytest.approx(one.at * unit, rel=1e-6)
    else:
        assert np.isclose(monotone(values), target, rtol=1e-8).any()


@given(distances, st.floats(1e-3, 1e6), st.floats(1, 100))
def test_a_harder_target_is_never_reached_earlier(values, target, harder):
    order = {"not after": 0, "exact": 1, "not before": 2}
    at = range(1, len(values) + 1)
    easy, hard = reach(at, values, target), reach(at, values, target / harder)
    assert easy.at <= hard.at * (1 + 1e-9)
    assert order[easy.bound] <= order[hard.bound]


def test_the_target_is_the_geometric_mean_at_the_share_of_the_budget():
    at = np.linspace(1, 100, 100)
    curves = [(at, a * np.exp(-at / 30)) for a in (20.0, 45.0)]
    assert target_of(curves) == pytest.approx(30 * np.exp(-80 / 30))
    assert target_of(curves, share=1) == pytest.approx(30 * np.exp(-100 / 30))


def test_the_target_is_read_between_measurements():
    assert target_of([([10, 100], [100, 1])]) == pytest.approx(100 ** (2 / 9))


@given(st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=10), st.floats(0.5, 1))
def test_one_seed_reaches_its_own_target_by_that_share_of_the_budget(values, share):
    at = np.arange(1.0, len(values) + 1)
    reached = reach(at, values, target_of([(at, values)], share))
    assert reached.bound != "not before"
    assert reached.at <= share * len(values) * (1 + 1e-6)


def test_a_plateau_reaches_its_own_level_whatever_the_rounding():
    at = [1, 2, 3, 4]
    for level in np.linspace(1, 9, 500):
        values = [10, level, level, level]
        assert reach(at, values, target_of([(at, values)])) == Reached(pytest.approx(2), "exact")


@pytest.mark.parametrize(
    ("positions", "values", "target", "message"),
    [
        ([1, 2], [3, 0], 1, "above 0.*got 0.0"),
        ([1, 2], [3, float("nan")], 1, "got nan"),
        ([1, 2], [3, 2], -1, "target.*got -1"),
        ([1, 2, 3], [3, 2], 1, "3 positions and 2 distances"),
        ([2, 1], [3, 2], 1, "increase"),
        ([-1, 1], [3, 2], 1, "increase from 0"),
        ([], [], 1, "at least one distance"),
    ],
)
def test_what_cannot_be_read_is_refused(positions, values, target, message):
    with pytest.raises(HeadwayError, match=message):
        reach(positions, values, target)


def test_a_log_axis_has_no_zero():
    assert reach([0, 1], [3, 1], 2).bound == "exact"
    with pytest.raises(HeadwayError, match="log axis"):
        reach([0, 1], [3, 1], 2, log_axis=True)


@pytest.mark.parametrize(
    ("curves", "share", "message"),
    [([], 0.8, "at least one seed"), ([([1, 2], [2, 1])], 80, "share"), ([([9, 10], [2, 1])], 0.8, "before the first")],
)
def test_a_target_that_cannot_be_set_is_refused(curves, share, message):
    with pytest.raises(HeadwayError, match=message):
        target_of(curves, share)
