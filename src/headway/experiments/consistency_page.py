"""What a consistency experiment found, for people: one page whose first sentence is the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from headway.experiments.consistency_analysis import SEED, Found, differing, over
from headway.experiments.consistency_figures import matrix, models_by_noises, over_noise, over_training
from headway.experiments.consistency_models import GAUSSIAN, Models, label
from headway.experiments.consistency_verdicts import TECHNIQUE_CLAIM
from headway.page import Page
from headway.sampling import find_solver

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headway.experiments.consistency import ConsistencyExperiment


def build_page(
    experiment: ConsistencyExperiment,
    models: Models,
    found: Found,
    failed: Mapping[str, str],
    command: str,
    versions: str,
) -> Page:
    """The page. failed: models that could not be trained, and why. command, versions: how to do it again."""
    page = Page(experiment.question)
    page.answer(answer(found))
    _picture(page, experiment, models)
    _verdicts(page, found)
    _scores(page, experiment, found)
    _matrix(page, models, found)
    _fidelity(page, experiment, models, found)
    _curves(page, experiment, models, found)
    if failed:
        page.heading("Failed")
        for name, reason in failed.items():
            page.text(f"**{name}**: {reason}")
    _setup(page, experiment, models)
    page.details("The experiment file", experiment.to_yaml())
    page.text(f"Command: `{command}`. {versions}.")
    return page


def answer(found: Found) -> str:
    """The verdicts in a few words each; the techniques by what was found of them."""
    said: list[str] = []
    techniques: dict[str, list[str]] = {}
    for verdict in found.verdicts:
        question, _, technique = verdict.claim.partition(f"{TECHNIQUE_CLAIM}: ")
        if technique:
            techniques.setdefault(verdict.word, []).append(technique)
        else:
            said.append(f"{question}: **{verdict.word}**{f' ({verdict.short})' if verdict.short else ''}.")
    if techniques:
        each = "; ".join(f"**{word}**: {', '.join(them)}" for word, them in techniques.items())
        said.append(f"{TECHNIQUE_CLAIM}? {each}.")
    return " ".join(said)


def _picture(page: Page, experiment: ConsistencyExperiment, models: Models) -> None:
    page.heading("Same noise")
    shown = min(experiment.shown, experiment.noises)
    pictures = []
    for sampler in experiment.samplers:
        first = {name: models.images(name, sampler)[:shown] for name in [*models.diffusion, GAUSSIAN, *models.gans]}
        blocks = [
            ("diffusion models", [(name, first[name]) for name in models.diffusion]),
            (f"the {GAUSSIAN}: mean and covariance alone", [(GAUSSIAN, first[GAUSSIAN])]),
            ("GANs", [(name, first[name]) for name in models.gans]),
        ]
        pictures.append((f"Same noise, {label(sampler)}", models_by_noises([block for block in blocks if block[1]])))
    page.pictures(pictures)
    page.note(
        "A row is a model, a column a noise: the first seeds, none chosen. Stochastic samplers get the same noise at every step as "
        "well. A column of GANs is one seed's latent."
    )


def _verdicts(page: Page, found: Found) -> None:
    page.heading("Verdicts")
    page.table(["claim", "verdict", "from"], [[v.claim, f"**{v.word}**", v.sentence] for v in found.verdicts])
    if found.weak:
        page.text(
            f"Left out of the verdicts because their images are no nearer to the data than a {GAUSSIAN}'s: "
            f"**{', '.join(found.weak)}**."
        )
    page.note(
        "Score: 1 - mean squared distance of the same noise / of random pairs; 1 is the same image, 0 is chance. [95 % bootstrap "
        "intervals over noises], for these models: they do not say what other trainings would give. Gaussian control: what the "
        "same models score against what a Gaussian with the data's mean and covariance makes of the same noise. The first claim "
        "holds where the whole interval is above 0 and above the control under every sampler, in pixels and in features."
    )


def _scores(page: Page, experiment: ConsistencyExperiment, found: Found) -> None:
    page.heading("Scores by what differs")
    rows = []
    for name, pairs in found.groups.items():
        scores = over(found.pairs, pairs)
        rows.append([name, str(len(pairs)), *(str(scores[at]) for at in found.conditions)])
    page.table(["pairs of models", "pairs", *found.conditions], rows)
    measures = list(next(iter(found.pairs.values())).likeness)
    rows = []
    for name, pairs in found.groups.items():
        every = [found.pairs[names].likeness for names in pairs]
        means = [torch.tensor([likeness[of] for likeness in every]).mean(0).tolist() for of in measures]
        rows.append([name, *(f"{same:.2f} ({random:.2f})" for same, random in means)])
    page.table(["same noise (random pair)", *measures], rows)
    page.note(
        "First table: means over pairs of models; 'diffusion: ...' are pairs with the reference, the first model. Second table: "
        "likeness per image of the same noise and, in brackets, of random pairs; PSNR in dB, cosine of features."
    )


def _matrix(page: Page, models: Models, found: Found) -> None:
    names = [*models.diffusion, *models.gans]
    page.heading("All pairs")
    _two_by_two(page, [(f"Score, {at}", matrix(found, names, at)) for at in found.conditions])
    first = found.conditions[0]
    rows = []
    for a in names:
        scores = [found.score(a, b, first) for b in [*names, GAUSSIAN]]
        rows.append([a, *("-" if score is None else str(score) for score in scores)])
    page.table([first, *names, GAUSSIAN], rows)


def _fidelity(page: Page, experiment: ConsistencyExperiment, models: Models, found: Found) -> None:
    page.heading("How good the images are")
    rows = []
    for name, judged in found.quality.items():
        classes = "-" if judged.classes_found is None else f"{judged.classes_found} of {len(judged.class_counts or ())}"
        word = "**no better than the Gaussian**" if name in found.weak else ""
        rows.append([name, f"{judged.value:.3g}", classes, word])
    first = next(iter(found.quality.values()))
    rows += [
        [f"real held-out images ({first.floor_n})", f"{first.floor:.3g}", "", ""],
        [GAUSSIAN, f"{first.ceiling:.3g}", "", ""],
    ]
    page.table(["model", "Frechet distance", "classes found", ""], rows)
    page.note(
        f"{first.name} of the images that are compared ({label(experiment.samplers[0])}); lower is better. Without it a model that "
        "makes noise would pass for inconsistent, and two that make the same blur for consistent."
    )
    for warning in dict.fromkeys(w for judged in found.quality.values() for w in judged.warnings):
        page.note(warning)


def _curves(page: Page, experiment: ConsistencyExperiment, models: Models, found: Found) -> None:
    curves, first = found.curves, label(experiment.samplers[0])
    page.heading("Where and when")
    pictures = []
    if "steps" in curves:
        pictures.append(("Score of the estimates of x0 at each step", over_noise(curves["steps"])))
        pictures.append(("Two models swapped at a noise level", over_noise(curves["swaps"])))
    if "training" in curves:
        pictures.append(("Score over training images", over_training(curves["training"])))
    cosines = over_noise(curves["identity"], ylabel="cosine", high_first=False)
    pictures.append(("Predicted noise against input", cosines))
    _two_by_two(page, pictures)
    page.note(
        f"By {models.few} noises; bands are 95 % intervals. Steps: the estimates D(x; sigma) of two models on their way from the "
        f"same noise. Swapped: one model down to sigma, the other below ({first}); where the lines cross, the image is decided. "
        f"Training: the images that both have seen ({first}). Predicted noise: its cosine with the input on noised held-out "
        "images, beside the Gaussian's, which is near 1 at high noise for any data: what a network has learnt is its distance from "
        "that line."
    )


def _two_by_two(page: Page, pictures: Sequence[tuple[str, Figure]]) -> None:
    for first in range(0, len(pictures), 2):
        page.pictures(pictures[first : first + 2])


def _setup(page: Page, experiment: ConsistencyExperiment, models: Models) -> None:
    page.heading("The models")
    rows = []
    for name, trained in models.trained.items():
        kind = models.diffusion if name in models.diffusion else models.gans
        keys = sorted(differing(models, kind[0], name)) if name != kind[0] else []
        recipe = trained.recipe
        rows.append(
            [
                name,
                f"{recipe.method}, {recipe.architecture}",
                f"{recipe.train.images:,}",
                experiment.models[name].differs if name != models.reference else "(the reference)",
                ", ".join(keys) or "-",
                "; ".join(experiment.models[name].set) or "-",
            ]
        )
    page.table(
        ["model", "method", "images", "differs in", f"keys, from {models.reference} or the first GAN", "set"], rows
    )
    nfe = ", ".join(f"{label(s)} ({find_solver(s.solver).nfe(s.steps)} NFE)" for s in experiment.samplers)
    page.text(
        f"{experiment.noises:,} noises, samplers {nfe}, all from sigma {models.high:g} to {models.low:g}, the noise levels that "
        f"all diffusion models know. Models that differ in {', '.join(SEED)} have other initial weights, another order of the "
        "images and other noises in training; all others share these with the reference as far as their difference allows."
    )
