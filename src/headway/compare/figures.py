"""The figures of a study's page: curves over images and NFE with their bands, ratios over targets, losses by noise level."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, LogFormatter
from scipy import stats

from headway.compare.analysis import Analysis, Cell, nfe_measured, over_images, over_nfe
from headway.compare.crossing import monotone

Picture = tuple[str, Figure]


def learning_curves(found: Analysis) -> list[Picture]:
    """Distance over images, the ratio over targets, the loss by noise level."""
    colours = _colours(found)
    images, ratio = _figure(), _figure()
    axes = images.subplots()
    for arm, cells in found.cells.items():
        if cells:
            _band(axes, [over_images(cell) for cell in cells], arm, colours[arm], scale=1e-3)
    for arm, target in found.targets.items():
        axes.axhline(target, ls=":", c="gray", lw=1)
        axes.annotate(f"target of {arm}", (0.99, target), xycoords=("axes fraction", "data"), ha="right", fontsize=6)
    axes.set(xlabel="thousand images seen", ylabel="Frechet distance", yscale="log")
    right = ratio.subplots()
    for arm, comparisons in found.ratios.items():
        points = [(t, c.ratio) for t, c in comparisons.items() if c.ratio is not None]
        if points:
            right.plot(*zip(*points, strict=True), "o-", ms=3, lw=1.2, label=arm, color=colours[arm])
    right.axhline(1, c="gray", lw=1)
    right.set(xlabel="target distance", ylabel="images: baseline's over the arm's", xscale="log")
    right.invert_xaxis()
    pictures = [("Distance over images", images, axes), ("Ratio over targets", ratio, right)]
    bands = _figure()
    third = bands.subplots()
    for arm, cells in found.cells.items():
        if cells:
            rows = [band for band in cells[0]["bands"] if all(_mse(cell, band) for cell in cells)]
            levels = [_label(band["sigma"]) for band in rows]
            third.plot(
                levels,
                [geometric_mean([_mse(c, b) for c in cells]) for b in rows],
                "o-",
                ms=3,
                lw=1,
                label=arm,
                color=colours[arm],
            )
    third.set(xlabel="noise level sigma", ylabel="squared error of x0", yscale="log")
    pictures.append(("Training loss by noise level, last tenth", bands, third))
    return _with_legends(pictures)


def quality_over_nfe(found: Analysis, solver: str) -> Picture:
    """Distance of the finished models over NFE, by one solver."""
    figure = _figure()
    axes = figure.subplots()
    for arm, cells in found.cells.items():
        if cells:
            _band(axes, [over_nfe(cell, solver) for cell in cells], arm, _colours(found)[arm], smooth=False)
    axes.set(xlabel="NFE", ylabel="Frechet distance", xscale="log", yscale="log")
    counts = nfe_measured(found)[solver]
    axes.set_xticks(counts, labels=[str(n) for n in counts])
    axes.set_xticks([], minor=True)
    return _with_legends([(f"Distance over NFE, {solver}", figure, axes)])[0]


def _band(
    axes: Any, curves: Sequence[Any], label: str, colour: Any, *, scale: float = 1.0, smooth: bool = True
) -> None:
    """Geometric mean over seeds, and its 95 % interval (Student's t on logs)."""
    at = np.asarray(curves[0][0], dtype=float) * scale
    same = [values for positions, values in curves if len(positions) == len(at)]
    logs = np.log([monotone(values) if smooth else values for values in same])
    axes.plot(at, np.exp(logs.mean(0)), "o-", ms=3, lw=1.2, label=label, color=colour)
    if len(logs) > 1:
        half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(0, ddof=1) / np.sqrt(len(logs))
        axes.fill_between(at, np.exp(logs.mean(0) - half), np.exp(logs.mean(0) + half), color=colour, alpha=0.12)


def _colours(found: Analysis) -> dict[str, Any]:
    """One colour an arm, the same in every figure; the baseline is black."""
    others = [arm for arm in found.study.arms if arm != found.study.baseline]
    return {found.study.baseline: "black"} | {arm: colormaps["tab20"](i % 20) for i, arm in enumerate(others)}


def _figure() -> Figure:
    return Figure(figsize=(6.2, 3.6), layout="constrained")


def _with_legends(pictures: Sequence[tuple[str, Figure, Any]]) -> list[Picture]:
    for _, _, axes in pictures:
        axes.grid(alpha=0.3)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log" and not isinstance(axis.get_major_formatter(), FixedFormatter):
                axis.set_major_formatter(LogFormatter())
                axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        if axes.get_legend_handles_labels()[0]:
            # Beside the lines, never on them: with ten arms a legend hides what it explains.
            axes.figure.legend(fontsize=6, loc="outside right upper")
    return [(caption, figure) for caption, figure, _ in pictures]


def _mse(cell: Cell, band: dict[str, Any]) -> float:
    found: float | None = next(b["mse"] for b in cell["bands"] if b["sigma"] == band["sigma"])
    return found or 0.0


def _label(ends: Sequence[float | None]) -> str:
    low, high = ends
    return f"> {low:g}" if high is None else f"< {high:g}" if not low else f"{low:g}-{high:g}"
