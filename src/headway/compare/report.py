"""What a study found, for people: one page whose first sentence is the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from headway.compare.analysis import Analysis, Cell, main_final, nfe_measured, over_nfe
from headway.compare.cell import grid_file
from headway.compare.figures import learning_curves, quality_over_nfe
from headway.compare.statistics import NO_MODEL, SEEDS_FOR_A_VERDICT, WORDS, Comparison, sentence
from headway.page import Page

COSTS = ("images", "seconds", "equal images", "equal seconds")
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


def answer(found: Analysis) -> str:
    """The verdict in a sentence, by the words that the seeds can carry."""
    measure = found.headline
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
    for word in (*WORDS[next(iter(comparisons.values())).measure], "no difference shown", "bound only", NO_MODEL):
        arms = [f"**{arm}**" if c.void else say(arm) for arm, c in ranked.items() if c.verdict == word]
        if arms:
            parts.append(f"{word[0].upper() + word[1:]}: {', '.join(arms)}.")
    return f"{' '.join(parts)} {what}; {seeds} seeds.{_few_steps(found)}{tail}"


def _few_steps(found: Analysis) -> str:
    """What holds at the fewest evaluations measured, solver by solver."""
    said = []
    for solver, counts in nfe_measured(found).items():
        better = [c for c in found.measures[f"{solver}, {counts[0]} NFE"].comparisons.values() if c.verdict == "better"]
        arms = ", ".join(f"**{c.arm}** {c.ratio:.2f}x" for c in better) or "none"
        said.append(f"{arms} at {counts[0]} NFE ({solver})")
    return f" Better at the fewest sampling steps: {'; '.join(said)}." if said else ""


def number(distance: float) -> str:
    """A distance to three digits, without an exponent."""
    return f"{distance:,.0f}" if distance >= 1000 else f"{distance:.3g}"


def brief(c: Comparison) -> str:
    """The ratio with its interval, or its bounds, in few characters."""
    if c.void:
        return "no model"
    if c.ratio is not None:
        interval = f" [{c.low:.2f}, {c.high:.2f}]" if c.low is not None and c.high is not None else ""
        return f"{c.ratio:.2f}x{interval}"
    signs = {"at least": ">", "at most": "<"}
    bounds = [f"{signs[b.direction]} {b.ratio:.2f}x in {b.seeds} of {c.n}" for b in c.bounds]
    return "; ".join(bounds) or "outside what was measured"


def _results(page: Page, found: Analysis) -> None:
    page.heading("Result")
    measure = found.headline
    rows, all_rows = [], []
    for arm, cells in found.cells.items():
        values = [main_final(cell)["value"] for cell in cells]
        mean = number(geometric_mean(values)) if values else "failed"
        own = measure.comparisons.get(arm)
        rows.append([arm, own.verdict if own else "(baseline)", brief(own) if own else "-", mean])
        by = [found.measures[name].comparisons.get(arm) for name in COSTS]
        each = ", ".join(map(number, values)) or "-"
        all_rows.append([arm, found.study.against(arm) or "-", each, *("-" if c is None else brief(c) for c in by)])
    page.table(["arm", "verdict", measure.title, "distance"], rows)
    page.table(["arm", "against", "distance, each seed", *(found.measures[name].title for name in COSTS)], all_rows)
    first = _any_final(found)
    targets = "; ".join(f"{arm}: {number(value)}" for arm, value in found.targets.items())
    curve = found.study.curve
    page.note(
        "Ratios are the baseline's number over the arm's: above 1 the arm is better. "
        f"Distance: {first['name']} by {first['solver']}, {first['nfe']} NFE; real held-out images {first['floor']:.3g}, pixel "
        f"Gaussian {first['ceiling']:.3g}. Targets on the learning curve ({curve.solver}, {curve.steps} steps, {curve.samples} "
        f"samples): {targets}."
    )
    for comparison in found.measures["images"].comparisons.values():
        if comparison.verdict in ("faster", "slower"):
            page.text(sentence(comparison, "images"))


def _curves(page: Page, found: Analysis) -> None:
    page.heading("Learning curves")
    page.pictures(learning_curves(found))
    page.note(
        "Lines: geometric mean over seeds, made decreasing as it is before a crossing is read; bands: 95 % intervals. The ratio is "
        "drawn where every seed reaches the target. Losses never rank models: they do not tell quality."
    )


def _over_nfe(page: Page, found: Analysis) -> None:
    for solver, counts in nfe_measured(found).items():
        page.heading(f"Sampling steps: {solver}")
        measures = [found.measures[f"{solver}, {n} NFE"] for n in counts] + [found.measures[f"NFE {solver}"]]
        rows = []
        for arm, cells in found.cells.items():
            if cells:
                means = [
                    number(geometric_mean(values))
                    for values in zip(*(over_nfe(c, solver)[1] for c in cells), strict=True)
                ]
                said = [_with_word(m.comparisons[arm]) if arm in m.comparisons else "" for m in measures]
                rows.append([arm, *(": ".join(filter(None, pair)) for pair in zip([*means, ""], said, strict=True))])
        page.table(["arm", *(f"at {n} NFE" for n in counts), "NFE to the target"], rows)
        page.pictures([quality_over_nfe(found, solver)])
    if nfe_measured(found):
        page.note(
            "Distance of the finished models, and the baseline's over it. Target: what the baseline of the same seed has at the "
            "geometric middle of the NFE."
        )


def _with_word(c: Comparison) -> str:
    return f"{brief(c)}, {c.verdict}" if c.verdict in (*WORDS["cost"], *WORDS["distance"]) else brief(c)


def _explained(page: Page, found: Analysis) -> None:
    if not found.explained:
        return
    page.heading("What explains it")
    gains = found.headline.comparisons
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
        page.text(f"No gain that a control could explain: {', '.join(idle)}.")
    page.note(f"Gains: {found.headline.title}, the baseline's over the arm's.")


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
            rows.append([arm, *(", ".join(map(number, values)) or "-" for values in by)])
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
