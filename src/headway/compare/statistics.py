"""What a study may say: paired ratios of an arm to the baseline, their intervals, and the words that go with them.

Every ratio is the baseline's number over the arm's: above 1 the arm is better, be it cost to a target or distance at equal
cost. A seed gives one pair. Logs of ratios are averaged, with Student's t over seeds: few seeds are the rule, and a
bootstrap of three covers 75 % where it says 95 %. Over the arms of a study p is corrected by Holm (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from headway.compare.crossing import Curve, Reached, Side, reach
from headway.errors import HeadwayError

ALPHA = 0.05  # of tests; intervals are of 95 %
SEEDS_FOR_A_VERDICT = 5
NO_MODEL = "neither beats the pixel Gaussian"

Direction = Literal["at least", "at most"]

# What a pair says of (baseline's cost) / (arm's cost) if not both are known exactly, by (baseline, arm).
# "not before" means that the true cost is larger, "not after" that it is smaller. Two bounds of one side say nothing.
ONE_SIDED: dict[tuple[Side, Side], Direction] = {
    ("exact", "not before"): "at most",
    ("exact", "not after"): "at least",
    ("not before", "exact"): "at least",
    ("not after", "exact"): "at most",
    ("not before", "not after"): "at least",
    ("not after", "not before"): "at most",
}
WORDS = {"cost": ("faster", "slower"), "distance": ("better", "worse")}


@dataclass(frozen=True)
class Bound:
    """In each of ``seeds`` seeds the ratio is at least, or at most, ``ratio``."""

    direction: Direction
    ratio: float
    seeds: int


@dataclass(frozen=True)
class Comparison:
    """An arm against the baseline, paired by seed.

    Attributes:
        arm: its name.
        measure: "cost" to a target, or "distance" at equal cost.
        n: number of seeds.
        log_ratios: log(baseline / arm) of each seed; None where it isn't known exactly.
        ratio: geometric mean of baseline / arm, above 1 if the arm is cheaper or closer; None if any seed isn't known exactly.
        low, high: its 95 % interval by Student's t over seeds; None without ratio or with one seed.
        p: two-sided, of the paired t test that the ratio is 1; None like the interval.
        p_holm: p corrected over the study's arms; None until `corrected`.
        bounds: what is known of the seeds that gave a bound only, at most one entry a direction.
        void: neither side is a model of the data, so that no ratio is stated; see `voided`.
    """

    arm: str
    measure: Literal["cost", "distance"]
    n: int
    log_ratios: tuple[float | None, ...]
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    bounds: tuple[Bound, ...] = ()
    void: bool = False

    @property
    def verdict(self) -> str:
        """faster, slower (of distances: better, worse) or "no difference shown", by p_holm at 5 %, from 5 seeds on.

        With fewer seeds "indicative: 1.31x"; "bound only" if any seed isn't known exactly; `NO_MODEL` of void ones.
        """
        if self.void:
            return NO_MODEL
        if self.ratio is None:
            return "bound only"
        if self.n < SEEDS_FOR_A_VERDICT:
            return f"indicative: {self.ratio:.2f}x"
        if self.p_holm is None:
            raise HeadwayError(f"No verdict on {self.arm!r} yet: give all arms of the study to corrected() first.")
        if self.p_holm > ALPHA:
            return "no difference shown"
        return WORDS[self.measure][0 if self.ratio > 1 else 1]


@dataclass(frozen=True)
class Share:
    """Which part of an arm's log gain a control has as well: 1 is all of it. None where that cannot be told; see ``sentence``."""

    part: float | None
    low: float | None
    high: float | None
    sentence: str


def compare_costs(baseline: Sequence[Reached], arm: Sequence[Reached], name: str = "arm") -> Comparison:
    """Costs to the same target, one of each a seed, in the same order of seeds.

    If in any seed one side is known by a bound, there is neither ratio nor interval but bounds: leaving such seeds out would
    favour the arm that fails. A target reached at position 0, before any training, says nothing.
    """
    _refuse_unless_paired(baseline, arm, name)
    log_ratios: list[float | None] = []
    one_sided: dict[Direction, list[float]] = {}
    for b, a in zip(baseline, arm, strict=True):
        if not (0 <= b.at < math.inf and 0 <= a.at < math.inf):
            raise HeadwayError(f"Costs must be finite and at least 0, got {b.at} and {a.at} for {name!r}.")
        known = b.at > 0 and a.at > 0
        exact = known and b.bound == a.bound == "exact"
        log_ratios.append(math.log(b.at / a.at) if exact else None)
        direction = ONE_SIDED.get((b.bound, a.bound))
        if known and direction:
            one_sided.setdefault(direction, []).append(b.at / a.at)
    bounds = [Bound(d, min(r) if d == "at least" else max(r), len(r)) for d, r in sorted(one_sided.items())]
    return _comparison(name, "cost", log_ratios, tuple(bounds))


def compare_values(baseline: Sequence[float], arm: Sequence[float], name: str = "arm") -> Comparison:
    """Distances (> 0, lower is better) at equal cost, one of each a seed, in the same order of seeds."""
    _refuse_unless_paired(baseline, arm, name)
    for value in (*baseline, *arm):
        if not 0 < value < math.inf:
            raise HeadwayError(f"Distances must be finite and above 0, since logs are taken; got {value} for {name!r}.")
    return _comparison(name, "distance", [math.log(b / a) for b, a in zip(baseline, arm, strict=True)])


def ratio_over_targets(
    baseline: Sequence[Curve],
    arm: Sequence[Curve],
    targets: Sequence[float],
    name: str = "arm",
    *,
    log_axis: bool = False,
) -> list[Comparison]:
    """Costs compared at each of several targets (distances); curves one a seed. Intervals are of each target by itself."""
    return [
        compare_costs(
            [reach(*curve, target, log_axis=log_axis) for curve in baseline],
            [reach(*curve, target, log_axis=log_axis) for curve in arm],
            name,
        )
        for target in targets
    ]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p values corrected for their number by Holm's step-down method (Scand. J. Statist. 6, 1979).

    None stays None, but counts: an arm planned and not measured in full does not make the others' tests easier.
    """
    p = np.array([1.0 if value is None else value for value in p_values])
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return [None if given is None else float(value) for given, value in zip(p_values, adjusted, strict=True)]


def voided(comparison: Comparison) -> Comparison:
    """The comparison of two sides that both fail as models of the data: which of two failures is closer is no news."""
    c = comparison
    return Comparison(c.arm, c.measure, c.n, (None,) * c.n, void=True)


def corrected(arms: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons of all arms of a study in one measure, with p_holm."""
    return [replace(arm, p_holm=p) for arm, p in zip(arms, holm([arm.p for arm in arms]), strict=True)]


def share_explained(
    gain: Sequence[float | None], control: Sequence[float | None], arm: str = "the arm", name: str = "the control"
) -> Share:
    """Which part of an arm's gain a control has too: mean log ratio of the control over that of the arm.

    The interval is Fieller's (J. R. Statist. Soc. B 16, 1954) for paired seeds: all parts x for which the t test of
    control - x gain does not reject. It is bounded just where the arm's own interval is off 1; elsewhere no part is stated.

    Args:
        gain: log ratios of the arm, one a seed (`Comparison.log_ratios`). control: those of the control, same seeds.
        arm, name: what to call the two in the sentence.
    """
    _refuse_unless_paired(gain, control, name)
    a = np.array([x for x in gain if x is not None])
    c = np.array([x for x in control if x is not None])
    n = len(gain)
    if min(len(a), len(c)) < n:
        return Share(None, None, None, f"What {name} explains is open: some seeds are known by bounds only.")
    if n < 2:
        return Share(None, None, None, f"What {name} explains is open: that takes at least 2 seeds.")
    noise = stats.t.ppf(1 - ALPHA / 2, n - 1) ** 2 * np.cov(a, c) / n
    # The parts in question solve square x^2 - 2 cross x + rest <= 0.
    square, cross, rest = a.mean() ** 2 - noise[0, 0], a.mean() * c.mean() - noise[0, 1], c.mean() ** 2 - noise[1, 1]
    if a.mean() <= 0 or square <= 0:
        return Share(None, None, None, f"{arm} shows no gain that {name} could explain ({_seeds(n)}).")
    root = math.sqrt(max(0.0, cross**2 - square * rest))
    part, low, high = float(c.mean() / a.mean()), float((cross - root) / square), float((cross + root) / square)
    said = f"{name} accounts for {part:.0%} of {arm}'s gain (95 % interval {low:.0%} to {high:.0%}, {_seeds(n)})."
    return Share(part, low, high, _hedged(said, n))


def sentence(comparison: Comparison, unit: str = "images") -> str:
    """What was found, for people. ``unit``: of the cost, "images", "seconds" or "NFE"; of distances, what was equal."""
    c = comparison
    if c.void:
        return f"{c.arm} and the baseline: {NO_MODEL}, so there is nothing to compare."
    if c.ratio is None:
        return _hedged(_bounds_sentence(c, unit), c.n)
    if c.verdict == "no difference shown":
        of = f"{unit} to the target" if c.measure == "cost" else f"distance at equal {unit}"
        found = f"ratio {c.ratio:.2f}, {_precision(c, inverse=False)}, p = {c.p_holm:.2g} after Holm's correction"
        return f"No difference shown between {c.arm} and the baseline in {of} ({found})."
    better = c.ratio > 1
    ratio = f"{c.ratio if better else 1 / c.ratio:.2f}x"  # stated above 1, with the word that fits
    if c.measure == "cost":
        said = f"{c.arm} reaches the target with {ratio} {'fewer' if better else 'as many'} {unit}"
    else:
        than = "lower than the baseline's" if better else "the baseline's"
        said = f"{c.arm}'s distance at equal {unit} is {ratio} {than}"
    return _hedged(f"{said} ({_precision(c, inverse=not better)}).", c.n)


def _precision(c: Comparison, inverse: bool) -> str:
    if c.low is None or c.high is None:
        return f"no interval, {_seeds(c.n)}"
    low, high = (1 / c.high, 1 / c.low) if inverse else (c.low, c.high)
    return f"95 % interval {low:.2f} to {high:.2f}, {_seeds(c.n)}"


def _bounds_sentence(c: Comparison, unit: str) -> str:
    exact = [math.exp(x) for x in c.log_ratios if x is not None]
    open_seeds = c.n - len(exact) - sum(bound.seeds for bound in c.bounds)
    if open_seeds == c.n:
        where = "outside what was measured, on the same side"
        return f"{c.arm} and the baseline both meet the target {where}: nothing is known of their {unit}."
    known = [f"{b.direction} {_outwards(b):.2f}x in {b.seeds} of {_seeds(c.n)}" for b in c.bounds]
    known += [f"{', '.join(f'{x:.2f}x' for x in sorted(exact))} in {len(exact)} of {_seeds(c.n)}"] if exact else []
    known += [f"unknown in {open_seeds} of {_seeds(c.n)}"] if open_seeds else []
    return f"{c.arm}'s gain in {unit} to the target is known in part: {'; '.join(known)}."


def _outwards(bound: Bound) -> float:
    """The bound to two decimals, rounded to where it stays true."""
    hundredths = round(bound.ratio * 100, 6)
    return (math.floor(hundredths) if bound.direction == "at least" else math.ceil(hundredths)) / 100


def _hedged(said: str, n: int) -> str:
    return f"Indicative only: {said}" if n < SEEDS_FOR_A_VERDICT else said


def _seeds(n: int) -> str:
    return f"{n} seed" if n == 1 else f"{n} seeds"


def _comparison(
    name: str, measure: Literal["cost", "distance"], log_ratios: Sequence[float | None], bounds: tuple[Bound, ...] = ()
) -> Comparison:
    n, logs = len(log_ratios), np.array([x for x in log_ratios if x is not None])
    whole = Comparison(name, measure, n, tuple(log_ratios), bounds=bounds)
    if len(logs) < n:
        return whole
    mean = float(logs.mean())
    if n < 2:
        return replace(whole, ratio=math.exp(mean))
    error = float(logs.std(ddof=1)) / math.sqrt(n)
    half = float(stats.t.ppf(1 - ALPHA / 2, n - 1)) * error
    t = abs(mean) / error if error else (math.inf if mean else 0.0)
    p = min(1.0, 2 * float(stats.t.sf(t, n - 1)))
    return replace(whole, ratio=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half), p=p)


def _refuse_unless_paired(baseline: Sequence[object], arm: Sequence[object], name: str) -> None:
    if not len(baseline) or len(baseline) != len(arm):
        raise HeadwayError(
            f"{name!r} is compared seed by seed, but the one side has {_seeds(len(baseline))} and the other {len(arm)}; "
            "give both the same seeds, at least one."
        )
