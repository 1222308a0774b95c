"""What a study may say: against scipy's paired t test, by brute force, and by simulating thousands of studies."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headway.compare.crossing import Reached, reach, target_of
from headway.compare.statistics import (
    Bound,
    Comparison,
    compare_costs,
    compare_values,
    corrected,
    holm,
    ratio_over_targets,
    sentence,
    share_explained,
)
from headway.errors import HeadwayError

# Pairs that never are all alike to rounding: what a t test makes of those is no property worth testing.
pairs = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=8).filter(
    lambda pairs: np.std([math.log(b / a) for b, a in pairs]) > 1e-6
)


def exact(costs) -> list[Reached]:
    return [Reached(float(cost), "exact") for cost in costs]


# --- closed forms ---------------------------------------------------------------------------------------------------


@given(pairs)
def test_ratio_interval_and_p_are_those_of_the_paired_t_test_on_logs(pairs):
    baseline, arm = np.array(pairs).T
    oracle = stats.ttest_rel(np.log(baseline), np.log(arm))
    interval = oracle.confidence_interval(0.95)
    for comparison in (compare_costs(exact(baseline), exact(arm)), compare_values(baseline, arm)):
        assert comparison.ratio == pytest.approx(stats.gmean(baseline / arm))
        assert (comparison.low, comparison.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
        assert comparison.p == pytest.approx(oracle.pvalue)


def test_two_pairs_by_hand():
    """Log ratios 0 and log 4: mean log 2, standard error log 2, and t of one degree of freedom is 12.706."""
    comparison = compare_values([1.0, 4.0], [1.0, 1.0])
    assert comparison.ratio == pytest.approx(2)
    assert (comparison.low, comparison.high) == pytest.approx((2**-11.7062, 2**13.7062), rel=1e-4)
    assert comparison.p == pytest.approx(0.5)


@given(pairs, st.floats(1e-3, 1e3))
def test_units_do_not_matter(pairs, unit):
    baseline, arm = np.array(pairs).T
    one, other = compare_values(baseline, arm), compare_values(baseline * unit, arm * unit)
    assert (other.ratio, other.low, other.high) == pytest.approx((one.ratio, one.low, one.high), rel=1e-6)


@given(pairs)
def test_swapping_arm_and_baseline_inverts_the_ratio(pairs):
    baseline, arm = np.array(pairs).T
    there, back = compare_values(baseline, arm), compare_values(arm, baseline)
    assert (1 / back.ratio, 1 / back.high, 1 / back.low) == pytest.approx((there.ratio, there.low, there.high))
    assert back.p == pytest.approx(there.p)


def test_one_seed_has_a_ratio_and_no_interval():
    comparison = compare_values([3.0], [2.0])
    assert comparison.ratio == pytest.approx(1.5)
    assert (comparison.low, comparison.high, comparison.p) == (None, None, None)


def test_an_arm_that_is_the_baseline_shows_no_difference():
    same = [3.0, 4.0, 5.0, 6.0, 7.0]
    comparison = compare_values(same, same)
    assert (comparison.ratio, comparison.low, comparison.high, comparison.p) == (1, 1, 1, 1)
    assert corrected([comparison])[0].verdict == "no difference shown"


def test_seeds_alike_to_the_last_digit_leave_no_doubt_and_no_nan():
    comparison = compare_values([4.0] * 5, [2.0] * 5)
    assert (comparison.low, comparison.high, comparison.p) == (2, 2, 0)


@pytest.mark.parametrize(
    ("baseline", "arm", "message"),
    [
        ([1.0, 2.0], [1.0], "one side has 2 seeds and the other 1"),
        ([], [], "at least one"),
        ([1.0], [0.0], "above 0.*got 0.0 for 'fdm'"),
        ([float("nan")], [1.0], "got nan"),
    ],
)
def test_what_cannot_be_paired_is_refused(baseline, arm, message):
    with pytest.raises(HeadwayError, match=message):
        compare_values(baseline, arm, "fdm")


def test_a_cost_that_is_no_number_is_refused():
    with pytest.raises(HeadwayError, match="finite"):
        compare_costs(exact([1]), exact([math.nan]))


# --- bounds ---------------------------------------------------------------------------------------------------------

E, LATER, EARLIER = "exact", "not before", "not after"


@pytest.mark.parametrize(
    ("baseline", "arm", "direction"),
    [
        (E, LATER, "at most"),  # the arm's cost is larger than 20: 10 over it is less than a half
        (E, EARLIER, "at least"),
        (LATER, E, "at least"),
        (EARLIER, E, "at most"),
        (LATER, LATER, None),
        (EARLIER, EARLIER, None),
        (LATER, EARLIER, "at least"),
        (EARLIER, LATER, "at most"),
    ],
)
def test_a_censored_pair_bounds_the_ratio_on_one_side_or_not_at_all(baseline, arm, direction):
    comparison = compare_costs([Reached(10, baseline)], [Reached(20, arm)])
    assert comparison.bounds == ((Bound(direction, 0.5, 1),) if direction else ())
    assert comparison.log_ratios == (None,)
    assert (comparison.ratio, comparison.low, comparison.high, comparison.p) == (None, None, None, None)
    assert comparison.verdict == "bound only"


sides = st.sampled_from([E, LATER, EARLIER])
censored = st.lists(st.tuples(st.floats(1, 100), sides, st.floats(1, 100), sides), min_size=1, max_size=8)


@given(censored, st.floats(0, 3), st.floats(0, 3))
def test_bounds_are_true_of_any_costs_that_the_curves_allow(seeds, further_b, further_a):
    def truth(at, side, further):
        return at * math.exp({E: 0, LATER: further, EARLIER: -further}[side])

    comparison = compare_costs([Reached(b, s) for b, s, _, _ in seeds], [Reached(a, s) for _, _, a, s in seeds])
    true = [truth(b, sb, further_b) / truth(a, sa, further_a) for b, sb, a, sa in seeds]
    bounded = [r for r, (_, sb, _, sa) in zip(true, seeds, strict=True) if sb != sa]
    assert sum(bound.seeds for bound in comparison.bounds) == len(bounded)
    for bound in comparison.bounds:
        if bound.direction == "at least":
            kept = [r for r in bounded if r >= bound.ratio * (1 - 1e-9)]
        else:
            kept = [r for r in bounded if r <= bound.ratio * (1 + 1e-9)]
        assert len(kept) >= bound.seeds
    assert (comparison.ratio is None) == any(sb != E or sa != E for _, sb, _, sa in seeds)


@given(censored)
def test_swapping_arm_and_baseline_mirrors_the_bounds(seeds):
    one, other = [Reached(b, s) for b, s, _, _ in seeds], [Reached(a, s) for _, _, a, s in seeds]
    mirror = {"at least": "at most", "at most": "at least"}
    there = {(b.direction, b.seeds): b.ratio for b in compare_costs(one, other).bounds}
    back = {(mirror[b.direction], b.seeds): 1 / b.ratio for b in compare_costs(other, one).bounds}
    assert back == pytest.approx(there)


def test_a_target_met_before_training_says_nothing():
    comparison = compare_costs([Reached(0, EARLIER)], [Reached(20, E)])
    assert (comparison.ratio, comparison.bounds) == (None, ())


def test_bounds_are_said_seed_by_seed_and_rounded_to_where_they_are_true():
    baseline = exact([831, 800, 900])
    arm = [Reached(1000, LATER), Reached(1000, LATER), Reached(1000, E)]
    said = sentence(compare_costs(baseline, arm, "late"))
    assert said.startswith("Indicative only: late's gain in images to the target is known in part: ")
    assert "at most 0.84x in 2 of 3 seeds; 0.90x in 1 of 3 seeds" in said
    said = sentence(compare_costs(arm, baseline, "early"))
    assert "at least 1.20x in 2 of 3 seeds; 1.11x in 1 of 3 seeds" in said


def test_seeds_of_which_nothing_is_known_are_counted():
    late = Reached(1000, LATER)
    assert "unknown in 1 of 2 seeds" in sentence(compare_costs([late, *exact([500])], [late, late]))
    assert "nothing is known of their seconds" in sentence(compare_costs([late, late], [late, late]), "seconds")


# --- Holm and verdicts ----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closure_of_bonferroni(p):
    """Adjusted p of one hypothesis: the largest Bonferroni p over all intersections that it is part of."""
    subsets = [s for size in range(1, len(p) + 1) for s in itertools.combinations(range(len(p)), size)]
    brute = [max(min(1, len(s) * min(p[j] for j in s)) for s in subsets if i in s) for i in range(len(p))]
    assert holm(p) == pytest.approx(brute)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_an_arm_without_p_stays_without_and_counts():
    assert holm([0.01, None, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06)]


def comparison(ratio: float, p_holm: float | None, n: int = 5, measure: str = "cost") -> Comparison:
    return Comparison("fdm", measure, n, (math.log(ratio),) * n, ratio, ratio / 1.2, ratio * 1.2, 0.001, p_holm)


@pytest.mark.parametrize(
    ("ratio", "p_holm", "n", "cost", "distance"),
    [
        (1.3, 0.049, 5, "faster", "better"),
        (0.7, 0.049, 5, "slower", "worse"),
        (1.3, 0.051, 5, "no difference shown", "no difference shown"),
        (1.3, 1e-6, 4, "indicative: 1.30x", "indicative: 1.30x"),
        (1.3, None, 4, "indicative: 1.30x", "indicative: 1.30x"),
    ],
)
def test_words_need_five_seeds_and_holm(ratio, p_holm, n, cost, distance):
    assert comparison(ratio, p_holm, n).verdict == cost
    assert comparison(ratio, p_holm, n, "distance").verdict == distance


def test_a_verdict_before_the_correction_is_refused():
    with pytest.raises(HeadwayError, match="corrected"):
        print(comparison(1.3, None).verdict)


def test_correction_takes_the_word_from_an_arm_that_was_one_of_many():
    baseline, arm = [1.0] * 5, [0.9, 0.8, 0.95, 0.85, 0.99]
    arms = [compare_values(baseline, arm, name) for name in "abcdefgh"]
    assert arms[0].p < 0.05
    assert corrected(arms[:1])[0].verdict == "better"
    assert corrected(arms)[0].verdict == "no difference shown"


@pytest.mark.parametrize(
    ("given", "unit", "said"),
    [
        (
            Comparison("fdm", "cost", 5, (), 1.31, 1.12, 1.52, 0.01, 0.01),
            "images",
            "fdm reaches the target with 1.31x fewer images (95 % interval 1.12 to 1.52, 5 seeds).",
        ),
        (
            Comparison("fdm", "cost", 5, (), 0.8, 0.5, 0.8, 0.01, 0.01),
            "seconds",
            "fdm reaches the target with 1.25x as many seconds (95 % interval 1.25 to 2.00, 5 seeds).",
        ),
        (
            Comparison("fdm", "distance", 6, (), 1.2, 1.1, 1.3, 0.01, 0.01),
            "images",
            "fdm's distance at equal images is 1.20x lower than the baseline's (95 % interval 1.10 to 1.30, 6 seeds).",
        ),
        (
            Comparison("fdm", "cost", 5, (), 0.8, 0.5, 1.28, 0.3, 0.6),
            "NFE",
            "No difference shown between fdm and the baseline in NFE to the target "
            "(ratio 0.80, 95 % interval 0.50 to 1.28, 5 seeds, p = 0.6 after Holm's correction).",
        ),
        (
            Comparison("fdm", "distance", 1, (), 0.5),
            "images",
            "Indicative only: fdm's distance at equal images is 2.00x the baseline's (no interval, 1 seed).",
        ),
    ],
)
def test_sentences(given, unit, said):
    assert sentence(given, unit) == said


@given(pairs.filter(lambda pairs: len(pairs) < 5))
def test_below_five_seeds_every_sentence_begins_with_indicative(pairs):
    baseline, arm = np.array(pairs).T
    said = sentence(corrected([compare_values(baseline, arm)])[0])
    assert said.startswith("Indicative")
    assert not re.search("faster|slower|No difference shown", said)


# --- what a control explains ----------------------------------------------------------------------------------------


def test_a_control_with_half_the_gain_in_every_seed_explains_half():
    gain = [0.2, 0.3, 0.25, 0.28, 0.22]
    share = share_explained(gain, [x / 2 for x in gain], "fdm", "weight warm-up")
    assert (share.part, share.low, share.high) == pytest.approx((0.5, 0.5, 0.5), abs=1e-6)
    assert share.sentence == "weight warm-up accounts for 50% of fdm's gain (95 % interval 50% to 50%, 5 seeds)."


def test_the_ends_of_its_interval_are_where_the_t_test_turns():
    rng = np.random.default_rng(0)
    gain, control = rng.normal(0.3, 0.05, 5), rng.normal(0.1, 0.05, 5)
    share = share_explained(gain.tolist(), control.tolist())
    assert share.low < share.part < share.high
    for end in (share.low, share.high):
        assert stats.ttest_1samp(control - end * gain, 0).pvalue == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("gain", "control", "reason"),
    [
        ([-0.2, -0.3, -0.25], [0.1, 0.1, 0.2], "no gain"),
        ([0.5, -0.4, 0.1], [0.1, 0.1, 0.2], "no gain"),
        ([0.2], [0.1], "at least 2 seeds"),
        ([0.2, None, 0.3], [0.1, 0.1, 0.1], "bounds only"),
        ([0.2, 0.25, 0.3], [0.1, None, 0.1], "bounds only"),
    ],
)
def test_no_part_is_stated_where_there_is_none_to_state(gain, control, reason):
    share = share_explained(gain, control)
    assert (share.part, share.low, share.high) == (None, None, None)
    assert reason in share.sentence


# --- a range of targets ---------------------------------------------------------------------------------------------


def test_an_arm_of_constant_speed_up_has_its_ratio_at_every_target():
    at = np.linspace(1, 200, 400)
    baseline = [(at, a * np.exp(-at / 60)) for a in (90.0, 110.0)]
    arm = [(at, a * np.exp(-1.5 * at / 60)) for a in (90.0, 110.0)]
    found = ratio_over_targets(baseline, arm, [70, 40, 20, 3, 0.001], "fdm")
    assert [c.ratio for c in found[:3]] == pytest.approx([1.5] * 3)
    assert found[3].bounds == (Bound("at least", pytest.approx(200 / (40 * math.log(110 / 3))), 2),)
    assert (found[4].ratio, found[4].bounds) == (None, ())


# --- simulated studies ----------------------------------------------------------------------------------------------

STUDIES = 4000


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_covers_what_it_says(seeds):
    """Log-normal noise, a part of it common to both sides of a pair; nominal 95 %, two points allowed."""
    rng = np.random.default_rng(seeds)
    common = rng.normal(0, 0.3, (STUDIES, seeds))
    baseline = np.exp(5 + common + rng.normal(0, 0.1, common.shape))
    arm = np.exp(5 + common - math.log(1.3) + rng.normal(0, 0.2, common.shape))
    found = [compare_values(b, a) for b, a in zip(baseline, arm, strict=True)]
    assert np.mean([c.low <= 1.3 <= c.high for c in found]) == pytest.approx(0.95, abs=0.02)


def test_a_bootstrap_of_three_seeds_covers_three_quarters():
    """Why Student's t: the percentile interval of three is their range, which misses in 2 of 2^3 cases."""
    rng = np.random.default_rng(0)
    logs = rng.normal(0, 1, (2000, 3))
    interval = stats.bootstrap(
        (logs,), np.mean, axis=1, n_resamples=1999, method="percentile", batch=100, random_state=rng
    ).confidence_interval
    covered = np.mean((interval.low <= 0) & (interval.high >= 0))
    assert covered == pytest.approx(0.75, abs=0.03)


def test_the_whole_way_from_curves_to_interval_covers_what_it_says():
    """Noisy curves, a target made from the baseline's own seeds, isotonic crossing, ratio: the true speed-up is 1.4."""
    rng = np.random.default_rng(1)
    at = np.linspace(10, 200, 20)
    covered = []
    for _ in range(1000):
        level = rng.normal(4, 0.1, 5)  # a seed's own, the same for both sides

        def curves(speed, level=level):
            own = level + rng.normal(0, 0.05, 5)
            noise = rng.normal(0, 0.02, (5, len(at)))
            return [(at, np.exp(x - 0.8 * np.log(speed * at) + e)) for x, e in zip(own, noise, strict=True)]

        baseline, arm = curves(1), curves(1.4)
        target = target_of(baseline, 0.6)
        found = compare_costs([reach(*c, target) for c in baseline], [reach(*c, target) for c in arm])
        assert found.ratio is not None
        covered.append(found.low <= 1.4 <= found.high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


def test_of_eight_arms_that_change_nothing_one_is_called_something_in_five_percent_of_studies_at_most():
    """They share the baseline's seeds, as in a real study. Three standard errors of the simulation are allowed."""
    rng = np.random.default_rng(2)
    studies, with_word, uncorrected = 1000, 0, 0
    for _ in range(studies):
        baseline = np.exp(rng.normal(0, 0.1, 5))
        arms = [compare_values(baseline, np.exp(rng.normal(0, 0.1, 5))) for _ in range(8)]
        with_word += any(c.verdict != "no difference shown" for c in corrected(arms))
        uncorrected += any(c.p < 0.05 for c in arms)
    assert with_word / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)
    assert uncorrected / studies > 0.15, "without Holm's correction it is far more, or the test above shows nothing"


def test_the_share_explained_covers_what_it_says():
    rng = np.random.default_rng(3)
    common = rng.normal(0, 0.05, (2000, 5))
    gain, control = 0.4 + common + rng.normal(0, 0.05, common.shape), 0.24 + common + rng.normal(0, 0.05, common.shape)
    found = [share_explained(g, c) for g, c in zip(gain.tolist(), control.tolist(), strict=True)]
    assert np.mean([s.part is not None for s in found]) > 0.99
    assert np.mean([s.low <= 0.6 <= s.high for s in found if s.part is not None]) == pytest.approx(0.95, abs=0.02)
