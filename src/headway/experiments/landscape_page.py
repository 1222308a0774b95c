"""The page of the experiment on loss landscapes: the answer, the figures behind it, the pictures, and how good the models are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, geometric_mean

from headway.experiments import landscape_figures as figures
from headway.experiments.landscape import PLAYERS, LandscapeExperiment
from headway.experiments.landscape_verdict import (
    FIGURES,
    MODELS_FOR_A_VERDICT,
    Difference,
    Results,
    claims,
    difference,
    gans,
    last_row,
    references,
    techniques,
    unfair,
)
from headway.page import Page

WORDS = ("smoother", "rougher", "no difference shown", "not measured")


def answer(results: Results) -> str:
    """What the figures say, in one paragraph whose first sentence is the verdict."""
    found, mine, theirs = claims(results), references(results), gans(results)
    if not found:
        return f"No comparison of kinds: {len(mine)} diffusion models and {len(theirs)} GANs were looked at."
    said, disagree = [], False
    for player in PLAYERS:
        by_word: dict[str, list[str]] = {}
        for claim in found:
            if claim.player == player:
                by_word.setdefault(claim.word, []).append(claim.figure.title)
        words = [_count(word, by_word[word]) for word in WORDS if word in by_word]
        said.append(f"Against the GAN's {player} the diffusion model's loss is {', '.join(words)}.")
        disagree |= bool(by_word.get("smoother") and by_word.get("rougher"))
    if min(len(mine), len(theirs)) < MODELS_FOR_A_VERDICT:
        few = f"{len(mine)} diffusion models, {len(theirs)} GANs; a verdict takes {MODELS_FOR_A_VERDICT} of each"
        said[0] = f"Indicative only ({few}). {said[0]}"
    if disagree:
        said.append("The figures disagree, so the claim holds for some of them and not as a whole.")
    if weak := unfair(results):
        said.append(
            f"Not fair to compare, because their samples do not beat the pixel Gaussian: **{', '.join(weak)}**."
        )
    sharp = [f"**{name}** {_change(own['lambda1'])}" for name, own in techniques(results).items() if "lambda1" in own]
    if sharp:
        said.append(f"Sharpness (lambda1) against the plain model of the same seed: {'; '.join(sharp)}.")
    return " ".join(said)


def _count(word: str, titles: Sequence[str]) -> str:
    """A word and how many figures say it; of what was decided also which."""
    count = f"{len(titles)} of {len(FIGURES)} figures"
    return f"**{word}**: {count} ({'; '.join(titles)})" if word in WORDS[:2] else f"{word}: {count}"


def build_page(experiment: LandscapeExperiment, results: Results, command: str, versions: str) -> Page:
    """The page. command, versions: how to do it again."""
    page = Page(experiment.question)
    page.answer(answer(results))
    _claims(page, results)
    _quality(page, results)
    _pictures(page, results)
    _curvature(page, results)
    _game(page, results)
    _techniques(page, results)
    _setup(page, experiment, results)
    page.details("The experiment file", experiment.to_yaml())
    page.text(f"Command: `{command}`. {versions}.")
    return page


def _claims(page: Page, results: Results) -> None:
    found = claims(results)
    if not found:
        return
    page.heading("Smoothness, figure by figure")
    for player in PLAYERS:
        page.text(f"**Against the {player}**")
        rows = [
            [
                claim.figure.title,
                claim.word,
                "-" if claim.difference is None else str(claim.difference),
                _mean(claim.mine, claim.figure.ratio),
                _mean(claim.theirs, claim.figure.ratio),
            ]
            for claim in found
            if claim.player == player
        ]
        page.table(["figure", "diffusion is", "diffusion against it", "diffusion", player], rows)
    page.note(
        "Smoother is lower, but for the shares of the spectrum and of convexity higher. Means over models, geometric where the "
        "comparison is a ratio (x); comparisons are ratios or differences with 95 % intervals (Welch), and the word follows from "
        "the interval. Each line stands for itself: of twenty such intervals one misses by chance. The figures are explained in "
        "docs/landscape.md. A player's figure is of its loss with the other player held still; how the two turn about each other "
        "is under The game."
    )


def _mean(values: Mapping[str, float], ratio: bool) -> str:
    return f"{(geometric_mean if ratio else fmean)(values.values()):.3g}" if values else "-"


def _quality(page: Page, results: Results) -> None:
    rows = []
    for name, model in results["models"].items():
        if record := model["fidelity"]:
            note = "does not beat the Gaussian" if record["value"] >= record["ceiling"] else ""
            values = (f"{record[key]:.4g}" for key in ("value", "floor", "ceiling"))
            rows.append([name, model["method"], model["differs"], f"{model['images']:,}", *values, note])
    if rows:
        page.heading("How good the models are")
        page.table(["model", "method", "differs in", "images", "distance", "real held-out", "pixel Gaussian", ""], rows)
        page.note("A bad GAN is no fair opponent: its landscape says nothing about GANs that work.")


def _pictures(page: Page, results: Results) -> None:
    page.heading("Lines")
    page.pictures(figures.lines(results))
    page.note(
        "A colour a landscape, a line a model; every curve is scaled to its own range, as the figures of roughness are."
    )
    if by_band := figures.band_lines(results):
        page.pictures(by_band)
    page.heading("Planes")
    page.pictures(figures.planes(results))
    page.note(
        "Contour levels part the grid's losses into equal shares; the star is the checkpoint, the red line the path of training "
        "from the initial weights. The surface has true heights. All planes of all models, to be turned by hand: `surfaces.html`."
    )
    page.raw('<p><a href="surfaces.html">Turn the surfaces</a> (a page of its own beside this one).</p>')


def _curvature(page: Page, results: Results) -> None:
    page.heading("Curvature")
    page.pictures(figures.spectra(results))
    rows = []
    for name, model in results["models"].items():
        for landscape in ("diffusion", *PLAYERS):
            for row in model["curvature"].get(landscape, []):
                rows.append(
                    [
                        name if landscape == "diffusion" else f"{name}, {landscape}",
                        f"{row['nimg']:,}",
                        row["band"],
                        f"{row['loss']:.3g}",
                        f"{row['top'][0]:.3g}",
                        f"{row['top'][4]:.3g}",
                        f"{row['lowest']:.3g}",
                        f"{row['trace']:.3g} ± {row['trace_error']:.3g}",
                        *("-" if row[key] is None else f"{row[key]:.2g}" for key in ("edge", "predictiveness")),
                    ]
                )
    page.table(
        [
            "landscape",
            "images",
            "sigma",
            "loss",
            "lambda1",
            "lambda5",
            "lowest",
            "trace",
            "stable step",
            "change",
        ],
        rows,
    )
    _bands(page, results)


def _bands(page: Page, results: Results) -> None:
    """Is the high-noise end flatter? Pairs of bands of the same model."""
    models = list(references(results).values())
    bands = list(
        dict.fromkeys(r["band"] for m in models for r in m["curvature"].get("diffusion", []) if r["band"] != "all")
    )
    if len(bands) < 2:
        return
    first, last = bands[0], bands[-1]
    sentences = []
    reads: dict[str, Callable[[Results], float]] = {
        "highest eigenvalue": lambda row: float(row["top"][0]),
        "trace": lambda row: float(row["trace"]),
    }
    for title, read in reads.items():
        rows = [(last_row(m, "diffusion", last), last_row(m, "diffusion", first)) for m in models]
        pairs = [(read(a), read(b)) for a, b in rows if a and b and read(a) > 0 and read(b) > 0]
        if pairs:
            high, low = zip(*pairs, strict=True)
            sentences.append(f"{title} {difference(high, low, ratio=True, paired=True)}")
    if sentences:
        page.text(
            f"Band {last} against band {first} of sigma, paired by model: {', '.join(sentences)} ({len(models)} models)."
        )


def _game(page: Page, results: Results) -> None:
    rows = []
    for name, model in gans(results).items():
        if turning := model["curvature"].get("rotation"):
            shares = [f"{v:.2f} ± {e:.2f}" for v, e in (turning.get("steps", (float("nan"),) * 2), turning["weights"])]
            rows.append([name, *shares])
    if rows:
        page.heading("The game")
        page.table(["GAN", "rotation share, in units of the steps", "in units of the weights"], rows)
        page.note(
            "Share of the joint gradient field's Jacobian that turns. A single loss, such as a diffusion model's, has 0."
        )


def _techniques(page: Page, results: Results) -> None:
    found = techniques(results)
    if not found:
        return
    page.heading("Do the techniques change sharpness?")
    titles = list(dict.fromkeys(title for compared in found.values() for title in compared))
    rows = [[name, *(_change(compared.get(title)) for title in titles)] for name, compared in found.items()]
    page.table(["technique", *titles], rows)
    page.note(
        "Ratios to the plain model of the same seed, with 95 % intervals over seeds; below 1 is flatter. lambda1 and trace are "
        "of one loss for both: the framework's own density and weight. The other two are of the loss and the step that each was "
        "trained with."
    )


def _change(found: Difference | None) -> str:
    if found is None:
        return "-"
    word = {"lower": "flatter", "higher": "sharper"}.get(found.direction, found.direction)
    pairs = f"{found.n[0]} pair{'s' if found.n[0] > 1 else ''}"
    return f"{found}, {f'indicative ({pairs})' if found.indicative else f'{word} ({pairs})'}"


def _setup(page: Page, experiment: LandscapeExperiment, results: Results) -> None:
    page.heading("Set-up")
    sizes: Sequence[str] = list(
        dict.fromkeys(
            f"{landscape} {row['parameters']:,}"
            for model in results["models"].values()
            for landscape in ("diffusion", *PLAYERS)
            for row in model["curvature"].get(landscape, [])[-1:]
        )
    )
    c = experiment.curvature
    page.text(
        f"Frozen draws: {experiment.batch} images with noise levels, noises and latents, the same for all models. Weights as "
        f"trained, without averaging: parameters {', '.join(sizes)}. Lines of {experiment.lines.points} points, planes of "
        f"{experiment.planes.points} x {experiment.planes.points}, spectra by {c.probes} x {c.steps} Lanczos steps."
    )
    for what, why in results["failed"].items():
        page.text(f"**Failed**: {what}: {why}")
