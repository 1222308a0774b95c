"""What a consistency experiment finds: the scores of all pairs, curves over steps, training, swaps and noise, and the evidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from headway.compare.study import Sampler
from headway.consistency import cosine, gaussian_eps_cosine, psnr, same_and_random, ssim
from headway.experiments.consistency_models import BATCH, GAUSSIAN, Curve, Models, label, score
from headway.experiments.consistency_verdicts import (
    NORMAL,
    Change,
    Estimate,
    Evidence,
    Group,
    Identity,
    Scores,
    Verdict,
    mean,
    verdicts,
)
from headway.metrics import Quality
from headway.recipes import Recipe

# Kinds of difference that are claims of their own; every other kind belongs to "same noise, same image".
PREDICTION, TECHNIQUE = "prediction", "technique"
SEED = {"train.seed"}

Names = tuple[str, str]


@dataclass(frozen=True)
class Pair:
    """Two models. likeness: "heun 18, PSNR" and so on -> mean of pairs of the same noise, and of random pairs."""

    scores: Scores
    likeness: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Found:
    """All of it. groups: which pairs of models the rows of the table are means of. curves: by figure, then by line."""

    quality: Mapping[str, Quality]
    weak: tuple[str, ...]
    pairs: Mapping[Names, Pair]
    groups: Mapping[str, list[Names]]
    evidence: Evidence
    verdicts: tuple[Verdict, ...]
    curves: Mapping[str, Mapping[str, Curve]]

    @property
    def conditions(self) -> list[str]:
        """ "heun 18, pixels" and so on, the first being the one that is quoted."""
        return list(next(iter(self.pairs.values())).scores)

    def score(self, a: str, b: str, at: str) -> Estimate | None:
        """Of two models in either order; None where they were not compared."""
        pair = self.pairs.get((a, b)) or self.pairs.get((b, a))
        return None if pair is None else pair.scores[at]


def analyse(models: Models, samplers: Sequence[Sampler], differs: Mapping[str, str], couple: Names | None) -> Found:
    """Draw what is not drawn yet, and compare.

    Args:
        differs: the kind of difference of each model. couple: the diffusion models of the curves; None: the first two.
    """
    names = [*models.diffusion, *models.gans]
    quality = {name: models.judge.quality(models.images(name, samplers[0])) for name in names}
    weak = tuple(name for name, judged in quality.items() if judged.value >= judged.ceiling)
    pairs = _pairs(models, samplers)
    evidence = _evidence(models, pairs, differs, weak)
    return Found(
        quality,
        weak,
        pairs,
        _groups(models, differs),
        evidence,
        verdicts(evidence),
        _curves(models, samplers, couple),
    )


def over(pairs: Mapping[Names, Pair], chosen: Iterable[Names]) -> Scores:
    """Mean scores over some pairs, by condition; empty for no pair."""
    every = [pairs[names].scores for names in chosen]
    return {at: mean(scores[at] for scores in every) for at in every[0]} if every else {}


def _pairs(models: Models, samplers: Sequence[Sampler]) -> dict[Names, Pair]:
    names = [*models.diffusion, *models.gans]
    chosen = [*itertools.combinations(names, 2), *((name, GAUSSIAN) for name in models.diffusion)]
    scores: dict[Names, dict[str, Estimate]] = {pair: {} for pair in chosen}
    likeness: dict[Names, dict[str, tuple[float, float]]] = {pair: {} for pair in chosen}
    for sampler in samplers:
        images = {name: models.images(name, sampler) for name in [*names, GAUSSIAN]}
        features = {name: _features(models, part) for name, part in images.items()}
        models.tell(f"Comparing {len(chosen)} pairs, {label(sampler)}")
        for a, b in chosen:
            for space, of in (("pixels", images), ("features", features)):
                scores[a, b][f"{label(sampler)}, {space}"] = Estimate.score(score(of[a], of[b]))
            for name, measure, of in (("PSNR", psnr, images), ("SSIM", ssim, images), ("cosine", cosine, features)):
                same, random = same_and_random(measure, of[a], of[b], torch.Generator().manual_seed(0))
                likeness[a, b][f"{label(sampler)}, {name}"] = float(same.mean()), float(random.mean())
    return {pair: Pair(scores[pair], likeness[pair]) for pair in chosen}


def _features(models: Models, images: Tensor) -> Tensor:
    return torch.cat([models.judge.extractor(part).cpu() for part in torch.split(images, BATCH)])


def _groups(models: Models, differs: Mapping[str, str]) -> dict[str, list[Names]]:
    """Pairs of the reference with each kind of difference; all pairs of diffusion models, of GANs, and of one with another."""
    groups = {f"diffusion: {kind}": pairs for kind, pairs in _kinds(models, differs, models.diffusion).items()}
    groups["all diffusion x diffusion"] = list(itertools.combinations(models.diffusion, 2))
    groups["diffusion x pixel Gaussian"] = [(name, GAUSSIAN) for name in models.diffusion]
    groups["GAN x GAN"] = list(itertools.combinations(models.gans, 2))
    groups["diffusion x GAN"] = list(itertools.product(models.diffusion, models.gans))
    return {name: pairs for name, pairs in groups.items() if pairs}


def _kinds(models: Models, differs: Mapping[str, str], among: Sequence[str]) -> dict[str, list[Names]]:
    kinds: dict[str, list[Names]] = {}
    if models.reference in among:
        for name in among:
            if name != models.reference:
                kinds.setdefault(differs[name], []).append((models.reference, name))
    return kinds


def _evidence(models: Models, pairs: Mapping[Names, Pair], differs: Mapping[str, str], weak: Sequence[str]) -> Evidence:
    sound = [name for name in models.diffusion if name not in weak]
    gans = over(pairs, itertools.combinations([name for name in models.gans if name not in weak], 2))
    every = over(pairs, itertools.combinations(sound, 2))
    kinds = _kinds(models, differs, sound)
    x0, others = _by_x0(models, sound)
    with_x0, without = over(pairs, x0), over(pairs, others)
    control = float(gaussian_eps_cosine(models.gaussian, models.levels)[-1])
    curves = {name: models.identity(name) for name in sound}
    ends = {name: [float(curve[key][-1]) for key in ("value", "high")] for name, curve in curves.items()}
    return Evidence(
        groups={kind: _group(pairs, own) for kind, own in kinds.items() if kind not in (PREDICTION, TECHNIQUE)},
        gans=gans,
        gan_gap={at: every[at] - gans[at] for at in gans if at in every},
        x0=_group(pairs, x0) if x0 else None,
        x0_gap={at: without[at] - with_x0[at] for at in without if at in with_x0},
        identity={name: Identity(value, (high - value) / NORMAL, control) for name, (value, high) in ends.items()},
        sigma=models.high,
        changes=_changes(models, pairs, [n for n in sound if differs[n] == TECHNIQUE], sound),
    )


def _group(pairs: Mapping[Names, Pair], chosen: Sequence[Names]) -> Group:
    """A pair's control is the mean of what its two models score against the Gaussian."""
    scores = over(pairs, chosen)
    control = over(pairs, [(name, GAUSSIAN) for names in chosen for name in names])
    return Group(scores, {at: scores[at] - control[at] for at in scores})


def _by_x0(models: Models, sound: Sequence[str]) -> tuple[list[Names], list[Names]]:
    """Pairs with and without an x0-model, of models that differ in seed and prediction at most."""
    first = next((name for name in sound if _predicts_x0(models, name)), None)
    if first is None:
        return [], []
    like = [n for n in sound if differing(models, first, n) <= {*SEED, "framework.prediction"}]
    pairs = list(itertools.combinations(like, 2))
    has = {pair: any(_predicts_x0(models, name) for name in pair) for pair in pairs}
    return [pair for pair in pairs if has[pair]], [pair for pair in pairs if not has[pair]]


def _predicts_x0(models: Models, name: str) -> bool:
    recipe = models.trained[name].recipe
    return isinstance(recipe, Recipe) and recipe.framework.prediction == "x0"


def _changes(
    models: Models, pairs: Mapping[Names, Pair], techniques: Sequence[str], sound: Sequence[str]
) -> dict[str, Change]:
    """Each technique's pair with the reference beside the reference's plain pairs; two of its own beside all plain pairs."""
    reference = models.reference
    plain = [name for name in sound if name == reference or differing(models, reference, name) == SEED]
    if reference not in plain or len(plain) < 2:
        return {}
    own = {f"{a} and {b}": (a, b) for a, b in itertools.combinations(techniques, 2) if differing(models, a, b) == SEED}
    beside = [(reference, name) for name in plain if name != reference]
    changes = {f"{name} against the plain {reference}": ((reference, name), beside) for name in techniques}
    changes |= {name: (pair, list(itertools.combinations(plain, 2))) for name, pair in own.items()}
    return {name: _change(pairs, pair, others) for name, (pair, others) in changes.items()}


def _change(pairs: Mapping[Names, Pair], pair: Names, plain: Sequence[Names]) -> Change:
    score, usual = pairs[pair].scores, over(pairs, plain)
    values = {at: [pairs[other].scores[at].value for other in plain] for at in usual}
    spread = {at: max(own) - min(own) for at, own in values.items()} if len(plain) > 1 else {}
    return Change({at: score[at] - usual[at] for at in score}, spread)


def differing(models: Models, a: str, b: str) -> set[str]:
    """The keys of the recipe in which two models of one kind differ."""
    lines = models.trained[a].recipe.differences(models.trained[b].recipe)
    return {line.partition(":")[0] for line in lines}


def _curves(models: Models, samplers: Sequence[Sampler], couple: Names | None) -> dict[str, dict[str, Curve]]:
    main = samplers[0]
    identity = {name: models.identity(name) for name in models.diffusion}
    control = gaussian_eps_cosine(models.gaussian, models.levels)
    curves: dict[str, dict[str, Curve]] = {
        "identity": identity | {GAUSSIAN: {"at": models.levels} | dict.fromkeys(("value", "low", "high"), control)}
    }
    training = {}
    if len(models.diffusion) > 1:
        a, b = couple or models.diffusion[:2]
        others = {f"{a} and {b}": b, f"{a} and the {GAUSSIAN}": GAUSSIAN}
        curves["steps"] = {
            f"{words}, {label(sampler)}": models.over_steps(a, other, sampler)
            for sampler in samplers
            for words, other in others.items()
        }
        training = {words: models.over_training(a, other, main) for words, other in others.items()}
        first, second = models.over_swaps(a, b, main)
        curves["swaps"] = {f"against {a} (the high noise)": first, f"against {b} (the low noise)": second}
    if len(models.gans) > 1:
        a, b = models.gans[:2]
        training[f"{a} and {b}"] = models.over_training(a, b, main)
    return curves | ({"training": training} if training else {})


def as_json(found: Found) -> dict[str, Any]:
    """All numbers, as JSON has them; the replicates are left out."""

    def plain(scores: Scores) -> dict[str, list[float]]:
        return {at: [e.value, e.low, e.high] for at, e in scores.items()}

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None  # the PSNR of equal images

    return {
        "verdicts": [asdict(verdict) for verdict in found.verdicts],
        "quality": {name: asdict(judged) for name, judged in found.quality.items()},
        "weak": list(found.weak),
        "pairs": [
            {
                "a": a,
                "b": b,
                "scores": plain(pair.scores),
                "likeness": {of: [finite(v) for v in means] for of, means in pair.likeness.items()},
            }
            for (a, b), pair in found.pairs.items()
        ],
        "groups": {name: plain(over(found.pairs, pairs)) for name, pairs in found.groups.items()},
        "curves": {
            figure: {name: {key: column.tolist() for key, column in curve.items()} for name, curve in lines.items()}
            for figure, lines in found.curves.items()
        },
    }
