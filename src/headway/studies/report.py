"""One self-contained page about one run or several side by side: curves, quality figures, sample grids, recipes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.gan import load_recipe
from headway.page import Page
from headway.training.run import Run, write_text


def write_report(runs: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> Path:
    """Write the page of one or more runs to ``out``. It needs no other file and no network.

    Runs without evaluations or grids are shown with what they have.
    """
    folders = [Run.existing(run) for run in runs]
    names = _short_names(folders)
    heading = title or ("Run " + names[0] if len(folders) == 1 else " and ".join(names))
    page = Page(heading)
    _answer(page, folders, names)
    _quality(page, folders, names)
    _samples(page, folders, names)
    _curves(page, folders, names)
    _setup(page, folders, names)
    path = Path(out)
    if path.is_dir():
        raise HeadwayError(f"{out} is a folder: name the page's file, such as {path / 'report.html'}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page.html())
    return path


def _short_names(folders: Sequence[Run]) -> list[str]:
    names = [run.folder.resolve().name for run in folders]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in folders]


def _latest(run: Run) -> dict[str, Any] | None:
    records = run.evaluations()
    return records[-1] if records else None


def _answer(page: Page, folders: Sequence[Run], names: Sequence[str]) -> None:
    """One sentence: the figures, and no claim that one seed cannot carry."""
    measured = [(name, run, record) for run, name in zip(folders, names, strict=True) if (record := _latest(run))]
    if not measured:
        page.answer("Not measured yet: run `headway evaluate`.")
        return
    first = measured[0][2]
    same_question = {
        (r["name"], r["extractor"], load_recipe(run.recipe_file).data.fingerprint) for _, run, r in measured
    }
    # A GAN has one way to make an image; diffusion models are compared under the same solver and evaluations only.
    ways = {(r["solver"], r["nfe"]) for _, _, r in measured if r["solver"] != "generator"}
    if len(same_question) == 1 and len(ways) <= 1:
        parts = [f"**{name}** {r['value']:.3g} ({r['nfe']} NFE)" for name, _, r in measured]
        sentence = (
            f"Frechet distance ({first['name']}, lower is better): {', '.join(parts)}; real "
            f"held-out images {first['floor']:.3g}, a Gaussian with the training pixels' mean and covariance "
            f"{first['ceiling']:.3g}."
        )
        if len(measured) > 1:
            sentence += " One run each, and seeds alone move such a figure by some 10 % either way: indicative only."
    else:
        parts = [
            f"**{name}** {r['value']:.3g} ({r['name']}, {r['nfe']} NFE; real {r['floor']:.3g}, "
            f"Gaussian {r['ceiling']:.3g})"
            for name, _, r in measured
        ]
        sentence = f"Measured on other data, features, counts or solvers, so not comparable: {'; '.join(parts)}."
    for name, run, record in measured:
        seen = run.metrics()[-1]["nimg"] if run.metrics() else record["nimg"]
        if seen > record["nimg"]:
            sentence += f" {name} was measured after {record['nimg']:,} of the {seen:,} images it has seen by now."
    page.answer(sentence)


def _quality(page: Page, folders: Sequence[Run], names: Sequence[str]) -> None:
    rows, notes = [], []
    for run, name in zip(folders, names, strict=True):
        for record in run.evaluations():
            found = record["classes_found"]
            classes = "-" if found is None else f"{found} of {len(record['class_counts'])}"
            rows.append(
                [
                    name,
                    f"{record['value']:.4g}",
                    f"{record['floor']:.4g}",
                    f"{record['ceiling']:.4g}",
                    classes,
                    str(record["nfe"]),
                    f"{record['solver']} {record['steps']}",
                    record["name"],
                    f"{record['nimg']:,}",
                ]
            )
            notes += [f"{name}: {warning}" for warning in record["warnings"]]
            if record["accuracy"] is not None:
                task = "four orientations (chance is 25 %)" if "orientation" in record["name"] else "classes"
                notes.append(
                    f"{name}: the extractor tells the {task} of held-out images in {record['accuracy']:.1%} of cases."
                )
    if not rows:
        return
    page.heading("Quality")
    head = [
        "run",
        "distance",
        "real held-out",
        "pixel Gaussian",
        "classes found",
        "NFE",
        "solver",
        "metric",
        "images seen",
    ]
    page.table(head, rows)
    for note in dict.fromkeys(notes):
        page.note(note)


def _samples(page: Page, folders: Sequence[Run], names: Sequence[str]) -> None:
    pictures = []
    for run, name in zip(folders, names, strict=True):
        grids = sorted(run.samples.glob("[0-9]*.png"), key=lambda path: int(path.stem))
        if grids:
            pictures.append((f"{name}, after {int(grids[-1].stem):,} images", grids[-1].read_bytes()))
    if pictures:
        page.heading("Samples")
        if len(pictures) > 1:
            page.note("The same seeds in every grid.")
        page.pictures(pictures, pixels=True)


def _curves(page: Page, folders: Sequence[Run], names: Sequence[str]) -> None:
    """Training loss over images, and the loss by noise level at the end."""
    from matplotlib.figure import Figure

    records = [run.metrics() for run in folders]
    if not any(records):
        return
    curve, bands, games = (Figure(figsize=(5.2, 3.4), layout="constrained") for _ in range(3))
    left, right, game = curve.subplots(), bands.subplots(), games.subplots()
    for name, rows in zip(names, records, strict=True):
        if not rows:
            continue
        nimg = [r["nimg"] / 1000 for r in rows]
        if "mse" not in rows[0]:
            game.plot(nimg, [r["loss"] for r in rows], label=f"{name}, discriminator", lw=1.2)
            game.plot(nimg, [r["loss_generator"] for r in rows], label=f"{name}, generator", lw=1.2)
            continue
        left.plot(nimg, [r["mse"] for r in rows], label=name, lw=1.2)
        last = [band for band in rows[-1]["bands"] if band["mse"]]
        right.plot([_label(b["sigma"]) for b in last], [b["mse"] for b in last], "o-", label=name, lw=1.2)
    left.set(xlabel="thousand images seen", ylabel="mean squared error of x0", yscale="log")
    right.set(xlabel="noise level sigma", ylabel="mean squared error of x0", yscale="log")
    game.set(xlabel="thousand images seen", ylabel="loss")
    figures = []
    for caption, figure, axes in (
        ("Learning curves", curve, left),
        ("By noise level, last record", bands, right),
        ("The game of generator and discriminator", games, game),
    ):
        if axes.lines:
            axes.grid(alpha=0.3)
            axes.legend(fontsize=8)
            figures.append((caption, figure))
    page.heading("Training")
    page.pictures(figures)
    page.note(
        "Unweighted, so that runs with other weights share an axis. Never rank models by loss: it does not tell quality."
    )


def _label(ends: Sequence[float | None]) -> str:
    low, high = ends
    return f"> {low:g}" if high is None else f"< {high:g}" if not low else f"{low:g}-{high:g}"


def _setup(page: Page, folders: Sequence[Run], names: Sequence[str]) -> None:
    rows, recipes = [], []
    for run, name in zip(folders, names, strict=True):
        recipe, records = load_recipe(run.recipe_file), run.metrics()
        last = records[-1] if records else None
        rows.append(
            [
                name,
                recipe.method,
                recipe.architecture,
                f"{last['nimg']:,} of {recipe.train.images:,}" if last else "0",
                str(recipe.train.batch),
                str(recipe.train.seed),
                f"{last['seconds']:.0f}" if last else "-",
                f"{last['nimg'] / last['seconds']:,.0f}" if last else "-",
            ]
        )
        recipes.append((f"Recipe of {name}", recipe.to_yaml()))
    page.heading("Set-up")
    page.table(["run", "method", "network", "images seen", "batch", "seed", "training seconds", "images/s"], rows)
    for summary, text in recipes:
        page.details(summary, text)
