"""From the cells of a study to its figures: costs to the target, quality at equal cost, what controls explain."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from headway.compare.cell import result_file
from headway.compare.crossing import Reached, monotone, reach, target_of
from headway.compare.statistics import (
    Comparison,
    Share,
    compare_costs,
    compare_values,
    corrected,
    ratio_over_targets,
    share_explained,
    voided,
)
from headway.compare.study import Study

Cell = dict[str, Any]
Points = tuple[list[float], list[float]]  # positions and distances
TARGETS = 9  # points of the ratio drawn over a range of targets


@dataclass(frozen=True)
class Measure:
    """One measure of all arms that have a baseline, corrected over them. ``unit``: of the cost, or what was equal."""

    title: str
    unit: str
    comparisons: dict[str, Comparison]


@dataclass(frozen=True)
class Analysis:
    """All that a study found.

    Attributes:
        cells: arm -> its finished cells, by seed. failed: arm -> sentences on seeds that did not finish or do not beat the ceiling.
        targets: baseline -> the distance to reach, on the curve's sampler.
        measures: by name: images, seconds, equal images, equal seconds; of the finished models "NFE <solver>" and
            "<solver>, <n> NFE".
        explained: arm -> control -> its share of the arm's gain in the headline's measure.
        ratios: arm -> target -> ratio in images.
    """

    study: Study
    cells: dict[str, list[Cell]]
    failed: dict[str, list[str]]
    targets: dict[str, float] = field(default_factory=dict)
    measures: dict[str, Measure] = field(default_factory=dict)
    explained: dict[str, dict[str, Share]] = field(default_factory=dict)
    ratios: dict[str, dict[float, Comparison]] = field(default_factory=dict)

    @property
    def headline(self) -> Measure:
        """What the answer is about: images to the target, or distance at equal images where most arms give bounds only."""
        images, distance = self.measures["images"], self.measures["equal images"]
        asked = [c for c in images.comparisons.values() if not c.void]
        known = [c for c in asked if c.ratio is not None]
        return images if 2 * len(known) >= len(asked) else distance


def read_cells(study: Study, out: Path) -> dict[str, list[Cell]]:
    """The finished cells, by arm, in the order of the study's seeds."""
    return {
        arm: [
            json.loads(file.read_text(encoding="utf-8"))
            for seed in study.seeds
            if (file := result_file(out, arm, seed)).is_file()
        ]
        for arm in study.arms
    }


def analyse(study: Study, cells: dict[str, list[Cell]], errors: dict[tuple[str, int], str]) -> Analysis:
    """All figures of a study from its finished cells; ``errors``: of the cells that failed, in words."""
    failed: dict[str, list[str]] = {}
    for (arm, seed), error in errors.items():
        failed.setdefault(arm, []).append(f"seed {seed}: {error}")
    for arm, own in cells.items():
        for cell in own:
            last = main_final(cell)
            if last["value"] >= last["ceiling"]:
                failed.setdefault(arm, []).append(
                    f"seed {cell['seed']}: {last['value']:.1f} is not below the pixel Gaussian's {last['ceiling']:.1f}"
                )
    found = Analysis(study, cells, failed)
    baselines = {arm: other for arm in study.arms if (other := study.against(arm)) is not None and cells[other]}
    for other in dict.fromkeys(baselines.values()):
        rule = study.target
        found.targets[other] = rule.value or target_of([over_images(cell) for cell in cells[other]], rule.share)
    pairs = {arm: paired(cells[other], cells[arm]) for arm, other in baselines.items()}
    pairs = {arm: pair for arm, pair in pairs.items() if pair}
    void = {arm for arm, pair in pairs.items() if not any(map(is_model, zip(*pair, strict=True)))}

    def measured(title: str, unit: str, compare: Callable[[str, list[Cell], list[Cell]], Comparison]) -> Measure:
        each = [compare(arm, *map(list, zip(*pair, strict=True))) for arm, pair in pairs.items()]
        each = [voided(c) if c.arm in void else c for c in each]
        return Measure(title, unit, dict(zip(pairs, corrected(each), strict=True)))

    def cost(curve: Callable[[Cell], Points]) -> Callable[[str, list[Cell], list[Cell]], Comparison]:
        def compare(arm: str, theirs: list[Cell], mine: list[Cell]) -> Comparison:
            target = found.targets[baselines[arm]]
            return compare_costs(
                [reach(*curve(c), target) for c in theirs], [reach(*curve(c), target) for c in mine], arm
            )

        return compare

    def nfe(solver: str) -> Callable[[str, list[Cell], list[Cell]], Comparison]:
        def compare(arm: str, theirs: list[Cell], mine: list[Cell]) -> Comparison:
            costs: tuple[list[Reached], list[Reached]] = ([], [])
            for pair in zip(theirs, mine, strict=True):
                # Each seed's own target: seeds end at different distances, and no number of steps makes up for that.
                target = middle_of_nfe(over_nfe(pair[0], solver))
                for side, cell in zip(costs, pair, strict=True):
                    side.append(reach(*over_nfe(cell, solver), target, log_axis=True))
            return compare_costs(*costs, arm)

        return compare

    def at_nfe(solver: str, at: int) -> Callable[[str, list[Cell], list[Cell]], Comparison]:
        def compare(arm: str, theirs: list[Cell], mine: list[Cell]) -> Comparison:
            values = [[dict(zip(*over_nfe(c, solver), strict=True))[at] for c in side] for side in (theirs, mine)]
            return compare_values(values[0], values[1], arm)

        return compare

    def equal_images(arm: str, theirs: list[Cell], mine: list[Cell]) -> Comparison:
        return compare_values([main_final(c)["value"] for c in theirs], [main_final(c)["value"] for c in mine], arm)

    def equal_seconds(arm: str, theirs: list[Cell], mine: list[Cell]) -> Comparison:
        sides: tuple[list[float], list[float]] = ([], [])
        for pair in zip(theirs, mine, strict=True):
            common = min(over_seconds(cell)[0][-1] for cell in pair)
            for side, cell in zip(sides, pair, strict=True):
                side.append(value_at(over_seconds(cell), common))
        return compare_values(*sides, arm)

    found.measures["images"] = measured("Images to the target", "images", cost(over_images))
    found.measures["seconds"] = measured("Training seconds to the target", "seconds", cost(over_seconds))
    found.measures["equal images"] = measured("Distance at equal images", "images", equal_images)
    found.measures["equal seconds"] = measured("Distance at equal seconds", "seconds", equal_seconds)
    for solver, counts in nfe_measured(found).items():
        found.measures[f"NFE {solver}"] = measured(f"NFE to the target, {solver}", "NFE", nfe(solver))
        for n in counts:
            found.measures[f"{solver}, {n} NFE"] = measured(f"Distance at {n} NFE, {solver}", "NFE", at_nfe(solver, n))
    for arm, pair in ((arm, pair) for arm, pair in pairs.items() if arm not in void):
        theirs, mine = ([over_images(cell) for cell in side] for side in zip(*pair, strict=True))
        targets = range_of_targets(theirs)
        found.ratios[arm] = dict(zip(targets, ratio_over_targets(theirs, mine, targets, arm), strict=True))
        gains = found.headline.comparisons
        for control in study.arms[arm].controls:
            if control in pairs and len(pairs[control]) == len(pair):
                share = share_explained(gains[arm].log_ratios, gains[control].log_ratios, arm, control)
                found.explained.setdefault(arm, {})[control] = share
    return found


def paired(theirs: list[Cell], mine: list[Cell]) -> list[tuple[Cell, Cell]]:
    """The cells of the seeds that both arms have."""
    by_seed = {cell["seed"]: cell for cell in theirs}
    return [(by_seed[cell["seed"]], cell) for cell in mine if cell["seed"] in by_seed]


def is_model(cells: Sequence[Cell]) -> bool:
    """Whether an arm's distance, averaged over seeds, is below the pixel Gaussian's."""
    return sum(math.log(main_final(cell)["value"] / main_final(cell)["ceiling"]) for cell in cells) < 0


def main_final(cell: Cell) -> dict[str, Any]:
    """The finished model measured by the first sampler, on the weights that the arm is judged by."""
    first: dict[str, Any] = cell["finals"][0]
    return first


def over_images(cell: Cell) -> Points:
    return [p["nimg"] for p in cell["curve"]], [p["value"] for p in cell["curve"]]


def over_seconds(cell: Cell) -> Points:
    return [p["seconds"] for p in cell["curve"]], [p["value"] for p in cell["curve"]]


def over_nfe(cell: Cell, solver: str) -> Points:
    """Distances of the finished model over NFE, by one solver."""
    chosen = [f for f in cell["finals"] if f["solver"] == solver and f["ema"] == main_final(cell)["ema"]]
    chosen.sort(key=lambda f: f["nfe"])
    return [f["nfe"] for f in chosen], [f["value"] for f in chosen]


def solvers(study: Study) -> list[str]:
    return list(dict.fromkeys(sampler.solver for sampler in study.final.samplers))


def value_at(curve: Points, position: float) -> float:
    """The monotone curve's distance at a position, log distance linear in between."""
    positions, values = curve
    return float(np.exp(np.interp(position, positions, np.log(monotone(values)))))


def nfe_measured(found: Analysis) -> dict[str, list[int]]:
    """Solver -> its NFE, of the solvers by which the finished models were measured at several."""
    cell = next(cell for cells in found.cells.values() for cell in cells)
    measured = {solver: [int(n) for n in over_nfe(cell, solver)[0]] for solver in solvers(found.study)}
    return {solver: counts for solver, counts in measured.items() if len(counts) > 1}


def middle_of_nfe(curve: Points) -> float:
    """The distance at the geometric middle of the NFE measured: off the plateau, and off the first point."""
    nfe, values = curve
    middle = math.log(math.sqrt(nfe[0] * nfe[-1]))
    return math.exp(np.interp(middle, np.log(nfe), np.log(monotone(values))))


def range_of_targets(curves: list[Points]) -> list[float]:
    """Distances from the baseline's at 30 % of its budget to its last, evenly in the log."""
    high = geometric_mean([value_at(curve, 0.3 * max(curve[0])) for curve in curves])
    low = geometric_mean([float(monotone(curve[1])[-1]) for curve in curves])
    return [float(x) for x in np.geomspace(high, low, TARGETS)]
