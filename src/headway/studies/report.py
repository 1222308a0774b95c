"""One self-contained page about one run or several side by side: curves, quality figures, sample grids, recipes."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.gan import load_recipe
from headway.training.run import Run, write_text

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.answer { font-size: 1.1rem; border-left: 4px solid #2a7; padding: .5rem 1rem; background: var(--soft); }
.row { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; flex: 1 1 18rem; max-width: 30rem; min-width: 0; }
figcaption { font-weight: 600; margin-bottom: .3rem; } img { max-width: 100%; height: auto; border-radius: 4px; }
.grid img { width: 100%; image-rendering: pixelated; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .7rem; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
pre { overflow-x: auto; background: var(--soft); padding: .7rem; font-size: .85rem; } .note { opacity: .75; font-size: .9rem; }
"""


def write_report(runs: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> Path:
    """Write the page of one or more runs to ``out``. It needs no other file and no network.

    Runs without evaluations or grids are shown with what they have.
    """
    folders = [Run.existing(run) for run in runs]
    names = _short_names(folders)
    heading = title or ("Run " + names[0] if len(folders) == 1 else " and ".join(names))
    page = "\n".join(
        [
            "<!doctype html><html lang=en><head><meta charset=utf-8>",
            '<meta name=viewport content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(heading)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{html.escape(heading)}</h1>",
            _answer(folders, names),
            _quality(folders, names),
            _samples(folders, names),
            _curves(folders, names),
            _setup(folders, names),
            f"<p class=note>Made by headway {version('headway')}.</p></body></html>",
        ]
    )
    path = Path(out)
    if path.is_dir():
        raise HeadwayError(f"{out} is a folder: name the page's file, such as {path / 'report.html'}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page)
    return path


def _short_names(folders: Sequence[Run]) -> list[str]:
    names = [run.folder.resolve().name for run in folders]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in folders]


def _latest(run: Run) -> dict[str, Any] | None:
    records = run.evaluations()
    return records[-1] if records else None


def _answer(folders: Sequence[Run], names: Sequence[str]) -> str:
    """One sentence: the figures, and no claim that one seed cannot carry."""
    measured = [(name, run, record) for run, name in zip(folders, names, strict=True) if (record := _latest(run))]
    if not measured:
        return "<p class=answer>Not measured yet: run <code>headway evaluate</code>.</p>"
    first = measured[0][2]
    same_question = {
        (r["name"], r["extractor"], load_recipe(run.recipe_file).data.fingerprint) for _, run, r in measured
    }
    # A GAN has one way to make an image; diffusion models are compared under the same solver and evaluations only.
    ways = {(r["solver"], r["nfe"]) for _, _, r in measured if r["solver"] != "generator"}
    if len(same_question) == 1 and len(ways) <= 1:
        parts = [f"<b>{html.escape(name)}</b> {r['value']:.3g} ({r['nfe']} NFE)" for name, _, r in measured]
        sentence = (
            f"Frechet distance ({html.escape(first['name'])}, lower is better): {', '.join(parts)}; real "
            f"held-out images {first['floor']:.3g}, a Gaussian with the training pixels' mean and covariance "
            f"{first['ceiling']:.3g}."
        )
        if len(measured) > 1:
            sentence += " One run each, and seeds alone move such a figure by some 10 % either way: indicative only."
    else:
        parts = [
            f"<b>{html.escape(name)}</b> {r['value']:.3g} ({html.escape(r['name'])}, {r['nfe']} NFE; real {r['floor']:.3g}, "
            f"Gaussian {r['ceiling']:.3g})"
            for name, _, r in measured
        ]
        sentence = f"Measured on other data, features, counts or solvers, so not comparable: {'; '.join(parts)}."
    for name, run, record in measured:
        seen = run.metrics()[-1]["nimg"] if run.metrics() else record["nimg"]
        if seen > record["nimg"]:
            sentence += (
                f" {html.escape(name)} was measured after {record['nimg']:,} of the {seen:,} images it has seen by now."
            )
    return f"<p class=answer>{sentence}</p>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{html.escape(c)}</th>" for c in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><tr>{cells}</tr>{body}</table></div>"


def _quality(folders: Sequence[Run], names: Sequence[str]) -> str:
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
        return ""
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
    lines = "".join(f"<p class=note>{html.escape(note)}</p>" for note in dict.fromkeys(notes))
    return f"<h2>Quality</h2>{_table(head, rows)}{lines}"


def _samples(folders: Sequence[Run], names: Sequence[str]) -> str:
    figures = []
    for run, name in zip(folders, names, strict=True):
        grids = sorted(run.samples.glob("[0-9]*.png"), key=lambda path: int(path.stem))
        if grids:
            caption = f"{html.escape(name)}, after {int(grids[-1].stem):,} images"
            figures.append(
                f"<figure class=grid><figcaption>{caption}</figcaption>{_image(grids[-1].read_bytes(), caption)}</figure>"
            )
    same = "The same seeds in every grid." if len(figures) > 1 else ""
    return f"<h2>Samples</h2><p class=note>{same}</p><div class=row>{''.join(figures)}</div>" if figures else ""


def _curves(folders: Sequence[Run], names: Sequence[str]) -> str:
    """Training loss over images, and the loss by noise level at the end."""
    from matplotlib.figure import Figure

    records = [run.metrics() for run in folders]
    if not any(records):
        return ""
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
        if not axes.lines:
            continue
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=130)
        picture = _image(stream.getvalue(), caption)
        figures.append(f"<figure><figcaption>{caption}</figcaption>{picture}</figure>")
    note = "Unweighted, so that runs with other weights share an axis. Never rank models by loss: it does not tell quality."
    return f"<h2>Training</h2><div class=row>{''.join(figures)}</div><p class=note>{note}</p>"


def _label(ends: Sequence[float | None]) -> str:
    low, high = ends
    return f"> {low:g}" if high is None else f"< {high:g}" if not low else f"{low:g}-{high:g}"


def _setup(folders: Sequence[Run], names: Sequence[str]) -> str:
    rows, texts = [], []
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
        texts.append(
            f"<details><summary>Recipe of {html.escape(name)}</summary><pre>{html.escape(recipe.to_yaml())}</pre></details>"
        )
    head = ["run", "method", "network", "images seen", "batch", "seed", "training seconds", "images/s"]
    return f"<h2>Set-up</h2>{_table(head, rows)}{''.join(texts)}"


def _image(png: bytes, alt: str) -> str:
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
