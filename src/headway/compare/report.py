"""What a study found, for people: one page whose first sentence is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from headway.compare.analysis import Analysis, Cell, Measure, main_final
from headway.compare.cell import grid_file
from headway.compare.figures import learning_curves, quality_over_nfe
from headway.compare.statistics import SEEDS_FOR_A_VERDICT, WORDS, Comparison, sentence
from headway.page import Page

MANY = 4  # arms in an answer that still says their intervals


def build_page(found: Analysis, out: Path, command: str, versions: str) -> Page:
    """The page of a study. ``out``: where its runs are. command, versions: how to do it again."""
    page = Page(found.study.question)
    page.answer(answer(found))
    _results(page, found)
    _curves(page, found)
    _over_nfe(page, found)
    _explained(page, found)
    _samples(page, found, out)
    _figures(page, found)
    _failures(page, found)
    _setup(page, found)
    page.details("The study file", found.study.to_yaml())
    page.text(f"Command: `{command}`. {versions}.")
    return page


def headline(found: Analysis) -> Measure:
    """What the answer is about: images to the target, or distance at equal images where most arms give bounds only."""
    images, distance = found.measures["images"], found.measures["equal images"]
    known = [c for c in images.comparisons.values() if c.ratio is not None]
    return images if 2 * len(known) >= len(images.comparisons) else distance


def answer(found: Analysis) -> str:
    """The verdict in a sentence, by the words that the seeds can carry."""
    measure = headline(found)
    comparisons = measure.comparisons
    if not comparisons:
        return "Nothing to compare: no arm and its baseline have a finished seed in common."
    what = f"{measure.title} (the baseline's over the arm's, above 1 is better)"
    seeds = min(c.n for c in comparisons.values())
    tail = f" Failed in some seed: {', '.join(f'**{arm}**' for arm in found.failed)}." if found.failed else ""
    # From the best down; with many arms the intervals are left to the table.
    ranked = dict(sorted(comparisons.items(), key=lambda item: -(item[1].ratio or 0)))
    short = len(ranked) > MANY

    def say(arm: str) -> str:
        c = ranked[arm]
        return f"**{arm}** {f'{c.ratio:.2f}x' if short and c.ratio else brief(c)}"

    if seeds < SEEDS_FOR_A_VERDICT:
        number = f"{seeds} seed{'s' if seeds != 1 else ''}"
        return f"Indicative only ({number}; a verdict takes {SEEDS_FOR_A_VERDICT}). {what}: {', '.join(map(say, ranked))}.{tail}"
    parts = []
    for word in (*WORDS[next(iter(comparisons.values())).measure], "no difference shown", "bound only"):
        arms = [say(arm) for arm, c in ranked.items() if c.verdict == word]
        if arms:
            parts.append(f"{word[0].upper() + word[1:]}: {', '.join(arms)}.")
    return f"{' '.join(parts)} {what}; {seeds} seeds.{tail}"


def brief(c: Comparison) -> str:
    """The ratio with its interval, or its bounds, in few characters."""
    if c.ratio is not None:
        interval = f" [{c.low:.2f}, {c.high:.2f}]" if c.low is not None and c.high is not None else ""
        return f"{c.ratio:.2f}x{interval}"
    signs = {"at least": ">", "at most": "<"}
    bounds = [f"{signs[b.direction]} {b.ratio:.2f}x in {b.seeds} of {c.n}" for b in c.bounds]
    return "; ".join(bounds) or "outside what was measured"


def _results(page: Page, found: Analysis) -> None:
    page.heading("Result")
    measure = headline(found)
    rows, all_rows = [], []
    for arm, cells in found.cells.items():
        values = [main_final(cell)["value"] for cell in cells]
        mean = f"{geometric_mean(values):.3g}" if values else "failed"
        own = measure.comparisons.get(arm)
        rows.append([arm, mean, brief(own) if own else "-", own.verdict if own else "(baseline)"])
        by = [m.comparisons.get(arm) for m in found.measures.values()]
        each = ", ".join(f"{v:.3g}" for v in values) or "-"
        all_rows.append([arm, found.study.against(arm) or "-", each, *("-" if c is None else brief(c) for c in by)])
    page.table(["arm", "distance", measure.title, "verdict"], rows)
    page.table(["arm", "against", "distance, each seed", *(m.title for m in found.measures.values())], all_rows)
    first = _any_final(found)
    targets = "; ".join(f"{arm}: {value:.3g}" for arm, value in found.targets.items())
    curve = found.study.curve
    page.note(
        "Ratios are the baseline's number over the arm's: above 1 the arm is better. "
        f"Distance: {first['name']} by {first['solver']}, {first['nfe']} NFE; real held-out images {first['floor']:.3g}, pixel "
        f"Gaussian {first['ceiling']:.3g}. Targets on the learning curve ({curve.solver}, {curve.steps} steps, {curve.samples} "
        f"samples): {targets}."
    )
    for arm, comparison in found.measures["images"].comparisons.items():
        if comparison.verdict in ("faster", "slower"):
            page.text(f"**{arm}**: {sentence(comparison, 'images')}")


def _curves(page: Page, found: Analysis) -> None:
    page.heading("Learning curves")
    page.pictures(learning_curves(found))
    page.note(
        "Lines: geometric mean over seeds, made decreasing as it is before a crossing is read; bands: 95 % intervals. The ratio is "
        "drawn where every seed reaches the target. Losses never rank models: they do not tell quality."
    )


def _over_nfe(page: Page, found: Analysis) -> None:
    if pictures := quality_over_nfe(found):
        page.heading("Sampling steps")
        page.pictures(pictures)
        for measure in (m for name, m in found.measures.items() if name.startswith("NFE")):
            for comparison in measure.comparisons.values():
                if comparison.ratio is not None:
                    page.text(f"{measure.title}: {sentence(comparison, 'NFE')}")


def _explained(page: Page, found: Analysis) -> None:
    if not found.explained:
        return
    page.heading("What explains it")
    gains = found.measures["equal images"].comparisons
    rows, idle = [], []
    for arm, shares in found.explained.items():
        if (gains[arm].ratio or 0) <= 1:
            idle.append(arm)
            continue
        for control, share in shares.items():
            rows.append([arm, brief(gains[arm]), control, brief(gains[control]), share.sentence])
    if rows:
        page.table(["arm", "its gain", "control", "the control's gain", "what that says"], rows)
    if idle:
        page.text(f"No gain at equal images that a control could explain: {', '.join(idle)}.")
    page.note("Gains are ratios of distances at equal images, the baseline's over the arm's.")


def _samples(page: Page, found: Analysis, out: Path) -> None:
    seed = found.study.seeds[0]
    files = [(arm, grid_file(out, arm, seed)) for arm in found.study.arms]
    pictures = [(arm, file.read_bytes()) for arm, file in files if file.is_file()]
    if pictures:
        page.heading("Samples")
        page.note(f"The same noises in every grid; seed {seed} of training.")
        page.pictures(pictures, pixels=True)


def _figures(page: Page, found: Analysis) -> None:
    names = list((_any_final(found).get("figures") or {}).keys())
    if not names:
        return
    page.heading("Further figures")
    rows = []
    for arm, cells in found.cells.items():
        kept = [main_final(cell)["figures"] for cell in cells if main_final(cell).get("figures")]
        if kept:
            rows.append([arm, *(_mean_and_spread([k[name] for k in kept]) for name in names)])
    floor = _any_final(found).get("figures_floor") or {}
    rows.append(["real held-out images", *(f"{floor[name]:.3g}" if name in floor else "-" for name in names)])
    page.table(["arm", *names], rows)
    others = [(arm, cell) for arm, cells in found.cells.items() for cell in cells if _averages(cell)]
    if others:
        averages = list(dict.fromkeys(f["ema"] for _, cell in others for f in [main_final(cell), *_averages(cell)]))
        rows = []
        for arm, cells in found.cells.items():
            by = [_values_of(cells, average) for average in averages]
            rows.append([arm, *(", ".join(f"{v:.3g}" for v in values) or "-" for values in by)])
        page.heading("Raw weights and averages")
        page.table(["arm", *(f"{a} weights" if a == "raw" else f"average of {a:,} images" for a in averages)], rows)
        page.note("Distance of each seed with the weights as trained and with weight averages of those half-lives.")


def _failures(page: Page, found: Analysis) -> None:
    if found.failed:
        page.heading("Failed")
        for arm, sentences in found.failed.items():
            for one in sentences:
                page.text(f"**{arm}**, {one}")


def _setup(page: Page, found: Analysis) -> None:
    study = found.study
    recipe = study.recipe(study.baseline, study.seeds[0])
    cells = [cell for own in found.cells.values() for cell in own]
    page.heading("Set-up")
    page.text(
        f"Data `{recipe.data.source}`, network of {cells[0]['parameters']:,} parameters, {recipe.train.images:,} images a run in "
        f"batches of {recipe.train.batch}, seeds {', '.join(map(str, study.seeds))}; the same initial weights, data order and "
        "noise in all arms of a seed, as far as the arm allows."
    )
    base = found.cells[study.baseline]
    rows = []
    for arm, own in found.cells.items():
        changes = "; ".join(f"{key}: {theirs} -> {mine}" for key, (theirs, mine) in study.differences(arm).items())
        rows.append(
            [
                arm,
                changes or "-",
                study.arms[arm].tuning,
                _step_cost(base, own),
                f"{max((c['memory_mb'] for c in own), default=0):,} MB",
            ]
        )
    page.table(["arm", "differs from its baseline in", "tuning spent", "time of a step", "peak memory"], rows)
    train, curve, final = (sum(cell["seconds"][part] for cell in cells) for part in ("train", "curve", "final"))
    total = train + curve + final
    page.note(
        f"{len(cells)} cells took {total / 3600:.2f} process hours: training {train / total:.0%}, learning curves "
        f"{curve / total:.0%}, final evaluation {final / total:.0%}. Time of a step: median over seeds of the arm's training "
        "seconds over the baseline's."
    )
    for warning in dict.fromkeys(w for cell in cells for w in main_final(cell)["warnings"]):
        page.note(warning)


def _step_cost(base: list[Cell], own: list[Cell]) -> str:
    by_seed = {cell["seed"]: cell["seconds"]["train"] for cell in base}
    ratios = [cell["seconds"]["train"] / by_seed[cell["seed"]] for cell in own if cell["seed"] in by_seed]
    return f"{float(np.median(ratios)):.2f}x" if ratios else "-"


def _any_final(found: Analysis) -> dict[str, Any]:
    return main_final(next(cell for cells in found.cells.values() for cell in cells))


def _averages(cell: Cell) -> list[dict[str, Any]]:
    return [f for f in cell["finals"] if f["ema"] != main_final(cell)["ema"]]


def _values_of(cells: list[Cell], average: int | str) -> list[float]:
    found = []
    for cell in cells:
        sampler = (main_final(cell)["solver"], main_final(cell)["steps"])
        found += [f["value"] for f in cell["finals"] if f["ema"] == average and (f["solver"], f["steps"]) == sampler]
    return found


def _mean_and_spread(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.3g}{spread}"
