"""What the scores say of each claim, in words that follow from their intervals and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.consistency import Consistency, interval

HOLDS, IN_PART, FAILS, OPEN = "holds", "holds in part", "does not hold", "not decided"
RAISES, LOWERS, MIXED, NO_CHANGE = "raises it", "lowers it", "differs by sampler or space", "no change shown"
TECHNIQUE_CLAIM = "Does a technique change it"
NEAR_IDENTITY = 0.99  # the cosine from which a network is said to hand its input on
NORMAL = 1.96


@dataclass(frozen=True)
class Estimate:
    """A number with its bootstrap interval; replicates (R,) of all estimates of one experiment belong together."""

    value: float
    low: float
    high: float
    replicates: Tensor = field(repr=False, compare=False)

    @classmethod
    def of(cls, value: float, replicates: Tensor) -> Estimate:
        return cls(value, *interval(replicates), replicates)

    @classmethod
    def score(cls, found: Consistency) -> Estimate:
        return cls(found.score, found.low, found.high, found.replicates)

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate.of(self.value - other.value, self.replicates - other.replicates)

    def __str__(self) -> str:
        return format(self, "")

    def __format__(self, spec: str) -> str:
        spec = f"z{spec or '.2f'}"  # z: no minus before a zero
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


def mean(estimates: Iterable[Estimate]) -> Estimate:
    """Of at least one."""
    every = list(estimates)
    return Estimate.of(sum(e.value for e in every) / len(every), torch.stack([e.replicates for e in every]).mean(dim=0))


# By condition: a sampler and a space, such as "heun 18, pixels". The first is the one that sentences quote.
Scores = Mapping[str, Estimate]


@dataclass(frozen=True)
class Group:
    """Pairs of diffusion models: their mean score, and what is left of it beyond the models' scores against the Gaussian."""

    score: Scores
    beyond: Scores


@dataclass(frozen=True)
class Change:
    """A pair's score with a technique less the mean of plain pairs, and how far these lie apart; empty: there is only one."""

    difference: Scores
    spread: Mapping[str, float]


@dataclass(frozen=True)
class Identity:
    """The cosine of predicted noise and input at the highest noise level, its standard error, and the Gaussian's."""

    cosine: float
    error: float
    gaussian: float


@dataclass(frozen=True)
class Evidence:
    """All that the claims are judged by; only models that beat the pixel Gaussian are in it.

    Attributes:
        groups: by kind of difference: seed, architecture, ... gans: mean score of pairs of GANs; empty: there is no pair.
        gan_gap: mean score of all diffusion pairs less that. x0: pairs with an x0-model, at one framework and network.
        x0_gap: the other pairs there less those. identity: by model, at noise level ``sigma``. changes: by technique.
    """

    groups: Mapping[str, Group]
    gans: Scores
    gan_gap: Scores
    x0: Group | None
    x0_gap: Scores
    identity: Mapping[str, Identity]
    sigma: float
    changes: Mapping[str, Change]


@dataclass(frozen=True)
class Verdict:
    """A claim, the word on it, and what the word is from; ``short``: that in a few figures, for the answer."""

    claim: str
    word: str
    sentence: str
    short: str = ""


def verdicts(found: Evidence) -> tuple[Verdict, ...]:
    """The paper's claims (Xu et al. 2024, arXiv 2404.07946), the disputed one, and what its reviewers asked of techniques."""
    changes = [_change(name, change) for name, change in found.changes.items()]
    return (_same_image(found.groups), _gans(found), _x0(found), _identity(found), *changes)


def _same_image(groups: Mapping[str, Group]) -> Verdict:
    claim = "Diffusion models trained apart make the same image of the same noise"
    if not groups:
        return Verdict(claim, OPEN, "There is no pair of diffusion models that both beat the pixel Gaussian.")
    level = {(kind, at): _level(group, at) for kind, group in groups.items() for at in group.score}
    by = {word: [cell for cell, found in level.items() if found == word] for word in (HOLDS, IN_PART, FAILS)}
    word = HOLDS if len(by[HOLDS]) == len(level) else IN_PART if by[HOLDS] else FAILS
    ats = list(next(iter(groups.values())).score)
    first = ats[0]
    scores = "; ".join(f"{kind} {_beside_control(group, first)}" for kind, group in groups.items())
    sentence = f"Score by what differs ({first}; random pairs 0): {scores}."
    if by[IN_PART]:
        sentence += (
            f" Above chance, but not surely nearer to each other than to the Gaussian: {_listed(by[IN_PART], ats)}."
        )
    if by[FAILS]:
        sentence += f" Not above random pairs: {_listed(by[FAILS], ats)}."
    ranked = sorted(groups, key=lambda kind: groups[kind].score[first].value)
    ends = " to ".join(
        f"{groups[kind].score[first]:.2f} where the {kind} differs" for kind in dict.fromkeys([ranked[0], ranked[-1]])
    )
    controls = [group.score[first].value - group.beyond[first].value for group in groups.values()]
    beside = " to ".join(dict.fromkeys(f"{value:.2f}" for value in (min(controls), max(controls))))
    return Verdict(claim, word, sentence, f"score {ends}; chance 0, Gaussian control {beside}")


def _gans(found: Evidence) -> Verdict:
    claim = "GANs do not"
    if not found.gans or not found.gan_gap:
        return Verdict(claim, OPEN, "It takes two GANs and two diffusion models that beat the pixel Gaussian.")
    less = [at for at, gap in found.gan_gap.items() if gap.low > 0]
    more = [at for at, gap in found.gan_gap.items() if gap.high < 0]
    word = HOLDS if len(less) == len(found.gan_gap) else IN_PART if less else FAILS if more else OPEN
    first = next(iter(found.gans))
    chance = [at for at, score in found.gans.items() if score.low <= 0]
    level = _where(chance, found.gans, "not above random pairs", "above random pairs")
    said = _where(less, found.gan_gap, "more", "more, but not surely")
    return Verdict(
        claim,
        word,
        f"Pairs of GANs score {found.gans[first]} ({first}), {level}; pairs of diffusion models score "
        f"{found.gan_gap[first]} {said}.",
        f"{found.gans[first]}, {level}",
    )


def _x0(found: Evidence) -> Verdict:
    claim = "With x0-prediction they do not (disputed)"
    if found.x0 is None:
        return Verdict(claim, OPEN, "It takes an x0-model and another of the same framework and network.")
    score, gap = found.x0.score, found.x0_gap
    chance = [at for at in score if score[at].low <= 0]
    less = [at for at in gap if gap[at].low > 0]
    word = HOLDS if len(chance) == len(score) else IN_PART if chance or less else FAILS
    first = next(iter(score))
    level = _where(chance, score, "not above random pairs", "above random pairs")
    sentence = f"Pairs with an x0-model score {_beside_control(found.x0, first)} ({first}), {level}"
    if gap:
        said = _where(less, gap, "less", "no less, as far as shown,")
        sentence += f"; {said} than the pairs without one at the same framework and network (by {gap[first]})"
    short = f"{score[first]}{f', {gap[first]} less than without it' if gap else ''}"
    return Verdict(claim, word, f"{sentence}.", short)


def _identity(found: Evidence) -> Verdict:
    claim = "The predicted noise tends to the input at high noise"
    if not found.identity:
        return Verdict(claim, OPEN, "There is no diffusion model that beats the pixel Gaussian.")
    below = [name for name, i in found.identity.items() if i.cosine - NORMAL * i.error < NEAR_IDENTITY]
    lowest = min(found.identity.values(), key=lambda i: i.cosine)
    word = HOLDS if not below else FAILS if len(below) == len(found.identity) else IN_PART
    sentence = (
        f"Cosine of predicted noise and input at sigma {found.sigma:g}: {lowest.cosine:.5f} or more in all "
        f"{len(found.identity)} models; the Gaussian's is {lowest.gaussian:.5f}"
    )
    ending = ", so that a cosine near 1 is no mark of what a network has learnt"
    known = lowest.gaussian >= NEAR_IDENTITY
    outside = f" Below {NEAR_IDENTITY}: {', '.join(below)}." if below else ""
    return Verdict(claim, word, f"{sentence}{ending if known else ''}.{outside}")


def _change(name: str, change: Change) -> Verdict:
    claim = f"{TECHNIQUE_CLAIM}: {name}"
    first, every = next(iter(change.difference)), len(change.difference)
    quoted = f"Score less that of plain pairs ({first}): {change.difference[first]:.3f}"
    away = {at: d for at, d in change.difference.items() if d.low > 0 or d.high < 0}
    if not change.spread:
        word = OPEN if away else NO_CHANGE
        return Verdict(
            claim, word, f"{quoted}. There is one plain pair only, and the interval does not cover trainings."
        )
    up = [at for at, d in away.items() if d.value > change.spread[at]]
    down = [at for at, d in away.items() if -d.value > change.spread[at]]
    word = RAISES if len(up) == every else LOWERS if len(down) == every else MIXED if up or down else NO_CHANGE
    parts = [f" {said}: {', '.join(ats)}." for said, ats in (("Up", up), ("Down", down)) if ats and word == MIXED]
    return Verdict(claim, word, f"{quoted}; plain pairs lie {change.spread[first]:.3f} apart.{''.join(parts)}")


def _level(group: Group, at: str) -> str:
    """Whether pairs are above chance and beyond the Gaussian, above chance only, or neither."""
    if group.score[at].low <= 0:
        return FAILS
    return HOLDS if group.beyond[at].low > 0 else IN_PART


def _beside_control(group: Group, at: str) -> str:
    score = group.score[at]
    return f"{score}, Gaussian control {score.value - group.beyond[at].value:.2f}"


def _where(ats: Sequence[str], of: Scores, words: str, otherwise: str) -> str:
    """``words`` of a thing that is so in all conditions, with these where it is so in some, ``otherwise`` where in none."""
    if not ats:
        return otherwise
    return words if len(ats) == len(of) else f"{words} in {'; '.join(ats)} only"


def _listed(cells: Iterable[tuple[str, str]], every: Sequence[str]) -> str:
    """ "seed (heun 18, pixels; heun 18, features), width" and so on; no bracket for ``every`` condition."""
    by: dict[str, list[str]] = {}
    for kind, at in cells:
        by.setdefault(kind, []).append(at)
    return ", ".join(kind if len(ats) == len(every) else f"{kind} ({'; '.join(ats)})" for kind, ats in by.items())
