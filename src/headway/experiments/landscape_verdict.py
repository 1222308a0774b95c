"""What the landscapes of several models say: figures of smoothness, their differences with intervals, and the words for them.

A model is one observation. Diffusion models against GANs are two independent samples (Welch 1947); a technique against the
reference is paired by seed (Student).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np
from scipy import stats

from headway.errors import HeadwayError
from headway.experiments.landscape import PLAYERS
from headway.landscape import convexity_share, eigenvalue_ratio, roughness

MODELS_FOR_A_VERDICT = 3  # on each side
CONFIDENCE = 0.95
ROUNDING = 1e-6  # about what float32 losses carry, as a share of their size

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """One group's mean minus another's, or the ratio of their geometric means, with its 95 % interval.

    Attributes:
        n: models on each side. value, low, high: no interval where a side has one model only.
        ratio: whether these are ratios, with 1 for no difference; else differences, with 0.
    """

    n: tuple[int, int]
    value: float
    low: float | None
    high: float | None
    ratio: bool

    @property
    def direction(self) -> Literal["lower", "higher", "no difference shown"]:
        """Of the first group: by the interval, or where there is none by the value."""
        none = 1.0 if self.ratio else 0.0
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        return "lower" if high < none else "higher" if low > none else "no difference shown"

    @property
    def indicative(self) -> bool:
        """Whether there are too few models for a verdict, whatever the interval says."""
        return min(self.n) < MODELS_FOR_A_VERDICT

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.value:.3g}{'x' if self.ratio else ''}{interval}"


def difference(first: Sequence[float], second: Sequence[float], *, ratio: bool, paired: bool = False) -> Difference:
    """How two groups of models differ in a figure.

    Args:
        first, second: a number a model. ratio: compare logs of positive numbers, and give their ratio.
        paired: number i of one belongs to number i of the other (Student's t of the differences); else Welch's t.

    Raises:
        HeadwayError: an empty group, pairs that do not match, ratios of numbers that are not positive.
    """
    if not first or not second or (paired and len(first) != len(second)):
        raise HeadwayError(f"Groups of {len(first)} and {len(second)} models cannot be compared{' in pairs' * paired}.")
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if ratio and not (a.min() > 0 and b.min() > 0):
        raise HeadwayError("Ratios need positive numbers.")
    back: Callable[[float], float] = math.exp if ratio else float
    a, b = (np.log(a), np.log(b)) if ratio else (a, b)
    mean = float(a.mean() - b.mean())
    n = (len(a), len(b))
    if min(n) < 2:
        return Difference(n, back(mean), None, None, ratio)
    groups = (a - b,) if paired else (a, b)
    squares = [float(group.var(ddof=1)) / len(group) for group in groups]  # squared standard errors of the means
    half = 0.0
    if sum(squares) > 0:
        freedom = sum(squares) ** 2 / sum(s**2 / (len(g) - 1) for s, g in zip(squares, groups, strict=True))
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(sum(squares))
    return Difference(n, back(mean), back(mean - half), back(mean + half), ratio)


@dataclass(frozen=True)
class Figure:
    """A figure of smoothness: of (a model's results, landscape) a number, or None where it has none."""

    title: str
    of: Callable[[Results, str], float | None]
    smooth: Literal["lower", "higher"]
    ratio: bool


def last_row(model: Results, landscape: str, band: str = "all") -> Results | None:
    """The newest row of curvature of a band."""
    rows = [row for row in model["curvature"].get(landscape, []) if row["band"] == band]
    return rows[-1] if rows else None


def _of_row(read: Callable[[Results], float | None]) -> Callable[[Results, str], float | None]:
    def of(model: Results, landscape: str) -> float | None:
        row = last_row(model, landscape)
        found = None if row is None else read(row)
        return None if found is None or not math.isfinite(found) else found

    return of


def _of_lines(prefix: str, read: Callable[[Any, Any], float]) -> Callable[[Results, str], float | None]:
    """Mean over the lines of that name, all sigma; None where a loss on one of them is not finite."""

    def of(model: Results, landscape: str) -> float | None:
        lines = [
            line
            for name, line in model["lines"].get(landscape, {}).items()
            if name.startswith(prefix) and "," not in name
        ]
        if not lines or any(None in line["losses"] for line in lines):
            return None
        mean = fmean(read(line["alphas"], line["losses"]) for line in lines)
        return round(mean / ROUNDING) * ROUNDING  # bumps of rounding are none

    return of


FIGURES = (
    Figure("share of the stable step", _of_row(lambda row: row["edge"]), "lower", True),
    Figure("lambda1 / lambda5", _of_row(lambda row: eigenvalue_ratio(row["top"])), "lower", True),
    Figure("change of the gradient in a step", _of_row(lambda row: row["predictiveness"]), "lower", True),
    Figure("positive share of the spectrum", _of_row(lambda row: row["positive_share"]), "higher", False),
    *(
        figure
        for where, prefix in (("initial to trained", "initial to trained"), ("random lines", "random"))
        for figure in (
            Figure(f"bumps, {where}", _of_lines(prefix, lambda x, y: roughness(x, y).variation), "lower", False),
            Figure(f"gap to convex, {where}", _of_lines(prefix, lambda x, y: roughness(x, y).gap), "lower", False),
            Figure(f"convex share, {where}", _of_lines(prefix, convexity_share), "higher", False),
        )
    ),
)


@dataclass(frozen=True)
class Claim:
    """A figure of the diffusion models against one player of the GANs. Values of the models by name, where there are any."""

    figure: Figure
    player: str
    mine: Mapping[str, float]
    theirs: Mapping[str, float]
    difference: Difference | None

    @property
    def word(self) -> str:
        """smoother, rougher, "no difference shown" or "not measured"."""
        if self.difference is None:
            return "not measured"
        direction = self.difference.direction
        return direction if direction.startswith("no") else "smoother" if direction == self.figure.smooth else "rougher"


def references(results: Results) -> dict[str, Any]:
    """The diffusion models that are compared with GANs and with techniques: those that differ in their seed alone."""
    models = results["models"]
    return {n: m for n, m in models.items() if m["kind"] == "diffusion" and m["differs"] == "seed"}


def gans(results: Results) -> dict[str, Any]:
    return {name: model for name, model in results["models"].items() if model["kind"] == "gan"}


def claims(results: Results) -> list[Claim]:
    """Every figure against each player; without models of one kind there are none."""
    mine, theirs = references(results), gans(results)
    found = []
    for player in PLAYERS if mine and theirs else ():
        for figure in FIGURES:
            a, b = _values(figure, mine, "diffusion"), _values(figure, theirs, player)
            compared = difference([*a.values()], [*b.values()], ratio=figure.ratio) if a and b else None
            found.append(Claim(figure, player, a, b, compared))
    return found


def _values(figure: Figure, models: Mapping[str, Any], landscape: str) -> dict[str, float]:
    values = {name: figure.of(model, landscape) for name, model in models.items()}
    return {name: v for name, v in values.items() if v is not None and (v > 0 or not figure.ratio)}


# Of a technique: the first two by the reference's loss, the others by the loss it was trained with, at its own step.
SHARPNESS: dict[str, Callable[[Results], float | None]] = {
    "lambda1": lambda model: _read(model, ("reference", "all"), lambda row: float(row["top"][0])),
    "trace": lambda model: _read(model, ("reference", "all"), lambda row: float(row["trace"])),
    "share of the stable step": lambda model: FIGURES[0].of(model, "diffusion"),
    "change of the gradient in a step": lambda model: FIGURES[2].of(model, "diffusion"),
}


def _read(model: Results, bands: Sequence[str], read: Callable[[Results], float]) -> float | None:
    """Of the first of the bands that the model has."""
    rows = [row for band in bands if (row := last_row(model, "diffusion", band)) is not None]
    return read(rows[0]) if rows else None


def techniques(results: Results) -> dict[str, dict[str, Difference]]:
    """{technique: {figure: its ratio to the reference of the same seed}}; only what at least one pair has."""
    by_seed = {model["seed"]: model for model in references(results).values()}
    found: dict[str, dict[str, Difference]] = {}
    for model in results["models"].values():
        if model["kind"] == "diffusion" and model["differs"] != "seed":
            found.setdefault(model["differs"], {})
    for technique, compared in found.items():
        own = [m for m in results["models"].values() if m["differs"] == technique and m["seed"] in by_seed]
        for title, read in SHARPNESS.items():
            pairs = [(read(model), read(by_seed[model["seed"]])) for model in own]
            whole = [(a, b) for a, b in pairs if a is not None and b is not None and a > 0 and b > 0]
            if whole:
                first, second = zip(*whole, strict=True)
                compared[title] = difference(first, second, ratio=True, paired=True)
    return found


def unfair(results: Results) -> list[str]:
    """Models whose samples are no nearer to the data than the pixel Gaussian's."""
    return [
        name
        for name, model in results["models"].items()
        if model["fidelity"] and model["fidelity"]["value"] >= model["fidelity"]["ceiling"]
    ]
